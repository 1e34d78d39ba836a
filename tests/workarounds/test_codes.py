"""Codes beneath nulls that lie outside of their dictionary: as pyarrow makes them, in every place where they can be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.caching.store.chunk import Draft, Link
from arrowflow.caching.store.files import open_chunk, write_chunk
from arrowflow.formats.ipc.aligned import write_aligned
from arrowflow.workarounds.codes import has_dictionary, masked
from tests.ops.tables import refused

CODES = pa.dictionary(pa.int8(), pa.string())
INNER = pa.struct([("0", CODES)])

COLUMNS: dict[str, pa.Array] = {
    "alone": pa.array([None, None], CODES),
    "struct": pa.array([None, None], INNER),
    "struct in a struct": pa.array([None, {"a": None}], pa.struct([("a", INNER)])),
    "list": pa.array([[None], None, []], pa.list_(INNER)),
    "large list": pa.array([None, [None, None]], pa.large_list(INNER)),
    "list of fixed size": pa.array([None, [None, None]], pa.list_(INNER, 2)),
    "list of fixed size of lists": pa.array([[[None], None], None], pa.list_(pa.list_(INNER), 2)),
    "map": pa.array([[("a", None)], None], pa.map_(pa.string(), INNER)),
    "list view": pa.array([[None], None], pa.list_view(INNER)),
    "dictionary of structs": pa.DictionaryArray.from_arrays(
        pa.array([0, None], pa.int8()), pa.array([None], INNER)
    ),
}


def whole(array: pa.Array) -> list[pa.Array]:
    """Returns an array, and the same rows as a slice."""
    return [array, pa.concat_arrays([array] * 3).slice(len(array), len(array))]


ARRAYS = [
    pytest.param(array, id=f"{name}{' sliced' * number}")
    for name, each in COLUMNS.items()
    for number, array in enumerate(whole(each))
]


@pytest.mark.parametrize("array", ARRAYS)
def test_masked(array: pa.Array) -> None:
    found = masked(array)
    found.validate(full=True)
    assert found.type == array.type
    assert has_dictionary(found.type)
    assert found.to_pylist() == array.to_pylist()


def test_values_stay() -> None:
    rows = [{"0": "a"}, None, {"0": "b"}, {"0": None}]
    for type, given in (
        (INNER, rows),
        (pa.list_(INNER), [rows, None, [], rows[:1]]),
        (pa.list_(INNER, 2), [rows[:2], None, rows[2:]]),
        (pa.list_(pa.list_(INNER, 1), 1), [[rows[:1]], None, [None], [rows[2:3]]]),
        (pa.map_(pa.string(), INNER), [[("k", rows[0]), ("l", None)], None]),
    ):
        array = pa.array(given, type)
        assert masked(array).to_pylist() == given
        assert masked(array.slice(1)).to_pylist() == given[1:]
    plain = pa.array([[1], None])
    assert masked(plain) is plain


def sources(batch: pa.RecordBatch, folder: Path) -> dict[str, af.Dataset]:
    """Returns a dataset of these rows by every way into a pipeline."""

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch

    with pa.ipc.new_file(folder / "in.arrow", batch.schema) as writer:
        writer.write_batch(batch)
    found: dict[str, Callable[[], Any]] = {
        "table": lambda: af.from_arrow(pa.table(batch)),
        "stream": lambda: af.from_arrow(pa.RecordBatchReader.from_batches(batch.schema, [batch])),
        "generator": lambda: af.from_generator(rows, batch.schema),
        "map": lambda: af.range(1).map(lambda _: batch),
    }
    if not any(pa.types.is_list_view(type) for type in batch.schema.types):
        found["file"] = lambda: af.read_ipc(folder / "in.arrow")
    return {name: make() for name, make in found.items()}


def pyarrow_reads(type: pa.DataType) -> bool:
    """Whether this pyarrow reads nulls of the type from Parquet, which 22 does not where lists have a fixed size."""
    return int(pa.__version__.partition(".")[0]) > 22 or not pa.types.is_fixed_size_list(type)


@pytest.mark.parametrize("array", ARRAYS)
def test_every_way_in_and_out(tmp_path: Path, array: pa.Array) -> None:
    batch = pa.record_batch({"x": array})
    for name, ds in sources(batch, tmp_path).items():
        outcome = ds.to_table()["x"]
        assert outcome.to_pylist() == array.to_pylist(), name
        outcome.validate(full=True)
    ds = sources(batch, tmp_path)["table"]
    ds.write_ipc(tmp_path / "ipc")
    ds.write_parquet(tmp_path / "parquet")
    small = af.Options(ram_budget="64KiB")
    for found in (
        af.read_ipc(tmp_path / "ipc"),
        *([af.read_parquet(tmp_path / "parquet")] if pyarrow_reads(array.type) else []),
        ds.cache(tmp_path / "cache"),
        ds.cache(tmp_path / "cache"),
        ds.with_options(small).cache(spill=tmp_path),
    ):
        assert found.to_table()["x"].to_pylist() == array.to_pylist()


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_files_that_keep_codes(tmp_path: Path, array: pa.Array, compression: str | None) -> None:
    batch = pa.record_batch({"x": array})
    descriptor = os.open(tmp_path / "aligned", os.O_WRONLY | os.O_CREAT)
    try:
        write_aligned(partial(os.writev, descriptor), batch.schema, [batch], compression=compression)
    finally:
        os.close(descriptor)
    with pa.ipc.open_file(tmp_path / "aligned") as opened:
        assert opened.get_batch(0).to_pylist() == batch.to_pylist()
    items = [(batch, Link(batch.num_rows, (1,), 0, True))]
    name = write_chunk(tmp_path, Draft(0, None, items, batch.schema, "f", end=True, compression=compression))
    chunk = open_chunk(tmp_path, name, fingerprint="f", verify=True)
    assert chunk.batch(0).to_pylist() == batch.to_pylist()


def test_codes_that_are_wrong_are_not_read_as_null(tmp_path: Path) -> None:
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int8()), pa.array(["a"]), safe=False)
    array = pa.StructArray.from_arrays([wrong], ["0"])
    for column in (wrong, array):
        batch = pa.record_batch({"x": column})
        refused(af.DataError, lambda: af.from_arrow(pa.table(batch)).to_table(), "string")  # noqa: B023
        refused(af.DataError, lambda: af.range(1).map(lambda _: batch).to_table(), "map", "string")  # noqa: B023
        with pa.ipc.new_file(tmp_path / "in.arrow", batch.schema) as writer:
            writer.write_batch(batch)
        refused(af.SourceError, lambda: af.read_ipc(tmp_path / "in.arrow").to_table(), "in.arrow")

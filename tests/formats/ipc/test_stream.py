"""Arrow IPC streams are read as files are: any dictionary, any order, and a resume from every batch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.errors import PlanError, SourceError
from arrowflow.formats import FORMATS
from arrowflow.testing import check_dataset
from tests.formats.reading import KINDS, read_all

CODES = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema(
    {"id": pa.int64(), "text": pa.string(), "list": pa.list_(pa.float32()), "code": CODES, "b": pa.bool_()}
)


def batch(number: int, words: list[str], rows: int = 3) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array(range(number, number + rows)),
            pa.array([None if at % 3 == 2 else f"text {at}" for at in range(rows)]),
            pa.array([[0.5] * at for at in range(rows)], pa.list_(pa.float32())),
            pa.DictionaryArray.from_arrays(
                pa.array([at % len(words) for at in range(rows)], pa.int8()), words
            ),
            pa.array([at % 2 == 0 for at in range(rows)]),
        ],
        schema=SCHEMA,
    )


SAME = [batch(number, ["x", "y"]) for number in range(0, 12, 3)]
REPLACED = [batch(3 * number, words) for number, words in enumerate([["x"], ["y", "x"], ["z"], ["x"]])]
GROWING = [batch(3 * number, words) for number, words in enumerate([["x"], ["x", "y"], ["x", "y", "z"]])]
CASES = {"same": SAME, "replaced": REPLACED, "growing": GROWING, "none": [], "empty": [batch(0, ["x"], 0)]}


def write(path: Path, batches: list[pa.RecordBatch], **options: Any) -> Path:
    with pa.ipc.new_stream(path, SCHEMA, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for each in batches:
            writer.write_batch(each)
    return path


def decoded(batches: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches, SCHEMA)
    return table.set_column(3, "code", table.column("code").cast(pa.string()))


@pytest.mark.parametrize(
    "options",
    [{}, {"emit_dictionary_deltas": True}, {"compression": "zstd"}, {"use_legacy_format": True}],
    ids=["plain", "deltas", "compressed", "legacy"],
)
@pytest.mark.parametrize("case", CASES)
def test_rows(tmp_path: Path, case: str, options: dict[str, Any]) -> None:
    path = write(tmp_path / "a.arrow", CASES[case], **options)
    for kind in KINDS if not options else ("mapped", "fsspec"):
        assert read_all(FORMATS["ipc"], path, kind=kind).equals(decoded(CASES[case]))
    with pa.ipc.open_stream(path) as opened:
        assert opened.read_all().num_rows == decoded(CASES[case]).num_rows


@pytest.mark.parametrize("case", ["same", "replaced", "growing"])
def test_resume_and_columns(tmp_path: Path, case: str) -> None:
    write(tmp_path / "a.arrows", CASES[case])
    ds = af.read_ipc(tmp_path)
    expected = decoded(CASES[case])
    if case == "growing":
        check_dataset(lambda: ds.batch(2))
    assert ds.num_rows == expected.num_rows
    assert ds.skip(4).select("code", "id").to_table().equals(expected.slice(4).select(["code", "id"]))
    assert ds.filter(pl.col("b")).to_table().num_rows == sum(expected.column("b").to_pylist())


def test_streams_and_files_together(tmp_path: Path) -> None:
    write(tmp_path / "0.arrow", SAME)
    with pa.ipc.new_file(tmp_path / "1.arrow", SCHEMA) as writer:
        writer.write_table(pa.Table.from_batches(SAME))
    assert af.read_ipc(tmp_path).to_table().equals(decoded(SAME + SAME))


def test_a_stream_without_its_end(tmp_path: Path) -> None:
    data = write(tmp_path / "a.arrow", SAME).read_bytes()
    (tmp_path / "a.arrow").write_bytes(data[:-8])
    assert af.read_ipc(tmp_path).to_table().equals(decoded(SAME)), "writers that were stopped leave none"


@pytest.mark.slow
@pytest.mark.versions
def test_streams_that_are_cut_or_damaged_are_told(tmp_path: Path) -> None:
    data = write(tmp_path / "a.arrow", GROWING).read_bytes()
    path = tmp_path / "b.arrow"
    for stop in range(0, len(data) - 9, 7):
        path.write_bytes(data[:stop])
        try:
            found = af.read_ipc(path).to_table()
        except SourceError:
            continue
        assert found.equals(decoded(GROWING).slice(0, found.num_rows)), "it ends between two messages"
    for place in range(0, len(data), 5):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        with suppress(af.ArrowflowError):  # and no other error; some bytes mean nothing
            af.read_ipc(path).to_table()


def test_other_files_are_told(tmp_path: Path) -> None:
    for data in (b"", b"abc", b"\xff\xff\xff\xff", b"hello, this is no stream", b"\0" * 100):
        (tmp_path / "a.arrow").write_bytes(data)
        with pytest.raises(SourceError, match=r"expected an Arrow IPC file, .* or a stream"):
            af.read_ipc(tmp_path).to_table()


def test_rows_of_streams_are_not_found_in_place(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", SAME)
    ds = af.read_ipc(tmp_path)
    with pytest.raises(PlanError, match=r"are streams.*cache\(\)"):
        ds.shuffle().to_table()
    assert sorted(ds.shuffle(5).to_table().column("id").to_pylist()) == list(range(12))


@pytest.mark.corpus
def test_the_stream_of_a_file_of_others(tmp_path: Path, corpus: Path) -> None:
    with pa.ipc.open_file(corpus / "tables" / "flights-200k.arrow") as opened:
        table = opened.read_all()
    with pa.ipc.new_stream(tmp_path / "a.arrows", table.schema) as writer:
        writer.write_table(table, max_chunksize=10_000)
    assert af.read_ipc(tmp_path).to_table().equals(table)

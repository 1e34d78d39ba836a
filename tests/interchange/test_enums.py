"""Enums of Polars keep their type through sources: codes by the declared values, whatever a dictionary holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.interchange.enums import as_enum, enum_of, enum_values, polars_field
from arrowflow.testing import batches_of, check_dataset
from arrowflow.types import enum_field
from tests.ops.tables import refused, rows_of

VALUES = ["low", "mid", "high"]
ENUM = pl.Enum(VALUES)
FRAME = pl.DataFrame({"row": [0, 1, 2, 3], "e": pl.Series(["high", None, "low", "mid"], dtype=ENUM)})
TEXTS = pa.schema({"row": pa.int64(), "e": pa.string()})


def parquet(folder: Path, frame: pl.DataFrame = FRAME, name: str = "0") -> af.Dataset:
    frame.write_parquet(folder / f"{name}.parquet", row_group_size=3)
    return af.read_parquet(folder)


def ipc(folder: Path) -> af.Dataset:
    FRAME.write_ipc(folder / "0.arrow", compression="uncompressed")
    return af.read_ipc(folder)


SOURCES: dict[str, Callable[[Path], af.Dataset]] = {
    "from_arrow of a frame": lambda folder: af.from_arrow(FRAME),
    "from_arrow of a table": lambda folder: af.from_arrow(FRAME.to_arrow()),
    "from_arrow of a reader": lambda folder: af.from_arrow(FRAME.to_arrow().to_reader()),
    "read_parquet": parquet,
    "read_ipc": ipc,
}
CAST = af.from_arrow(FRAME.cast({"e": pl.String})).cast({"e": ENUM})
OPERATORS: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "as it is": lambda ds: ds,
    "equal to a text": lambda ds: ds.filter(pl.col("e") == "high"),
    "compared to a text": lambda ds: ds.filter(pl.col("e") > "low"),
    "one of some texts": lambda ds: ds.filter(pl.col("e").is_in(["low", "mid"])),
    "null": lambda ds: ds.filter(pl.col("e").is_null()),
    "filled": lambda ds: ds.fill_null({"e": "mid"}),
    "cast to text": lambda ds: ds.cast({"e": pl.String}),
    "cast to itself": lambda ds: ds.cast({"e": ENUM}),
    "computed with": lambda ds: ds.with_columns(y=pl.col("e").cast(pl.String) + "!"),
    "shuffled": lambda ds: ds.shuffle(4, seed=1).rename({"e": "f"}),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", OPERATORS)
def test_an_enum_of_a_source_is_as_after_cast(tmp_path: Path, source: str, name: str) -> None:
    found, expected = (OPERATORS[name](ds) for ds in (SOURCES[source](tmp_path), CAST))
    assert found.schema.equals(expected.schema, check_metadata=True)
    if name != "shuffled":
        assert pl.concat(found.to_polars()).equals(pl.concat(expected.to_polars()))  # a reader is read once


@pytest.mark.parametrize("source", SOURCES)
def test_its_codes_follow_the_declared_values(tmp_path: Path, source: str) -> None:
    ds = SOURCES[source](tmp_path)
    field = ds.schema.field("e")
    assert json.loads(field.metadata[b"enum_values"]) == VALUES
    (found,) = ds.filter(pl.col("e").is_not_null()).batch(3).to_numpy()
    assert (str(found["e"].dtype), found["e"].tolist()) == ("uint8", [2, 0, 1])


@pytest.mark.parametrize("source", ["from_arrow of a table", "read_parquet", "read_ipc"])
def test_contracts(tmp_path: Path, source: str) -> None:
    ds = SOURCES[source](tmp_path)
    check_dataset(lambda: ds.batch(3))
    check_dataset(lambda: ds.cache().shuffle(seed=1), epochs_differ=True)


def test_a_global_shuffle_gathers_codes_from_mapped_files(tmp_path: Path) -> None:
    found = rows_of(ipc(tmp_path).shuffle(seed=1), "e")
    assert sorted(found, key=str) == sorted(FRAME["e"].to_list(), key=str)


@pytest.mark.parametrize("kind", ["parquet", "ipc"])
def test_written_files_give_the_same_enum_here_and_to_polars(tmp_path: Path, kind: str) -> None:
    getattr(CAST, f"write_{kind}")(tmp_path)
    assert getattr(af, f"read_{kind}")(tmp_path).schema.equals(CAST.schema, check_metadata=True)
    read = getattr(pl, f"read_{kind}")(next(tmp_path.glob("*[tw]")))
    assert read.equals(FRAME)
    assert read.schema["e"] == ENUM


def test_a_schema_of_texts_gives_texts(tmp_path: Path) -> None:
    parquet(tmp_path / ".")
    ipc(tmp_path)
    for ds in (
        af.read_parquet(tmp_path / "0.parquet", schema=TEXTS),
        af.read_ipc(tmp_path / "0.arrow", schema=TEXTS),
    ):
        assert ds.schema.field("e").type == pa.string()
        assert rows_of(ds, "e") == FRAME["e"].to_list()


def test_files_with_other_values_are_refused(tmp_path: Path) -> None:
    ds = parquet(tmp_path)
    parquet(tmp_path, FRAME.with_columns(pl.col("e").cast(pl.Enum(VALUES[::-1]))), "1")
    refused(af.SchemaError, lambda: batches_of(af.read_parquet(tmp_path)), "'e'", "1.parquet", "schema=")
    assert rows_of(af.read_parquet(tmp_path, schema=TEXTS), "e") == 2 * FRAME["e"].to_list()
    assert ds.schema.field("e").metadata is not None


def declared(codes: list[Any], texts: list[str]) -> pa.Table:
    """Returns a table with a dictionary of its own under a field that declares the values."""
    array = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), texts)
    metadata = FRAME.to_arrow().schema.field("e").metadata
    return pa.table([array], schema=pa.schema([pa.field("e", array.type, metadata=metadata)]))


def test_a_dictionary_in_another_order_is_mapped(tmp_path: Path) -> None:
    table = declared([2, 0, 1, None, 1], ["mid", "high", "low"]).slice(1)
    pq.write_table(table, tmp_path / "0.parquet")
    for ds in (af.from_arrow(table), af.read_parquet(tmp_path)):
        (batch,) = batches_of(ds.batch(4))
        assert batch.column("e").indices.to_pylist() == [1, 2, None, 2]
        assert batch.column("e").dictionary.to_pylist() == VALUES


def test_a_value_that_is_not_declared_is_refused(tmp_path: Path) -> None:
    table = declared([0, 1], ["mid", "other"])
    refused(af.DataError, lambda: af.from_arrow(table), "from_arrow", "'e'", "'other'")
    pq.write_table(table, tmp_path / "0.parquet")
    refused(af.DataError, lambda: batches_of(af.read_parquet(tmp_path)), "'e'", "'other'", "0.parquet")
    unused = declared([0, None], ["mid", "other"])
    assert rows_of(af.from_arrow(unused), "e") == ["mid", None]


def test_codes_in_the_declared_order_stay_where_they_are() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([2, 0], pa.uint8()), VALUES)
    found = as_enum(array, enum_field("e", VALUES))
    assert found.indices.buffers()[1].address == array.indices.buffers()[1].address


def test_a_dictionary_without_declared_values_is_text() -> None:
    table = pa.table({"e": pa.array(["a", "b"]).dictionary_encode()})
    assert af.from_arrow(table).schema.field("e").type == pa.string()
    assert enum_of(table.schema.field("e")) is None


@pytest.mark.parametrize("text", [b"", b"3;lo", b"x;low", b"3low", b"3;low4"])
def test_another_spelling_declares_nothing(text: bytes) -> None:
    field = pa.field("e", pa.dictionary(pa.uint8(), pa.string()), metadata={b"_PL_ENUM_VALUES2": text})
    assert enum_values(field) == ([] if text == b"" else None)


@pytest.mark.parametrize(
    "values", [["ż;3", "", "a\nb", "日本"], *([f"v{i}" for i in range(n)] for n in (254, 256, 65_536))]
)
def test_widths_and_spellings_are_those_of_polars(values: list[str]) -> None:
    theirs = pl.Series("e", [], dtype=pl.Enum(values)).to_frame().to_arrow().schema.field("e")
    ours = polars_field(enum_field("e", values))
    assert enum_values(theirs) == values
    assert theirs.metadata[b"_PL_ENUM_VALUES2"] == ours.metadata[b"_PL_ENUM_VALUES2"]
    # Of 255 values Polars before 2 takes the next width.
    assert theirs.type.index_type == ours.type.index_type


def test_an_enum_may_have_no_values() -> None:
    assert enum_values(enum_field("x", [])) == []

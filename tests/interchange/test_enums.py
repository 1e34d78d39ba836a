"""Enums of Polars keep their type through sources: codes by the declared values, whatever a dictionary holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.interchange.enums import as_enum, enum_of, enum_values
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


# Memory and files, which prune, with each operator; the other sources with some.
PAIRS = [(source, name) for source in ("from_arrow of a table", "read_parquet") for name in OPERATORS]
PAIRS += [(source, name) for source in SOURCES for name in ("as it is", "compared to a text", "shuffled")]


@pytest.mark.parametrize(("source", "name"), dict.fromkeys(PAIRS))
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
    in_full = source == "read_ipc"
    check_dataset(lambda: ds.batch(3), in_full=in_full)
    check_dataset(lambda: ds.cache().shuffle(seed=1), epochs_differ=True, in_full=in_full)


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


EXPRESSIONS = {
    "codes": pl.col("e").to_physical(),
    "an order": pl.col("e") > "low",
    "an order of two": pl.col("e") <= pl.col("e").fill_null("mid"),
    "one of some": pl.col("e").is_in(["low", "mid"]),
    "filled": pl.col("e").fill_null("mid"),
    "a choice": pl.when(pl.col("row") > 1).then(pl.col("e")).otherwise(pl.lit("low", ENUM)),
    "texts": pl.col("e").cast(pl.String) + "!",
    "a struct": pl.struct("e", "row").struct.field("e"),
    "the greater": pl.max_horizontal("e", pl.lit("mid", ENUM)),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_expressions_are_those_of_polars_on_an_enum(name: str, size: int) -> None:
    expr = EXPRESSIONS[name]
    ds = af.from_arrow(pa.Table.from_batches(FRAME.to_arrow().to_batches(max_chunksize=size)))
    assert pl.DataFrame(ds.with_columns(y=expr)).equals(FRAME.with_columns(y=expr))
    if name in ("an order", "one of some"):
        assert pl.DataFrame(ds.filter(expr)).equals(FRAME.filter(expr))


def test_a_text_that_is_no_value_is_refused_by_an_expression() -> None:
    ds = af.from_arrow(FRAME)
    refused(af.PlanError, lambda: ds.filter(pl.col("e") > "top").schema, "top")
    assert (
        ds.filter(pl.col("e") == "top").to_table().num_rows == FRAME.filter(pl.col("e") == "top").height == 0
    )


def grown(frame: pl.DataFrame) -> pl.DataFrame:
    assert frame.schema["e"] == ENUM
    return frame.with_columns(row=pl.col("row") + 1)


def arrays(columns: dict[str, Any]) -> dict[str, Any]:
    return {"row": columns["row"], "e": columns["e"]}


def test_functions_keep_enums() -> None:
    ds = af.from_arrow(FRAME.drop_nulls())
    expected = FRAME.drop_nulls()
    assert pl.DataFrame(ds.map(grown, format="polars")).equals(grown(expected))
    assert pl.DataFrame(ds.map(lambda batch: batch)).equals(expected)
    assert pl.DataFrame(ds.map(arrays, format="numpy", schema=ds.schema)).equals(expected)
    assert pl.DataFrame(ds.map_rows(lambda row: row, schema={"row": pl.Int64, "e": ENUM})).equals(expected)
    codes = ds.map(lambda columns: {"e": columns["e"] + 2}, format="numpy", schema={"e": ENUM})
    refused(af.DataError, lambda: batches_of(codes), "'e'", "enum")
    strays = ds.map_rows(lambda row: {"e": "top"}, schema={"e": ENUM})
    refused(af.DataError, lambda: batches_of(strays), "'e'", "'top'", "'low'")


def test_codes_of_a_function_in_another_order_are_mapped() -> None:
    field = af.from_arrow(FRAME).schema.field("e")
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.uint8()), ["high", "low"])
    made = pa.record_batch([codes], schema=pa.schema([field]))
    for schema in (None, {"e": ENUM}):
        found = af.range(1).map(lambda batch: made, schema=schema).to_table()
        assert found["e"].combine_chunks().indices.to_pylist() == [2, 0]
        assert found["e"].to_pylist() == ["high", "low"]


def test_generators_keep_enums() -> None:
    rows = FRAME.to_dicts()
    schema = {"row": "int64", "e": ENUM}
    assert pl.DataFrame(af.from_generator(lambda: rows, schema=schema)).equals(FRAME)
    kinds: list[list[Any]] = [[FRAME, FRAME], [FRAME.to_arrow(), FRAME.to_arrow()]]
    for batches in kinds:
        ds = af.from_generator(partial(list, batches))
        assert pl.DataFrame(ds).equals(pl.concat([FRAME, FRAME]))
    other = FRAME.with_columns(pl.col("e").cast(pl.Enum(VALUES[::-1])))
    for given in (None, schema):  # the first batch sets the values, which a resumed run reads too
        mapped = af.from_generator(lambda: [FRAME, other], schema=given)
        assert pl.DataFrame(mapped).equals(pl.concat([FRAME, FRAME]))
    maps = (
        af.from_arrow(pa.table({"x": [0, 1]}))
        .batch(1)
        .map(
            lambda frame: frame.select(e=pl.lit("low", ENUM if frame["x"][0] else pl.Enum(["low"]))),
            format="polars",
        )
    )
    refused(af.SchemaError, lambda: batches_of(maps), "'e'", "schema=")


def test_lazy_frames_keep_enums() -> None:
    ds = af.from_arrow(FRAME.lazy())
    assert ds.schema.field("e").metadata[b"enum_values"] == b'["low", "mid", "high"]'
    assert pl.DataFrame(ds).equals(FRAME)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl"])
def test_a_schema_makes_enums_of_the_texts_of_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"0.{suffix}"
    texts = FRAME.cast({"e": pl.String})
    write = {"arrow": "write_ipc", "jsonl": "write_ndjson"}.get(suffix, f"write_{suffix}")
    getattr(texts, write)(path)
    name = {"arrow": "read_ipc", "jsonl": "read_json"}.get(suffix, f"read_{suffix}")
    read = getattr(af, name)
    ds = read(path, schema={"row": pl.Int64, "e": ENUM})
    assert pl.DataFrame(ds).equals(FRAME)
    assert pl.DataFrame(ds.filter(pl.col("e") > "low")).equals(FRAME.filter(pl.col("e") > "low"))
    lacking = read(path, schema={"row": pl.Int64, "e": pl.Enum(["low", "mid"])})
    refused(af.DataError, lambda: batches_of(lacking), "'e'", "'high'", f"0.{suffix}")


def test_a_schema_makes_enums_of_the_names_of_folders(tmp_path: Path) -> None:
    for level in ("low", "high"):
        (tmp_path / f"e={level}").mkdir()
        parquet(tmp_path / f"e={level}", FRAME.select("row"))
    ds = af.read_parquet(tmp_path, schema={"row": pl.Int64, "e": ENUM})
    assert ds.schema.field("e").metadata[b"enum_values"] == b'["low", "mid", "high"]'
    (found,) = ds.batch(8).to_numpy()
    assert found["e"].tolist() == [2] * 4 + [0] * 4
    assert pl.DataFrame(ds.filter(pl.col("e") > "low"))["e"].to_list() == ["high"] * 4
    lacking = af.read_parquet(tmp_path, schema={"row": pl.Int64, "e": pl.Enum(["high"])})
    refused(af.SchemaError, lambda: lacking.schema, "'e'", "'low'", "['high']", "name of a folder")


def test_a_schema_takes_the_values_of_all_files(tmp_path: Path) -> None:
    parquet(tmp_path)
    parquet(tmp_path, FRAME.with_columns(pl.col("e").cast(pl.Enum(VALUES[::-1]))), "1")
    ds = af.read_parquet(tmp_path, schema={"row": pl.Int64, "e": ENUM})
    assert pl.DataFrame(ds).equals(pl.concat([FRAME, FRAME]))


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
    ours = enum_field("e", values)
    assert enum_values(theirs) == values
    assert theirs.metadata[b"_PL_ENUM_VALUES2"] == ours.metadata[b"_PL_ENUM_VALUES2"]
    # Of 255 values Polars before 2 takes the next width.
    assert theirs.type.index_type == ours.type.index_type


def test_an_enum_may_have_no_values() -> None:
    assert enum_values(enum_field("x", [])) == []

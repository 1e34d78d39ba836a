"""`join`: rows beside those of Polars' join, for keys of every kind; resume, memory, pickles, and tables that do not fit."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import arrowflow as af
from arrowflow.lookup.key_index import MISSING, KeyIndex, index_bytes
from arrowflow.testing import batches_of, check_operator
from tests.ops.tables import ALL_TYPES, NAN, NUMBERS, refused

WAYS = [("left", True), ("inner", True), ("left", False), ("inner", False)]
KEYS = {
    "int8": pl.Series([3, -1, None, 7, 0], dtype=pl.Int8),
    "uint64": pl.Series([1 << 63, 0, None, (1 << 64) - 1, 9], dtype=pl.UInt64),
    "float": pl.Series([0.5, NAN, None, 0.0, -3.0]),
    "text": pl.Series(["a", "", None, "ä", "a longer text than fits"]),
    "bytes": pl.Series([b"a", b"", None, b"\xff", b"b"]),
    "boolean": pl.Series([True, None, False]),
    "date": pl.Series([datetime.date(2020, 1, day) for day in (1, 2, 3)] + [None], dtype=pl.Date),
    "time": pl.Series([datetime.datetime(2020, 1, day) for day in (1, 2, 3)] + [None]),
    "decimal": pl.Series(["1.5", None, "2.25"]).cast(pl.Decimal(10, 2)),
}


def drawn(key: pl.Series, rows: int, seed: int) -> pl.DataFrame:
    """Returns rows whose keys are drawn, some of them null."""
    places = np.random.default_rng(seed).integers(0, len(key), rows)
    return pl.DataFrame({"key": key.gather(places), "row": range(rows)})


def vectors(key: pl.Series, rows: int) -> pl.DataFrame:
    """Returns a table with values of several kinds."""
    values = drawn(key, rows, 1).rename({"row": "value"})
    vector = pl.Series(np.arange(rows * 3, dtype=np.float32).reshape(rows, 3))
    return values.with_columns(
        vector=vector, text=pl.format("v{}", pl.col("value")), none=pl.lit(None, pl.Int8)
    )


def check_as_polars(rows: pl.DataFrame, table: pl.DataFrame, on: Any, how: Any, *, unique: bool) -> None:
    pieces = af.Options(max_chunk_rows=7)
    found = af.from_arrow(rows).with_options(pieces).join(table, on, how=how, unique=unique).to_table()
    expected = rows.join(table, on=on, how=how, maintain_order="left_right")
    assert_frame_equal(pl.DataFrame(found), expected)


# ---------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(("how", "unique"), WAYS)
@pytest.mark.parametrize("kind", KEYS)
def test_rows_are_those_of_polars(kind: str, how: str, unique: bool) -> None:
    key = KEYS[kind]
    table = vectors(key[1:], 20)  # some rows have a key that the table lacks
    if unique:
        table = table.unique("key", maintain_order=True)
    check_as_polars(drawn(key, 50, 0), table, "key", how, unique=unique)


@pytest.mark.parametrize(("how", "unique"), WAYS)
@pytest.mark.parametrize("second", ["int8", "text"])
def test_a_key_of_two_columns(second: str, how: str, unique: bool) -> None:
    other = KEYS[second].gather(np.random.default_rng(2).integers(0, 5, 60))
    rows = drawn(KEYS["int8"], 60, 0).with_columns(other=other)
    table = vectors(KEYS["int8"], 40).with_columns(other=other[20:])
    if unique:
        table = table.unique(["key", "other"], maintain_order=True)
    check_as_polars(rows, table, ["key", "other"], how, unique=unique)


@pytest.mark.parametrize(("how", "unique"), WAYS)
def test_a_table_of_no_rows_and_one_of_keys_alone(how: str, unique: bool) -> None:
    rows, table = drawn(KEYS["int8"], 20, 0), vectors(KEYS["int8"], 0)
    check_as_polars(rows, table, "key", how, unique=unique)
    check_as_polars(rows, pl.DataFrame({"key": KEYS["int8"]}), "key", how, unique=unique)


def test_zero_and_nan_are_equal_to_themselves() -> None:
    table = pl.DataFrame({"x": [0.0, NAN], "y": [1, 2]})
    rows = af.from_numpy({"x": np.array([-0.0, -NAN, 1.0])}).join(table, "x")
    assert rows.to_table()["y"].to_pylist() == [1, 2, None]


def test_enums_meet_by_their_values() -> None:
    """Their codes differ."""
    table = pl.DataFrame({"k": pl.Series(["b", "a"], dtype=pl.Enum(["b", "a", "c"])), "v": [1, 2]})
    rows = af.from_arrow(pl.DataFrame({"k": pl.Series(["a", "b", None], dtype=pl.Enum(["a", "b"]))}))
    assert rows.join(table, "k").to_table()["v"].to_pylist() == [2, 1, None]


@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_files_of_polars_meet_frames_of_polars(kind: str, tmp_path: Any) -> None:
    """Polars writes texts with large offsets; frames have the plain types of a pipeline."""
    rows, table = drawn(KEYS[kind], 20, 0), pl.DataFrame({"key": KEYS[kind], "value": range(len(KEYS[kind]))})
    rows.write_parquet(tmp_path / "rows.parquet")
    found = af.read_parquet(tmp_path / "rows.parquet").join(table, "key")
    assert_frame_equal(pl.DataFrame(found), rows.join(table, "key", how="left", maintain_order="left"))


@pytest.mark.parametrize("step", [1, 64, 1 << 20, 1 << 44, 0x9E3779B97F4A7C15])
def test_an_index_finds_each_key_alone(step: int) -> None:
    keys = (np.arange(5_000, dtype=np.uint64) * np.uint64(step)).view(np.int64)
    found = KeyIndex(pa.record_batch({"k": keys[::2]})).find(pa.record_batch({"k": keys}))
    places = {key: row for row, key in enumerate(keys[::2].tolist())}
    assert found.tolist() == [places.get(key, MISSING) for key in keys.tolist()]


def test_a_table_is_what_from_arrow_takes() -> None:
    frame = pl.DataFrame({"id": [1, 0], "v": ["b", "a"]})
    table = frame.to_arrow()
    several = pa.Table.from_batches([*table.slice(0, 1).to_batches(), *table.slice(1).to_batches()])
    streamed = af.from_arrow(frame).filter(pl.col("id") >= 0)
    for each in (frame, table, several, frame.lazy(), af.from_arrow(frame), streamed, table.to_reader()):
        assert af.range(2).join(each, "id").to_table()["v"].to_pylist() == ["a", "b"]


# ----------------------------------------------------------------------------------------- contracts


@pytest.mark.parametrize(("how", "unique"), WAYS)
def test_contracts(how: Any, unique: bool) -> None:
    table = pl.DataFrame({"n": [1, 4, -20, 7, None, 100, 28] * (2 - unique), "v": range(14 - 7 * unique)})
    table = table.with_columns(pl.col("n").cast(pl.Int32))
    check_operator(
        lambda ds: ds.join(table, "n", how=how, unique=unique),
        NUMBERS,
        ordered_by="row" if unique else None,
        in_full=how == "left",
    )


def test_all_types_are_looked_up() -> None:
    values = af.from_arrow(ALL_TYPES).to_table()
    found = af.range(15).rename({"id": "row"}).join(ALL_TYPES, "row").to_table()
    assert found.schema.equals(values.schema)
    assert repr(found.slice(0, 11).to_pylist()) == repr(values.to_pylist())  # with NaN
    assert all(set(row.values()) <= {None, row["row"]} for row in found.slice(11).to_pylist())


def test_long_matches_come_in_pieces() -> None:
    table = pl.DataFrame({"id": [0] * 50 + [1] * 7, "v": range(57)})
    ds = af.range(3).join(table, "id", unique=False).with_options(af.Options(max_chunk_rows=10))
    assert [batch.num_rows for batch in batches_of(ds)] == [50, 8]


def test_batches_stay_as_they_are() -> None:
    table = pl.DataFrame({"id": [0, 4]})
    assert [batch.num_rows for batch in af.range(5).batch(2).join(table, "id")] == [2, 2, 1]
    for how, unique in WAYS[1:]:
        refused(
            af.PlanError,
            lambda how=how, unique=unique: af.range(5).batch(2).join(table, "id", how=how, unique=unique),  # type: ignore[misc]
            "join",
            "no longer addressable",
        )


def test_unread_columns_are_not_looked_up() -> None:
    """A column of the table that nothing reads is not in the plan that runs."""
    table = pl.DataFrame({"id": [0], "a": [1], "b": [2]})
    ds = af.from_numpy({"id": np.arange(2), "x": np.arange(2)}).join(table, "id").select("b")
    (join,) = [node for node in _nodes(ds) if node.name == "join"]
    assert join.schema.names == ["id", "b"] and ds.to_table()["b"].to_pylist() == [2, None]
    (join,) = [node for node in _nodes(ds.select(c=pl.lit(1))) if node.name == "join"]
    assert len(join.schema.names) == 1


def _nodes(ds: af.Dataset) -> list[Any]:
    nodes, node = [], ds._ready().optimised
    while node.inputs:
        nodes.append(node)
        (node,) = node.inputs
    return nodes


def test_an_index_is_not_pickled() -> None:
    ds = af.range(10).join(pl.DataFrame({"id": range(10_000)}), "id")
    ds.to_table()
    assert 80_000 < len(pickle.dumps(ds)) < 90_000  # the keys themselves
    assert pickle.loads(pickle.dumps(ds)) == ds


def test_another_table_is_another_plan() -> None:
    def joined(value: float, **how: Any) -> af.Dataset:
        return af.range(3).join(pl.DataFrame({"id": [1], "x": [value]}), "id", **how)

    assert joined(NAN) == joined(NAN) != joined(1.0)
    assert joined(1.0) != joined(1.0, how="inner")


def test_a_cache_of_another_table_is_another_one(tmp_path: Any) -> None:
    for value in (1, 2, 1):
        ds = af.range(2).join(pl.DataFrame({"id": [1], "x": [value]}), "id").cache(tmp_path)
        assert ds.to_table()["x"].to_pylist() == [None, value]


# -------------------------------------------------------------------------------------------- memory


def test_table_and_index_are_charged_once_a_run() -> None:
    table = pl.DataFrame({"id": range(1 << 16), "x": np.zeros(1 << 16)})
    held = (1 << 16) * (8 + 8) + 4 * (1 << 18) + (1 << 16) * 12
    ds = af.range(1 << 10).join(table, "id")
    with iter(ds.concatenate(ds.select("id", "x"))) as batches:
        next(batches)
        assert 0 <= batches.stats().ledger_peak_bytes - held < 1 << 16
    several = af.range(3).join(table, "id", unique=False)
    assert several._ready().chain.stages[0].kernels[-1].floor_bytes == held + 20 * (1 << 16)
    refused(
        af.BudgetError,
        lambda: ds.with_options(af.Options(ram_budget=held - 1)).to_table(),
        f"join {held:,}",
        "under the least",
    )


@pytest.mark.parametrize("names", [["a"], ["t"], ["a", "b"], ["a", "b", "a2"], ["a", "t"]])
def test_the_bytes_of_an_index_are_those_that_are_charged(names: list[str]) -> None:
    numbers = pa.array(range(5_000))
    table = pa.record_batch({"a": numbers, "b": numbers, "a2": numbers, "t": numbers.cast(pa.string())})
    keys = table.select(names)
    index = KeyIndex(keys)
    arrays: list[Any] = [index._slots, index._same_as, index._keys]
    assert 0 <= sum(array.nbytes for array in arrays) - index_bytes(keys, groups=False) < 64
    arrays += index.groups()
    assert 0 <= sum(array.nbytes for array in arrays) - index_bytes(keys, groups=True) < 64


# -------------------------------------------------------------------------------------------- errors


def test_a_key_that_comes_twice() -> None:
    table = pl.DataFrame({"id": [3, None, 8, None, 8], "b": ["x", "x", "y", "y", "y"]})
    refused(
        af.DataError,
        lambda: af.range(3).join(table, "id").to_table(),
        "rows 2 and 4 of the table have the key {'id': 8}",
        "unique=False",
    )
    assert af.range(9).join(table.head(4), "id", how="inner").to_table()["id"].to_pylist() == [3, 8]


@pytest.mark.parametrize("kind", KEYS)
def test_the_cast_of_the_error_works(kind: str) -> None:
    table = pl.DataFrame({"key": KEYS[kind]})
    rows = af.from_arrow(pa.table({"key": pa.nulls(2)}))
    with pytest.raises(af.SchemaError) as caught:
        rows.join(table, "key").to_table()
    code = str(caught.value).partition("write .")[2].partition(" before join")[0]
    ready = eval(f"rows.{code}", {"rows": rows, "table": table, "pa": pa})
    assert ready.join(table, "key").schema.names == ["key"]


def test_a_key_of_another_type() -> None:
    rows = af.from_numpy({"id": np.arange(3, dtype=np.int32)})
    table = pl.DataFrame({"id": [1], "x": [2]})
    refused(
        af.SchemaError,
        lambda: rows.join(table, "id").schema,
        "'id' is int32 in the dataset and int64 in the table",
        "write .cast({'id': pa.int64()}) before join",
    )
    refused(af.SchemaError, lambda: rows.map(lambda rows: rows).join(table, "id").to_table(), "int32")
    assert rows.cast({"id": pa.int64()}).join(table, "id").to_table()["x"].to_pylist() == [None, 2, None]


def test_bad_arguments() -> None:
    ds, table = af.range(3), pl.DataFrame({"id": [1], "x": [2]})
    refused(af.PlanError, lambda: ds.join(table, "ids"), "join", "in the table", "did you mean 'id'?")
    refused(af.PlanError, lambda: ds.join(table, "x").schema, "join", "unknown column 'x'")
    refused(af.PlanError, lambda: ds.join(table, []), "join", "at least one name")
    refused(af.PlanError, lambda: ds.join(table, ["id", "id"]), "join", "'id' more than once")
    refused(af.PlanError, lambda: ds.join(table, "id", how="right"), "join", "'left' or 'inner'", "'right'")  # type: ignore[arg-type]
    refused(af.PlanError, lambda: ds.join(ds.repeat(), "id"), "join", "endless", "repeat()")
    refused(af.PlanError, lambda: ds.join(7, "id"), "from_arrow", "expected a table", "int")
    refused(af.PlanError, lambda: ds.with_columns(x=pl.col("id")).join(table, "id").schema, "'x' is in the")
    maps = pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))})
    refused(af.PlanError, lambda: ds.join(maps, "m"), "in the table", "cannot be a key", "on=")

"""`map_rows`: a user function of single rows: what it sees, what it may return, and what happens when it fails."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.ops.functions import map_rows
from arrowflow.testing import Fault, assert_same_batches, batches_of, check_operator, raising, returning
from tests.ops.tables import ALL_TYPES, NUMBERS, Apply, numbers, refused, rows_of, sizes, stands_for_all

SMALL = af.Options(max_chunk_rows=3)
DECLARED = pa.schema([("row", pa.int64()), ("double", pa.float32())])


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"row": row["row"], "double": row["row"] * 2.0}


class Doubler:
    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return doubled(row)


def noise(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**row, "noise": rng.random()}


def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


CASES: dict[str, Apply] = {
    "inferred": lambda ds: ds.map_rows(doubled),
    "all columns": lambda ds: ds.map_rows(same, schema=ds.schema),
    "a class": lambda ds: ds.map_rows(Doubler, schema=DECLARED, columns=["row"]),
    "above batch": lambda ds: ds.batch(4).map_rows(same, schema=ds.schema),
    "random": lambda ds: ds.with_options(SMALL).map_rows(noise, seed=5, columns=["row"]),
    "in worker processes": lambda ds: ds.map_rows(Doubler, schema=DECLARED, executor="process"),
}
MARKED = pytest.param("in worker processes", marks=pytest.mark.slow)


@pytest.mark.parametrize("case", [*list(CASES)[:-1], MARKED])
def test_contracts(case: str) -> None:
    check_operator(
        CASES[case],
        NUMBERS,
        splits_matter=case == "random",
        epochs_differ=case == "random",
        ordered_by=None if case in ("above batch", "random") else "row",
        in_full=stands_for_all(case, CASES),
    )


def test_rows_are_what_map_would_see_one_by_one() -> None:
    seen = []

    def fn(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row)
        return row

    ds = af.from_arrow(NUMBERS).drop("x")
    assert batches_of(ds.map_rows(fn, schema=ds.schema, num_parallel_calls=1)) == batches_of(ds)
    assert seen == NUMBERS.drop_columns(["x"]).to_pylist()


@pytest.mark.parametrize(("columns", "num_bytes"), [(1, 1), (1, 1 << 20), (5, 10_000), (6, 1), (6, 10_000)])
def test_blocks_of_rows_are_the_rows(columns: int, num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many values are made at once, and however the dict of a row is begun."""
    monkeypatch.setattr(map_rows, "BLOCK_ROWS", 4)
    monkeypatch.setattr(map_rows, "VALUE_ROWS", 12)
    monkeypatch.setattr(map_rows, "VALUE_BYTES", num_bytes)
    kept: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> dict[str, Any]:
        kept.append(row)
        return row

    texts = pa.schema([(f"c{number}", pa.string()) for number in range(columns)])
    for rows in (0, 1, 4, 11, 12, 13, 50):
        table = pa.table([[f"{row} {name}" for row in range(rows)] for name in texts.names], schema=texts)
        kept.clear()
        found = af.from_arrow(table).map_rows(keep, schema=texts).to_table()
        assert found.to_pylist() == table.to_pylist() == kept


def test_every_type_goes_through() -> None:
    ds = af.from_arrow(ALL_TYPES)
    assert_same_batches(batches_of(ds.map_rows(same, schema=ds.schema)), batches_of(ds))


def test_pieces_are_those_of_map_and_rows_are_counted_beforehand() -> None:
    ds = numbers(7, 3, 0, 2).with_options(SMALL).map_rows(same)
    assert sizes(ds) == [3, 3, 1, 3, 2]
    assert ds.num_rows == 12


def test_random_numbers_do_not_depend_on_parallelism() -> None:
    ds = numbers(*[5] * 8)
    expected = rows_of(ds.with_options(SMALL).map_rows(noise, seed=9, num_parallel_calls=1), "noise")
    options = af.Options(cpu_budget=4, max_chunk_rows=3)
    assert rows_of(ds.with_options(options).map_rows(noise, seed=9), "noise") == expected
    assert len(set(expected)) == 40


def test_the_epoch_is_told() -> None:
    def fn(row: dict[str, Any], epoch: int) -> dict[str, Any]:
        return {"row": row["row"], "epoch": epoch}

    told = numbers(2).map_rows(fn, epoch=True)
    loader = told.batch(2).to_numpy()
    assert [batch["epoch"].tolist() for _ in range(3) for batch in loader] == [[0, 0], [1, 1], [2, 2]]
    assert rows_of(told.repeat(2), "epoch") == [0, 0, 1, 1]
    state = numbers(2).map_rows(doubled, epoch=True).batch(2).to_numpy().state_dict()
    other = numbers(2).map_rows(doubled).batch(2).to_numpy()
    refused(af.StateError, lambda: other.load_state_dict(state), "epoch")


def test_an_exception_names_the_row_and_the_operator() -> None:
    broken = KeyError("k")
    fault = Fault(raising(broken), when=lambda row: row["row"] == 5, fn=same)
    text = r"map_rows: .*KeyError: 'k' \(for the row {'row': 5}\)"
    with iter(numbers(3, 3).map_rows(fault)) as iterator:
        assert [next(iterator).num_rows for _ in range(2)] == [3, 2]  # and the rows in front of the bad one
        with pytest.raises(af.FunctionError, match=text) as caught:
            next(iterator)
    assert caught.value.__cause__ is broken


@pytest.mark.parametrize("result", [None, 3, [1], pa.record_batch({"x": [1]}), {}, {1: 2}])
def test_something_else_than_a_row_is_refused(result: Any) -> None:
    ds = numbers(3).map_rows(returning(result))
    refused(af.FunctionError, lambda: batches_of(ds), "map_rows", "dict", "`map`")


def test_the_declared_schema_names_the_values_of_a_tuple() -> None:
    types = {"a": pa.int64(), "b": pa.float32()}
    pairs = numbers(3).map_rows(lambda row: (row["row"], 2 * row["row"]), schema=types)
    assert pairs.to_table().to_pylist() == [{"a": row, "b": 2 * row} for row in range(3)]
    for schema, text in ((None, "schema="), ({"a": pa.int64()}, "['a']")):
        wrong = numbers(3).map_rows(lambda row: (1, 2), schema=schema)
        refused(af.FunctionError, lambda wrong=wrong: batches_of(wrong), "tuple of 2", text)  # type: ignore[misc]


class _Pair(NamedTuple):
    label: int
    x: int


def test_the_names_of_a_named_tuple_are_columns() -> None:
    for types in (None, {"x": pa.int64(), "label": pa.int64()}):
        rows = numbers(3).map_rows(lambda row: _Pair(label=row["row"], x=100), schema=types)
        made = af.from_generator(lambda: (_Pair(label=label, x=100) for label in range(3)), schema=types)
        for ds in (rows, made):
            assert ds.to_table().to_pydict() == {"x": [100] * 3, "label": [0, 1, 2]}


class _NoArray:
    def __array__(self, *arguments: object, **more: object) -> Any:
        raise RuntimeError("no array")


def test_a_value_that_makes_no_array_is_a_bad_row() -> None:
    def made(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": _NoArray() if row["row"] == 1 else row["row"]}

    types = {"x": pa.int64()}
    texts = ("NumPy makes no array", "RuntimeError: no array", "{'row': 1")
    refused(af.FunctionError, lambda: batches_of(numbers(3).map_rows(made, schema=types)), *texts)
    assert rows_of(numbers(3).map_rows(made, schema=types, on_error="skip"), "x") == [0, 2]
    arrays = numbers(3).map(lambda columns: {"x": _NoArray()}, format="numpy")
    refused(af.FunctionError, lambda: batches_of(arrays), "column 'x'", "_NoArray", "RuntimeError: no array")


def test_arrays_of_several_dimensions_fit_nested_lists() -> None:
    types = {"p": pa.list_(pa.list_(pa.float64(), 2)), "images": pa.list_(pa.list_(pa.list_(pa.uint8())))}

    def points(row: dict[str, Any]) -> dict[str, Any]:
        n = row["row"]
        return {"p": np.full((n, 2), n), "images": [np.zeros((n, 1), np.uint8)] * n}

    expected = [{"p": [[float(n), float(n)]] * n, "images": [[[0]] * n] * n} for n in range(3)]
    made = af.from_generator(lambda: map(points, ({"row": n} for n in range(3))), schema=types)
    for ds in (numbers(3).map_rows(points, schema=types), made):
        assert ds.to_table().to_pylist() == expected


@pytest.mark.parametrize(
    ("kept", "key"),
    [
        ([0], 0),
        ({"a": 0}, "a"),
        (np.zeros(1), 0),
        (np.zeros(()), ()),
        (bytearray(1), 0),
        (np.ma.zeros(1), 0),
    ],
)
def test_a_function_may_write_its_result_again(kept: Any, key: Any) -> None:
    row = {"x": 0, "kept": None}

    def fn(given: dict[str, Any]) -> dict[str, Any]:
        row["x"] = given["row"]
        if given["row"]:  # the first row shows nothing yet
            row["kept"] = kept
            kept[key] = given["row"]
        return row

    table = numbers(5).map_rows(fn, num_parallel_calls=1).to_table()
    assert table["x"].to_pylist() == list(range(5))
    first, *values = table["kept"].to_pylist()
    assert first is None
    assert [value if key == () else value[key] for value in values] == [1, 2, 3, 4]


@pytest.mark.parametrize("wrong", [0, 511, 512, 1199])
def test_rows_before_and_after_a_bad_one_in_any_block(wrong: int) -> None:
    def fn(row: dict[str, Any]) -> dict[str, Any]:
        return {"row": row["row"], "y": 1 // (row["row"] - wrong) if row["row"] != 700 else "text"}

    types = {"row": pa.int64(), "y": pa.int64()}
    good = [row for row in range(1200) if row not in (wrong, 700)]
    assert rows_of(numbers(1200).map_rows(fn, schema=types, on_error="skip")) == good
    seen: list[int] = []
    with pytest.raises(af.ArrowflowError):
        seen.extend(
            row for batch in numbers(1200).map_rows(fn, schema=types) for row in batch["row"].to_pylist()
        )
    assert seen == list(range(min(wrong, 700)))


def test_all_rows_have_the_same_keys() -> None:
    def fn(row: dict[str, Any]) -> dict[str, Any]:
        return row if row["row"] else {"other": 1}

    for schema, texts in (
        (None, ["keys ['row']", "expected ['other']"]),
        (DECLARED, ["keys ['other']", "schema="]),
    ):
        ds = numbers(3).map_rows(fn, schema=schema)
        refused(af.FunctionError, lambda ds=ds: batches_of(ds), *texts)  # type: ignore[misc]


def test_values_of_another_type() -> None:
    def fn(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": "text" if row["row"] == 4 else 1}

    refused(af.SchemaError, lambda: batches_of(numbers(5).map_rows(fn)), "map_rows", "'x'", "schema=")
    refused(af.SchemaError, lambda: batches_of(numbers(4, 1).map_rows(fn)), "map_rows", "'x'", "later")
    types = pa.schema([("x", pa.int8())])
    refused(af.SchemaError, lambda: batches_of(numbers(5).map_rows(fn, schema=types)), "'x'", "int8")


def test_bad_arguments() -> None:
    refused(af.PlanError, lambda: numbers(3).map_rows(3), "map_rows", "function")  # type: ignore[arg-type]
    refused(af.PlanError, lambda: numbers(3).map_rows(dict), "map_rows", "__call__")
    refused(af.PlanError, lambda: numbers(3).map_rows(same, num_parallel_calls=0), "num_parallel_calls")
    refused(af.PlanError, lambda: numbers(3).map_rows(same, columns=["no"]).select("x").schema, "no")


def test_explain_says_that_it_is_slow() -> None:
    text = numbers(3).map_rows(same).explain()
    assert "one call a row, slow" in text and "`map`" in text


NANOSECONDS = [
    pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"),
    pa.duration("ns"),
    pa.time64("ns"),
    pa.list_(pa.timestamp("ns")),
    pa.struct({"x": pa.time64("ns")}),
]


@pytest.mark.parametrize("type", NANOSECONDS)
def test_nanoseconds_are_refused_rather_than_dropped(type: pa.DataType) -> None:
    ds = af.from_arrow(pa.table({"row": [1, 2], "t": pa.nulls(2, type)}))
    refused(af.DataError, lambda: batches_of(ds.map_rows(lambda row: row)), "map_rows", "'t'", "`cast`")
    typed = ds.map_rows(lambda row: row, schema=ds.schema)
    refused(af.DataError, lambda: batches_of(typed), "map_rows", "'t'", "`cast`")
    assert rows_of(ds.map_rows(lambda row: row, columns=["row"])) == [1, 2]


def test_a_type_that_only_comes_later_wants_a_schema() -> None:
    ds = numbers(1, 1).map_rows(lambda row: {"x": row["row"] or None})
    refused(af.SchemaError, lambda: batches_of(ds), "map_rows", "'x'", "int64", "null", "schema=")

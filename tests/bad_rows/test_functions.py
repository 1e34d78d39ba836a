"""`on_error` of functions: which rows are left out, counted and kept; and that rows in front of a bad one come first."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import assert_same_batches, batches_of, check_dataset, check_operator
from tests.bad_rows.runs import in_two_parts, values
from tests.ops.tables import numbers, refused, rows_of

pytestmark = pytest.mark.any_version

SMALL = af.Options(max_chunk_rows=7)
BAD = {3, 4, 20, 41}


def row(row: dict[str, Any]) -> dict[str, Any]:
    if row["row"] in BAD:
        raise ValueError(f"row {row['row']} is bad")
    return {"row": row["row"], "double": 2 * row["row"]}


def drawn(row: dict[str, Any], rng: Any) -> dict[str, Any]:
    if row["row"] in BAD:
        raise ValueError("bad")
    return {"row": row["row"], "draw": int(rng.integers(1000))}


def piece(batch: pa.RecordBatch) -> pa.RecordBatch:
    if BAD & set(batch["row"].to_pylist()):
        raise ValueError("a bad piece")
    return batch


def odd(batch: pa.RecordBatch) -> Any:
    return [bool(value % 2) for value in piece(batch)["row"].to_pylist()] and pa.array(
        [bool(value % 2) for value in batch["row"].to_pylist()]
    )


def good(count: int) -> list[int]:
    return [number for number in range(count) if number not in BAD]


def test_single_rows_are_left_out() -> None:
    ds = numbers(10, 1, 40).with_options(SMALL).map_rows(row, on_error="skip")
    assert (ds.num_rows, ds.batch(8)._ready().num_batches) == (None, None)
    assert rows_of(ds) == good(51)
    assert rows_of(ds, "double") == [2 * number for number in good(51)]


def test_rows_keep_their_contracts() -> None:
    table = pa.table({"row": range(48)})
    check_operator(
        lambda ds: ds.with_options(SMALL).map_rows(row, on_error="skip"),
        table,
        splits_matter=True,
        ordered_by="row",
    )
    check_dataset(lambda: numbers(20, 25).with_options(SMALL).map_rows(row, on_error="skip").batch(4))
    check_dataset(
        lambda: (
            numbers(20, 25).with_options(SMALL).map_rows(drawn, seed=3, on_error="skip").shuffle(9).batch(4)
        ),
        epochs_differ=True,
    )


@pytest.mark.parametrize("kind", ["map", "filter", "batches"])
def test_pieces_are_left_out(kind: str) -> None:
    def make() -> af.Dataset:
        ds = numbers(30, 25).with_options(SMALL)
        if kind == "filter":
            return ds.filter(odd, on_error="skip")
        return (ds.batch(7, drop_remainder=True) if kind == "batches" else ds).map(piece, on_error="skip")

    size, step = (49, 7) if kind == "batches" else (55, 7)
    starts = [*range(0, 49, 7)] if kind == "batches" else [*range(0, 30, step), *range(30, 55, step)]
    whole = [
        range(start, min(start + step, 30 if start < 30 and kind != "batches" else size)) for start in starts
    ]
    expected = [value for each in whole if not BAD & set(each) for value in each]
    assert rows_of(make()) == [value for value in expected if kind != "filter" or value % 2]
    check_dataset(make)


@pytest.mark.slow
def test_worker_processes_leave_out_the_same(tmp_path: Path) -> None:
    ds = numbers(30, 25).with_options(SMALL)
    options: Any
    for number, options in enumerate(({}, {"executor": "process"})):
        made: Any = ds.map_rows(row, on_error="quarantine", quarantine=tmp_path / str(number), **options)
        with iter(made) as batches:
            assert values(batches) == good(55)
            assert batches.stats().skipped_rows == len(BAD)
    kept = [af.read_quarantine(tmp_path / name).to_table() for name in ("0", "1")]
    assert kept[0].equals(kept[1])
    assert kept[0]["row"].to_pylist() == sorted(BAD)
    assert "ValueError: row 41 is bad" in kept[0]["_error"][3].as_py()


def test_a_quarantine_of_a_function_with_a_long_name(tmp_path: Path) -> None:
    def fails(batch: Any) -> Any:
        raise ValueError

    fails.__name__ = fails.__qualname__ = "f" * 300
    ds = af.range(9).map(fails, on_error="quarantine", quarantine=tmp_path).map(fails, on_error="skip")
    assert not list(ds)
    (folder,) = tmp_path.iterdir()
    assert len(folder.name) < 143
    assert af.read_quarantine(tmp_path, operator=folder.name).to_table().num_rows == 9


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_rows_in_front_of_a_bad_one_come_first(executor: Any) -> None:
    with iter(
        af.range(1000)
        .with_options(af.Options(max_chunk_rows=1000))
        .map_rows(lambda row: {"x": 1 // (999 - row["id"])}, executor=executor)
    ) as batches:
        assert next(batches).num_rows == 999
        with pytest.raises(
            af.FunctionError, match=r"ZeroDivisionError.*\(for the row {'id': 999}\)"
        ) as caught:
            next(batches)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("schema", [None, {"row": pa.int64(), "double": pa.int64()}])
@pytest.mark.parametrize("size", [None, 1, 3, 4])
def test_a_state_in_front_of_a_bad_row_goes_on_with_it(
    schema: Any, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> af.Dataset:
        ds = numbers(30).with_options(SMALL).map_rows(row, schema=schema)
        return ds if size is None else ds.batch(size)

    iterator = iter(make())
    found, states = [], []
    with pytest.raises(af.FunctionError, match="row 3 is bad"):  # noqa: PT012  (each batch is looked at)
        for batch in iterator:
            found.append(batch)
            states.append(json.loads(json.dumps(iterator.state_dict())))
    assert values(found) == list(range(3 if size is None else 3 // size * size))
    for number, state in enumerate(states):
        again = iter(make())
        again.load_state_dict(state)
        for batch in found[number + 1 :]:
            assert_same_batches([next(again)], [batch])
        with pytest.raises(af.FunctionError, match="row 3 is bad"):
            next(again)
    monkeypatch.setattr("tests.bad_rows.test_functions.BAD", set())
    for number, state in enumerate(states):
        on = iter(make())
        on.load_state_dict(state)
        done = sum(batch.num_rows for batch in found[: number + 1])
        assert values(on) == list(range(done, 30))


def test_left_out_rows_are_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    ds = (
        numbers(30, 25)
        .with_options(SMALL)
        .map_rows(row, on_error="skip")
        .batch(10)
        .map(piece, on_error="skip")
    )
    with caplog.at_level(logging.WARNING, "arrowflow"), iter(ds) as batches:
        rows = sum(batch.num_rows for batch in batches)
        stats = batches.stats()
        line = "bad rows left out: map_rows(row) 4"
        assert line in batches.explain()
    assert (rows, stats.skipped_rows, stats.skipped_parts) == (51, 4, 0)
    assert [record.getMessage() for record in caplog.records] == [line]
    assert "bad rows are left out" in ds.explain() and "bad chunks are left out" in ds.explain()


def test_rows_of_a_call_that_failed_are_told_with_the_calls() -> None:
    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column(0)[0].as_py() == 5:
            raise ValueError
        return batch

    ds = af.range(1_000).with_options(af.Options(max_chunk_rows=5)).map(fails, on_error="skip")
    with iter(ds) as batches:
        assert sum(batch.num_rows for batch in batches) == 995
        told = batches.explain()
        assert "bad rows left out: map(" in told and "fails) 5 rows of 1 call that failed\n" in told


def test_nothing_is_told_where_no_row_is_bad(caplog: pytest.LogCaptureFixture) -> None:
    with iter(numbers(3).map_rows(row, on_error="skip")) as batches:
        assert next(batches).num_rows == 3
        assert not list(batches)
        assert "left out" not in batches.explain()
    assert not caplog.records


def test_values_of_other_types_than_declared_are_bad() -> None:
    def mixed(one: dict[str, Any]) -> dict[str, Any]:
        return {"x": "text" if one["id"] in BAD else one["id"], **({"y": 1} if one["id"] == 6 else {})}

    ds = af.range(50).map_rows(mixed, schema={"x": pa.int64()}, on_error="skip")
    assert rows_of(ds, "x") == [number for number in good(50) if number != 6]
    undeclared = af.range(50).map_rows(lambda one: {"x": "text" if one["id"] == 7 else 1}, on_error="skip")
    with iter(undeclared) as batches:
        assert next(batches).num_rows == 7
        with pytest.raises(af.SchemaError):
            next(batches)


class Broken:
    """A class that cannot be instantiated."""

    def __init__(self) -> None:
        raise ValueError("no model")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row


class Once:
    """Counts its instances, and raises for odd rows."""

    made = 0

    def __init__(self) -> None:
        Once.made += 1

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] % 2:
            raise ValueError("odd")
        return row


def out_of_memory(row: dict[str, Any]) -> dict[str, Any]:
    raise MemoryError


def test_some_failures_always_raise() -> None:
    refused(af.FunctionError, lambda: batches_of(af.range(3).map_rows(Broken, on_error="skip")), "no model")
    refused(
        af.FunctionError,
        lambda: batches_of(af.range(3).map_rows(out_of_memory, on_error="skip")),
        "MemoryError",
    )


def test_an_instance_is_called_again_after_a_bad_row() -> None:
    Once.made = 0
    assert rows_of(af.range(100).map_rows(Once, on_error="skip", num_parallel_calls=1), "id") == list(
        range(0, 100, 2)
    )
    assert Once.made == 1


def test_options_decide_where_an_operator_does_not(tmp_path: Path) -> None:
    skip = af.Options(on_error="skip")
    assert rows_of(numbers(50).map_rows(row).with_options(skip)) == good(50)
    with pytest.raises(af.FunctionError):
        batches_of(numbers(50).map_rows(row, on_error="raise").with_options(skip))
    keep = af.Options(on_error="quarantine", quarantine=tmp_path)
    assert rows_of(numbers(50).map_rows(row).with_options(keep)) == good(50)
    assert rows_of(af.read_quarantine(tmp_path)) == sorted(BAD)
    assert keep.merged(skip).quarantine is None


@pytest.mark.parametrize(
    "arguments", [{"on_error": "ignore"}, {"on_error": "quarantine"}, {"on_error": "skip", "quarantine": "x"}]
)
def test_arguments_that_make_no_sense(arguments: Any) -> None:
    calls = [
        lambda: af.Options(**arguments),
        lambda: af.range(3).map(piece, **arguments),
        lambda: af.range(3).map_rows(row, **arguments),
        lambda: af.range(3).filter(odd, **arguments),
        lambda: af.read_csv("x", **arguments),
    ]
    for call in calls:
        refused(af.PlanError, call, "on_error")


def test_a_quarantine_has_each_row_once(tmp_path: Path) -> None:
    def make() -> af.Dataset:
        ds = numbers(30, 25).with_options(SMALL)
        return ds.map_rows(row, on_error="quarantine", quarantine=tmp_path).batch(4)

    whole = batches_of(make())
    ds = make()
    for _ in range(2):
        assert_same_batches(list(ds), whole)
    for step in range(len(whole)):
        assert_same_batches(in_two_parts(make, step)[1], whole[step:])
    kept = af.read_quarantine(tmp_path).to_table().sort_by("row")
    assert kept["row"].to_pylist() == sorted(BAD)
    assert not list(tmp_path.rglob("*.part"))


def test_a_quarantine_tells_pieces_apart(tmp_path: Path) -> None:
    """Pieces of one split with the same bad rows at the same places are files of their own."""
    same = af.from_arrow(pa.table({"row": [min(BAD), 5] * 3})).with_options(af.Options(max_chunk_rows=2))
    assert rows_of(same.map_rows(row, on_error="quarantine", quarantine=tmp_path / "rows")) == [5] * 3
    kept = af.read_quarantine(tmp_path / "rows").to_table()
    assert kept.select(["row", "_piece", "_row"]).to_pylist() == [
        {"row": min(BAD), "_piece": number, "_row": 0} for number in range(3)
    ]
    assert not batches_of(same.map(lambda batch: 1, on_error="quarantine", quarantine=tmp_path / "pieces"))
    assert rows_of(af.read_quarantine(tmp_path / "pieces")) == [min(BAD), 5] * 3


def test_a_quarantine_of_several_operators(tmp_path: Path) -> None:
    keep: Any = {"on_error": "quarantine", "quarantine": tmp_path}
    ds = numbers(30, 25).with_options(SMALL).map_rows(row, **keep).batch(10).map(lambda batch: 1, **keep)
    assert not batches_of(ds)
    refused(af.PlanError, lambda: af.read_quarantine(tmp_path), "map_rows-row-", "operator=")
    assert rows_of(af.read_quarantine(tmp_path, operator="map_rows(row)")) == sorted(BAD)
    refused(af.SourceError, lambda: af.read_quarantine(tmp_path, operator="scan"), "'scan'", "map_rows-row-")
    refused(af.SourceError, lambda: af.read_quarantine(tmp_path / "none"), "has none")


def test_a_quarantine_that_cannot_be_written_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    ds = numbers(30).map_rows(row, on_error="quarantine", quarantine=tmp_path / "file")
    refused(af.WriteError, lambda: batches_of(ds), "cannot write bad rows")
    named = numbers(5).with_columns(_row=1).map_rows(row, on_error="quarantine", quarantine=tmp_path / "q")
    refused(af.WriteError, lambda: batches_of(named), "_row")


def test_rows_in_any_order_and_lanes() -> None:
    options = af.Options(deterministic=False, cpu_budget=3, max_chunk_rows=7)
    ds = numbers(*[9] * 6).map_rows(row, on_error="skip").with_options(options)
    for stop in range(1, 6):
        first, rest = in_two_parts(lambda: ds, stop)
        assert sorted(values(first + rest)) == good(54)

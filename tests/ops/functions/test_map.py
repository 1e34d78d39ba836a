"""`map`: a user function of record batches: what it sees, what it may return, and what happens when it fails."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import gc
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af
from arrowflow.interchange.from_columns import batch_from_arrays
from arrowflow.ops.functions.function import code_digest
from arrowflow.ops.sources import from_memory
from arrowflow.random import FUNCTION_CALLS, generator
from arrowflow.testing import (
    Fault,
    assert_same_batches,
    batches_of,
    check_dataset,
    check_declared,
    check_operator,
    chunked,
    cut,
    raising,
    returning,
)
from tests.ops.tables import (
    ALL_TYPES,
    NUMBERS,
    Apply,
    identity,
    ids,
    numbers,
    refused,
    rows_of,
    same_frame,
    sizes,
    stands_for_all,
    two_thirds,
)

ROW = pa.schema([("row", pa.int64())])
DOUBLED = pa.schema([("row", pa.int64()), ("double", pa.float64())])
SMALL = af.Options(max_chunk_rows=3)
EVERY_COLUMN = af.from_arrow(NUMBERS).schema
PROCESS = pytest.param("process", marks=pytest.mark.slow)


def doubled(arrays: dict[str, Any]) -> dict[str, Any]:
    return {"row": arrays["row"], "double": arrays["row"] * 2.0}


def head_of_piece(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Depends on where pieces begin and end: two rows for each piece, its first row and its length."""
    return pa.record_batch({"row": pa.array([batch.column("row")[0].as_py(), batch.num_rows], pa.int64())})


def noise(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    return batch.append_column("noise", pa.array(rng.random(batch.num_rows)))


def nothing_for_odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch if batch.column("row")[0].as_py() % 2 == 0 else batch.slice(0, 0)


def head_of_noise(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    return batch.slice(0, 1).append_column("more", pa.array([rng.random()]))


def upper(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("s").str.to_uppercase())


class Doubling:
    def __call__(self, arrays: dict[str, Any]) -> dict[str, Any]:
        return doubled(arrays)


CASES: dict[str, Apply] = {
    "arrow": lambda ds: ds.map(identity),
    "polars, declared": lambda ds: ds.map(upper, format="polars", schema=EVERY_COLUMN),
    "numpy": lambda ds: ds.map(Doubling, format="numpy", columns=["row"], schema=DOUBLED),
    "fewer rows": lambda ds: ds.map(two_thirds),
    "processes": lambda ds: ds.map(
        doubled, format="numpy", columns=["row"], schema=DOUBLED, executor="process", num_parallel_calls=2
    ),
}
PIECES: dict[str, Apply] = {
    "declared": lambda ds: ds.map(head_of_piece, schema=ROW, columns=["row"]),
    "behind a filter": lambda ds: ds.filter(pl.col("row") % 3 != 1).map(head_of_piece).map(head_of_piece),
    "none for some": lambda ds: ds.map(nothing_for_odd).batch(2),
    "random": lambda ds: (
        ds.map(noise, seed=5, num_parallel_calls=1).select("noise").map(head_of_noise, seed=5)
    ),
    "random, repeated": lambda ds: ds.take(5).repeat(2).map(noise, seed=5).batch(4),
    "random, processes": lambda ds: ds.map(noise, seed=5, executor="process"),
}


def without_processes(cases: Iterable[str]) -> list[Any]:
    """Returns the cases, with a mark on those that start processes."""
    return [pytest.param(case, marks=[pytest.mark.slow] * ("processes" in case)) for case in cases]


@pytest.mark.parametrize("case", without_processes(CASES))
def test_contracts(case: str) -> None:
    check_operator(CASES[case], NUMBERS, ordered_by="row", in_full=stands_for_all(case, CASES))


@pytest.mark.parametrize("case", without_processes(PIECES))
def test_contracts_where_splits_are_seen(case: str) -> None:
    check_operator(
        lambda ds: PIECES[case](ds.with_options(SMALL)),
        NUMBERS,
        splits_matter=True,
        epochs_differ="random" in case,
        in_full=stands_for_all(case, PIECES),
    )


def test_where_it_runs_is_shown_and_decides_nothing() -> None:
    threads, processes = numbers(3).map(identity), numbers(3).map(identity, executor="process")
    assert "executor='process'" in repr(processes) and "in worker processes" in processes.explain()
    assert "executor" not in repr(threads) + threads.explain()
    assert any("worker processes get a copy" in text for text in processes._ready().bound.copies())
    assert all("worker processes" not in text for text in threads._ready().bound.copies())
    for plan in (threads._ready().bound, processes._ready().bound):
        assert "executor" not in {**plan.arguments(), **plan.identity()}
    assert threads._ready().identity == processes._ready().identity


@pytest.mark.parametrize("format", ["arrow", "polars"])
def test_every_type_goes_through(format: Any) -> None:
    fn: Any = identity if format == "arrow" else same_frame
    ds = af.from_arrow(ALL_TYPES)
    if format == "polars":
        ds = ds.drop("map", "half", "fixed")  # Polars has none of these types
    assert_same_batches(batches_of(ds.map(fn, format=format, schema=ds.schema)), batches_of(ds))


# ---------------------------------------------------------------------------------- what it sees


def seen(ds: af.Dataset, **arguments: Any) -> list[list[int]]:
    """Returns the rows of each call, in the order of the rows."""
    calls = []

    def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.column(0).to_pylist())
        return batch

    batches_of(ds.map(fn, **arguments))
    return sorted(calls)


def test_splits_are_cut_into_pieces() -> None:
    ds = numbers(7, 3, 0, 2).with_options(SMALL)
    assert list(map(len, seen(ds))) == [3, 3, 1, 3, 2]
    assert sizes(ds.map(identity)) == [3, 3, 1, 3, 2]


def test_chunks_inside_a_split_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = seen(af.from_arrow(NUMBERS).with_options(SMALL))
    for chunk_rows in (1, 2, 4):
        monkeypatch.setattr(from_memory, "MAX_CHUNK_ROWS", chunk_rows)
        assert seen(af.from_arrow(NUMBERS).with_options(SMALL)) == expected


def test_above_batch_it_sees_exactly_the_batches() -> None:
    """However large they are: the user chose them."""
    assert list(map(len, seen(numbers(7, 6).batch(5).with_options(SMALL)))) == [5, 5, 3]


def test_a_window_and_an_epoch_are_splits() -> None:
    windows = numbers(7, 6).shuffle(5, seed=1).with_options(SMALL)
    assert sizes(windows.map(identity)) == [3, 2, 3, 2, 3]
    assert sizes(numbers(4).repeat(2).with_options(SMALL).map(identity)) == [3, 1, 3, 1]


def test_rows_are_counted_where_it_stands() -> None:
    ds = numbers(8, 8).filter(pl.col("row") % 4 != 1).with_options(SMALL)
    assert seen(ds) == [[0, 2, 3], [4, 6, 7], [8, 10, 11], [12, 14, 15]]


def test_chunks_without_rows_never_reach_it() -> None:
    ds = numbers(0, 3, 0, 4, 0).filter(pl.col("row") >= 3)
    assert seen(ds) == [[3, 4, 5, 6]]
    assert seen(numbers(0, 0)) == seen(numbers(5).take(0)) == []


def test_it_is_called_once_a_piece() -> None:
    """Also without `schema=`: nothing is called ahead to find out what it returns."""
    for schema in (None, ROW):
        fault = Fault(raising(ValueError()), at=99)
        assert rows_of(numbers(3, 3).with_options(SMALL).map(fault, schema=schema)) == list(range(6))
        assert fault.calls == 2


def test_columns_are_all_that_it_sees() -> None:
    names = []

    def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
        names.append(batch.schema.names)
        return batch

    assert af.from_arrow(NUMBERS).map(fn, columns=["x", "row"]).to_table().column_names == ["x", "row"]
    assert names == [["x", "row"]]


def test_a_null_has_no_number() -> None:
    ds = af.from_arrow(NUMBERS).map(doubled, format="numpy", columns=["n"])
    refused(af.DataError, lambda: batches_of(ds), "map", "'n'", "null")


# -------------------------------------------------------------------------------- random numbers


def noise_of(ds: af.Dataset, **arguments: Any) -> list[Any]:
    return rows_of(ds.map(noise, seed=9, **arguments), "noise")


def test_random_numbers_are_keyed_by_operator_epoch_split_and_piece() -> None:
    ds = numbers(4, 2).with_options(SMALL)
    for epoch in range(2):
        expected = [
            value
            for split, piece, rows in [(0, 0, 3), (0, 1, 1), (1, 0, 2)]
            for value in generator((9, FUNCTION_CALLS, 2, epoch, split, piece)).random(rows)
        ]
        assert rows_of(ds.map(noise, seed=9), "noise", epoch=epoch) == expected


def test_random_numbers_do_not_depend_on_parallelism() -> None:
    ds = numbers(*[5] * 8)
    expected = noise_of(ds.with_options(SMALL))
    for cpu_budget, calls in ((1, af.AUTOTUNE), (4, 1), (4, 3), (4, af.AUTOTUNE)):
        options = af.Options(cpu_budget=cpu_budget, max_chunk_rows=3)
        assert noise_of(ds.with_options(options), num_parallel_calls=calls) == expected


def test_two_operators_have_numbers_of_their_own() -> None:
    ds = numbers(4).map(noise, seed=9).map(lambda batch, rng: noise(batch.select(["row"]), rng), seed=9)
    assert rows_of(ds, "noise") != noise_of(numbers(4))


def test_random_numbers_differ_between_repetitions() -> None:
    """Also where the splits of one repetition have the numbers of the last one's."""
    assert len(set(noise_of(numbers(4).repeat(2)))) == len(set(noise_of(numbers(2, 2).repeat(2)))) == 8
    below = numbers(4).map(noise, seed=9)
    assert rows_of(below.repeat(2), "noise") == rows_of(below, "noise") + rows_of(below, "noise", epoch=1)


# ------------------------------------------------------------------------------------ parallelism


class Concurrency:
    """A function that notes how many of its calls run at the same time, and in which order they come."""

    def __init__(self) -> None:
        self.most = 0
        self.order: list[int] = []
        self._running = 0
        self._lock = threading.Lock()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
            self.order.append(batch.column("row")[0].as_py())
        with self._lock:
            self._running -= 1
        return batch


@pytest.mark.parametrize("calls", [1, 2])
def test_no_more_calls_run_than_were_asked_for(calls: int) -> None:
    fn = Concurrency()
    ds = numbers(*[1] * 50).with_options(af.Options(cpu_budget=4)).map(fn, num_parallel_calls=calls)
    assert rows_of(ds) == list(range(50))
    assert fn.most <= calls
    assert calls > 1 or fn.order == list(range(50))


@pytest.mark.parametrize(("cpu_budget", "num_parallel_calls"), [(3, af.AUTOTUNE), (1, 3), (4, 3)])
def test_calls_run_at_the_same_time(cpu_budget: int, num_parallel_calls: int) -> None:
    """Three calls that wait for each other come to an end."""
    barrier = threading.Barrier(3)

    def meet(batch: pa.RecordBatch) -> pa.RecordBatch:
        barrier.wait(30)
        return batch

    ds = numbers(1, 1, 1).with_options(af.Options(cpu_budget=cpu_budget))
    assert rows_of(ds.map(meet, num_parallel_calls=num_parallel_calls)) == [0, 1, 2]


# ---------------------------------------------------------------------------------------- schemas


def test_without_schema_only_running_tells() -> None:
    ds = numbers(3).map(identity)
    refused(af.PlanError, lambda: ds.schema, "schema=")
    assert ds.num_rows is None
    assert ds.to_table().schema == ROW
    assert rows_of(ds.with_columns(y=pl.col("row") + 1).select("y"), "y") == [1, 2, 3]


def test_a_declared_schema_is_known_before() -> None:
    ds = numbers(3).map(
        lambda arrays: dict(reversed(doubled(arrays).items())), format="numpy", schema=DOUBLED
    )
    assert ds.schema == DOUBLED
    assert ds.select("double").schema.names == ["double"]
    assert not batches_of(ds.filter(pl.col("row") > 9))
    assert batches_of(ds)[0].schema == DOUBLED, "columns may come in another order"


def test_what_functions_return_is_normalised() -> None:
    def views(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"s": pa.array(["a"] * batch.num_rows, pa.string_view())})

    assert af.range(2).map(views).to_table().schema == pa.schema([("s", pa.string())])
    check_declared(af.range(2).map(views, schema=pa.schema([("s", pa.large_string())])))


IMAGES = pa.schema([("image", pa.fixed_shape_tensor(pa.uint8(), [2, 3]))])
PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)


def pixels(arrays: dict[str, Any]) -> dict[str, Any]:
    return {"image": PIXELS[arrays["row"]]}


@pytest.mark.parametrize("executor", ["thread", PROCESS])
def test_an_array_becomes_the_tensors_that_are_declared(executor: Any) -> None:
    ds = numbers(4).map(pixels, format="numpy", schema=IMAGES, executor=executor)
    check_declared(ds)
    assert ds.to_table().schema == IMAGES
    (batch,) = ds.batch(4).to_numpy()
    assert (batch["image"] == PIXELS).all()


def test_an_array_becomes_declared_lists_too() -> None:
    lists = pa.schema([("image", pa.list_(pa.list_(pa.uint8(), 3), 2))])
    for schema in (None, lists):
        assert numbers(4).map(pixels, format="numpy", schema=schema).to_table().schema == lists


LYING = {
    "contiguous": PIXELS,
    "empty": PIXELS[:0],
    "fortran": np.asfortranarray(PIXELS),
    "strided": PIXELS[:, ::-1],
    "list": list(PIXELS),
    "masked": np.ma.masked_equal(PIXELS, 5),
}


@pytest.mark.parametrize("name", LYING)
def test_tensors_hold_what_the_array_does_however_it_lies(name: str) -> None:
    image: Any = LYING[name]
    batch = batch_from_arrays({"image": image}, IMAGES)
    assert batch.schema == IMAGES
    assert batch.column("image").storage.to_pylist() == [row.reshape(6).tolist() for row in image]


def test_tensors_are_views_of_the_array() -> None:
    storage = batch_from_arrays({"image": PIXELS}, IMAGES).column("image").storage
    assert storage.values.buffers()[1].address == PIXELS.__array_interface__["data"][0]


def test_tensors_with_permuted_axes_come_back_as_they_were_given() -> None:
    permuted = pa.fixed_shape_tensor(pa.uint8(), [3, 2, 4], permutation=[2, 0, 1])
    values = pa.FixedSizeListArray.from_arrays(pa.array(range(48), pa.uint8()), 24)
    table = pa.table({"t": pa.ExtensionArray.from_storage(permuted, values)})
    seen: list[Any] = []

    def passed(arrays: dict[str, Any]) -> dict[str, Any]:
        seen.append(arrays["t"].shape)
        return arrays

    assert af.from_arrow(table).map(passed, format="numpy", schema=table.schema).to_table() == table
    assert seen == [(2, 4, 3, 2)]


@pytest.mark.parametrize(
    ("image", "found"),
    [
        (PIXELS.astype(np.float32), "fixed_size_list[2, 3] of float,"),
        (PIXELS[:, :, :2], "fixed_size_list[2, 2] of uint8,"),
        (PIXELS.reshape(4, 6), "fixed_size_list[6] of uint8,"),
        (PIXELS[:, 0, 0], "uint8,"),
    ],
)
def test_other_arrays_than_the_tensors_that_are_declared(image: Any, found: str) -> None:
    ds = numbers(4).map(lambda arrays: {"image": image}, format="numpy", schema=IMAGES)
    texts = ("map", "'image'", found, "fixed_shape_tensor[2, 3] of uint8")
    refused(af.SchemaError, lambda: batches_of(ds), *texts)


@pytest.mark.parametrize("column", [[[1], [2, 3]], [1, None], [datetime.time(1), None], [{"a": 1}] * 2])
def test_columns_that_no_array_holds_are_left_out(column: list[Any]) -> None:
    ds = af.from_arrow(pa.table({"row": [0, 1], "other": column}))
    errors = (af.DataError, af.SchemaError)
    with pytest.raises(errors, match=r"'other'.*leave out what it does not read, with columns=") as caught:
        rows_of(ds.map(doubled, format="numpy"))
    assert caught.value.operator == "map"
    with pytest.raises(errors, match=r"'other'.*: take format='arrow' or 'polars'"):
        rows_of(ds.map(doubled, format="numpy", columns=["row", "other"]))
    assert rows_of(ds.map(doubled, format="numpy", columns=["row"])) == [0, 1]


OTHER_SCHEMAS: dict[str, Callable[[pa.RecordBatch], pa.RecordBatch]] = {
    "another type": lambda batch: pa.record_batch({"row": pc.cast(batch.column("row"), pa.int32())}),
    "another column": lambda batch: batch.append_column("more", batch.column("row")),
    "a missing column": lambda batch: pa.record_batch({"other": batch.column("row")}),
}


@pytest.mark.parametrize("case", OTHER_SCHEMAS)
def test_another_schema_than_declared_and_later(case: str) -> None:
    """Everything before it is delivered."""
    ds = numbers(3).map(OTHER_SCHEMAS[case], schema=ROW)
    refused(af.SchemaError, lambda: batches_of(ds), "map", "expected")
    fault = Fault(OTHER_SCHEMAS[case], when=lambda batch: batch.column("row")[0].as_py() == 2)
    with iter(numbers(1, 1, 1, 1).map(fault)) as iterator:
        assert [next(iterator).num_rows, next(iterator).num_rows] == [1, 1]
        refused(af.SchemaError, lambda: next(iterator), "map", "later", "expected")
        refused(af.ClosedError, lambda: next(iterator), "has raised")


def test_a_batch_without_rows_declares_nothing() -> None:
    empty = pa.record_batch({"other": pa.array([], pa.string())})
    assert rows_of(numbers(1, 1).map(Fault(returning(empty), at=0), num_parallel_calls=1)) == [1]


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("error", "cpu_budget"),
    [(ValueError("bad row"), 1), (KeyError("k"), 4), (ZeroDivisionError(), 4)],
    ids=repr,
)
def test_an_exception_comes_in_order_once_with_its_cause(error: Exception, cpu_budget: int) -> None:
    fault = Fault(raising(error), when=lambda batch: batch.column("row")[0].as_py() == 5)
    ds = numbers(*[1] * 20).with_options(af.Options(cpu_budget=cpu_budget)).map(fault)
    with iter(ds) as iterator:
        assert [next(iterator).column("row")[0].as_py() for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(af.FunctionError, match=type(error).__name__) as caught:
            next(iterator)
        refused(af.ClosedError, lambda: next(iterator), "has raised")
    assert caught.value.__cause__ is error
    assert caught.value.operator == "map"


def test_a_state_after_an_error_tries_the_failed_batch_again() -> None:
    fault = Fault(raising(OSError("once")), at=2)
    with iter(numbers(*[1] * 4).map(fault, num_parallel_calls=1)) as iterator:
        found = [next(iterator).column("row")[0].as_py() for _ in range(2)]
        refused(af.FunctionError, lambda: next(iterator), "once")
        iterator.load_state_dict(iterator.state_dict())
        found += [batch.column("row")[0].as_py() for batch in iterator]
    assert found == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("format", "result", "expected"),
    [
        ("arrow", None, "RecordBatch"),
        ("arrow", pa.table({"x": [1]}), "RecordBatch"),
        ("arrow", {"x": np.arange(3)}, "RecordBatch"),
        ("numpy", pa.record_batch({"x": [1]}), "dict"),
        ("numpy", np.arange(3), "dict"),
        ("polars", pl.Series([1]), "DataFrame"),
        ("polars", pl.LazyFrame({"x": [1]}), "DataFrame"),
    ],
    ids=str,
)
def test_what_is_no_batch(format: Any, result: Any, expected: str) -> None:
    ds = numbers(3).map(returning(result), format=format)
    texts = ("map", type(result).__name__, expected, f"format='{format}'")
    refused(af.FunctionError, lambda: batches_of(ds), *texts)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"a": np.arange(3), "b": np.arange(4)}, "length"),
        ({"a": np.float32(1)}, "'a'"),
        ({"a": np.zeros(3, complex)}, "'a'"),
        ({"a": np.array([1, "x", None], object)}, "'a'"),
        ({}, "column"),
    ],
    ids=str,
)
def test_what_is_no_table(arrays: Any, text: str) -> None:
    ds = numbers(3).map(Fault(returning(arrays), at=0), format="numpy")
    refused(af.FunctionError, lambda: batches_of(ds), "map", text)


@pytest.mark.parametrize("format", ["arrow", "numpy", "polars"])
def test_errors_that_look_row_wise_name_map_rows(format: Any) -> None:
    ds = numbers(3).map(lambda row: {"x": int(row["row"])}, format=format)
    texts = ["RecordBatch, not one row", "format='numpy'"] if format == "arrow" else []
    refused(af.FunctionError, lambda: batches_of(ds), "`map_rows`", "3 rows", *texts)


def test_unknown_columns_are_refused_with_the_closest_names() -> None:
    wrong = partial(numbers(3).map, identity, columns=["roww"])
    refused(af.PlanError, wrong, "map", "did you mean 'row'?")


@pytest.mark.parametrize(
    "arguments",
    [
        {"fn": None},
        {"fn": 3},
        {"format": "pandas"},
        {"columns": []},
        {"columns": [3]},
        {"schema": {"x": "int"}},
        {"seed": -1},
        {"seed": 1.5},
        {"seed": True},
        {"num_parallel_calls": 0},
        {"num_parallel_calls": 1.5},
        {"num_parallel_calls": True},
        {"num_parallel_calls": -2},
    ],
    ids=str,
)
def test_bad_arguments(arguments: dict[str, Any]) -> None:
    refused(af.PlanError, lambda: af.range(3).map(**{"fn": identity, **arguments}), "map")


def test_chunks_and_positions_behind_a_filter_that_leaves_nothing() -> None:
    """The end of a split may be a chunk without rows, and the next split still starts a piece of its own."""
    batch = pa.record_batch({"row": pa.array(range(8), pa.int64())})
    ds = chunked([cut(batch.slice(0, 4), [1]), cut(batch.slice(4), [2])], ROW).filter(pl.col("row") < 6)
    assert sizes(ds.filter(pl.col("row") != 3).map(identity)) == [3, 2]
    check_dataset(lambda: ds.map(head_of_piece))
    assert ids(af.range(4).map(identity)) == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------ classes


class Counting:
    """Notes how many of it there are."""

    made: list[Counting]

    def __init__(self, start: int = 0) -> None:
        self.calls = start
        type(self).made.append(self)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.calls += 1
        return batch


class Noisy:
    def __call__(self, batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
        return noise(batch, rng)


def counting() -> type[Counting]:
    """Returns a class of its own, of which there is no instance."""
    return type("Fresh", (Counting,), {"made": []})


def test_a_class_gets_the_generator_of_a_function() -> None:
    ds = numbers(4, 5).with_options(SMALL)
    assert batches_of(ds.map(Noisy, seed=3)) == batches_of(ds.map(noise, seed=3))


@pytest.mark.parametrize("workers", [1, 3])
def test_there_is_no_more_than_one_instance_a_worker(workers: int) -> None:
    cls = counting()
    ds = numbers(*[2] * 40).with_options(af.Options(cpu_budget=workers))
    assert rows_of(ds.map(cls, num_parallel_calls=workers)) == list(range(80))
    assert 1 <= len(cls.made) <= workers
    assert sum(one.calls for one in cls.made) == 40


def test_calls_at_the_same_time_have_an_instance_each() -> None:
    barrier = threading.Barrier(2)

    class Meeting(counting()):  # type: ignore[misc]
        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            barrier.wait(20)
            return batch

    assert rows_of(numbers(1, 1, 1, 1).map(Meeting, num_parallel_calls=2)) == [0, 1, 2, 3]
    assert len(Meeting.made) == 2


def test_instances_live_as_long_as_the_run() -> None:
    cls = counting()
    ds = numbers(2).repeat(5).map(cls, num_parallel_calls=1)
    assert len(rows_of(ds)) == 10
    assert len(cls.made) == 1
    gone = weakref.ref(cls.made.pop())
    gc.collect()
    assert gone() is None
    rows_of(ds)
    assert len(cls.made) == 1
    below = counting()
    rows_of(numbers(2).map(below, num_parallel_calls=1).repeat(5))
    assert len(below.made) == 1


def test_partial_gives_a_class_its_arguments() -> None:
    cls = counting()
    ds = numbers(2, 1).map(functools.partial(cls, start=10), num_parallel_calls=1)
    assert rows_of(ds) == [0, 1, 2]
    assert [one.calls for one in cls.made] == [12]


def test_an_instance_that_cannot_be_made() -> None:
    class Tokenizer(Noisy):
        def __init__(self) -> None:
            raise broken

    broken = OSError("no vocabulary")
    text = r"map: .*Tokenizer\(\) raised OSError: no vocabulary"
    with pytest.raises(af.FunctionError, match=text) as caught:
        batches_of(numbers(3).map(Tokenizer))
    assert caught.value.__cause__ is broken


def test_a_class_whose_instances_are_no_functions() -> None:
    refused(af.PlanError, lambda: numbers(3).map(pl.DataFrame), "map", "DataFrame", "__call__")


def test_the_digest_of_a_class_covers_its_methods() -> None:
    def make(factor: int, method: str = "__call__") -> type:
        code = "def f(self, batch): return batch" if factor == 1 else "def f(self, batch): return batch[::2]"
        scope: dict[str, Any] = {}
        exec(code, scope)
        return type("Same", (), {method: scope["f"], "__call__": identity})

    assert code_digest(make(1, "help")) == code_digest(make(1, "help"))
    assert code_digest(make(1, "help")) != code_digest(make(2, "help"))
    derived = [type("Derived", (make(factor, "help"),), {}) for factor in (1, 2)]
    assert code_digest(derived[0]) != code_digest(derived[1])
    assert code_digest(functools.partial(make(1, "help"), [3])) == code_digest(make(1, "help"))
    by_arguments = [code_digest(functools.partial(make(1, "help"), number)) for number in (3, 3, 4)]
    assert by_arguments[0] == by_arguments[1] != by_arguments[2]


class _Point(NamedTuple):
    x: int
    y: int


class _Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


@dataclasses.dataclass(frozen=True)
class _Size:
    height: int
    day: datetime.date


_DAY: Final = datetime.date(2026, 1, 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_Point(1, 2), _Point(1, 3)),
        ((3, _DAY), (2, _DAY)),
        (_DAY, datetime.date(2026, 1, 3)),
        (datetime.timedelta(1), datetime.timedelta(2)),
        (decimal.Decimal(1), decimal.Decimal(2)),
        (fractions.Fraction(1, 3), fractions.Fraction(2, 3)),
        (range(3), range(4)),
        (_Side.LEFT, _Side.RIGHT),
        (_Size(1, _DAY), _Size(2, _DAY)),
        (Path("a"), Path("b")),
        (uuid.UUID(int=1), uuid.UUID(int=2)),
        (np.float32, np.float64),
        (np.dtype("i4"), np.dtype("i8")),
        (pa.int8(), pa.int16()),
        (pl.Int8, pl.Int16),
        (pl.Datetime("ms"), pl.Datetime("us")),
        (np.array(["a", "b"], object), np.array(["a", "c"], object)),
        (frozenset([(1, _DAY)]), frozenset([(2, _DAY)])),
    ],
    ids=repr,
)
def test_the_digest_covers_values_that_cannot_change(one: Any, other: Any) -> None:
    def made(value: Any) -> str:
        return code_digest(lambda batch: (value, batch)[1])

    assert made(one) == made(copy.deepcopy(one)) != made(other)
    by_default = [code_digest(lambda batch, value=value: batch) for value in (one, other)]
    assert by_default[0] != by_default[1]


@pytest.mark.parametrize("value", [[1], {"a": 1}, ([1],), _Size([1], _DAY)], ids=repr)  # type: ignore[arg-type]  # on purpose
def test_the_digest_does_not_cover_what_may_change_while_a_run_goes_on(value: Any) -> None:
    def made(value: Any) -> str:
        return code_digest(lambda batch: (value, batch)[1])

    assert made(value) == made([])


def test_the_order_of_columns_is_part_of_the_schema() -> None:
    """A resumed run sees other chunks first: it could not turn the columns as an unbroken one would."""

    def turned(arrays: dict[str, Any]) -> dict[str, Any]:
        row = arrays["row"]
        return {"a": row, "b": row} if row[0] < 4 else {"b": row, "a": row}

    ds = numbers(12).batch(4).map(turned, format="numpy")
    with iter(ds) as iterator:
        assert next(iterator).schema.names == ["a", "b"]
        refused(af.SchemaError, lambda: next(iterator), "map", "['b', 'a']", "['a', 'b']", "schema=")
    declared = pa.schema([("b", pa.int64()), ("a", pa.int64())])
    declaring = numbers(12).batch(4).map(turned, format="numpy", schema=declared)
    assert {tuple(batch.schema.names) for batch in declaring} == {("b", "a")}


class Tally:
    """Tells how many calls its instance has had."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.calls += 1
        return batch.append_column(f"calls {batch.num_columns}", pa.array([self.calls] * batch.num_rows))


class TallyMask(Tally):
    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        self.calls += 1
        return pa.array([self.calls == 1] * batch.num_rows)


def test_operators_share_no_instances() -> None:
    ds = numbers(1, 1, 1, 1).map(Tally, num_parallel_calls=1).map(Tally, num_parallel_calls=1)
    for _ in range(2):  # a run has instances of its own
        found = ds.to_table()
        assert found["calls 1"].to_pylist() == found["calls 2"].to_pylist() == [1, 2, 3, 4]
    assert rows_of(ds.repeat(2), "calls 2") == [1, 2, 3, 4, 5, 6, 7, 8]
    masked = numbers(1, 1, 1).filter(TallyMask, num_parallel_calls=1)
    assert rows_of(masked.filter(TallyMask, num_parallel_calls=1)) == [0]


def test_elements_of_one_interleave_share_them() -> None:
    made = numbers(3).interleave(
        lambda row: numbers(1).map(Tally, num_parallel_calls=1), cycle_length=1, num_parallel_calls=1
    )
    assert rows_of(made, "calls 1") == [1, 2, 3]


def test_writing_into_what_is_shared_says_so() -> None:
    def add(arrays: dict[str, Any]) -> dict[str, Any]:
        arrays["row"] += 1
        return arrays

    ds = numbers(3).map(add, format="numpy")
    refused(af.FunctionError, lambda: batches_of(ds), "map", "read-only", "share", "copy")


MASKED = pa.FixedSizeListArray.from_arrays(
    pa.array(range(40)), 2, mask=pa.array([row % 5 == 0 for row in range(20)])
)
MASKED_IN = {
    "list": MASKED,
    "list of fixed size": pa.FixedSizeListArray.from_arrays(MASKED.slice(2), 2),
    "large list": pa.LargeListArray.from_arrays(pa.array(range(0, 18, 2), pa.int64()), MASKED.slice(3)),
    "struct": pa.StructArray.from_arrays([MASKED.slice(3)], ["x"]),
}


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("name", MASKED_IN)
def test_polars_sees_the_nulls_of_lists_of_fixed_size(name: str, first: int) -> None:
    """Of a slice Polars reads the wrong ones, or none."""
    column = MASKED_IN[name]
    table = pa.table({"row": range(len(column)), "x": column}).slice(first)
    ds = chunked([table.to_batches()], table.schema)
    expected = table["x"].to_pylist()
    for part, wanted in ((ds.take(5), expected[:5]), (ds.skip(1), expected[1:]), (ds.batch(2), expected)):
        assert rows_of(part.map(same_frame, format="polars"), "x") == wanted
        assert [value for frame in part.to_polars() for value in frame["x"].to_list()] == wanted
    rest = ds.skip(1)
    nulls = [value is None for value in expected[1:]]
    assert rows_of(rest.filter(pl.col("x").is_not_null()), "x") == [x for x in expected[1:] if x is not None]
    assert rows_of(rest.with_columns(null=pl.col("x").is_null()), "null") == nulls
    assert len(rows_of(rest.filter(lambda frame: frame["x"].is_null(), format="polars"))) == sum(nulls)
    if name == "list" and not first:
        assert rows_of(rest.unique("x")) == [1, 2, 3, 4, 5, *(row for row in range(6, 20) if row % 5)]


@pytest.mark.parametrize("executor", ["thread", PROCESS])
def test_the_epoch_is_told(executor: Any) -> None:
    def fn(batch: pa.RecordBatch, rng: np.random.Generator, epoch: int) -> pa.RecordBatch:
        assert rng.random() < 1
        return pa.record_batch({"epoch": pa.array([epoch] * batch.num_rows)}).slice(epoch)

    loader = numbers(3).map(fn, seed=1, epoch=True, executor=executor).batch(5).to_numpy()
    assert [batch["epoch"].tolist() for _ in range(3) for batch in loader] == [[0, 0, 0], [1, 1], [2]]
    loader.set_epoch(1)
    assert [batch["epoch"].tolist() for batch in loader] == [[1, 1]]
    refused(TypeError, lambda: len(loader), "may differ in length")

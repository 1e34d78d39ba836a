"""What a user's code hands over and writes again: batches keep what was handed over, and nothing else is copied."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.clock import WallClock
from arrowflow.executor.workers.instances import RunInstances
from arrowflow.executor.workers.worker import Runner
from arrowflow.interchange.handed_over import TakeOver, copied_value, unshared
from arrowflow.ops.functions.function import UserFunction
from tests.ops.tables import rows_of

ROWS = 4
Made = tuple[Any, Callable[[int], None]]


def zeros(show: Callable[[Any], Any], shape: Any = ROWS, dtype: str = "f8") -> Callable[[], Made]:
    """Returns a maker of what shows an array of zeros, and of what fills that with a number."""

    def make() -> Made:
        kept = np.zeros(shape, dtype)
        return show(kept), kept.fill

    return make


def slice_of_texts() -> Made:
    kept = bytearray(2 * ROWS)
    offsets = pa.py_buffer(np.arange(2 * ROWS + 1, dtype=np.int32))
    texts = pa.StringArray.from_buffers(2 * ROWS, offsets, pa.py_buffer(kept))

    def fill(number: int) -> None:
        kept[:] = str(number).encode() * len(kept)

    fill(0)
    return pa.record_batch({"x": texts.slice(ROWS)}), fill


def bytes_that_can_be_written() -> Made:
    kept = bytearray(8 * ROWS)
    return {"x": np.frombuffer(kept)}, lambda number: np.frombuffer(kept).fill(number)


def locked(array: Any) -> Any:
    array.setflags(write=False)
    return array


MAKERS: dict[str, Callable[[], Made]] = {
    "array": zeros(lambda kept: {"x": kept}),
    "view that cannot be written": zeros(lambda kept: {"x": locked(kept[ROWS:])}, 2 * ROWS),
    "rows of arrays": zeros(lambda kept: {"x": kept}, (ROWS, 3), "i4"),
    "durations": zeros(lambda kept: {"x": kept}, dtype="m8[us]"),
    "masked": zeros(lambda kept: {"x": np.ma.masked_array(kept, [True] + [False] * (ROWS - 1))}),
    "bytes that can be written": bytes_that_can_be_written,
    "arrow array": zeros(lambda kept: {"x": pa.array(kept)}),
    "record batch": zeros(lambda kept: pa.record_batch({"x": pa.array(kept)})),
    "slice of texts": slice_of_texts,
    "nested": zeros(lambda kept: pa.record_batch({"x": pa.StructArray.from_arrays([pa.array(kept)], ["a"])})),
    "table": zeros(lambda kept: pa.table({"x": pa.array(kept)})),
    "frame": zeros(lambda kept: pl.DataFrame({"x": kept})),
}
"""Make something that may be handed over, and what fills it with a number."""


def refilled(name: str) -> Callable[[int], Any]:
    """Returns what hands over the same memory each time, with another number in it."""
    made, fill = MAKERS[name]()

    def at(number: int) -> Any:
        fill(number)
        return made

    return at


def numbers(batches: list[pa.RecordBatch]) -> list[set[float]]:
    """Returns the numbers that each batch holds."""
    found = []
    for batch in batches:
        column = batch["x"]
        column = column.field(0) if pa.types.is_struct(column.type) else column
        column = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        column = column.cast(pa.int64()) if pa.types.is_duration(column.type) else column
        found.append({float(value) for value in column.to_pylist() if value is not None})
    return found


EXPECTED: list[set[float]] = [{0}, {1}, {2}, {3}, {4}]


@pytest.mark.parametrize("name", MAKERS)
def test_a_generator_may_write_again_what_it_yielded(name: str) -> None:
    at = refilled(name)
    assert numbers(list(af.from_generator(lambda: map(at, range(5)), elements="batches"))) == EXPECTED


FORMATS = dict.fromkeys(("array", "rows of arrays", "arrow array", "view that cannot be written"), "numpy")
FORMATS |= dict.fromkeys(("record batch", "nested", "slice of texts"), "arrow") | {"frame": "polars"}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("operator", ["map", "map of a class", "scan"])
def test_a_function_may_write_again_what_it_returned(name: str, operator: str) -> None:
    at = refilled(name)
    format: Any = FORMATS[name]

    def call(batch: Any) -> Any:
        return at(int(batch["id"][0].as_py() if format == "arrow" else batch["id"][0]))

    class Calls:
        def __call__(self, batch: Any) -> Any:
            return call(batch)

    ds = af.range(5).batch(1)
    if operator == "scan":
        ds = ds.scan(0, lambda state, batch: (state, call(batch)), format=format)
    else:
        ds = ds.map(call if operator == "map" else Calls, format=format, num_parallel_calls=1)
    assert numbers(list(ds)) == EXPECTED


def test_an_instance_is_lent_again_when_its_array_was_taken_over() -> None:
    class Keeps:
        def __init__(self) -> None:
            self.out = np.zeros(1)

        def __call__(self, number: int) -> Any:
            self.out.fill(number)
            return self.out

    lender = RunInstances(WallClock(), Runner)
    function = UserFunction(Keeps, lender, 0)
    # A call that comes before the array of another one was taken over gets an instance of its own.
    first, second = function(1, then=lambda returned: (returned[0], function(2)))
    lender.end()
    assert (first.tolist(), second.tolist()) == ([1], [2])


def test_rows_may_be_written_again() -> None:
    row: dict[str, Any] = {"list": [0], "nested": [[0], [0]], "array": np.zeros(2), "pair": ([0], 1)}

    def fill(given: dict[str, Any]) -> dict[str, Any]:
        number = given["id"]
        row["list"][0] = row["nested"][1][0] = row["pair"][0][0] = number
        row["array"][:] = number
        return row

    def fills() -> Iterator[dict[str, Any]]:
        for number in range(3):
            fill({"id": number})
            yield {"list": pa.array([row["list"]]), "nested": pa.array([row["nested"]])}

    found = af.range(3).map_rows(
        lambda given: {name: fill(given)[name] for name in ("list", "nested", "array")}
    )
    assert found.to_table().to_pylist() == [
        {"list": [number], "nested": [[0], [number]], "array": [number, number]} for number in range(3)
    ]
    alone = af.range(3).map_rows(lambda given: {"list": fill(given)["list"]})
    assert rows_of(alone, "list") == [[0], [1], [2]]
    made = af.from_generator(fills, elements="batches")
    assert rows_of(made, "nested") == [[[0], [number]] for number in range(3)]
    same = {"a": 1, "b": "text", "c": None}
    assert copied_value(same) == same and copied_value(([1], bytearray(b"x"))) == ([1], b"x")


# ------------------------------------------------------------------------------------------- and nothing else is copied


def addresses(batch: pa.RecordBatch) -> list[int]:
    return [buffer.address for column in batch.columns for buffer in column.buffers() if buffer is not None]


def test_what_nobody_else_can_reach_is_not_copied() -> None:
    seen = []

    def fresh(batch: Any) -> dict[str, Any]:
        made = np.arange(6.0)
        seen.append(made.ctypes.data)
        return {"x": made.reshape(2, 3)}

    (batch,) = list(af.range(2).map(fresh, format="numpy"))
    assert addresses(batch) == seen

    (batch,) = list(af.from_generator(lambda: (fresh(None) for _ in range(1)), elements="batches"))
    assert addresses(batch) == seen[1:]


def test_what_was_given_is_not_copied() -> None:
    table = pa.table({"x": np.arange(5), "s": list("abcde")}).combine_chunks()
    given: list[list[int]] = []

    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        given.append(addresses(batch))
        return batch.slice(1)

    (batch,) = list(af.from_arrow(table).map(keep))
    assert addresses(batch) == given[0]
    (batch,) = list(af.from_arrow(table).map(lambda arrays: {"x": arrays["x"][1:]}, format="numpy"))
    assert given[0][0] < addresses(batch)[0] < given[0][0] + 40
    (batch,) = list(af.from_arrow(table).map(lambda frame: frame.select("x"), format="polars"))
    assert addresses(batch) == given[0][:1]


def test_what_cannot_be_written_is_not_copied() -> None:
    column = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(b"01234567")])
    assert addresses(TakeOver().batch(pa.record_batch({"x": column}))) == addresses(
        pa.record_batch({"x": column})
    )
    frozen = np.frombuffer(b"01234567", np.int64)
    assert TakeOver().array("x", frozen) is frozen


def test_only_the_rows_are_copied() -> None:
    kept = pa.array(np.arange(1000))
    assert TakeOver().column(kept.slice(10, 5)).buffers()[1].size == 40


def test_references_are_counted() -> None:
    kept = np.zeros(3)
    weak = np.zeros(3)
    reference = weakref.ref(weak)
    columns = {"kept": kept, "view": kept[:2], "weak": weak, "new": np.zeros(3), "list": [1]}
    columns |= {
        "twice": columns["new"],
        "other": np.zeros((2, 2)).reshape(4),
        "memory": np.asarray(ctypes.c_int(3)),
    }
    del weak
    assert unshared([columns]) == frozenset()  # the dict itself is held here
    holder = [columns]
    del columns
    assert unshared(holder) == {"other"}
    assert reference() is not None


def test_copies_are_told() -> None:
    told = "what its function could write again is copied"
    schema = pa.schema({"id": pa.int64()})
    for ds in (
        af.from_generator(lambda: iter(()), schema),
        af.range(3).map(lambda batch: batch, schema=schema),
        af.range(3).scan(0, lambda state, batch: (state, batch), schema=schema),
    ):
        assert told in ds.to_numpy().explain(copies=True)
    assert told not in af.from_arrow(pl.LazyFrame({"x": [1]})).to_numpy().explain(copies=True)

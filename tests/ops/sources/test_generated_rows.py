"""Rows of a generator: all of them, once, in order, whenever they come, in splits that no timing decides."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.sources.generated_rows import GROUP_ROWS, RowGroup, RowsKernel
from arrowflow.physical.stage import Chain
from arrowflow.testing.contracts import check_resume
from tests.effort import scaled
from tests.ops.tables import refused

COUNT = 2 * GROUP_ROWS + 10


def counted(count: int = COUNT) -> Callable[[], Iterator[dict[str, Any]]]:
    return lambda: ({"x": [number, -number], "y": number} for number in range(count))


def sizes(ds: af.Dataset) -> list[int]:
    return [batch.num_rows for batch in ds]


def test_functions_and_the_consumer_see_single_rows() -> None:
    assert sizes(af.from_generator(counted())) == [1] * COUNT
    seen: list[int] = []

    def look(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
        seen.append(batch.num_rows)
        return batch.append_column("drawn", pa.array(rng.random(batch.num_rows)))

    ds = af.from_generator(counted()).filter(pl.col("y") != 3).map(look, seed=1, num_parallel_calls=1)
    table = ds.batch(7).to_table()
    assert table.column("y").to_pylist() == [0, 1, 2, *range(4, COUNT)]
    assert seen == [1] * (COUNT - 1)
    assert len(set(table.column("drawn").to_pylist())) == COUNT - 1
    makers: list[Callable[[af.Dataset], af.Dataset]] = [
        lambda ds: ds.cache(),
        lambda ds: ds.repeat(1),
        lambda ds: ds.concatenate(ds.take(0)),
    ]
    for between in makers:
        seen.clear()
        assert len(sizes(between(af.from_generator(counted())).map(look, seed=1))) == COUNT == len(seen)


def test_before_a_batch_rows_stay_together(tmp_path: Path) -> None:
    makers: list[Callable[[af.Dataset], af.Dataset]] = [
        lambda ds: ds.batch(64),
        lambda ds: ds.filter(pl.col("y") >= 0).batch(64),
        lambda ds: ds.shuffle(64, seed=1).batch(64).map(lambda batch: batch),
        lambda ds: ds.batch(64).cache(),
    ]
    for make in makers:
        rows = make(af.from_generator(counted()))
        kernel = next(
            spec for spec in specs_of(rows._ready().chain) if spec.operator == "from_generator" and spec.fixed
        )
        assert kernel.kind == "serial"
    makers = [lambda ds: ds.map(lambda batch: batch), lambda ds: ds.cache(), lambda ds: ds.cache(tmp_path)]
    for make in makers:
        singles = specs_of(make(af.from_generator(counted())).batch(64)._ready().chain)
        assert not any(spec.fixed for spec in singles)


def test_a_cache_that_two_plans_share_has_single_rows() -> None:
    cached = af.from_generator(counted(40)).cache()
    assert sizes(cached.batch(7)) == [7] * 5 + [5]
    assert sizes(cached.map(lambda batch: batch)) == [1] * 40


def specs_of(chain: Chain) -> list[KernelSpec]:
    own = [spec for stage in chain.stages for spec in stage.specs]
    return own + [spec for child in chain.children for spec in specs_of(child)]


@pytest.mark.parametrize("declared", [False, True])
def test_rows_go_on_in_the_middle_of_a_split(declared: bool) -> None:
    schema = pa.schema({"x": pa.list_(pa.int64()), "y": pa.int64()}) if declared else None
    check_resume(lambda: af.from_generator(counted(), schema).batch(GROUP_ROWS), in_full=True)
    check_resume(lambda: af.from_generator(counted(), schema).batch(97 if declared else 500))
    check_resume(lambda: af.from_generator(counted(40), schema).map(lambda batch, rng: batch, seed=1))
    check_resume(lambda: af.from_generator(counted(), schema).shuffle(100, seed=1).batch(64))


@pytest.mark.parametrize("first", [{"x": 1}, pa.record_batch({"x": [1]})])
def test_the_first_element_still_decides_when_a_run_goes_on(first: Any) -> None:
    ds = af.from_generator(lambda: itertools.chain([first], [{"x": None}] * COUNT))
    with iter(ds) as run:
        found = list(itertools.islice(run, COUNT))
        state = run.state_dict()
    with iter(ds) as run:
        run.load_state_dict(state)
        found += run
    assert pa.Table.from_batches(found) == pa.table({"x": pa.array([1] + [None] * COUNT, pa.int64())})


@pytest.mark.parametrize("cpu_budget", [1, 2])
def test_a_generator_may_wait_for_its_consumer(cpu_budget: int) -> None:
    delivered = threading.Semaphore(0)

    def fn() -> Iterator[dict[str, int]]:
        for number in range(20):
            yield {"x": number}
            assert delivered.acquire(timeout=60)

    ds = af.from_generator(fn).with_columns(y=2).batch(1).with_options(af.Options(cpu_budget=cpu_budget))
    found = []
    for batch in ds:
        found += batch.column("x").to_pylist()
        delivered.release()
    assert found == list(range(20))


class Tensor:
    """What the tensors of other libraries have."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array


def test_a_generator_may_write_its_row_again() -> None:
    def fn() -> Iterator[dict[str, Any]]:
        array, tensor = np.zeros(3), Tensor(np.zeros(2))
        row: dict[str, Any] = {"list": [], "nested": [[0]], "dict": {"a": [0]}, "raw": bytearray(1)}
        row |= {"array": array, "tensor": tensor}
        for number in range(COUNT):
            row["list"].append(number)
            row["nested"][0][0] = row["dict"]["a"][0] = number
            row["raw"][0] = number % 256
            array.fill(number)
            tensor.array.fill(number)
            row["number"] = number
            yield row
            row["list"][:] = []

    for row in af.from_generator(fn).to_table().to_pylist():
        number = row["number"]
        assert row["list"] == [number] and row["nested"] == [[number]] and row["dict"] == {"a": [number]}
        assert row["array"] == [number] * 3 and row["tensor"] == [number] * 2
        assert row["raw"] == bytes([number % 256])


@pytest.mark.parametrize("at", [0, 3, GROUP_ROWS, GROUP_ROWS + 3])
@pytest.mark.parametrize("raises", [False, True])
def test_rows_before_an_error_are_delivered(at: int, raises: bool) -> None:
    def fn() -> Iterator[dict[str, Any]]:
        for number in range(at):
            yield {"y": number}
        if raises:
            raise OSError("gone")
        yield {"y": "text"}

    schema = pa.schema({"y": pa.int64()})
    makers: list[Callable[[af.Dataset], af.Dataset]] = [
        lambda ds: ds,
        lambda ds: ds.map(lambda chunk: chunk),
        lambda ds: ds.batch(1),
    ]
    for make in makers:
        found: list[int] = []
        with pytest.raises(af.ArrowflowError, match="gone" if raises else f"element {at} "):  # noqa: PT012
            for batch in make(af.from_generator(fn, schema)):
                found += batch.column("y").to_pylist()
        assert found == list(range(at))


@pytest.mark.parametrize("value", [2**70, "\ud800", object()], ids=["2**70", "surrogate", "object"])
def test_a_value_without_a_type_is_told_as_such(value: object) -> None:
    ds = af.from_generator(lambda: [{"x": 1}, {"x": value}][1:])
    refused(af.SchemaError, lambda: next(iter(ds)), "'x'", "Arrow has no type", "convert it")


def test_values_of_two_types_need_a_schema() -> None:
    ds = af.range(2).map_rows(lambda row: {"x": [1, "a"][row["id"]]})
    refused(af.SchemaError, lambda: list(ds), "'x'", "do not have one type", "schema=")


def test_arrays_of_the_other_byte_order_are_read() -> None:
    rows = [{"x": np.arange(3, dtype=">i4"), "y": np.array([[1.5]], ">f8")}]
    found = af.from_generator(lambda: rows).to_table().to_pylist()
    assert found == [{"x": [0, 1, 2], "y": [[1.5]]}]


@settings(max_examples=scaled(100))
@given(
    looks=st.lists(st.integers(0, 3), max_size=60),
    resumed=st.integers(0, 30),
    flags=st.tuples(*[st.booleans()] * 2),
)
def test_each_row_is_taken_once_whenever_the_kernel_looks(
    looks: list[int], resumed: int, flags: tuple[bool, bool]
) -> None:
    """Between two rows the kernel may take none, one, or all of the groups that were passed on."""
    declared, single = flags
    kernel = RowsKernel(pa.schema({"y": pa.int64()}) if declared else None, "fn", single=single)
    assert kernel.open((resumed,), 0) == (resumed,)
    waiting: list[RowGroup] = []
    found: list[int] = []

    def take(count: int) -> None:
        for group in waiting[:count]:
            for item in kernel.push(Item(group, None, (), Origin(group.start))):
                found.extend(item.chunk.column("y").to_pylist())
                assert item.position == (found[-1] + 1,)
        del waiting[:count]

    group = None
    for number, look in enumerate(looks):
        if group is None or number % 7 == 0:
            group = RowGroup(number)
        group.add({"y": number})
        if not group.announced:
            group.announced = True
            waiting.append(group)
        take(look)
    take(len(waiting))
    assert found == list(range(resumed, len(looks)))

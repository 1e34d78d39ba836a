"""Every operator behind a function that fails, hangs, is late, or whose rows nobody wants any more.

One error comes, in its place and with its cause; nothing stays of threads, files and memory.
"""

from __future__ import annotations

import functools
import gc
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import Fault, Gate, assert_same_batches, batches_of, chunked, raising, waiting
from tests.ops.tables import ALL_TYPES_INSIDE, OPERATORS
from tests.oracles.plans import CACHING

pytestmark = pytest.mark.any_version

SPLIT_ROWS = 2
FAULT_ROW = 6
"""The split that begins with this row is hit: some are before it, and one is behind it."""

TABLE = ALL_TYPES_INSIDE.select(["row", "text", "list"]).slice(0, 10)
CACHE_BYTES = 1 << 20


class Broken(Exception):
    """What the function raises."""


def healthy(value: Any) -> Any:
    return value


def is_hit(batch: pa.RecordBatch) -> bool:
    return bool(batch.column("row")[0].as_py() == FAULT_ROW)


def source(function: Callable[..., Any]) -> af.Dataset:
    """Returns five splits of two rows that go through a function."""
    (batch,) = TABLE.combine_chunks().to_batches()
    splits = [[batch.slice(start, SPLIT_ROWS)] for start in range(0, len(TABLE), SPLIT_ROWS)]
    return chunked(splits, TABLE.schema).map(function, schema=TABLE.schema, keeps_rows=True)


@functools.cache
def expected(name: str) -> list[pa.RecordBatch]:
    return batches_of(OPERATORS[name](source(healthy)))


@functools.cache
def least_bytes(name: str) -> int:
    """Returns the byte budget under which an operator does not run, as its error says, and what a cache holds."""
    cached = CACHE_BYTES if name in CACHING or name == "sample" else 0
    try:
        with iter(OPERATORS[name](source(healthy)).with_options(af.Options(ram_budget=1))) as running:
            next(running, None)
    except af.BudgetError as error:
        found = re.search(r"needs, ([\d,]+) bytes", str(error))
        return cached + (1 if found is None else int(found[1].replace(",", "")))
    return cached + 1


SETTINGS: dict[str, Callable[[str], af.Options]] = {
    "alone": lambda name: af.Options(cpu_budget=1),
    "two workers": lambda name: af.Options(cpu_budget=2),
    "tiny budget": lambda name: af.Options(cpu_budget=2, ram_budget=least_bytes(name)),
}


class Armed:
    """A function that behaves until it is armed: some operators run a dataset when it is written."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.is_armed = False

    def __call__(self, batch: pa.RecordBatch) -> Any:
        return self.fault(batch) if self.is_armed else batch


def armed(name: str, fault: Fault, options: af.Options) -> af.Dataset:
    function = Armed(fault)
    dataset = OPERATORS[name](source(function)).with_options(options)
    function.is_armed = True
    return dataset


def held() -> Counter[str]:
    """Returns the threads and files of this process."""
    names = Counter(each.name for each in threading.enumerate() if each.name.startswith("arrowflow"))
    for link in Path("/proc/self/fd").iterdir():
        try:
            names[str(link.readlink())] += 1
        except OSError:  # the descriptor of the listing itself
            continue
    return names


@pytest.fixture
def nothing_left(name: str) -> Iterator[None]:
    """Asserts that a test leaves nothing; what is not freed by counting references is left."""
    assert expected(name) and least_bytes(name)  # these are kept
    gc.collect()
    gc.disable()
    before, memory = held(), pa.total_allocated_bytes()
    try:
        yield
        assert not held() - before  # an earlier test's client may close its connections meanwhile
        assert pa.total_allocated_bytes() == memory
    finally:
        gc.enable()


def consume(running: Any) -> tuple[list[pa.RecordBatch], BaseException | None]:
    found: list[pa.RecordBatch] = []
    try:
        found.extend(running)
    except BaseException as error:  # noqa: BLE001  # whatever it is, the test looks at it
        return found, error
    return found, None


def open_when_reached(gate: Gate) -> None:
    gate.wait_for(1)
    gate.open()


def every(turn: int) -> pytest.MarkDecorator:
    """Returns the cases of a test: each operator quickly in one setting, which is another one in each test."""
    return pytest.mark.parametrize(
        ("name", "setting"),
        [
            pytest.param(
                name, setting, marks=pytest.mark.slow if (number + place + turn) % len(SETTINGS) else ()
            )
            for number, name in enumerate(OPERATORS)
            for place, setting in enumerate(SETTINGS)
        ],
    )


@every(0)
@pytest.mark.usefixtures("nothing_left")
def test_one_error_in_its_place(name: str, setting: str) -> None:
    wanted = expected(name)
    with iter(armed(name, Fault(raising(Broken()), when=is_hit), SETTINGS[setting](name))) as running:
        found, error = consume(running)
        assert_same_batches(found, wanted[: len(found)])
        if error is None:  # it was satisfied before, as `take` may be
            assert len(found) == len(wanted)
            assert next(running, None) is None
        else:
            assert type(error) is af.FunctionError
            assert type(error.__cause__) is Broken
            assert error.operator == "map"
            with pytest.raises(af.ClosedError):
                next(running)
        error = None


@every(1)
@pytest.mark.usefixtures("nothing_left")
def test_rows_that_are_late_come_in_their_place(name: str, setting: str) -> None:
    wanted, gate = expected(name), Gate()
    with iter(armed(name, Fault(waiting(gate), when=is_hit), SETTINGS[setting](name))) as running:
        opener = threading.Thread(target=open_when_reached, args=(gate,), daemon=True)
        opener.start()
        found, error = consume(running)
        gate.pass_through()  # of an operator that never came so far
        opener.join()
        assert error is None
        assert_same_batches(found, wanted)
    del found


@every(2)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.filterwarnings("ignore:.*did not return within close_timeout")
def test_a_run_that_hangs_is_closed(name: str, setting: str) -> None:
    gate, options = Gate(), SETTINGS[setting](name)
    fault = Fault(waiting(gate), when=is_hit)
    running: list[Any] = [iter(armed(name, fault, replace(options, close_timeout=0.0)))]
    ended: list[Any] = []

    def work() -> None:
        ended.append(consume(running[0]))
        gate.pass_through()  # of an operator that never comes so far

    consumer = threading.Thread(target=work)
    consumer.start()
    gate.wait_for(1)
    late = [each for each in threading.enumerate() if each.name.startswith("arrowflow")]
    running[0].close()
    gate.open()
    consumer.join()
    for thread in late:
        thread.join()
    ((found, error),) = ended
    assert_same_batches(found, expected(name)[: len(found)])
    assert error is None or type(error) is af.ClosedError
    assert error is not None or len(found) == len(expected(name))
    with pytest.raises(af.ClosedError):
        next(running[0])
    del found, error
    running.clear()
    ended.clear()  # which the error refers to, by its frames


@every(3)
@pytest.mark.usefixtures("nothing_left")
def test_a_run_that_nobody_wants_any_more(name: str, setting: str) -> None:
    running: Any = iter(OPERATORS[name](source(healthy)).with_options(SETTINGS[setting](name)))
    first = next(running)
    assert_same_batches([first], expected(name)[:1])
    del running, first

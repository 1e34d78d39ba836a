"""What handlers of signals raise comes out as it is, wherever they hit, and ends an iterator for good."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.executor.workers.worker import Worker
from arrowflow.interrupts import interruption, interruptions


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for workers that a busy machine keeps from ending."""
    monkeypatch.setattr("arrowflow.executor.engine.INTERRUPTED_SECONDS", 60.0)


class Preempted(Exception):
    """What a trainer's handler raises."""


class Harder(BaseException):
    """The same, so that no `except Exception` stops it."""


def plain(number: int, frame: FrameType | None) -> None:
    raise Preempted


def with_any(*arguments: object) -> None:
    raise Preempted


def below(number: int, frame: FrameType | None) -> None:
    plain(0, None)


def resets(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise Preempted


def exits(number: int, frame: FrameType | None) -> None:
    sys.exit(3)


def harder(number: int, frame: FrameType | None) -> None:
    raise Harder


@functools.wraps(plain)
def wrapped(*arguments: Any, **named: Any) -> None:
    plain(*arguments, **named)


class Trainer:
    """One that has its handlers as methods, or is one."""

    def method(self, number: int, frame: FrameType | None) -> None:
        raise Preempted

    __call__ = method


HANDLERS: dict[str, Callable[[int, FrameType | None], Any]] = {
    "function": plain,
    "any arguments": with_any,
    "one that calls another": below,
    "one that takes itself off": resets,
    "decorated": wrapped,
    "partial": functools.partial(Trainer.method, Trainer()),
    "method": Trainer().method,
    "object": Trainer(),
    "exit": exits,
    "BaseException": harder,
    "Ctrl-C": signal.default_int_handler,
}


RAISED = {"exit": SystemExit, "BaseException": Harder, "Ctrl-C": KeyboardInterrupt}
"""Where it is no `Preempted`."""


def interrupt(*ignored: Any) -> Any:
    """Interrupts this thread in the middle of whatever calls it."""
    signal.raise_signal(signal.SIGUSR1)
    return ignored[0] if ignored else None


@pytest.fixture(params=HANDLERS)
def expected(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """Handles a signal in one of the ways there are, and returns what that raises."""
    previous = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield RAISED.get(request.param, Preempted)
    signal.signal(signal.SIGUSR1, previous)


@pytest.fixture
def preempted() -> Iterator[None]:
    """Handles a signal by raising `Preempted`."""
    previous = signal.signal(signal.SIGUSR1, plain)
    yield
    signal.signal(signal.SIGUSR1, previous)


def raised_by(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:  # noqa: BLE001  # whatever it is, the test looks at it
        return error
    raise AssertionError("nothing was raised")


def in_a_function() -> None:
    interrupt()


def in_a_generator() -> None:
    list(map(interrupt, (number for number in range(3))))


def in_a_key_of_sort() -> None:
    sorted(range(3), key=interrupt)


def made_another_error() -> None:
    try:
        interrupt()
    except BaseException as error:
        raise ValueError("could not go on") from error


@pytest.mark.parametrize("where", [in_a_function, in_a_generator, in_a_key_of_sort])
def test_what_a_handler_raises_is_told(where: Callable[[], None], expected: type[BaseException]) -> None:
    error = raised_by(where)
    assert type(error) is expected
    assert interruption(error) is error


def check_nothing_else_is_told_of(error: BaseException) -> None:
    assert error.__cause__ is None
    # Python keeps an error for handled whose `except` was left by an exception of a tracer, as other tests have them.
    assert error.__context__ is sys.exc_info()[1]


@pytest.mark.usefixtures("preempted")
def test_it_is_found_below_what_was_made_of_it_and_raised_as_it_was() -> None:
    error = raised_by(made_another_error)
    assert type(error) is ValueError
    assert type(interruption(error)) is Preempted
    with pytest.raises(Preempted) as caught, interruptions():
        made_another_error()
    check_nothing_else_is_told_of(caught.value)


class InterruptedLock:
    """A lock whose second `acquire`, which is that at the end of a wait, a signal interrupts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    def acquire(self, blocking: bool = True) -> bool:
        self._taken += blocking
        if self._taken == 2:
            interrupt()
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def in_a_wait() -> None:
    condition = threading.Condition(InterruptedLock())  # type: ignore[arg-type]
    with condition:
        condition.wait(0.0)


def test_an_interrupt_that_a_condition_loses_is_found(expected: type[BaseException]) -> None:
    error = raised_by(in_a_wait)
    assert type(error) is RuntimeError
    assert type(interruption(error)) is expected


def test_a_thread_whose_start_is_interrupted_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, preempted: None
) -> None:
    def start(worker: Worker) -> None:
        threading.Thread.start(worker)
        in_a_wait()

    monkeypatch.setattr(Worker, "start", start, raising=False)
    with pytest.raises(Preempted):
        list(af.range(10).batch(2))


def test_nothing_else_is_an_interruption() -> None:
    def given(frame: FrameType) -> None:
        raise Preempted

    def ring() -> None:
        first, second = ValueError(), ValueError()
        first.__cause__, second.__cause__ = second, first
        raise first

    for call in (lambda: given(sys._getframe()), lambda: plain(1, None), ring):
        error = raised_by(call)
        assert interruption(error) is None
        with pytest.raises(type(error)), interruptions():
            raise error


@pytest.mark.usefixtures("preempted")
def test_an_error_while_an_interrupt_is_handled_is_an_error() -> None:
    def later() -> None:
        try:
            interrupt()
        except Preempted:
            raise ValueError  # noqa: B904  # as when a loop goes on in the handler of its interrupt

    assert interruption(raised_by(later)) is None


# ---------------------------------------------------------------- in next()


def in_collate() -> Any:
    return af.range(10).batch(2).to_numpy(collate=interrupt)


def in_the_last_kernel() -> Any:
    # `scan` runs on the consumer's thread if it is the last one.
    return af.range(10).scan(0, lambda state, batch: (interrupt(), batch))


def in_a_dataset_of_a_dataset() -> Any:
    return af.range(10).scan(0, lambda state, batch: (next(iter(in_collate())), batch))


NEXT = [in_collate, in_the_last_kernel, in_a_dataset_of_a_dataset]


@pytest.mark.parametrize("make", NEXT)
def test_next_raises_what_the_handler_did(make: Callable[[], Any], expected: type[BaseException]) -> None:
    batches = iter(make())
    error = raised_by(lambda: next(batches))
    assert type(error) is expected
    check_nothing_else_is_told_of(error)


@pytest.mark.parametrize("make", NEXT)
@pytest.mark.usefixtures("preempted")
def test_after_an_interrupt_no_loop_ends_without_a_word(make: Callable[[], Any]) -> None:
    batches = iter(make())
    with pytest.raises(Preempted):
        next(batches)
    for _ in range(3):
        with pytest.raises(af.ClosedError, match=r"has raised Preempted and ended with it; make a new one"):
            next(batches)


@pytest.mark.usefixtures("preempted")
def test_a_state_from_before_an_interrupt_goes_on_behind_it() -> None:
    interrupts = iter([False, False, True])

    def collate(batch: dict[str, Any]) -> list[int]:
        if next(interrupts, False):
            interrupt()
        values: list[int] = batch["id"].tolist()
        return values

    batches = iter(af.range(10).batch(2).to_numpy(collate=collate))
    found = [next(batches), next(batches)]
    with pytest.raises(Preempted):
        next(batches)
    batches.load_state_dict(batches.state_dict())
    assert found + list(batches) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


# ---------------------------------------------------------------- other ways to run a dataset


class Interrupting:
    """A stream that cannot be opened: the signal comes first."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return interrupt()


WHOLE: dict[str, Callable[[Path], object]] = {
    "reduce": lambda folder: af.range(10).reduce(0, interrupt),
    "to_table": lambda folder: in_the_last_kernel().to_table(),
    "to_polars": lambda folder: pl.DataFrame(in_the_last_kernel().to_reader()),
    "write_parquet": lambda folder: in_the_last_kernel().write_parquet(folder / "out"),
    "write_ipc": lambda folder: in_the_last_kernel().write_ipc(folder / "out"),
    "bind": lambda folder: af.from_arrow(Interrupting()).schema,
}


@pytest.mark.parametrize("way", WHOLE)
@pytest.mark.usefixtures("preempted")
def test_every_way_to_run_a_dataset_raises_it(way: str, tmp_path: Path) -> None:
    with pytest.raises(Preempted):
        WHOLE[way](tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("schema", [None, pa.schema({"x": pa.int64()})])
def test_a_reader_raises_again_after_an_error(schema: pa.Schema | None) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["id"][0].as_py() >= 4:
            raise KeyError("four")
        return pa.record_batch({"x": batch["id"]})

    reader = af.range(6).batch(2).map(fail, schema=schema).to_reader()
    assert [reader.read_next_batch()["x"].to_pylist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(af.FunctionError, match="four"):
        reader.read_next_batch()
    with pytest.raises(af.ClosedError, match="has raised FunctionError"):
        reader.read_next_batch()

"""Delivers the items of a run as batches to its consumer, and keeps the progress of the iterator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from arrowflow.kernels.items import Item, Slices
from arrowflow.physical.tuning import EngineStatistics, Moment
from arrowflow.plan.position import Position

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


MAX_MOMENTS, FIRST_INTERVAL_SECONDS = 512, 0.01
"""Moments that are kept of a run, and the time between them at its start. Noting one takes 0.7 µs, so 0.007 % of that."""


class PassStart(NamedTuple):
    """A place in the data, where a pass begins.

    Attributes:
        epoch: The epoch.
        position: Position of the last batch before it; None at the start of the epoch.
        batches: Batches of the epoch before it.
        moves: How often its counter had been moved.
        elsewhere: Whether a pass in other processes moved it there, and may still go on.
    """

    epoch: int = 0
    position: Position = None
    batches: int = 0
    moves: int = 0
    elsewhere: bool = False


@dataclass(slots=True)
class EpochCounter:
    """Where the next pass over a dataset begins: the one thing that a dataset or a loader remembers.

    A pass moves it once the pass counts as an epoch. So a pass that was only begun leaves no trace.

    Attributes:
        begins: The place where the next pass begins.
        dataset: The counter of a loader's dataset. The dataset is never behind an epoch that its loaders have counted.
    """

    begins: PassStart = field(default_factory=PassStart)
    dataset: EpochCounter | None = None

    def move(self, epoch: int, position: Position = None, batches: int = 0) -> PassStart:
        """Makes the next pass begin at a place, and returns the place."""
        self.begins = place = PassStart(epoch, position, batches, self.begins.moves + 1)
        return place

    def count(self, begun: PassStart, *, elsewhere: bool = False) -> None:
        """Counts the epoch of a pass, unless the counter was moved since the pass has begun."""
        if self.begins.moves == begun.moves:
            self.begins = PassStart(begun.epoch + 1, moves=begun.moves + 1, elsewhere=elsewhere)
        dataset = self.dataset
        if dataset is not None and dataset.begins.epoch <= begun.epoch:
            dataset.move(begun.epoch + 1)


@dataclass(slots=True)
class Progress:
    """How far an iterator is, and what its consumer measured. Outlives it, so that a loader can tell after a `break`.

    Attributes:
        epoch: The epoch that it runs.
        position: Position of the last delivered batch.
        batches: Batches delivered in this epoch, also before a resume.
        delivered: Batches delivered by this iterator.
        rows: Rows delivered by this iterator.
        began: Time of the first `next()`.
        last: Time of the end of the latest `next()`.
        waited_seconds: Time inside `next()`.
        first_batch_seconds: Time inside the first `next()`.
        final: The measurements of the engine, once it has ended.
        moments: The run over time, by the clock's seconds.
        due: Time from which on the next moment is noted.
        interval_seconds: Time between two of them, at least.
    """

    epoch: int
    position: Position = None
    batches: int = 0
    delivered: int = 0
    rows: int = 0
    began: float | None = None
    last: float = 0.0
    waited_seconds: float = 0.0
    first_batch_seconds: float = 0.0
    final: EngineStatistics = field(default_factory=EngineStatistics)
    moments: list[Moment] = field(default_factory=list)
    due: float = -math.inf
    interval_seconds: float = FIRST_INTERVAL_SECONDS

    def place(self, epoch: int, position: Position = None, batches: int = 0) -> None:
        """Moves to a place in the data."""
        self.epoch, self.position, self.batches = epoch, position, batches

    def measure(self, began: float, now: float) -> None:
        """Counts one `next()`."""
        if self.began is None:
            self.began = began
            self.first_batch_seconds = now - began
        self.last = now
        self.waited_seconds += now - began

    def note(self, now: float, ledger_bytes: int) -> None:
        """Notes a moment, before a `next()` is counted. Every other one goes when there are too many."""
        if len(self.moments) == MAX_MOMENTS:
            self.moments = self.moments[::2]  # a new list: another thread may read the old one
            self.interval_seconds *= 2
        self.moments.append(Moment(now, self.rows, self.waited_seconds, ledger_bytes))
        self.due = now + self.interval_seconds

    def history(self, ledger_bytes: int) -> tuple[Moment, ...]:
        """Returns the moments until now, by the seconds of the run; the last one is that of the latest `next()`."""
        began = self.began
        if began is None:
            return ()
        now = Moment(self.last, self.rows, self.waited_seconds, ledger_bytes)
        return tuple(moment._replace(seconds=moment.seconds - began) for moment in (*self.moments, now))


Delivered = tuple[T, Position, int]
"""A value for the consumer, the position after it, and its rows."""


class Delivery(Protocol[T_co]):
    """The last step of a run, on the consumer's thread: from chunks to what the consumer gets."""

    @property
    def ahead(self) -> bool:
        """Whether it begins with a batch before the one in front of it is delivered, as transfers to a device do."""

    def __call__(self, batch: pa.RecordBatch) -> T_co:
        """Returns one batch for the consumer."""

    def slicer(self, chunk: pa.RecordBatch) -> Callable[[int, int], T_co]:
        """Returns what gives the batch of a chunk's rows from `start` to `stop`."""

    def arrived(self, made: Any) -> T_co:
        """Makes a batch that was made ahead what the consumer gets, when it is delivered."""


class RecordBatches:
    """Delivers record batches as they are."""

    ahead = False

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the record batch."""
        return batch

    def slicer(self, chunk: pa.RecordBatch) -> Callable[[int, int], pa.RecordBatch]:
        """Returns what slices, without a copy."""
        return lambda start, stop: chunk.slice(start, stop - start)

    def arrived(self, made: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the record batch."""
        return made


LEFT_OUT: Final = object()
"""Stands for a batch that the consumer does not want."""


class LeavingOut:
    """Delivers batches but for some steps, which are neither converted nor given to a user's function.

    Args:
        delivery: Delivers the others.
        steps: The steps to leave out, by epoch.
    """

    def __init__(self, delivery: Delivery[Any], steps: Mapping[int, frozenset[int]]) -> None:
        self.ahead = delivery.ahead
        self._delivery = delivery
        self._steps = steps
        self._of_epoch: frozenset[int] = frozenset()
        self._number = 0  # of the next batch

    @classmethod
    def of(cls, delivery: Delivery[Any], steps: Sequence[tuple[int, frozenset[int]]]) -> LeavingOut | None:
        """Returns a delivery that leaves out steps, by epoch; None if there are none."""
        return cls(delivery, dict(steps)) if steps else None

    def begin(self, epoch: int, number: int) -> bool:
        """Takes note of the next batch, before the first one of a run. Returns whether steps of its epoch are left out."""
        self._of_epoch, self._number = self._steps.get(epoch, frozenset()), number
        return bool(self._of_epoch)

    def after(self, number: int) -> int:
        """Returns the number of batches in an epoch up to the next one that is delivered, that included."""
        while number in self._of_epoch:
            number += 1
        return number + 1

    def _leaves_out(self) -> bool:
        number, self._number = self._number, self._number + 1
        return number in self._of_epoch

    def __call__(self, batch: pa.RecordBatch) -> Any:
        """Returns the batch, or `LEFT_OUT`."""
        return LEFT_OUT if self._leaves_out() else self._delivery(batch)

    def slicer(self, chunk: pa.RecordBatch) -> Callable[[int, int], Any]:
        """Returns what gives a batch, or `LEFT_OUT`."""
        slice = self._delivery.slicer(chunk)
        return lambda start, stop: LEFT_OUT if self._leaves_out() else slice(start, stop)

    def arrived(self, made: Any) -> Any:
        """Makes a batch that was made ahead what the consumer gets."""
        return self._delivery.arrived(made)


def sliced(item: Item, slice: Callable[[int, int], T]) -> Iterator[Delivered[T]]:
    """Yields the batches of an item of `Slices`. The chunk is let go of with the last one.

    A generator: it takes half the time that an object with a method would.
    """
    slices: Slices = item.chunk
    before, size, stop = slices.before, slices.size, slices.start
    for number in range(slices.number + 1, slices.number + slices.batches):
        start, stop = stop, stop + size
        yield slice(start, stop), (before, stop, number), size
    last = slice(stop, stop + size), item.position, size
    del item, slice, slices
    yield last

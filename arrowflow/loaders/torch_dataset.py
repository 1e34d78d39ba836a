"""`TorchDataset`: the batches of a dataset for PyTorch's `DataLoader`, with or without worker processes.

With n workers each worker runs the whole pipeline. Worker i exports and delivers batches i, i + n, … of the one order.
The `DataLoader` asks one worker after the other, and so restores the order. The pipeline is thus computed n times, each
time with an n-th of the budgets. `num_workers=0` computes it once: then arrowflow's own threads do the work.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, Self, TypeVar

import pyarrow as pa

from arrowflow import run, state
from arrowflow.delivery import Delivery
from arrowflow.errors import ForkError, PlanError, StateError
from arrowflow.executor import check_not_forked
from arrowflow.loaders.base import ExportDelivery, HandOver, Loader
from arrowflow.loaders.shared_epochs import SharedEpochs
from arrowflow.optional import optional
from arrowflow.run import Prepared

T = TypeVar("T")
_PASSED: Final = object()
_ENDED: Final = "ended"


class Dealt(Generic[T]):
    """Delivers every n-th batch; all other batches are skipped and never exported.

    Attributes:
        number: Number of the next batch in its epoch.
    """

    def __init__(self, delivery: Delivery[T], index: int, count: int) -> None:
        self.ahead = delivery.ahead
        self.number = 0
        self._delivery = delivery
        self._index = index
        self._count = count

    def _is_next_mine(self) -> bool:
        number = self.number
        self.number += 1
        return number % self._count == self._index

    def __call__(self, batch: pa.RecordBatch) -> Any:
        """Returns the batch, or a marker that the batch belongs to another worker."""
        return self._delivery(batch) if self._is_next_mine() else _PASSED

    def slicer(self, chunk: pa.RecordBatch) -> Callable[[int, int], Any]:
        """Converts a chunk once, if this worker delivers any of its batches."""
        found: Callable[[int, int], T] | None = None

        def sliced(start: int, stop: int) -> Any:
            nonlocal found
            if not self._is_next_mine():
                return _PASSED
            if found is None:
                found = self._delivery.slicer(chunk)
            return found(start, stop)

        return sliced

    def arrived(self, made: Any) -> Any:
        """Returns the batch, or a marker that the batch belongs to another worker."""
        return made if made is _PASSED else self._delivery.arrived(made)


class Turns(Generic[T]):
    """Iterates over the batches of a run that this worker delivers.

    The iterator has no state: PyTorch asks the dataset for its state, and would keep both states.
    """

    def __init__(self, run: Iterator[Any]) -> None:
        self._run = run

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        batch = _PASSED
        while batch is _PASSED:
            batch = next(self._run)
        return batch  # type: ignore[return-value]


def _parts_of(prepared: Callable[[], Prepared], count: int) -> Callable[[], Prepared]:
    """Returns a function that prepares one worker's part, each time that the whole is prepared anew."""
    latest: list[Prepared] = []  # the whole, and the part

    def prepare() -> Prepared:
        whole = prepared()
        if not latest or latest[0] is not whole:
            latest[:] = whole, run.part_of(whole, count)
        return latest[1]

    return prepare


class TorchDataset(Loader[T]):
    """Batches of a dataset for `torch.utils.data.DataLoader`. Made by `Dataset.to_torch_dataset`.

    In a worker process its state is the state of the worker; `torchdata`'s `StatefulDataLoader` takes one state of
    each.
    """

    def __init__(
        self, prepared: Callable[[], Prepared], counter: SharedEpochs, hand_over: HandOver[Any]
    ) -> None:
        super().__init__(prepared, counter, hand_over)
        self._epochs = counter
        self._passes = 0  # made by this process, as a worker
        self._epoch = 0  # of the latest pass
        self._goes_on_ended = False
        self._loaded_by = os.getpid()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._resume is not None:
            raise _not_for_workers()
        return torch_dataset, (self._prepared, self._epochs, self._hand_over)

    def __iter__(self) -> Any:
        # The fetcher of a `DataLoader` calls this, in this process or in a worker; nothing else tells `batch_size`.
        if sys._getframe(1).f_locals.get("auto_collation"):
            raise PlanError(
                "to_torch_dataset: the dataset yields batches, of which this DataLoader would make batches again; write "
                "DataLoader(…, batch_size=None), and put the size into .batch(…)"
            )
        worker = _data().get_worker_info()
        index, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if worker is None:
            self._take_up_again()
        else:
            self._check_worker()
            if count > 1 and not self._passes:
                self._prepared = _parts_of(self._prepared, count)
            self._epochs.name = f"{worker.seed - worker.id} {self._passes}"
            self._passes += 1
        prepared = self._prepared()
        if count > 1:
            _check_same_order(prepared)
        ended = worker is not None and self._resume is not None and self._goes_on_ended
        dealt = Dealt[T](ExportDelivery(prepared, self._hand_over), index, count)
        turn = self._run(prepared, dealt)
        progress = turn.progress
        dealt.number = progress.batches
        self._epoch = progress.epoch
        if ended:  # the place is the start of the next epoch
            self._epochs.next = progress.epoch
            self._epoch -= 1
            return iter(())
        return Turns[T](turn)

    def _take_up_again(self) -> None:
        """Goes back to the place of an iterator that delivered nothing; PyTorch makes such iterators for their state."""
        progress = self._progress
        if self._resume is None and progress is not None and progress.began is None:
            self._resume = progress.epoch, progress.position, progress.batches

    def _check_worker(self) -> None:
        if self._resume is not None and self._loaded_by != os.getpid():
            raise _not_for_workers()
        try:
            check_not_forked()
        except ForkError as error:
            raise ForkError(
                "this worker of a DataLoader was forked from a process that had already run a pipeline, and locks and "
                "thread pools do not survive that; use DataLoader(…, multiprocessing_context='forkserver') or 'spawn', "
                "or num_workers=0, which is the fast way: arrowflow has threads of its own"
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last delivered batch; in a worker, after the last batch of its own."""
        return {**super().state_dict(), _ENDED: self._has_ended()}

    def _has_ended(self) -> bool:
        if self._resume is not None:
            return self._goes_on_ended
        return self._progress is not None and self._progress.epoch != self._epoch

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Makes the next `iter()` go on with the batch after the state was taken.

        A worker that had ended its epoch ends the epoch again, while the other workers still go on with theirs. Outside
        of workers the next epoch follows.

        Raises:
            StateError: The state belongs to another pipeline; the message says what differs.
        """
        super().load_state_dict(state_dict, strict=strict)
        self._goes_on_ended = bool(state_dict.get(_ENDED))
        self._loaded_by = os.getpid()

    def set_epoch(self, epoch: int) -> None:
        """Makes the next `iter()` of a `DataLoader` run this epoch, also in workers that live on."""
        super().set_epoch(epoch)
        self._progress = None


def _not_for_workers() -> StateError:
    return StateError(
        "a state was loaded into this dataset, which worker processes would not follow; load the state of a "
        "torchdata.stateful_dataloader.StatefulDataLoader, or use num_workers=0"
    )


def _check_same_order(prepared: Prepared) -> None:
    """Raises `PlanError` if workers would not have the same batches under the same numbers."""
    try:
        state.check_resumable(prepared.bound, deterministic=prepared.options.deterministic)
    except StateError as error:
        raise PlanError(
            "to_torch_dataset: several workers run the pipeline each and deliver batches by number, so that its order "
            f"has to be the same in all of them ({error}); use num_workers=0 or 1"
        ) from error


def torch_dataset(prepared: Callable[[], Prepared], counter: SharedEpochs, hand_over: HandOver[Any]) -> Any:
    """Returns a `TorchDataset` that is an `IterableDataset`. Its pickles call this function, too.

    Raises:
        MissingPackageError: PyTorch is not installed.
    """
    return _iterable_dataset()(prepared, counter, hand_over)


@functools.cache
def _iterable_dataset() -> type[Any]:
    """Makes the class, whose second base exists only with PyTorch."""
    own = {"__module__": __name__, "__doc__": TorchDataset.__doc__}
    bases = (TorchDataset, _data().IterableDataset)
    return types.new_class("TorchDataset", bases, exec_body=lambda space: space.update(own))


def _data() -> Any:
    return optional("torch.utils.data", user="to_torch_dataset", extra="torch")

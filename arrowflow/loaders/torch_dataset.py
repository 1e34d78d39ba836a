"""`TorchDataset`: the batches of a dataset for PyTorch's `DataLoader`, with or without worker processes.

The pipeline runs in lanes that make whole batches, see `arrowflow.ops.ranks.split_by_worker`. With n workers, worker i
runs lanes i, i + n, … with an n-th of the budgets. So n workers together read and compute what one process does.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, Self, TypeVar, cast

from arrowflow import run
from arrowflow.delivery import EpochCounter
from arrowflow.errors import ForkError, PlanError, StateError
from arrowflow.executor import check_not_forked
from arrowflow.loaders.base import ExportDelivery, HandOver, Loader
from arrowflow.loaders.shared_epochs import SharedEpochs
from arrowflow.loaders.worker_batch import WorkerBatch
from arrowflow.optional import optional
from arrowflow.run import Prepared

T = TypeVar("T")
_ENDED: Final = "ended"


class WithoutState(Generic[T]):
    """Iterates over a run. PyTorch asks the dataset for its state, and would keep the state of an iterator besides.

    Args:
        run: The run.
        leaves: Whether its batches leave this process, which is a worker's.
    """

    def __init__(self, run: Iterator[T], *, leaves: bool) -> None:
        self._run = run
        self._leaves = leaves

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        batch: Any = next(self._run)
        return cast("T", WorkerBatch(batch)) if self._leaves and type(batch) is dict else batch


class Part:
    """Prepares what this process runs: all lanes, or those of a worker, with its part of the budgets.

    Args:
        of_worker: Returns the function that prepares the lanes of a worker, by its number and that of all workers.
        whole: Prepares a pipeline that cannot run in lanes; None where the user asks for lanes.
    """

    def __init__(
        self, of_worker: Callable[[int, int], Callable[[], Prepared]], whole: Callable[[], Prepared] | None
    ) -> None:
        self._given = of_worker, whole
        self._of_worker = functools.cache(of_worker)
        self._whole = whole
        self._latest: tuple[Prepared, Prepared] | None = None  # as a whole, and the part

    def __reduce__(self) -> tuple[type[Part], tuple[Any, ...]]:
        return Part, self._given

    def __call__(self) -> Prepared:
        """Returns the pipeline.

        Raises:
            PlanError: There are several workers, and they cannot share it.
        """
        index, count = this_worker()
        try:
            whole = self._of_worker(index, count)()
        except PlanError as error:
            if self._whole is None:
                raise
            if count > 1:
                raise PlanError(
                    f"to_torch_dataset: {count} workers share a pipeline by its lanes, and this one has none ({error}); use "
                    "num_workers=0, which is the fast way: arrowflow has threads of its own"
                ) from None
            whole = self._whole()
        if self._latest is None or self._latest[0] is not whole:
            self._latest = whole, whole if count == 1 else run.part_of(whole, index, count)
        return self._latest[1]


def this_worker() -> tuple[int, int]:
    """Returns the number of this worker of a `DataLoader`, and how many workers it has; (0, 1) in other processes."""
    worker = _data().get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)


class TorchDataset(Loader[T]):
    """Batches of a dataset for `torch.utils.data.DataLoader`. Made by `Dataset.to_torch_dataset`.

    In a worker process its state is the state of the worker; `torchdata`'s `StatefulDataLoader` takes one state of
    each.
    """

    def __init__(self, part: Part, counter: SharedEpochs, hand_over: HandOver[Any]) -> None:
        super().__init__(part, EpochCounter(), hand_over)
        self._epochs = counter
        self._passes = 0  # made by this process, as a worker
        self._epoch = 0  # of the latest pass
        self._goes_on_ended = False
        self._loaded_by = os.getpid()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._moved:
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
        if worker is None:
            self._take_up_again()
        else:
            self._check_worker()
            self._epochs.name = f"{worker.seed - worker.id} {self._passes}"
            self._passes += 1
        prepared = self._prepared()
        ended = worker is not None and self._moved and self._goes_on_ended
        if self._moved:
            self._epochs.next = self._counter.begins.epoch + 1
        else:
            self._counter.move(self._epochs.take())
        turn = self._run(prepared, ExportDelivery(prepared, self._hand_over))
        progress = turn.progress
        self._epoch = progress.epoch
        if ended:  # the place is the start of the next epoch
            self._epochs.next = progress.epoch
            self._epoch -= 1
            return iter(())
        return WithoutState[T](turn, leaves=worker is not None)

    def _take_up_again(self) -> None:
        """Goes back to the place of an iterator that delivered nothing; PyTorch makes such iterators for their state."""
        progress = self._progress
        if not self._moved and progress is not None and progress.began is None:
            self._counter.move(progress.epoch, progress.position, progress.batches)
            self._moved = True

    def _check_worker(self) -> None:
        if self._moved and self._loaded_by != os.getpid():
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
        if self._moved:
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
        self._epochs.next = epoch
        self._moved, self._progress = False, None


def _not_for_workers() -> StateError:
    return StateError(
        "a state was loaded into this dataset, which worker processes would not follow; load the state of a "
        "torchdata.stateful_dataloader.StatefulDataLoader, or use num_workers=0"
    )


def torch_dataset(part: Part, counter: SharedEpochs, hand_over: HandOver[Any]) -> Any:
    """Returns a `TorchDataset` that is an `IterableDataset`. Its pickles call this function, too.

    Raises:
        MissingPackageError: PyTorch is not installed.
    """
    return _iterable_dataset()(part, counter, hand_over)


@functools.cache
def _iterable_dataset() -> type[Any]:
    """Makes the class, whose second base exists only with PyTorch."""
    own = {"__module__": __name__, "__doc__": TorchDataset.__doc__}
    bases = (TorchDataset, _data().IterableDataset)
    return types.new_class("TorchDataset", bases, exec_body=lambda space: space.update(own))


def _data() -> Any:
    return optional("torch.utils.data", user="to_torch_dataset", extra="torch")

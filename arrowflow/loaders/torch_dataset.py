"""`TorchDataset`: the batches of a dataset for PyTorch's `DataLoader`, with or without worker processes.

The first worker alone runs the pipeline: batches, their order and states are those of `to_torch`, at any number of workers.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from arrowflow.delivery import EpochCounter
from arrowflow.errors import ForkError, PlanError, StateError
from arrowflow.executor import check_not_forked
from arrowflow.loaders.base import HandOver, Loader
from arrowflow.loaders.shared_epochs import SharedEpochs
from arrowflow.loaders.worker_batch import CountedBatch, WorkerBatch
from arrowflow.observe.advice import locked
from arrowflow.optional import optional
from arrowflow.run import Prepared

T = TypeVar("T")
_LOGGER: Final = logging.getLogger("arrowflow")
_FINISHED, _SNAPSHOT, _SINCE = "_iterator_finished", "_snapshot", "_steps_since_snapshot"
_IN_WORKERS = (_SNAPSHOT, "_worker_snapshots", "worker_0", "dataset_state")
"""Where the state of a `StatefulDataLoader` has that of the dataset; without workers in the last one alone."""


def prepared_in_worker(prepares: Callable[[], Prepared]) -> Prepared:
    """Prepares a pipeline whose ranks would have to agree on their steps, which workers cannot.

    Raises:
        PlanError: Only a run tells its steps.
    """
    try:
        return prepares()
    except PlanError as error:
        raise PlanError(
            f"the ranks cannot talk to each other in the workers of a DataLoader ({error}); use num_workers=0, or "
            "to_torch()"
        ) from None


class TorchDataset(Loader[T]):
    """Batches of a dataset for `torch.utils.data.DataLoader`. Made by `Dataset.to_torch_dataset`."""

    def __init__(
        self,
        prepared: Callable[[], Prepared],
        in_worker: Callable[[], Prepared],
        counter: SharedEpochs,
        hand_over: HandOver[Any],
    ) -> None:
        super().__init__(prepared, counter, hand_over)
        self._in_worker = in_worker
        self._moves = -1  # of the place where the latest iterator of this process began
        self._ahead: dict[str, Any] | None = None  # the state, until a batch that was made ahead is delivered

    def __reduce__(self) -> tuple[Any, ...]:
        return torch_dataset, (self._in_worker, self._in_worker, self._counter, self._hand_over)

    def __iter__(self) -> Any:
        # The fetcher of a `DataLoader` calls this, in this process or in a worker; nothing else tells `batch_size`.
        asked = sys._getframe(1).f_locals
        if asked.get("auto_collation"):
            raise PlanError(
                "to_torch_dataset: the dataset yields batches, of which this DataLoader would make batches again; write "
                "DataLoader(…, batch_size=None), and put the size into .batch(…)"
            )
        worker = _data().get_worker_info()
        if worker is None:
            self._moves = self._counter.begins.moves
            # PyTorch asks the dataset for its state, and would keep the state of an iterator besides.
            return itertools.chain(self._run(self._prepared()))
        if worker.id:
            return iter(())
        if worker.num_workers > 1:
            _LOGGER.info(
                "one of the %d workers of a DataLoader runs the pipeline, on all cores of its budget; the others end at "
                "once: num_workers=1 does the same",
                worker.num_workers,
            )
        try:
            check_not_forked()
        except ForkError as error:
            raise ForkError(
                "this worker of a DataLoader was forked from a process that had already run a pipeline, and locks and "
                "thread pools do not survive that; use DataLoader(…, multiprocessing_context='forkserver') or 'spawn', or "
                "num_workers=0, which is the fast way: arrowflow has threads of its own"
            ) from error
        return self._begin(asked.get("collate_fn"))

    def _begin(self, collate: object) -> Iterator[Any]:
        """Returns one pass over the data in a worker, whose batches leave the process.

        Args:
            collate: The function that the `DataLoader` calls with each batch. If it is the user's own, or this pass is called
                through another dataset, nobody knows what becomes of a batch: the pass counts when its second batch is made.
        """
        counter, begun = self._counter, self._counter.begins
        run = self._run(self._in_worker(), EpochCounter(begun))
        convert: Callable[[Any], Any] = _data()._utils.collate.default_convert
        told: list[str] = []

        def tell() -> None:
            """Logs which functions hold the interpreter lock, once it is known: here nobody asks for `explain()`."""
            if not told:
                told.extend(locked(run.stats().stages))
                for line in told:
                    _LOGGER.warning("in the worker of a DataLoader: %s", line)

        def sent(batch: Any) -> Any:
            number = run.progress.delivered
            if number & (number - 1) == 0:  # 1, 2, 4, …
                tell()
            sent = WorkerBatch(batch) if type(batch) is dict else batch
            if number == 2 and collate is convert:
                return CountedBatch(convert(sent), counter, begun)
            if number == 2:
                counter.count(begun, elsewhere=True)
            return sent

        def ended() -> Iterator[Any]:
            if run.progress.delivered < 2:  # else its second batch counts
                counter.count(begun, elsewhere=True)
            tell()
            yield from ()

        self._ahead = None
        batches = itertools.chain(map(sent, run), ended())
        return batches if begun.position is None else self._looking_ahead(batches)

    def _looking_ahead(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Makes the first batch, so that an epoch of which nothing is left is counted before anything else begins.

        `StatefulDataLoader` starts other workers at once, where a state tells it that the epoch had ended.
        """
        state = super().state_dict()
        first = list(itertools.islice(batches, 1))
        self._ahead = state

        def delivered() -> Iterator[Any]:
            self._ahead = None
            yield from first

        return itertools.chain(delivered(), batches)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last delivered batch, as of `to_torch`: in this process, or in the worker that asks.

        Raises:
            StateError: Workers run the pipeline, and only they know where they are.
        """
        worker, begins = _data().get_worker_info(), self._counter.begins
        if worker is not None and worker.id:
            return {}  # it delivers nothing
        if worker is None and begins.elsewhere and begins.moves != self._moves:
            raise StateError(
                "the workers of a DataLoader ran the latest pass, and only they know its place; take the state of a "
                "torchdata.stateful_dataloader.StatefulDataLoader, or use num_workers=0; at the end of an epoch the next "
                "set_epoch(n) tells a state as well"
            )
        return super().state_dict() if self._ahead is None or self._moved else self._ahead

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Makes the next pass go on with the batch after the state was taken, also in workers, at any number of them.

        Args:
            state_dict: A state of this dataset or of `to_torch`; or that of a `StatefulDataLoader`, which itself refuses
                states that were taken with another `num_workers`.
            strict: As in `Loader.load_state_dict`.

        Raises:
            StateError: The state belongs to another pipeline; the message says what differs. Or it is that of a
                `StatefulDataLoader` at a step without a snapshot.
        """
        worker = _data().get_worker_info()
        if worker is not None and worker.id:
            return
        found = _of_dataset(state_dict)
        super().load_state_dict(found, strict=strict)
        if found is not state_dict and state_dict[_FINISHED]:
            # Without workers its state is that of the next epoch.
            self.set_epoch(found["epoch"] + (_SNAPSHOT in state_dict))


def _of_dataset(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the state of the dataset that is in the state of a `StatefulDataLoader`; other states as they are."""
    if _FINISHED not in state:
        return state
    if state.get(_SINCE) and not state[_FINISHED]:
        raise StateError(
            f"the state was taken {state[_SINCE]} batches after the last snapshot of the StatefulDataLoader; use "
            "snapshot_every_n_steps=1, or load it into a StatefulDataLoader with the same num_workers"
        )
    keys = _IN_WORKERS if _SNAPSHOT in state else _IN_WORKERS[-1:]
    return functools.reduce(lambda found, key: found[key], keys, state)


def torch_dataset(*arguments: Any) -> Any:
    """Returns a `TorchDataset` with these arguments that is an `IterableDataset`. Its pickles call this function, too.

    Raises:
        MissingPackageError: PyTorch is not installed.
    """
    return _iterable_dataset()(*arguments)


@functools.cache
def _iterable_dataset() -> type[Any]:
    """Makes the class, whose second base exists only with PyTorch."""
    own = {"__module__": __name__, "__doc__": TorchDataset.__doc__}
    bases = (TorchDataset, _data().IterableDataset)
    return type("TorchDataset", bases, own)


def _data() -> Any:
    return optional("torch.utils.data", user="to_torch_dataset", extra="torch")

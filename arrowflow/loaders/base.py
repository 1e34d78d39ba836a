"""`Loader`: the batches of a dataset in a framework's types. Each iteration of a loader is one epoch."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

import pyarrow as pa

from arrowflow import run
from arrowflow.delivery import EpochCounter, Progress
from arrowflow.errors import ArrowflowError, DataError, FunctionError, PlanError, printable, said
from arrowflow.iterator import Iterator, statistics_of
from arrowflow.loaders.export_request import ExportRequest
from arrowflow.observe.glance import glance_at_run
from arrowflow.observe.reported import Reported
from arrowflow.observe.timeline import Recording
from arrowflow.ops.batches.batch import Batch
from arrowflow.ops.functions.function import function_name
from arrowflow.options import check_flag, check_size
from arrowflow.physical.tuning import Statistics
from arrowflow.plan.traits import Resume
from arrowflow.plan.walk import post_order
from arrowflow.run import Prepared

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Export(Protocol[T_co]):
    """A kernel that converts batches for one framework. A loader needs to know no more of the framework."""

    def __call__(self, batch: pa.RecordBatch) -> T_co:
        """Returns one batch in the framework's types. Called on the consumer's thread."""

    def chunk(self, batch: pa.RecordBatch) -> Callable[[int, int], T_co]:
        """Converts a large chunk once; returns a function that gives the batch of the rows from `start` to `stop`."""

    def explain(self) -> list[str]:
        """Returns one line per column: zero-copy, or why not."""


class MakeExport(Protocol[T_co]):
    """Makes the export kernel for a schema; picklable where its loader is. Most are the kernels' classes."""

    def __call__(self, schema: pa.Schema, *, owned: bool, request: ExportRequest) -> Export[T_co]:
        """Returns the kernel. `owned` tells whether batches own their memory, `request` hold the user's arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver(Generic[T]):
    """How a loader hands batches over.

    Attributes:
        name: Name of the method that made the loader, for errors.
        collate: The user's function of each batch, or None.
        arrived: Completes a batch that was exported one ahead, when it is delivered; None where none is ahead.
    """

    name: str
    make_export: MakeExport[T]
    request: ExportRequest = field(default_factory=ExportRequest)
    collate: Callable[[T], Any] | None = None
    arrived: Callable[[Any], Any] | None = None


class ExportDelivery(Generic[T]):
    """Delivers the results of an export kernel."""

    def __init__(self, prepared: Prepared, hand_over: HandOver[T]) -> None:
        self.ahead = hand_over.arrived is not None
        self._collate = None if self.ahead else hand_over.collate  # what is ahead waits for `arrived`
        self._hand_over = hand_over
        self._prepared = prepared
        self._export: Export[T] | None = None
        last = prepared.optimised
        # After a `map` without `schema=` only the first batch tells the schema.
        if last.schema is not None:
            self._named(lambda: self._export_for(last.schema))
        # After such a `batch`, a batch that is no slice was joined of parts of several chunks.
        slices = isinstance(last, Batch) and not last.joins and last.mask is None
        self._refuses_joined = hand_over.request.strict_zero_copy and slices

    def _named(self, step: Callable[[], Any]) -> Any:
        """Returns the result of a step. Its errors name the loader."""
        try:
            return step()
        except ArrowflowError as error:
            error.locate(operator=self._hand_over.name)
            raise

    def __call__(self, batch: pa.RecordBatch) -> Any:
        if self._refuses_joined:
            raise DataError(
                "all columns would be copied (chunked: a batch lies in more than one chunk), and "
                "strict_zero_copy=True refuses copies; take a batch size that divides the rows of chunks"
            ).locate(operator=self._hand_over.name)
        return self._named(lambda: _collated(self._export_for(batch.schema)(batch), self._collate))

    def slicer(self, chunk: pa.RecordBatch) -> Callable[[int, int], Any]:
        """Converts a chunk once."""
        found, collate = self._named(lambda: self._export_for(chunk.schema).chunk(chunk)), self._collate

        def sliced(start: int, stop: int) -> Any:
            try:  # in line: a million times a second
                return _collated(found(start, stop), collate)
            except ArrowflowError as error:
                error.locate(operator=self._hand_over.name)
                raise

        return sliced

    def arrived(self, made: Any) -> Any:
        """Completes a batch that was made ahead, so that the user can have it."""
        arrived = self._hand_over.arrived
        assert arrived is not None
        return self._named(lambda: _collated(arrived(made), self._hand_over.collate))

    def _export_for(self, schema: pa.Schema) -> Export[T]:
        if self._export is None:
            owned, hand_over = self._prepared.owns_buffers, self._hand_over
            self._export = hand_over.make_export(schema, owned=owned, request=hand_over.request)
            self._prepared.learn_schema(schema)
        return self._export


def _collated(batch: Any, collate: Callable[[Any], Any] | None) -> Any:
    if collate is None:
        return batch
    try:
        return collate(batch)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # `StopIteration` among them, which would end the loop without a word
        raise FunctionError(f"collate: {function_name(collate)} raised {said(error)}") from error


class Loader(Reported, Generic[T]):
    """Batches of a dataset in a framework's types. Made by `Dataset.to_numpy` and its like.

    Each `iter()` runs the loader's next epoch; the first one is the next epoch of its dataset. An iterator counts as an
    epoch once it has delivered its second batch or has ended. A loader remembers the place of its latest iterator, so
    `state_dict` works inside the loop and after it.
    """

    def __init__(
        self, prepared: Callable[[], Prepared], counter: EpochCounter, hand_over: HandOver[Any]
    ) -> None:
        self._prepared = prepared
        self._counter = counter
        self._hand_over = hand_over
        self._latest: weakref.ref[Iterator[T]] | None = None
        self._progress: Progress | None = None
        self._moved = False  # since the latest iterator was made
        self._latest_run: Prepared | None = None
        self._recording: Recording | None = None

    def __iter__(self) -> Iterator[T]:
        return self._run(self._prepared())

    def __repr__(self) -> str:
        latest = "" if (iterator := self._iterator()) is None else f", latest: {iterator!r}"
        return f"<Loader of {self._hand_over.name}: epoch {self._counter.begins.epoch} comes next{latest}>"

    def _repr_html_(self) -> str:
        return glance_at_run(repr(self), self.stats() if self._progress is not None else None)

    def _run(self, prepared: Prepared, counter: EpochCounter | None = None) -> Iterator[T]:
        """Returns an iterator over the next epoch, or one from the place of a loaded state, counted by the given counter."""
        self._latest_run = prepared
        delivery = ExportDelivery(prepared, self._hand_over)
        iterator = Iterator[T](prepared, counter or self._counter, delivery, self._recording, keeps=True)
        self._moved = False
        self._progress = iterator.progress
        # Weak, so that a loop that was left by `break` ends its run although the loader lives on.
        self._latest = weakref.ref(iterator)
        return iterator

    def peek(self) -> T:
        """Returns the batch that the next `iter()` delivers first. It counts as no epoch, and changes no state.

        `to_polars().peek()` prints as a table.

        The run that makes the batch ends at once. A loop over the same loader may go on meanwhile. After `split_by_rank`
        the other processes need not look, too.

        Raises:
            PlanError: The source is a stream that can be read only once.
            DataError: There is no batch.

        Examples:
            >>> import arrowflow as af
            >>> loader = af.range(100).shuffle(100, seed=1).batch(4).to_numpy()
            >>> look = loader.peek()["id"].tolist()
            >>> first = next(iter(loader))["id"].tolist()
            >>> look == first, loader.state_dict()["epoch"]
            (True, 0)
        """
        prepared = run.alone(self._prepared())
        if any(node.traits.resume is Resume.NONE for node in post_order(prepared.bound) if not node.inputs):
            raise PlanError(
                "peek: the source is a stream that can be read only once, and a look would take its rows: take them from "
                "the loop itself"
            )
        delivery = ExportDelivery(prepared, self._hand_over)
        with Iterator[T](prepared, EpochCounter(self._counter.begins), delivery) as batches:
            for batch in batches:
                return batch
        raise DataError(
            "peek: there is no batch to look at: the next epoch, or what is left of it, has no rows"
        )

    def __len__(self) -> int:
        """Returns the number of batches of the epoch that the next `iter()` runs, without those that `skip_steps` leaves out.

        Raises:
            TypeError: The pipeline is endless, only running it tells, or it does not end in batches.
        """
        return run.length(self._prepared(), self._counter.begins.epoch)

    def __getitem__(self, key: object) -> NoReturn:
        raise PlanError(
            f"{self._hand_over.name}: a loader has no batches by number, and takes the place of a DataLoader: iterate "
            "over it; where a framework wants a DataLoader write DataLoader(ds.to_torch_dataset(), batch_size=None)"
        )

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        raise PlanError(
            f"{self._hand_over.name}: a loader is no array, but yields batches: iterate over it; for a data frame write "
            "pl.DataFrame(ds) or pd.DataFrame.from_arrow(ds) with the dataset"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (iterator := self._iterator()) is not None:
            iterator.__exit__(kind, error, trace)
        if self._latest_run is not None:
            self._latest_run.let_go()

    def close(self) -> None:
        """Closes the latest iterator, if it is still there, and ends the workers that runs on a cluster share."""
        self.__exit__(None, None, None)

    def _iterator(self) -> Iterator[T] | None:
        return None if self._latest is None else self._latest()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last batch that the latest iterator delivered; see `Iterator.state_dict`."""
        place = self._counter.begins if self._progress is None or self._moved else self._progress
        prepared = self._latest_run or self._prepared()
        return run.state_of(prepared, place.epoch, place.position, place.batches)

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Makes the next `iter()` go on with the batch after the state was taken.

        Args:
            state_dict: A result of `state_dict`.
            strict: Whether every change of the pipeline is an error. With False two changes are a warning, where no row
                is lost and none comes twice. A file source may have new files after its old ones: the rest of the epoch
                has their rows, too. `sample_from_datasets` may have other weights: its draws soon follow them.

        Raises:
            StateError: The state belongs to another pipeline; the message says what differs, and whether
                `strict=False` would go on.

        Examples:
            >>> import arrowflow as af, warnings
            >>> def mix(*weights):
            ...     sources = [af.range(90_000), af.range(-90_000, 0)]
            ...     return af.sample_from_datasets(sources, weights, seed=1).batch(5_000).to_numpy()
            >>> before = mix(0.5, 0.5)
            >>> first = next(iter(before))
            >>> after = mix(0.9, 0.1)
            >>> with warnings.catch_warnings(action="ignore"):  # "draws by its weights of now, after at most 16,384 rows"
            ...     after.load_state_dict(before.state_dict(), strict=False)
            >>> [round((batch["id"] < 0).mean().item(), 1) for batch in after][:6]
            [0.5, 0.5, 0.2, 0.1, 0.1, 0.1]
        """
        self._latest_run = self._prepared()
        self._counter.move(*run.place_of(self._latest_run, state_dict, strict=strict))
        self._moved = True

    def trace(self, path: str | os.PathLike[str]) -> Recording:
        """Records the runs of this loader from the next `iter()` on; see `Iterator.trace`.

        Returns: A context manager, which writes the file when its block is left. Without a block the file is written whenever an epoch ends.

        Examples:
            >>> import arrowflow as af, pathlib, tempfile
            >>> loader = af.range(10).batch(4).to_numpy()
            >>> path = pathlib.Path(tempfile.mkdtemp(), "trace.json")
            >>> with loader.trace(path):
            ...     for epoch in range(2):
            ...         for batch in loader:
            ...             pass
            >>> path.exists()
            True
        """
        self._recording = Recording(path)
        return self._recording

    def set_epoch(self, epoch: int) -> None:
        """Makes the next `iter()` run this epoch."""
        self._counter.move(check_size("set_epoch", "epoch", epoch, least=0))
        self._moved = True

    def stats(self) -> Statistics:
        """Returns the measurements of the latest iterator; see `Statistics`."""
        if (iterator := self._iterator()) is not None:
            return iterator.stats()
        prepared = self._latest_run or self._prepared()
        return statistics_of(prepared, self._progress or Progress(self._counter.begins.epoch), None)

    def explain(
        self, *, copies: bool = False, verbose: bool = False, what_if: Mapping[str, int] | None = None
    ) -> str:
        """Describes the latest run: its limit, a table of its stages, and advice.

        Waiting is time inside `next()`. Where the framework computes behind the loop (CUDA, JAX), a step returns at
        once. Then the loop waits for its next batch while the device computes, and a pipeline that keeps up seems to
        be the limit. To measure, wait for the result of each step: `loss.item()`, `jax.block_until_ready(…)`.

        Args:
            copies: Returns one line per column instead: zero-copy, or why not. One more line names each operator that
                copies memory which others pass on, like a compressed cache.
            verbose: Gives a sentence for each stage, with the tuned values and their reasons, in place of the table.
            what_if: Another `cpu_budget`, such as `{"cpu_budget": 8}`. One more line says about how many rows a second the
                run would deliver, and what would limit it. Nothing is run for it.

        Raises:
            PlanError: `what_if` has another key than `cpu_budget`; a flag is none; or `copies` asks for columns that are
                not known yet.
        """
        if not check_flag("explain", "copies", copies):
            return super().explain(verbose=verbose, what_if=what_if)
        prepared = self._prepared()
        schema = prepared.batch_schema
        if schema is None:
            raise PlanError(
                "the columns are only known once the pipeline has delivered a batch: take one first, or pass schema= to `map`"
            )
        # A strict loader would refuse the copies that this call has to describe.
        request = replace(self._hand_over.request, strict_zero_copy=False)
        export = self._hand_over.make_export(schema, owned=prepared.owns_buffers, request=request)
        before = [text for node in post_order(prepared.optimised) for text in node.copies()]
        return printable("\n".join([*export.explain(), *before]))

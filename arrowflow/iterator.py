"""`Iterator`, which a user holds while a pipeline runs.

It starts the engine at the first `next()`, so that loading a state or setting the epoch before costs nothing.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator as Batches
from collections.abc import Mapping
from dataclasses import fields, replace
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

from arrowflow import run
from arrowflow.autotune import bottleneck
from arrowflow.clock import WallClock
from arrowflow.delivery import LEFT_OUT, Delivered, Delivery, EpochCounter, LeavingOut, Progress, sliced
from arrowflow.errors import ArrowflowError, ClosedError
from arrowflow.executor import Engine
from arrowflow.interrupts import interruption, raise_interruption
from arrowflow.kernels.items import Item, Slices
from arrowflow.observe.advice import advice
from arrowflow.observe.progress import ProgressBar
from arrowflow.observe.report import log_left_out, report
from arrowflow.observe.reported import Reported
from arrowflow.observe.timeline import CONSUMER, Recording
from arrowflow.options import check_size
from arrowflow.physical.tuning import EngineStatistics, Statistics
from arrowflow.plan.position import Position
from arrowflow.run import Prepared

T = TypeVar("T")


class Iterator(Reported, Generic[T]):
    """One pass over a dataset. Made by `iter(dataset)` and `iter(loader)`; a context manager.

    Work starts with the first `next()`. All work, with its threads and files, ends when the iterator is exhausted,
    closed, or no longer referenced. An error or interrupt ends it too, and from then on `next()` raises
    `ClosedError`. Any thread may call `close`; everything else is for one thread at a time.
    """

    def __init__(
        self,
        prepared: Prepared,
        counter: EpochCounter,
        deliver: Delivery[T],
        recording: Recording | None = None,
        *,
        keeps: bool = False,
        title: str | None = None,
    ) -> None:
        self._keeps = keeps  # for later epochs; whoever reads epoch 0 once has none
        self._title = title  # of the progress bar, in place of the epoch
        self._prepared = prepared
        self._recording = recording
        self._bar: ProgressBar | None = None
        self._counter, self._begun = counter, counter.begins
        self._leaving_out = LeavingOut.of(deliver, prepared.options.skip_steps)
        self._deliver: Delivery[T] = self._leaving_out or deliver
        self._clock = WallClock()
        self._engine: Engine | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._closed = self._ended = self._busy = False
        self._failure: str | None = None  # the type of the error that ended the run
        self._sliced: Batches[Delivered[T]] | None = None  # the undelivered batches of the latest item
        _live.add(self)
        self._first = True  # nothing was delivered since the engine was started
        self._told = False  # the log has the rows that the run left out
        self._whole = False  # the engine began at the start of the epoch
        self._rows_before = 0  # delivered before that
        self._look = 1  # the batches after which the next one counts an epoch
        self._shown_rows = 0  # of earlier epochs, which have had a progress bar of their own
        # With a delivery that is ahead: the batch or the error after the last delivered batch, once it is known.
        self._next: Delivered[T] | Exception | None = None
        self.progress = Progress(self._begun.epoch, self._begun.position, self._begun.batches)

    def __repr__(self) -> str:
        progress = self.progress
        if self._ended and not (self._closed or self._failure):
            return f"<Iterator of epoch {progress.epoch - 1}, which has ended>"
        over = f"ended by {self._failure}" if self._failure else "closed" if self._closed else "goes on"
        return f"<Iterator of epoch {progress.epoch}: {progress.batches:,} delivered, {over}>"

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(interrupted=error is not None and interruption(error) is not None)

    def __next__(self) -> T:
        began = self._clock.now()
        progress = self.progress
        if self._busy or self._ended:
            self._refuse()
        self._busy = True
        try:
            # Asked once `close` can see that a call is busy: from here on it forgets nothing.
            if self._closed:
                self._check_open()
            if began >= progress.due:
                progress.note(began, 0 if self._engine is None else self._engine.ledger.held)
            found = self._made_ahead(began) if self._deliver.ahead else self._made(began)
            if found is not None:
                batch, position, rows = found
                leaving_out = self._leaving_out
                batches = progress.batches + 1 if leaving_out is None else leaving_out.after(progress.batches)
                progress.measure(began, self._clock.now())
                if self._bar is not None:
                    self._show(self._bar, rows)
                if progress.delivered == self._look:
                    self._counter.count(self._begun)
                # No call from here to the end: a signal could interrupt a call between the count and the delivery.
                progress.position = position
                progress.batches = batches
                progress.delivered += 1
                progress.rows += rows
                return batch
            self._finish(began)
        except BaseException as error:
            # Every error, an interrupt too: nothing of this run may go on without its consumer.
            self._fail(error)
            raise_interruption(error)
            raise
        finally:
            self._busy = False
            if self._closed:
                self._forget()  # `close` came meanwhile, from another thread
        raise StopIteration

    def _finish(self, began: float) -> None:
        """Ends the epoch."""
        self.progress.measure(began, self._clock.now())
        self._end()
        self._counter.count(self._begun)
        if self._whole:
            self._prepared.learn_count(self.progress.rows - self._rows_before, self.progress.batches)
        self.progress.place(self.progress.epoch + 1)

    def _fail(self, error: BaseException) -> None:
        """Ends the run because of an error."""
        interrupted = interruption(error)
        self._failure = type(interrupted or error).__name__
        self._end(interrupted=interrupted is not None)
        del interrupted, error  # an interrupt of this very call would keep its own traceback

    def _refuse(self) -> NoReturn:
        """Raises the answer to a `next()` during another one, or after the end."""
        self._check_idle()
        self._check_open()
        if self._failure is None:
            raise StopIteration
        raise ClosedError(
            f"the iterator has raised {self._failure} and ended with it; make a new one with iter(…), or go on after "
            "the last batch with load_state_dict(state_dict())"
        )

    def _made(self, began: float) -> Delivered[T] | None:
        """Returns the next batch; None at the end."""
        got, found = began, None
        while found is None or found[0] is LEFT_OUT:
            found = None if self._sliced is None else next(self._sliced, None)
            if found is None:
                self._sliced = None
                item = self._running(began).next_item()
                got = began if self._recording is None else self._clock.now()
                if item is None:
                    break
                found = self._first_of(item)
        if self._recording is not None:
            self._record(self._recording, began, got, exported=found is not None)
        return found

    def _first_of(self, item: Item) -> Delivered[T]:
        """Makes the batch of an item, or the first batch of several."""
        if type(item.chunk) is not Slices:
            return self._deliver(item.chunk), item.position, item.chunk.num_rows
        self._sliced = sliced(item, self._deliver.slicer(item.chunk.chunk))
        return next(self._sliced)

    def _made_ahead(self, began: float) -> Delivered[T] | None:
        """Returns the next batch once the batch after it is made, too; an error there waits until its turn."""
        found, self._next = self._next, None
        if isinstance(found, Exception):
            raise found
        if found is None:
            found = self._made(began)
        if found is None:
            return None
        self._first = True  # the consumer makes no step between the two
        try:
            self._next = self._made(self._clock.now())
        except Exception as error:
            if interruption(error) is not None:
                raise
            # Every other error is raised where its batch is due.
            self._next = error.with_traceback(None)  # the frames of a traceback would hold this iterator
        made, position, rows = found
        return self._deliver.arrived(made), position, rows

    def _running(self, began: float) -> Engine:
        self._check_open()
        if self._engine is None:
            prepared, progress, recording = self._prepared, self.progress, self._recording
            timeline = None if recording is None else recording.timeline
            self._first, self._told = True, False
            if timeline is not None:
                timeline.epoch(progress.epoch, began)
            place = progress.epoch, progress.position, self._clock
            self._engine = run.start(prepared, *place, timeline, keeps=self._keeps)
            if prepared.options.progress:
                rows = prepared.num_rows
                self._bar = ProgressBar(
                    rows if isinstance(rows, int) else None, self._title or progress.epoch
                )
            skips = self._leaving_out
            leaves_out = skips is not None and skips.begin(progress.epoch, progress.batches)
            self._whole = progress.position is None and not leaves_out
            self._rows_before, self._look = progress.rows, progress.delivered + 1
            # Not `__del__`: the code that stops the run must not need the iterator, which is being torn down.
            self._finalizer = weakref.finalize(self, _abandon, self._engine, progress, self._bar)
            self._finalizer.atexit = False
            self._check_open()  # `close` in another thread may have come before there was anything to close
        return self._engine

    def _record(self, recording: Recording, began: float, got: float, *, exported: bool) -> None:
        """Records the consumer's step before this `next()`, the wait inside of it, and the export of the result."""
        timeline, progress = recording.timeline, self.progress
        if progress.began is not None and not self._first:
            timeline.span(CONSUMER, "step", progress.last, began)
        self._first = False
        timeline.span(CONSUMER, "wait", began, got)
        if exported:
            timeline.span(CONSUMER, "export", got, self._clock.now())

    def _show(self, bar: ProgressBar, rows: int) -> None:
        engine, progress = self._engine, self.progress
        rows += progress.rows - self._shown_rows
        seconds = progress.last - (progress.began or 0.0)
        held = 0 if engine is None else engine.ledger.held
        bar.update(rows, progress.last, progress.waited_seconds, seconds, held)

    def _check_idle(self) -> None:
        if self._busy:
            raise ArrowflowError(
                "next() is still running; an iterator has one consumer at a time, and functions of a pipeline must not "
                "use its iterator"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the iterator was closed; make a new one with iter(…)")

    def _end(self, *, interrupted: bool = False) -> None:
        self._ended = True
        self._forget()
        if self._engine is not None:
            self._engine.close(interrupted=interrupted)
            self.progress.final = self._engine.statistics()
            self._engine = None
            if self._finalizer is not None:
                self._finalizer.detach()
            self._end_looks()

    def _forget(self) -> None:
        """Lets go of batches that nobody will ask for."""
        self._next = self._sliced = None

    def close(self) -> None:
        """Stops all work and lets go of all memory and files. May be called from any thread, and again.

        `close` waits `Options.close_timeout` seconds for a user function that does not return, and then names it in a
        warning. An interrupt that ends the iterator or its `with` block waits for at most half a second.
        """
        self._close(interrupted=False)

    def _close(self, *, interrupted: bool) -> None:
        self._closed = True
        if (engine := self._engine) is not None:
            engine.close(interrupted=interrupted)
            self.progress.final = engine.statistics()
            if not self._busy:
                self._forget()
            self._end_looks()

    def _end_looks(self) -> None:
        """Says which rows were left out, ends the progress bar, and writes the recording."""
        self._told = self._told or log_left_out(self.progress.final)
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()
            self._shown_rows = self.progress.rows
        if self._recording is not None:
            self._recording.end_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after the last delivered batch: JSON, under 64 KiB, made in microseconds.

        An iterator of the same pipeline that loads the state goes on with exactly the next batch, also in another
        process. With `deterministic=False` it goes on with all rows that did not come yet, in any order.

        Raises:
            StateError: The pipeline cannot be resumed: a one-shot stream, or `deterministic=False` with `repeat`,
                `concatenate`, `interleave` or `split_by_rank`.
        """
        progress = self.progress
        return run.state_of(self._prepared, progress.epoch, progress.position, progress.batches)

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Goes on from a state: the next batch is the one after the state was taken.

        Args:
            state_dict: A result of `state_dict`.
            strict: Whether every change of the pipeline is an error, see `Loader.load_state_dict`.

        Raises:
            StateError: The state belongs to another pipeline; the message says what differs.
        """
        self._restart(*run.place_of(self._prepared, state_dict, strict=strict))

    def set_epoch(self, epoch: int) -> None:
        """Starts over, at the beginning of an epoch, with which its loader or dataset goes on counting."""
        self._restart(check_size("set_epoch", "epoch", epoch, least=0))

    def _restart(self, epoch: int, position: Position = None, batches: int = 0) -> None:
        self._check_idle()
        self._check_open()
        self._end()
        self._ended, self._failure = False, None
        self.progress.place(epoch, position, batches)
        self._begun = self._counter.move(epoch)

    def stats(self) -> Statistics:
        """Returns the measurements of the run so far; each field says how to read it."""
        engine = self._engine
        return statistics_of(self._prepared, self.progress, None if engine is None else engine.statistics())

    def trace(self, path: str | os.PathLike[str]) -> Recording:
        """Records from now on what runs when, and writes it to `path` as Chrome trace JSON.

        Open the file in Perfetto, or draw it with `arrowflow.plot_timeline`. The file has a track per worker with
        spans for opening, reading, decoding and each operator. Another track has the consumer's steps and waits.
        Counters show the ledger and the tuned values.

        Returns: A context manager, which writes the file when its block is left. Without a block the file is written when the epoch ends.
        """
        self._recording = Recording(path)
        if self._engine is not None:
            self._engine.timeline = self._recording.timeline
        return self._recording


_live: weakref.WeakSet[Iterator[Any]] = weakref.WeakSet()


def _forget_in_child() -> None:
    """Lets a forked child forget its items, so that it asks the engine for more, which reports the fork."""
    for each in list(_live):
        each._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _abandon(engine: Engine, progress: Progress, bar: ProgressBar | None) -> None:
    """Ends the run of an iterator that is gone; a loader may still ask how far the iterator came."""
    try:
        if engine.abandon():
            progress.final = engine.statistics()
    finally:
        if bar is not None:
            bar.close()


def statistics_of(prepared: Prepared, progress: Progress, ran: EngineStatistics | None) -> Statistics:
    """Returns the measurements of the consumer and the engine together."""
    ran = progress.final if ran is None else ran
    statistics = Statistics(
        batches=progress.delivered,
        rows=progress.rows,
        seconds=0.0 if progress.began is None else progress.last - progress.began,
        waited_seconds=progress.waited_seconds,
        first_batch_seconds=progress.first_batch_seconds,
        planning_seconds=prepared.seconds,
        ledger_budget_bytes=prepared.options.ram_budget,
        cpu_budget=prepared.options.cpu_budget,
        **{each.name: getattr(ran, each.name) for each in fields(ran)},
        history=progress.history(ran.ledger_bytes),
    )
    statistics = replace(statistics, bottleneck=bottleneck(statistics), advice=advice(statistics))
    return replace(statistics, summary=report(statistics))

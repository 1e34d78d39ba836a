"""`arrowflow bench`: how fast a pipeline delivers, and what limits it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from arrowflow.cli.files import Target, loaded
from arrowflow.cli.output import console, write_json, write_text
from arrowflow.clock import WallClock
from arrowflow.dataset import Dataset
from arrowflow.errors import counted, printable
from arrowflow.observe.whole_file import check_folder
from arrowflow.ops.sources.files.read import Read
from arrowflow.optional import optional
from arrowflow.plan.walk import post_order

_CLOCK: Final = WallClock()


@dataclass(slots=True)
class Measured:
    """The epochs that ran.

    Attributes:
        epochs: The whole ones; rows, batches and times are those of all.
        seconds: The time from the first batch that was asked for.
        waited_seconds: The part of it that was spent in waiting for batches.
        epoch_seconds: The shortest time of a whole epoch.
        latest: The `Statistics` of the last whole epoch; of the one with the most rows where none was whole.
        explained: The report of that epoch.
    """

    epochs: int = 0
    rows: int = 0
    batches: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    epoch_seconds: float | None = None
    latest: Any = None
    explained: str = ""


def run(
    target: str, *, seconds: float, live: bool, verbose: bool, report: Path | None, as_json: bool
) -> bool:
    """Measures a pipeline; finds nothing to stop at."""
    if report is not None:
        check_folder(report, operator="bench", name="report")
    found = loaded("bench", target)
    with _screen(live) as draw:
        measured = measure(found, seconds, draw, verbose=verbose)
    bare = None if measured.epoch_seconds is None else _bare_seconds(found, seconds)
    if report is not None:
        _write_report(found, report, seconds)
    if as_json:
        write_json(_facts(measured, bare))
    else:
        _show(measured, bare)
        if report is not None:
            write_text("", f"one more epoch is in the report {report}")
    return False


def measure(target: Target, seconds: float, draw: Any, *, verbose: bool = False) -> Measured:
    """Runs epochs until the time is over. The consumer does nothing with the batches, so that the pipeline is the limit."""
    found = Measured()
    while found.latest is None or found.seconds < seconds:
        with iter(target) as iterator:
            is_whole = _drain(iterator, seconds - found.seconds, draw)
            figures = iterator.stats()
            if is_whole or found.latest is None or (not found.epochs and figures.rows >= found.latest.rows):
                found.latest, found.explained = figures, iterator.explain(verbose=verbose)
        for name in ("rows", "batches", "seconds", "waited_seconds"):
            setattr(found, name, getattr(found, name) + getattr(figures, name))
        if is_whole:
            found.epochs += 1
            found.epoch_seconds = min(figures.seconds, found.epoch_seconds or figures.seconds)
        if not figures.rows:
            break
    return found


def _drain(iterator: Any, seconds: float, draw: Any = None) -> bool:
    """Takes batches until the time is over; returns whether the epoch ended before."""
    end = due = _CLOCK.now()
    end += seconds
    for _ in iterator:
        now = _CLOCK.now()
        if now >= end:
            return False
        if draw is not None and now >= due:
            due = now + 0.5  # seconds
            draw(iterator)
    return True


def _bare_seconds(target: Target, seconds: float) -> float | None:
    """Returns the time that the source of a plan takes alone, for the same columns; None if it has no single source of files."""
    if not isinstance(target, Dataset):
        return None
    sources = [node for node in post_order(target._ready().optimised) if not node.inputs]
    if len(sources) != 1 or not isinstance(sources[0], Read):
        return None
    return measure(Dataset(sources[0]), seconds, None).epoch_seconds


def _write_report(target: Target, path: Path, seconds: float) -> None:
    """Runs one more epoch, or a part of it, and writes its report. Its trace is in no figure of the others."""
    with tempfile.TemporaryDirectory() as folder, iter(target) as iterator:
        trace = Path(folder, "trace.json")
        with iterator.trace(trace):
            _drain(iterator, seconds)
        iterator.report(path, trace=trace if iterator.stats().rows else None)


@contextmanager
def _screen(live: bool) -> Iterator[Any]:
    """Shows the report of an iterator while it runs."""
    if not live:
        yield None
        return
    text = optional("rich.text", user="arrowflow", extra="cli").Text
    with optional("rich.live", user="arrowflow", extra="cli").Live(
        console=console(), auto_refresh=False, transient=True
    ) as screen:
        yield lambda iterator: screen.update(text(printable(iterator.explain())), refresh=True)


def _facts(measured: Measured, bare: float | None) -> dict[str, Any]:
    stages = [
        {name: getattr(stage, name) for name in ("operators", "busy_seconds", "cpu_seconds")}
        | {name: getattr(stage.limits, name) for name in ("max_calls", "max_ready_items", "reason")}
        for stage in measured.latest.stages[::-1]
    ]
    return {
        **{
            name: getattr(measured, name)
            for name in ("rows", "batches", "epochs", "seconds", "epoch_seconds")
        },
        "rows_per_second": measured.rows / measured.seconds if measured.seconds else 0.0,
        "waiting_share": measured.waited_seconds / measured.seconds if measured.seconds else 0.0,
        "bare_decode_seconds": bare,
        "bottleneck": measured.latest.bottleneck,
        "advice": measured.latest.advice,
        "stages": stages,
    }


def _show(measured: Measured, bare: float | None) -> None:
    rate = measured.rows / measured.seconds if measured.seconds else 0.0
    write_text(
        f"{rate:,.0f} rows/s: {counted(measured.rows, 'row')} in {counted(measured.batches, 'batch')}, "
        f"{measured.seconds:.1f} s, {counted(measured.epochs, 'whole epoch')}"
    )
    if measured.epoch_seconds is None:
        write_text("no epoch ended in that time; --seconds gives it more")
    elif bare is not None:
        write_text(
            f"an epoch took {measured.epoch_seconds:.2f} s; to decode its columns alone takes {bare:.2f} s, "
            f"{bare / measured.epoch_seconds:.0%} of that"
        )
    write_text(
        "", "the last whole epoch:" if measured.epochs else "that epoch:", *measured.explained.splitlines()
    )

"""`ProgressBar`, which `Options(progress=True)` shows; tqdm draws it on a terminal or in a notebook.

The bar gets a call for every batch and draws ten times a second. Where nobody looks, in a log file or a pipe, it
draws nothing. tqdm is imported with the first bar, since tqdm imports asyncio.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TextIO

from arrowflow.interrupts import interruption

logger = logging.getLogger("arrowflow")

WIDE: Final = 100
NARROW: Final = 72
"""Columns of a terminal from which everything has room, and under which the bar itself and the time have none."""

COUNTS: Final = ("", "k", "M", "G", "T")
BYTES: Final = (" B", " KiB", " MiB", " GiB", " TiB")


class Mark(NamedTuple):
    """How far a run is.

    Attributes:
        rows: Rows delivered so far.
        waited_seconds: Time that the consumer has waited for these rows.
        seconds: Time since the consumer asked for the first row.
        ledger_bytes: Bytes charged now.
    """

    rows: int = 0
    waited_seconds: float = 0.0
    seconds: float = 0.0
    ledger_bytes: int = 0


class ProgressBar:
    r"""The progress of an epoch on the screen, from its start on; the last line stays there.

    While the epoch runs, rate and waiting are those of the last seconds; in the end they are those of the whole
    epoch. An error of the screen is logged for debugging, and nothing more is drawn. `update` is for the consumer's
    thread, `close` for any thread and for finalizers.

    Args:
        total_rows: Rows of the epoch, or None where only running it tells.
        epoch: Number of the epoch; or what is done with one, such as "fit": then waiting and memory are not shown.
        file: The stream to draw on, of whatever kind. By default `sys.stderr`, if that is a terminal or belongs to a
            notebook.

    Examples:
        >>> import io
        >>> screen = io.StringIO()
        >>> bar = ProgressBar(1_000_000, 2, file=screen)
        >>> bar.update(500_000, now=7.5, waited_seconds=0.06, seconds=0.5, ledger_bytes=48 << 20)
        >>> bar.close()
        >>> print(screen.getvalue().split("\r")[-1].strip())
        epoch 2:  50%|#####     | 500,000 rows [00:00, 1.0M rows/s, waiting 12 %, memory 48 MiB]
    """

    __slots__ = ("_bar", "_due", "_interval_seconds", "_latest", "_marks")

    def __init__(self, total_rows: int | None, epoch: int | str, *, file: TextIO | None = None) -> None:
        self._bar: Any = None
        self._interval_seconds = math.inf
        self._due = -math.inf
        self._latest: tuple[int, float, float, int] = Mark()
        self._marks = deque([Mark()], maxlen=50)  # of 5 s: rate and waiting are taken over these redraws
        self._try(lambda: self._open(total_rows, epoch, file))

    def _open(self, total_rows: int | None, epoch: int | str, file: TextIO | None) -> None:
        # A person sees `sys.stderr` at once on a terminal, or in a notebook, whose stream is no terminal.
        is_notebook, screen = "ipykernel.zmqshell" in sys.modules, sys.stderr
        if file is None and not (is_notebook or (screen is not None and screen.isatty())):
            return
        is_epoch = isinstance(epoch, int)
        bar = _bar_type()(
            is_epoch=is_epoch,
            desc=f"epoch {epoch}" if is_epoch else epoch,
            total=total_rows,
            unit="rows",
            dynamic_ncols=True,
            delay=0,
            file=file,
        )
        if not bar.disable:  # by TQDM_DISABLE=1
            self._bar, self._interval_seconds = bar, bar.mininterval

    def update(self, rows: int, now: float, waited_seconds: float, seconds: float, ledger_bytes: int) -> None:
        """Takes the progress of the run, as in a `Mark`, and the time by any clock.

        Called after each batch: 0.2 µs, unless it is time to draw.
        """
        self._latest = (rows, waited_seconds, seconds, ledger_bytes)
        if now >= self._due:
            self._due = now + self._interval_seconds
            self._try(self._redraw)

    def close(self) -> None:
        """Draws the numbers of the latest `update` for good, and ends the line. May be called again."""
        bar, self._bar = self._bar, None
        if bar is not None:
            self._due = math.inf
            self._try(lambda: self._end(bar))

    def _redraw(self) -> None:
        bar = self._bar
        if bar is not None:
            self._fill(bar, since=self._marks[0])
            self._marks.append(bar.latest)
            bar.refresh()

    def _end(self, bar: Any) -> None:
        bar.over = True
        self._fill(bar, since=Mark())
        bar.close()

    def _fill(self, bar: Any, *, since: Mark) -> None:
        bar.since, bar.latest = since, Mark(*self._latest)
        bar.n = bar.latest.rows

    def _try(self, draw: Callable[[], None]) -> None:
        try:
            draw()
        except Exception as error:
            if interruption(error) is not None:
                raise
            # The training goes on, whatever a screen does wrong.
            logger.debug("no progress bar from here on: %s", error, exc_info=error)
            self._bar = None


@functools.cache
def _bar_type() -> Any:
    """Returns tqdm's bar class for this terminal or notebook, extended to show marks."""
    base: Any = importlib.import_module("tqdm.auto").tqdm

    class Bar(base):
        # A thread of tqdm's own would draw bars that are not updated for 10 s.
        monitor_interval = 0
        since = latest = Mark()
        over = False

        def __init__(self, *, is_epoch: bool, **arguments: Any) -> None:
            self.is_epoch = is_epoch  # before the first frame, which tqdm's own draws
            super().__init__(**arguments)

        @property
        def format_dict(self) -> dict[str, Any]:
            fields: dict[str, Any] = super().format_dict
            about = {"endless": not self.total, "over": self.over, "is_epoch": self.is_epoch}
            form = _format(fields["ncols"] or WIDE, **about)
            return fields | {"bar_format": form} | _shown(self.n, self.total, self.since, self.latest)

        def refresh(self, nolock: bool = False, lock_args: Any = None) -> None:
            # tqdm's own keeps the lock if drawing fails.
            with self.get_lock():
                if not self.disable:
                    self.display()

        def __del__(self) -> None:
            # tqdm's own `__del__` draws in any thread, and nobody hears of its errors.
            pass

    # tqdm makes a lock for several processes of this one, which fixes the start method of multiprocessing for good.
    Bar.set_lock(importlib.import_module("tqdm.std").TqdmDefaultWriteLock.th_lock)
    return Bar


def _format(columns: int, *, endless: bool, over: bool, is_epoch: bool) -> str:
    """Returns the format of a bar for a terminal of so many columns.

    `endless` means that the rows of the epoch are not known, `is_epoch` that somebody waits for them.
    """
    narrow = columns < NARROW
    head = "{desc}: " if endless else "{desc}: {percentage:3.0f}% " if narrow else "{l_bar}{bar}| "
    rows = (
        ("{exact}" if narrow else "{exact} rows")
        if over
        else "{counted} rows"
        if endless
        else "{counted}/{expected}"
    )
    times = ["{elapsed}"] if columns >= WIDE or over or endless else []
    times += [] if over or endless else ["{remaining}"]
    time = "" if narrow else f"{'<'.join(times)}, "
    speed = "{speed} rows/s" if columns >= WIDE else "{speed}/s"
    memory = "{memory}" if narrow else "memory {memory}"
    return f"{head}{rows} [{time}{speed}" + (f", waiting {{waiting}}, {memory}]" if is_epoch else "]")


def _shown(rows: int, total_rows: int | None, since: Mark, latest: Mark) -> dict[str, Any]:
    """Returns the fields of the bar's formats, and of those fields that tqdm takes from its own clock."""
    seconds = latest.seconds - since.seconds
    rate = (latest.rows - since.rows) / seconds if seconds > 0 else None
    waited = (latest.waited_seconds - since.waited_seconds) / seconds if seconds > 0 else None
    return {
        "elapsed": latest.seconds,
        "rate": rate,
        "counted": scaled(rows, 1000, COUNTS),
        "expected": scaled(total_rows or 0, 1000, COUNTS),
        "exact": f"{rows:,}",
        "speed": "?" if rate is None else scaled(rate, 1000, COUNTS),
        "waiting": "?" if waited is None else f"{waited:.0%}".replace("%", " %"),
        "memory": scaled(latest.ledger_bytes, 1024, BYTES),
    }


def scaled(value: float, step: int, units: Sequence[str]) -> str:
    """Returns a number with its unit; a number under 10 of a larger unit has one decimal."""
    power = 0
    while value >= step - 0.5 and power < len(units) - 1:
        value /= step
        power += 1
    return f"{value:.{int(power > 0 and value < 9.95)}f}{units[power]}"

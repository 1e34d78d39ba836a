"""`ProgressBar`: what `Options(progress=True)` shows, drawn by tqdm on a terminal or in a notebook.

It is told of every batch and draws ten times a second. Where nobody looks, in a log file or a pipe, it draws nothing.
tqdm is imported with the first bar, since it imports asyncio.
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

RECENT_REDRAWS: Final = 50
"""How far back the rate and the waiting go that are shown while it runs: 5 s."""

_SPEED: Final = "{speed} rows/s, waiting {waiting}, ledger {ledger}]"
RUNNING: Final = "{desc}: {counted} rows [{elapsed}, " + _SPEED
RUNNING_TO: Final = "{l_bar}{bar}| {counted}/{expected} [{elapsed}<{remaining}, " + _SPEED
ENDED: Final = "{desc}: {exact} rows [{elapsed}, " + _SPEED
ENDED_OF: Final = "{l_bar}{bar}| {exact} rows [{elapsed}, " + _SPEED

COUNTS: Final = ("", "k", "M", "G", "T")
BYTES: Final = (" B", " KiB", " MiB", " GiB", " TiB")


class Mark(NamedTuple):
    """How far a run is.

    Attributes:
        rows: Rows delivered so far.
        waited_seconds: Time that the consumer has waited for them.
        seconds: Time since it asked for the first of them.
        ledger_bytes: Bytes charged now.
    """

    rows: int = 0
    waited_seconds: float = 0.0
    seconds: float = 0.0
    ledger_bytes: int = 0


class ProgressBar:
    r"""How far an epoch is, on the screen from its start on; the last line stays there.

    While it runs, rate and waiting are those of the last seconds; in the end they are those of the whole. What goes
    wrong with the screen is logged for debugging, and nothing more is drawn. `update` is for the consumer's thread,
    `close` for any, and for finalizers.

    Args:
        total_rows: Rows of the epoch, or None where only running it tells.
        epoch: Its number.
        initial_rows: Rows of it that an earlier run delivered, from whose state this one goes on.
        file: Where to draw, whatever it is, instead of `sys.stderr` if that is a terminal or belongs to a notebook.

    Example:
        >>> import io
        >>> screen = io.StringIO()
        >>> bar = ProgressBar(1_000_000, 2, file=screen)
        >>> bar.update(500_000, now=7.5, waited_seconds=0.06, seconds=0.5, ledger_bytes=48 << 20)
        >>> bar.close()
        >>> print(screen.getvalue().split("\r")[-1].strip())
        epoch 2:  50%|#####     | 500,000 rows [00:00, 1.0M rows/s, waiting 12 %, ledger 48 MiB]
    """

    __slots__ = ("_bar", "_due", "_initial_rows", "_interval_seconds", "_latest", "_marks")

    def __init__(
        self, total_rows: int | None, epoch: int, *, initial_rows: int = 0, file: TextIO | None = None
    ) -> None:
        self._bar: Any = None
        self._initial_rows = initial_rows
        self._interval_seconds = math.inf
        self._due = -math.inf
        self._latest: tuple[int, float, float, int] = Mark()
        self._marks = deque([Mark()], maxlen=RECENT_REDRAWS)
        self._try(lambda: self._open(total_rows, epoch, file))

    def _open(self, total_rows: int | None, epoch: int, file: TextIO | None) -> None:
        if file is None and not _somebody_looks():
            return
        bar = _bar_type()(
            desc=f"epoch {epoch}",
            total=total_rows,
            initial=self._initial_rows,
            unit="rows",
            bar_format=RUNNING_TO if total_rows else RUNNING,
            delay=0,
            file=file,
        )
        if not bar.disable:  # by TQDM_DISABLE=1
            self._bar, self._interval_seconds = bar, bar.mininterval

    def update(self, rows: int, now: float, waited_seconds: float, seconds: float, ledger_bytes: int) -> None:
        """Tells how far the run is. Called after each batch: 0.2 µs, unless it is time to draw.

        Args:
            rows: Rows that this run has delivered of the epoch.
            now: The time, by any clock.
            waited_seconds: Time that the consumer has waited for them.
            seconds: Time since it asked for the first of them.
            ledger_bytes: Bytes charged now.
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
        bar.bar_format = ENDED_OF if bar.total else ENDED
        self._fill(bar, since=Mark())
        bar.close()

    def _fill(self, bar: Any, *, since: Mark) -> None:
        bar.since, bar.latest = since, Mark(*self._latest)
        bar.n = self._initial_rows + bar.latest.rows

    def _try(self, draw: Callable[[], None]) -> None:
        try:
            draw()
        except Exception as error:
            if interruption(error) is not None:
                raise
            # Whatever a screen does wrong, the training goes on.
            logger.debug("no progress bar from here on: %s", error, exc_info=error)
            self._bar = None


def _somebody_looks() -> bool:
    """Whether what is written to `sys.stderr` is seen at once: by a terminal, or by a notebook, which says it is none."""
    screen = sys.stderr
    return "ipykernel.zmqshell" in sys.modules or (screen is not None and screen.isatty())


@functools.cache
def _bar_type() -> Any:
    """Returns tqdm's bar for this terminal or notebook, made to show marks."""
    base: Any = importlib.import_module("tqdm.auto").tqdm

    class Bar(base):
        # A thread of tqdm's own would draw bars that are not updated for 10 s.
        monitor_interval = 0
        since = latest = Mark()

        @property
        def format_dict(self) -> dict[str, Any]:
            return super().format_dict | _shown(self.n, self.total, self.since, self.latest)

        def refresh(self, nolock: bool = False, lock_args: Any = None) -> None:
            # tqdm's own keeps the lock if drawing fails.
            with self.get_lock():
                if not self.disable:
                    self.display()

        def __del__(self) -> None:
            # tqdm's own draws, in whatever thread it is, and has nobody to tell what goes wrong.
            pass

    # tqdm makes a lock for several processes of this one, which fixes the start method of multiprocessing for good.
    Bar.set_lock(importlib.import_module("tqdm.std").TqdmDefaultWriteLock.th_lock)
    return Bar


def _shown(rows: int, total_rows: int | None, since: Mark, latest: Mark) -> dict[str, Any]:
    """Returns the fields of the formats above, and those of tqdm's that come from its own clock otherwise."""
    seconds = latest.seconds - since.seconds
    rate = (latest.rows - since.rows) / seconds if seconds > 0 else None
    waited = (latest.waited_seconds - since.waited_seconds) / seconds if seconds > 0 else None
    return {
        "elapsed": latest.seconds,
        "rate": rate,
        "counted": _scaled(rows, 1000, COUNTS),
        "expected": _scaled(total_rows or 0, 1000, COUNTS),
        "exact": f"{rows:,}",
        "speed": "?" if rate is None else _scaled(rate, 1000, COUNTS),
        "waiting": "?" if waited is None else f"{waited:.0%}".replace("%", " %"),
        "ledger": _scaled(latest.ledger_bytes, 1024, BYTES),
    }


def _scaled(value: float, step: int, units: Sequence[str]) -> str:
    """Returns a number with its unit, and one decimal where it has only one digit in front of that."""
    power = 0
    while value >= step - 0.5 and power < len(units) - 1:
        value /= step
        power += 1
    return f"{value:.{int(power > 0 and value < 9.95)}f}{units[power]}"

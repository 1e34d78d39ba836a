"""`Timeline` records the spans of a run and writes them as a Chrome trace, which `plot.py` draws.

Times are seconds of the engine's clock; nothing here reads a clock. Spans are named for steps: `open`, `read`,
`decode`, then operators as the plan names them. The track `consumer` has `export`, `wait` (inside `next()`) and
`step` (between two calls of `next()`).
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from arrowflow.observe.whole_file import write_whole

CONSUMER: Final = "consumer"
"""The track of the thread that calls `next()`."""

_Event = tuple[str, str, float, float, str, str, dict[str, Any] | None]
"""Phase, name, time, end or value, track, operator, arguments."""

_encode: Final = json.JSONEncoder(allow_nan=False).encode


class Timeline:
    """Records the steps of a run, from any thread and without a lock, for Perfetto and `plot_timeline`.

    Attributes:
        max_events: The most events that are kept. Later events are only counted, and the file says how many.

    Examples:
        >>> import json, pathlib, tempfile
        >>> timeline = Timeline()
        >>> timeline.span("worker-0", "read", began=10.0, ended=10.25, operator="read_parquet", rows=8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     timeline.write(pathlib.Path(folder) / "trace.json")
        ...     trace = json.loads(pathlib.Path(folder, "trace.json").read_text())
        >>> trace["traceEvents"][-1]["name"], trace["traceEvents"][-1]["dur"]
        ('read', 250000.0)
    """

    __slots__ = ("_drops", "_events", "_latest", "_num_looks", "max_events")

    def __init__(self, *, max_events: int = 1_000_000) -> None:
        self.max_events = max_events
        # An append is atomic; the check before it is not: threads that record at once may keep one more each.
        self._events: list[_Event] = []
        self._latest: dict[str, float] = {}
        # `next` of it is atomic, `+= 1` is not.
        self._drops = itertools.count()
        self._num_looks = 0

    def span(
        self, track: str, name: str, began: float, ended: float, operator: str = "", **arguments: Any
    ) -> None:
        """Records a call on a track: a worker's name, or `consumer`. Spans of one track nest or follow each other."""
        events = self._events
        if len(events) < self.max_events:
            # None instead of an empty dict: 64 bytes less, and the garbage collector need not look at the tuple.
            events.append(("X", name, began, ended, track, operator, arguments or None))
        else:
            next(self._drops)

    def counter(self, name: str, now: float, value: float) -> None:
        """Records the value of a number from now on; an unchanged value is left out.

        One thread at a time per name.
        """
        if self._latest.get(name) != value and math.isfinite(value):
            self._latest[name] = value
            self._add("C", name, now, value)

    def epoch(self, number: int, now: float) -> None:
        """Records that an epoch starts."""
        self._add("i", f"epoch {number}", now, number)

    def _add(self, phase: str, name: str, now: float, value: float) -> None:
        if len(self._events) < self.max_events:
            self._events.append((phase, name, now, value, "", "", None))
        else:
            next(self._drops)

    def take(self) -> list[_Event]:
        """Returns the spans that were recorded so far, and forgets them. One thread at a time."""
        events = self._events
        count = len(events)
        taken = [event for event in events[:count] if event[0] == "X"]
        del events[:count]  # in one step: other threads go on to append
        return taken

    def merge(self, spans: Sequence[_Event], place: str, ahead_seconds: float) -> None:
        """Adds what `take` of another process returned.

        Args:
            spans: The spans.
            place: The process: tracks begin with it.
            ahead_seconds: By how much its clock is ahead of the clock of this timeline.
        """
        for _, name, began, ended, track, operator, arguments in spans:
            track = f"{place}: {track}"
            self.span(
                track, name, began - ahead_seconds, ended - ahead_seconds, operator, **(arguments or {})
            )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace as JSON. The file appears when it is complete, and a run may go on meanwhile.

        Raises:
            SourceError: The folder does not exist, or cannot be written to.
        """
        write_whole(path, self._lines(), operator="write", name="trace")

    def _lines(self) -> Iterator[str]:
        # A span comes before the spans inside of it: it begins no later and ends no earlier.
        events = sorted(self._events.copy(), key=lambda event: (event[2], -event[3]))
        origin = events[0][2] if events else 0.0
        tracks = sorted({event[4] for event in events if event[0] == "X"}, key=_place_of_track)
        threads = {track: number for number, track in enumerate(tracks, start=1)}
        about = {"max_events": self.max_events, "dropped_events": next(self._drops) - self._num_looks}
        self._num_looks += 1  # the look at the counter counted, too
        yield f'{{"displayTimeUnit": "ms", "otherData": {_encode(about)}, "traceEvents": [\n'
        yield _encode({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "arrowflow"}})
        for track, thread in threads.items():
            named = {"ph": "M", "pid": 1, "tid": thread}
            yield ",\n" + _encode({**named, "name": "thread_name", "args": {"name": track}})
            yield ",\n" + _encode({**named, "name": "thread_sort_index", "args": {"sort_index": thread}})
        for event in events:
            yield ",\n" + _encode(_chrome_event(event, origin, threads))
        yield "\n]}\n"


def _chrome_event(event: _Event, origin: float, threads: Mapping[str, int]) -> dict[str, Any]:
    phase, name, at, end, track, operator, arguments = event
    made: dict[str, Any] = {"ph": phase, "name": name, "pid": 1, "ts": _microseconds(at - origin)}
    if phase == "C":
        return made | {"args": {"value": end}}
    if phase == "i":
        return made | {"s": "g", "args": {"epoch": end}}
    # From rounded ends, so that a span never reaches out of the one around it.
    duration = max(round(_microseconds(end - origin) - made["ts"], 3), 0.0)
    plain = {key: _plain(value) for key, value in (arguments or {}).items()}
    return made | {"tid": threads[track], "cat": operator or name, "dur": duration, "args": plain}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _plain(value: Any) -> Any:
    known = value is None or isinstance(value, bool | int | str)
    return value if known or (isinstance(value, float) and math.isfinite(value)) else str(value)


def _place_of_track(track: str) -> tuple[bool, list[str | int]]:
    """Sorts the consumer first, and worker 10 after worker 9."""
    parts = re.split(r"(\d+)", track)
    return track != CONSUMER, [int(part) if place % 2 else part for place, part in enumerate(parts)]


class Recording:
    """A timeline on its way to a file, which `trace` returns. A context manager.

    The file is written when the `with` block is left; without a block, at the end of each epoch.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.timeline = Timeline()
        self.path = path
        self._entered = False

    def __enter__(self) -> Self:
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.write()

    def end_epoch(self) -> None:
        """Called when a run has ended."""
        if not self._entered:
            self.write()

    def write(self) -> None:
        """Writes the timeline so far; the file is replaced as a whole.

        Raises:
            SourceError: The folder does not exist, or cannot be written to.
        """
        self.timeline.write(self.path)

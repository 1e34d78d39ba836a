"""Reads a trace, and puts its spans into the rows and lanes of a picture."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from arrowflow.autotune.limit import WANTS_MORE
from arrowflow.errors import ArrowflowError, SourceError

LEAST_SHARE: Final = 0.02
_NUMBER: Final = int | float
# Okabe and Ito's colours, which colour-blind people tell apart.
_COLOURS: Final = {
    "open": "#E69F00",
    "read": "#56B4E9",
    "decode": "#009E73",
    "step": "#0072B2",
    "export": "#777777",
}
_FUNCTIONS: Final = ("map", "map_rows", "flat_map", "scan", "filter", "group_by_window", "interleave")
"""Operators that call a user's function, with the function's name in their title."""


class Bar(NamedTuple):
    """One span, or several spans within a pixel: `busy` is the time that they take together."""

    began: float
    ended: float
    busy: float


class Trace(NamedTuple):
    """The drawn part of a trace. Times are in `unit`, from the start; bars are in order of time."""

    steps: dict[str, list[Bar]]
    epochs: list[tuple[float, int]]
    length: float
    unit: str
    num_dropped: int


def read_trace(trace: str | os.PathLike[str] | Mapping[str, Any], operator: str) -> Trace:
    """Returns the drawn part of a trace: of its file, or of what the file holds.

    Raises:
        SourceError: The file does not exist, or is no trace with spans.
    """
    where = None if isinstance(trace, Mapping) else str(trace)
    try:
        loaded = trace if isinstance(trace, Mapping) else json.loads(Path(trace).read_bytes())
    except OSError as error:
        raise SourceError(f"{operator}: the trace cannot be read: {error}") from error
    except ValueError as error:
        raise _no_trace(f"JSON, found something else ({error})", operator, where) from error
    events = loaded.get("traceEvents") if isinstance(loaded, Mapping) else None
    if not isinstance(events, list):
        raise _no_trace("a JSON object with a list 'traceEvents', found none", operator, where)
    spans = [event for event in events if _has(event, "X", ts=_NUMBER, dur=_NUMBER, name=str)]
    if not spans:
        raise _no_trace(
            f"spans (events with 'ph': 'X'), found none among {len(events)} events", operator, where
        )
    marks = [event for event in events if _has(event, "i", ts=_NUMBER, args=Mapping)]
    about = loaded.get("otherData")
    return _trace(
        sorted(spans, key=lambda event: event["ts"]),
        [mark for mark in marks if isinstance(mark["args"].get("epoch"), int)],
        about.get("dropped_events", 0) if isinstance(about, Mapping) else 0,
    )


def _no_trace(expected: str, operator: str, where: str | None) -> ArrowflowError:
    text = f"expected a trace as Timeline.write makes it: {expected}"
    return SourceError(text).locate(operator=operator, file=where)


def _has(event: Any, phase: str, **types: Any) -> bool:
    """Tells whether an event, of whatever program, has this phase and values of these types."""
    if not isinstance(event, Mapping) or event.get("ph") != phase:
        return False
    return all(isinstance(event.get(key), kind) for key, kind in types.items())


def _trace(spans: list[dict[str, Any]], marks: list[dict[str, Any]], num_dropped: int) -> Trace:
    start = min(event["ts"] for event in spans + marks)
    length = max(1.0, max(event["ts"] + event["dur"] for event in spans) - start)
    unit, scale = ("ms", 1e-3) if length < 1e6 else ("s", 1e-6)
    steps: dict[str, list[Bar]] = {}
    for span in spans:
        began, took = span["ts"] - start, span["dur"]
        bar = Bar(began * scale, (began + took) * scale, took * scale)
        steps.setdefault(span["name"], []).append(bar)
    epochs = sorted(((mark["ts"] - start) * scale, mark["args"]["epoch"]) for mark in marks)
    return Trace(steps, epochs, length * scale, unit, num_dropped)


def rows_of(read: Trace) -> tuple[dict[str, list[list[Bar]]], list[str]]:
    """Returns the lanes of each row from top to bottom, and the titles of the rows that are left out."""
    order = ("open", "read", "decode", "", "export", "step")
    # Between head and tail as they started: a step starts when the one in front of it has made something.
    present = dict.fromkeys(["step" if name == "wait" else name for name in read.steps])
    names = sorted(present, key=lambda name: order.index(name if name in order else ""))
    rows, left_out = {}, []
    for name in names:
        bars = read.steps.get(name, [])
        if name == "step" or sum(bar.busy for bar in bars) >= LEAST_SHARE * read.length:
            rows[name] = _lanes(bars, read.length * 1e-9)
        else:
            left_out.append(title_of(name))
    return rows, left_out


def _lanes(bars: Iterable[Bar], rounding: float) -> list[list[Bar]]:
    """Puts each bar into the first lane that is free when it begins."""
    lanes: list[list[Bar]] = []
    for bar in bars:
        free = next((lane for lane in lanes if lane[-1].ended <= bar.began + rounding), None)
        if free is None:
            lanes.append(free := [])
        free.append(bar)
    return lanes


def merged(bars: Iterable[Bar], pixel: float) -> list[Bar]:
    """Makes one bar of the bars within a pixel, so that at most two per pixel are left."""
    merged: list[Bar] = []
    for bar in bars:
        if merged and bar.ended - merged[-1].began <= pixel:
            began, _, busy = merged.pop()
            bar = Bar(began, bar.ended, busy + bar.busy)
        merged.append(bar)
    return merged


def limit_of(trace: Trace) -> str:
    """Returns what limits the run of a trace, in words; nothing for a trace without a loop.

    That is the loop's own step, unless it waits after its first batch, too; then it is the step that works longest.
    """
    waits, own = trace.steps.get("wait", []), trace.steps.get("step", [])
    if not waits or not own:
        return ""
    waited, stepped = sum(bar.busy for bar in waits[1:]), sum(bar.busy for bar in own)
    busy = {name: sum(bar.busy for bar in bars) for name, bars in trace.steps.items()}
    works = {name: seconds for name, seconds in busy.items() if name not in {"wait", "step"}}
    if not works or waited < WANTS_MORE * (waited + stepped):
        return "your own step limits"
    longest = max(works, key=works.__getitem__)
    return f"{title_of(longest)} limits, with {works[longest] / trace.length:.1f} calls at a time"


def title_of(name: str) -> str:
    """Returns the title of a step's row."""
    return "Train" if name == "step" else name.capitalize() if name in _COLOURS else name


def colour_of(name: str) -> str:
    """Returns the colour of a kind of work, the same in all pictures: a user's functions have one, other operators too."""
    operator, bracket, _ = name.partition("(")
    calls = bracket and operator in _FUNCTIONS
    return _COLOURS.get(name, "#CC79A7" if calls else "#D55E00")

"""`plot_timeline`: the picture of a trace that the tf.data performance guide draws."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from arrowflow.errors import ArrowflowError, SourceError
from arrowflow.optional import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEAD: Final = ("open", "read", "decode")
_TAIL: Final = ("export", "step")
_LEAST_SHARE: Final = 0.02
_GAP: Final = 0.25
_NUMBER: Final = int | float
# Okabe and Ito's colours, which colour-blind people tell apart.
_COLOURS: Final = {
    "open": "#E69F00",
    "read": "#56B4E9",
    "decode": "#009E73",
    "step": "#0072B2",
    "export": "#777777",
}
_FUNCTIONS_COLOUR: Final = "#CC79A7"
_OTHERS_COLOUR: Final = "#D55E00"
_FUNCTIONS: Final = ("map", "map_rows", "flat_map", "scan", "filter", "group_by_window", "interleave")
"""Operators that call a user's function, with the function's name in their title."""


class _Bar(NamedTuple):
    """One span, or several spans within a pixel: `busy` is the time that they take together."""

    began: float
    ended: float
    busy: float


class _Trace(NamedTuple):
    """The drawn part of a trace. Times are in `unit`, from the start; bars are in order of time."""

    steps: dict[str, list[_Bar]]
    epochs: list[tuple[float, int]]
    length: float
    unit: str
    num_dropped: int


def plot_timeline(trace: str | os.PathLike[str] | Mapping[str, Any], *, ax: Axes | None = None) -> Figure:
    """Draws when each step of a pipeline worked: one row a step, in the order of the pipeline, training last.

    Calls that ran at the same time lie in lanes of their row. Grey in the row *Train* is the time inside `next()`.
    Calls that share a pixel are drawn as one bar; the bar is paler, the more of it is idle. Steps that took under 2 %
    of the time are only named, under the picture. Without `ax` the figure is a new one, which pyplot does not know.

    Raises:
        MissingPackageError: Matplotlib is not installed.
        SourceError: The file does not exist, or is no trace with spans.

    Examples:
        >>> times = {"read": 0, "step": 9_000}
        >>> spans = [{"ph": "X", "name": name, "ts": ts, "dur": 9_000} for name, ts in times.items()]
        >>> figure = plot_timeline({"traceEvents": spans})  # doctest: +SKIP
        >>> figure.savefig("timeline.png")  # doctest: +SKIP
    """
    read = _read(trace)
    rows, left_out = _rows(read)
    if ax is None:
        height = 1.4 + 0.5 * sum(_height(lanes) + _GAP for lanes in rows.values())
        ax = (
            optional("matplotlib.figure", user="plot_timeline", extra="plot")
            .Figure(figsize=(11, height), layout="constrained")
            .subplots()
        )
    pixel = read.length / max(ax.bbox.width, 1.0)
    _draw_epochs(ax, read, pixel)
    _draw_rows(ax, rows, read.steps.get("wait", []), pixel)
    ax.set_xlim(0, read.length)
    waited = sum(bar.busy for bar in read.steps.get("wait", []))
    share = f", {100 * waited / read.length:.0f} % of it in next()" if waited else ""
    ax.set_title(f"{read.length:,.1f} {read.unit} in total{share}", loc="left", pad=24)
    notes = [f"under {100 * _LEAST_SHARE:.0f} % of the time each: {', '.join(left_out)}"] if left_out else []
    notes += [f"{read.num_dropped:,} later events were not kept"] if read.num_dropped else []
    ax.set_xlabel("\n".join([f"time in {read.unit}", *notes]))
    return cast("Figure", ax.figure)


def _read(trace: str | os.PathLike[str] | Mapping[str, Any]) -> _Trace:
    where = None if isinstance(trace, Mapping) else str(trace)
    try:
        loaded = trace if isinstance(trace, Mapping) else json.loads(Path(trace).read_bytes())
    except OSError as error:
        raise SourceError(f"plot_timeline: the trace cannot be read: {error}") from error
    except ValueError as error:
        raise _no_trace(f"JSON, found something else ({error})", where) from error
    events = loaded.get("traceEvents") if isinstance(loaded, Mapping) else None
    if not isinstance(events, list):
        raise _no_trace("a JSON object with a list 'traceEvents', found none", where)
    spans = [event for event in events if _has(event, "X", ts=_NUMBER, dur=_NUMBER, name=str)]
    if not spans:
        raise _no_trace(f"spans (events with 'ph': 'X'), found none among {len(events)} events", where)
    marks = [event for event in events if _has(event, "i", ts=_NUMBER, args=Mapping)]
    about = loaded.get("otherData")
    return _trace(
        sorted(spans, key=lambda event: event["ts"]),
        [mark for mark in marks if isinstance(mark["args"].get("epoch"), int)],
        about.get("dropped_events", 0) if isinstance(about, Mapping) else 0,
    )


def _no_trace(expected: str, where: str | None) -> ArrowflowError:
    text = f"expected a trace as Timeline.write makes it: {expected}"
    return SourceError(text).locate(operator="plot_timeline", file=where)


def _has(event: Any, phase: str, **types: Any) -> bool:
    """Tells whether an event, of whatever program, has this phase and values of these types."""
    if not isinstance(event, Mapping) or event.get("ph") != phase:
        return False
    return all(isinstance(event.get(key), kind) for key, kind in types.items())


def _trace(spans: list[dict[str, Any]], marks: list[dict[str, Any]], num_dropped: int) -> _Trace:
    start = min(event["ts"] for event in spans + marks)
    length = max(1.0, max(event["ts"] + event["dur"] for event in spans) - start)
    unit, scale = ("ms", 1e-3) if length < 1e6 else ("s", 1e-6)
    steps: dict[str, list[_Bar]] = {}
    for span in spans:
        began, took = span["ts"] - start, span["dur"]
        bar = _Bar(began * scale, (began + took) * scale, took * scale)
        steps.setdefault(span["name"], []).append(bar)
    epochs = sorted(((mark["ts"] - start) * scale, mark["args"]["epoch"]) for mark in marks)
    return _Trace(steps, epochs, length * scale, unit, num_dropped)


def _rows(read: _Trace) -> tuple[dict[str, list[list[_Bar]]], list[str]]:
    """Returns the lanes of each row from top to bottom, and the titles of the rows that are left out."""
    order = (*_HEAD, "", *_TAIL)
    # Between head and tail as they started: a step starts when the one in front of it has made something.
    present = dict.fromkeys(["step" if name == "wait" else name for name in read.steps])
    names = sorted(present, key=lambda name: order.index(name if name in order else ""))
    rows, left_out = {}, []
    for name in names:
        bars = read.steps.get(name, [])
        if name == "step" or sum(bar.busy for bar in bars) >= _LEAST_SHARE * read.length:
            rows[name] = _lanes(bars, read.length * 1e-9)
        else:
            left_out.append(_title(name))
    return rows, left_out


def _lanes(bars: Iterable[_Bar], rounding: float) -> list[list[_Bar]]:
    """Puts each bar into the first lane that is free when it begins."""
    lanes: list[list[_Bar]] = []
    for bar in bars:
        free = [lane for lane in lanes if lane[-1].ended <= bar.began + rounding][:1]
        if not free:
            free = [[]]
            lanes += free
        free[0].append(bar)
    return lanes


def _merged(bars: Iterable[_Bar], pixel: float) -> list[_Bar]:
    """Makes one bar of the bars within a pixel, so that at most two per pixel are left."""
    merged: list[_Bar] = []
    for bar in bars:
        if merged and bar.ended - merged[-1].began <= pixel:
            began, _, busy = merged.pop()
            bar = _Bar(began, bar.ended, busy + bar.busy)
        merged.append(bar)
    return merged


def _title(name: str) -> str:
    return "Train" if name == "step" else name.capitalize() if name in _COLOURS else name


def _colour(name: str) -> str:
    """Returns the colour of a kind of work, the same in all pictures: a user's functions have one, other operators too."""
    operator, bracket, _ = name.partition("(")
    calls = bracket and operator in _FUNCTIONS
    return _COLOURS.get(name, _FUNCTIONS_COLOUR if calls else _OTHERS_COLOUR)


def _height(lanes: Sequence[Any]) -> float:
    return min(0.7 + 0.3 * max(len(lanes), 1), 4.0)


def _draw_epochs(ax: Axes, read: _Trace, pixel: float) -> None:
    ends = [began for began, _ in read.epochs[1:]] + [read.length]
    for place, ((began, number), ended) in enumerate(zip(read.epochs, ends, strict=False)):
        pale = ("#F4F4F4", "#FFFFFF")[place % 2]
        ax.axvspan(began, ended, color=pale, linewidth=0, zorder=0, gid=f"epoch {number}")
        num_pixels = (ended - began) / pixel
        label = f"epoch {number}" if num_pixels > 60 else f"{number}" if num_pixels > 20 else ""
        middle, above = (began + ended) / 2, ax.get_xaxis_transform()
        ax.text(middle, 1.01, label, transform=above, ha="center", va="bottom", color="#555555")


def _draw_rows(ax: Axes, rows: Mapping[str, list[list[_Bar]]], waits: list[_Bar], pixel: float) -> None:
    top, centres = 0.0, []
    for name, lanes in rows.items():
        height = _height(lanes)
        if name == "step" and waits:
            grey = {"facecolors": "#CCCCCC", "linewidths": 0, "hatch": "////"}
            _draw_bars(ax, waits, (top, height), pixel, "", gid="Wait", label="in next()", **grey)
            ax.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=1.7, frameon=False)
        colour = _colour(name)
        # The grey between two steps parts them; white edges would cover it.
        style = {"gid": _title(name)} | ({"linewidths": 0} if name == "step" and waits else {})
        for number, lane in enumerate(lanes):
            place = (top + number * height / len(lanes), height / len(lanes))
            _draw_bars(ax, lane, place, pixel, colour, **style)
        centres.append(top + height / 2)
        top += height + _GAP
    ax.set_yticks(centres, [_title(name) for name in rows])
    ax.set_ylim(top, -_GAP)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _draw_bars(
    ax: Axes, bars: list[_Bar], place: tuple[float, float], pixel: float, colour: str, **style: Any
) -> None:
    drawn = _merged(bars, pixel)
    # A pixel wide, to be seen, but not over the next one: where pale bars overlap they look busy.
    following = [*(bar.began for bar in drawn[1:]), math.inf]
    widths = [
        max(bar.ended, min(bar.began + pixel, end)) - bar.began
        for bar, end in zip(drawn, following, strict=True)
    ]
    shares = [bar.busy / (bar.ended - bar.began or 1) for bar in drawn]
    looks: dict[str, Any] = {
        "facecolors": [(colour, min(0.25 + 0.75 * share, 1.0)) for share in shares],
        "edgecolors": "white",
        "linewidths": [0.8 if width > 6 * pixel else 0.0 for width in widths],
    }
    began = [bar.began for bar in drawn]
    ax.broken_barh(list(zip(began, widths, strict=True)), place, **looks | style)

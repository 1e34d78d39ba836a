"""Pictures of a page: SVG without text, which any width stretches, and HTML beside it for the words.

So letters have the same size on a phone and on a large screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from arrowflow.errors import printable
from arrowflow.observe.traces import Bar, Trace, colour_of, merged, rows_of, title_of
from arrowflow.physical.tuning import Moment

WIDTH: Final = 1000.0
"""Units of a picture from left to right."""
MAX_STEPS: Final = 120
_HEIGHT: Final = 100.0
_LANE: Final = 10.0
MAX_LANES: Final = 16


class Series(NamedTuple):
    """A figure over time.

    Attributes:
        title: Its name.
        kind: Name of its colour.
        values: Its mean in parts of the time, which are of equal length.
        top: The largest value that the picture has room for.
        unit: Of the values, for the words.
    """

    title: str
    kind: str
    values: Sequence[float]
    top: float
    unit: str


def over_time(history: Sequence[Moment]) -> list[Series]:
    """Returns throughput, waiting and the ledger over time; nothing for a run without length."""
    if not history or history[-1].seconds <= 0:
        return []
    times = [moment.seconds for moment in history]
    steps = min(MAX_STEPS, len(history) - 1)
    rates = _rates(times, [moment.rows for moment in history], steps)
    waits = _rates(times, [moment.waited_seconds for moment in history], steps)
    held = [moment.ledger_bytes / (1 << 20) for moment in history]
    ends = np.arange(1, steps + 1) * times[-1] / steps
    # The last moment before the end of each part, but never the one at the end of the run.
    before = (np.searchsorted(times, ends, side="right") - 1).clip(0, len(times) - 2)
    return [
        Series("Throughput", "work", rates, round_up(max(rates)), "rows/s"),
        Series("Waiting", "wait", [100 * min(1.0, share) for share in waits], 100.0, "%"),
        Series("Memory of the ledger", "held", [held[place] for place in before], round_up(max(held)), "MiB"),
    ]


def _rates(times: Sequence[float], sums: Sequence[float], steps: int) -> list[float]:
    """Returns by how much a sum grew a second, in parts of equal length; between two moments it grows evenly."""
    length = times[-1] / steps
    inner = np.interp(np.arange(1, steps) * length, times, sums)
    grown = np.diff(inner, prepend=0.0, append=sums[-1])
    return [max(0.0, value) / length for value in grown.tolist()]


def round_up(value: float) -> float:
    """Returns the next round number, for the end of an axis.

    Examples:
        >>> round_up(3_200_000), round_up(0)
        (5000000.0, 1.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 5) if value <= step * power), 10 * power)


def short(value: float) -> str:
    """Returns a number in few letters.

    Examples:
        >>> short(5_000_000), short(250), short(0.5)
        ('5 M', '250', '0.5')
    """
    for factor, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def drawn_series(series: Series, seconds: float) -> Iterator[str]:
    """Yields a figure with its axes."""
    values, top = series.values, series.top
    mean = sum(values) / len(values)
    said = f"{short(mean)} {series.unit} on average, at most {short(max(values))}"
    step = WIDTH / len(values)
    heights = [f"{_HEIGHT * (1 - value / top):.1f}" for value in values]
    corners = (f"{end * step:.1f},{y}" for place, y in enumerate(heights) for end in (place, place + 1))
    line = " ".join(corners)
    yield f'<figure><figcaption><b>{series.title}</b> {said}</figcaption><div class="axes">'
    yield f'<div class="up" aria-hidden="true"><span>{short(top)}</span><span>{short(top / 2)}</span><span>0</span></div>'
    label = f"{series.title} over {short(seconds)} seconds: {said}"
    yield f'<svg class="{series.kind}" viewBox="0 0 {WIDTH:g} {_HEIGHT:g}" preserveAspectRatio="none" role="img" '
    yield f'aria-label="{label}"><path class="grid" d="M0 0H{WIDTH:g}M0 {_HEIGHT / 2:g}H{WIDTH:g}M0 {_HEIGHT:g}H{WIDTH:g}"/>'
    yield f'<polygon points="0,{_HEIGHT:g} {line} {WIDTH:g},{_HEIGHT:g}"/><polyline points="{line}"/></svg>'
    yield f"{_seconds_axis(f'{short(seconds)} s')}</div></figure>"


def _seconds_axis(end: str) -> str:
    return f'<div class="along" aria-hidden="true"><span>0</span><span>{end}</span></div>'


def drawn_timeline(trace: Trace) -> Iterator[str]:
    """Yields the rows of a timeline: when each step worked, and, hatched, when the loop waited."""
    rows, left_out = rows_of(trace)
    yield '<div class="timeline">'
    for name, lanes in rows.items():
        waits = trace.steps.get("wait", []) if name == "step" else []
        yield from _drawn_row(name, lanes, waits, trace)
    yield f"{_seconds_axis(f'{trace.length:,.1f} {trace.unit}')}</div>"
    if left_out:
        yield f"<p>Under 2 % of the time each: {safe(', '.join(left_out))}.</p>"


def _drawn_row(name: str, lanes: Sequence[list[Bar]], waits: list[Bar], trace: Trace) -> Iterator[str]:
    busy = sum(bar.busy for lane in lanes for bar in lane)
    said = (
        f"{100 * busy / trace.length:.0f} % of the time"
        if len(lanes) < 2
        else f"{busy / trace.length:.1f} at a time"
    )
    if waits:
        said += f", waiting {100 * sum(bar.busy for bar in waits) / trace.length:.0f} %"
    title = safe(title_of(name))
    shown = lanes[:MAX_LANES]
    height = _LANE * max(1, len(shown))
    yield f'<div class="step">{title} <small>{said}</small></div>'
    # Rows of many lanes are not higher than a screen has room for.
    tall = min(2.2, 0.7 + 0.3 * max(1, len(shown)))
    yield f'<svg viewBox="0 0 {WIDTH:g} {height:g}" style="height:{tall:.1f}rem" preserveAspectRatio="none" role="img" '
    yield f'aria-label="{title}: {said}"><rect class="rail" width="{WIDTH:g}" height="{height:g}"/>'
    for place, width, _ in _boxes(waits, trace.length):
        yield f'<rect class="waiting" x="{place:.2f}" y="{0.38 * height:g}" width="{width:.2f}" height="{0.24 * height:g}"/>'
    for number, lane in enumerate(shown):
        for place, width, busy in _boxes(lane, trace.length):
            shade = 0.25 + 0.75 * busy
            yield f'<rect x="{place:.2f}" y="{number * _LANE:g}" width="{width:.2f}" height="{_LANE - 1:g}" '
            yield f'fill="{colour_of(name)}" fill-opacity="{shade:.2f}"/>'
    yield "</svg>"


def _boxes(bars: list[Bar], length: float) -> Iterator[tuple[float, float, float]]:
    """Yields where each bar begins, how wide it is (at least a pixel), and the share of it that is busy."""
    for bar in merged(bars, length / WIDTH):
        width = max(1.0, (bar.ended - bar.began) / length * WIDTH)
        yield bar.began / length * WIDTH, width, min(1.0, bar.busy / (bar.ended - bar.began or 1.0))


def safe(text: str) -> str:
    """Returns a text as HTML that shows it, whatever it holds."""
    import html

    return html.escape(printable(text))

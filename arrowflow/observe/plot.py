"""`plot_timeline`: the picture of a trace that the tf.data performance guide draws."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from arrowflow.observe import traces
from arrowflow.optional import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GAP: Final = 0.25


def plot_timeline(trace: str | os.PathLike[str] | Mapping[str, Any], *, ax: Axes | None = None) -> Figure:
    """Draws when each step of a pipeline worked: one row a step, in the order of the pipeline, training last.

    Calls that ran at the same time lie in lanes of their row. Hatched grey in the row *Train* is the time inside `next()`.
    The title says what limits the run.
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
    read = traces.read_trace(trace, "plot_timeline")
    rows, left_out = traces.rows_of(read)
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
    limit = f": {found}" if (found := traces.limit_of(read)) else ""
    ax.set_title(f"{read.length:,.1f} {read.unit} in total{share}{limit}", loc="left", pad=24)
    notes = (
        [f"under {100 * traces.LEAST_SHARE:.0f} % of the time each: {', '.join(left_out)}"]
        if left_out
        else []
    )
    notes += [f"{read.num_dropped:,} later events were not kept"] if read.num_dropped else []
    ax.set_xlabel("\n".join([f"time in {read.unit}", *notes]))
    return cast("Figure", ax.figure)


def _height(lanes: Sequence[Any]) -> float:
    return min(0.7 + 0.3 * max(len(lanes), 1), 4.0)


def _draw_epochs(ax: Axes, read: traces.Trace, pixel: float) -> None:
    ends = [began for began, _ in read.epochs[1:]] + [read.length]
    for place, ((began, number), ended) in enumerate(zip(read.epochs, ends, strict=False)):
        pale = ("#F4F4F4", "#FFFFFF")[place % 2]
        ax.axvspan(began, ended, color=pale, linewidth=0, zorder=0, gid=f"epoch {number}")
        num_pixels = (ended - began) / pixel
        label = f"epoch {number}" if num_pixels > 60 else f"{number}" if num_pixels > 20 else ""
        middle, above = (began + ended) / 2, ax.get_xaxis_transform()
        ax.text(middle, 1.01, label, transform=above, ha="center", va="bottom", color="#555555")


def _draw_rows(
    ax: Axes, rows: Mapping[str, list[list[traces.Bar]]], waits: list[traces.Bar], pixel: float
) -> None:
    top, centres = 0.0, []
    for name, lanes in rows.items():
        height = _height(lanes)
        if name == "step" and waits:
            grey = {"facecolors": "#CCCCCC", "linewidths": 0, "hatch": "////"}
            _draw_bars(ax, waits, (top, height), pixel, "", gid="Wait", label="in next()", **grey)
            ax.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=1.7, frameon=False)
        colour = traces.colour_of(name)
        # The grey between two steps parts them; white edges would cover it.
        style = {"gid": traces.title_of(name)} | ({"linewidths": 0} if name == "step" and waits else {})
        for number, lane in enumerate(lanes):
            place = (top + number * height / len(lanes), height / len(lanes))
            _draw_bars(ax, lane, place, pixel, colour, **style)
        centres.append(top + height / 2)
        top += height + _GAP
    ax.set_yticks(centres, [traces.title_of(name) for name in rows])
    ax.set_ylim(top, -_GAP)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _draw_bars(
    ax: Axes, bars: list[traces.Bar], place: tuple[float, float], pixel: float, colour: str, **style: Any
) -> None:
    drawn = traces.merged(bars, pixel)
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

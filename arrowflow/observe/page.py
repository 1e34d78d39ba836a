"""`page`: the figures of a run as one HTML page, without scripts and without anything from a network."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple

from arrowflow.observe.charts import drawn_series, drawn_timeline, over_time, safe
from arrowflow.observe.report import HEADER, cells, forecasts, operators_of, report, tuned
from arrowflow.observe.traces import Trace, read_trace
from arrowflow.physical.tuning import Statistics

PACKAGES: Final = ("arrowflow", "pyarrow", "numpy", "polars", "torch", "jax")
"""Packages whose versions the page names, where they are installed."""

_STYLE: Final = """
:root{color-scheme:light dark;--back:#fff;--ink:#1b1f24;--soft:#57606a;--line:#d8dee4;--card:#f6f8fa;--work:#0072b2;
--wait:#c2570c;--held:#007a5a}
@media(prefers-color-scheme:dark){:root{--back:#0f1419;--ink:#e6edf3;--soft:#9da7b3;--line:#30363d;--card:#1a2027;
--work:#56b4e9;--wait:#f0a04b;--held:#3fc79a}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem 1rem 3rem;max-width:64rem;background:var(--back);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.3rem;line-height:1.35;margin:.2rem 0 1rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p,figure{margin:.6rem 0}small,figcaption,.up,.along,.kicker{color:var(--soft);font-size:.85rem}
figcaption b{color:var(--ink);display:block}figcaption{margin-bottom:.5rem}.kicker{margin:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.4rem,1fr));gap:.6rem;margin:0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.5rem .8rem}
.tiles dt{color:var(--soft);font-size:.85rem}.tiles dd{margin:0;font-size:1.25rem;font-weight:600}
.tiles small{font-weight:400;display:block}.tiles data{white-space:nowrap}h1::first-letter{text-transform:uppercase}
.advice{border-left:.25rem solid var(--wait);background:var(--card);padding:.6rem .8rem;margin:.6rem 0}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr));gap:0 1.5rem}
svg{display:block;width:100%}.axes{display:grid;grid-template-columns:3.2rem 1fr;gap:0 .4rem}
.axes svg{height:7rem}.up{display:flex;flex-direction:column;justify-content:space-between;text-align:right;
line-height:1;white-space:nowrap}.along{grid-column:2;display:flex;justify-content:space-between}
.grid{stroke:var(--line);vector-effect:non-scaling-stroke}
polygon{fill:var(--c);fill-opacity:.18}polyline{fill:none;stroke:var(--c);stroke-width:1.5;
vector-effect:non-scaling-stroke}.work{--c:var(--work)}.wait{--c:var(--wait)}.held{--c:var(--held)}
.timeline{display:grid;grid-template-columns:minmax(8rem,15rem) 1fr;gap:.35rem .8rem;align-items:center}
.step small{display:block}.rail{fill:var(--card)}.waiting{fill:var(--wait)}
.key{display:inline-block;width:1.6rem;height:.3rem;background:var(--wait);vertical-align:middle}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{padding:.35rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:last-child,.plain td,.plain th{text-align:left}
thead th{color:var(--soft);font-weight:500}tbody th{font-weight:600}
.plain td{white-space:normal;overflow-wrap:anywhere;min-width:6.5rem}
tbody th{white-space:normal;min-width:6.5rem}pre{overflow-x:auto;background:var(--card);padding:.8rem;font-size:.8rem}
summary{cursor:pointer}@media(max-width:36rem){.timeline{grid-template-columns:1fr}.along{grid-column:auto}
.axes .along{grid-column:2}.step{margin-top:.4rem}}
"""


def page(statistics: Statistics, trace: str | os.PathLike[str] | Mapping[str, Any] | None) -> Sequence[str]:
    """Returns the parts of the page; raises for a wrong trace before anything is written."""
    stages = statistics.stages[::-1]
    groups = [cells(group, statistics) for group in operators_of(stages)]
    reasons = [("+".join(stage.operators), tuned(stage)) for stage in stages if stage.kind == "parallel"]
    budgets = [
        (str(cores), f"{found.rows_per_second:,.0f}", found.limit.rstrip(","))
        for cores, found in forecasts(statistics)
    ]
    return [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>arrowflow: a run</title>',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><main>\n",
        *head(statistics),
        *(f'<p class="advice"><b>Advice:</b> {safe(text)}</p>\n' for text in statistics.advice),
        *_charts(statistics),
        *(() if trace is None else _timeline(read_trace(trace, "report"))),
        *_table("Stages", "", HEADER, groups),
        *_table("Tuned values", "plain", ("stage", "calls at a time, and why"), reasons),
        *_table(
            "With another CPU budget, about", "plain", ("cpu_budget", "rows/s", "what would limit"), budgets
        ),
        *_table("Machine", "plain", ("what", "which"), list(machine())),
        *_details(statistics),
        "</main></body></html>\n",
    ]


class Figure(NamedTuple):
    """A figure of a run in a tile.

    Attributes:
        title: Its name for users.
        name: The field or property of `Statistics`.
        shown: Its value in words.
        beside: Its unit or remark, in small letters.
    """

    title: str
    name: str
    shown: str
    beside: str = ""


def figures(statistics: Statistics) -> list[Figure]:
    """Returns the main figures of a run."""
    mib = 1 << 20
    waiting, first = statistics.waiting_share, statistics.first_batch_seconds
    peak, budget = statistics.ledger_peak_bytes, statistics.ledger_budget_bytes
    cores = f"of {statistics.cpu_budget} cores"
    return [
        Figure("Rows", "rows", f"{statistics.rows:,}", f"in {statistics.batches:,} batches"),
        Figure("Rows a second", "rows_per_second", f"{statistics.rows_per_second:,.0f}"),
        Figure("Waiting", "waiting_share", f"{100 * waiting:.1f} %", f"of {statistics.seconds:,.2f} s"),
        Figure("First batch", "first_batch_seconds", f"{first:,.3f} s"),
        Figure("Memory, at most", "ledger_peak_bytes", f"{peak / mib:,.1f} MiB", f"of {budget / mib:,.0f}"),
        Figure("CPU", "utilisation", f"{100 * statistics.utilisation:.0f} %", cores),
    ]


def head(statistics: Statistics) -> Iterator[str]:
    """Yields what limits a run, and its main figures."""
    yield f'<p class="kicker">arrowflow · a run</p><h1>{safe(statistics.bottleneck)}</h1>\n<dl class="tiles">'
    for title, name, shown, beside in figures(statistics):
        value = f'<data class="{name}" value="{float(getattr(statistics, name))!r}">{shown}</data>'
        yield f"<div><dt>{title}</dt><dd>{value} <small>{beside}</small></dd></div>"
    yield "</dl>\n"


def _charts(statistics: Statistics) -> Iterator[str]:
    found = over_time(statistics.history)
    if found:
        yield '<h2>Over time</h2><div class="charts">'
        for series in found:
            yield from drawn_series(series, statistics.seconds)
        yield "</div>\n"


def _timeline(trace: Trace) -> Iterator[str]:
    yield '<h2>Timeline</h2><p><small><span class="key"></span> thin bars in the row <i>Train</i>: the loop waits in '
    yield "<code>next()</code>. Paler bars were idle for a part of their time.</small></p>"
    yield from drawn_timeline(trace)
    if trace.num_dropped:
        yield f"<p>{trace.num_dropped:,} later events were not kept.</p>"


def _details(statistics: Statistics) -> Iterator[str]:
    yield "<details><summary>All figures</summary>"
    yield '<div class="scroll" tabindex="0"><table class="plain"><tbody>'
    for name, value in statistics.metrics().items():
        yield f'<tr><th scope="row">{name}</th><td><data class="{name}" value="{value!r}">{value:,.6g}</data></td></tr>'
    yield f"</tbody></table></div><pre>{safe(report(statistics, verbose=True))}</pre></details>\n"


def machine() -> Iterator[tuple[str, str]]:
    """Yields the machine and the versions of what runs on it; names of people and hosts are not among them."""
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores"
    yield "Python", platform.python_version()
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:  # or, of arrowflow, not installed but on the path
            continue


def _table(title: str, style: str, header: Sequence[str], lines: Sequence[Any]) -> Iterator[str]:
    """Yields a table below its title; nothing if it has no lines."""
    if not lines:
        return
    yield f"<h2>{title}</h2>"
    yield f'<div class="scroll" tabindex="0"><table class="{style}"><thead><tr>'
    yield from (f'<th scope="col">{name}</th>' for name in header)
    yield "</tr></thead><tbody>"
    for first, *others in lines:
        yield f'<tr><th scope="row">{safe(first)}</th>'
        yield from (f"<td>{safe(cell)}</td>" for cell in others)
        yield "</tr>\n"
    yield "</tbody></table></div>\n"

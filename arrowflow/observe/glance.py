"""What a notebook shows: `glance` at a dataset, with its plan, columns and first rows, and `glance_at_run` at a loader.

Both have the colours of the text around them, light or dark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from arrowflow.errors import cut
from arrowflow.observe.charts import safe
from arrowflow.observe.page import figures
from arrowflow.physical.tuning import Statistics

MAX_COLUMNS: Final = 20
"""Columns that are shown; the others are counted."""
MAX_LETTERS: Final = 60
SHOWN: Final = ("rows", "rows_per_second", "waiting_share", "ledger_peak_bytes")
"""The figures of a run that a notebook shows."""
_TILE: Final = "border:1px solid;border-color:rgba(128,128,128,.5);border-radius:.4em;padding:.3em .7em"


def glance(
    diagram: str, about: Sequence[str], columns: Sequence[tuple[str, str]], rows: pa.Table | None
) -> str:
    """Returns what a notebook shows of a dataset: its plan as SVG, lines of text about it, columns and first rows.

    The type of a column is empty if it is not known.
    """
    parts = [f"<div><b>Dataset</b><div>{diagram}</div>", *(f"<div>{safe(text)}</div>" for text in about)]
    parts += _table(columns[:MAX_COLUMNS], rows)
    if len(columns) > MAX_COLUMNS:
        parts.append(f"<div>and {len(columns) - MAX_COLUMNS:,} more columns</div>")
    return "".join([*parts, "</div>"])


def glance_at_run(title: str, statistics: Statistics | None) -> str:
    """Returns what a notebook shows of a loader; of its latest run what limits it, some figures, and the report to unfold."""
    if statistics is None:
        return f"<div><code>{safe(title)}</code></div>"
    tiles = [
        f'<div style="{_TILE}"><div style="opacity:.7">{what}</div><b style="font-size:1.25em">{shown}</b> '
        f"<small>{beside}</small></div>"
        for what, name, shown, beside in figures(statistics)
        if name in SHOWN
    ]
    return (
        f'<div><code>{safe(title)}</code><div style="margin:.4em 0"><b>{safe(statistics.bottleneck)}</b></div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:.5em">{"".join(tiles)}</div>'
        f"<details><summary>Report</summary><pre>{safe(statistics.summary)}</pre></details></div>"
    )


def _table(columns: Sequence[tuple[str, str]], rows: pa.Table | None) -> Iterator[str]:
    if not columns:
        return
    yield '<div style="overflow-x:auto"><table><thead><tr>'
    for name, type in columns:
        yield f'<th scope="col">{safe(name)}'
        yield f"<br><small>{safe(type)}</small></th>" if type else "</th>"
    yield "</tr></thead><tbody>"
    if rows is not None:
        for number in range(rows.num_rows):
            cells = (safe(cut(str(rows.column(place)[number]), MAX_LETTERS)) for place in range(len(columns)))
            yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</tbody></table></div>"

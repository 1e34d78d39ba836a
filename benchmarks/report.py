"""Writes the tables and the figure of `docs/benchmarks.md` from `benchmarks/results`.

python -m benchmarks.report
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.compare import KEPT, OURS, RESULT, rate

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
PAGE: Final = DOCS / "benchmarks.md"
FIGURE: Final = DOCS / "images" / "benchmarks.png"
BEGIN: Final = "<!-- figures -->"
END: Final = "<!-- /figures -->"
OTHERS: Final = {
    "ranks": "Several processes of one machine, `wide` shuffled",
    "cluster": "A local Ray cluster: arrowflow's workers against one process, and against Ray Data",
    "features": "Statistics of 12 M rows, and features by them, beside Polars",
    "sources": "Tar shards beside `webdataset`, and a Delta table beside `deltalake`",
}
"""Benchmarks whose bars the page shows, too."""


def main() -> None:
    """Writes both."""
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    lines = [*table(found), *others()]
    PAGE.write_text(head + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + tail, encoding="utf-8")
    draw(found["workloads"])


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of the tables."""
    machine = found["machine"]
    yield f"{machine['cpus']} cores of {machine['cpu']}, Python {machine['python']}; medians of {found['rounds']} rounds."
    for name, figures in found["workloads"].items():
        unit = "tokens/s" if name == "tokens" else "rows/s"
        yield f"\n### {name}\n"
        yield f"| library | {unit} | first epoch | arrowflow is | first epoch |"
        yield "|---|---|---|---|---|"
        yield from (_row(peer, of_one) for peer, of_one in _by_speed(figures))


def others() -> Iterator[str]:
    """Yields the lines of the other benchmarks."""
    for name, title in OTHERS.items():
        found = json.loads((harness.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        rounds = max(map(len, found["contenders"].values()))
        yield f"\n### {name}\n"
        yield f"{title}; {rounds} round{'s' * (rounds > 1)} on {found['machine']['cpus']} cores of {found['machine']['cpu']}.\n"
        yield "| what | figures | ratio |"
        yield "|---|---|---|"
        for bar in found["bars"]:
            ratio = "" if bar["ratio"] is None else f"{bar['ratio']:.2f} x"
            yield f"| {bar['name']} | {bar['got']} | {ratio} |"


def _by_speed(figures: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(figures.items(), key=lambda pair: -pair[1].get("warm", 0))


def _row(peer: str, of_one: Mapping[str, Any]) -> str:
    if "error" in of_one:
        return f"| {peer} | cannot: {of_one['error'][:70]} | | | |"
    if peer == KEPT:
        return f"| **{OURS}**, rows kept in memory | {rate(of_one['warm'])} |  |  |  |"
    speeds = [rate(of_one[kind]) for kind in ("warm", "cold")]
    ratios = [f"{of_one[key]:.2f} x" if key in of_one else "" for key in ("ours_warm", "ours_cold")]
    name = f"**{peer}**" if peer == OURS else f"{peer} {of_one['version']}"
    return f"| {name} | {speeds[0]} | {speeds[1]} | {ratios[0]} | {ratios[1]} |"


def draw(workloads: Mapping[str, Any]) -> None:
    """Draws the rate of each library as a point on a logarithmic axis: bars would need a place to begin."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    columns = 2
    rows = -(-len(workloads) // columns)
    figure = Figure(figsize=(10, 2.1 * rows), layout="constrained")
    for number, (name, figures) in enumerate(workloads.items(), 1):
        axes = figure.add_subplot(rows, columns, number)
        measured = [(peer, of_one["warm"]) for peer, of_one in _by_speed(figures) if "warm" in of_one][::-1]
        rates = [warm for _, warm in measured]
        axes.scatter(
            rates,
            range(len(measured)),
            color=["tab:orange" if peer in {OURS, KEPT} else "tab:blue" for peer, _ in measured],
            zorder=2,
        )
        for place, warm in enumerate(rates):
            axes.annotate(rate(warm), (warm, place), (7, -3), textcoords="offset points", fontsize=8)
        names = [f"{OURS}, rows kept" if peer == KEPT else peer for peer, _ in measured]
        axes.set_yticks(range(len(measured)), names)
        axes.set_ylim(-0.6, len(measured) - 0.4)
        axes.set_title(name, fontsize=10)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: rate(value)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(min(rates) / 2, 5 * max(rates))
        axes.grid(which="major", color="0.9", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    figure.suptitle(
        "Rows a second in a warm epoch (tokens: tokens a second), on logarithmic axes", fontsize=11
    )
    figure.savefig(FIGURE, dpi=110)


if __name__ == "__main__":
    main()

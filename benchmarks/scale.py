"""The cost of a row while rows, files and workers grow: it should not.

The stream workload over 1, 10 and 100 million rows; files of 1,000 rows each, 10 to 10,000 of them; stream and wide on one
worker and on two. Fewer rows and files are read several times in one pipeline, so that all contenders of a kind deliver
about as many rows, and none is mostly start.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import data, harness, stream, wide

MILLIONS: Final = (1, 10, 100)
FILES: Final = (10, 100, 1_000, 10_000)
NEEDED_FLATNESS: Final = 1.05
NEEDED_SPEEDUP: Final = {"stream": 1.8, "wide": 1.85}


def lineitem(millions: int) -> list[str]:
    """Returns the paths of about so many million rows: links to the files of `data.lineitem`, as often as it takes."""
    paths = data.lineitem()
    files = max(1, round(millions * 16 / 12))
    folder = Path(paths[0]).parent.with_name("links")
    folder.mkdir(exist_ok=True)
    links = [folder / f"{number:03}.parquet" for number in range(files)]
    for number, link in enumerate(links):
        if not link.exists():
            os.link(paths[number % len(paths)], link)
    return [str(link) for link in links]


def _measured(dataset: Any, batch_rows: int, *, epochs: int = 1) -> harness.Measurement:
    """Measures an epoch; of several, that of the median time."""
    loader = dataset.batch(batch_rows, drop_remainder=True).to_numpy()
    found = []
    for _ in range(epochs):
        watch, batches = harness.Stopwatch(), 0
        for _ in loader:
            batches += 1
        found.append(watch.measurement(batches * batch_rows))
    return sorted(found, key=lambda one: one.seconds)[len(found) // 2]


def of_rows(millions: int) -> harness.Measurement:
    """Measures the stream workload over so many million rows, until 100 million were read."""
    paths = lineitem(millions)
    data.read_through(paths)
    times = round(MILLIONS[-1] * 16 / 12 / len(paths))
    return _measured(stream.rows(paths).repeat(times), stream.BATCH_ROWS)


def of_files(number: int) -> harness.Measurement:
    """Measures reading so many small files, until 10,000 were read."""
    import arrowflow as af

    paths = data.shards(number)
    data.read_through(paths)
    return _measured(af.read_parquet(paths).repeat(FILES[-1] // number), stream.BATCH_ROWS)


def on_workers(workload: str, workers: int) -> harness.Measurement:
    """Measures a workload on so many workers."""
    import arrowflow as af

    paths = data.wide() if workload == "wide" else data.lineitem()
    data.read_through(paths)
    rows = wide.rows(paths).shuffle(wide.WINDOW_ROWS, seed=7) if workload == "wide" else stream.rows(paths)
    return _measured(rows.with_options(af.Options(cpu_budget=workers)), stream.BATCH_ROWS, epochs=5)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars: flat costs, and what the second worker brings."""
    bars = []
    for kind, numbers in (("M rows", MILLIONS), ("files", FILES)):
        for number in numbers[1:]:
            few, many = f"{numbers[0]} {kind}", f"{number} {kind}"
            if few in rounds and many in rounds:
                growth = harness.ratio(rounds, few, many)
                title, needed = f"a row of {many} / of {few}", f"<= {NEEDED_FLATNESS} x the time"
                bars.append(harness.Bar(title, needed, f"{growth:.2f}", growth <= NEEDED_FLATNESS, growth))
    for name, least in NEEDED_SPEEDUP.items():
        one, two = f"{name}, 1 worker", f"{name}, 2 workers"
        if one in rounds and two in rounds:
            speedup = harness.ratio(rounds, two, one)
            bars.append(
                harness.Bar(
                    f"{name}, 2 workers / 1", f">= {least} x", f"{speedup:.2f}", speedup >= least, speedup
                )
            )
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    **{f"{number} M rows": partial(of_rows, number) for number in MILLIONS},
    **{f"{number} files": partial(of_files, number) for number in FILES},
    **{
        f"{name}, {workers} worker{'s' * (workers > 1)}": partial(on_workers, name, workers)
        for name in NEEDED_SPEEDUP
        for workers in (1, 2)
    },
}

if __name__ == "__main__":
    harness.main("scale", CONTENDERS, judge, rounds=3)

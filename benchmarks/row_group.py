"""One row group of 2 GB under a budget of 256 MiB: how fast it is read, how soon it begins, and how fast a resume is.

    python -m benchmarks.row_group
    python -m benchmarks.row_group --only arrowflow resume --rounds 3

`read_table` decodes it with all cores, and holds all of it. The process has run a pipeline before, so that what is
imported late is not in the time of the first batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from benchmarks import data, harness

BATCH_ROWS: Final = 8192
BUDGET: Final = "256MiB"
NEEDED_SPEED: Final = 0.5
NEEDED_FIRST_SECONDS: Final = 0.2
NEEDED_RESUME_SECONDS: Final = 0.5
MIB: Final = 1 << 20


def _loader() -> Any:
    import arrowflow as af

    for _ in af.range(10).batch(5).to_numpy():
        pass
    options = af.Options(ram_budget=BUDGET)
    return af.read_parquet(data.row_group()).batch(BATCH_ROWS).with_options(options).to_numpy()


def _rows(batches: Iterator[dict[str, Any]]) -> int:
    return sum(len(batch["c0"]) for batch in batches)


def arrowflow() -> harness.Measurement:
    """Measures an epoch, and how long the first batch takes."""
    loader = _loader()
    data.read_through([data.row_group()])
    before = harness.peak_rss_bytes()
    watch = harness.Stopwatch()
    iterator = iter(loader)
    rows = len(next(iterator)["c0"])
    first = watch.measurement(rows).seconds
    measured = watch.measurement(rows + _rows(iterator))
    measured.extra["first_seconds"] = first
    measured.extra["rss_mib"] = (harness.peak_rss_bytes() - before) / MIB
    return measured


def resume() -> harness.Measurement:
    """Measures the first batch after a resume at 90 % of the epoch."""
    loader = _loader()
    iterator = iter(loader)
    for _ in range(9 * len(loader) // 10):
        next(iterator)
    state = iterator.state_dict()
    iterator.close()
    watch = harness.Stopwatch()
    other = iter(loader)
    other.load_state_dict(state)
    measured = watch.measurement(len(next(other)["c0"]))
    other.close()
    return measured


def read_table() -> harness.Measurement:
    """Measures pyarrow, which reads the file whole."""
    import pyarrow.parquet as pq

    data.read_through([data.row_group()])
    watch = harness.Stopwatch()
    return watch.measurement(pq.read_table(data.row_group()).num_rows)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    bars = []
    if {"arrowflow", "read_table"} <= rounds.keys():
        bars += harness.race_bar(
            rounds, "one row group", ours="arrowflow", theirs=["read_table"], needed=NEEDED_SPEED
        )
    if "arrowflow" in rounds:
        first = harness.median_extra(rounds["arrowflow"], "first_seconds")
        bars.append(_seconds_bar("first batch", first, NEEDED_FIRST_SECONDS))
        rss = harness.median_extra(rounds["arrowflow"], "rss_mib")
        bars.append(harness.Bar("memory of the process", "(information)", f"+{rss:.0f} MiB", met=True))
    if "resume" in rounds:
        seconds = sorted(one.seconds for one in rounds["resume"])[len(rounds["resume"]) // 2]
        bars.append(_seconds_bar("resume at 90 %", seconds, NEEDED_RESUME_SECONDS))
    return bars


def _seconds_bar(name: str, seconds: float, needed: float) -> harness.Bar:
    return harness.Bar(name, f"<= {needed:g} s", f"{seconds:.3f} s", seconds <= needed)


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "arrowflow": arrowflow,
    "resume": resume,
    "read_table": read_table,
}

if __name__ == "__main__":
    harness.main("row_group", CONTENDERS, judge, rounds=3)

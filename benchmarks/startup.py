"""The first batch of many shards, what importing arrowflow costs, and how long commands take from their start to their end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import harness

FEW: Final = 10
MANY: Final = 1_000
BATCH_ROWS: Final = 1_000
NEEDED_RATIO: Final = 2.0
NEEDED_IMPORT_MILLISECONDS: Final = 100.0
INSPECTED: Final = 10_000
COMMANDS: Final = {
    "help": ("arrowflow --help", 0.3),
    "inspect": (f"arrowflow inspect of {INSPECTED:,} files", 3.0),
}
"""What each command is called, and the most seconds that it may take."""


def first_batch(shards: int, *, shuffle: bool) -> harness.Measurement:
    """Measures from building the pipeline to its first batch."""
    import arrowflow as af
    from benchmarks import data

    paths = data.shards(shards)
    data.read_through(paths)
    watch = harness.Stopwatch()
    dataset = af.read_parquet(paths)
    if shuffle:
        dataset = dataset.shuffle(BATCH_ROWS, seed=7)
    with iter(dataset.batch(BATCH_ROWS).to_numpy()) as iterator:
        rows = len(next(iterator)["id"])
        return watch.measurement(rows, pandas=float("pandas" in sys.modules))


def importing() -> harness.Measurement:
    """Measures `import arrowflow` on top of pyarrow, NumPy and Polars."""
    import numpy  # noqa: F401
    import polars  # noqa: F401
    import pyarrow  # noqa: F401

    watch = harness.Stopwatch()
    import arrowflow  # noqa: F401

    return watch.measurement(1, pandas=float("pandas" in sys.modules))


def command(arguments: Callable[[], list[str]]) -> harness.Measurement:
    """Measures a command of a shell, of which the second run counts: the first one compiles."""
    script = "import arrowflow_cli; arrowflow_cli.main()"  # `-m arrowflow` would import the library first
    line = [sys.executable, "-c", script, *arguments()]
    subprocess.run(line, check=True, capture_output=True)
    watch = harness.Stopwatch()
    subprocess.run(line, check=True, capture_output=True)
    return watch.measurement(1)


def _inspected() -> list[str]:
    from benchmarks import data

    paths = data.shards(INSPECTED)
    data.read_through(paths)
    return ["inspect", "--json", str(Path(paths[0]).parent)]


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    bars = [bar for kind in ("", "-shuffled") for bar in _first_batch_bar(rounds, kind)]
    if "import" in rounds:
        got = 1e3 / harness.median_speed(rounds["import"])
        needed = f"<= {NEEDED_IMPORT_MILLISECONDS:.0f} ms"
        bars.append(
            harness.Bar("import arrowflow", needed, f"{got:.0f} ms", got <= NEEDED_IMPORT_MILLISECONDS)
        )
    for name, (title, most) in COMMANDS.items():
        if name in rounds:
            got = 1 / harness.median_speed(rounds[name])
            bars.append(harness.Bar(title, f"<= {most} s", f"{got:.2f} s", got <= most))
    pandas = any(one.extra.get("pandas") for ones in rounds.values() for one in ones)
    return [
        *bars,
        harness.Bar("pandas", "never imported", "imported" if pandas else "not imported", not pandas),
    ]


def _first_batch_bar(rounds: harness.Rounds, kind: str) -> list[harness.Bar]:
    few, many = f"shards-{FEW}{kind}", f"shards-{MANY}{kind}"
    if few not in rounds or many not in rounds:
        return []
    got = harness.ratio(rounds, few, many)
    times = [1e3 * BATCH_ROWS / harness.median_speed(rounds[name]) for name in (many, few)]
    title, needed = f"first batch{kind.replace('-', ', ')}", f"<= {NEEDED_RATIO:.0f} x that of {FEW} shards"
    return [
        harness.Bar(title, needed, f"{times[0]:.1f} ms against {times[1]:.1f} ms", got <= NEEDED_RATIO, got)
    ]


CONTENDERS: Final[dict[str, harness.Contender]] = {
    f"shards-{FEW}": lambda: first_batch(FEW, shuffle=False),
    f"shards-{MANY}": lambda: first_batch(MANY, shuffle=False),
    f"shards-{FEW}-shuffled": lambda: first_batch(FEW, shuffle=True),
    f"shards-{MANY}-shuffled": lambda: first_batch(MANY, shuffle=True),
    "import": importing,
    "help": lambda: command(lambda: ["--help"]),
    "inspect": lambda: command(_inspected),
}

if __name__ == "__main__":
    harness.main("startup", CONTENDERS, judge)

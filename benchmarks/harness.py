"""The harness of all benchmarks: contenders in processes of their own, in turns, and a table of bars.

A benchmark module ends with `harness.main(name, contenders, judge)`. Run without arguments it measures every
contender `--rounds` times after one warm-up round (in which they also show that they deliver the same), hands the measurements to `judge`, prints the table of
bars and keeps everything in `benchmarks/results/<name>.json`. Run with `--contender NAME` it is one of those
processes: it measures once and prints one line of JSON.

The machine may be shared, so a bar is a ratio of contenders that were measured in turns: the median over the
rounds of the ratio within a round. Each process waits, for a while, until the machine is idle.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"
DEFAULT_ROUNDS: Final = 7
CONTENDER_TIMEOUT_SECONDS: Final = 600
IDLE_SHARE: Final = 0.1
IDLE_SAMPLE_SECONDS: Final = 0.2
IDLE_WAIT_SECONDS: Final = 5.0
CHECKING: Final = "ARROWFLOW_BENCHMARK_CHECKS"
SAME: Final = 5e-3  # the last batch, which is dropped, is another one in another order


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one process measured once.

    Attributes:
        rows: Rows delivered, or other units of work done.
        seconds: Wall time of the work, without imports.
        cpu_seconds: CPU time of the process in that time: far less disturbed by other load than `seconds`.
        extra: Other figures, by name.
    """

    rows: int
    seconds: float
    cpu_seconds: float
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float:
        """Rows in a second of wall time."""
        return self.rows / self.seconds


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of the table: a figure that is needed and the figure that was got."""

    name: str
    needed: str
    got: str
    met: bool
    ratio: float | None = None

    def cells(self) -> tuple[str, str, str, str, str]:
        """Returns its row of the printed table."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return self.name, self.needed, self.got, ratio, "yes" if self.met else "NO"


Contender = Callable[[], Measurement]
Rounds = Mapping[str, Sequence[Measurement]]
Judge = Callable[[Rounds], list[Bar]]
Batches = Iterable[Mapping[str, Any]]


class Stopwatch:
    """Wall and CPU time since it was made."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def measurement(self, rows: int, **extra: float) -> Measurement:
        """Returns the times since the start, for `rows` rows."""
        seconds, cpu_seconds = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Measurement(rows, seconds, cpu_seconds, {**extra, "peak_rss_bytes": float(peak_rss_bytes())})


def drain(make: Callable[[], Batches], *, batch_rows: int) -> Measurement:
    """Measures `make` and its batches to the last one; each must have exactly `batch_rows` rows."""
    rows = 0
    sums: dict[str, float] = {}
    watch = Stopwatch()
    for batch in make():
        lengths = {len(column) for column in batch.values()}
        if lengths != {batch_rows}:
            raise AssertionError(f"expected batches of {batch_rows} rows, got {lengths}")
        rows += batch_rows
        if CHECKING in os.environ:
            for name, column in batch.items():
                sums[f"sum of {name}"] = sums.get(f"sum of {name}", 0.0) + float(column.sum(dtype="float64"))
    return watch.measurement(rows, **sums)


def check_same(ones: Mapping[str, Measurement]) -> None:
    """Raises unless all contenders that summed up the same columns got the same, but for a batch's worth of rows."""
    sums = {
        name: {key: value for key, value in one.extra.items() if key.startswith("sum of ")}
        for name, one in ones.items()
    }
    named = [(name, of_one) for name, of_one in sums.items() if of_one]
    for name, of_one in named:
        first_name, first = next(each for each in named if each[1].keys() & of_one.keys())
        same = of_one.keys() == first.keys() and all(
            math.isclose(of_one[key], first[key], rel_tol=SAME) for key in first
        )
        if not same:
            raise SystemExit(f"{name} delivers {of_one}, but {first_name} {first}")


def peak_rss_bytes() -> int:
    """Returns the largest resident set of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def ratio(rounds: Rounds, ours: str, theirs: str) -> float:
    """Returns how many times as fast `ours` is: the median of the ratios within the rounds."""
    pairs = zip(rounds[ours], rounds[theirs], strict=True)
    return statistics.median(a.rows_per_second / b.rows_per_second for a, b in pairs)


def median_speed(measurements: Sequence[Measurement]) -> float:
    """Returns the median of the rows a second."""
    return statistics.median(one.rows_per_second for one in measurements)


def median_cpu(measurements: Sequence[Measurement]) -> float:
    """Returns the median of the CPU seconds."""
    return statistics.median(one.cpu_seconds for one in measurements)


def median_extra(measurements: Sequence[Measurement], name: str) -> float:
    """Returns the median of one of the other figures."""
    return statistics.median(one.extra[name] for one in measurements)


def best_of(rounds: Rounds, names: Iterable[str]) -> str | None:
    """Returns which of the measured contenders has the highest median speed."""
    measured = [name for name in names if name in rounds]
    return max(measured, key=lambda name: median_speed(rounds[name]), default=None)


def race_bar(rounds: Rounds, title: str, *, ours: str, theirs: Iterable[str], needed: float) -> list[Bar]:
    """Returns the bar "`ours` is at least `needed` times as fast as the best of `theirs`"."""
    best = best_of(rounds, theirs)
    if best is None or ours not in rounds:
        return []
    got = ratio(rounds, ours, best)
    speeds = f"{millions(rounds, ours)} against {millions(rounds, best)} M rows/s ({best})"
    speeds += f"; CPU {median_cpu(rounds[ours]):.2f} against {median_cpu(rounds[best]):.2f} s"
    return [Bar(title, f">= {needed:.2f} x by hand", speeds, got >= needed, got)]


def millions(rounds: Rounds, name: str) -> str:
    """Returns a contender's median speed in millions of rows a second."""
    return f"{median_speed(rounds[name]) / 1e6:.2f}"


def main(
    name: str, contenders: Mapping[str, Contender], judge: Judge, *, rounds: int = DEFAULT_ROUNDS
) -> None:
    """Runs the benchmark `name` as its command line says; exits with 1 where a bar is not met."""
    arguments = _parser(name, rounds).parse_args()
    if arguments.contender:
        print(json.dumps(asdict(contenders[arguments.contender]())))
        return
    chosen = [one for one in contenders if not arguments.only or one in arguments.only]
    measured = _measure(name, chosen, arguments.rounds)
    bars = judge(measured)
    _print_speeds(measured)
    if bars:
        print_bars(bars)
    if not arguments.only:
        _keep(name, measured, bars)
    sys.exit(0 if all(bar.met for bar in bars) else 1)


def _parser(name: str, rounds: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--rounds", type=int, default=rounds, help="measured rounds after the warm-up")
    parser.add_argument("--only", nargs="*", help="measure these contenders alone and keep nothing")
    parser.add_argument("--contender", help="measure this contender once, in this process")
    return parser


def _measure(name: str, contenders: Sequence[str], rounds: int) -> dict[str, list[Measurement]]:
    check_same({one: _in_own_process(name, one, checking=True) for one in contenders})
    measured: dict[str, list[Measurement]] = {contender: [] for contender in contenders}
    for number in range(1, rounds + 1):
        for contender in contenders if number % 2 else reversed(contenders):
            one = _in_own_process(name, contender)
            measured[contender].append(one)
            _say(f"{name}: round {number}/{rounds} {contender}: {one.rows_per_second:,.0f} rows/s")
    return measured


def wait_until_idle() -> None:
    """Waits until others use little of the machine, but not for long; only Linux tells."""
    try:
        give_up = time.perf_counter() + IDLE_WAIT_SECONDS
        while time.perf_counter() < give_up and _busy_share() > IDLE_SHARE:
            pass
    except OSError:
        return


def _busy_share() -> float:
    total, idle = _ticks()
    time.sleep(IDLE_SAMPLE_SECONDS)
    later_total, later_idle = _ticks()
    return 1 - (later_idle - idle) / max(1, later_total - total)


def _ticks() -> tuple[int, int]:
    ticks = [int(text) for text in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:]]
    return sum(ticks), ticks[3] + ticks[4]


def _in_own_process(name: str, contender: str, *, checking: bool = False) -> Measurement:
    wait_until_idle()
    env = os.environ | ({CHECKING: "1"} if checking else {})
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # users compile the library once, and not in each process
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--contender", contender],
        cwd=Path(__file__).parent.parent,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=CONTENDER_TIMEOUT_SECONDS,
    )
    if done.returncode:
        raise SystemExit(f"benchmarks.{name} --contender {contender} ended with {done.returncode}")
    # Behind the measurement come lines that other libraries print when the process ends.
    told = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))
    return Measurement(**json.loads(told))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_speeds(measured: Rounds) -> None:
    rows = [("contender", "rows/s (median)", "wall s (min median max)", "cpu s (median)")]
    for name, ones in measured.items():
        seconds = sorted(one.seconds for one in ones)
        spread = f"{seconds[0]:.3f} {statistics.median(seconds):.3f} {seconds[-1]:.3f}"
        rows.append((name, f"{median_speed(ones):,.0f}", spread, f"{median_cpu(ones):.3f}"))
    print_table(rows)


def print_bars(bars: Sequence[Bar]) -> None:
    """Prints the table of bars."""
    rows = [("bar", "needed", "got", "ratio", "met")]
    rows += [bar.cells() for bar in bars]
    print_table(rows)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of text in aligned columns; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    print("\n" + "\n".join(lines), flush=True)


def _keep(name: str, measured: Rounds, bars: Sequence[Bar]) -> None:
    RESULTS.mkdir(exist_ok=True)
    kept = {
        "machine": machine(),
        "bars": [asdict(bar) for bar in bars],
        "contenders": {contender: [asdict(one) for one in ones] for contender, ones in measured.items()},
    }
    text = json.dumps(kept, indent=1, default=str)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Returns the CPU, the system and the versions."""
    from importlib.metadata import version

    return {
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: version(package) for package in ("numpy", "polars", "pyarrow")},
    }


def _cpu() -> str:
    """Returns the name of the CPU; only Linux tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")

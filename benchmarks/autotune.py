"""The autotuner's bars: what it reaches without a number given, how soon, and what it uses for it.

    python -m benchmarks.autotune --grid                        # ranks fixed settings, once a machine
    python -m benchmarks.autotune                               # all bars, against the best two of each ranking
    python -m benchmarks.autotune --bars tuned,settle --pipelines latency,skewed
    python -m benchmarks.autotune --bars load --rounds 1

With `--bars` or `--pipelines` nothing is kept. A bar alone takes one to four minutes, except `tuned`, which takes
one and a half for each pipeline; the ranking takes ten, and all bars forty. The ranking is kept in
`benchmarks/results/autotune_grid.json`; what it lacks is ranked when it is needed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import harness
from benchmarks.autotune_pipelines import PHASES, PIPELINES, STEADY
from benchmarks.autotune_runs import (
    ADAPT_SECONDS,
    BUDGET,
    EVERY,
    MEMORY,
    PHASE_SPEEDS,
    STRAGGLER_READS,
    contenders,
)

NEEDED_SHARE: Final = 0.95
NEEDED_CORES: Final = 1.1
NEEDED_COST: Final = 1.1
NEEDED_STRAGGLER: Final = 1.1
NEEDED_UNDER_BUDGET: Final = 0.9
WAITING_SLACK: Final = 0.01
IDLE_CORES: Final = 0.02
MIB: Final = 1 << 20

RANKING: Final = harness.RESULTS / "autotune_grid.json"
BEST: Final = 2  # of the ranking, which is of one run each, so the best one may not be the first

Measurements = Sequence[harness.Measurement]


# ---------------------------------------------------------------- the ranking


def ranking() -> dict[str, dict[str, float]]:
    """Returns rows a second of each pipeline and label that was ranked, the best first."""
    if not RANKING.exists():
        return {}
    found: dict[str, dict[str, float]] = json.loads(RANKING.read_text(encoding="utf-8"))
    return found


def keep_ranking(rounds: harness.Rounds) -> list[harness.Bar]:
    """Keeps what was measured, beside what is known of other pipelines; there are no bars in it."""
    known = ranking()
    for name in EVERY:
        prefix = f"{name}/rank-"
        speeds = {
            contender.removeprefix(prefix): round(harness.median_speed(ones), 1)
            for contender, ones in rounds.items()
            if contender.startswith(prefix)
        }
        if speeds:
            known[name] = dict(sorted(speeds.items(), key=lambda one: -one[1]))
    harness.RESULTS.mkdir(exist_ok=True)
    RANKING.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return []


def best_fixed(name: str) -> list[str]:
    """Returns the names of the contenders that were ranked best; ranks them first if nobody has."""
    if name not in ranking():
        command = [sys.executable, "-m", "benchmarks.autotune", "--grid", "--pipelines", name]
        subprocess.run(command, cwd=Path(__file__).parent.parent, check=True)
    return [f"{name}/{label}" for label in list(ranking()[name])[:BEST]]


def fixed(rounds: harness.Rounds, name: str) -> str | None:
    """Returns the best one of the contenders with fixed settings of a pipeline that were measured."""
    return harness.best_of(rounds, (f"{name}/{settings.label}" for settings in EVERY[name].grid()))


# ---------------------------------------------------------------- bars


def judge_tuned(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar of throughput for each pipeline, and how long the slow consumer waited."""
    bars = []
    for name in EVERY:
        ours, best = f"{name}/tuned", fixed(rounds, name)
        if ours not in rounds or best is None:
            continue
        got = harness.ratio(rounds, ours, best)
        speeds = f"{millions(rounds[ours])} against {millions(rounds[best])} M rows/s ({best})"
        needed = f">= {NEEDED_SHARE} x the best"
        bars.append(harness.Bar(f"tuned, {name}", needed, speeds, got >= NEEDED_SHARE, got))
        if EVERY[name].step_seconds:
            bars.append(_waiting_bar(rounds[ours], rounds[best]))
    return bars


def _waiting_bar(ours: Measurements, best: Measurements) -> harness.Bar:
    waits, allowed = (harness.median_extra(ones, "waited_share") for ones in (ours, best))
    allowed += WAITING_SLACK
    needed, got = f"<= {allowed:.1%} of the time", f"{waits:.1%}"
    return harness.Bar("tuned, slow consumer waits", needed, got, waits <= allowed)


def judge_settle(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar of the time to settle for each pipeline."""
    bars = []
    for name in EVERY:
        if (ones := rounds.get(f"{name}/tuned")) is not None:
            share, seconds, batches = (
                harness.median_extra(ones, f"settling_{what}") for what in ("share", "seconds", "batches")
            )
            got = f"{seconds:.2f} s, {batches:.0f} batches"
            if (best := fixed(rounds, name)) is not None:
                noise = harness.median_extra(rounds[best], "settling_seconds")
                got += f" (with fixed settings, which have nothing to learn: {noise:.2f} s)"
            bars.append(harness.Bar(f"settling, {name}", "<= 1 s or 30 batches", got, share <= 1, share))
    return bars


def judge_cpu(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar of the cores in use for each pipeline."""
    bars = []
    for name in EVERY:
        if (ones := rounds.get(f"{name}/cpu-1")) is not None:
            got = statistics.median(workers_cpu(one) / one.seconds for one in ones)
            needed = f"<= {NEEDED_CORES} cores"
            bars.append(harness.Bar(f"cpu_budget=1, {name}", needed, f"{got:.2f}", got <= NEEDED_CORES, got))
    return bars


def workers_cpu(one: harness.Measurement) -> float:
    """Returns the CPU time that the consumer's thread did not use."""
    return one.cpu_seconds - one.extra["consumer_cpu_seconds"]


def judge_memory(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars of ledger, pool and resident set for each pipeline, and what the budget costs."""
    bars = []
    for name in MEMORY:
        for contender in (f"{name}/256MiB", f"{name}/256MiB-crowded"):
            if contender in rounds:
                bars += _memory_bars(contender, rounds[contender], PIPELINES[name].largest_chunk_bytes)
        if f"{name}/256MiB" in rounds and f"{name}/unbounded" in rounds:
            got = harness.ratio(rounds, f"{name}/256MiB", f"{name}/unbounded")
            needed = f">= {NEEDED_UNDER_BUDGET} x without a budget"
            speeds = " against ".join(millions(rounds[f"{name}/{what}"]) for what in ("256MiB", "unbounded"))
            title = f"ram_budget, {name}: speed"
            bars.append(harness.Bar(title, needed, f"{speeds} M rows/s", got >= NEEDED_UNDER_BUDGET, got))
    return bars


def _memory_bars(contender: str, ones: Measurements, largest_chunk_bytes: int) -> list[harness.Bar]:
    def worst(what: str) -> float:
        return max(one.extra[f"{what}_bytes"] for one in ones)

    limits = {
        "ledger": BUDGET,
        "pool": BUDGET + largest_chunk_bytes,
        "rss": worst("baseline") + 1.5 * BUDGET,
    }
    bars = []
    for what, limit in limits.items():
        got = worst(f"{what}_peak")
        texts = (f"ram_budget, {contender}: {what}", f"<= {limit / MIB:.0f} MiB", f"{got / MIB:.0f} MiB")
        bars.append(harness.Bar(*texts, got <= limit, got / limit))
    return bars


def judge_consumer(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars of what a row costs a slow consumer, and of what goes on while it pauses."""
    slow, full = rounds.get("consumer/slow"), rounds.get("consumer/full-speed")
    if slow is None or full is None:
        return []
    cost, usual = (
        statistics.median(1e9 * workers_cpu(one) / one.rows for one in ones) for ones in (slow, full)
    )
    ratio = statistics.median(
        (workers_cpu(one) / one.rows) / (workers_cpu(other) / other.rows)
        for one, other in zip(slow, full, strict=True)
    )
    idle = harness.median_extra(slow, "idle_cores")
    got = f"{cost:.1f} against {usual:.1f} ns a row"
    needed = f"<= {NEEDED_COST} x at full speed"
    return [
        harness.Bar("slow consumer: CPU a row", needed, got, ratio <= NEEDED_COST, ratio),
        harness.Bar("slow consumer: in a pause", f"<= {IDLE_CORES} cores", f"{idle:.3f}", idle <= IDLE_CORES),
    ]


def judge_straggler(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars against the ideal schedule, with calls given and tuned."""
    bars = []
    for which in STRAGGLER_READS:
        if (ones := rounds.get(f"straggler/{which}")) is not None:
            times, mean, most = (
                harness.median_extra(ones, what)
                for what in ("times_ideal", "mean_in_flight", "most_in_flight")
            )
            got = f"{times:.2f} x; {mean:.1f} reads in flight, {most:.0f} at most"
            needed = f"<= {NEEDED_STRAGGLER} x the ideal"
            bars.append(harness.Bar(f"straggler, {which}", needed, got, times <= NEEDED_STRAGGLER, times))
    return bars


def judge_load(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar for each change of the load: the rate 3 s later against the best fixed settings'."""
    bars = []
    for kind in PHASES:
        for phase, speed in list(enumerate(PHASE_SPEEDS))[1:]:
            ones, best = rounds.get(f"load/{kind}"), fixed(rounds, f"{kind}-{speed}")
            if ones is None or best is None:
                continue
            pairs = zip(ones, rounds[best], strict=True)
            got = statistics.median(
                one.extra[f"rows_per_second_{phase}"] / other.rows_per_second for one, other in pairs
            )
            seconds = harness.median_extra(ones, f"reached_seconds_{phase}")
            text = f"{got:.2f} x of {best}; its own rate after {seconds:.2f} s"
            needed = f">= {NEEDED_SHARE} x the best after {ADAPT_SECONDS:.0f} s"
            bars.append(harness.Bar(f"load, {kind} map: {speed}", needed, text, got >= NEEDED_SHARE, got))
    return bars


def millions(ones: Measurements) -> str:
    """Returns the median speed in millions of rows a second."""
    return f"{harness.median_speed(ones) / 1e6:.3f}"


# ---------------------------------------------------------------- which bars


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that are measured together.

    Attributes:
        rounds: Rounds that tell enough.
        contenders: Returns the names of the contenders, given the pipelines that were chosen.
        judge: Returns the bars.
    """

    rounds: int
    contenders: Callable[[Sequence[str]], list[str]]
    judge: harness.Judge


def _tuned_and_best(pipelines: Sequence[str]) -> list[str]:
    return [one for name in pipelines for one in (f"{name}/tuned", *best_fixed(name))]


def _load_and_best(pipelines: Sequence[str]) -> list[str]:
    return [f"load/{kind}" for kind in PHASES] + [one for name in STEADY for one in best_fixed(name)]


def _under_memory(pipelines: Sequence[str]) -> list[str]:
    return [f"{name}/{what}" for name, kinds in MEMORY.items() for what in kinds]


GROUPS: Final[dict[str, Group]] = {
    "tuned": Group(9, _tuned_and_best, judge_tuned),
    "settle": Group(5, lambda names: [f"{name}/tuned" for name in names], judge_settle),
    "cpu": Group(3, lambda names: [f"{name}/cpu-1" for name in (*names, "waiting-fast")], judge_cpu),
    "memory": Group(3, _under_memory, judge_memory),
    "consumer": Group(7, lambda names: ["consumer/slow", "consumer/full-speed"], judge_consumer),
    "straggler": Group(5, lambda names: [f"straggler/{which}" for which in STRAGGLER_READS], judge_straggler),
    "load": Group(3, _load_and_best, judge_load),
}

BY_PIPELINE: Final = ("tuned", "settle", "cpu")


def main() -> None:
    """Runs what the command line says; what is not about bars, pipelines and ranking is the harness'."""
    arguments, rest = _parser().parse_known_args()
    everything = contenders()
    if "--contender" in rest:
        sys.argv[1:] = rest
        harness.main("autotune", everything, judge_tuned)
        return
    names = arguments.pipelines or list(PIPELINES)
    if arguments.grid:
        names = arguments.pipelines or list(EVERY)
        chosen = [f"{name}/rank-{settings.label}" for name in names for settings in EVERY[name].grid()]
        sys.argv[1:] = [*rest, "--only", *chosen]
        harness.main("autotune", everything, keep_ranking, rounds=1)
        return
    groups = [GROUPS[name] for name in arguments.bars or (BY_PIPELINE if arguments.pipelines else GROUPS)]
    chosen = list(dict.fromkeys(one for group in groups for one in group.contenders(names)))
    sys.argv[1:] = [*rest, *(["--only", *chosen] if arguments.bars or arguments.pipelines else [])]
    harness.main(
        "autotune",
        {name: everything[name] for name in chosen},
        lambda rounds: [bar for group in groups for bar in group.judge(rounds)],
        rounds=max(group.rounds for group in groups),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autotune", add_help=False, allow_abbrev=False)
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--bars", type=_names_of(GROUPS))
    parser.add_argument("--pipelines", type=_names_of(EVERY))
    return parser


def _names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Returns what parses names with commas in between."""

    def parse(text: str) -> list[str]:
        unknown = set(text.split(",")) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(known)}")
        return text.split(",")

    return parse


if __name__ == "__main__":
    main()

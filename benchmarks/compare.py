"""arrowflow beside what people would use instead, on the same rows.

    make bench          # all workloads, and ranks, cluster, features and tables beside others: twenty to thirty minutes
    make bench-quick    # stream and wide alone, fewer rounds: two to five minutes
    python -m benchmarks.compare --only stream wide --rounds 5

Each contender runs in a process of its own, in an environment with pinned versions (`benchmarks/peers`). Contenders take
turns, so that a slow hour of the machine meets all of them. A process measures its first epoch, which is *cold* but for
the pages of the files, and *warm* the median of the others. The figures are medians over the rounds. A ratio is the
median of the ratios within the rounds. Of several variants of a library the fastest counts; those that take over 1.25
times as long in the first round are left out of the others, and so are libraries that take over four times as long as the
fastest: nobody asks for their second digit. Rows of arrowflow are decoded in each epoch, and once more come
from memory, as by default; that has no first epoch.

The results lie in `benchmarks/results/compare.json`. From them come the table and the figure of `docs/benchmarks.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import harness, images
from benchmarks.peers.environments import REQUIREMENTS, ROOT, python_of

OURS: Final = "arrowflow"
KEPT: Final = "arrowflow_kept"
QUICK: Final = ("stream", "wide-shuffled")
QUICK_PEERS: Final = ("arrowflow", "pyarrow", "polars", "duckdb")
TIMEOUT_SECONDS: Final = 120
CLEARLY_SLOWER: Final = 0.8
FAR_SLOWER: Final = 0.25
RESULT: Final = harness.RESULTS / "compare.json"


@dataclass(slots=True)
class Contender:
    """A variant of a library at one workload, with the epochs of each round."""

    peer: str
    variant: str
    python: Path
    rounds: list[list[dict[str, Any]]] = field(default_factory=list)
    version: str = ""
    error: str = ""
    checked: dict[str, Any] | None = None

    def run(self, *, epochs: int, seconds: float) -> list[dict[str, Any]]:
        """Measures the epochs of a new process; the first one also sums up what the contender delivers."""
        check = not self.rounds
        command = [str(self.python), "-m", f"benchmarks.peers.{self.peer}", self.variant]
        command += [f"--epochs={epochs}", f"--seconds={seconds}", *["--check"] * check]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
            )
        except subprocess.TimeoutExpired:
            self.error = f"no end within {TIMEOUT_SECONDS} s"
            return []
        if done.returncode:
            self.error = (done.stderr.strip() or "no message").splitlines()[-1]
            return []
        # Some libraries print more at their end.
        (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"version"')]
        found = json.loads(line)
        self.version = found["version"]
        epochs_found: list[dict[str, Any]] = found["epochs"]
        self.rounds.append(epochs_found)
        self.checked = self.checked or found["checked"]
        return epochs_found

    def rates(self, kind: str) -> list[float]:
        """Returns the rows a second of each round, cold or warm."""
        return [_rate(epochs, kind) for epochs in self.rounds]

    def rate(self, kind: str) -> float:
        """Returns the median of its rates."""
        return statistics.median(self.rates(kind)) if self.rounds else 0.0

    @property
    def cores(self) -> float:
        """The cores that a warm epoch keeps busy, in this process alone."""
        used = [one["cpu_seconds"] / one["seconds"] for epochs in self.rounds for one in epochs[1:]]
        return statistics.median(used) if used else 0.0


def _rate(epochs: Sequence[Mapping[str, Any]], kind: str) -> float:
    rates = [one["rows_per_second"] for one in epochs]
    return rates[0] if kind == "cold" else statistics.median(rates[1:] or rates)


def main() -> None:
    """Measures, prints the tables and keeps the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    parser.add_argument("--only", nargs="*", help="workloads")
    parser.add_argument("--peers", nargs="*", default=list(REQUIREMENTS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="after which an epoch is cut")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.only, arguments.peers, arguments.rounds = list(QUICK), list(QUICK_PEERS), 3
    workloads = _workloads(arguments.peers, arguments.only)
    if "images" in workloads:
        images.tfrecords()  # which TensorFlow's environment cannot write
    found: dict[str, Any] = {}
    for name, contenders in workloads.items():
        measured = _measured(name, contenders, arguments.rounds, arguments.epochs, arguments.seconds)
        found[name] = _figures(measured)
        print(f"\n{name}")
        harness.print_table(_table(found[name]))
        if not arguments.only:
            harness.RESULTS.mkdir(exist_ok=True)
            kept = {"machine": harness.machine(), "rounds": arguments.rounds, "workloads": found}
            RESULT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _workloads(peers: Sequence[str], only: Sequence[str] | None) -> dict[str, list[Contender]]:
    """Returns the contenders of each workload, which the modules of the peers name."""
    found: dict[str, list[Contender]] = {}
    for peer in peers:
        python = python_of(peer)
        if python is None:
            print(f"{peer} cannot be installed here, and is left out", file=sys.stderr)
            continue
        listed = subprocess.run(
            [str(python), "-m", f"benchmarks.peers.{peer}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if listed.returncode:
            print(f"{peer} is left out: {listed.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            continue
        for variant in json.loads(listed.stdout.splitlines()[-1]):
            workload = variant.split(":")[0]
            if not only or workload in only:
                found.setdefault(workload, []).append(Contender(peer, variant, python))
    return found


def _measured(
    name: str, contenders: list[Contender], rounds: int, epochs: int, seconds: float
) -> list[Contender]:
    """Measures in turns. After the first round those are left out that deliver something else than arrowflow."""
    for number in range(rounds):
        running = [
            one
            for one in contenders
            if not one.error and not _is_beaten(one, contenders) and not _is_far(one, contenders)
        ]
        for one in running if number % 2 else reversed(running):
            harness.wait_until_idle()
            made = one.run(epochs=epochs, seconds=seconds)
            told = f"{_rate(made, 'cold'):,.0f} cold, {_rate(made, 'warm'):,.0f} warm" if made else one.error
            print(f"{name}: round {number + 1}/{rounds} {_title(one)}: {told}", file=sys.stderr, flush=True)
        if not number:
            _check(contenders)
    return contenders


def _is_beaten(one: Contender, contenders: Sequence[Contender]) -> bool:
    """Whether another variant of its library was clearly faster in the first round."""
    variants = [each for each in contenders if each.peer == one.peer and each.rounds]
    best = max((each.rates("warm")[0] for each in variants), default=0.0)
    return one in variants and one.rates("warm")[0] < CLEARLY_SLOWER * best


def _is_far(one: Contender, contenders: Sequence[Contender]) -> bool:
    """Whether arrowflow or another library was far faster in the first round, with rows that each epoch decodes."""
    best = max(
        (each.rates("warm")[0] for each in contenders if each.rounds and each.peer != KEPT), default=0.0
    )
    return bool(one.rounds) and one.peer != OURS and one.rates("warm")[0] < FAR_SLOWER * best


def _check(contenders: Sequence[Contender]) -> None:
    """Notes an error in a contender that delivers other columns than arrowflow, or other sums in a whole epoch."""
    expected = next((one.checked for one in contenders if one.peer == OURS and one.checked), None)
    for one in contenders:
        if expected is not None and one.checked:
            one.error = "; ".join(_differences(expected, one.checked))


def _differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    if {name: _widest(shape) for name, shape in found["shapes"].items()} != {
        name: _widest(shape) for name, shape in expected["shapes"].items()
    }:
        yield f"delivers {found['shapes']}, not {expected['shapes']}"
        return
    for column, total in expected["sums"].items() if found["whole"] else ():
        if not math.isclose(found["sums"][column], total, rel_tol=harness.SAME):
            yield f"the sum of {column} is {found['sums'][column]}, not {total}"


def _widest(shape: str) -> str:
    """Returns a shape without the width of its integers: some libraries know only 64 bits."""
    return shape.replace("int32", "int64")


def _title(one: Contender) -> str:
    return f"{one.peer} {one.variant}"


def _figures(contenders: Sequence[Contender]) -> dict[str, Any]:
    """Returns for each library the figures of its best variant, and how many times as fast arrowflow is."""
    ours = next((one for one in contenders if one.peer == OURS and one.rounds), None)
    figures: dict[str, Any] = {}
    for peer in dict.fromkeys(one.peer for one in contenders):
        variants = [one for one in contenders if one.peer == peer]
        measured = [one for one in variants if one.rounds and not one.error and not _is_beaten(one, variants)]
        if not measured:
            figures[peer] = {"error": variants[0].error}
            continue
        best = max(measured, key=lambda one: one.rate("warm"))
        figures[peer] = {
            "variant": best.variant,
            "version": best.version,
            "cold": best.rate("cold"),
            "warm": best.rate("warm"),
            "cores": best.cores,
            "whole": all(one["whole"] for epochs in best.rounds for one in epochs),
        }
        if ours is not None and ours is not best:
            for kind in ("cold", "warm"):
                pairs = zip(ours.rates(kind), best.rates(kind), strict=False)
                figures[peer][f"ours_{kind}"] = statistics.median(a / b for a, b in pairs)
    return figures


def rate(per_second: float) -> str:
    """Returns a rate in three digits."""
    digits = float(f"{per_second:.3g}")
    return f"{digits / 1e6:,g} M" if per_second >= 1e5 else f"{digits:,.0f}"


def _table(figures: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("library", "version", "rows/s warm", "cold", "cores", "arrowflow is", "cold", "")
    ]
    for peer, of_one in sorted(figures.items(), key=lambda pair: -pair[1].get("warm", 0)):
        if "error" in of_one:
            rows.append((peer, "", "", "", "", "", "", of_one["error"][:80]))
            continue
        variant = of_one["variant"].partition(":")[2]
        ratios = [f"{of_one[key]:.2f} x" if key in of_one else "" for key in ("ours_warm", "ours_cold")]
        speeds = [rate(of_one[kind]) for kind in ("warm", "cold")]
        note = variant if of_one["whole"] else f"{variant} (epochs were cut)".strip()
        rows.append((peer, of_one["version"], *speeds, f"{of_one['cores']:.2f}", *ratios, note))
    return rows


if __name__ == "__main__":
    main()

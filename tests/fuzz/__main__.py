"""Runs the fuzzers with new seeds until the time is up: `python -m tests.fuzz --minutes 60`. See README.md."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from tests.fuzz.conftest import LOG
from tests.fuzz.watch import LAST_CASE

FOLDER: Final = Path(__file__).parent
PROCESSES: Final = 2
OUTPUT_LINES: Final = 400


@dataclass
class Soak:
    """One run of all fuzzers, over and over.

    Attributes:
        until: When no round starts any more, as `time.monotonic` tells it, if each fuzzer had one.
        rounds: How many rounds have to start whatever the time is.
        seeds: The seeds of the rounds.
        cases: How many cases each fuzzer has run.
        kinds: How many of them were of which kind, if a fuzzer tells kinds apart.
        failures: How often each fuzzer failed.
        known: Tests that failed; later rounds leave them out, so that they show what else there is.
    """

    until: float
    rounds: int
    seeds: Iterator[int]
    cases: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failures: Counter[str] = field(default_factory=Counter)
    known: set[str] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    def work(self, names: Iterator[str]) -> None:
        """Runs rounds until the time is up; each of the processes has a thread that does this."""
        while True:
            with self.lock:
                if self.rounds <= 0 and time.monotonic() >= self.until:
                    return
                self.rounds -= 1
                name, seed = next(names), next(self.seeds)
            self.round(name, seed)

    def round(self, name: str, seed: int) -> None:
        """Runs one fuzzer once, in a process of its own, which a crash may end."""
        with tempfile.TemporaryDirectory() as folder:
            log, case = Path(folder) / "log", Path(folder) / "case"
            log.touch()
            environment = os.environ | {LOG: str(log), LAST_CASE: str(case), "PYTHONFAULTHANDLER": "1"}
            # A call of pyarrow that writes outside of its memory ends the process there and then. Without this, a later
            # case would crash, or be wrong, and take the blame.
            environment["ARROW_DEBUG_MEMORY_POOL"] = "abort"
            left_out = [f"--deselect={test}" for test in sorted(self.known)]
            done = subprocess.run(
                [*command(name), f"--hypothesis-seed={seed}", "--hypothesis-profile=soak", *left_out],
                env=environment,
                cwd=FOLDER.parents[1],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            tests = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
            with self.lock:
                self.count(name, tests)
                # 5: all tests are left out by now.
                if done.returncode not in {0, 1, 5} or (
                    done.returncode == 1 and not any(t["failure"] for t in tests)
                ):
                    self.crashed(name, seed, done, case)

    def count(self, name: str, tests: Sequence[dict[str, Any]]) -> None:
        """Adds up what a round found, and shows what failed."""
        for test in tests:
            self.cases[name] += test["cases"]
            self.kinds[name].update(test["kinds"])
            if test["failure"] is not None:
                self.failures[name] += 1
                self.known.add(str(test["test"]))
                print(
                    f"\n=== {test['test']}\n{test['failure']}\nRun it again: {test['again']} --hypothesis-profile=soak"
                )
        print(f"{name}: {self.cases[name]:,} cases, {self.failures[name]} differences", flush=True)

    def crashed(self, name: str, seed: int, done: subprocess.CompletedProcess[str], case: Path) -> None:
        """Shows how a process ended that no test accounts for: a crash, a hang, or an error in a fuzzer itself."""
        self.failures[name] += 1
        tail = "\n".join(done.stdout.splitlines()[-OUTPUT_LINES:])
        last = case.read_text("utf-8") if case.exists() else "none"
        again = f"python -m tests.fuzz --only {name} --seed {seed} --minutes 0"
        print(
            f"\n=== {name} ended with {done.returncode}\n{tail}\nThe last case: {last}\nRun it again: {again}"
        )


def command(name: str) -> list[str]:
    """Returns how pytest runs a fuzzer."""
    path = str(FOLDER / f"test_{name}.py")
    options = [
        *("-q", "--tb=short", "--show-capture=no", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0")
    ]
    return [sys.executable, "-m", "pytest", path, *options]


def main() -> int:
    """Runs the fuzzers, and returns 1 if any of them found a difference."""
    names = sorted(path.stem.removeprefix("test_") for path in FOLDER.glob("test_*.py"))
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=1, help="no round starts later, but each fuzzer has one"
    )
    parser.add_argument(
        "--only", choices=names, action="append", help="one fuzzer (may be given more than once)"
    )
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count on from it")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(31) if given.seed is None else given.seed
    chosen = given.only or names
    print(f"fuzzing {', '.join(chosen)} for {given.minutes:g} minutes; the first seed is {seed}", flush=True)
    soak = Soak(time.monotonic() + 60 * given.minutes, len(chosen), itertools.count(seed))
    turns = itertools.cycle(chosen)
    with ThreadPoolExecutor(PROCESSES) as pool:
        for working in [pool.submit(soak.work, turns) for _ in range(PROCESSES)]:
            working.result()
    print("\nfuzzer, cases, differences")
    for name in chosen:
        told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(soak.kinds[name].items()))
        print(f"{name}, {soak.cases[name]:,}{f' ({told})' if told else ''}, {soak.failures[name]}")
    return 1 if soak.failures.total() else 0


if __name__ == "__main__":
    sys.exit(main())

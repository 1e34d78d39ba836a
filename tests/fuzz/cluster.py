"""Kills what pipelines on a cluster run on, at random moments: `python -m tests.fuzz.cluster`. Needs Ray. See README.md."""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.cluster.consumer import PIPELINES, digest, write_shards
from tests.cluster.kills import Told, TwoNodes, Victim, run_killed, until

ROWS: Final = 120_000
SETTLED_SECONDS: Final = 1.0
"""The nodes tell how full their stores are ten times a second."""
VICTIMS: Final[dict[str, tuple[Victim, ...]]] = {
    "kills": ("worker", "worker", "node", "worker", "node"),
    "ends": ("consumer",),
}


def rounds(wanted: int, what: str) -> Iterator[tuple[str, list[Victim]]]:
    """Yields a pipeline and its victims, over and over; the same number for all, if it can be divided so.

    Example:
        >>> next(rounds(30, "kills"))
        ('filter', ['worker', 'worker', 'node', 'worker', 'node'])
    """
    each = -(-wanted // len(PIPELINES))
    victims = list(itertools.islice(itertools.cycle(VICTIMS[what]), each))
    for name in itertools.cycle(PIPELINES):
        yield name, victims


def killed(
    cluster: TwoNodes, folder: Path, what: str, wanted: int, draw: random.Random
) -> tuple[Counter[Victim], int]:
    """Runs pipelines until so much was killed; returns what, and how many runs were wrong or left something."""
    total: Counter[Victim] = Counter()
    wrong = 0
    for name, victims in rounds(wanted, what):
        if total.total() >= wanted:
            break
        expected = [digest(batch) for batch in PIPELINES[name](folder / "shards")]
        told = run_killed(cluster, folder, name, victims[: wanted - total.total()], draw)
        total += told.killed
        time.sleep(SETTLED_SECONDS)
        until(lambda: not cluster.left(), seconds=60)
        left = cluster.left()
        wrong += told.batches != expected or bool(left)
        print(shown(name, told, expected, left), flush=True)
    return total, wrong


def shown(name: str, told: Told, expected: list[str], left: list[str]) -> str:
    """Returns a line about a run."""
    same = next(
        (number for number, (a, b) in enumerate(zip(told.batches, expected, strict=False)) if a != b), None
    )
    if same is None and len(told.batches) == len(expected):
        batches = f"{len(expected)} batches, as on one machine"
    else:
        batches = f"{len(told.batches)} batches for {len(expected)}, the first difference in number {same}"
    parts = ", ".join(f"{count} x {victim}" for victim, count in told.killed.items())
    return f"{name}: {batches}; killed {parts}; ran {', '.join(told.starts)}; {told.seconds:.1f} s; left: {left or 'nothing'}"


def main() -> int:
    """Kills as much as asked for; returns 1 if a batch differs or something is left."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.cluster", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="of workers and nodes")
    parser.add_argument("--ends", type=int, default=20, help="kills of the loop itself")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    given = parser.parse_args()
    print(f"the seed is {given.seed}", flush=True)
    draw = random.Random(given.seed)
    cluster = TwoNodes()
    total: Counter[Victim] = Counter()
    wrong = 0
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_shards(folder / "shards", ROWS)
            for what, wanted in (("kills", given.kills), ("ends", given.ends)):
                found, differ = killed(cluster, folder, what, wanted, draw)
                total += found
                wrong += differ
    finally:
        left = cluster.close()
    print(f"\nkilled {dict(total)}; {wrong} runs were wrong; left after the end: {left or 'nothing'}")
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs random plans on a cluster, and kills what pipelines there run on, at random moments: `python -m tests.fuzz.cluster`.

Needs Ray. See README.md.
"""

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

from hypothesis import HealthCheck, Phase, given, seed, settings

import arrowflow as af
from tests.cluster.consumer import PIPELINES, digest, engine, write_shards
from tests.cluster.kills import Told, TwoNodes, Victim, run_killed, until
from tests.fuzz import named
from tests.fuzz.drafts import DRAFTS, Draft
from tests.fuzz.ranks import MOST_STEPS, Rows, rows_of, run_of

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
    same = next(
        (number for number, (a, b) in enumerate(zip(told.batches, expected, strict=False)) if a != b), None
    )
    if same is None and len(told.batches) == len(expected):
        batches = f"{len(expected)} batches, as on one machine"
    else:
        batches = f"{len(told.batches)} batches for {len(expected)}, the first difference in number {same}"
    parts = ", ".join(f"{count} x {victim}" for victim, count in told.killed.items())
    return f"{name}: {batches}; killed {parts}; ran {', '.join(told.starts)}; {told.seconds:.1f} s; left: {left or 'nothing'}"


def compared(cluster: TwoNodes, folder: Path, wanted: int, number: int) -> Counter[str]:
    """Runs random plans; returns how many ran in which way, and how many had other batches than on one machine."""
    import ray  # late: as in `TwoNodes`

    named.use_folder(folder)
    kinds: Counter[str] = Counter()

    @seed(number)
    @settings(
        max_examples=wanted,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(DRAFTS)
    def compare(draft: Draft) -> None:
        try:
            rows = alone(draft)
            expected = first_batches(rows, draft)
            found = first_batches(alone(draft).with_engine(engine(cluster.address)), draft)
        except (af.PlanError, af.DataError):
            kinds["refused"] += 1
            return
        is_whole = ": whole)" in rows.explain()
        kinds["whole" if is_whole else "parts"] += 1
        if found != expected or (is_whole and first_batches(draft.plain(), draft) != expected):
            kinds["different"] += 1
            print(f"{draft}: {found} on the cluster, on one machine {expected}", flush=True)

    compare()
    ray.shutdown()
    return kinds


def alone(draft: Draft) -> af.Dataset:
    """Returns the plan as one process runs it, which leaves some rows out where only a run counts them."""
    rows = draft.plain().split_by_rank(0, 1)
    try:
        rows.explain()
    except af.PlanError:
        rows = draft.plain().split_by_rank(0, 1, equal_steps="drop")
    return rows


def first_batches(rows: af.Dataset, draft: Draft) -> list[Rows]:
    """Returns the batches of epoch 0, the first ones where there is no end."""
    with run_of(rows, 0) as run:
        return [rows_of(batch) for batch in itertools.islice(run, MOST_STEPS if draft.endless else None)]


def main() -> int:
    """Runs and kills as much as asked for; returns 1 if a batch differs or something is left."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.cluster", description=__doc__)
    parser.add_argument("--plans", type=int, default=40, help="random plans, which run without kills")
    parser.add_argument("--kills", type=int, default=30, help="of workers and nodes")
    parser.add_argument("--ends", type=int, default=20, help="kills of the loop itself")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    asked = parser.parse_args()
    print(f"the seed is {asked.seed}", flush=True)
    draw = random.Random(asked.seed)
    cluster = TwoNodes()
    total: Counter[Victim] = Counter()
    wrong = 0
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if asked.plans:
                kinds = compared(cluster, folder / "plans", asked.plans, asked.seed)
                print(f"plans: {dict(kinds)}", flush=True)
                wrong += kinds["different"]
            write_shards(folder / "shards", ROWS)
            for what, wanted in (("kills", asked.kills), ("ends", asked.ends)):
                found, differ = killed(cluster, folder, what, wanted, draw)
                total += found
                wrong += differ
    finally:
        left = cluster.close()
    print(f"\nkilled {dict(total)}; {wrong} runs were wrong; left after the end: {left or 'nothing'}")
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())

"""`kill -9` of one of four processes at a random moment: two others go on, and no row is lost or repeated."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import arrowflow as af
from tests.effort import scaled
from tests.ops.ranks.pipelines import write_shards

pytestmark = [pytest.mark.slow, pytest.mark.any_version]

ROOT = Path(__file__).resolve().parents[3]
KILLS = scaled(4)
"""One in the suite, and 80 with the profile `thorough`."""
RANK = """
import json, sys
from pathlib import Path
import polars as pl
import arrowflow as af
shards, kept, rank, size = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

def write(name, value):
    part = kept / (name + ".part")
    part.write_text(json.dumps(value))
    part.rename(kept / name)

rows = af.read_parquet(shards).select("id").with_columns(x=pl.col("id") * 2)
run = iter(rows.shuffle(200, seed=3).repeat(3).batch(32, drop_remainder=True).split_by_rank(rank, size))
step = 0
if (kept / "merged").exists():
    state = json.loads((kept / "merged").read_text())
    run.load_state_dict(state)
    step = state["batches"]
print("begins", flush=True)
for batch in run:
    write(f"rows {size} {step} {rank}", batch["id"].to_pylist())
    step += 1
    if step % 5 == 0:
        write(f"state {step} {rank}", run.state_dict())
    print(step, flush=True)
"""


def start(shards: Path, kept: Path, size: int) -> list[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(shards), str(kept), str(rank), str(size)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(size)
    ]


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def merged(kept: Path, size: int) -> int:
    """Merges the states of the last step of which all ranks have one, and returns the step."""
    steps = [int(path.name.split()[1]) for path in kept.glob("state *") if path.suffix != ".part"]
    whole = [step for step in set(steps) if steps.count(step) == size]
    if not whole:
        return 0
    states = [read(kept / f"state {max(whole)} {rank}") for rank in range(size)]
    (kept / "merged").write_text(json.dumps(af.merge_states(states)), encoding="utf-8")
    return max(whole)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def whole(shards: Path) -> list[list[int]]:
    """The global batches of a run that nobody kills."""
    rows = af.read_parquet(shards).select("id").shuffle(200, seed=3).repeat(3)
    return [batch["id"].to_pylist() for batch in rows.batch(32, drop_remainder=True).split_by_rank(0, 1)]


@pytest.mark.parametrize("seed", range(KILLS))
def test_two_go_on_where_one_of_four_was_killed(
    seed: int, shards: Path, whole: list[list[int]], tmp_path: Path
) -> None:
    rng = random.Random(seed)
    four = start(shards, tmp_path, 4)
    try:
        victim = four[rng.randrange(4)]
        assert victim.stdout is not None
        # It is killed as soon as it says that it is so far; what it does then is as random as any other moment.
        for _ in itertools.islice(victim.stdout, rng.randrange(1, len(whole))):
            pass
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
    finally:
        end(four)
    step = merged(tmp_path, 4)
    two = start(shards, tmp_path, 2)
    try:
        said = [process.communicate(timeout=60)[0].split()[-1] for process in two]
    finally:
        end(two)
    assert said == [str(len(whole))] * 2
    found = [
        [read(tmp_path / f"rows 2 {number} {rank}") for rank in range(2)]
        for number in range(step, len(whole))
    ]
    assert [parts[0] + parts[1] for parts in found] == whole[step:]

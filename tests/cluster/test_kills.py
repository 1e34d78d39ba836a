"""Workers, a node and the loop itself, killed at random moments: the batches of one machine, and nothing is left.

`python -m tests.fuzz.cluster` does more of the same.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.consumer import PIPELINES, digest, write_shards
from tests.cluster.kills import TwoNodes, Victim, run_killed, until

pytestmark = [pytest.mark.slow, pytest.mark.any_version]

ROWS = 60_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    pytest.importorskip("ray", reason="Ray is not installed")
    if not sys.platform.startswith("linux"):
        pytest.skip("what runs is read from /proc")
    nodes = TwoNodes()
    yield nodes
    assert nodes.close() == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kills")
    write_shards(path / "shards", ROWS)
    return path


@pytest.mark.parametrize(
    ("name", "victims"),
    [
        ("shuffle", ["worker", "node", "worker"]),
        ("filter", ["consumer", "consumer"]),
    ],
)
def test_what_is_killed_changes_no_batch(
    cluster: TwoNodes, folder: Path, name: str, victims: list[Victim]
) -> None:
    expected = [digest(batch) for batch in PIPELINES[name](folder / "shards")]
    told = run_killed(cluster, folder, name, victims, random.Random(1))
    assert set(+told.killed) == set(victims), (
        "a worker may be gone already when its turn comes, with its node"
    )
    assert told.starts == ["on Ray", "here", "on Ray"][: 1 + victims.count("consumer")]
    assert told.batches == expected
    until(lambda: not cluster.left(), seconds=60)
    assert cluster.left() == []

"""How many workers a cluster has room for, and how large they are unless somebody says so. Needs no cluster."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

import arrowflow as af
from arrowflow.cluster.room import NODE_GROUP, asked, room_for
from arrowflow.errors import PlanError

pytestmark = pytest.mark.any_version

GIB = 1 << 30


def nodes(*cpus: float, group: str | None = None) -> list[dict[str, Any]]:
    labels = {} if group is None else {NODE_GROUP: group}
    return [{"Resources": {"CPU": each, "memory": 8.0 * GIB}, "Labels": labels} for each in cpus]


def fits_one_by_one(workers: int, cores: int, cpus: tuple[int, ...]) -> bool:
    """Whether workers have room if they are placed one after the other, wherever there is any."""
    free = list(cpus)
    for _ in range(workers):
        place = next((place for place, left in enumerate(free) if left >= cores), None)
        if place is None:
            return False
        free[place] -= cores
    return True


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_the_default_is_the_most_of_four_cores_with_which_all_fit(workers: int) -> None:
    for cpus in itertools.chain(*(itertools.combinations_with_replacement(range(10), n) for n in (1, 2, 3))):
        fitting = [cores for cores in range(1, 5) if fits_one_by_one(workers, cores, cpus)]
        engine = af.RayEngine(workers=workers)
        if fitting:
            assert asked(engine, nodes(*cpus), 16)[0] == {"CPU": fitting[-1]}, cpus
        else:
            with pytest.raises(PlanError, match=f"never has room for workers={workers} of 1 CPU each"):
                asked(engine, nodes(*cpus), 16)


def test_workers_that_share_lanes_need_no_more_room_than_lanes() -> None:
    assert asked(af.RayEngine(workers=64), nodes(4), lanes=2)[0] == {"CPU": 2}


@pytest.mark.parametrize(
    ("engine", "cpus", "expected"),
    [
        (af.RayEngine(), [8], (4, 2)),
        (af.RayEngine(), [8, 3], (4, 2)),
        (af.RayEngine(), [64], (4, 16)),
        (af.RayEngine(), [2], (2, 1)),
        (af.RayEngine(max_workers=3), [8], (2, 3)),
        (af.RayEngine(max_workers=3), [2], (1, 2)),
        (af.RayEngine(cpus_per_worker=1), [3, 3], (1, 6)),
        (af.RayEngine(cpus_per_worker=2, max_workers=8), [3, 3], (2, 2)),
    ],
)
def test_autotune_has_as_many_workers_as_fit(
    engine: af.RayEngine, cpus: list[int], expected: tuple[int, int]
) -> None:
    asks, most = asked(engine, nodes(*cpus), 16)
    assert (asks["CPU"], most) == expected


@pytest.mark.parametrize(
    ("engine", "cpus", "told"),
    [
        (
            af.RayEngine(workers=2, cpus_per_worker=4),
            [4],
            "the cluster never has room for workers=2 of 4 CPUs each, only for 1: its largest node has 4 CPUs for workers; take "
            "cpus_per_worker=2 or workers=1 or larger nodes",
        ),
        (af.RayEngine(workers=3, cpus_per_worker=2), [3, 3], "take cpus_per_worker=1 or workers=2 or larger"),
        (
            af.RayEngine(cpus_per_worker=9),
            [8, 2],
            "only for 0: .* take cpus_per_worker=8 or larger",
        ),
        (
            af.RayEngine(workers=3),
            [1, 0],
            "workers=3 of 1 CPU each, .* has 1 CPU for workers; take workers=1 or",
        ),
        (af.RayEngine(), [0], "workers=1 of 1 CPU each, .* take larger nodes"),
        (
            af.RayEngine(workers=3, cpus_per_worker=1, memory_per_worker="5GiB"),
            [8, 8],
            "workers=3 of 1 CPU and 5,120 MiB each, only for 2: .* 8 CPUs and 8,192 MiB for workers; take "
            "memory_per_worker='4096MiB' or workers=2 or",
        ),
    ],
)
def test_workers_that_never_fit(engine: af.RayEngine, cpus: list[int], told: str) -> None:
    with pytest.raises(PlanError, match=told) as raised:
        asked(engine, nodes(*cpus), 16)
    for name, number in re.findall(r"(workers|cpus_per_worker)=(\d+)", str(raised.value).split("take")[1]):
        given: dict[str, Any] = {
            "workers": engine.workers,
            "cpus_per_worker": engine.cpus_per_worker,
            name: int(number),
        }
        asked(af.RayEngine(**given), nodes(*cpus), 16)


def test_a_cluster_that_may_grow_is_waited_for() -> None:
    """Nodes of KubeRay and `ray up` have a group: more of them may come."""
    growing = nodes(2, group="small")
    assert asked(af.RayEngine(workers=8, cpus_per_worker=4), growing, 16) == ({"CPU": 4}, 1)
    assert asked(af.RayEngine(workers=2), growing, 16)[0] == {"CPU": 1}
    assert asked(af.RayEngine(workers=8), growing, 16)[0] == {"CPU": 2}, "as large as these nodes are"
    assert asked(af.RayEngine(max_workers=8), growing, 16)[1] == 8


def test_memory_and_cores_have_to_be_on_one_node() -> None:
    split = [{"Resources": {"CPU": 8.0, "memory": GIB}}, {"Resources": {"CPU": 0.0, "memory": 64.0 * GIB}}]
    assert room_for({"CPU": 1, "memory": GIB // 2}, split) == 2
    with pytest.raises(PlanError, match="only for 0"):
        asked(af.RayEngine(workers=1, memory_per_worker="2GiB"), split, 16)

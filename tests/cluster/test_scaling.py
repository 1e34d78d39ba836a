"""When a cluster gets a worker more, or one less; and which lanes move. Needs no cluster."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import arrowflow as af
from arrowflow.cluster.scaling import CALM, REST, Scaling, dealt
from arrowflow.errors import PlanError

pytestmark = pytest.mark.any_version


class Look(NamedTuple):
    workers: int
    waited: float
    busy: float
    rate: float


def policy_of(most: int) -> Scaling:
    return Scaling(most, own=2, cores=1)


def steps(scaling: Scaling, *looks: Look) -> list[int]:
    return [scaling.decide(count, waited=waited, busy=busy, rate=rate) for count, waited, busy, rate in looks]


def starved(workers: int, rate: float) -> Look:
    return Look(workers=workers, waited=0.8, busy=0.95, rate=rate)


def test_workers_are_added_while_each_brings_something() -> None:
    scaling = policy_of(8)
    assert steps(scaling, starved(1, 100), starved(2, 190), starved(3, 280)) == [2, 3, 4]
    assert scaling.reasons == [
        "1 -> 2 workers: lanes waited 80% of the time for workers that compute",
        "2 -> 3 workers: lanes waited 80% of the time for workers that compute",
        "3 -> 4 workers: lanes waited 80% of the time for workers that compute",
    ]


def test_a_worker_that_brings_nothing_goes_and_is_not_tried_again_soon() -> None:
    scaling = policy_of(8)
    assert steps(scaling, starved(1, 100), starved(2, 101)) == [2, 1]
    assert scaling.reasons[-1] == "2 -> 1 workers: 2 brought 1.01 x the rows/s of 1"
    assert steps(scaling, *[starved(1, 100)] * (REST - 1)) == [1] * (REST - 1)
    assert steps(scaling, starved(1, 100)) == [2]


def test_lanes_that_wait_for_something_else_get_no_worker() -> None:
    waits = Look(workers=1, waited=0.9, busy=0.1, rate=10.0)
    assert steps(policy_of(8), waits, waits) == [1, 1]
    assert steps(policy_of(1), starved(1, 10)) == [1]


def test_a_worker_goes_once_lanes_lack_nothing_for_long() -> None:
    calm = Look(workers=3, waited=0.0, busy=0.2, rate=100.0)
    scaling = policy_of(8)
    assert steps(scaling, *[calm] * CALM) == [3] * (CALM - 1) + [2]
    busy = Look(workers=3, waited=0.0, busy=0.9, rate=100.0)
    assert steps(policy_of(8), *[busy] * CALM) == [3] * CALM
    alone = Look(workers=1, waited=0.0, busy=0.0, rate=1.0)
    assert steps(policy_of(8), *[alone] * CALM) == [1] * CALM


def test_a_rest_is_no_time_of_waiting() -> None:
    scaling = policy_of(8)
    assert scaling.look(0.0, 1, 5.0, 10) is None
    scaling.waited = 100.0
    assert scaling.look(1000.0, 1, 905.0, 20) is None and scaling.waited == 0.0
    scaling.waited = 3.0
    assert scaling.look(1002.0, 1, 907.0, 30) == 2


def test_a_consumer_that_takes_a_piece_now_and_then_gives_workers_up() -> None:
    scaling = policy_of(8)
    counts = [scaling.look(60.0 * minute, 3, 0.1 * minute, minute) for minute in range(CALM + 1)]
    assert counts == [None, *[3] * (CALM - 1), 2]


@pytest.mark.parametrize("lanes", [1, 3, 16])
def test_few_lanes_move(lanes: int) -> None:
    places: dict[int, int] = {}
    for workers in (1, 2, 3, 2, 8, 5, 1):
        count = min(workers, lanes)
        after = dealt(places, range(lanes), count)
        loads = [list(after.values()).count(number) for number in range(count)]
        assert max(loads) - min(loads) <= 1 and sum(loads) == lanes
        moved = [lane for lane in places if places[lane] != after[lane]]
        if places and count > (before := max(places.values()) + 1):
            assert len(moved) == sum(loads[before:]), "only to new workers"
        places = after


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"workers": 0}, "workers is at least 1"),
        ({"cpus_per_worker": 1.5}, "cpus_per_worker is a whole number"),
        ({"lanes": 0}, "lanes is at least 1"),
        ({"memory_per_worker": "much"}, "memory_per_worker: expected bytes"),
        ({"placement": "near"}, "placement is 'spread', 'pack' or 'near_consumer', got 'near'"),
        ({"workers": 2, "max_workers": 4}, "max_workers is for workers=AUTOTUNE"),
    ],
)
def test_arguments(given: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        af.RayEngine(**given)
    assert af.RayEngine(memory_per_worker="1GiB").memory_per_worker == 1 << 30

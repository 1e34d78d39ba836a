"""`Options(skip_steps=…)`: steps that are left out, and all others as they were."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.errors import PlanError

pytestmark = pytest.mark.any_version

LEFT_OUT = {0: [3, 4, 5, 99], 1: range(2), 2: range(100)}


def ids(batches: Any) -> list[list[int]]:
    return [
        batch["id"].tolist() if hasattr(batch["id"], "tolist") else batch["id"].to_pylist()
        for batch in batches
    ]


def plan() -> af.Dataset:
    return af.range(1000).shuffle(100, seed=1).batch(10)


def skipping() -> af.Dataset:
    return plan().with_options(af.Options(skip_steps=LEFT_OUT))


def expected() -> list[list[list[int]]]:
    whole = plan()
    epochs = [ids(whole) for _ in range(4)]
    return [
        [batch for step, batch in enumerate(batches) if step not in LEFT_OUT.get(epoch, ())]
        for epoch, batches in enumerate(epochs)
    ]


def test_other_steps_are_as_they_were() -> None:
    datasets = skipping()
    assert [ids(datasets) for _ in range(4)] == expected()
    loader = skipping().to_numpy()
    assert [ids(loader) for _ in range(4)] == expected()


@pytest.mark.parametrize("taken", [0, 2, 3, 50, 95])
def test_a_state_taken_before_and_after(taken: int) -> None:
    run = iter(skipping())
    for _ in range(taken):
        next(run)
    again = iter(skipping())
    again.load_state_dict(run.state_dict())
    assert ids(again) == expected()[0][taken:]
    plain = iter(plan())
    for _ in range(3):
        next(plain)
    again.close()
    again = iter(skipping())
    again.load_state_dict(plain.state_dict())  # the spike came later
    assert next(again)["id"].to_pylist() == expected()[0][3]
    assert again.state_dict()["batches"] == 7


def test_nobody_sees_a_step_that_is_left_out() -> None:
    seen = []

    def collate(batch: Any) -> Any:
        seen.append(batch["id"][0])
        return batch

    assert len(list(skipping().to_numpy(collate=collate))) == len(seen) == 96


def test_a_length_is_not_learnt_from_such_an_epoch() -> None:
    ds = af.range(100).map(lambda batch: batch).batch(10).with_options(af.Options(skip_steps={0: [1]}))
    assert len(list(ds)) == 9
    assert len(list(ds)) == 10
    assert len(ds) == 10


def test_the_length_is_that_of_the_next_epoch() -> None:
    plan = af.range(100).batch(10).with_options(af.Options(skip_steps={0: [1, 3, 99], 2: [0]}))
    loader = plan.to_numpy()
    for epochs in (loader, plan.with_options(af.Options())):
        lengths = [(len(epochs), len(list(epochs))) for _ in range(4)]
        assert lengths == [(8, 8), (10, 10), (9, 9), (10, 10)]


def test_ranks_leave_out_the_same() -> None:
    found = [
        list(plan().split_by_rank(rank, 2, lanes=2).with_options(af.Options(skip_steps={0: [1]})))
        for rank in range(2)
    ]
    whole = [list(plan().split_by_rank(rank, 2, lanes=2)) for rank in range(2)]
    assert found == [batches[:1] + batches[2:] for batches in whole]


@pytest.mark.parametrize("given", [[1], {0: 5}, {0: ["a"]}, {-1: [2]}, {0: [-1]}, {0: [True]}])
def test_other_values_are_refused(given: Any) -> None:
    with pytest.raises(PlanError, match="skip_steps"):
        af.Options(skip_steps=given)


def test_it_travels() -> None:
    options = af.Options(skip_steps={0: [1]}).merged(af.Options(cpu_budget=1))
    assert options.skip_steps == {0: frozenset([1])}
    assert isinstance(next(iter(skipping())), pa.RecordBatch)

"""How epochs are counted: looks count nothing, and each loader counts for itself."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from tests.loaders.frameworks import LOADERS, installed, load, plain

all_loaders = pytest.mark.parametrize("name", installed(LOADERS))
ROWS, SIZE = 40, 10


def shuffled() -> af.Dataset:
    return af.range(ROWS).shuffle(ROWS, seed=1).batch(SIZE)


def ids(batches: Iterable[Any]) -> list[list[int]]:
    return [
        batch["id"].to_pylist() if isinstance(batch, pa.RecordBatch) else plain(batch)["id"]
        for batch in batches
    ]


def orders(count: int) -> list[list[list[int]]]:
    """Returns the batches of the first epochs, each of which `set_epoch` names."""
    loader, found = shuffled().to_numpy(), []
    for epoch in range(count):
        loader.set_epoch(epoch)
        found.append(ids(loader))
    assert len({str(each) for each in found}) == count
    return found


# ---------------------------------------------------------------- one loader


@all_loaders
def test_a_second_batch_or_the_end_counts(name: str) -> None:
    """Batches that are made ahead are not delivered."""
    whole = orders(4)
    loader = load(shuffled(), name)
    assert ids(loader) == whole[0], "the end"
    iter(loader)
    for _ in range(2):
        assert ids(itertools.islice(loader, 1)) == whole[1][:1], "a look"
    assert ids(itertools.islice(loader, 2)) == whole[1][:2], "two batches"
    assert ids(loader) == whole[2]
    loader.set_epoch(1)
    assert ids(loader) == whole[1]


def test_the_loop_of_the_readme_makes_all_its_steps_after_looks() -> None:
    dataset = shuffled()
    for _ in dataset.to_polars():
        break
    for _ in dataset:
        break
    loader = dataset.to_numpy()
    next(iter(loader))
    steps = []
    while (epoch := loader.state_dict()["epoch"]) < 3:
        steps += [(epoch, batch) for batch in ids(loader)]
    assert steps == [(epoch, batch) for epoch, batches in enumerate(orders(3)) for batch in batches]


def test_a_look_on_one_rank_leaves_the_ranks_in_step() -> None:
    parts = [shuffled().split_by_rank(rank, 2) for rank in range(2)]
    next(iter(parts[0].to_numpy()))
    loaders = [part.to_numpy() for part in parts]
    next(iter(loaders[0]))
    for _ in range(2):
        rows = [row for loader in loaders for batch in ids(loader) for row in batch]
        assert len(rows) == len(set(rows)) > 0


def test_epochs_of_one_batch_and_of_none() -> None:
    one = af.range(5).shuffle(5, seed=1).batch(5).to_numpy()
    assert one.state_dict()["epoch"] == 0
    next(iter(one))
    first, second = ids(one), ids(one)
    assert first != second
    assert one.state_dict()["epoch"] == 2
    none = af.range(0).batch(5).to_numpy()
    assert ids(none) == ids(none) == []
    assert none.state_dict()["epoch"] == 2


@pytest.mark.parametrize("fails_at", [0, 1, 2, 3])
def test_an_epoch_with_an_error_counts_from_its_second_batch_on(fails_at: int) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["id"][0].as_py() == fails_at * SIZE and failing:
            raise KeyError("gone")
        return batch

    failing = True
    loader = af.range(ROWS).batch(SIZE).map(fail).to_numpy()
    with pytest.raises(af.FunctionError, match="gone"):
        list(loader)
    failing = False
    list(loader)
    assert loader.state_dict()["epoch"] == (2 if fails_at > 1 else 1)


def test_a_run_that_goes_on_counts_as_any_other() -> None:
    whole = orders(3)
    before = shuffled().to_numpy()
    list(before)
    batches = iter(before)
    for _ in range(3):
        next(batches)
    loader = shuffled().to_numpy()
    loader.load_state_dict(before.state_dict())
    assert ids(itertools.islice(loader, 1)) == whole[1][3:], "a look leaves the place where it is"
    assert ids(loader) == whole[1][3:]
    assert ids(loader) == whole[2]


def test_two_iterators_of_one_loader_run_the_same_epoch() -> None:
    whole = orders(3)
    loader = shuffled().to_numpy()
    assert [ids(pair) for pair in zip(loader, loader, strict=True)] == [[each, each] for each in whole[0]]
    late = iter(loader)
    next(late)
    assert ids(loader) == whole[1]
    next(late)
    assert ids(loader) == whole[2], "an epoch that was counted is not counted again"


def test_an_iterator_from_before_set_epoch_does_not_undo_it() -> None:
    whole = orders(3)
    loader = shuffled().to_numpy()
    batches = iter(loader)
    next(batches)
    loader.set_epoch(2)
    assert ids(batches) == whole[0][1:]
    assert ids(loader) == whole[2]


def test_an_iterator_that_is_moved_counts_where_it_is() -> None:
    whole = orders(3)
    loader = shuffled().to_numpy()
    batches = iter(loader)
    list(batches)
    batches.set_epoch(0)
    assert ids(batches) == whole[0]
    assert ids(loader) == whole[1]
    batches.set_epoch(0)
    next(batches)
    assert ids(loader) == whole[0]


# ---------------------------------------------------------------- loaders of one dataset


@all_loaders
def test_a_loader_made_in_each_turn_gets_the_next_order(name: str) -> None:
    dataset = shuffled()
    assert [ids(load(dataset, name)) for _ in range(3)] == orders(3)
    assert ids(dataset.to_numpy(columns=["id"])) == orders(4)[3]


def test_loaders_count_for_themselves() -> None:
    whole = orders(4)
    dataset = shuffled()
    one, two = dataset.to_numpy(), dataset.to_numpy()
    assert (ids(one), ids(one), ids(two)) == (whole[0], whole[1], whole[0])
    one.set_epoch(0)
    assert (ids(one), ids(two)) == (whole[0], whole[1])
    assert ids(dataset.to_numpy()) == whole[2], "the dataset is where the loader is that came furthest"
    assert ids(dataset) == whole[3]


def test_a_state_moves_its_own_loader() -> None:
    whole = orders(4)
    dataset = shuffled()
    one, two = dataset.to_numpy(), dataset.to_numpy()
    later = shuffled().to_numpy()
    later.set_epoch(2)
    one.load_state_dict(later.state_dict())
    assert ids(two) == whole[0]
    assert ids(dataset.to_numpy()) == whole[1]
    assert ids(one) == whole[2]
    assert ids(dataset.to_numpy()) == whole[3]


def test_iterators_of_a_dataset() -> None:
    whole = orders(3)
    dataset = shuffled()
    loader = dataset.to_numpy()
    for batch in dataset:
        assert ids([batch]) == whole[0][:1]
        break
    assert (ids(dataset), ids(dataset)) == (whole[0], whole[1])
    assert ids(loader) == whole[0]
    with iter(dataset) as batches:
        state = batches.state_dict()
    fresh = shuffled()
    with iter(fresh) as batches:
        batches.load_state_dict(state)
        assert ids(batches) == whole[2]
    assert fresh.to_numpy().state_dict()["epoch"] == 3


# ---------------------------------------------------------------- peek


@all_loaders
def test_peek_is_the_first_batch_and_changes_nothing(name: str) -> None:
    whole = orders(2)
    dataset = shuffled()
    loader = load(dataset, name)
    batches = iter(loader)
    state, measured = loader.state_dict(), loader.stats().batches
    assert [plain(loader.peek())["id"] for _ in range(2)] == whole[0][:1] * 2
    found = ids(itertools.islice(batches, 2))
    assert plain(loader.peek())["id"] == whole[1][0]
    assert loader.state_dict()["batches"] == 2 and state["batches"] == measured == 0
    assert found + ids(batches) == whole[0]
    assert ids(loader) == whole[1]
    assert load(dataset, name).state_dict()["epoch"] == 2


def test_peek_after_a_loaded_state() -> None:
    whole = orders(1)
    loader = shuffled().to_numpy()
    list(itertools.islice(loader, 3))
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert plain(loader.peek())["id"] == whole[0][3]
    assert loader.state_dict() == state
    assert ids(loader) == whole[0][3:]


def test_peek_where_there_is_no_batch() -> None:
    with pytest.raises(af.DataError, match="peek: there is no batch"):
        af.range(0).batch(2).to_numpy().peek()
    stream = pa.RecordBatchReader.from_batches(pa.schema({"x": pa.int8()}), [])
    with pytest.raises(af.PlanError, match="can be read only once"):
        af.from_arrow(stream).to_numpy().peek()


def test_a_pickled_dataset_has_counted_nothing() -> None:
    dataset = shuffled()
    list(dataset.to_numpy())
    assert ids(pickle.loads(pickle.dumps(dataset)).to_numpy()) == orders(1)[0]

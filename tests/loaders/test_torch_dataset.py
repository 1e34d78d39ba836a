"""`to_torch_dataset`: the batches of `to_torch` in a `DataLoader` with any workers, and states that go on exactly."""

from __future__ import annotations

import functools
import gc
import json
import logging
import pickle
import sys
import types
import warnings
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.delivery import EpochCounter, PassStart
from arrowflow.errors import MissingPackageError, PlanError, StateError
from arrowflow.loaders import torch_dataset
from arrowflow.loaders.shared_epochs import SharedEpochs
from tests.loaders.frameworks import plain
from tests.loaders.torch_plans import PLANS, delivered
from tests.warm import Server, close_cached

pytestmark = [pytest.mark.torch]
STEPS = 16


@pytest.fixture
def data() -> Any:
    with warnings.catch_warnings(action="ignore"):
        found = pytest.importorskip("torch", reason="PyTorch is not installed").utils.data
        __import__("torch.multiprocessing")  # teaches the pickler tensors
        return found


def dataset() -> af.Dataset:
    return af.range(1000).shuffle(200).batch(64)


def plained(batches: Any) -> list[Any]:
    return [plain(batch) for batch in batches]


def epochs_of(loader: Any, count: int = 1) -> list[Any]:
    return [plained(loader) for _ in range(count)]


def reference(count: int) -> list[Any]:
    """Returns the batches of the first epochs, as `to_torch` delivers them."""
    return epochs_of(dataset().to_torch(), count)


# ---------------------------------------------------------------- without workers


def test_it_is_an_iterable_dataset_of_the_batches_of_to_torch(data: Any) -> None:
    found = dataset().to_torch_dataset()
    assert isinstance(found, data.IterableDataset)
    loader = data.DataLoader(found, batch_size=None)
    assert len(loader) == len(found) == STEPS
    assert epochs_of(loader, 2) == reference(2)


def test_it_takes_what_to_torch_takes(data: Any) -> None:
    table = pa.table({"x": [1, None], "y": [0, 1], "z": ["a", "b"]})
    asked: dict[str, Any] = {"columns": ["y", "x"], "dtypes": {"y": "float32"}, "null": "mask"}
    ds = af.from_arrow(table).batch(2)
    loader = data.DataLoader(ds.to_torch_dataset(**asked, collate=pairs), batch_size=None)
    assert epochs_of(loader) == epochs_of(ds.to_torch(**asked, collate=pairs))
    with pytest.raises(PlanError, match="to_torch_dataset: lists is"):
        ds.to_torch_dataset(lists="no")  # type: ignore[call-overload]
    with pytest.raises(PlanError, match="to_torch_dataset: collate is a function"):
        ds.to_torch_dataset(collate=3)  # type: ignore[call-overload]


def pairs(batch: dict[str, Any]) -> Any:
    return batch["x"], batch["y"]


def test_a_length_that_nobody_knows_is_a_type_error(data: Any) -> None:
    found: Any = af.range(9).filter(pl.col("id") > 3).batch(2).to_torch_dataset()
    with pytest.raises(TypeError, match="only a run tells the length"):
        len(found)
    assert epochs_of(data.DataLoader(found, batch_size=None)) == [
        [{"id": [4, 5]}, {"id": [6, 7]}, {"id": [8]}]
    ]


def test_a_state_goes_on_in_the_same_process(data: Any) -> None:
    whole = reference(3)
    for batches in (0, 5, STEPS):
        first: Any = dataset().to_torch_dataset()
        epochs_of(first)
        iterator = iter(first)
        for _ in range(batches):
            next(iterator)
        if batches == STEPS:
            assert next(iterator, None) is None
        again: Any = dataset().to_torch_dataset()
        again.load_state_dict(first.state_dict())
        rest = [*whole[1][batches:], *(whole[2] if batches == STEPS else [])]
        assert epochs_of(data.DataLoader(again, batch_size=None)) == [rest]


def test_set_epoch_and_what_was_never_begun(data: Any) -> None:
    found: Any = dataset().to_torch_dataset()
    iter(found)
    whole = reference(3)
    assert epochs_of(found) == whole[:1]
    found.set_epoch(2)
    assert found.state_dict()["epoch"] == 2
    assert epochs_of(found) == whole[2:]


def test_after_an_error_the_loader_raises_again(data: Any) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["id"][0].as_py() == 64:
            raise KeyError("gone")
        return batch

    batches = iter(data.DataLoader(af.range(256).batch(64).map(fail).to_torch_dataset(), batch_size=None))
    assert len(next(batches)["id"]) == 64
    with pytest.raises(af.FunctionError, match="gone"):
        next(batches)
    for _ in range(2):
        with pytest.raises(af.ClosedError, match="has raised FunctionError"):
            next(batches)


def test_a_pickle_counts_with_its_original(data: Any) -> None:
    found = dataset().to_torch_dataset(columns=["id"], dtypes={"id": "float32"})
    whole = epochs_of(dataset().to_torch(dtypes={"id": "float32"}), 2)
    assert epochs_of(found) == whole[:1]
    assert epochs_of(pickle.loads(pickle.dumps(found))) == whole[1:]


def test_one_made_in_each_turn_gets_the_next_order(data: Any) -> None:
    ds = dataset()
    found = [epochs_of(data.DataLoader(ds.to_torch_dataset(), batch_size=None))[0] for _ in range(2)]
    assert [*found, *epochs_of(ds.to_torch())] == reference(3)


def test_a_data_loader_with_a_batch_size_is_refused(data: Any) -> None:
    with pytest.raises(PlanError, match="would make batches again"):
        next(iter(data.DataLoader(dataset().to_torch_dataset(), batch_size=4)))


def test_without_torch_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.data", None)
    with pytest.raises(MissingPackageError, match="to_torch_dataset needs the module torch"):
        torch_dataset._data()


# ---------------------------------------------------------------- workers, as PyTorch makes them, in this process


class Workers:
    """Copies of a dataset, each as if it lived in a worker of a `DataLoader`."""

    def __init__(self, found: Any, count: int, data: Any, patch: pytest.MonkeyPatch) -> None:
        self._infos = [types.SimpleNamespace(id=index, num_workers=count) for index in range(count)]
        self.copies = [pickle.loads(pickle.dumps(found)) for _ in range(count)]
        self._data, self._patch = data, patch

    def enter(self, index: int | None) -> Any:
        """Makes this process a worker, or the main process."""
        info = None if index is None else self._infos[index]
        self._patch.setattr(self._data, "get_worker_info", lambda: info)
        return None if index is None else self.copies[index]

    def begin(self, index: int = 0, *, own_collate: bool = False) -> Any:
        """Returns the iterator that the fetcher of a worker makes."""
        # `TorchDataset` reads this name in its caller.
        collate_fn = None if own_collate else self._data._utils.collate.default_convert  # noqa: F841
        return iter(self.enter(index))


def arrived(batch: Any) -> Any:
    """Returns a batch after its way to the main process, which is this one, too."""
    convert = sys.modules["torch.utils.data"]._utils.collate.default_convert
    return pickle.loads(ForkingPickler.dumps(convert(batch)))


@pytest.mark.parametrize("name", PLANS)
def test_the_first_worker_delivers_the_batches_of_to_torch(
    name: str, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = PLANS[name]().to_torch()
    whole = [delivered(loader) for _ in range(2)]
    for count in (1, 4):
        found: Any = PLANS[name]().to_torch_dataset()
        for epoch in range(2):
            workers = Workers(found, count, data, monkeypatch)
            for other in range(1, count):
                assert list(workers.begin(other)) == []
            assert delivered(map(arrived, workers.begin())) == whole[epoch]


def test_states_are_those_of_to_torch_in_both_directions(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reference(2)
    loader = dataset().to_torch()
    workers = Workers(dataset().to_torch_dataset(), 2, data, monkeypatch)
    batches = workers.begin()
    assert workers.enter(1).state_dict() == {}
    for step, _ in enumerate(loader, 1):
        workers.enter(0)
        next(batches)
        state = json.loads(json.dumps(workers.copies[0].state_dict()))
        assert state == json.loads(json.dumps(loader.state_dict()))
        if step in {1, 7, STEPS}:
            here = dataset().to_torch()
            here.load_state_dict(state)
            again = Workers(dataset().to_torch_dataset(), 2, data, monkeypatch)
            for index in (1, 0):
                again.enter(index).load_state_dict(state)
            rest = again.begin()
            assert again.copies[0].state_dict() == state, "a batch that is made ahead is not delivered"
            assert plained(map(arrived, rest)) == plained(here) == whole[0][step:]
            assert plained(map(arrived, again.begin())) == whole[1]


def test_a_state_that_is_loaded_in_the_main_process_is_for_the_next_pass(
    data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reference(2)
    loader = dataset().to_torch()
    for _, _ in zip(range(5), loader, strict=False):
        pass
    found: Any = dataset().to_torch_dataset()
    found.load_state_dict(loader.state_dict())
    assert found.state_dict() == loader.state_dict()
    workers = Workers(found, 2, data, monkeypatch)
    for rest in (whole[0][5:], whole[1]):
        assert plained(map(arrived, workers.begin())) == rest


def test_a_pass_counts_when_its_second_batch_arrives(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reference(3)
    ds = dataset()
    found = ds.to_torch_dataset()
    for taken in (1, 2):
        batches = Workers(found, 1, data, monkeypatch).begin()
        made = [next(batches) for _ in range(4)]
        assert plained(map(arrived, made[:taken])) == whole[0][:taken]
    workers = Workers(found, 1, data, monkeypatch)
    assert plained(map(arrived, workers.begin())) == whole[1]
    workers.enter(None)
    assert epochs_of(ds.to_torch()) == whole[2:], "the dataset has counted, too"


def test_the_end_of_a_short_pass_counts(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for rows, batches in ((40, 1), (0, 0)):
        found: Any = af.range(rows).shuffle(40, seed=1).batch(64).to_torch_dataset()
        workers = Workers(found, 1, data, monkeypatch)
        passes = [plained(map(arrived, workers.begin())) for _ in range(2)]
        assert [len(each) for each in passes] == [batches] * 2
        assert not rows or passes[0] != passes[1]


def arrays(batch: dict[str, Any]) -> Any:
    return batch["id"].numpy()


def test_batches_of_any_type_count(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = af.range(40).shuffle(40, seed=1).batch(10)
    workers = Workers(ds.to_torch_dataset(collate=arrays), 1, data, monkeypatch)
    passes = [[arrived(batch) for batch in workers.begin()] for _ in range(2)]
    assert {type(batch).__name__ for each in passes for batch in each} == {"Tensor"}
    assert plained(passes[0]) != plained(passes[1])


def test_with_a_collate_fn_of_the_user_a_pass_counts_when_its_second_batch_is_made(
    data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a function gets each batch as it is, and nobody knows what it makes of a batch."""
    whole = reference(2)
    workers = Workers(dataset().to_torch_dataset(), 1, data, monkeypatch)
    batches = workers.begin(own_collate=True)
    assert plained(next(batches) for _ in range(3)) == whole[0][:3]
    assert plain(next(workers.begin(own_collate=True))) == whole[1][0]


def test_batches_that_are_thrown_away_do_not_count(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Persistent workers begin a pass, and PyTorch receives what they had made for the pass before."""

    def receive(made: list[Any]) -> None:
        for batch in made:
            arrived(batch)

    code = receive.__code__.replace(co_name="_reset")
    reset = types.FunctionType(code, {"arrived": arrived, "__name__": "torch.utils.data.dataloader"})
    whole = reference(1)
    workers = Workers(dataset().to_torch_dataset(), 1, data, monkeypatch)
    batches = workers.begin()
    reset([next(batches) for _ in range(3)])
    assert plain(next(workers.begin())) == whole[0][0]


def test_the_main_process_does_not_know_where_workers_are(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = dataset().to_torch_dataset()
    workers = Workers(found, 1, data, monkeypatch)
    batches = workers.begin()
    for _ in range(2):
        arrived(next(batches))
    workers.enter(None)
    with pytest.raises(StateError, match="StatefulDataLoader"):
        found.state_dict()
    batches = iter(found)
    assert next(batches)["id"].tolist() == reference(2)[1][0]["id"]
    assert (found.state_dict()["epoch"], found.state_dict()["batches"]) == (1, 1)
    found.set_epoch(4)
    assert found.state_dict()["epoch"] == 4


def test_an_epoch_of_which_nothing_is_left_is_counted_before_others_begin(
    data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = dataset().to_torch()
    for _, _ in zip(range(STEPS), loader, strict=False):
        pass
    found: Any = dataset().to_torch_dataset()
    first, second = (Workers(found, 1, data, monkeypatch) for _ in range(2))
    first.enter(0).load_state_dict(loader.state_dict())
    rest = first.begin()
    assert plained(map(arrived, second.begin())) == reference(2)[1]
    assert list(rest) == []


def test_an_error_in_a_worker_is_raised_again(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise KeyError("gone")

    found = af.range(256).batch(64).map(fail).to_torch_dataset()
    monkeypatch.setattr(data, "get_worker_info", lambda: types.SimpleNamespace(id=0, num_workers=1))
    batches = iter(found)
    with pytest.raises(af.FunctionError, match="gone"):
        next(batches)
    with pytest.raises(af.ClosedError):
        next(batches)


def test_the_first_worker_has_all_of_the_budgets_and_says_so(
    data: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = af.Options(cpu_budget=5, ram_budget="64MiB")
    workers = Workers(dataset().with_options(asked).to_torch_dataset(), 4, data, monkeypatch)
    with caplog.at_level(logging.INFO, "arrowflow"):
        for index in range(4):
            next(workers.begin(index), None)
    assert [record.message.partition(" runs")[0] for record in caplog.records] == [
        "one of the 4 workers of a DataLoader"
    ]
    assert workers.copies[0].stats().ledger_budget_bytes == 64 << 20
    assert " of 5 cores" in workers.copies[0].explain()


def test_functions_that_hold_the_interpreter_lock_are_named_once(
    data: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        torch_dataset, "locked", lambda stages: ["map(f) holds the interpreter lock"] * bool(stages)
    )
    workers = Workers(dataset().to_torch_dataset(), 1, data, monkeypatch)
    with caplog.at_level(logging.WARNING, "arrowflow"):
        assert len(list(workers.begin())) == STEPS
    assert [record.message for record in caplog.records] == [
        "in the worker of a DataLoader: map(f) holds the interpreter lock"
    ]


class Mute:
    """A coordinator that nobody may ask."""

    def all_min(self, numbers: Any) -> Any:
        raise AssertionError("workers cannot talk to other ranks")


def test_workers_ask_no_coordinator(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = dataset().split_by_rank(1, 2, coordinator=Mute())
    workers = Workers(known.to_torch_dataset(), 2, data, monkeypatch)
    assert plained(map(arrived, workers.begin())) == epochs_of(dataset().split_by_rank(1, 2).to_torch())[0]
    odd = af.range(1000).filter(pl.col("id") % 2 == 1).batch(64)
    unknown = odd.split_by_rank(1, 2, coordinator=Mute(), equal_steps="drop")
    workers = Workers(unknown.to_torch_dataset(), 2, data, monkeypatch)
    with pytest.raises(PlanError, match=r"cannot talk to each other.*num_workers=0"):
        workers.begin()


# ---------------------------------------------------------------- the count of epochs


def test_copies_count_together() -> None:
    own = EpochCounter(PassStart(4))
    epochs = SharedEpochs(PassStart(4), own)
    copy = SharedEpochs(PassStart(), path=epochs._path)
    begun = copy.begins
    assert (begun.epoch, begun.elsewhere) == (4, False)
    copy.count(begun, elsewhere=True)
    epochs.count(begun)
    assert (epochs.begins.epoch, epochs.begins.elsewhere, own.begins.epoch) == (5, True, 5)
    place = epochs.move(2, (1, (None, "a")), 3)
    assert copy.begins == place == epochs.begins
    assert pickle.loads(pickle.dumps(copy)) is epochs


def test_the_count_leaves_no_file() -> None:
    epochs = SharedEpochs(PassStart(3))
    copy = SharedEpochs(epochs.begins, path=epochs._path)
    path = epochs._path
    del epochs
    gc.collect()
    assert not path.exists()
    assert copy.begins.epoch == 3
    copy.count(copy.begins)
    assert copy.begins.epoch == 4 and path.exists()
    del copy
    gc.collect()
    assert not path.exists()


# ---------------------------------------------------------------- workers in processes

PRELUDE = """
import gc, itertools, json, multiprocessing, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch.utils.data import DataLoader
import arrowflow as af
from tests.loaders.torch_plans import PLANS, delivered, doubled
multiprocessing.set_start_method("fork")

def dataset():
    return af.range(1000).shuffle(200).batch(64)

def loader(found, workers, **options):
    return DataLoader(found, batch_size=None, num_workers=workers, **options)

gc.freeze()
"""


@functools.cache
def server() -> Server:
    return Server(PRELUDE)


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_cached(server)


def run(script: str) -> None:
    """Runs a script in a process of its own, which has run no pipeline: that may be forked."""
    status, _, errors = server().run(script)
    assert status == 0, errors


@pytest.mark.slow
def test_forked_workers_deliver_the_batches_of_to_torch(data: Any) -> None:
    run("""
    found = {}
    for (name, plan), (workers, persistent) in zip(
        PLANS.items(), itertools.cycle([(1, False), (2, True), (4, True), (2, False)])
    ):
        ds = plan().to_torch_dataset()
        each = loader(ds, workers, persistent_workers=persistent)
        if name == "shuffle":
            assert len(each) == 8
        found[name] = [delivered(each) for _ in range(2)]
    for name, epochs in found.items():
        here = PLANS[name]().to_torch()
        assert epochs == [delivered(here) for _ in range(2)], name
    """)


@pytest.mark.slow
def test_forked_workers_count_epochs(data: Any) -> None:
    """PyTorch would warn of a length that is too small."""
    run("""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This DataLoader will create")
    found = []
    for workers, persistent in ((1, False), (2, True)):
        ds = dataset().to_torch_dataset()
        each = loader(ds, workers, persistent_workers=persistent)
        assert len(each) == 16
        for batch in each:
            break  # a look
        iter(each)
        epochs = [delivered(each)]
        for batch in itertools.islice(each, 2):
            pass
        epochs.append(delivered(each))
        ds.set_epoch(1)
        epochs.append(delivered(each))
        found.append(epochs)
    ds = dataset()
    anew = [delivered(loader(ds.to_torch_dataset(), 1)) for _ in range(2)]
    far = ds.map(doubled, executor="process").to_torch_dataset()
    processes = [each["twice"].tolist() for each in loader(far, 1)]

    here = dataset().to_torch()
    whole = [delivered(here) for _ in range(3)]
    assert all(epochs == [whole[0], whole[2], whole[1]] for epochs in found)
    assert anew == whole[:2]
    assert processes == [[2 * row for row in each["id"]] for each in whole[0]]
    try:
        delivered(loader(dataset().to_torch_dataset(), 2))
    except af.ForkError as error:
        told = str(error)
    assert "forkserver" in told and "'spawn'" in told and "num_workers=0" in told
    """)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc here")
def test_forked_workers_do_not_wait_for_threads_that_are_not_there(data: Any) -> None:
    """Of Polars, which starts them where a schema is asked for; who needs none of them goes on."""
    run("""
    import polars as pl
    text = pl.col("id").cast(pl.String).str.len_chars().cast(pl.Int64)
    found = dataset().to_torch_dataset()
    first = af.range(100).with_columns(n=text).batch(10)
    assert [b["n"].sum().item() for b in loader(first.to_torch_dataset(), 1)] == [10] + [20] * 9
    second = af.range(50).with_columns(n=text).batch(10)
    assert len(second.to_torch_dataset()) == 5
    second.schema
    try:
        list(loader(second.to_torch_dataset(), 2))
    except af.ForkError as error:
        assert "forkserver" in str(error), error
    else:
        raise AssertionError("Polars has no threads there")
    assert len(delivered(loader(found, 2))) == 16
    """)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(method: str, data: Any) -> None:
    """This process runs pipelines, too."""
    found: Any = PLANS["map"]().to_torch_dataset()
    here = PLANS["map"]().to_torch()
    whole = epochs_of(here, 3)
    here.set_epoch(0)
    for _, _ in zip(range(3), here, strict=False):
        pass
    found.load_state_dict(here.state_dict())
    loader = data.DataLoader(
        found, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=method
    )
    assert epochs_of(loader, 2) == [whole[0][3:], whole[1]]
    kept = list(loader)  # a worker writes its memory again, but none of which a batch is left
    assert plained(kept) == whole[2]


STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader

def stateful(workers, found=None, **options):
    found = dataset().to_torch_dataset() if found is None else found
    return StatefulDataLoader(found, batch_size=None, num_workers=workers, **options)

def state_of(workers, taken, **options):
    first = stateful(workers, **options)
    delivered(first)
    if taken:
        batches = iter(first)
        for _ in range(min(taken, 16)):
            next(batches)
        if taken > 16:
            assert next(batches, None) is None
    return json.loads(json.dumps(first.state_dict()))

def check(found):
    here = dataset().to_torch()
    whole = [delivered(here) for _ in range(4)]
    for taken, told, rest, after in found:
        if taken in {0, 17}:
            assert (rest, after) == (whole[1 + taken // 17], whole[2 + taken // 17]), (taken, told)
        else:
            assert (rest, after) == (whole[1][taken:], whole[2]), (taken, told)
"""


@pytest.mark.slow
def test_stateful_data_loaders_go_on_with_the_next_batch(data: Any) -> None:
    """Also where the last batch was taken (16), or nobody asked after the end (17)."""
    pytest.importorskip("torchdata", reason="torchdata is not installed")
    run(
        STATEFUL
        + """
found = []
cases = [(1, False, 7), (1, False, 16), (2, True, 15), (2, False, 17), (2, True, 17), (4, True, 16), (2, False, 0)]
for workers, persistent, taken in cases + [(0, False, taken) for taken in (0, 1, 16, 17)]:
    state = state_of(workers, taken, persistent_workers=persistent)
    again = stateful(workers, persistent_workers=persistent)
    again.load_state_dict(state)
    found.append((taken, workers, delivered(again), delivered(again)))
check(found)
"""
    )


@pytest.mark.slow
def test_states_of_stateful_data_loaders_go_on_with_any_number_of_workers(data: Any) -> None:
    """`StatefulDataLoader` refuses a state of other workers, so the dataset loads it."""
    pytest.importorskip("torchdata", reason="torchdata is not installed")
    run(
        STATEFUL
        + """
found, states = [], [(workers, taken, state_of(workers, taken)) for workers, taken in ((2, 7), (4, 17), (1, 16))]
for (workers, taken, state), others in zip(states, ((1, 4), (2, 1), (2, 0))):
    for other in others:
        ds = dataset().to_torch_dataset()
        ds.load_state_dict(state)
        again = stateful(other, ds) if other % 2 else loader(ds, other)
        found.append((taken, (workers, other), delivered(again), delivered(again)))
for taken in (5, 17):
    state = state_of(0, taken)
    ds = dataset().to_torch_dataset()
    ds.load_state_dict(state)
    here = dataset().to_torch()
    here.load_state_dict(ds.state_dict())
    found.append((taken, (0, "to_torch"), delivered(here), delivered(here)))
check(found)
"""
    )


def test_a_state_between_two_snapshots_is_refused(data: Any) -> None:
    found: Any = dataset().to_torch_dataset()
    state = {"_snapshot": {}, "_steps_since_snapshot": 2, "_iterator_finished": False}
    with pytest.raises(StateError, match=r"2 batches after the last snapshot.*snapshot_every_n_steps=1"):
        found.load_state_dict(state)

"""`to_torch_dataset`: the same batches in a `DataLoader` with any workers, and states that go on exactly."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
import textwrap
import types
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.errors import MissingPackageError, PlanError, StateError
from arrowflow.loaders import torch_dataset
from arrowflow.loaders.shared_epochs import MAX_PASSES, SharedEpochs
from tests.loaders.frameworks import plain

pytestmark = [pytest.mark.torch]
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 100


@pytest.fixture
def data() -> Any:
    with warnings.catch_warnings(action="ignore"):
        return pytest.importorskip("torch", reason="PyTorch is not installed").utils.data


def dataset() -> af.Dataset:
    return af.range(1000).shuffle(200).batch(64)


def plained(batches: Any) -> list[Any]:
    return [plain(batch) for batch in batches]


def epochs_of(loader: Any, count: int = 1) -> list[Any]:
    return [plained(loader) for _ in range(count)]


def reference(count: int) -> list[Any]:
    """Returns the batches of the first epochs, without workers."""
    return epochs_of(dataset().to_torch_dataset(), count)


# ---------------------------------------------------------------- without workers


def test_it_is_an_iterable_dataset_of_whole_batches_of_lanes(data: Any) -> None:
    found = dataset().to_torch_dataset()
    assert isinstance(found, data.IterableDataset)
    loader = data.DataLoader(found, batch_size=None)
    assert len(loader) == len(found) == 16
    epochs = epochs_of(loader, 2)
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        assert [len(batch["id"]) for batch in epoch] == [64] * 15 + [40]
        assert sorted(ids(epoch)) == list(range(1000))
    one_lane = data.DataLoader(dataset().to_torch_dataset(lanes=1), batch_size=None)
    assert epochs_of(one_lane, 2) == epochs_of(dataset().to_torch(), 2)


def ids(batches: list[Any]) -> list[int]:
    return [row for batch in batches for row in batch["id"]]


def test_a_global_shuffle_has_the_batches_of_to_torch(data: Any) -> None:
    ds = af.range(1000).shuffle(seed=1).batch(64)
    assert epochs_of(ds.to_torch_dataset(), 2) == epochs_of(ds.to_torch(), 2)


def test_lanes_of_a_rank(data: Any) -> None:
    """A rank's batches have as many rows as those of `to_torch`, and all ranks have equally many of them."""
    plan = af.range(1000).shuffle(200, seed=1).batch(64)
    found = [epochs_of(plan.split_by_rank(rank, 2).to_torch_dataset())[0] for rank in range(2)]
    assert [[len(batch["id"]) for batch in epoch] for epoch in found] == [[32] * 8] * 2
    rows = ids(found[0] + found[1])
    assert len(set(rows)) == len(rows) == 512
    with pytest.raises(PlanError, match="split_by_rank tells the number of lanes"):
        plan.split_by_rank(0, 2).to_torch_dataset(lanes=4)
    with pytest.raises(PlanError, match='equal_steps="pad" cannot fill up'):
        plan.split_by_rank(0, 2, equal_steps="pad").to_torch_dataset()


def test_a_pipeline_without_lanes_has_the_batches_of_to_torch(
    data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = af.range(1000).enumerate().batch(64)
    assert epochs_of(ds.to_torch_dataset()) == epochs_of(ds.to_torch())
    _, begin = workers_of(ds.to_torch_dataset(), 2, data, monkeypatch)
    with pytest.raises(
        PlanError, match=r"2 workers share a pipeline by its lanes.*enumerate: .*num_workers=0"
    ):
        begin(0)
    with pytest.raises(PlanError, match="enumerate: it counts or compares"):
        len(ds.to_torch_dataset(lanes=4))
    _, begin = workers_of(dataset().to_torch_dataset(lanes=2), 3, data, monkeypatch)
    with pytest.raises(PlanError, match="3 workers cannot share 2 lanes"):
        begin(0)
    with pytest.raises(PlanError, match="lanes"):
        ds.to_torch_dataset(lanes=0)


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
    found: Any = (
        dataset().to_torch_dataset(),
        af.range(9).filter(pl.col("id") > 3).batch(2).to_torch_dataset(),
    )
    assert len(found[0]) == 16
    with pytest.raises(TypeError, match="only a run tells the length"):
        len(found[1])
    assert epochs_of(data.DataLoader(found[1], batch_size=None)) == [
        [{"id": [4, 5]}, {"id": [6, 7]}, {"id": [8]}]
    ]


def test_a_state_goes_on_in_the_same_process(data: Any) -> None:
    whole = reference(3)
    for batches in (0, 5, 16):
        first: Any = dataset().to_torch_dataset()
        epochs_of(first)
        iterator = iter(first)
        for _ in range(batches):
            next(iterator)
        if batches == 16:
            assert next(iterator, None) is None
        again: Any = dataset().to_torch_dataset()
        again.load_state_dict(first.state_dict())
        rest = [*whole[1][batches:], *(whole[2] if batches == 16 else [])]
        assert epochs_of(data.DataLoader(again, batch_size=None)) == [rest]


def test_set_epoch_and_what_was_never_begun(data: Any) -> None:
    found: Any = dataset().to_torch_dataset()
    iter(found)
    whole = reference(3)
    assert epochs_of(found) == whole[:1]
    found.set_epoch(2)
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
    whole = epochs_of(dataset().to_torch_dataset(dtypes={"id": "float32"}), 2)
    assert epochs_of(found) == whole[:1]
    assert epochs_of(pickle.loads(pickle.dumps(found))) == whole[1:]


def test_a_loaded_state_does_not_travel(data: Any) -> None:
    found: Any = dataset().to_torch_dataset()
    found.load_state_dict(found.state_dict())
    with pytest.raises(StateError, match="StatefulDataLoader"):
        pickle.dumps(found)


def test_without_torch_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.data", None)
    with pytest.raises(MissingPackageError, match="to_torch_dataset needs the module torch"):
        torch_dataset._data()


# ---------------------------------------------------------------- with workers

PRELUDE = """
import multiprocessing, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch.utils.data import DataLoader
import arrowflow as af

def dataset(**options):
    return af.range(1000).shuffle(200).with_options(af.Options(**options)).batch(64)

def loader(found, workers, **options):
    return DataLoader(found, batch_size=None, num_workers=workers, **options)

def rows(batches):
    return [batch["id"].tolist() for batch in batches]
"""


def run(script: str) -> str:
    """Runs a script in a process of its own, which has run no pipeline: that may be forked."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=DEADLINE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_forked_workers(data: Any) -> None:
    """The same sequence whatever their number, and typed errors for what they cannot do."""
    script = """
    multiprocessing.set_start_method("fork")

    def refused(error, workers, found):
        try:
            rows(loader(found, workers))
        except error as raised:
            return str(raised)

    found = []
    for workers, persistent in ((1, False), (2, False), (4, True)):
        ds = dataset().to_torch_dataset()
        assert len(ds) == 16
        each = loader(ds, workers, persistent_workers=persistent)
        epochs = [rows(each)]
        for batch in each:
            break  # counts as an epoch
        epochs.append(rows(each))
        ds.set_epoch(1)
        epochs.append(rows(each))
        found.append(epochs)
    ds = dataset().to_torch_dataset()
    both = loader(ds, 2), loader(ds, 1)  # of one dataset: they take epochs in turns
    mixed = [rows(both[0]), rows(both[1]), rows(both[0])]

    unordered = rows(loader(dataset(deterministic=False).to_torch_dataset(), 3))
    assert sorted(sum(unordered, [])) == list(range(1000))
    ds = dataset().to_torch_dataset()
    ds.load_state_dict(ds.state_dict())
    assert "StatefulDataLoader" in refused(af.StateError, 1, ds)

    reference = dataset().to_torch_dataset()
    whole = [rows(reference) for _ in range(3)]
    assert all(epochs == [whole[0], whole[2], whole[1]] for epochs in found)
    assert mixed == whole
    told = refused(af.ForkError, 1, dataset().to_torch_dataset())
    assert "forkserver" in told and "'spawn'" in told and "num_workers=0" in told
    print("done")
    """
    assert run(script) == "done\n"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc here")
def test_forked_workers_do_not_wait_for_threads_that_are_not_there(data: Any) -> None:
    """Of Polars, which starts them where a schema is asked for; who needs none of them goes on."""
    script = """
    import polars as pl
    multiprocessing.set_start_method("fork")
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
    assert len(rows(loader(found, 2))) == 16
    """
    run(script)


def test_spawned_workers(data: Any) -> None:
    found: Any = dataset().to_torch_dataset()
    loader = data.DataLoader(
        found, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context="spawn"
    )
    whole = reference(3)  # this process runs pipelines, too
    assert epochs_of(loader, 2) == whole[:2]
    found.set_epoch(2)
    kept = list(loader)  # a worker writes its memory again, but none of which a batch is left
    assert plained(kept) == whole[2]


STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader
multiprocessing.set_start_method("fork")

def stateful(workers, **options):
    return StatefulDataLoader(dataset().to_torch_dataset(), batch_size=None, num_workers=workers, **options)

found = []
for workers, persistent, taken in {cases}:
    options = dict(persistent_workers=persistent)
    first = stateful(workers, **options)
    rows(first)
    if taken:
        batches = iter(first)
        for _ in range(min(taken, 16)):
            next(batches)
        if taken > 16:
            assert next(batches, None) is None
    state = first.state_dict()
    del first
    again = stateful(workers, **options)
    again.load_state_dict(state)
    found.append((taken, rows(again), rows(again)))
reference = dataset().to_torch_dataset()
whole = [rows(reference) for _ in range(4)]
for taken, rest, after in found:
    if 0 < taken <= 16:
        assert (rest, after) == (whole[1][taken:], whole[2]), taken
    else:
        first = 2 if taken else 1
        assert (rest, after) == (whole[first], whole[first + 1]), taken
print("done")
"""


def test_stateful_data_loaders_go_on_with_the_next_batch(data: Any) -> None:
    """Also where one worker has come to its end and others have not (15), or all have, but nobody asked again (16)."""
    pytest.importorskip("torchdata", reason="torchdata is not installed")
    cases = [(1, False, 7), (1, False, 16), (2, False, 7), (2, True, 15), (2, True, 17), (4, True, 16)]
    cases += [
        (0, False, taken) for taken in (0, 1, 16, 17)
    ]  # last: where a pipeline has run nothing can be forked
    assert run(STATEFUL.replace("{cases}", repr(cases))) == "done\n"


# ---------------------------------------------------------------- parts


def workers_of(found: Any, count: int, data: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what `iter` is of copies of a dataset, as if each lived in a worker, from the place of a state on."""
    copies = [pickle.loads(pickle.dumps(found)) for _ in range(count)]

    def begin(index: int, seed: int = 100, state: Any = None) -> Any:
        info = types.SimpleNamespace(id=index, num_workers=count, seed=seed + index)
        monkeypatch.setattr(data, "get_worker_info", lambda: info)
        if state is not None:
            copies[index].load_state_dict(state)
        return iter(copies[index])

    return copies, begin


@pytest.mark.parametrize("last", [0, 1])
def test_a_worker_that_had_ended_ends_again(last: int, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where results come out of order others may go on; the next epoch is the same one for all of them."""
    original = dataset().to_torch_dataset()
    whole = reference(2)
    copies, begin = workers_of(original, 2, data, monkeypatch)
    first, second = begin(0), begin(1)
    next(first)
    assert plained(second) == whole[0][1::2]
    states = json.loads(json.dumps([copy.state_dict() for copy in copies]))
    for _ in range(2):
        copies, begin = workers_of(dataset().to_torch_dataset(), 2, data, monkeypatch)
        found: list[Any] = [None, None]
        for index in (1 - last, last):
            found[index] = begin(index, state=states[index])
        states = [copy.state_dict() for copy in copies]
        assert [plained(rest) for rest in found] == [whole[0][2::2], []]
        assert [plained(begin(index)) for index in (0, 1)] == [whole[1][0::2], whole[1][1::2]]


def test_workers_share_the_budgets(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = af.Options(cpu_budget=5, ram_budget="64MiB")
    copies, begin = workers_of(dataset().with_options(asked).to_torch_dataset(), 2, data, monkeypatch)
    for _ in range(2):
        for index in (0, 1):
            next(begin(index))
    assert [copy.stats().ledger_budget_bytes for copy in copies] == [32 << 20] * 2
    assert all(" of 2 cores" in copy.explain() for copy in copies)
    copies, begin = workers_of(dataset().with_options(asked).to_torch_dataset(), 8, data, monkeypatch)
    next(begin(7))
    assert " of 1 cores" in copies[7].explain()


def test_too_many_workers_for_the_budget(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the part that is too little, and what was given."""
    rows = af.range(100_000).shuffle(50_000).batch(10).with_options(af.Options(ram_budget="1MiB"))
    next(iter(rows))
    _, begin = workers_of(rows.to_torch_dataset(lanes=4), 3, data, monkeypatch)  # the first one has two lanes
    with pytest.raises(
        af.BudgetError, match=r"ram_budget=349,525 bytes.*each of 3 processes.*1,048,576 bytes"
    ):
        begin(0)


def test_workers_that_start_anew_are_of_the_next_epoch(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Any = dataset().to_torch_dataset()
    whole = reference(3)
    for epoch, seed in enumerate((7, 8)):
        _, begin = workers_of(original, 4, data, monkeypatch)
        for index in (2, 0, 3, 1):
            assert plained(begin(index, seed)) == whole[epoch][index::4]
    original.set_epoch(2)
    _, begin = workers_of(original, 1, data, monkeypatch)
    assert plained(begin(0, 8)) == whole[2]


def test_epochs_are_counted_by_pass() -> None:
    epochs = SharedEpochs(4)
    copy = pickle.loads(pickle.dumps(epochs))
    assert (epochs.take(), copy.take(), epochs.next) == (4, 5, 6)
    epochs.name = copy.name = "one"
    assert (epochs.take(), copy.take(), copy.next) == (6, 6, 7)
    epochs.name = "two"
    assert (epochs.take(), copy.take()) == (7, 6)
    copy.next = 9
    assert (epochs.take(), epochs.next) == (7, 9)
    epochs.name = None
    epochs.next = 2
    assert (copy.take(), copy.next) == (2, 3)


def test_old_passes_are_forgotten() -> None:
    epochs = SharedEpochs()
    for number in range(MAX_PASSES + 1):
        epochs.name = str(number)
        assert epochs.take() == number
    epochs.name = "0"
    assert epochs.take() == MAX_PASSES + 1


def test_the_count_leaves_no_file() -> None:
    epochs = SharedEpochs()
    copy = pickle.loads(pickle.dumps(epochs))
    path = Path(epochs._path)
    del copy
    gc.collect()
    assert path.exists()
    copy = pickle.loads(pickle.dumps(epochs))
    del epochs
    gc.collect()
    assert not path.exists()
    assert (copy.take(), copy.take()) == (0, 1)
    del copy
    gc.collect()
    assert not path.exists()

"""Batches of a `DataLoader`'s workers: what arrives is what was sent, and memory is used again only when nobody reads it."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from arrowflow.arenas import MAX_WAIT, Outbox
from arrowflow.loaders import worker_batch
from arrowflow.loaders.worker_batch import WorkerBatch

pytestmark = [pytest.mark.torch]


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with warnings.catch_warnings(action="ignore"):
        found = pytest.importorskip("torch", reason="PyTorch is not installed")
    __import__("torch.multiprocessing")  # teaches the pickler tensors
    monkeypatch.setattr(worker_batch, "_inboxes", {})
    worker_batch._outbox.cache_clear()
    yield found
    worker_batch._outbox.cache_clear()


def sent(batch: Any) -> Any:
    """Returns a batch after its way to a consumer, which is this process, too."""
    return pickle.loads(ForkingPickler.dumps(WorkerBatch(batch)))


def outbox() -> Outbox:
    return worker_batch._outbox(os.getpid())[1]


def test_a_batch_arrives_as_it_was_sent(torch: Any) -> None:
    batch = {
        "text": ["a", "b"],
        "float": torch.arange(6, dtype=torch.float32).view(2, 3),
        "flag": torch.tensor([True, False, True]),
        "half": torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
        "empty": torch.empty(0, 4),
        "turned": torch.arange(6).view(2, 3).T,
        "number": torch.tensor(7),
        "ragged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    }
    found = sent(batch)
    assert type(found) is dict and list(found) == list(batch)
    ragged = found.pop("ragged"), batch.pop("ragged")
    assert ragged[0].is_nested and [part.tolist() for part in ragged[0]] == [[1] * 2, [1] * 3]
    assert found.pop("text") == batch.pop("text")
    for name, tensor in batch.items():
        assert found[name].dtype is tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor), name
    assert len(outbox()._lent) == 1  # all tensors lie in one arena
    assert found["flag"].untyped_storage().nbytes() == 3  # `torch.save` of a tensor writes no other
    found["float"] += 1  # tensors may be written
    assert sent({}) == {} and sent({"text": "a"}) == {"text": "a"}


def test_an_arena_is_written_again_only_when_nobody_reads_it(torch: Any) -> None:
    first = sent({"x": torch.full((1000,), 1.0)})
    address = first["x"].data_ptr()
    alias = first["x"][3:5].numpy()
    del first
    gc.collect()
    second = sent({"x": torch.full((1000,), 2.0)})
    assert second["x"].data_ptr() != address and alias.tolist() == [1, 1]
    del alias
    third = sent({"x": torch.full((1000,), 3.0)})  # before it the consumer tells that the first one is free
    fourth = sent({"x": torch.full((1000,), 4.0)})
    assert fourth["x"].data_ptr() == address
    assert [float(batch["x"].sum()) for batch in (second, third, fourth)] == [2000, 3000, 4000]


def test_batches_that_are_kept_have_memory_of_their_own(torch: Any) -> None:
    kept = [sent({"x": torch.full((100,), number)}) for number in range(20)]
    assert [batch["x"].unique().tolist() for batch in kept] == [[number] for number in range(20)]
    assert len(outbox()._lent) == 20
    del kept
    for number in range(MAX_WAIT + 3):
        assert sent({"x": torch.full((100,), number)})["x"].unique().tolist() == [number]
    assert len(outbox()._lent) <= 2
    (inbox,) = worker_batch._inboxes.values()
    assert len(inbox._mappings) <= 3


def test_as_many_arenas_are_used_again_as_a_loader_reads_ahead(torch: Any) -> None:
    for _ in range(3):
        ahead = [sent({"x": torch.full((100,), number)}) for number in range(MAX_WAIT // 2)]
        assert [batch["x"].unique().tolist() for batch in ahead] == [[number] for number in range(len(ahead))]
        del ahead
    (inbox,) = worker_batch._inboxes.values()
    assert (
        len(inbox._mappings) == MAX_WAIT // 2 + 1
    )  # the consumer tells of the first ones when the next one comes


def test_of_many_batches_that_are_kept_some_are_looked_at(torch: Any) -> None:
    class Looked:
        def __getitem__(self, index: int) -> int:
            looks.append(index)
            return worker_batch.LENT

    looks: list[int] = []
    kept = [sent({"x": torch.full((10,), number)}) for number in range(3 * MAX_WAIT)]
    address = kept[MAX_WAIT]["x"].data_ptr()
    del kept[MAX_WAIT]
    more = [sent({"x": torch.full((10,), 1000)}) for _ in range(5)]
    assert address in {batch["x"].data_ptr() for batch in more}
    numbers = [*range(MAX_WAIT), *range(MAX_WAIT + 1, 3 * MAX_WAIT)]
    assert [batch["x"].unique().tolist() for batch in kept] == [[number] for number in numbers]
    for arena in outbox()._lent.values():
        arena.bytes = Looked()  # type: ignore[assignment]
    kept.append(sent({"x": torch.ones(10)}))
    assert len(looks) == MAX_WAIT


def test_batches_that_never_arrive_cost_only_their_arena(torch: Any) -> None:
    lost = [ForkingPickler.dumps(WorkerBatch({"x": torch.ones(10)})) for _ in range(3)]
    assert len(lost) == len(outbox()._lent) == 3
    assert sent({"x": torch.zeros(10)})["x"].tolist() == [0] * 10


def test_a_forked_child_may_keep_the_batches_of_its_parent(torch: Any) -> None:
    first = sent({"x": torch.full((1000,), 1.0)})
    address = first["x"].data_ptr()
    worker_batch._keep_for_child()  # as `os.fork` calls it
    del first
    after = [sent({"x": torch.full((1000,), 2.0)}) for _ in range(4)]
    assert address not in {batch["x"].data_ptr() for batch in after}


def test_a_batch_of_larger_size(torch: Any) -> None:
    for rows in (10, 1_000_000, 10, 3_000_000):
        assert float(sent({"x": torch.ones(rows)})["x"].sum()) == rows


def test_workers_that_have_ended_are_forgotten(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = sent({"x": torch.ones(10)})
    (mine,) = worker_batch._inboxes
    monkeypatch.setattr(worker_batch, "_is_running", lambda process: process != mine[0])
    worker_batch._outbox.cache_clear()
    after = sent({"x": torch.zeros(10)})
    assert mine not in worker_batch._inboxes and len(worker_batch._inboxes) == 1
    assert kept["x"].tolist() == [1] * 10 and after["x"].tolist() == [0] * 10


def test_a_process_that_has_ended_is_not_running() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        assert worker_batch._is_running(child.pid)
    assert not worker_batch._is_running(child.pid)


def test_without_descriptors_pytorch_sends_the_tensors(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Outbox, "lend", refused)
    found = sent({"x": torch.ones(10)})
    assert type(found) is dict and found["x"].is_shared() and found["x"].tolist() == [1] * 10


def test_memory_that_a_user_shares_stays_shared(torch: Any) -> None:
    counts = torch.zeros(3).share_memory_()
    found = sent({"x": torch.ones(2), "counts": counts})
    counts[1] = 5
    assert found["counts"].tolist() == [0, 5, 0]


def test_other_copies_of_a_batch_are_ordinary_ones(torch: Any) -> None:
    batch = WorkerBatch({"x": torch.ones(2), "y": "a"})
    for made in (copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert type(made) is WorkerBatch and made["x"].tolist() == [1, 1] and made["y"] == "a"
    assert not worker_batch._inboxes

"""`Options(keep=…)`: what was decoded once is kept for later epochs, and nothing else changes.

`tests/fuzz/test_keep.py` compares batches and states of random plans with and without.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs

import arrowflow as af
from arrowflow import options
from arrowflow import run as run_module
from arrowflow.clock import WallClock
from arrowflow.executor import keeping
from arrowflow.executor.ledger import ticket_bytes
from arrowflow.kernels import kept
from arrowflow.ops.sources.files import split_fetcher, split_readers
from arrowflow.ops.sources.files.split_tasks import SplitTask
from arrowflow.workarounds.streams import stream_bytes
from tests.servers.s3 import S3Server

ROWS = 20_000
GROUP_ROWS = 1_000
ROW_BYTES = 24
"""Of `x`, `y` and `z`."""


def write(path: Path, first: int = 0, rows: int = ROWS) -> None:
    ids = np.arange(first, first + rows)
    pq.write_table(pa.table({"x": ids, "y": ids * 0.5}), path, row_group_size=GROUP_ROWS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(2):
        write(tmp_path / f"{number}.parquet", number * ROWS)
    return tmp_path


def rows_of(folder: Path) -> af.Dataset:
    return af.read_parquet(folder).with_columns(z=pl.col("y") + 1)


def run(loader: af.Loader[dict[str, Any]]) -> tuple[list[int], af.Statistics]:
    """Returns the ids of an epoch, and its figures."""
    found = [number for batch in loader for number in batch["x"].tolist()]
    return found, loader.stats()


def test_after_a_shuffle_the_second_epoch_decodes_nothing(folder: Path) -> None:
    keeps = rows_of(folder).shuffle(5_000, seed=1).batch(512).to_numpy()
    plain = rows_of(folder).shuffle(5_000, seed=1).batch(512).with_options(af.Options(keep=False)).to_numpy()
    for epoch in range(3):
        found, stats = run(keeps)
        assert found == run(plain)[0]
        assert stats.kept_rows == (2 * ROWS if epoch else 0)
        assert 0 < stats.kept_bytes == stats.keepable_bytes <= 1.1 * 2 * ROWS * ROW_BYTES
    assert f"{2 * ROWS:,} rows of this run were not decoded again" in keeps.explain()


def test_the_first_epoch_keeps_nothing_of_a_table_that_is_too_large_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "FIRST_BYTES", int(1.5 * ROWS * ROW_BYTES))
    shutil.copy(
        folder / "0.parquet", folder / "1.parquet"
    )  # so that twice its bytes are exactly twice its rows
    loader = rows_of(folder).shuffle(5_000, seed=1).batch(512).to_numpy()
    figures = [run(loader)[1] for _ in range(3)]
    assert [stats.kept_rows for stats in figures] == [0, 0, 2 * ROWS]
    assert [stats.kept_bytes == stats.keepable_bytes for stats in figures] == [False, True, True]
    assert figures[0].kept_bytes == 0


@pytest.mark.parametrize(
    ("keep", "dear_seconds", "first"),
    [
        pytest.param("64MiB", 1.0, 1, id="asked for"),
        pytest.param("auto", 0.0, 2, id="dear to decode"),
        pytest.param("auto", 1.0, 4, id="cheap to decode"),
    ],
)
def test_batches_that_own_their_memory_are_copies(
    keep: Any, dear_seconds: float, first: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "DEAR_SECONDS", dear_seconds)
    loader = rows_of(folder).batch(500).with_options(af.Options(keep=keep)).to_numpy()
    assert "copies of the chunks that are kept" in loader.explain(copies=True)
    for epoch in range(4):
        found = []
        for batch in loader:
            found += batch["x"].tolist()
            batch["x"][...] = -1  # as a consumer may
        assert found == list(range(2 * ROWS))
        assert loader.stats().kept_rows == (2 * ROWS if epoch >= first else 0)


def test_rows_that_other_threads_decode_are_dear_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars decodes in its own pool, where the thread that makes the call needs next to no CPU time."""
    monkeypatch.setattr(WallClock, "thread_cpu", staticmethod(lambda: 0.0))
    monkeypatch.setattr(kept, "DEAR_SECONDS", 1e-15)
    loader = rows_of(folder).batch(500).to_numpy()
    assert [run(loader)[1].kept_rows for _ in range(3)] == [0, 0, 2 * ROWS]


@pytest.mark.parametrize("error", [OSError, MemoryError, pa.ArrowInvalid])
def test_an_epoch_goes_on_where_nothing_can_be_copied(
    error: type[Exception], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(chunk: pa.RecordBatch) -> int:
        raise error

    monkeypatch.setattr(kept, "stream_bytes", refuse)
    loader = rows_of(folder).batch(500).with_options(af.Options(keep="64MiB")).to_numpy()
    for _ in range(2):
        found, stats = run(loader)
        assert found == list(range(2 * ROWS)) and stats.kept_bytes == 0


@pytest.mark.parametrize("is_mapped", [False, True])
def test_copies_have_the_rows_of_slices_alone_and_their_types(
    *, is_mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MAPPED_BYTES", 0 if is_mapped else 1 << 20)
    words = pa.array(["a", None, "ccc", "a"])
    chunk = pa.record_batch(
        {
            "text": words,
            "code": words.dictionary_encode(),
            "list": pa.array([[1], None, [], [2, 3]]),
            "flag": pa.array([True, False, None, True]),
            "nothing": pa.nulls(4),
            "uuid": pa.array([bytes(16)] * 4, pa.uuid()),
        }
    )
    chunks = [chunk.slice(1, 2), chunk.slice(3), chunk.slice(4), chunk.select([])]
    copies, buffers = zip(*kept._stored(chunks), strict=True)
    if is_mapped:
        taken = sum(stream_bytes(each) for each in chunks)
        counted = sum(size for each in buffers for size in each.values())
        assert counted == -(-taken // mmap.PAGESIZE) * mmap.PAGESIZE
    assert [copy.to_pylist() for copy in copies] == [each.to_pylist() for each in chunks]
    assert [copy.schema for copy in copies] == [each.schema for each in chunks]
    assert [copy.num_rows for copy in copies] == [2, 1, 0, 4]
    assert copies[0]["list"].values.to_pylist() == [] and len(copies[1]["list"].values) == 2


def test_a_size_that_is_asked_for_holds_from_the_first_epoch_on(folder: Path) -> None:
    asked = 2 * ROWS * ROW_BYTES // 2
    loader = rows_of(folder).batch(500).with_options(af.Options(keep=asked)).to_numpy()
    kept = []
    for _ in range(3):
        found, stats = run(loader)
        assert found == list(range(2 * ROWS))
        assert stats.kept_bytes <= asked
        kept.append(stats.kept_rows)
    assert kept[0] == 0
    assert kept[1] == kept[2] > 0.4 * 2 * ROWS, "the first that fit stay"


def test_repetitions_take_from_the_first_one(folder: Path) -> None:
    loader = rows_of(folder).shuffle(1_000, seed=1).repeat(3).batch(500).to_numpy()
    found, stats = run(loader)
    assert sorted(found) == sorted([*range(2 * ROWS)] * 3)
    assert stats.kept_rows > ROWS


@pytest.mark.parametrize(
    ("lanes", "large_bytes", "kept_rows"),
    [
        pytest.param(4, 1 << 20, 2 * ROWS, id="each lane has whole splits"),
        pytest.param(3, 1 << 20, 2 * ROWS - 2 * GROUP_ROWS, id="lanes begin in two splits"),
        pytest.param(4, 1, 2 * ROWS, id="halves"),
    ],
)
@pytest.mark.parametrize("shuffled", [False, True])
def test_lanes_take_from_earlier_epochs_all_splits_in_which_none_begins(
    lanes: int,
    large_bytes: int,
    kept_rows: int,
    *,
    shuffled: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(split_readers, "LARGE_BYTES", large_bytes)
    rows = rows_of(folder).shuffle(5_000, seed=1) if shuffled else rows_of(folder)
    split = rows.batch(60 * lanes).split_by_rank(0, 1, how="parts", lanes=lanes)
    loader, plain = split.to_numpy(), split.with_options(af.Options(keep=False)).to_numpy()
    for epoch in range(2):
        found, stats = run(loader)
        assert found == run(plain)[0]
        assert len(set(found)) == len(found) > 2 * ROWS - lanes, (
            "each row once, but for what equal lanes leave out"
        )
        if not (shuffled and lanes == 3):  # else splits come in another order, and lanes begin in others
            assert stats.kept_rows == (kept_rows if epoch else 0)
        elif epoch:
            assert ROWS < stats.kept_rows <= kept_rows


@pytest.mark.parametrize("keep", ["auto", "64MiB"])
def test_a_rank_with_one_lane_may_write_its_batches(
    keep: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "DEAR_SECONDS", 0.0)
    split = rows_of(folder).batch(400).split_by_rank(1, 4, lanes=4)
    loader = split.with_options(af.Options(keep=keep)).to_numpy()
    for epoch in range(3):
        found = []
        for batch in loader:
            found += batch["x"].tolist()
            batch["x"][...] = -1
        assert found == list(range(ROWS // 2, ROWS))
        assert loader.stats().kept_rows == (ROWS // 2 if epoch > (keep == "auto") else 0)


def test_a_copy_in_another_process_begins_without_chunks(folder: Path) -> None:
    loader = rows_of(folder).shuffle(5_000, seed=1).batch(512).to_numpy()
    run(loader)
    (own,) = run_module._kept(loader._prepared().chain)
    copy = pickle.loads(pickle.dumps(own))
    assert isinstance(own, kept.KeptChunks)
    assert own.chunks
    assert not copy.chunks
    assert (copy.asked_bytes, copy.copies, copy.source_rows) == (own.asked_bytes, own.copies, own.source_rows)


CALLS: dict[str, Callable[[af.Dataset], Any]] = {
    "to_table": lambda ds: ds.to_table(),
    "reduce": lambda ds: ds.reduce(0, lambda total, batch: total + batch.num_rows),
    "peek": lambda ds: ds.batch(10).to_numpy().peek(),
    "keep=False": lambda ds: list(ds.with_options(af.Options(keep=False))),
    "cache": lambda ds: list(ds.cache()),
    "on_error": lambda ds: list(ds.with_options(af.Options(on_error="skip"))),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_kept_where_nobody_comes_again(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = []
    monkeypatch.setattr(keeping, "add", lambda *arguments: added.append(arguments))
    CALLS[name](rows_of(folder).shuffle(1_000, seed=1))
    assert not added
    list(rows_of(folder).shuffle(1_000, seed=1))
    assert added, "or this test cannot fail"


def test_mapped_files_are_not_kept(tmp_path: Path) -> None:
    table = pa.table({"x": range(ROWS)})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    loader = af.read_ipc(tmp_path / "a.arrow").shuffle(1_000, seed=1).batch(500).to_numpy()
    for _ in range(2):
        assert run(loader)[1].kept_bytes == 0


def test_a_file_that_has_changed_is_decoded_anew(folder: Path) -> None:
    loader = rows_of(folder).shuffle(1_000, seed=1).batch(500).to_numpy()
    run(loader)
    assert sorted(run(loader)[0]) == list(range(2 * ROWS))
    write(folder / "0.parquet", 5 * ROWS)
    os.utime(folder / "0.parquet", ns=(1, 1))  # a file system may count time in large steps
    assert sorted(run(loader)[0]) == [*range(ROWS, 2 * ROWS), *range(5 * ROWS, 6 * ROWS)]


def test_a_file_that_changes_during_a_run_is_an_error(folder: Path) -> None:
    loader = (
        rows_of(folder).repeat().batch(500).with_options(af.Options(keep="64MiB", autotune=False)).to_numpy()
    )
    batches = iter(loader)
    for _ in range(2 * ROWS // 500 * 2):
        next(batches)
    assert loader.stats().kept_rows
    os.utime(folder / "0.parquet", ns=(1, 1))
    with pytest.raises(af.SourceError, match="changed"):
        list(batches)


everywhere = pytest.mark.parametrize("remote", ["pyarrow", "s3fs", "memory"], indirect=True)


_numbers = itertools.count()


@pytest.fixture(params=["pyarrow", "memory"])
def remote(request: pytest.FixtureRequest) -> tuple[Any, str]:
    """A file system that is not local, and a folder in it."""
    if request.param == "memory":
        import fsspec

        return fsspec.filesystem("memory"), f"/keep-{next(_numbers)}"
    server: S3Server = request.getfixturevalue("s3_server")
    return (server.native() if request.param == "pyarrow" else server.impatient()), server.bucket()


def upload(remote: tuple[Any, str], name: str, ids: npt.NDArray[np.int64], format: str = "parquet") -> None:
    """Writes a file of the same size for any ids of the same number."""
    filesystem, folder = remote
    if not isinstance(filesystem, pafs.FileSystem):
        filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
    table = pa.table({"x": ids, "y": ids * 0.5})
    with filesystem.open_output_stream(f"{folder}/{name}") as target:
        if format == "parquet":
            pq.write_table(table, target, GROUP_ROWS, compression="none", use_dictionary=False)
        else:
            with pa.ipc.new_file(target, table.schema) as writer:
                writer.write_table(table, GROUP_ROWS)


def reading(remote: tuple[Any, str], **options: Any) -> af.Loader[dict[str, Any]]:
    rows = af.read_parquet(remote[1], filesystem=remote[0]).with_columns(z=pl.col("y") + 1)
    return rows.shuffle(5_000, seed=1).batch(512).with_options(af.Options(**options)).to_numpy()


@everywhere
def test_what_was_decoded_of_files_elsewhere_is_not_fetched_again(
    remote: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        upload(remote, f"{number}.parquet", np.arange(number * ROWS, (number + 1) * ROWS))
    fetched: list[int] = []
    fetch = split_fetcher.SplitFetcher.fetched

    def noted(fetcher: split_fetcher.SplitFetcher, task: SplitTask) -> SplitTask:
        fetched.append(task.key)
        return fetch(fetcher, task)

    monkeypatch.setattr(split_fetcher.SplitFetcher, "fetched", noted)
    keeps, plain = reading(remote), reading(remote, keep=False)
    for epoch in range(3):
        fetched.clear()
        found, stats = run(keeps)
        assert len(set(fetched)) == (0 if epoch else 40)
        assert found == run(plain)[0] and sorted(found) == list(range(2 * ROWS))
        assert stats.kept_rows == (2 * ROWS if epoch else 0)


@everywhere
def test_a_file_elsewhere_that_has_changed_is_decoded_anew(remote: tuple[Any, str]) -> None:
    ids = np.arange(ROWS)
    for number in range(2):
        upload(remote, f"{number}.parquet", ids + number * ROWS)
    loader = reading(remote)
    assert sorted(run(loader)[0]) == list(range(2 * ROWS))
    upload(remote, "1.parquet", ids + 5 * ROWS)
    expected = [*ids.tolist(), *(ids + 5 * ROWS).tolist()]
    told = "written again"
    try:
        found, stats = run(loader)
    except af.SourceError as error:  # a second later than its listing: as without kept chunks
        told = str(error)
        found, stats = run(loader)
    assert "written again" in told
    assert sorted(found) == expected and stats.kept_rows <= ROWS
    assert sorted(run(loader)[0]) == expected


def test_chunks_that_go_before_the_reader_takes_them_are_fetched_by_it(
    remote: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(remote, "0.parquet", np.arange(ROWS))
    monkeypatch.setattr(split_fetcher.SplitFetcher, "_is_kept", lambda self, task: True)
    loader = reading(remote)
    for _ in range(2):
        assert sorted(run(loader)[0]) == list(range(ROWS))
    assert run(loader)[1].kept_rows == ROWS


def test_kept_chunks_of_ipc_files_elsewhere_own_their_memory(remote: tuple[Any, str]) -> None:
    upload(remote, "0.arrow", np.arange(ROWS), "ipc")
    loader = (
        af.read_ipc(remote[1], filesystem=remote[0]).select("y").shuffle(5_000, seed=1).batch(512).to_numpy()
    )
    expected = (np.arange(ROWS) * 0.5).tolist()
    for epoch in range(3):
        found = [number for batch in loader for number in batch["y"].tolist()]
        assert sorted(found) == expected
        assert loader.stats().kept_rows == (ROWS if epoch == 2 else 0)
    assert loader.stats().kept_bytes <= 1.1 * ROWS * 8


def test_batches_of_files_elsewhere_that_own_their_memory_are_copies(remote: tuple[Any, str]) -> None:
    upload(remote, "0.parquet", np.arange(ROWS))
    loader = af.read_parquet(remote[1], filesystem=remote[0]).batch(500).to_numpy()
    for epoch in range(4):
        found = []
        for batch in loader:
            found += batch["x"].tolist()
            batch["x"][...] = -1
        assert found == list(range(ROWS))
        assert loader.stats().kept_rows == (ROWS if epoch >= 2 else 0)


def test_a_small_file_elsewhere_comes_with_its_footer(remote: tuple[Any, str]) -> None:
    upload(remote, "0.parquet", np.arange(1_000))
    loader = reading(remote)
    for _ in range(2):
        found, stats = run(loader)
        assert sorted(found) == list(range(1_000))
        assert stats.kept_bytes == stats.kept_rows == 0


def test_a_kept_chunk_goes_on_with_a_claim_on_its_bytes(folder: Path) -> None:
    """Functions after it are foreseen by the claim, and it counts where nothing keeps it any more."""
    dataset = rows_of(folder).map(lambda batch: batch, keeps_rows=True)
    list(dataset)
    engine = run_module.start(dataset._ready(), 1, None, WallClock(), None)
    try:
        item = engine.next_item()
        assert item is not None
        assert engine.statistics().kept_rows
        assert ticket_bytes(item.ticket) >= item.chunk.nbytes > 0
    finally:
        engine.close()


def test_memory_goes_with_the_dataset(folder: Path) -> None:
    gc.collect()
    before = pa.total_allocated_bytes()
    dataset = rows_of(folder).shuffle(1_000, seed=1).batch(500)
    loader = dataset.to_numpy()
    run(loader)
    assert pa.total_allocated_bytes() - before >= 2 * ROWS * ROW_BYTES
    del dataset, loader
    assert pa.total_allocated_bytes() - before < ROWS


@pytest.mark.parametrize("copies", [False, True])
def test_the_ledger_stays_within_any_budget(copies: bool, folder: Path) -> None:
    dataset = rows_of(folder) if copies else rows_of(folder).shuffle(4_000, seed=1)
    largest = 64 * GROUP_ROWS * ROW_BYTES  # a call decodes at most so many row groups
    for budget in (300_000, 700_000, 2_000_000):
        own = af.Options(ram_budget=budget, keep=budget // 2 if copies else "auto")
        loader = dataset.batch(500).with_options(own).to_numpy()
        for _ in range(3):
            found, stats = run(loader)
            assert sorted(found) == list(range(2 * ROWS))
            assert stats.ledger_peak_bytes <= budget + min(largest, budget)
            assert stats.kept_bytes <= budget // 2


def test_a_pipeline_that_needs_memory_gets_that_of_kept_chunks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarter = 2 * 2 * ROWS * ROW_BYTES
    monkeypatch.setattr(options, "available_memory_bytes", lambda: 4 * quarter)
    train = rows_of(folder).shuffle(1_000, seed=1).batch(500).to_numpy()
    run(train)
    assert keeping.idle_bytes() == train.stats().kept_bytes > 0.4 * quarter

    # Two windows are collected and gathered, which take all of the budget.
    window = int(0.7 * 2 * ROWS)
    other = rows_of(folder).shuffle(window, seed=2).batch(500).to_numpy()
    batches = iter(other)
    first = next(batches)
    held = other.stats().ledger_bytes + keeping.idle_bytes()
    assert held <= quarter + window * ROW_BYTES
    assert keeping.idle_bytes() < train.stats().kept_bytes, "nothing went, or this test cannot fail"
    rest = [number for batch in batches for number in batch["x"].tolist()]
    assert sorted([*first["x"].tolist(), *rest]) == list(range(2 * ROWS))
    assert sorted(run(train)[0]) == list(range(2 * ROWS))


def test_a_pipeline_that_pauses_gives_up_what_exceeds_its_new_share(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarter = 3 * 2 * ROWS * ROW_BYTES
    monkeypatch.setattr(options, "available_memory_bytes", lambda: 4 * quarter)
    train = rows_of(folder).shuffle(1_000, seed=1).batch(500).to_numpy()
    expected = run(train)[0]
    train.set_epoch(0)
    paused = iter(train)
    found = next(paused)["x"].tolist()
    assert train.stats().kept_bytes > quarter // 4
    other = rows_of(folder).shuffle(10_000, seed=2).batch(500).to_numpy()
    batches = iter(other)
    rest = next(batches)["x"].tolist()
    assert train.stats().kept_bytes <= quarter // 4
    rest += [number for batch in batches for number in batch["x"].tolist()]
    assert sorted(rest) == list(range(2 * ROWS))
    assert other.stats().ledger_peak_bytes <= quarter
    assert found + [number for batch in paused for number in batch["x"].tolist()] == expected


@pytest.mark.parametrize("value", [True, "much", 0, -1, 1.5])
def test_keep_is_auto_false_or_a_size(value: Any) -> None:
    with pytest.raises(af.PlanError, match="keep is 'auto', False or a size"):
        af.Options(keep=value)
    assert af.Options(keep="1KiB").keep == 1024


@pytest.mark.parametrize("keep", ["auto", "64MiB"])
def test_a_state_without_an_order_goes_on_whether_chunks_are_kept_or_not(keep: Any, folder: Path) -> None:
    def joined(keep: Any) -> af.Dataset:
        numbers = af.from_arrow(pa.table({"x": np.arange(2 * ROWS), "name": np.arange(2 * ROWS) % 7}))
        options = af.Options(deterministic=False, keep=keep)
        return rows_of(folder).join(numbers, on="x").batch(500).with_options(options)

    with iter(joined(False)) as run:
        found = next(run)["x"].to_pylist()
        state = run.state_dict()
    with iter(joined(keep)) as run:
        run.load_state_dict(state)
        found += [number for batch in run for number in batch["x"].to_pylist()]
    assert sorted(found) == list(range(2 * ROWS))

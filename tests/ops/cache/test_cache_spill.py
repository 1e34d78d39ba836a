"""`cache(spill=…)`: whatever lies in files instead of memory, nothing else is different; and what too little memory says."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.errors import CacheFullError
from arrowflow.ops.cache.cache import Cache
from arrowflow.testing import assert_same_batches, batches_of, check_dataset
from tests.ops.cache.cases import TINY, Counted, spilled
from tests.ops.tables import numbers, refused, rows_of, write_shards

pytestmark = pytest.mark.any_version

KILOBYTE = 1 << 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "spilled"
    found.mkdir()
    return found


def entries_of(dataset: af.Dataset) -> list[Any]:
    """Returns what the first cache in a dataset holds."""
    node: Any = dataset._plan
    while not isinstance(node, Cache):
        node = node.inputs[0]
    (shelf,) = node.store.shelves
    return [shelf.prefix.entries[number] for number in range(shelf.prefix.num_items)]


def places_of(dataset: af.Dataset) -> list[bool]:
    """Returns for each item of the first cache in a dataset whether it is in a file."""
    return [entry.spilled_bytes > 0 for entry in entries_of(dataset)]


def widened(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Makes 1 KiB of new memory of each row."""
    return Counted(KILOBYTE)(batch)


# ------------------------------------------------------------------------------------------- contracts


def test_contracts_with_the_first_chunk_in_memory(folder: Path) -> None:
    def make() -> af.Dataset:
        return spilled(numbers(100, *[90] * 8).map(widened), folder, 220 * KILOBYTE).batch(70)

    check_dataset(make)
    ds = make()
    batches_of(ds)
    assert places_of(ds) == [False] + [True] * 8


# ------------------------------------------------------------------------------------------- what goes where


def test_half_of_the_budget_is_used_before_files_are(folder: Path) -> None:
    wide = Counted(KILOBYTE)
    ds = spilled(numbers(*[16] * 8).map(wide), folder, 100 * KILOBYTE)
    assert rows_of(ds) == rows_of(ds) == list(range(128))
    assert places_of(ds) == [False] * 3 + [True] * 5
    assert wide.calls == 8


def test_a_small_chunk_finds_room_behind_a_large_one(folder: Path) -> None:
    ds = spilled(numbers(16, 64, 8).map(Counted(KILOBYTE)), folder, 60 * KILOBYTE)
    assert rows_of(ds) == list(range(88))
    assert places_of(ds) == [False, True, False]


def test_slices_of_what_is_in_memory_stay_there(folder: Path) -> None:
    """They take nothing more; those of a chunk that does not fit go one by one."""
    ds = spilled(numbers(16, 16).map(Counted(KILOBYTE)).batch(4), folder, 40 * KILOBYTE)
    assert rows_of(ds) == list(range(32))
    assert places_of(ds) == [False] * 4 + [True] * 4
    sizes = [entry.spilled_bytes for entry in entries_of(ds)[4:]]
    assert max(sizes) < 6 * KILOBYTE


def test_what_is_in_files_is_not_charged(folder: Path) -> None:
    ds = spilled(numbers(*[16] * 40).map(Counted(KILOBYTE)), folder, 100 * KILOBYTE)
    for _ in range(2):
        with iter(ds) as iterator:
            assert sum(batch.num_rows for batch in iterator) == 640
            assert iterator.stats().ledger_peak_bytes <= 200 * KILOBYTE
    with iter(ds) as iterator:
        next(iterator)
        held = [next(iterator) for _ in range(39)]
        assert iterator.stats().ledger_bytes <= 50 * KILOBYTE
        assert sum(batch.num_rows for batch in held) == 39 * 16


def test_memory_is_flat_in_the_later_epochs(folder: Path) -> None:
    ds = spilled(numbers(*[64] * 30).map(Counted(KILOBYTE)), folder, 200 * KILOBYTE)
    gc.collect()
    before = pa.total_allocated_bytes()
    for _ in range(3):
        assert rows_of(ds) == list(range(64 * 30))
    gc.collect()
    assert pa.total_allocated_bytes() - before < 110 * KILOBYTE


def test_other_budgets_share_it(folder: Path) -> None:
    wide = Counted(KILOBYTE)
    ds = spilled(numbers(*[16] * 4).map(wide), folder)
    tight = ds.with_options(af.Options(ram_budget=80 * KILOBYTE))
    assert rows_of(tight.take(32)) == list(range(32))
    assert rows_of(ds) == rows_of(tight) == list(range(64))
    calls = wide.calls
    tiny = ds.with_options(af.Options(ram_budget=TINY))
    refused(af.BudgetError, lambda: rows_of(tiny), "cache", "more than ram_budget", "cache_clear()")
    ds.cache_clear()
    assert rows_of(tiny) == rows_of(ds) == list(range(64))
    assert places_of(ds) == [True] * 4
    assert wide.calls == calls + 4


def test_parquet_with_a_source_order(tmp_path: Path, folder: Path) -> None:
    source = write_shards(tmp_path, [[3, 3], [3, 3], [3]])
    ds = spilled(af.read_parquet(source), folder, 300)
    assert sorted(rows_of(ds.shuffle(2, seed=1))) == rows_of(ds) == list(range(15))


# ------------------------------------------------------------------------------------------- freeing


def maps_of(folder: Path) -> int:
    """Returns how many files in a folder this process has mapped."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(str(folder))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_epochs_that_stop_early_share_a_file(folder: Path) -> None:
    """Each has two descriptors and a map; of those a process may have few."""
    ds = spilled(numbers(*[2] * 40).map(Counted(KILOBYTE), num_parallel_calls=1), folder, TINY)
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for more in range(1, 40):
        with iter(ds) as iterator:
            assert [batch["row"][0].as_py() for batch in itertools.islice(iterator, more)] == [
                *range(0, 2 * more, 2)
            ]
        assert maps_of(folder) <= 1
    assert rows_of(ds) == list(range(80))
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors + 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("how", ["cleared", "deleted"])
def test_both_memory_and_files_are_freed(folder: Path, how: str) -> None:
    gc.collect()
    before = pa.total_allocated_bytes()
    ds = spilled(numbers(*[16] * 8).map(Counted(KILOBYTE)), folder, 100 * KILOBYTE)
    rows_of(ds)
    gc.collect()
    assert maps_of(folder) == 1
    if how == "cleared":
        ds.cache_clear()
    else:
        del ds
    gc.collect()
    assert maps_of(folder) == 0
    assert pa.total_allocated_bytes() - before < 4 * KILOBYTE


def test_batches_outlive_everything(folder: Path) -> None:
    batches = batches_of(spilled(numbers(3, 3), folder, TINY))
    gc.collect()
    assert [batch["row"].to_pylist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]


# ------------------------------------------------------------------------------------------- errors and words


def test_a_full_disk_is_an_error_and_what_came_before_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = Counted(KILOBYTE)
    ds = spilled(numbers(*[16] * 4).map(wide, num_parallel_calls=1), folder, TINY)
    written, left = os.pwrite, [40 * KILOBYTE]

    def pwrite(descriptor: int, data: Any, place: int) -> int:
        if len(data) > left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(data)
        return written(descriptor, data, place)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with iter(ds) as iterator:
        first = [next(iterator), next(iterator)]
        refused(CacheFullError, lambda: next(iterator), "cache", "no room", str(folder))
    left[0] = 1 << 30
    assert_same_batches(batches_of(ds)[:2], first)
    assert rows_of(ds) == list(range(64))


def test_a_folder_that_is_not_there_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    ds = spilled(af.range(3), tmp_path / "missing")
    refused(af.PlanError, lambda: ds.schema, "cache", "missing", "make it")
    (tmp_path / "file").write_text("no folder")
    refused(af.PlanError, lambda: iter(spilled(af.range(3), tmp_path / "file")), "file", "no folder")


@pytest.mark.parametrize("given", ["", 3, b"bytes", "s3://bucket/folder", True])
def test_what_is_no_path_is_refused(given: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).cache(spill=given), "spill", repr(given))


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, folder in (
        ("here", str(tmp_path / "here")),
        (Path("here"), str(tmp_path / "here")),
        (None, None),
    ):
        plan = af.range(3).cache(spill=given)._plan
        assert isinstance(plan, Cache)
        assert plan.spill == folder


def test_explain_says_what_is_where(folder: Path) -> None:
    broken = threading.Event()
    broken.set()

    def fails_at_first(batch: pa.RecordBatch) -> pa.RecordBatch:
        if broken.is_set() and 32 in batch["row"].to_pylist():
            raise OSError("the disk is not there yet")
        return widened(batch)

    ds = spilled(numbers(*[16] * 4).map(fails_at_first), folder, 70 * KILOBYTE)
    text = ds.explain()
    assert f"cache(memory, spill={str(folder)!r})" in text
    assert "holds nothing yet" in text
    with pytest.raises(af.FunctionError):
        rows_of(ds)
    assert "holds the first 32 rows" in ds.explain()
    broken.clear()
    rows_of(ds)
    memory = sum(sum(buffer.size for buffer in entry.buffers) for entry in entries_of(ds))
    files = sum(entry.spilled_bytes for entry in entries_of(ds))
    assert 0 < memory < 35 * KILOBYTE < files + memory
    assert f"holds all 64 rows: {memory:,} bytes in memory and {files:,} bytes spilled" in ds.explain()
    plain = numbers(3).cache()
    rows_of(plain)
    assert "holds all 3 rows: 24 bytes in memory\n" in plain.explain() + "\n"


def said_of_the_whole(ds: af.Dataset) -> int | None:
    """Returns the bytes that all rows would take, as the error says."""
    with pytest.raises(af.BudgetError) as caught:
        rows_of(ds)
    found = re.search(r"rows would take some ([\d,]+)", str(caught.value))
    return None if found is None else int(found[1].replace(",", ""))


def test_too_little_memory_says_what_the_whole_would_take_where_that_is_known() -> None:
    ds = numbers(*[16] * 8).with_columns(y=pl.col("row") * 2).cache()
    tight = ds.with_options(af.Options(ram_budget=400))
    with pytest.raises(af.BudgetError, match="all 128 rows would take some") as caught:
        rows_of(tight)
    assert str(caught.value).count("more than it allows") == 1
    twice = ds.filter(pl.col("row") >= 0).cache().with_options(af.Options(ram_budget=400))
    refused(af.BudgetError, lambda: rows_of(twice), "all 128 rows would take some")
    filtered = numbers(40, 40).filter(pl.col("row") > 3).cache().skip(1).cache()
    refused(af.BudgetError, lambda: rows_of(filtered.with_options(af.Options(ram_budget=320))), "bytes")
    opaque = numbers(*[16] * 8).map(Counted(KILOBYTE)).cache()
    assert said_of_the_whole(opaque.with_options(af.Options(ram_budget=40 * KILOBYTE))) is None


@pytest.mark.parametrize("size", [1, 10, 1_000])
def test_slices_of_one_buffer_do_not_count_again_for_each_row(size: int) -> None:
    """The first one takes it all, and more rows take nothing more."""
    table = pa.table({"row": pa.array(range(1_000))})
    ds = af.from_arrow(table).batch(size).cache().with_options(af.Options(ram_budget=KILOBYTE))
    assert said_of_the_whole(ds) == (8_000 if size < 1_000 else None)


def test_new_memory_for_each_chunk_counts_for_each_row() -> None:
    ds = numbers(*[100] * 50).with_columns(y=pl.col("row") * 2).cache()
    found = said_of_the_whole(ds.with_options(af.Options(ram_budget=5_000)))
    assert found is not None
    assert found == pytest.approx(16 * 5_000, rel=0.05)

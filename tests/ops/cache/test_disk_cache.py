"""`cache(path)`: hit, miss and any mixture are the same; what was committed is not computed again; damage is noticed."""

from __future__ import annotations

import errno
import fcntl
import gc
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.caching.store import entry as entries
from arrowflow.caching.store import files
from arrowflow.caching.store import folder as folders
from arrowflow.caching.store.chunk import Chunk, Link, Name
from arrowflow.caching.store.claim import claim
from arrowflow.caching.store.folder import listed
from arrowflow.caching.store.stored import CachedPlan
from arrowflow.ops.cache import serving
from arrowflow.storage import UNFINISHED
from arrowflow.testing import Fault, Gate, assert_same_batches, batches_of, check_resume, raising, waiting
from tests import warm
from tests.ops.cache.cases import SMALL, Log, same
from tests.ops.tables import ids, rows_of, write_shards

pytestmark = pytest.mark.any_version

KEY = "the functions of this module"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def chunks_of(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.arrow"))


# ---------------------------------------------------------------------------------------------- computed once


def test_other_plans_data_and_versions_make_other_entries(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path)
    ds = af.read_parquet(path).cache(root)
    assert rows_of(ds, "x") == [1, 2, 3]
    pq.write_table(pa.table({"x": [4, 5, 6]}), path)
    os.utime(path, ns=(1, 1))
    assert rows_of(af.read_parquet(path).cache(root), "x") == [4, 5, 6]
    assert rows_of(af.read_parquet(path).with_columns(x=pl.col("x") + 1).cache(root), "x") == [5, 6, 7]
    assert len(af.cache_info(root)) == 3


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_the_loop_cannot_write_to_memory_of_the_source(compression: Any, root: Path) -> None:
    """The epoch that adds rows passes them on, so a compressed cache owns no more than its input does."""
    table = pa.table({"x": range(12)})
    ds = af.from_arrow(table).cache(root, compression=compression).batch(5)
    for _ in range(2):
        assert not any(batch["x"].flags.writeable for batch in ds.to_numpy())


def test_a_shuffle_above_that_orders_the_source_makes_another_entry(root: Path, tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [[3, 4], [5], [2, 2]])
    plain = batches_of(af.read_parquet(paths).cache(root))
    shuffled = batches_of(af.read_parquet(paths).shuffle(4, seed=1).batch(2))
    assert batches_of(af.read_parquet(paths).cache(root)) == plain
    for _ in range(2):
        again = batches_of(af.read_parquet(paths).cache(root).shuffle(4, seed=1).batch(2))
        assert_same_batches(again, shuffled)
    assert len(af.cache_info(root)) == 2


def rerun(root: Path, runs: Iterator[int], chunks: Iterable[int] = range(4)) -> af.Dataset:
    """Returns a dataset whose rows say which run of its generator they are of."""

    def rows() -> Iterator[pa.RecordBatch]:
        run = next(runs)
        yield from (pa.record_batch({"run": pa.array([run] * 50)}) for _ in chunks)

    return af.from_generator(rows).cache(root, key="runs")


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_resume_into_the_middle_of_nothing_stores_nothing(repeatable: bool, root: Path) -> None:
    """What it computed would else be stored as the rows from the start on."""

    def rows() -> Iterator[dict[str, int]]:
        yield from ({"id": number} for number in range(12))

    def make(folder: Path) -> af.Dataset:
        ds = af.range(12).with_options(SMALL).map(same) if repeatable else af.from_generator(rows).batch(3)
        return ds.cache(folder, key=KEY)

    with iter(make(root / "a")) as iterator:
        assert next(iterator).num_rows == 3
        state = iterator.state_dict()
    with iter(make(root / "b")) as iterator:
        iterator.load_state_dict(state)
        assert [row for batch in iterator for row in batch["id"].to_pylist()] == list(range(3, 12))
    assert not chunks_of(root / "b")
    assert ids(make(root / "b")) == ids(make(root / "b")) == list(range(12))


def test_rows_from_the_middle_of_a_stored_chunk_are_counted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "GROUP_SECONDS", 60.0)
    ds = af.range(120).with_options(SMALL).map(same).cache(root, key=KEY, compression="zstd")
    assert ids(ds) == list(range(120))
    assert len(chunks_of(root)) < 36, "the later chunks hold several batches"
    with iter(ds) as iterator:
        states = [iterator.state_dict() for _ in itertools.islice(iterator, 33)][29:]
    for number, state in enumerate(states, 30):
        with iter(ds) as iterator:
            iterator.load_state_dict(state)
            assert sum(batch.num_rows for batch in iterator) == 120 - 3 * number
            assert {stage.rows for stage in iterator.stats().stages} == {120 - 3 * number}


@pytest.mark.parametrize("damage", ["flipped", "deleted"])
def test_rows_of_two_runs_never_meet(damage: str, root: Path) -> None:
    runs = itertools.count()
    assert set(rows_of(rerun(root, runs), "run")) == {0}
    for number in range(2):
        entries._entries.clear()
        gc.collect()
        path = chunks_of(root)[number]
        flip(path) if damage == "flipped" else path.unlink()
        assert rows_of(rerun(root, runs), "run") == [number + 1] * 200
        assert rows_of(rerun(root, runs), "run") == [number + 1] * 200
        assert [(entry.num_rows, entry.complete) for entry in af.cache_info(root)] == [(200, True)]
        assert len(list(root.iterdir())) == 2  # the entry, and the lock


def plan_of(*, repeatable: bool) -> CachedPlan:
    return CachedPlan(fingerprint="0" * 32, about={}, repeatable=repeatable, verify=True, compression=None)


def entry_of(root: Path) -> entries.Entry:
    return entries.Entry(root.resolve(), plan_of(repeatable=False))


def filled(entry: entries.Entry, run: int, *, damaged: bool = False) -> list[Name]:
    """Writes two chunks with one row each; or only the second, as if the first one had been lost."""
    schema = pa.schema({"run": pa.int64()})
    batch = pa.record_batch([pa.array([run])], schema=schema)
    return [
        entry.commit(
            row, (row,) if row else None, [(batch, Link(1, (row + 1,), 0, row == 1))], schema, end=row == 1
        )
        for row in range(damaged, 2)
    ]


def runs_in(root: Path) -> list[int]:
    entry = entry_of(root)
    entry.refresh()
    return [entry_chunk.batch(0)["run"][0].as_py() for entry_chunk in entry.whole() or ()]


def test_an_entry_that_took_the_name_first_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = entry_of(root)
    first, *others = (final.filling() for _ in range(3))
    filled(others[0], 0, damaged=True)
    others[0].folder.rename(final.folder)
    del others[0]
    names = filled(first, 1)
    filled(others[0], 2)

    def slow(folder: Path, *left_out: Any) -> Any:
        found = listed(folder, *left_out)
        if folder == final.folder and others:
            others.pop().finish()  # between a look at the damaged one and its removal
        return found

    monkeypatch.setattr(folders, "listed", slow)
    first.finish()
    assert not others
    assert runs_in(root) == [2, 2]
    # What lost the name is read on by the run that wrote it.
    assert [first.open(name).batch(0)["run"][0].as_py() for name in names] == [1, 1]
    monkeypatch.undo()
    del first
    gc.collect()
    assert [path.name for path in root.iterdir()] == [final.folder.name]


def test_an_entry_that_becomes_another_one_is_not_served_in_part(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (entry_of(root).filling() for _ in range(2))
    filled(first, 1)
    filled(second, 2)
    first.finish()

    def opened(folder: Path, name: Name, **options: Any) -> Chunk:
        if name.first_row == 1 and second.folder.exists() and folder != second.folder:
            shutil.rmtree(
                folder
            )  # cleared between a look at the first chunk and at the second, and filled anew
            second.finish()
        return open_chunk(folder, name, **options)

    open_chunk = files.open_chunk
    monkeypatch.setattr(entries, "open_chunk", opened)
    entry = entry_of(root)
    entry.refresh()
    assert entry.whole() is None
    assert runs_in(root) == [2, 2]


FORKING = """
import os, sys
from pathlib import Path
from arrowflow.caching.store.entry import Entry
from arrowflow.caching.store.stored import CachedPlan
plan = CachedPlan(fingerprint="0" * 32, about={"plan": []}, repeatable=False, verify=True, compression=None)
entry = Entry(Path(sys.argv[1]), plan)
one = entry.filling()
child = os.fork()
if not child:
    sys.exit()  # in good order, with finalizers
os.waitpid(child, 0)
print(one.folder.is_dir())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_child_that_ends_leaves_what_its_parent_is_filling(root: Path) -> None:
    status, out, errors = warm.plain().run(FORKING, str(root))
    assert (status, out) == (0, "True\n"), errors
    assert list(root.glob("*.filling-*")) == []  # which its own end has removed


def test_one_of_two_threads_finishes_an_entry(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = entry_of(root)
    one = final.filling()
    names = filled(one, 1)
    renames = []

    def renamed(path: Path, target: Path) -> Path:
        renames.append(target)
        other.start()
        other.join()  # it finds that somebody is at it, and goes on
        return rename(path, target)

    rename = Path.rename
    monkeypatch.setattr(Path, "rename", renamed)
    other = threading.Thread(target=one.finish)
    one.finish()
    assert renames == [final.folder]
    assert runs_in(root) == [1, 1]
    # A thread that committed a chunk before the folder had its name opens it behind that.
    assert [one.open(name).name.num_rows for name in names] == [1, 1]


def test_an_entry_that_is_whole_only_now_is_finished_by_who_has_the_turn(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has committed the last chunk that was missing, and found the turn taken."""
    one = entry_of(root).filling()
    filled(one, 1)
    whole = one.refresh()
    answers = iter([whole, whole._replace(num_rows=None)])
    refresh = one.refresh
    monkeypatch.setattr(one, "refresh", lambda: next(answers, None) or refresh())
    one.finish()
    assert runs_in(root) == [1, 1]


def test_a_chunk_is_seen_and_its_folder_renamed_before_its_thread_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = entry_of(root).filling()

    def renamed(path: Path, target: Path) -> Path:
        found = rename(path, target)
        if "-end" in target.name:
            one.finish()
        return found

    rename = Path.rename
    monkeypatch.setattr(Path, "rename", renamed)
    names = filled(one, 1)
    assert runs_in(root) == [1, 1]
    assert [one.open(name).name.num_rows for name in names] == [1, 1]


def test_what_is_cleared_while_it_is_read_is_read_on(root: Path) -> None:
    runs = itertools.count()
    rerun(root, runs).to_table()
    ds = rerun(root, runs)
    with iter(ds) as iterator:
        first = next(iterator)
        af.cache_clear(root)
        rest = [row for batch in iterator for row in batch["run"].to_pylist()]
    assert first["run"].to_pylist() + rest == [0] * 200


def test_files_that_change_behind_the_plan(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path)
    ds = af.read_parquet(path).cache(root)
    assert ds.schema.names == ["x"]
    with iter(ds) as running:
        pq.write_table(pa.table({"x": [4, 5, 6, 7]}), path)
        with pytest.raises(af.SourceError, match="changed since"):
            list(running)
    assert chunks_of(root) == []
    assert rows_of(ds, "x") == [4, 5, 6, 7]
    with iter(ds) as running:
        os.utime(path, ns=(1, 1))
        with pytest.raises(af.SourceError, match="changed since"):
            list(running)
    assert rows_of(ds, "x") == [4, 5, 6, 7]


# ---------------------------------------------------------------------------------------------- damage


def complete(root: Path, *, run: bool = True) -> af.Dataset:
    """Returns a new dataset over an entry that is complete, unless told not to run it."""
    if run:
        assert ids(complete(root, run=False)) == list(range(200))
        entries._entries.clear()
        gc.collect()
    return af.range(200).with_options(af.Options(max_chunk_rows=40)).map(same).cache(root)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped byte": flip,
    "a truncated chunk": lambda path: os.truncate(path, path.stat().st_size // 2),
    "an empty chunk": lambda path: os.truncate(path, 0),
    "a deleted chunk": lambda path: path.unlink(),
    "a foreign file with a chunk's name": lambda path: path.write_bytes(b"ARROW1" * 100),
    "a link to nothing": link_to_nothing,
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_noticed_and_computed_again(case: str, root: Path) -> None:
    for number in (0, 2, 4):
        ds = complete(root)
        entries._entries.clear()
        path = chunks_of(root)[number]
        DAMAGE[case](path)
        assert ids(ds) == list(range(200))
        assert path.is_file() and not path.is_symlink()
        af.cache_clear(root)
        entries._entries.clear()


def test_a_shorter_chunk_takes_the_place_of_a_damaged_one(root: Path) -> None:
    """It is looked into anew, since it may end in front of where the damaged one would have been gone on in."""
    items = [(pa.record_batch({"x": [number]}), Link(1, (number,), 0, False)) for number in range(3)]
    found = entries.entry(str(root), plan_of(repeatable=True))
    assert found.claim() is not None
    longer = found.commit(0, None, items, items[0][0].schema, end=False)
    shorter = found.commit(0, None, items[:1], items[0][0].schema, end=False)
    flip(found.folder / longer.render())
    found.refresh()
    assert found.find((2,)) is None
    place = found.find((0,))
    assert place is not None
    chunk, start = place
    assert chunk is not None
    assert (chunk.name, start) == (shorter, 1)


def test_a_folder_with_the_name_of_a_chunk(root: Path) -> None:
    ds = complete(root)
    entries._entries.clear()
    path = chunks_of(root)[1]
    path.unlink()
    path.mkdir()
    with pytest.raises(af.WriteError, match="directory"):
        ds.to_table()
    path.rmdir()
    assert ids(ds) == list(range(200))


def test_foreign_files_are_left_alone(root: Path) -> None:
    ds = complete(root)
    folder = chunks_of(root)[0].parent
    for name in ("notes.txt", "000000000000040-40-zz.arrow", "other.arrow"):
        (folder / name).write_text("mine")
    (root / "mine").mkdir()
    entries._entries.clear()
    assert ids(ds) == list(range(200))
    assert (folder / "notes.txt").read_text() == "mine" and (root / "mine").is_dir()


def test_without_looking_at_checksums_structure_is_still_looked_at(root: Path) -> None:
    assert ids(af.range(200).cache(root, verify="never")) == list(range(200))
    entries._entries.clear()
    gc.collect()
    os.truncate(chunks_of(root)[0], 100)
    assert ids(af.range(200).cache(root, verify="never")) == list(range(200))


# ---------------------------------------------------------------------------------------------- full disks, folders


def full(*args: Any, **kwargs: Any) -> Any:
    raise af.CacheFullError("no space left on device")


def test_a_full_disk_is_an_error_or_ends_the_caching(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = files.write_chunk
    calls = itertools.count()
    monkeypatch.setattr(entries, "write_chunk", lambda *a, **k: (full if next(calls) > 2 else write)(*a, **k))
    ds = af.range(60).with_options(SMALL).map(lambda b: b)
    with pytest.raises(af.CacheFullError):
        ds.cache(root).to_table()
    assert len(chunks_of(root)) == 3
    assert ids(ds.cache(root, on_full="bypass")) == list(range(60))
    monkeypatch.setattr(entries, "write_chunk", write)
    assert ids(ds.cache(root)) == list(range(60))


@pytest.mark.parametrize(
    ("number", "filled"),
    [(errno.EACCES, 0), (errno.EACCES, 2), (errno.EACCES, 99), (errno.EPERM, 2), (errno.EROFS, 0)],
)
def test_a_folder_that_can_only_be_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, filled: int
) -> None:
    """What the entry has comes from it, and the other rows from the input; nothing is changed there."""
    ds = af.range(60).with_options(SMALL).map(lambda b: b)
    with iter(ds.cache(root)) as iterator:
        for _ in range(filled):
            if next(iterator, None) is None:
                break
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}

    def refuses(call: str) -> Callable[..., Any]:
        real = getattr(os, call)

        def run(path: Any, *args: Any, **kwargs: Any) -> Any:
            writes = call != "open" or (args and args[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if writes and str(path).startswith(str(root)):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *args, **kwargs)

        return run

    for call in ("open", "mkdir", "rename", "unlink", "rmdir", "utime"):
        monkeypatch.setattr(os, call, refuses(call))
    if filled < 99:
        with pytest.raises(af.CacheFullError, match=r"write there|only be read.*on_full"):
            ds.cache(root).to_table()
    assert ids(ds.cache(root, on_full="bypass")) == list(range(60))
    monkeypatch.undo()
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


NUMBERS_OF_ROWS = pa.schema([("x", pa.int64())])


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_files_that_may_not_be_that_large(
    root: Path, compression: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ds = af.from_numpy({"x": np.random.default_rng(0).standard_normal(100_000)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
        found = ds.cache(root, on_full="bypass", compression=compression).to_table()
        with pytest.raises(af.CacheFullError, match="may not be that large"):
            ds.cache(root, compression=compression).to_table()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found.equals(ds.to_table())
    assert "the run goes on without caching" in caplog.text
    assert chunks_of(root) == []
    assert ds.cache(root, compression=compression).to_table().equals(found)
    assert [entry.complete for entry in af.cache_info(root)] == [True]


@pytest.mark.parametrize(
    ("number", "count"), [(errno.ENOSPC, 0), (errno.ENOSPC, 3), (errno.EDQUOT, 3), (errno.EFBIG, 3)]
)
def test_a_full_disk_before_the_first_chunk(
    number: int, count: int, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an input that is not repeatable, too, which begins a folder of its own."""

    def rows() -> Iterator[dict[str, int]]:
        yield from ({"x": number} for number in range(count))

    def refuse(*given: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(entries, "make_folder", refuse)
    for ds in (af.from_generator(rows, schema=NUMBERS_OF_ROWS), af.range(count).rename({"id": "x"})):
        with pytest.raises(af.CacheFullError, match="on_full"):
            ds.cache(root, key="rows").to_table()
        caplog.clear()
        assert rows_of(ds.cache(root, key="rows", on_full="bypass"), "x") == list(range(count))
        assert caplog.text.count("the run goes on without caching") == 1
    assert not root.exists() or chunks_of(root) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(af.WriteError, match="cannot be written"):
        af.range(3).cache(tmp_path / "file" / "cache").to_table()


def test_a_folder_that_vanishes_while_it_is_filled(root: Path) -> None:
    gate = Gate()
    fault = Fault(waiting(gate), when=lambda batch: batch["id"][0].as_py() == 12)
    ds = af.range(60).with_options(SMALL).map(fault).cache(root, key=KEY)
    with iter(ds) as iterator:
        found = [next(iterator) for _ in range(4)]
        # What was delivered has been written, and nothing else can be: the next item waits.
        shutil.rmtree(root)
        gate.open()
        found += iterator
    assert [row for batch in found for row in batch["id"].to_pylist()] == list(range(60))
    assert committed(root) == set(range(12, 60))
    assert ids(ds) == list(range(60))
    assert [entry.complete for entry in af.cache_info(root)] == [True]


@pytest.mark.parametrize("name", ["write_chunk", "flush"])
def test_a_folder_that_vanishes_at_the_worst_moment(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual, moments = getattr(entries, name), [None]

    def removed_before(*arguments: Any) -> Any:
        if moments:
            moments.pop()
            shutil.rmtree(root)
        return actual(*arguments)

    monkeypatch.setattr(entries, name, removed_before)
    ds = af.range(60).with_options(SMALL).cache(root, key=KEY)
    if name == "write_chunk":  # the chunk is written again
        assert ids(ds) == list(range(60))
        assert committed(root) == set(range(60))
    else:  # nothing is left to be written
        entry = entry_of(root).filling()
        filled(entry, 1)
        entry.finish()
    assert not moments


def test_bad_arguments(root: Path) -> None:
    ds = af.range(3)
    lacking: tuple[dict[str, Any], ...] = (
        {"key": "a"},
        {"compression": "lz4"},
        {"on_full": "bypass"},
        {"verify": "never"},
    )
    for given in lacking:
        with pytest.raises(af.PlanError, match="folder"):
            ds.cache(**given)
    wrong: tuple[dict[str, Any], ...] = (
        {"compression": "gzip"},
        {"on_full": "x"},
        {"verify": "x"},
        {"key": 3},
        {"spill": "x"},
    )
    for given in wrong:
        with pytest.raises(af.PlanError, match="cache"):
            ds.cache(root, **given)


# ---------------------------------------------------------------------------------------------- zero-copy, random access


def test_rows_are_mapped_and_aligned(root: Path) -> None:
    table = pa.table({"x": np.arange(100_000, dtype=np.float32), "s": [str(i) for i in range(100_000)]})
    af.from_arrow(table).cache(root).to_table()
    for batch in af.from_arrow(table).cache(root):
        for column in batch.columns:
            for buffer in column.buffers():
                assert buffer is None or not buffer.size or buffer.address % 64 == 0
    before = pa.total_allocated_bytes()
    held = list(af.from_arrow(table).cache(root))
    assert pa.total_allocated_bytes() - before < 100_000
    del held


def test_copies_are_told(root: Path) -> None:
    ds = af.from_numpy({"x": np.arange(10)})
    assert "decodes" not in ds.cache(root).to_numpy().explain(copies=True)
    text = ds.cache(root, compression="zstd").to_numpy().explain(copies=True)
    assert text.splitlines()[-1] == "cache: zstd: every epoch decodes all columns into new memory"
    spilled = ds.cache(spill=root.parent).to_numpy().explain(copies=True)
    assert spilled.splitlines()[-1] == "cache: what does not fit in memory is copied once, into a file"


def test_all_rows_are_shuffled(root: Path) -> None:
    ds = af.range(1000).cache(root).shuffle(seed=1)
    first = ids(ds)
    assert first != sorted(first) and sorted(first) == list(range(1000))
    again = af.range(1000).cache(root).shuffle(seed=1)
    assert ids(again) == first
    check_resume(lambda: af.range(1000).cache(root).shuffle(seed=1).batch(100))
    with pytest.raises(af.PlanError, match="compressed"):
        af.range(10).cache(root, compression="lz4").shuffle(seed=1).to_table()


PICKING: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "select": lambda ds: ds.select("id"),
    "drop": lambda ds: ds.drop("text"),
    "rename": lambda ds: ds.select("id").rename({"id": "n"}),
    "expression": lambda ds: ds.select(n=pl.col("id") * 2),
    "filter": lambda ds: ds.filter(pl.col("half") > 3).select("id"),
    "batch": lambda ds: ds.batch(32).select("half"),
    "function": lambda ds: ds.map(lambda batch: batch, columns=["id"], schema=pa.schema({"id": pa.int64()})),
    "rows": lambda ds: ds.take(100).unique("id").select("text"),
    "no column": lambda ds: ds.select(one=pl.lit(1)),
    "repeat": lambda ds: ds.repeat(2).select("id"),
    "shuffle": lambda ds: ds.shuffle(40, seed=2).select("id"),
    "all": lambda ds: ds,
}
COLUMNS = af.from_arrow(
    pa.table(
        {"id": range(200), "text": [str(number) for number in range(200)], "half": np.arange(200) / 2}
    ).combine_chunks()
).with_options(af.Options(max_chunk_rows=50))


@pytest.mark.parametrize("picks", PICKING.values(), ids=PICKING)
def test_columns_of_shuffled_rows_are_picked_where_they_lie(
    root: Path, picks: Callable[[af.Dataset], af.Dataset]
) -> None:
    expected = picks(COLUMNS.skip(3).take(180).shuffle(seed=1)).to_table()
    ds = picks(COLUMNS.cache(root).skip(3).take(180).shuffle(seed=1))
    for _ in ("cold", "warm"):
        assert ds.to_table().equals(expected)


def test_picked_columns_of_a_cache_that_cannot_be_filled(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = COLUMNS.cache(root, on_full="bypass").shuffle(seed=1).select("half")
    monkeypatch.setattr(entries, "write_chunk", full)
    assert ds.to_table().equals(COLUMNS.shuffle(seed=1).select("half").to_table())
    monkeypatch.undo()
    check_resume(lambda: ds.batch(30))


@pytest.mark.parametrize("count", [0, 39, 40, 130, 199, 200, 500])
def test_what_is_skipped_is_not_read(count: int, root: Path) -> None:
    ds = complete(root)
    check_resume(lambda: ds.skip(count).batch(7), in_full=False)
    first = ids(ds.skip(count))
    assert first == list(range(count, 200))
    if count > 80:
        for path in chunks_of(root)[:2]:
            path.write_bytes(b"")
        entries._entries.clear()
        gc.collect()
        assert ids(complete(root, run=False).skip(count)) == first
        assert [path.stat().st_size for path in chunks_of(root)[:2]] == [0, 0]


def test_states_of_skip_are_the_same_before_it_is_complete(root: Path) -> None:
    def states() -> list[dict[str, Any]]:
        iterator = iter(complete(root, run=False).skip(90).batch(10))
        return [iterator.state_dict() for _ in iterator]

    missed = states()
    complete(root)
    assert states() == missed


def test_an_entry_is_an_ordinary_dataset(root: Path) -> None:
    complete(root)
    (entry,) = af.cache_info(root)
    assert ids(af.read_ipc(entry.path)) == list(range(200))
    fault = Fault(raising(KeyError("broken")), when=lambda batch: batch["id"][0].as_py() == 30)
    with iter(af.range(60).with_options(SMALL).map(fault).cache(root, key=KEY)) as iterator:
        next(iterator)
    half = next(entry for entry in af.cache_info(root) if not entry.complete)
    with pytest.raises(af.SourceError):
        af.read_ipc(half.path).to_table()


# ---------------------------------------------------------------------------------------------- processes

CHILD = """
import json, os, signal, sys
import pyarrow as pa
import arrowflow as af
from arrowflow.ops.cache import serving

# However long one child is not given a processor, the others leave its work to it.
serving.PATIENCE_SECONDS = 600.0
steps, kill_at = 0, -1

def counted(function):
    def call(*args, **kwargs):
        global steps
        steps += 1
        if steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

for name in ("open", "write", "writev", "fsync", "rename", "replace", "close", "mkdir"):
    setattr(os, name, counted(getattr(os, name)))

def work(batch):
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{batch.column(0)[0].as_py()}\\n".encode())
    os.close(descriptor)
    return pa.record_batch({"id": batch["id"], "text": pa.array([str(v) * 3 for v in batch["id"].to_pylist()])})

# To import all this takes longer than a run, so runs are forked: one for each line.
for line in sys.stdin:
    root, log, kill_at = json.loads(line)
    child = os.fork()
    if not child:
        steps = 0
        ds = af.range(4000).with_options(af.Options(max_chunk_rows=100)).map(work, num_parallel_calls=2)
        rows = [batch.to_pydict() for batch in ds.cache(root, key="work")]
        print(json.dumps(rows), flush=True)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        print(status, flush=True)
"""


class Runs:
    """A process that runs a plan, in one process after the other."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", CHILD]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def start(self, root: Path, log: Path, kill_at: int = -1) -> None:
        """Begins a run, which kills itself at its n-th step."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(root), str(log), kill_at]) + "\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        """Returns the batches of a run, or its exit status."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def committed(root: Path) -> set[int]:
    names = [Name.parse(path.name) for path in chunks_of(root)]
    return {row for name in names if name for row in range(name.first_row, name.first_row + name.num_rows)}


@pytest.mark.slow
@pytest.mark.versions
def test_a_run_that_is_killed_anywhere_is_gone_on_with(tmp_path: Path) -> None:
    root, log = tmp_path / "cache", tmp_path / "log"
    done: set[int] = set()
    with Runs() as runs:
        runs.start(tmp_path / "other", tmp_path / "other-log")
        expected = runs.result()
        for kill_at in (3, 9, 17, 31, 52, 60, 75, 90):
            before = len(Log(log).rows)
            runs.start(root, log, kill_at)
            assert runs.result() == -signal.SIGKILL
            assert not done & set(Log(log).rows[before:])
            assert committed(root) >= done
            done = committed(root)
        runs.start(root, log)
        assert runs.result() == expected
    assert committed(root) == set(range(4000))


@pytest.mark.slow
@pytest.mark.versions
def test_processes_share_the_work(tmp_path: Path) -> None:
    root, log = tmp_path / "cache", tmp_path / "log"
    with Runs() as one, Runs() as two, Runs() as three:
        processes = (one, two, three)
        for process in processes:
            process.start(root, log)
        first, *others = [process.result() for process in processes]
    assert others == [first, first]
    assert [row for batch in first for row in batch["id"]] == list(range(4000))
    assert sorted(Log(log).rows) == list(range(0, 4000, 100))


def test_who_waits_for_too_long_computes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PATIENCE_HERE_SECONDS", 0.0)
    ds = af.range(60).with_options(SMALL).map(lambda b: b).cache(root)
    first = iter(ds)
    rows = next(first)["id"].to_pylist()
    assert ids(ds) == list(range(60))
    assert rows + [row for batch in first for row in batch["id"].to_pylist()] == list(range(60))


def test_who_gets_on_is_waited_for(root: Path) -> None:
    """Also where nobody sees what an input that cannot be repeated has yielded before that is whole."""
    found = entries.entry(str(root), plan_of(repeatable=False))
    filling, batch = found.filling(), pa.record_batch({"id": [1]})
    computed: list[int] = []

    class Other:
        """Computes a row whenever somebody waits for it, up to a hundred."""

        run_storage: ClassVar[dict[Any, Any]] = {}

        def wait(self, seconds: float) -> bool:
            row = len(computed)
            if row < 100:
                items = [(batch, Link(1, (row + 1,), 0, last=False))]
                filling.commit(row, (row,), items, batch.schema, end=False)
            computed.append(row)
            return True

    kernel = serving.DiskCacheKernel(
        found,
        batch.schema,
        cast(Any, Other()),
        defers=False,
        changed=lambda: None,
        bypasses=False,
        budget_bytes=1 << 20,
    )
    held = found.claim()
    while kernel._looks_again():
        pass
    assert held is not None and 100 < len(computed) < 200


def test_a_chunk_that_is_written_while_an_entry_is_completed_does_not_stay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = entries.entry(str(root), plan_of(repeatable=True))
    batch = pa.record_batch({"id": range(4)})
    unlink = Path.unlink

    def commit(first: int, stop: int) -> None:
        position = None if first == 0 else (first,)
        items = [(batch.slice(first, stop - first), Link(stop - first, (stop,), 0, last=True))]
        found.commit(first, position, items, batch.schema, end=stop == 4)

    def late(path: Path, missing_ok: bool = False) -> None:
        if path.name == UNFINISHED:
            commit(1, 4)
        unlink(path, missing_ok)

    held = found.claim()
    commit(0, 2)
    commit(2, 4)
    monkeypatch.setattr(Path, "unlink", late)
    found.finish()
    assert held is not None and sorted(path.name[:15] for path in found.folder.glob("*.arrow")) == [
        f"{row:015}" for row in (0, 2)
    ]


def test_two_that_compute_the_same_leave_one_of_each_row(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PATIENCE_HERE_SECONDS", 0.0)
    numbers = itertools.count()

    def uneven(batch: pa.RecordBatch) -> pa.RecordBatch:
        next(numbers)
        return batch

    cached = af.range(600).with_options(af.Options(max_chunk_rows=10)).map(uneven).cache(root, key="uneven")
    assert ids(af.zip(cached, cached.rename({"id": "x"}))) == list(range(600))
    (entry,) = af.cache_info(root)
    assert entry.complete and entry.num_rows == 600
    assert ids(af.read_ipc(entry.path)) == list(range(600))


def locked(root: Path) -> Any:
    """Takes the lock as another process would."""
    (path,) = root.glob("*/lock")
    file = path.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def test_what_is_there_comes_before_the_wait_for_more(root: Path) -> None:
    ds = complete(root)
    chunks_of(root)[-1].unlink()
    chunks_of(root)[-1].unlink()
    there = len(committed(root))
    with locked(root), iter(ds) as iterator:
        rows = [row for batch in itertools.islice(iterator, 2) for row in batch["id"].to_pylist()]
    assert rows == list(range(80)) and there >= 80
    assert ids(ds.take(40)) == list(range(40))


def test_rows_before_an_error_come_and_are_kept(root: Path) -> None:
    fault = Fault(raising(KeyError("broken")), at=60)
    ds = af.range(240).with_options(SMALL).map(fault, num_parallel_calls=1).cache(root, key=KEY)
    iterator = iter(ds)
    found = [next(iterator)["id"].to_pylist() for _ in range(60)]
    with pytest.raises(af.FunctionError):
        next(iterator)
    assert list(itertools.chain(*found)) == list(range(180))
    assert committed(root) == set(range(180))
    assert ids(ds) == list(range(240))


def test_an_entry_that_was_mended_looks_whole(root: Path) -> None:
    ds = complete(root)
    for number in (1, -1):
        chunks_of(root)[number].unlink()
        entries._entries.clear()
        gc.collect()
        assert ids(complete(root, run=False)) == list(range(200))
        assert list(root.glob("*/_UNFINISHED")) == []
    assert ids(ds) == list(range(200))


def test_behind_a_gap_nothing_is_computed_again(root: Path, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")

    def made() -> af.Dataset:
        return af.range(300).with_options(af.Options(max_chunk_rows=10)).map(log).cache(root, key="log")

    iterator = iter(made())
    states = [iterator.state_dict() for _ in iterator]
    chunks_of(root)[1].unlink()
    entries._entries.clear()
    gc.collect()
    before = len(log.rows)
    resumed = iter(made())
    resumed.load_state_dict(states[15])
    assert [row for batch in resumed for row in batch["id"].to_pylist()] == list(range(160, 300))
    assert len(log.rows) == before


def test_what_was_broken_off_leaves_nothing_that_cannot_be_used(root: Path) -> None:
    runs = itertools.count()
    for _ in range(3):
        ds = rerun(root, runs, chunks=itertools.count())
        with iter(ds) as iterator:
            next(iterator)
        del ds, iterator
        gc.collect()
    assert [path.name for path in root.iterdir() if path.is_dir()] == []


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX, where that is imported
def test_a_forked_child_has_no_part_in_a_lock(root: Path) -> None:
    root.mkdir()
    mine = claim(root / "lock")
    assert mine is not None and claim(root / "lock") is None
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.read(read, 1)  # outlives the parent's claim
        os._exit(0)
    mine.release()
    again = claim(root / "lock")
    os.write(write, b"x")
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    assert again is not None


def test_a_link_in_place_of_a_lock_is_not_followed(root: Path, tmp_path: Path) -> None:
    ds = complete(root)
    chunks_of(root)[-1].unlink()
    (path,) = root.glob("*/lock")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(af.WriteError, match="cannot be written"):
        ds.to_table()
    assert not (tmp_path / "elsewhere").exists()


def test_nothing_is_left_open() -> None:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("needs /proc")
    with tempfile.TemporaryDirectory() as root:
        gc.collect()
        before = len(list(folder.iterdir()))
        ds = af.range(3000).with_options(SMALL).map(lambda b: b).cache(root)
        ds.to_table()
        assert len(list(folder.iterdir())) == before


def test_a_cache_with_a_key_stands_for_what_is_below_it(root: Path, tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    with pytest.raises(af.FingerprintError, match="key="):
        af.range(3).map(locked).cache(root).to_table()
    keyed = af.range(3).map(locked).cache(root, key="locked")
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert ids(keyed.with_columns(id=pl.col("id") + 1).cache(folder)) == [1, 2, 3]
    inner = af.range(3).map(locked).cache(tmp_path / "elsewhere", key="locked", verify="never")
    assert ids(inner.with_columns(id=pl.col("id") + 1).cache(tmp_path / "a")) == [1, 2, 3]
    assert len(af.cache_info(tmp_path / "a")) == 1

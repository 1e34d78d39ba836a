"""`cache_info` and `cache_clear`: on folders made by hand, beside locks that others hold, and among foreign files."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.caching.store import upkeep
from arrowflow.caching.store.chunk import Name
from arrowflow.caching.store.folder import ABOUT, LOCK, REMOVED, USED
from arrowflow.storage import UNFINISHED
from tests.ops.tables import refused

pytestmark = pytest.mark.any_version

NOW = datetime.now(UTC).replace(microsecond=0)
"""When these tests were collected, which may be minutes before they run."""
HOUR = timedelta(hours=1)


def fingerprint(number: int) -> str:
    return f"{number:032x}"


def aged(path: Path, age: timedelta) -> None:
    seconds = (NOW - age).timestamp()
    os.utime(path, (seconds, seconds))


def put(
    root: Path,
    number: int,
    *,
    rows: tuple[int, ...] = (10, 10),
    end: bool = True,
    used: timedelta = HOUR,
    chunk_bytes: int = 100,
    about: Any = None,
    name: str | None = None,
) -> Path:
    """Makes an entry of chunks of so many rows."""
    folder = root / (name or fingerprint(number))
    folder.mkdir(parents=True)
    first = 0
    for index, count in enumerate(rows):
        last = end and index == len(rows) - 1
        (folder / Name(first, count, 7, last).render()).write_bytes(bytes(chunk_bytes))
        first += count
    if not end:
        (folder / UNFINISHED).touch()
    given = {"plan": ["range(start=0, stop=20, step=1)", "map(fn)"], "created": "2024-05-06T07:08:09+00:00"}
    (folder / ABOUT).write_text(json.dumps(given if about is None else about))
    for empty in (LOCK, USED):
        (folder / empty).touch()
    aged(folder / USED, used)
    return folder


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, as a process that computes does."""
    with (folder / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def numbers_of(entries: list[af.CacheEntry]) -> list[int]:
    return [int(entry.fingerprint, 16) for entry in entries]


def names_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


# ------------------------------------------------------------------------------------------- looking


def test_what_is_there(tmp_path: Path) -> None:
    folder = put(tmp_path, 1)
    (entry,) = af.cache_info(tmp_path)
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert entry == af.CacheEntry(
        path=str(folder),
        fingerprint=fingerprint(1),
        num_chunks=2,
        num_rows=20,
        bytes=size,
        complete=True,
        created=datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        last_used=NOW - HOUR,
        plan="range(start=0, stop=20, step=1)\nmap(fn)",
    )
    assert entry.created.tzinfo is UTC
    assert entry.last_used.tzinfo is UTC


@pytest.mark.parametrize(
    ("rows", "end", "complete"),
    [((), False, False), ((3,), False, False), ((3,), True, True), ((0,), True, True), ((3, 4), True, True)],
)
def test_complete_is_from_the_first_row_to_the_last(
    tmp_path: Path, rows: tuple[int, ...], end: bool, complete: bool
) -> None:
    put(tmp_path, 1, rows=rows, end=end)
    (entry,) = af.cache_info(tmp_path)
    assert (entry.complete, entry.num_rows, entry.num_chunks) == (complete, sum(rows), len(rows))


def test_a_gap_is_not_complete(tmp_path: Path) -> None:
    folder = put(tmp_path, 1, rows=(3, 4, 5))
    (folder / Name(3, 4, 7, False).render()).unlink()
    (entry,) = af.cache_info(tmp_path)
    assert (entry.complete, entry.num_rows) == (False, 8)


def test_of_two_chunks_with_the_same_rows_one_counts(tmp_path: Path) -> None:
    folder = put(tmp_path, 1, rows=(3, 4))
    (folder / Name(0, 2, 9, False).render()).write_bytes(b"shorter")
    (entry,) = af.cache_info(tmp_path)
    assert (entry.complete, entry.num_rows, entry.num_chunks) == (True, 7, 2)


@pytest.mark.parametrize(
    "broken", ["", "{", "[1, 2]", "7", '{"plan": 3, "created": "yesterday"}', "[" * 100_000, "\udcff"]
)
def test_a_broken_description_is_told_and_the_names_count(tmp_path: Path, broken: str) -> None:
    folder = put(tmp_path, 1)
    (folder / ABOUT).write_bytes(broken.encode("utf-8", "surrogateescape"))
    (entry,) = af.cache_info(tmp_path)
    assert (entry.num_rows, entry.complete, entry.last_used) == (20, True, NOW - HOUR)
    assert (entry.problem is None) == broken.startswith('{"plan"')
    assert entry.plan == ("3" if entry.problem is None else "")


@pytest.mark.parametrize("missing", [ABOUT, USED, LOCK])
def test_a_missing_file_is_no_obstacle(tmp_path: Path, missing: str) -> None:
    (put(tmp_path, 1) / missing).unlink()
    (entry,) = af.cache_info(tmp_path)
    assert entry.num_rows == 20
    assert (entry.problem is not None) == (missing == ABOUT)
    assert numbers_of(af.cache_clear(tmp_path)) == [1]
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2024-05-06T07:08:09", datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
        ("2024-05-06T07:08:09+02:00", datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC)),
        (86_400.0, datetime(1970, 1, 2, tzinfo=UTC)),
    ],
)
def test_times_are_in_utc(tmp_path: Path, given: Any, expected: datetime) -> None:
    put(tmp_path, 1, about={"plan": "range", "created": given})
    (entry,) = af.cache_info(tmp_path)
    assert entry.created == expected
    assert entry.plan == "range"


@pytest.mark.parametrize("given", [None, "soon", 1e300, [], float("nan")])
def test_without_a_time_that_of_the_file_counts(tmp_path: Path, given: Any) -> None:
    folder = put(tmp_path, 1, about={"created": given})
    aged(folder / ABOUT, 5 * HOUR)
    assert af.cache_info(tmp_path)[0].created == NOW - 5 * HOUR


def foreign(root: Path) -> list[str]:
    """Puts things into a folder that no cache has made, and returns their names."""
    (root / "notes.txt").write_text("mine")
    (root / "data").mkdir()
    (root / "data" / "0.arrow").write_text("mine")
    (root / fingerprint(80)).mkdir()
    (root / fingerprint(81)).write_text("a file named like an entry")
    (root / fingerprint(82)).mkdir()
    (root / fingerprint(82) / "thesis.txt").write_text("mine")
    (root / ".removed-by-me").mkdir()
    (root / fingerprint(83).upper().replace("0", "A")).mkdir()
    return names_in(root)


def test_whatever_else_is_there_is_passed_over(tmp_path: Path) -> None:
    names = foreign(tmp_path)
    assert af.cache_info(tmp_path) == []
    assert af.cache_clear(tmp_path) == []
    put(tmp_path, 1)
    assert numbers_of(af.cache_clear(tmp_path)) == [1]
    assert names_in(tmp_path) == names
    assert (tmp_path / fingerprint(82) / "thesis.txt").read_text() == "mine"


def test_an_entry_that_vanishes_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        put(tmp_path, number, used=HOUR * (3 - number))
    looked = upkeep._look

    def look(folder: Path) -> af.CacheEntry | None:
        if folder.name == fingerprint(1):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        return looked(folder)

    monkeypatch.setattr(upkeep, "_look", look)
    assert numbers_of(af.cache_info(tmp_path)) == [0, 2]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert af.cache_info(tmp_path / "none") == []
    assert af.cache_clear(tmp_path / "none", max_bytes=1) == []
    assert names_in(tmp_path) == []


def test_a_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("no folder")
    refused(af.SourceError, lambda: af.cache_info(path), "expected a folder", "found a file", "file")
    refused(af.SourceError, lambda: af.cache_clear(path), "expected a folder")


@pytest.mark.parametrize("given", [None, 3, "", b"bytes", "s3://bucket/cache"])
def test_what_is_no_path_is_refused(given: Any) -> None:
    refused(af.PlanError, lambda: af.cache_info(given), "cache_info", "local folder")
    refused(af.PlanError, lambda: af.cache_clear(given), "cache_clear", "local folder")


def test_upkeep_of_a_store_is_refused_with_what_works() -> None:
    for call in (af.cache_info, af.cache_clear):
        with pytest.raises(af.PlanError, match=r"local folder, got .*with the tools of the store") as caught:
            call("s3://me:secret@bucket/cache")
        assert "secret" not in str(caught.value)


# ------------------------------------------------------------------------------------------- removing


def test_without_limits_all_entries_go(tmp_path: Path) -> None:
    """In the order of their last use, also behind a link."""
    for number, hours in enumerate([3, 1, 2]):
        put(tmp_path / "real", number, used=hours * HOUR)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    before = af.cache_info(str(tmp_path / "link"))
    assert numbers_of(before) == [0, 2, 1]
    assert af.cache_clear(tmp_path / "link") == before
    assert names_in(tmp_path / "real") == []


@pytest.mark.parametrize("older_than", [2.5 * HOUR, 2.5 * 3600, "2.5h", "2h30m", "150m", "9000s"])
def test_those_that_were_not_used_for_long_go(tmp_path: Path, older_than: Any) -> None:
    for number, hours in enumerate([3, 1, 2, 4]):
        put(tmp_path, number, used=hours * HOUR)
    assert numbers_of(af.cache_clear(tmp_path, older_than=older_than)) == [3, 0]
    assert numbers_of(af.cache_info(tmp_path)) == [2, 1]


@pytest.mark.parametrize(("max_bytes", "gone"), [(10**6, []), (9_000, [0]), ("7KB", [0, 2]), (1, [0, 2, 1])])
def test_the_least_recently_used_go_until_the_rest_fits(
    tmp_path: Path, max_bytes: int | str, gone: list[int]
) -> None:
    for number, hours in enumerate([3, 1, 2]):
        put(tmp_path, number, used=hours * HOUR, chunk_bytes=2_000)
    assert numbers_of(af.cache_clear(tmp_path, max_bytes=max_bytes)) == gone
    assert numbers_of(af.cache_info(tmp_path)) == [number for number in [0, 2, 1] if number not in gone]


def test_both_limits_count(tmp_path: Path) -> None:
    for number, hours in enumerate([5, 4, 2, 1]):
        put(tmp_path, number, used=hours * HOUR, chunk_bytes=2_000)
    assert numbers_of(af.cache_clear(tmp_path, older_than=4.5 * HOUR, max_bytes=9_000)) == [0, 1]


def test_old_ones_that_are_in_use_are_skipped_and_the_next_one_goes(tmp_path: Path) -> None:
    folders = [put(tmp_path, number, used=HOUR * (3 - number), chunk_bytes=2_000) for number in range(3)]
    with held(folders[0]):
        assert numbers_of(af.cache_clear(tmp_path, max_bytes=9_000)) == [1]
    assert numbers_of(af.cache_info(tmp_path)) == [0, 2]


def test_who_holds_the_lock_is_left_alone(tmp_path: Path) -> None:
    folder = put(tmp_path, 1, end=False)
    (folder / ".tmp-1-1").write_text("half a chunk")
    aged(folder / ".tmp-1-1", HOUR)
    names = names_in(folder)
    with held(folder):
        assert af.cache_clear(tmp_path) == []
        assert names_in(folder) == names
    assert numbers_of(af.cache_clear(tmp_path)) == [1]
    assert names_in(tmp_path) == []


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    folder = put(tmp_path, 1, end=False)
    code = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder / LOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert af.cache_clear(tmp_path) == []
        process.kill()
    assert numbers_of(af.cache_clear(tmp_path)) == [1]


def test_an_entry_is_hidden_before_it_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 1)
    seen = []
    unlink = Path.unlink

    def watched(path: Path, missing_ok: bool = False) -> None:
        seen.append((path.parent.name, path.name, af.cache_info(tmp_path)))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    af.cache_clear(tmp_path)
    assert len(seen) == 5
    assert {entries == [] for _, _, entries in seen} == {True}
    assert {name.startswith(REMOVED) for name, _, _ in seen} == {True}
    assert seen[-1][1] == LOCK, "the others see that somebody is at work, up to the end"


def test_who_has_mapped_a_chunk_reads_on(tmp_path: Path) -> None:
    folder = put(tmp_path, 1, rows=())
    path = folder / Name(0, 3, 7, True).render()
    batch = pa.record_batch({"x": [1, 2, 3]})
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    with pa.memory_map(str(path)) as source:
        mapped = pa.ipc.open_file(source).get_batch(0)
    assert numbers_of(af.cache_clear(tmp_path)) == [1]
    assert mapped.equals(batch)


def test_one_that_was_made_anew_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking, the folder was removed and another pipeline has begun it again."""
    folder = put(tmp_path, 1)
    flock = fcntl.flock

    def replaced(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        folder.rename(tmp_path / "gone")
        put(tmp_path, 1, rows=(5,), end=False)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replaced)
    assert af.cache_clear(tmp_path) == []
    assert af.cache_info(tmp_path)[0].num_rows == 5


def test_foreign_files_in_an_entry_stay(tmp_path: Path) -> None:
    folder = put(tmp_path, 1)
    (folder / "thesis.txt").write_text("mine")
    (folder / "more").mkdir()
    (folder / "more" / ABOUT).write_text("mine")
    (folder / Name(900, 1, 7, True).render()).mkdir()
    assert numbers_of(af.cache_clear(tmp_path)) == [1]
    assert names_in(folder) == sorted(["more", "thesis.txt", Name(900, 1, 7, True).render()])
    assert (folder / "more" / ABOUT).read_text() == "mine"


def test_an_entry_that_is_made_again_among_foreign_files_is_described(tmp_path: Path) -> None:
    ds = af.range(5).cache(tmp_path)
    assert ds.to_table().num_rows == 5
    (made,) = af.cache_info(tmp_path)
    (Path(made.path) / "thesis.txt").write_text("mine")
    assert len(af.cache_clear(tmp_path)) == 1
    assert names_in(Path(made.path)) == ["thesis.txt"]
    assert af.range(5).cache(tmp_path).to_table().num_rows == 5
    (again,) = af.cache_info(tmp_path)
    assert (again.problem, again.plan, again.complete) == (None, made.plan, True)
    assert names_in(tmp_path) == [made.fingerprint]


def test_entries_behind_links_are_seen_and_not_removed(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    target = put(elsewhere, 1)
    names = names_in(target)
    root.mkdir()
    (root / fingerprint(1)).symlink_to(target)
    (root / ".removed-00ff").symlink_to(target)
    folder = put(root, 2, rows=())
    (folder / Name(0, 1, 7, True).render()).symlink_to(target / names[0])
    assert sorted(numbers_of(af.cache_info(root))) == [1, 2]
    assert numbers_of(af.cache_clear(root)) == [2]
    assert names_in(root) == [".removed-00ff", fingerprint(1)]
    assert numbers_of(af.cache_info(root)) == [1]
    assert names_in(target) == names


def test_compressed_entries_have_names_of_their_own(tmp_path: Path) -> None:
    put(tmp_path, 1, name=f"{fingerprint(1)}-zstd")
    assert [entry.fingerprint for entry in af.cache_clear(tmp_path)] == [f"{fingerprint(1)}-zstd"]
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "given",
    [-1, -HOUR, "1", "h", "1y", "-1d", "1 day", "", "9" * 400 + "w", True, float("nan"), float("inf")],
)
def test_ages_are_checked(tmp_path: Path, given: Any) -> None:
    put(tmp_path, 1)
    refused(af.PlanError, lambda: af.cache_clear(tmp_path, older_than=given), "older_than", "seconds")
    assert numbers_of(af.cache_info(tmp_path)) == [1]


@pytest.mark.parametrize("given", [-1, 0, "many", 1.5])
def test_sizes_are_checked(tmp_path: Path, given: Any) -> None:
    put(tmp_path, 1)
    refused(af.PlanError, lambda: af.cache_clear(tmp_path, max_bytes=given), "max_bytes")
    assert numbers_of(af.cache_info(tmp_path)) == [1]


def test_very_old_is_older_than_nothing(tmp_path: Path) -> None:
    put(tmp_path, 1)
    for age in (timedelta.max, 1e300, 1e9, "9999999w"):
        assert af.cache_clear(tmp_path, older_than=age) == []


# ------------------------------------------------------------------------------------------- leftovers

LEFTOVERS = [".removed-0123456789abcdef", ".new-00ff", f"{fingerprint(7)}.filling-0123456789abcdef"]


@pytest.mark.parametrize("name", LEFTOVERS)
def test_leftovers_go_unless_somebody_works_there(tmp_path: Path, name: str) -> None:
    folder = put(tmp_path, 7, name=name)
    aged(folder, HOUR)
    assert af.cache_info(tmp_path) == []
    with held(folder):
        assert af.cache_clear(tmp_path, older_than=HOUR) == []
        assert names_in(tmp_path) == [name]
    assert af.cache_clear(tmp_path, older_than=HOUR) == []
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("name", LEFTOVERS)
def test_what_is_being_made_has_no_lock_yet(tmp_path: Path, name: str) -> None:
    folder = put(tmp_path, 7, name=name)
    (folder / LOCK).unlink()
    af.cache_clear(tmp_path)
    assert names_in(tmp_path) == ([] if name.startswith(REMOVED) else [name])
    if folder.exists():
        aged(folder, HOUR)
        af.cache_clear(tmp_path)
    assert names_in(tmp_path) == []


def test_leftovers_with_foreign_files_stay(tmp_path: Path) -> None:
    for name in LEFTOVERS:
        folder = put(tmp_path, 7, name=name)
        (folder / "thesis.txt").write_text("mine")
        aged(folder, HOUR)
    af.cache_clear(tmp_path)
    assert names_in(tmp_path) == sorted(LEFTOVERS)


def test_half_written_chunks_of_entries_that_stay_go(tmp_path: Path) -> None:
    folder = put(tmp_path, 1)
    names = names_in(folder)
    for name in (".tmp-12-0", ".tmp-12-1"):
        (folder / name).write_text("half a chunk")
    aged(folder / ".tmp-12-0", HOUR)
    with held(folder):
        af.cache_clear(tmp_path, older_than=2 * HOUR)
        assert names_in(folder) == sorted([*names, ".tmp-12-0", ".tmp-12-1"])
    af.cache_clear(tmp_path, older_than=2 * HOUR)
    assert names_in(folder) == sorted([*names, ".tmp-12-1"])


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_what_cannot_be_removed_is_an_error(tmp_path: Path) -> None:
    folder = put(tmp_path / "cache", 1)
    folder.parent.chmod(0o500)
    try:
        refused(
            af.WriteError, lambda: af.cache_clear(tmp_path / "cache"), "cannot be removed", fingerprint(1)
        )
    finally:
        folder.parent.chmod(0o700)


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_cannot_be_locked_is_an_error_when_all_else_is_removed(tmp_path: Path, kind: str) -> None:
    folders = [put(tmp_path, number, used=HOUR * (9 - number)) for number in range(3)]
    leftover = put(tmp_path, 7, name=LEFTOVERS[0])
    for folder in (folders[0], leftover):
        lock = folder / LOCK
        lock.unlink()
        lock.symlink_to(tmp_path / "elsewhere") if kind == "link" else lock.mkdir()
    refused(af.WriteError, lambda: af.cache_clear(tmp_path), "cannot be removed", fingerprint(0), "by hand")
    assert names_in(tmp_path) == [LEFTOVERS[0], fingerprint(0)]
    assert numbers_of(af.cache_info(tmp_path)) == [0]


def test_what_cannot_be_removed_still_counts(tmp_path: Path) -> None:
    folders = [put(tmp_path, number, used=HOUR * (9 - number), chunk_bytes=1000) for number in range(3)]
    (folders[0] / LOCK).unlink()
    (folders[0] / LOCK).mkdir()
    stuck, _, last = af.cache_info(tmp_path)
    most = stuck.bytes + last.bytes
    refused(af.WriteError, lambda: af.cache_clear(tmp_path, max_bytes=most), "cannot be removed")
    assert numbers_of(af.cache_info(tmp_path)) == [0, 2]


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_description_that_is_no_file_is_not_read(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a pipe, it would wait for ever."""
    about = put(tmp_path, 1) / ABOUT
    about.unlink()
    os.mkfifo(about) if kind == "pipe" else about.mkdir()
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    (entry,) = af.cache_info(tmp_path)
    assert entry.problem == f"{ABOUT} is no file"
    assert entry.num_rows == 20


@pytest.mark.parametrize("foreign", [False, True])
def test_a_second_one_meets_the_first_at_its_very_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreign: bool
) -> None:
    """The lock is removed, the folder is not: a lock that the second one made would keep the folder."""
    folder = put(tmp_path, 1)
    if foreign:
        (folder / "thesis.txt").write_text("mine")
    rmdir = Path.rmdir

    def second(path: Path) -> None:
        monkeypatch.setattr(Path, "rmdir", rmdir)
        assert af.cache_clear(tmp_path) == []
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", second)
    assert numbers_of(af.cache_clear(tmp_path)) == [1]
    assert names_in(tmp_path) == ([fingerprint(1)] if foreign else [])
    assert not foreign or names_in(folder) == ["thesis.txt"]


@pytest.mark.parametrize("times", [1, 100])
def test_a_lock_that_is_made_in_an_emptied_folder_brings_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Who has found the folder by its old name may still make a file in it."""
    put(tmp_path, 1)
    rmdir = Path.rmdir
    left = [times]

    def late(path: Path) -> None:
        if left[0]:
            left[0] -= 1
            (path / LOCK).touch()
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", late)
    assert numbers_of(af.cache_clear(tmp_path)) == [1]
    monkeypatch.undo()
    assert fingerprint(1) not in names_in(tmp_path)
    af.cache_clear(tmp_path)
    assert names_in(tmp_path) == []


def test_a_folder_with_a_lock_alone_goes(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / fingerprint(number)).mkdir()
        (tmp_path / fingerprint(number) / LOCK).touch()
    (tmp_path / fingerprint(2) / "thesis.txt").write_text("mine")
    for number in (1, 2):
        aged(tmp_path / fingerprint(number), HOUR)
    assert af.cache_clear(tmp_path) == []
    assert names_in(tmp_path) == [fingerprint(0), fingerprint(2)]
    aged(tmp_path / fingerprint(0), HOUR)
    with held(tmp_path / fingerprint(0)):
        af.cache_clear(tmp_path)
    assert names_in(tmp_path) == [fingerprint(0), fingerprint(2)]


@pytest.mark.slow
@pytest.mark.versions
def test_many_clear_at_once(tmp_path: Path) -> None:
    for number in range(30):
        put(tmp_path, number)
    code = "import sys, arrowflow as af; print(len(af.cache_clear(sys.argv[1])))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    counts = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert sum(counts) == 30
    assert names_in(tmp_path) == []

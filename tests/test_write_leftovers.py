"""Writers of one place at the same time, and what those leave that were killed."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import arrowflow as af
from arrowflow.caching.store.claim import claim
from arrowflow.testing import Gate
from arrowflow.write import leftovers, targets
from tests.ops.tables import ids, refused
from tests.test_write import OLD, Steps, look, watched

pytestmark = pytest.mark.any_version


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return watched(monkeypatch)


def nothing(number: int, done: bool) -> None:
    """Leaves a step alone."""


def once_behind(number: int, call: Callable[[], None]) -> Callable[[int, bool], None]:
    """Returns a hook that does something behind a step; what this does itself is left alone."""
    calls = [call]

    def hook(step: int, done: bool) -> None:
        if step == number and done and calls:
            calls.pop()()

    return hook


def write(path: Path, rows: int, **arguments: Any) -> None:
    af.range(rows).write_parquet(path, **arguments)


def beside(path: Path) -> set[str]:
    """Returns the names beside a dataset."""
    return {each.name for each in path.parent.iterdir()} - {path.name}


def each_step(steps: Steps, folder: Path) -> Iterator[tuple[int, Path]]:
    """Yields each step of an overwrite, counted anew, with a dataset of four rows to overwrite."""
    write(folder / "old" / "out", 4)
    shutil.copytree(folder / "old", folder / "clean")
    steps.names.clear()
    write(folder / "clean" / "out", 9, overwrite=True)
    for number in range(len(steps.names)):
        shutil.copytree(folder / "old", folder / str(number))
        steps.names.clear()
        yield number, folder / str(number) / "out"
        steps.hook = nothing


def test_a_whole_overwrite_between_any_two_steps_of_another(tmp_path: Path, steps: Steps) -> None:
    """The last one to finish is seen, and both have written what they were told."""
    outcomes = set()
    for number, path in each_step(steps, tmp_path):
        is_done = [False]

        def other(path: Path = path, is_done: list[bool] = is_done) -> None:
            is_done[0] = look(path) == list(range(9))
            write(path, 6, overwrite=True)
            assert look(path) == list(range(6))

        steps.hook = once_behind(number, other)
        write(path, 9, overwrite=True)
        assert look(path) == list(range(6 if is_done[0] else 9))
        assert beside(path) == set()
        outcomes.add(is_done[0])
    assert outcomes == {False, True}


def test_a_writer_between_any_two_steps_of_an_overwrite_is_refused(tmp_path: Path, steps: Steps) -> None:
    for number, path in each_step(steps, tmp_path):

        def other(path: Path = path) -> None:
            refused(af.WriteError, lambda: write(path, 6), "overwrite=True")
            assert look(path) in (OLD, list(range(9)))

        steps.hook = once_behind(number, other)
        write(path, 9, overwrite=True)
        assert look(path) == list(range(9))
        assert beside(path) == set()


def test_an_overwrite_that_waits_at_any_step_while_another_one_runs(tmp_path: Path, steps: Steps) -> None:
    """Nobody takes its shards for a leftover, whatever it is at."""
    for number, path in each_step(steps, tmp_path):
        gate = Gate()
        waiting = threading.Thread(target=write, args=(path, 9), kwargs={"overwrite": True})
        numbers = itertools.count()

        def pause(
            step: int,
            done: bool,
            number: int = number,
            waiting: threading.Thread = waiting,
            numbers: Iterator[int] = numbers,
            gate: Gate = gate,
        ) -> None:
            if threading.current_thread() is waiting and not done and next(numbers) == number:
                gate.pass_through()

        steps.hook = pause
        waiting.start()
        gate.wait_for(1)
        is_done = look(path) == list(range(9))
        write(path, 6, overwrite=True)
        assert look(path) == list(range(6))
        gate.open()
        waiting.join()
        assert look(path) == list(range(6 if is_done else 9))
        assert beside(path) == set()


def test_many_threads_overwrite_one_dataset(tmp_path: Path) -> None:
    path = tmp_path / "out"
    start = threading.Barrier(8)
    failed: list[BaseException] = []

    def overwrite(rows: int) -> None:
        start.wait()
        try:
            for _ in range(4):
                write(path, rows, overwrite=True)
        except af.ArrowflowError as error:
            failed.append(error)

    threads = [threading.Thread(target=overwrite, args=(rows,)) for rows in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    found = look(path)
    assert found is not None and found == list(range(len(found)))
    assert beside(path) == set()


def test_of_many_threads_that_do_not_overwrite_one_writes(tmp_path: Path) -> None:
    path = tmp_path / "out"
    start = threading.Barrier(6)
    outcomes: list[Any] = []

    def once(rows: int) -> None:
        start.wait()
        try:
            write(path, rows)
            outcomes.append(rows)
        except af.WriteError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=once, args=(rows,)) for rows in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (rows,) = (outcome for outcome in outcomes if isinstance(outcome, int))
    assert look(path) == list(range(rows))
    texts = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert all("overwrite=True" in text or "somebody else" in text for text in texts)
    assert beside(path) == set()


# ------------------------------------------------------------------------------------------- the dead


@pytest.mark.parametrize("overwrites", [False, True])
def test_the_next_write_removes_what_a_crash_at_any_step_has_left(
    tmp_path: Path, steps: Steps, overwrites: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever does not overwrite gets back what was there before."""
    between = 0
    for number, path in each_step(steps, tmp_path):

        def crash(step: int, done: bool, number: int = number) -> None:
            if step == number and done:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(targets.LocalFolder, "discard", lambda self: None)
            steps.hook = crash
            with pytest.raises(KeyboardInterrupt):
                write(path, 9, overwrite=True)
        steps.hook = nothing
        was_there = look(path)
        between += was_there is None
        if not overwrites:
            refused(af.WriteError, lambda: write(path, 6), "overwrite=True")  # noqa: B023
            assert look(path) == (OLD if was_there is None else was_there)
        write(path, 6, overwrite=True)
        assert look(path) == list(range(6))
        assert beside(path) == set()
    assert between == 1


KILLED = """
import os, signal, sys
from pathlib import Path
import pyarrow as pa
import arrowflow as af

def rows():
    yield pa.record_batch({"id": [1, 2, 3]})
    if sys.argv[2] == "rows":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "waits":
        print("waits", flush=True)
        sys.stdin.readline()

def renamed(path, target):
    found = rename(path, target)
    os.kill(os.getpid(), signal.SIGKILL)

rename = Path.rename
if sys.argv[2] == "rename":
    Path.rename = renamed
schema = pa.schema([("id", pa.int64())])
af.from_generator(rows, schema).write_parquet(sys.argv[1], row_group_rows=1, overwrite=True)
"""


def other_process(path: Path, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", KILLED, str(path), mode]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.parametrize("mode", ["rows", "rename"])
def test_a_process_that_is_killed(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "data" / "out"
    write(path, 4)
    with other_process(path, mode) as process:
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert len(beside(path)) == (2 if mode == "rows" else 3)
    assert look(path.parent) == (OLD if mode == "rows" else None)
    write(path.with_name("another"), 2)
    assert {name for name in beside(path) if name.startswith(".writing")} == set()
    refused(af.WriteError, lambda: write(path, 6), "overwrite=True")
    assert look(path) == OLD
    assert beside(path) == {"another"}
    write(path, 6, overwrite=True)
    assert look(path) == list(range(6))


@pytest.mark.slow
@pytest.mark.versions
def test_a_live_process_keeps_what_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with other_process(path, "waits") as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        hidden = beside(path)
        write(path, 4)
        write(path, 6, overwrite=True)
        assert beside(path) == hidden != set()
        print(file=process.stdin, flush=True)
        assert process.wait(timeout=60) == 0
    assert look(path) == [1, 2, 3]
    assert beside(path) == set()


def test_a_folder_is_a_leftover_once_its_lock_is_free(tmp_path: Path) -> None:
    staging, held = leftovers.begin(tmp_path / "out")
    assert held is not None
    leftovers.sweep(tmp_path / "out", lambda folder: True)
    assert staging.is_dir()
    held.release()
    leftovers.sweep(tmp_path / "out", lambda folder: True)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------- what is not ours


def test_only_names_of_writers_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "out"
    token = leftovers.new_name(path)
    kept = [".writing-mine", f".writing-{token}", f".removed-{token}0", ".removed-", ".replaced-old", ".git"]
    for name in kept:
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").touch()
    (tmp_path / f".removed-{token}").symlink_to(tmp_path / ".git")
    (tmp_path / f".writing-{token}.lock").symlink_to(tmp_path / ".git" / "thesis.txt")
    write(path, 4)
    write(path, 6, overwrite=True)
    assert all((tmp_path / name / "thesis.txt").exists() for name in kept)
    assert ids(af.read_parquet(path)) == list(range(6))


def test_a_replaced_dataset_of_another_target_stays(tmp_path: Path) -> None:
    """It is the only copy of what was there."""
    write(tmp_path / "other", 4)
    hidden = tmp_path / (leftovers.REPLACED + leftovers.new_name(tmp_path / "other"))
    (tmp_path / "other").rename(hidden)
    write(tmp_path / "out", 6)
    assert look(hidden) == OLD
    refused(af.WriteError, lambda: write(tmp_path / "other", 9), "overwrite=True")
    assert look(tmp_path / "other") == OLD


def test_files_of_others_that_arrive_while_the_place_is_taken(
    tmp_path: Path, steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "out"
    write(path, 4)
    steps.names.clear()

    def hook(number: int, done: bool) -> None:
        if steps.names[number] == "rename" and steps.names.count("rename") == 1:
            if not done:
                (path / "thesis.txt").write_text("precious")
            else:
                steps.hook = nothing
                # Another writer comes by before the first one has looked.
                staging, held = leftovers.begin(path)
                (staging / "part-00000.parquet").touch()
                staging.rename(path)
                leftovers.end(staging, held)

    steps.hook = hook
    refused(af.WriteError, lambda: write(path, 9, overwrite=True), "thesis.txt", "write_parquet")
    (name,) = beside(path)
    assert (tmp_path / name / "thesis.txt").read_text() == "precious"
    assert name in caplog.text
    write(path, 6, overwrite=True)
    assert (tmp_path / name / "thesis.txt").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    path = tmp_path / "out"
    steps.hook = lambda number, done: write(path, 2, overwrite=True) if number == 6 and done else None
    write(path, 9, overwrite=True)
    assert look(path) == list(range(9))
    assert beside(path) == set()


def test_a_lock_that_others_take_for_a_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its locking it looks so; then the next name is tried."""
    answers: Iterator[Any] = iter([FileNotFoundError(), None])

    def contended(path: Path) -> Any:
        answer = next(answers, claim)
        if isinstance(answer, Exception):
            raise answer
        return None if answer is None else claim(path)

    monkeypatch.setattr(leftovers, "claim", contended)
    write(tmp_path / "out", 4)
    assert look(tmp_path / "out") == OLD
    monkeypatch.setattr(leftovers, "claim", lambda path: None)
    refused(af.WriteError, lambda: write(tmp_path / "more", 4), "lock", "nothing of it is visible")
    assert beside(tmp_path / "out") == set()


def test_a_place_in_which_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(af.WriteError, lambda: write(tmp_path / "file/a/b", 4), "write_parquet", "file/a/b")
    assert beside(tmp_path / "file") == set()

"""Worker processes: what comes back is what threads make, and whatever ends whom, nobody hangs and nothing is left."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.arenas import MAX_WAIT, Inbox, Outbox
from arrowflow.clock import WallClock
from arrowflow.executor.limits import MAX_KNOWN
from arrowflow.executor.processes import pool as children
from arrowflow.executor.processes import worker as child
from arrowflow.executor.processes.kernel import RunProcesses
from arrowflow.executor.processes.wire import (
    Call,
    Failed,
    Forget,
    Forgotten,
    Made,
    Packed,
    Surroundings,
    pack,
    pack_error,
    read_batch,
    receive,
    send,
    unpack_error,
    write_batch,
)
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Origin
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.testing import assert_same_batches, batches_of
from tests.ops.tables import ALL_TYPES, NUMBERS, refused

pytestmark = pytest.mark.versions
ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 30.0
PIECES = af.Options(max_chunk_rows=3)
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and pidfd_open")


@pytest.fixture(scope="module", autouse=True)
def _dismissed() -> Iterator[None]:
    yield
    children.dismiss()


@pytest.fixture(autouse=True)
def _idle_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a busy machine takes, idle workers are those of the call before."""
    monkeypatch.setattr(children, "IDLE_SECONDS", 3600.0)


def in_workers(ds: af.Dataset, fn: Any, *, calls: int = 1, **arguments: Any) -> af.Dataset:
    """Maps in worker processes: in one, since to start one takes a while, where a test does not say more."""
    return ds.map(fn, executor="process", num_parallel_calls=calls, **arguments)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def pids(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"pid": pa.array([os.getpid()] * batch.num_rows)})


def workers_of(ds: af.Dataset, **arguments: Any) -> set[int]:
    return set(in_workers(ds, pids, **arguments).to_table()["pid"].to_pylist())


def numbers(rows: int = 20, piece: int = 3) -> af.Dataset:
    return af.range(rows).with_options(af.Options(max_chunk_rows=piece))


def names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def wait_for(pid: int) -> None:
    """Waits for the end of a process that is not a child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], SECONDS)[0], f"process {pid} did not end"
    finally:
        os.close(descriptor)


class Meeting:
    """A function that tells its process in one FIFO and waits for another one, in its call for row `at`."""

    def __init__(self, folder: Path, at: int) -> None:
        self.told, self.awaited, self.at = str(folder / "told"), str(folder / "awaited"), at
        os.mkfifo(self.told)
        os.mkfifo(self.awaited)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("id")[0].as_py() == self.at:
            with open(self.told, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(str(os.getpid()))
            with open(self.awaited, encoding="utf-8") as file:  # noqa: PTH123
                file.read()
        return batch

    def pid(self) -> int:
        """Waits until the call is there."""
        return int(Path(self.told).read_text(encoding="utf-8"))


@pytest.fixture
def _none_idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts idle workers aside for a test that is about new ones: to end them would make later tests start others."""
    monkeypatch.setattr(children, "_idle", deque())
    yield
    children.dismiss()


def test_the_start_of_a_worker_is_no_work_of_a_function() -> None:
    """Else a trivial function limits the run, and advice is to cache it. Later tests have the worker."""
    children.dismiss()
    with iter(in_workers(numbers(), same)) as run:
        began = time.perf_counter()
        next(run)
        first = time.perf_counter() - began
        for _ in run:
            pass
        busy = [stage.busy_seconds for stage in run.stats().stages if stage.foreign]
    assert first > 0.1
    assert 0 < sum(busy) < first / 2


# ---------------------------------------------------------------------------------- values


@pytest.mark.slow
def test_every_type_goes_there_and_back() -> None:
    ds = af.from_arrow(ALL_TYPES).with_options(PIECES)
    assert_same_batches(batches_of(in_workers(ds, same, calls=2)), batches_of(ds.map(same)))


def test_what_arrow_writes_comes_back_as_it_was() -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), (2, 2))
    storage = pa.array([[1.0, 2, 3, 4], None, [5, 6, 7, 8]], tensor.storage_type)
    columns = {
        "enum": pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), ["a", "b"]),
        "tensor": pa.ExtensionArray.from_storage(tensor, storage),
        "views": pa.array(["a text that is longer than a view", None, ""], pa.string_view()),
        "nested": pa.array([[{"a": [1, None]}], None, []]),
        "flags": pa.array([True, None, False]),
        "nothing": pa.nulls(3),
    }
    plain = pa.record_batch(columns)
    schema = plain.schema.with_metadata({"a": "b"})
    batch = pa.RecordBatch.from_arrays(plain.columns, schema=schema)
    outbox, inbox = Outbox(), Inbox()
    for one in (batch, batch.slice(1), batch.slice(2, 1), batch.slice(3), batch.select([])):
        found = read_batch(inbox, *write_batch(outbox, one))
        found.validate(full=True)
        assert found.equals(one) and found.schema.equals(one.schema, check_metadata=True)


def test_formats_and_classes_and_generators_are_as_in_threads() -> None:
    ds = af.from_arrow(NUMBERS).with_options(PIECES)

    def noise(arrays: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"row": arrays["row"], "noise": rng.random(len(arrays["row"]))}

    def upper(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(pl.col("s").str.to_uppercase())

    assert_same_batches(
        batches_of(in_workers(ds, noise, format="numpy", columns=["row"], seed=3), epoch=2),
        batches_of(ds.map(noise, format="numpy", columns=["row"], seed=3), epoch=2),
    )
    assert_same_batches(
        batches_of(in_workers(ds, upper, format="polars")), batches_of(ds.map(upper, format="polars"))
    )


def test_what_a_function_sees_cannot_be_written() -> None:
    def scribble(arrays: dict[str, Any]) -> dict[str, Any]:
        arrays["id"][0] = 1
        return arrays

    refused(af.FunctionError, in_workers(af.range(5), scribble, format="numpy").to_table, "read-only")


def test_what_a_function_or_the_consumer_keeps_stays_as_it_is() -> None:
    class Keeps:
        def __init__(self) -> None:
            self.kept: list[tuple[pa.RecordBatch, list[int]]] = []

        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            self.kept.append((batch, batch.column("id").to_pylist()))
            assert all(one.column("id").to_pylist() == values for one, values in self.kept)
            return batch

    ds = in_workers(numbers(120), Keeps, calls=2)
    kept = [*ds, *ds]
    assert [value for batch in kept for value in batch.column("id").to_pylist()] == [*range(120)] * 2


def test_a_state_goes_from_one_executor_to_the_other() -> None:
    threads = numbers().map(same).batch(4)
    processes = in_workers(numbers(), same).batch(4)
    with iter(threads) as iterator:
        next(iterator)
        state = iterator.state_dict()
    with iter(processes) as iterator:
        iterator.load_state_dict(state)
        assert [batch.column("id").to_pylist() for batch in iterator] == [
            list(range(start, start + 4)) for start in range(4, 20, 4)
        ]


def test_more_operators_than_a_worker_keeps_ready() -> None:
    ds = numbers(12)
    for step in range(MAX_KNOWN + 3):
        ds = in_workers(ds, lambda arrays, step=step: {"id": arrays["id"] + step}, format="numpy")
    total = sum(range(MAX_KNOWN + 3))
    assert ds.to_table()["id"].to_pylist() == [number + total for number in range(12)]


def test_a_pipeline_inside_of_a_function() -> None:
    def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
        inner = af.range(batch.num_rows).map(lambda one: one, executor="process")
        return pa.record_batch({"id": inner.to_table()["id"].combine_chunks()})

    assert in_workers(af.range(4), fn).to_table()["id"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.slow
def test_what_a_function_prints_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    def talks(batch: pa.RecordBatch) -> pa.RecordBatch:
        print("seen", batch.num_rows)  # noqa: T201, what is tested
        return batch

    children.dismiss()  # those have other files to print into
    in_workers(af.range(4), talks).to_table()
    assert capfd.readouterr().out == "seen 4\n"


# ---------------------------------------------------------------------------------- how many, how long


@pytest.mark.slow
def test_calls_in_flight_stay_within_the_budget() -> None:
    children.dismiss()
    one = numbers(60).with_options(af.Options(cpu_budget=1))
    for ds, calls in ((one, 3), (one, af.AUTOTUNE), (numbers(60), 1)):
        assert len(workers_of(ds, calls=calls)) == 1
    assert len(children._idle) == 1


@pytest.mark.slow
def test_workers_are_used_again_until_they_were_idle_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = workers_of(numbers())
    assert workers_of(numbers()) == {first}
    monkeypatch.setattr(children, "IDLE_SECONDS", -1.0)
    (second,) = workers_of(af.range(1))
    assert second != first and not children._idle
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@pytest.mark.slow
def test_workers_see_the_environment_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def told(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert hash("text") == hash_of_text
        found = [os.environ.get("TOLD", ""), str(Path.cwd()), os.environ["OMP_NUM_THREADS"]]
        return pa.record_batch({"told": found})

    command = [sys.executable, "-c", "print(hash('text'))"]
    seed = os.environ.get("PYTHONHASHSEED", "0")
    hash_of_text = int(subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": seed}))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ds = in_workers(af.range(1), told)
    with iter(ds.repeat()) as running:
        for _ in range(2):
            monkeypatch.setenv("TOLD", "yes")
            monkeypatch.setenv("OMP_NUM_THREADS", "3")
            monkeypatch.chdir(tmp_path)
            assert ds.to_table()["told"].to_pylist() == ["yes", str(tmp_path), "3"]
            monkeypatch.undo()
            assert next(running)["told"].to_pylist() == ["", str(Path.cwd()), "1"]


def test_a_worker_whose_folder_was_removed_works_in_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    with contextlib.chdir(folder):
        before = workers_of(numbers())
        folder.rmdir()
        refused(af.WorkerError, in_workers(numbers(), same).to_table, "folder", "removed")
    assert workers_of(numbers()) == before


def test_instances_live_as_long_as_the_run() -> None:
    class Counts:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, arrays: dict[str, Any]) -> dict[str, Any]:
            self.calls += 1
            return {"calls": np.array([self.calls])}

    ds = in_workers(numbers(6).repeat(2), Counts, format="numpy")
    for _ in range(2):
        assert ds.to_table()["calls"].to_pylist() == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_run_that_failed_leaves_nothing_in_its_workers() -> None:
    class Held:
        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            raise ValueError("no")

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"held": [sum(type(one).__name__ == "Held" for one in gc.get_objects())]})

    children.dismiss()
    refused(af.FunctionError, in_workers(numbers(), Held()).to_table, "no")
    assert in_workers(af.range(1), count).to_table()["held"].to_pylist() == [0]


@linux
def mapped_arenas() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:arrowflow")


@pytest.mark.slow
def test_nothing_is_left() -> None:
    gc.collect()
    children.dismiss()
    before, arenas = names("/proc/self/fd"), mapped_arenas()
    batches = list(in_workers(numbers(300), same))
    sockets = 2 * len(children._idle)
    assert len(names("/proc/self/fd")) == len(before) + sockets
    children.dismiss()
    assert len(names("/proc/self/fd")) == len(before)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    # What others have there comes and goes; Ray's store is that of other tests.
    assert not [line for line in maps.splitlines() if "/dev/shm/" in line and "plasma" not in line]
    assert mapped_arenas() > arenas and sum(batch.num_rows for batch in batches) == 300
    del batches
    gc.collect()
    assert mapped_arenas() == arenas  # those of a DataLoader stay until another one runs


@pytest.mark.parametrize("how", ["break", "close", "collected"])
def test_an_end_before_the_last_batch_leaves_idle_workers_that_know_nothing(how: str) -> None:
    iterator = iter(in_workers(numbers(300), same, calls=2))
    for _ in iterator:
        break
    if how == "close":
        iterator.close()
    del iterator
    gc.collect()
    assert children._idle and not any(one.known for one in children._idle)


def test_bytes_on_their_way_are_charged() -> None:
    ds = af.range(200_000).with_options(af.Options(max_chunk_rows=10_000, ram_budget="2MiB", cpu_budget=2))
    with iter(in_workers(ds, same)) as iterator:
        rows = sum(batch.num_rows for batch in iterator)
        stats = iterator.stats()
    assert rows == 200_000
    assert 160_000 < stats.ledger_peak_bytes <= (2 << 20) + 8 * 65_536  # and what goes beyond is one chunk


# ---------------------------------------------------------------------------------- errors


class Refused(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self.code = code


class Stubborn(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("no")


class Forgetful(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raises(error: BaseException) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("id")[0].as_py() == 6:
            raise error from KeyError("a reason")
        return batch

    return fn


def failure(ds: af.Dataset) -> tuple[int, af.ArrowflowError]:
    """Returns the rows that came before an error, and the error."""
    rows = 0
    try:
        for batch in ds:
            rows += batch.num_rows
    except af.ArrowflowError as error:
        return rows, error
    pytest.fail("there was no error")


def test_an_exception_comes_back_in_order_with_its_cause_and_traceback() -> None:
    rows, error = failure(in_workers(numbers(), raises(Refused("no", 3))))
    assert rows == 6
    assert isinstance(error, af.FunctionError) and error.operator == "map"
    cause = error.__cause__
    assert isinstance(cause, Refused) and cause.code == 3
    assert isinstance(cause.__cause__, KeyError)
    (note,) = cause.__notes__
    assert (
        note.startswith("In a worker process:\nKeyError: 'a reason'") and "raise error from KeyError" in note
    )


@pytest.mark.parametrize(
    ("error", "text"), [(Stubborn("secret"), "Stubborn: secret"), (Forgetful(1, 2), "Forgetful: 1 and 2")]
)
def test_an_exception_that_does_not_pickle_comes_back_as_text(error: Exception, text: str) -> None:
    found = unpack_error(pack_error(error))
    assert type(found) is RuntimeError and str(found) == text
    assert found.__notes__[0].startswith("In a worker process:")


def test_exit_and_interrupt_end_the_call_and_not_the_program() -> None:
    def leave(batch: pa.RecordBatch) -> pa.RecordBatch:
        sys.exit(3)

    def interrupt(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise KeyboardInterrupt

    refused(af.FunctionError, in_workers(af.range(3), leave).to_table, "SystemExit")
    refused(af.ArrowflowError, in_workers(af.range(3), interrupt).to_table, "KeyboardInterrupt")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["exit code 7", "signal 9 (SIGKILL", "signal 15 (SIGTERM"])
def test_a_worker_that_ends_is_an_error_in_order(ending: str) -> None:
    def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("id")[0].as_py() == 6:
            if "7" in ending:
                os._exit(7)
            os.kill(os.getpid(), int(ending.split()[1]))
            threading.Event().wait()
        return batch

    rows, error = failure(in_workers(numbers(), fn))
    assert rows == 6
    assert isinstance(error, af.WorkerError) and error.operator == "map"
    assert ending in str(error) and "split 0, piece 2" in str(error)
    assert workers_of(numbers())  # the next run has others


@pytest.mark.slow
@linux
def test_an_idle_worker_that_is_killed_is_nobodys_error() -> None:
    (pid,) = workers_of(numbers())
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert workers_of(numbers()) != {pid}


@pytest.mark.slow
def test_a_function_that_forks_does_not_hide_the_end_of_its_worker(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)

    def fn(batch: pa.RecordBatch) -> pa.RecordBatch:
        if os.fork() == 0:
            with open(fifo, encoding="utf-8") as file:  # noqa: PTH123
                file.read()
            os._exit(0)
        os._exit(1)

    refused(af.WorkerError, in_workers(af.range(3), fn).to_table, "exit code 1")
    with open(fifo, "w", encoding="utf-8"):  # noqa: PTH123
        pass


def test_a_function_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("nowhere_to_be_found")
    exec("def fn(batch): return batch", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    ds = in_workers(numbers(), module.fn)
    refused(af.WorkerError, ds.to_table, "cannot load the function", "nowhere_to_be_found")
    refused(af.WorkerError, ds.to_table, "cannot load the function")


@pytest.mark.usefixtures("_none_idle")
def test_a_worker_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    refused(af.WorkerError, in_workers(numbers(), same).to_table, "cannot be started", "/nowhere/python")


@pytest.mark.usefixtures("_none_idle")
def test_nobody_waits_for_a_worker_that_has_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    awaits, awaited = children.Child.await_start, threading.Event()

    def noted(self: children.Child, origin: Origin) -> None:
        awaited.set()
        awaits(self, origin)

    monkeypatch.setattr(children.Child, "await_start", noted)
    run = iter(in_workers(numbers(), same).with_options(af.Options(close_timeout=SECONDS)))

    def read() -> None:
        with contextlib.suppress(af.ArrowflowError):
            next(run)

    loop = threading.Thread(target=read, daemon=True)
    loop.start()
    assert awaited.wait(SECONDS)
    began = time.perf_counter()
    run.close()
    loop.join(SECONDS)
    assert not loop.is_alive() and time.perf_counter() - began < SECONDS / 2


def test_bad_arguments_are_refused_at_once() -> None:
    lock = socket.socket()
    with lock:
        for call in (af.range(3).map, af.range(3).map_rows):
            unknown = functools.partial(call, same, executor=cast(Any, "fork"))
            refused(af.PlanError, unknown, "'thread' or 'process'")
            unpicklable = functools.partial(call, lambda one: lock, executor="process")
            refused(af.PlanError, unpicklable, "cannot be pickled", "socket")


# ---------------------------------------------------------------------------------- the end


@pytest.mark.slow
@linux
def test_close_ends_a_call_after_the_timeout(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, at=0)
    ds = in_workers(numbers().with_options(af.Options(close_timeout=0.05)), meeting).batch(3)
    iterator = iter(ds.prefetch(2))
    iterator.state_dict()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        closer = _closing(iterator, meeting)
    assert [str(one.message) for one in caught if "their worker processes were killed" in str(one.message)]
    wait_for(closer)


def _closing(iterator: Any, meeting: Meeting) -> int:
    """Closes an iterator while a call waits; returns the call's process."""
    found: list[int] = []

    def close() -> None:
        found.append(meeting.pid())
        iterator.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(af.ClosedError):
        next(iterator)
    thread.join(SECONDS)
    return found[0]


def run_script(text: str, folder: Path, *, group: bool = False) -> subprocess.Popen[str]:
    """Starts a program of its own, from a file."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=group,
    )


def finished(program: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, errors = program.communicate(timeout=2 * SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        out, errors = program.communicate()
        pytest.fail(f"it hung; it wrote {out!r} and {errors!r}")
    return program.returncode, out, errors


FOREVER = """
import os, sys, threading
import arrowflow as af

def forever(batch):
    os.write(1, b"%d\\n" % os.getpid())  # at once: two workers may write
    while True:
        pass
"""


def run_until_called(text: str, folder: Path, *, group: bool = False) -> tuple[subprocess.Popen[str], int]:
    """Starts a program with a function that does not return; returns the program and the process of a call."""
    program = run_script(FOREVER + text, folder, group=group)
    assert program.stdout is not None
    return program, int(program.stdout.readline())


UNGUARDED = """
import arrowflow as af, os

class Doubler:
    def __call__(self, row):
        return {"id": row["id"] * FACTOR, "pid": os.getpid()}

FACTOR = 2
print("once")
table = af.range(10).map_rows(Doubler, executor="process").to_table()
assert os.getpid() not in table["pid"].to_pylist()
print(table["id"].to_pylist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "import os, sys\nos.close(2)\nsys.stderr = None\n"])
def test_a_script_needs_no_guard_and_no_stderr(tmp_path: Path, before: str) -> None:
    """A service closes its stderr: its workers have none either."""
    expected = f"once\n{[2 * i for i in range(10)]}\n"
    assert finished(run_script(before + UNGUARDED, tmp_path)) == (0, expected, "")


DAEMONIC = """
import multiprocessing
import arrowflow as af

def add_one(row):
    return {"id": row["id"] + 1}

def work():
    print(af.range(3).map_rows(add_one, executor="process").to_table()["id"].to_pylist(), flush=True)

if __name__ == "__main__":
    process = multiprocessing.get_context("METHOD").Process(target=work, daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_daemonic_processes_may_have_workers(tmp_path: Path, method: str) -> None:
    """Also where the main file has another name, and what it defines goes by value all the same."""
    script = DAEMONIC.replace("METHOD", method)
    assert finished(run_script(script, tmp_path)) == (0, "[1, 2, 3]\n", "")


LEAVING = """
ds = af.range(10).with_options(af.Options(max_chunk_rows=1, close_timeout=0.1))
iterator = iter(ds.map(lambda batch: batch, executor="process").map(forever, executor="process").prefetch(2))
threading.Thread(target=lambda: list(iterator), daemon=True).start()
os.read(0, 1)
"""


@pytest.mark.slow
@linux
def test_exit_in_the_middle_of_a_call_ends_it(tmp_path: Path) -> None:
    program, worker = run_until_called(LEAVING, tmp_path)
    _, errors = program.communicate("x", timeout=SECONDS)
    assert program.returncode == 0 and "their worker processes were killed" in errors
    wait_for(worker)


ENDLESS = """
af.range(10).map(forever, executor="process").to_table()
"""


@pytest.mark.slow
@linux
def test_a_parent_that_is_killed_leaves_nobody(tmp_path: Path) -> None:
    program, worker = run_until_called(ENDLESS, tmp_path)
    program.kill()
    program.communicate(timeout=SECONDS)
    wait_for(worker)


@pytest.mark.slow
@linux
def test_ctrl_c_is_the_parents_business(tmp_path: Path) -> None:
    impatient = ENDLESS.replace("af.range(10)", "af.range(10).with_options(af.Options(close_timeout=0))")
    program, worker = run_until_called(impatient, tmp_path, group=True)
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=SECONDS)
    assert errors.count("Traceback") == 1 and errors.rstrip().endswith("KeyboardInterrupt")
    wait_for(worker)


FORKING = """
import os, socket
import arrowflow as af

iterator = iter(af.range(1000).with_options(af.Options(max_chunk_rows=10)).map(lambda b: b, executor="process"))
next(iterator)

def sockets():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink("/proc/self/fd/" + name))
        except OSError:
            pass
    return [link for link in found if link.startswith("socket:")]

assert sockets()
pid = os.fork()
if not pid:
    os._exit(len(sockets()))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print(sum(batch.num_rows for batch in iterator))
"""


@pytest.mark.slow
@linux
def test_a_forked_child_shares_no_sockets(tmp_path: Path) -> None:
    status, out, errors = finished(run_script(FORKING, tmp_path))
    assert (status, out) == (0, "990\n"), errors


# ---------------------------------------------------------------------------------- shared memory, messages


def batch_of(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(np.arange(rows))})


def test_an_arena_is_used_again_when_it_was_given_back_and_not_before() -> None:
    outbox, inbox = Outbox(), Inbox()
    parcel, descriptor = write_batch(outbox, batch_of(100))
    first = read_batch(inbox, parcel, descriptor)
    column = first.column("x").slice(10)
    del first
    gc.collect()
    assert inbox.returned() == ()
    second = write_batch(outbox, batch_of(100))
    assert second[1] is not None and second[0].number != parcel.number
    read_batch(inbox, *second)
    assert column.to_pylist() == list(range(10, 100))
    del column
    assert set(inbox.returned()) == {parcel.number, second[0].number} and inbox.returned() == ()
    outbox.take_back([parcel.number, second[0].number])
    third, descriptor = write_batch(outbox, batch_of(50))
    assert descriptor is None and third.number == second[0].number


def test_arenas_that_are_too_small_or_not_needed_are_dropped() -> None:
    outbox, inbox = Outbox(), Inbox()
    kept = [read_batch(inbox, *write_batch(outbox, batch_of(10))) for _ in range(6)]
    kept.clear()
    outbox.take_back(inbox.returned())
    small = []
    for _ in range(MAX_WAIT + 2):
        small.append(write_batch(outbox, batch_of(10)))
        read_batch(inbox, *small[-1])
        outbox.take_back(inbox.returned())
    assert all(descriptor is None for _, descriptor in small)
    dropped = [number for parcel, _ in small for number in parcel.dropped]
    assert len(dropped) == 5 and small[-1][0].number not in dropped
    parcel, descriptor = write_batch(outbox, batch_of(1_000_000))
    assert sorted([*dropped, *parcel.dropped]) == list(range(6))
    large = read_batch(inbox, parcel, descriptor)
    assert len(inbox._mappings) == 1 and large.num_rows == 1_000_000
    outbox.clear()
    inbox.clear()
    assert large.equals(batch_of(1_000_000))
    del large
    outbox.take_back(inbox.returned())  # of an arena that it has forgotten
    assert write_batch(outbox, batch_of(1))[1] is not None, "an arena that was forgotten is used"


def test_without_memfd_the_memory_is_an_unlinked_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    outbox, inbox = Outbox(), Inbox()
    parcel, descriptor = write_batch(outbox, batch_of(100))
    assert descriptor is not None and os.fstat(descriptor).st_nlink == 0
    assert read_batch(inbox, parcel, descriptor).equals(batch_of(100))


class Counting(StatelessKernel):
    """Yields the epoch, how many calls there were in it, and how many kernels."""

    def __init__(self, context: Context) -> None:
        self.epoch, self.calls = context.epoch, 0
        context.run_storage["made"] = self.made = context.run_storage.get("made", 0) + 1

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        if origin.split == 9:
            raise ValueError("no")
        self.calls += 1
        return pa.record_batch({"x": [self.epoch, self.calls, self.made]})


def test_a_worker_makes_kernels_and_forgets_them_with_their_run() -> None:
    ours, theirs = socket.socketpair()
    outbox, inbox = Outbox(), Inbox()
    around = Surroundings(tuple(sys.path), str(Path.cwd()), dict(os.environ))

    def ask(run: int, epoch: int, split: int = 0, *, new: bool = False) -> None:
        packed = Packed(pack(Counting), around) if new else None
        parcel, descriptor = write_batch(outbox, batch_of(3))
        send(ours, Call((run, 0), packed, epoch, Origin(split), parcel, ()), descriptor)

    with ours, theirs:
        for run in range(MAX_KNOWN + 1):
            ask(run, epoch=0, new=True)
        for epoch in (0, 1, 1):
            ask(1, epoch)
        ask(2, epoch=0, split=9)
        ask(0, epoch=0)  # which is one too many
        send(ours, Forget((1,)))
        ask(1, epoch=1)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            child._Server(theirs).serve(3600.0)
        answers = [receive(ours) for _ in range(MAX_KNOWN + 8)]
    assert [answer for answer, _ in answers if isinstance(answer, Forgotten)] == [Forgotten(())]
    made = [read_batch(inbox, answer.parcel, fd) for answer, fd in answers if isinstance(answer, Made)]
    first = [[0, 1, 1]] * (MAX_KNOWN + 1)
    assert [batch["x"].to_pylist() for batch in made] == [*first, [0, 2, 1], [1, 1, 2], [1, 2, 2]]
    failed = [unpack_error(answer.error) for answer, _ in answers if isinstance(answer, Failed)]
    assert list(map(type, failed)) == [ValueError, KeyError, KeyError]


@pytest.mark.slow
def test_a_worker_counts_operators_that_failed_as_its_parent_does() -> None:
    packed = Packed(pack(Counting), children.surroundings())
    worker = children.Child(packed.around)
    worker.await_start(Origin(0))
    try:
        for number in range(MAX_KNOWN):
            worker.call((0, number), packed, 0, Origin(0), batch_of(1))
        with pytest.raises(ValueError, match="no"):
            worker.call((0, MAX_KNOWN - 1), packed, 0, Origin(9), batch_of(1))
        for number in (MAX_KNOWN, 0):
            worker.call((0, number), packed, 0, Origin(0), batch_of(1))
    finally:
        worker.close()


@pytest.mark.parametrize("when", ["during the call", "as it is given back"])
def test_a_run_that_ends_while_it_calls_is_forgotten_after_the_call(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, given = RunProcesses(WallClock(), 60.0), list[children.Child]()
    step, give_back = children.Child.call, children.give_back

    def ends_during(self: children.Child, *arguments: Any) -> pa.RecordBatch:
        processes.leave(60.0)
        return step(self, *arguments)

    def noted(child: children.Child, now: float, seconds: float) -> list[str]:
        given.append(child)
        if when != "during the call":
            processes.leave(60.0)
        return give_back(child, now, seconds)

    if when == "during the call":
        monkeypatch.setattr(children.Child, "call", ends_during)
    monkeypatch.setattr(children, "give_back", noted)
    spec = KernelSpec("stateless", Counting, operator="map")
    made = processes.call(spec, 0, batch_of(1), Origin(0))
    assert isinstance(made, pa.RecordBatch) and made["x"].to_pylist() == [0, 1, 1]
    (one,) = given
    assert one is children._idle[-1]
    assert not one.known and one.waits


def test_messages_come_whole_or_not_at_all() -> None:
    one, other = socket.socketpair()
    with one, other:
        send(one, Forget((3,)))
        assert receive(other) == (Forget((3,)), None)
        one.sendall(b"\x01")
        one.close()
        with pytest.raises(EOFError):
            receive(other)

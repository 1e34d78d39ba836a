"""However a run ends, its threads, files and memory end with it. What ends a process runs in processes."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.errors import ClosedError, ForkError, FunctionError
from arrowflow.testing import Gate
from tests.effort import scaled
from tests.warm import Server

RACES = scaled(4)
"""How many processes try what races."""

PRELUDE = """
import contextlib, gc, os, signal, sys, threading, time
import numpy.random  # imported later, it swallows an interrupt: Cython clears what `abc` raises while a module begins
import pyarrow as pa
import arrowflow as af
import arrowflow.executor.engine as engine

engine.INTERRUPTED_SECONDS = engine.INTERRUPTED_KILLED_SECONDS = 60.0  # for workers that a busy machine holds up

def same(batch):
    return batch

def workers():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("arrowflow-")]

def left():
    # `close` cannot join a thread whose start was interrupted, nor can this until it has begun; it ends by itself.
    until = time.monotonic() + 60.0
    while workers() and time.monotonic() < until:
        for thread in threading.enumerate():
            if thread.name.startswith("arrowflow-"):
                with contextlib.suppress(RuntimeError):
                    thread.join(60.0)
    return workers()

def endless():
    return af.range(1_000_000).map(same).shuffle(100_000).repeat().batch(1000)
"""


@functools.cache
def server() -> Server:
    return Server(PRELUDE)


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    server().close()
    server.cache_clear()


def outcome(script: str, *arguments: str) -> tuple[int, str, str]:
    return server().run(script, *arguments)


def quietly(script: str, *arguments: str, times: int = 1) -> list[str]:
    """Runs a script in processes that have to exit with 0 and say nothing on stderr; returns what they print."""
    found = []
    for _ in range(times):
        status, out, errors = outcome(script, *arguments)
        assert (status, errors) == (0, "")
        found.append(out.strip())
    return found


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("arrowflow-")]


def descriptors() -> list[str]:
    """Returns the files that this process has open."""
    folder = Path("/proc/self/fd")
    found = []
    for link in folder.iterdir():
        try:
            found.append(str(link.readlink()))
        except OSError:  # the descriptor of the listing itself
            continue
    return sorted(found)


def maps(folder: Path) -> list[str]:
    """Returns the files of a folder that are mapped into this process."""
    return [
        line
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        if str(folder) in line
    ]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for number in range(4):
        table = pa.table({"x": list(range(number * 300, (number + 1) * 300)), "s": ["text"] * 300})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=100)
    return tmp_path


def pipeline(files: Path) -> af.Dataset:
    return af.read_parquet(files).map(same).shuffle(500).repeat().batch(64)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def exhaust(files: Path) -> None:
    for _ in af.read_parquet(files).map(same).shuffle(500).repeat(2).batch(64):
        pass


def leave(files: Path) -> None:
    for _ in pipeline(files):
        break


def close_twice(files: Path) -> None:
    iterator = iter(pipeline(files))
    next(iterator)
    iterator.close()
    iterator.close()


def with_block(files: Path) -> None:
    with iter(pipeline(files).to_numpy()) as iterator:
        next(iterator)


def delete(files: Path) -> None:
    iterator = iter(pipeline(files).to_numpy())
    next(iterator)
    del iterator


def fail_in_the_loop(files: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        _divide(pipeline(files))


def _divide(dataset: af.Dataset) -> None:
    for _ in dataset:
        raise ZeroDivisionError


def fail_in_a_function(files: Path) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ZeroDivisionError

    with pytest.raises(FunctionError):
        next(iter(af.read_parquet(files).map(fail).batch(10)))


def leave_a_generator(files: Path) -> None:
    def batches() -> Iterator[Any]:
        yield from pipeline(files).to_numpy()

    generator = batches()
    next(generator)
    del generator


def restart(files: Path) -> None:
    iterator = iter(pipeline(files))
    next(iterator)
    state = iterator.state_dict()
    next(iterator)
    iterator.load_state_dict(state)
    next(iterator)
    iterator.set_epoch(3)
    next(iterator)
    iterator.close()


ENDS: list[Callable[[Path], None]] = [
    exhaust,
    leave,
    close_twice,
    with_block,
    delete,
    fail_in_the_loop,
    fail_in_a_function,
    leave_a_generator,
    restart,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_threads_files_and_memory_are_back(end: Callable[[Path], None], files: Path) -> None:
    exhaust(files)  # what libraries set up once
    gc.collect()
    gc.disable()  # nothing may need the collector
    try:
        memory, open_files = pa.total_allocated_bytes(), descriptors()
        end(files)
        assert workers() == []
        assert descriptors() == open_files
        assert pa.total_allocated_bytes() == memory
        assert maps(files) == []
    finally:
        gc.enable()


def test_a_cycle_is_collected_with_its_run(files: Path) -> None:
    memory = pa.total_allocated_bytes()
    cycle: list[Any] = [iter(pipeline(files))]
    cycle.append(cycle)
    next(cycle[0])
    seen = weakref.ref(cycle[0])
    del cycle
    gc.collect()
    assert seen() is None
    assert workers() == []
    assert pa.total_allocated_bytes() == memory


def test_an_iterator_may_be_collected_in_a_worker_of_another(files: Path) -> None:
    cycle: list[Any] = [iter(pipeline(files))]
    cycle.append(cycle)
    next(cycle[0])
    others = workers()
    seen = weakref.ref(cycle[0])
    del cycle
    gc.disable()

    def collect(batch: pa.RecordBatch) -> pa.RecordBatch:
        gc.collect()
        return batch

    try:
        for _ in af.range(3).map(collect).batch(1):
            pass
    finally:
        gc.enable()
    assert seen() is None
    for thread in others:
        thread.join()


def test_an_iterator_may_be_collected_in_its_own_worker() -> None:
    holder: list[Any] = []

    def let_go(batch: pa.RecordBatch) -> pa.RecordBatch:
        if holder:
            gate.pass_through()
            holder.clear()
            gc.collect()
        return batch

    gate = Gate()
    iterator = iter(af.range(1_000_000).map(let_go, num_parallel_calls=1).batch(1000))
    next(iterator)
    holder.append(iterator)
    threads = workers()
    del iterator
    gate.open()
    holder.clear()
    for thread in threads:
        thread.join()


def test_close_from_another_thread_ends_a_waiting_next() -> None:
    gate = Gate()

    def wait(batch: pa.RecordBatch) -> pa.RecordBatch:
        gate.pass_through()
        return batch

    iterator = iter(af.range(10).map(wait).batch(2))
    raised: list[BaseException] = []

    def consume() -> None:
        try:
            next(iterator)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
            raised.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    gate.wait_for(1)
    closer = threading.Thread(target=iterator.close)
    closer.start()
    consumer.join(0.0)  # it ends in its own time; the gate holds only the worker
    gate.open()
    closer.join()
    consumer.join()
    assert [type(error) for error in raised] == [ClosedError]
    with pytest.raises(ClosedError):
        next(iterator)
    with pytest.raises(ClosedError):
        iterator.set_epoch(0)


def test_two_threads_on_one_iterator() -> None:
    """Each batch goes to one of them. One that comes while the other waits is told, and loses nothing."""
    for _ in range(RACES):
        iterator = iter(af.range(400).map(same).batch(4))
        found: list[int] = []
        told: list[str] = []

        def consume(iterator: Any = iterator, found: list[int] = found, told: list[str] = told) -> None:
            while True:
                try:
                    batch = next(iterator, None)
                except af.ArrowflowError as error:
                    told.append(str(error))
                    continue
                if batch is None:
                    return
                found.append(batch["id"][0].as_py())

        threads = [threading.Thread(target=consume) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(0, 400, 4))
        assert all(text.startswith("next() is still running; an iterator has one consumer") for text in told)


def test_a_function_that_blocks_is_named_after_the_timeout() -> None:
    gate = Gate()

    def stuck(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column(0)[0].as_py():
            gate.pass_through()
        return batch

    dataset = af.range(200_000).map(stuck).batch(10).with_options(af.Options(close_timeout=0.0))
    iterator = iter(dataset)
    next(iterator)
    gate.wait_for(1)
    late = workers()
    try:
        with pytest.warns(
            RuntimeWarning, match=r"call\(s\) of map.* did not return within close_timeout=0 s"
        ):
            iterator.close()
    finally:
        gate.open()
    for thread in late:
        thread.join()


def test_a_generator_source_is_closed_with_the_run(files: Path) -> None:
    closed = threading.Event()

    def rows() -> Iterator[dict[str, Any]]:
        try:
            for number in range(10_000):
                yield {"x": number}
        finally:
            closed.set()

    for _ in af.from_generator(rows).batch(10):
        break
    assert closed.is_set()
    assert workers() == []


def test_many_iterators_at_once(files: Path) -> None:
    iterators = [iter(pipeline(files).to_numpy()) for _ in range(4)]
    first = [next(iterator)["x"].tolist() for iterator in iterators]
    assert all(values == first[0] for values in first)
    for iterator in iterators:
        iterator.close()
    assert workers() == []


def test_a_dataset_inside_of_a_function(files: Path) -> None:
    inner = af.read_parquet(files).batch(500)

    def nested(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = sum(part.num_rows for part in inner)
        for _ in inner:
            break
        return pa.record_batch({"rows": [rows]})

    dataset = af.range(200_000).with_options(af.Options(max_chunk_rows=65_536)).map(nested).batch(10)
    assert [batch.column(0).to_pylist() for batch in dataset] == [[1200] * 4]
    for thread in workers():
        thread.join()


# ---------------------------------------------------------------- interrupts and exits, in processes of their own


def test_ctrl_c_in_the_middle_of_next() -> None:
    script = """
    timer = threading.Timer(0.05 + 0.01 * int(sys.argv[1]), signal.raise_signal, (signal.SIGINT,))
    memory = pa.total_allocated_bytes()
    try:
        timer.start()
        for batch in endless():
            del batch
        raise SystemExit("it ended")
    except KeyboardInterrupt:
        pass
    timer.join()
    gc.collect()
    print(left(), pa.total_allocated_bytes() - memory)
    """
    for delay in range(4):
        assert quietly(script, str(delay)) == ["[] 0"]


def test_ctrl_c_while_next_waits() -> None:
    script = """
    entered = threading.Event()
    def wait(batch):
        entered.set()
        release.wait()
        return batch
    release = threading.Event()
    def interrupt():
        entered.wait()
        os.kill(os.getpid(), signal.SIGINT)
        release.set()
    threading.Thread(target=interrupt).start()
    try:
        next(iter(af.range(10).map(wait)))
        raise SystemExit("it ended")
    except KeyboardInterrupt:
        print(left())
    """
    assert quietly(script, times=RACES) == ["[]"] * RACES


def test_ctrl_c_that_nobody_catches_ends_the_process() -> None:
    script = """
    iterator = iter(endless())
    next(iterator)
    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(0.1, interrupt).start()
    for batch in iterator:
        pass
    """
    status, _, errors = outcome(script)
    assert status == -2
    assert "KeyboardInterrupt" in errors
    assert "Fatal" not in errors


CTRL_C = """
import pathlib, tempfile, warnings

engine.INTERRUPTED_SECONDS = 0.01  # in each of many interrupts; a plain close would wait for an hour
PATIENT = af.Options(close_timeout=3600)
entered = threading.Semaphore(0)

def block(*ignored):
    entered.release()
    threading.Event().wait()

def rows():
    yield {"id": 1}
    block()

def interrupt():
    while True:
        entered.acquire()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
"""


def test_ctrl_c_does_not_wait_for_a_function_that_blocks() -> None:
    script = CTRL_C + textwrap.dedent("""
    folder = pathlib.Path(tempfile.mkdtemp())

    class Blocks:
        __call__ = staticmethod(block)

    blocking = {
        "map": af.range(10).map(block),
        "map_rows": af.range(10).map_rows(block),
        "filter": af.range(10).filter(Blocks),
        # Its caller is a worker, or the consumer, whose wait the interrupt ends: then the instance's thread is named.
        "scan Blocks": af.range(10).scan(0, Blocks),
        "from_generator": af.from_generator(rows, schema=pa.schema({"id": pa.int64()})).batch(2),
    }
    ways = {
        "for": list,
        "numpy": lambda dataset: list(dataset.to_numpy()),
        "polars": lambda dataset: list(dataset.to_polars()),
        "with": lambda dataset: dataset.to_numpy().__enter__().__iter__().__enter__().__next__(),
        "table": af.Dataset.to_table,
        "reduce": lambda dataset: dataset.reduce(0, lambda state, batch: state),
        "parquet": lambda dataset: dataset.write_parquet(folder / "parquet"),
        "ipc": lambda dataset: dataset.write_ipc(folder / "ipc"),
    }
    for names, dataset in blocking.items():
        for name, way in ways.items():
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                try:
                    way(dataset.with_options(PATIENT))
                    raise SystemExit("it ended")
                except KeyboardInterrupt:
                    pass
            (warning,) = told
            expected = [
                f"1 call(s) of {late} did not return within 0.01 s of the interrupt; they go on"
                for late in names.split()
            ]
            assert str(warning.message).startswith(tuple(expected)), (names, name, warning.message)
    print(list(folder.iterdir()))
    """)
    assert quietly(script) == ["[]"]


def test_ctrl_c_ends_a_worker_process_that_blocks(tmp_path: Path) -> None:
    script = CTRL_C + textwrap.dedent("""
    import multiprocessing
    path = os.path.join(sys.argv[1], "entered")
    os.mkfifo(path)
    def block_there(batch, path=path):
        import threading
        open(path, "w").close()
        threading.Event().wait()
    def wait():
        open(path).close()
        entered.release()
    threading.Thread(target=wait).start()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            list(af.range(10).map(block_there, executor="process").with_options(PATIENT))
        except KeyboardInterrupt:
            print(str(told[0].message).partition(". ")[0], workers())
    """)
    expected = "1 call(s) of map did not return within 0.01 s of the interrupt; their worker processes were killed []"
    assert quietly(script, str(tmp_path)) == [expected]


@pytest.mark.parametrize("where", ["next(iterator)", "while True: len(workers())"])
def test_ctrl_c_that_nobody_catches_ends_the_process_although_a_function_blocks(where: str) -> None:
    script = CTRL_C + textwrap.dedent(f"""
    def later(batch):
        return block() if batch["id"][0].as_py() else batch
    single = af.Options(max_chunk_rows=1)
    iterator = iter(af.range(10).with_options(PATIENT).with_options(single).map(later, num_parallel_calls=1))
    next(iterator)
    {where}
    """)
    status, _, errors = outcome(script)
    assert status == -2
    assert "call(s) of map did not return within 0.01 s of the interrupt" in errors
    assert "Fatal" not in errors


def test_a_signal_handler_may_close() -> None:
    script = """
    iterator = iter(endless().with_options(af.Options(close_timeout=30)))
    signal.signal(signal.SIGTERM, lambda number, frame: iterator.close())
    for _ in range(int(sys.argv[1])):
        next(iterator)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        for batch in iterator:
            pass
    except af.ClosedError:
        print(workers())
    """
    for batches in ("0", "7"):
        assert quietly(script, batches) == ["[]"]


def test_exit_at_full_flight() -> None:
    script = """
    iterator = iter(endless())
    for _ in range(5):
        next(iterator)
    print(len(workers()) > 0)
    """
    assert quietly(script, times=RACES) == ["True"] * RACES


def test_exit_at_full_flight_of_many_runs() -> None:
    script = """
    iterators = [iter(endless().to_numpy()) for _ in range(8)]
    for iterator in iterators:
        next(iterator)
    cycle = [iterators]
    cycle.append(cycle)
    """
    quietly(script, times=RACES)


def test_sys_exit_in_the_middle_of_an_epoch() -> None:
    script = """
    for number, batch in enumerate(endless()):
        if number == 3:
            sys.exit(0)
    """
    quietly(script, times=RACES)


def test_exit_while_a_daemon_thread_consumes() -> None:
    script = """
    began = threading.Event()
    def consume():
        while True:
            for batch in af.range(100_000).map(same).batch(100):
                began.set()
    threading.Thread(target=consume, daemon=True).start()
    began.wait()
    """
    quietly(script, times=RACES)


def test_exit_waits_for_a_thread_that_consumes() -> None:
    script = """
    def consume():
        print(sum(batch.num_rows for batch in af.range(300_000).map(same).batch(100)))
    threading.Thread(target=consume).start()
    """
    assert quietly(script, times=RACES) == ["300000"] * RACES


def test_exit_with_a_dataset_in_a_global_destructor() -> None:
    script = """
    class Holder:
        def __init__(self):
            self.iterator = iter(endless())
            next(self.iterator)
        def __del__(self):
            self.iterator.close()
    holder = Holder()
    holder.self = holder
    """
    quietly(script, times=RACES)


def test_exit_while_a_function_blocks_names_it_and_goes_on() -> None:
    script = """
    entered = threading.Event()
    def stuck(batch):
        entered.set()
        threading.Event().wait()
    threading.Thread(
        target=lambda: next(iter(af.range(3).map(stuck).with_options(af.Options(close_timeout=0.2)))), daemon=True
    ).start()
    entered.wait()
    """
    status, _, errors = outcome(script)
    assert status == 0
    assert "call(s) of map did not return within close_timeout=0.2 s" in errors
    assert "Traceback" not in errors


def test_a_generator_may_clean_up_at_exit() -> None:
    script = """
    def rows():
        try:
            while True:
                yield {"x": 1}
        finally:
            print("clean", flush=True)
    iterator = iter(af.from_generator(rows).batch(2))
    next(iterator)
    """
    assert quietly(script, times=RACES) == ["clean"] * RACES


# ---------------------------------------------------------------- other processes


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_dataset_runs_in_a_child(method: str, files: Path) -> None:
    dataset = af.read_parquet(files).map(same).shuffle(500, seed=1).batch(100)
    here = [batch.column("x").to_pylist() for batch in dataset]
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        assert pool.apply(rows_of, (dataset,)) == here


def rows_of(dataset: af.Dataset) -> list[list[int]]:
    return [batch.column("x").to_pylist() for batch in dataset]


FORK = """
def in_child(function):
    pid = os.fork()
    if pid == 0:
        try:
            function()
            os._exit(0)
        except BaseException as error:
            print(type(error).__name__, flush=True)
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_a_fork_of_a_process_that_ran_a_pipeline_is_told() -> None:
    script = FORK + textwrap.dedent("""
    iterator = iter(af.range(100).batch(10))
    next(iterator)
    print(in_child(lambda: next(iter(af.range(10)))))
    print(in_child(lambda: next(iterator)))
    print(sum(batch.num_rows for batch in iterator))
    print(in_child(lambda: next(iter(af.range(10)))))
    """)
    assert quietly(script) == ["\n".join(["ForkError", "7", "ForkError", "7", "90", "ForkError", "7"])]


def test_a_fork_of_a_process_that_ran_none_works() -> None:
    script = FORK + textwrap.dedent("""
    dataset = af.range(100_000).map(same).batch(10)
    def check():
        assert sum(batch.num_rows for batch in dataset) == 100_000
    print(in_child(check))
    print(in_child(check))
    check()
    """)
    assert quietly(script, times=RACES) == ["0\n0"] * RACES


def test_in_a_fork_nothing_of_the_parents_run_hangs() -> None:
    script = FORK + textwrap.dedent("""
    iterator = iter(endless().to_numpy())
    next(iterator)
    def use():
        iterator.stats()
        iterator.close()
        iterator.stats()
    def collect():
        global iterator
        del iterator
        gc.collect()
    for function in (use, collect, lambda: iterator._engine.lock.acquire(timeout=0) and None):
        print(in_child(function))
    with iterator._engine.lock:
        print(in_child(use), in_child(collect))
    next(iterator)
    """)
    assert quietly(script, times=RACES) == ["0\n0\n0\n0 0"] * RACES


def test_a_forked_child_exits_as_it_would_without_a_run() -> None:
    script = """
    iterator = iter(endless())
    next(iterator)
    pid = os.fork()
    if pid == 0:
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    next(iterator)
    """
    assert quietly(script, times=RACES) == ["3"] * RACES


def test_fork_error_says_what_to_do() -> None:
    assert issubclass(ForkError, RuntimeError)
    script = FORK + textwrap.dedent("""
    next(iter(af.range(10)))
    def child():
        try:
            next(iter(af.range(10)))
        except af.ForkError as error:
            print(error, flush=True)
    in_child(child)
    """)
    status, out, _ = outcome(script)
    assert status == 0
    assert '"spawn" or "forkserver"' in out

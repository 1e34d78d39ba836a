"""A training thread beside a pipeline at full speed: how much slower are its steps than its share of the CPU explains?

The step is pure Python, some 2 ms which let nobody else have the interpreter lock who has not waited for it for
`sys.getswitchinterval()`, 5 ms: the worst there is for threads that need the lock between their calls. The pipeline is
used in two ways: by the loop of the steps, which takes a batch for each (where it waits for them, the pipeline goes as
fast as it can); and by another thread, which takes batches as fast as they come and needs the lock for that itself.

Its share of the CPU is the time in which its thread runs, and that in which it could run but has no core: Linux tells
both. What is left over is what the pipeline's threads take by holding the lock, and by the wake-ups when it changes
hands; the bar is for the time beyond the queue for a core, over the time in which the thread runs.

With another thread there stand, for information, steps alone and steps beside as many threads as the pipeline has cores (`cpu_budget`),
which are as busy but never ask for the lock: each makes checksums over a large buffer. That is no bar, since a step may
take 10 % less CPU time beside a busy core than beside an idle one, where cores are virtual; and the pipeline, which
waits up to 5 ms for each time that it needs the lock, leaves its own idle: what remains of its speed is shown, too. (In
the loop, `next()` lets go of the lock while it waits.) All are measured in turns in one process,
some tenths of a second each, while the others rest: from one process to the next the speed of a machine changes more.
`lock` is the floor: one thread that does nothing but ask for the lock.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import data, harness, wide

STEP_SECONDS: Final = 0.002
WINDOW_STEPS: Final = 200
WINDOWS: Final = 6
BUFFER_BYTES: Final = 32 << 20
LOCK_BYTES: Final = 64 << 10
BATCH_ROWS: Final = 8192
TOKENS: Final = 2048
AT_REST: Final = 0.02
"""Of a core: whoever uses less is at rest."""
WARM_SECONDS: Final = 0.3
"""For what was read ahead while the pipeline was at rest to be taken, and for the rest to come to speed."""
NEEDED: Final = 1.05
IN_LOOP: Final = "in a loop over "
ROUNDS: Final = 3


# ---------------------------------------------------------------- pipelines


def _wide() -> Any:
    return wide.pipeline(data.wide())


def _function() -> Any:
    import arrowflow as af

    columns = data.DENSE[:6]
    rows = af.read_parquet(data.wide()).select(*columns).fill_null(dict.fromkeys(columns, 0.0))
    return rows.map(_halved, format="numpy").batch(BATCH_ROWS)


def _halved(arrays: Any) -> Any:
    return {name: array / 2 for name, array in arrays.items()}


def _embeddings() -> Any:
    import arrowflow as af

    return af.read_ipc(data.embeddings()).batch(BATCH_ROWS)


def _tokens() -> Any:
    import arrowflow as af

    return af.read_parquet(data.documents()).pack_sequences("tokens", TOKENS).batch(32)


PIPELINES: Final[dict[str, Callable[[], Any]]] = {
    "wide": _wide,
    "function": _function,
    "embeddings": _embeddings,
    "tokens": _tokens,
}


# ---------------------------------------------------------------- threads


class Beside:
    """A thread that calls `work` again and again, or rests."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.calls = 0
        self._work = work
        self._go = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self._go.wait() and not self._ended:
            self._work()
            self.calls += 1

    def go(self) -> None:
        """Lets it work."""
        self._go.set()

    def rest(self) -> None:
        """Lets it rest after the call that it is in."""
        self._go.clear()

    def end(self) -> None:
        """Ends it."""
        self._ended = True
        self._go.set()
        self._thread.join()


def step(loops: int) -> int:
    """Holds the interpreter lock."""
    total = 0
    for number in range(loops):
        total += number
    return total


def calibrated() -> int:
    """Returns how many loops take 2 ms."""
    tried, best = 40_000, float("inf")
    for _ in range(50):
        began = time.perf_counter()
        step(tried)
        best = min(best, time.perf_counter() - began)
    return round(tried * STEP_SECONDS / best)


class Queue:
    """How long this thread could have run so far but had no core; 0 where nobody tells.

    It is asked without letting go of the interpreter lock, which `open` and `read` do.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(80)
        self._read = ctypes.PyDLL(None).pread
        path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._file = path.open("rb") if path.exists() else None

    def seconds(self) -> float:
        """Returns it."""
        if self._file is None:
            return 0.0
        size = self._read(self._file.fileno(), self._buffer, len(self._buffer), 0)
        return int(self._buffer.raw[:size].split()[1]) / 1e9


def _settle() -> None:
    """Waits until all other threads of this process are at rest."""
    share = 1.0
    while share > AT_REST:
        began, cpu = time.perf_counter(), time.process_time()
        time.sleep(0.02)
        share = (time.process_time() - cpu) / (time.perf_counter() - began)


# ---------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True)
class Window:
    """What some steps took.

    Attributes:
        seconds: Wall time of a step.
        queued_seconds: Of it, time without a core although there was something to run.
        cpu_seconds: Of it, time on a core.
        calls_per_second: What the threads beside it got done.
    """

    seconds: float
    queued_seconds: float
    cpu_seconds: float
    calls_per_second: float

    @property
    def times(self) -> float:
        """How many times its share of the CPU a step took."""
        return (self.seconds - self.queued_seconds) / self.cpu_seconds


def _window(loops: int, queue: Queue, beside: Sequence[Beside]) -> Window:
    for each in beside:
        each.go()
    time.sleep(WARM_SECONDS)
    calls, queued, cpu = sum(each.calls for each in beside), queue.seconds(), time.thread_time()
    began = time.perf_counter()
    for _ in range(WINDOW_STEPS):
        step(loops)
    seconds = time.perf_counter() - began
    cpu, queued = time.thread_time() - cpu, queue.seconds() - queued
    calls = sum(each.calls for each in beside) - calls
    for each in beside:
        each.rest()
    _settle()
    return Window(seconds / WINDOW_STEPS, queued / WINDOW_STEPS, cpu / WINDOW_STEPS, calls / seconds)


def _measure(work: Callable[[], object], cores: int) -> harness.Measurement:
    buffer = np.random.default_rng(0).bytes(BUFFER_BYTES)
    ours, busy = Beside(work), [Beside(lambda: zlib.crc32(buffer)) for _ in range(cores)]
    measured: dict[str, list[Window]] = {"alone": [], "busy": [], "ours": []}
    loops, queue, watch = calibrated(), Queue(), harness.Stopwatch()
    try:
        for _ in range(WINDOWS):
            for name, beside in (("alone", []), ("busy", busy), ("ours", [ours])):
                measured[name].append(_window(loops, queue, beside))
        unhindered = _unhindered(ours)
    finally:
        for each in (ours, *busy):
            each.end()
    if not unhindered:
        raise AssertionError("nothing was done beside the steps, so they show nothing")
    with_ours = measured["ours"]
    return watch.measurement(
        3 * WINDOWS * WINDOW_STEPS,
        times=statistics.median(window.times for window in with_ours),
        calls_per_second=statistics.median(window.calls_per_second for window in with_ours),
        unhindered_calls_per_second=unhindered,
        **{
            f"{name}_ms": 1e3 * statistics.median(window.seconds for window in windows)
            for name, windows in measured.items()
        },
    )


def _unhindered(ours: Beside) -> float:
    """Returns how often it works in a second while this thread sleeps."""
    ours.go()
    time.sleep(WARM_SECONDS)
    calls, began = ours.calls, time.perf_counter()
    time.sleep(WINDOW_STEPS * STEP_SECONDS)
    calls, seconds = ours.calls - calls, time.perf_counter() - began
    ours.rest()
    return calls / seconds


def _beside(pipeline: Callable[[], Any], cores: int) -> harness.Contender:
    def measure() -> harness.Measurement:
        import arrowflow as af

        dataset = pipeline().with_options(af.Options(cpu_budget=cores))
        with iter(dataset.repeat().to_torch()) as batches:
            return _measure(lambda: next(batches), cores)

    return measure


def _in_loop(pipeline: Callable[[], Any], cores: int) -> harness.Contender:
    def measure() -> harness.Measurement:
        import arrowflow as af

        dataset = pipeline().with_options(af.Options(cpu_budget=cores))
        loops, queue, watch = calibrated(), Queue(), harness.Stopwatch()
        with iter(dataset.repeat().to_torch()) as batches:
            for _ in range(WINDOW_STEPS):
                next(batches)
            windows = [_loop(loops, queue, lambda: next(batches)) for _ in range(WINDOWS)]
        return watch.measurement(
            WINDOWS * WINDOW_STEPS,
            times=statistics.median(window.times for window in windows),
            ours_ms=1e3 * statistics.median(window.seconds for window in windows),
            waited_ms=1e3 * statistics.median(1 / window.calls_per_second for window in windows),
        )

    return measure


def _loop(loops: int, queue: Queue, take: Callable[[], object]) -> Window:
    seconds = waited = queued = cpu = 0.0
    for _ in range(WINDOW_STEPS):
        asked = time.perf_counter()
        take()
        waited += time.perf_counter() - asked
        began, before, on_core = time.perf_counter(), queue.seconds(), time.thread_time()
        step(loops)
        cpu += time.thread_time() - on_core
        queued += queue.seconds() - before
        seconds += time.perf_counter() - began
    return Window(seconds / WINDOW_STEPS, queued / WINDOW_STEPS, cpu / WINDOW_STEPS, WINDOW_STEPS / waited)


def lock() -> harness.Measurement:
    """Measures what a thread costs that needs the lock all the time, for an instant each."""
    buffer = bytes(LOCK_BYTES)
    return _measure(lambda: zlib.crc32(buffer), 1)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar for each pipeline, and the floor."""
    bars = []
    for name, ones in rounds.items():
        if name.startswith(IN_LOOP):
            times, ours, waited = (
                harness.median_extra(ones, key) for key in ("times", "ours_ms", "waited_ms")
            )
            got = f"{ours:.2f} ms a step, behind {waited:.2f} ms for its batch"
            bars.append(harness.Bar(f"steps {name}", f"<= {NEEDED} x its share", got, times <= NEEDED, times))
            continue
        times, rate, unhindered = (
            harness.median_extra(ones, key)
            for key in ("times", "calls_per_second", "unhindered_calls_per_second")
        )
        ours, busy, alone = (harness.median_extra(ones, f"{key}_ms") for key in ("ours", "busy", "alone"))
        got = f"{ours:.2f} ms a step; {busy:.2f} beside busy threads, {alone:.2f} alone; "
        got += f"{rate:,.0f} batches/s, {unhindered:,.0f} without steps"
        floor = name == "lock"
        needed = "for information" if floor else f"<= {NEEDED} x its share"
        bars.append(harness.Bar(f"steps beside {name}", needed, got, floor or times <= NEEDED, times))
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "lock": lock,
    **{
        f"{where}{name}, cpu_budget={cores}": measured(PIPELINES[name], cores)
        for where, measured in ((IN_LOOP, _in_loop), ("", _beside))
        for name in PIPELINES
        for cores in (1, 2)
    },
}

if __name__ == "__main__":
    harness.main("beside", CONTENDERS, judge, rounds=ROUNDS)

"""The executor's own cost: no-op kernels over one tiny chunk, so that nothing else is left to measure.

Four stages: a source, two parallel stages, one serial stage. The same for 2,000 and for 100,000 chunks, since
the cost must not grow with the length of the run; with 8 and with 512 open inputs, since it must not grow with these;
and how long it takes to start and to close a pipeline.

What measuring costs is held against a pipeline that does something: Parquet, a function on arrays, batches of 8192
rows, with given numbers of calls; once as it is, and once with clocks that stand still and a tuner that does nothing.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from benchmarks import data, harness

STAGES: Final = 4
SHORT: Final = 2_000
LONG: Final = 100_000
STARTS: Final = 50
NEEDED_MICROSECONDS: Final = 12.0
NEEDED_START_MILLISECONDS: Final = 10.0
FLATNESS: Final = 1.25
TURNS: Final = 20_480
INPUTS_FLATNESS: Final = 1.2
NEEDED_STATISTICS: Final = 1.01


def chain(num_chunks: int, inputs: int = 0) -> Any:
    """Returns a physical plan of no-op kernels that sends `num_chunks` chunks through four stages.

    With `inputs`, the four stages are a source and a function in each of so many inputs, and two stages that take a chunk
    of each input in turn.
    """
    import pyarrow as pa

    from arrowflow.kernels.context import Context
    from arrowflow.kernels.items import Item, Made, Origin, Payload, Task
    from arrowflow.kernels.kinds import BoundaryKernel, SerialKernel, SourceKernel, StatelessKernel
    from arrowflow.kernels.operator import KernelSpec, Kind
    from arrowflow.physical.stage import Chain, StagePlan
    from arrowflow.plan.position import Position

    chunk = pa.record_batch({"x": pa.nulls(1, pa.int32())})

    class Source(SourceKernel):
        def tasks(self, position: Position) -> Iterator[Task]:
            return (Task(number, Origin(number), 64) for number in range(num_chunks))

        def read(self, task: Task) -> Iterator[Made]:
            yield Made(chunk, (task.payload + 1,))

    class Same(StatelessKernel):
        def apply(self, chunk: Payload, origin: Origin) -> Payload:
            return chunk

    class Through(SerialKernel):
        def open(self, position: Position, epoch: int) -> Position:
            return position

        def push(self, item: Item) -> Iterator[Item]:
            yield item

    class Turns(BoundaryKernel):
        chunks_held = 1

        def __init__(self, context: Context) -> None:
            self.context = context
            self.streams: deque[Any] = deque()

        def open(self, position: Position, epoch: int) -> Position:
            return position

        def push(self, item: Item) -> Iterator[Item]:
            raise AssertionError

        def next_input(self) -> Any:
            if not self.streams:
                self.streams.extend(self.context.open(0, 0, None) for _ in range(inputs))
            return None if self.done else self.streams[0]

        def push_from(self, stream: Any, item: Item) -> Iterator[Item]:
            self.streams.rotate(-1)
            yield item

        def ended(self, stream: Any) -> None:
            self.done = True

    def spec(name: str, kind: Kind, kernel: type[Any]) -> KernelSpec:
        return KernelSpec(kind, lambda context: kernel(), operator=name)

    turns = StagePlan(kind="boundary", kernels=(KernelSpec("boundary", Turns, operator="turns"),))
    same = StagePlan(kind="parallel", kernels=(spec("same", "stateless", Same),))
    source = StagePlan(kind="parallel", head=spec("source", "source", Source))
    through = StagePlan(kind="serial", kernels=(spec("through", "serial", Through),))
    if inputs:
        two_ahead = (dataclasses.replace(stage, buffer_items=2) for stage in (source, same))
        return Chain(stages=(turns, through), children=(Chain(stages=tuple(two_ahead)),))
    return Chain(stages=(source, same, same, through))


def _run(num_chunks: int) -> harness.Measurement:
    from arrowflow.clock import WallClock
    from arrowflow.executor import Engine
    from arrowflow.options import Options

    _drain(Engine(chain(200), 0, None, Options().resolved(), WallClock()))
    engine = Engine(chain(num_chunks), 0, None, Options().resolved(), WallClock())
    watch = harness.Stopwatch()
    chunks = _drain(engine)
    if chunks != num_chunks:
        raise AssertionError(f"expected {num_chunks} chunks, got {chunks}")
    return watch.measurement(num_chunks)


def _drain(engine: Any) -> int:
    chunks = 0
    while engine.next_item() is not None:
        chunks += 1
    engine.close()
    return chunks


def short() -> harness.Measurement:
    """Measures a short run."""
    return _run(SHORT)


def long() -> harness.Measurement:
    """Measures a long run."""
    return _run(LONG)


def _inputs(inputs: int) -> harness.Measurement:
    from arrowflow.clock import WallClock
    from arrowflow.executor import Engine
    from arrowflow.options import Options

    engine = Engine(chain(TURNS, inputs), 0, None, Options().resolved(), WallClock())
    for _ in range(4 * inputs):  # opens them, and fills what they may make ahead
        engine.next_item()
    watch = harness.Stopwatch()
    for _ in range(TURNS):
        engine.next_item()
    measurement = watch.measurement(TURNS)
    engine.close()
    return measurement


def few_inputs() -> harness.Measurement:
    """Measures turns between 8 open inputs."""
    return _inputs(8)


def many_inputs() -> harness.Measurement:
    """Measures turns between 512 open inputs."""
    return _inputs(512)


def start_and_close() -> harness.Measurement:
    """Measures how long a bound pipeline takes from `iter` to its first batch and through `close`."""
    import arrowflow as af

    dataset = af.range(10_000_000).shuffle(10_000, seed=1).batch(100)
    with iter(dataset) as warm:
        next(warm)
    seconds = []
    watch = harness.Stopwatch()
    for _ in range(STARTS):
        started = time.perf_counter()
        iterator = iter(dataset)
        next(iterator)
        iterator.close()
        seconds.append(time.perf_counter() - started)
    return watch.measurement(STARTS, median_seconds=statistics.median(seconds), max_seconds=max(seconds))


class NoMeter:
    """Measures nothing."""

    def cpu(self) -> float:
        """Returns nothing."""
        return 0.0

    def queued(self) -> float:
        """Returns nothing."""
        return 0.0

    def close(self) -> None:
        """Has nothing to close."""


class NoClock:
    """Tells the time, which a run needs, and measures nothing."""

    now: Final = staticmethod(time.perf_counter)

    def thread_cpu(self) -> float:
        """Returns nothing."""
        return 0.0

    def process_cpu(self) -> float:
        """Returns nothing."""
        return 0.0

    def meter(self, thread: int) -> NoMeter:
        """Returns what measures nothing."""
        return NoMeter()


def _halved(arrays: Any) -> Any:
    return {name: array / 2 for name, array in arrays.items()}


def _statistics() -> harness.Measurement:
    import arrowflow as af

    paths = data.wide()
    data.read_through(paths)
    columns = [f"dense_{i}" for i in range(6)]
    rows = (
        af.read_parquet(paths, num_parallel_calls=2).select(*columns).fill_null(dict.fromkeys(columns, 0.0))
    )
    loader = rows.map(_halved, format="numpy", num_parallel_calls=2).batch(8192).to_numpy()
    for _ in loader:  # every thread has started once, and every page was touched
        pass
    watch = harness.Stopwatch()
    count = 0
    for _ in range(3):
        count += sum(len(batch["dense_0"]) for batch in loader)
    return watch.measurement(count)


def with_statistics() -> harness.Measurement:
    """Measures a pipeline as it is."""
    return _statistics()


def without_statistics() -> harness.Measurement:
    """Measures the same with everything switched off that measures or tunes."""
    from arrowflow import iterator, run
    from arrowflow.autotune import Policy

    class Silent(Policy):
        period_seconds = 1e9

    for module, name, stand_in in ((iterator, "WallClock", NoClock), (run, "Policy", Silent)):
        setattr(module, name, stand_in)
    return _statistics()


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars: cost a chunk and stage, its flatness, and start and close."""
    bars = []
    for name in ("short", "long"):
        if name in rounds:
            got = 1e6 / harness.median_speed(rounds[name]) / STAGES
            title = f"overhead, {SHORT if name == 'short' else LONG:,} chunks"
            needed = f"<= {NEEDED_MICROSECONDS:.0f} us a chunk and stage"
            bars.append(harness.Bar(title, needed, f"{got:.1f} us", got <= NEEDED_MICROSECONDS))
    if "short" in rounds and "long" in rounds:
        growth = harness.ratio(rounds, "short", "long")
        bars.append(
            harness.Bar(
                "overhead, long / short", f"<= {FLATNESS}", f"{growth:.2f}", growth <= FLATNESS, growth
            )
        )
    if "few-inputs" in rounds and "many-inputs" in rounds:
        growth = harness.ratio(rounds, "few-inputs", "many-inputs")
        needed = f"<= {INPUTS_FLATNESS}"
        turn = f"{1e6 / harness.median_speed(rounds['many-inputs']):.1f} us a chunk, {growth:.2f}"
        bars.append(harness.Bar("overhead, 512 / 8 inputs", needed, turn, growth <= INPUTS_FLATNESS, growth))
    if "with-statistics" in rounds and "without-statistics" in rounds:
        pairs = zip(rounds["with-statistics"], rounds["without-statistics"], strict=True)
        times = statistics.median(one.cpu_seconds / other.cpu_seconds for one, other in pairs)
        needed = f"<= {NEEDED_STATISTICS} x the CPU time without"
        bars.append(harness.Bar("statistics", needed, f"{times:.3f}", times <= NEEDED_STATISTICS, times))
    if "start-and-close" in rounds:
        got = 1e3 * harness.median_extra(rounds["start-and-close"], "median_seconds")
        needed = f"<= {NEEDED_START_MILLISECONDS:.0f} ms"
        bars.append(harness.Bar("start and close", needed, f"{got:.1f} ms", got <= NEEDED_START_MILLISECONDS))
    return bars


CONTENDERS: Final = {
    "short": short,
    "long": long,
    "few-inputs": few_inputs,
    "many-inputs": many_inputs,
    "start-and-close": start_and_close,
    "with-statistics": with_statistics,
    "without-statistics": without_statistics,
}

if __name__ == "__main__":
    harness.main("overhead", CONTENDERS, judge)

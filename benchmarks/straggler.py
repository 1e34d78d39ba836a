"""A slow call at the head of the line among many quick ones, where each call makes 32 chunks: do the cores go on?

Calls take their time without a core, so that the machine does not matter. Four of them are in flight at most, as on four
cores. What the cores can do is measured beside it, by calls that are all alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, Final

from benchmarks import harness

CORES: Final = 4
CALLS, CHUNKS_OF_CALL = 128, 32
CALL_SECONDS: Final = 0.05
NEEDED: Final = 0.95


def chain(times_as_long: int) -> Any:
    """Returns a physical plan of a source, and of a reader whose first call takes longer than all others."""
    import pyarrow as pa

    from arrowflow.kernels.items import Made, Origin, Payload, Task
    from arrowflow.kernels.kinds import ReaderKernel, SourceKernel
    from arrowflow.kernels.operator import KernelSpec
    from arrowflow.physical.stage import Chain, StagePlan
    from arrowflow.plan.position import Position

    chunk = pa.record_batch({"x": pa.nulls(1, pa.int32())})

    class Source(SourceKernel):
        def tasks(self, position: Position) -> Iterator[Task]:
            return (Task(number, Origin(number), 64) for number in range(CALLS))

        def read(self, task: Task) -> Iterator[Made]:
            rows = times_as_long if task.payload == 0 else 1
            yield Made(pa.record_batch({"x": pa.nulls(rows, pa.int32())}), (task.payload + 1,))

    class Reader(ReaderKernel):
        def num_bytes(self, payload: Payload) -> int:
            return 64

        def read(self, payload: Payload) -> Iterator[Made]:
            time.sleep(payload.num_rows * CALL_SECONDS)
            for number in range(CHUNKS_OF_CALL):
                yield Made(chunk, (number,), more=number + 1 < CHUNKS_OF_CALL)

    source = KernelSpec("source", lambda context: Source(), operator="source")
    reader = KernelSpec("reader", lambda context: Reader(), operator="reader")
    return Chain(stages=(StagePlan(kind="parallel", head=source), StagePlan(kind="parallel", head=reader)))


def _run(times_as_long: int) -> harness.Measurement:
    from arrowflow.clock import WallClock
    from arrowflow.executor import Engine
    from arrowflow.options import Options

    engine = Engine(chain(times_as_long), 0, None, Options(cpu_budget=CORES).resolved(), WallClock())
    watch = harness.Stopwatch()
    chunks = 0
    while engine.next_item() is not None:
        chunks += 1
    reader = engine.statistics().stages[0]
    refusals = {gate: float(count) for gate, count in reader.refusals._asdict().items()}
    measurement = watch.measurement(chunks, busy_seconds=reader.busy_seconds, **refusals)
    engine.close()
    if chunks != CALLS * CHUNKS_OF_CALL:
        raise AssertionError(f"expected {CALLS * CHUNKS_OF_CALL} chunks, got {chunks}")
    return measurement


def straggler() -> harness.Measurement:
    """Measures a head that takes sixteen times as long as the others."""
    return _run(16)


def alike() -> harness.Measurement:
    """Measures calls of which each takes as long as the others."""
    return _run(1)


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bar: calls in flight with a slow head, as a share of those without."""
    shares = {
        name: [one.extra["busy_seconds"] / (CORES * one.seconds) for one in measured]
        for name, measured in rounds.items()
    }
    if shares.keys() < CONTENDERS.keys():
        return []
    got = statistics.median(
        one / other for one, other in zip(shares["straggler"], shares["alike"], strict=True)
    )
    text = (
        f"{got:.2f}, {CORES * statistics.median(shares['straggler']):.2f} in flight; looks refused by "
        + ", ".join(
            f"{gate} {harness.median_extra(rounds['straggler'], gate):,.0f}"
            for gate in ("slots", "turn", "chunks", "bytes")
        )
    )
    return [harness.Bar("straggler", f">= {NEEDED} of calls alike", text, got >= NEEDED, got)]


CONTENDERS: Final = {"straggler": straggler, "alike": alike}

if __name__ == "__main__":
    harness.main("straggler", CONTENDERS, judge)

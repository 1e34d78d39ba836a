"""Where the time of a workload goes: each of its kernels bare, in one thread, beside the whole pipeline.

    make profile
    python -m benchmarks.profile --only stream wide --rounds 5

The kernels of the physical plan run one after the other, without an executor: no queues, no threads, no ledger. The CPU
time of each is measured by itself, with that of Polars' and Arrow's pools in it. `to NumPy` is the loader. Their sum
is what the work costs; what the pipeline takes beyond it are hand-overs, and caches that several threads share.

A new process runs several epochs: the *first* one finds nothing compiled, imported or touched, but the pages of the files
in memory. The *utilisation* is the CPU time from a tenth of the batches to nine tenths, as a share of the cores of the
budget that the machine has.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from benchmarks import data, harness, stream, wide
from benchmarks.peers import arrowflow as ours

NEEDED_TIMES: Final = 1.15
NEEDED_UTILISATION: Final = 0.95
NEEDED_FIRST_MILLISECONDS: Final = 60
EPOCHS: Final = 4

PIPELINES: Final[dict[str, Callable[[], Any]]] = {
    "stream": lambda: stream.pipeline(data.lineitem(), shuffle=False),
    "stream-shuffled": lambda: stream.pipeline(data.lineitem(), shuffle=True),
    "tokens": lambda: ours.tokens(data.documents()),
    "wide": lambda: wide.pipeline(data.wide()),
    "wide-plain": lambda: ours.wide_plain(data.wide()),
}


FIRST: Final = ("stream", "wide")
"""The workloads whose first epoch has a bar, and which are measured on one core, too."""


class BareContext:
    """What a kernel gets without an executor."""

    epoch = 0
    keeps = False

    def __init__(self) -> None:
        self.run_storage: dict[Any, Any] = {}


class Parts:
    """Runs the kernels of a chain in one thread, and adds up the CPU time of each."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def items(self, chain: Any) -> Iterator[Any]:
        """Yields the items of a chain without boundaries."""
        kernels = [(spec, spec.make(BareContext())) for stage in chain.stages for spec in stage.specs]
        for _, kernel in reversed(kernels):
            if hasattr(kernel, "open"):
                kernel.open(None, 0)
        items: Iterator[Any] = iter(())
        for spec, kernel in kernels:
            items = self._stage(
                f"{spec.title or spec.operator} {spec.phase}".strip(), spec.kind, kernel, items
            )
        return items

    def timed(self, name: str, made: Iterator[Any]) -> Iterator[Any]:
        """Yields what an iterator does, and measures it alone."""
        while True:
            began = time.process_time()
            value = next(made, self)
            self.seconds[name] += time.process_time() - began
            if value is self:
                return
            yield value

    def _stage(self, name: str, kind: str, kernel: Any, items: Iterator[Any]) -> Iterator[Any]:
        from arrowflow.kernels.items import PAUSE, Item, Origin

        if kind == "source":
            for task in kernel.tasks(None):
                for made in self.timed(name, kernel.read(task)):
                    yield Item(made.chunk, made.position, None, _origin(made, task.origin))
            return
        for item in items:
            if kind == "reader":
                for made in self.timed(name, kernel.read(item.chunk)):
                    yield Item(made.chunk, made.position, None, _origin(made, item.origin))
            elif kind == "serial":
                yield from (each for each in self.timed(name, kernel.push(item)) if each is not PAUSE)
            elif kind == "stateless" and item.chunk.num_rows:
                began = time.process_time()
                chunk = kernel.apply(item.chunk, item.origin)
                self.seconds[name] += time.process_time() - began
                yield item._replace(chunk=chunk)
            else:
                yield item._replace(origin=Origin(item.origin.split))
        if kind == "serial" and not kernel.done:
            yield from self.timed(name, kernel.finish())


def _origin(made: Any, origin: Any) -> Any:
    return origin._replace(split=origin.split if made.split is None else made.split, last=made.last)


def parts(name: str) -> harness.Measurement:
    """Measures the kernels of a workload."""
    from arrowflow.interchange.converted import arrays_of, column_exports
    from arrowflow.run import prepare

    chain = prepare(PIPELINES[name]()._plan).chain
    for _ in Parts().items(chain):
        pass  # files are in memory, and nothing is compiled or imported any more
    found, rows, exports = Parts(), 0, None
    watch = harness.Stopwatch()
    for item in found.items(chain):
        began = time.process_time()
        rows += item.chunk.num_rows
        exports = exports or column_exports(item.chunk.schema)
        arrays_of(item.chunk, exports)
        found.seconds["to NumPy"] += time.process_time() - began
    return watch.measurement(rows, **found.seconds)


def whole(name: str, cpu_budget: int | None = None) -> harness.Measurement:
    """Measures the epochs of a pipeline, and the median of those after the first one."""
    import arrowflow as af

    options = af.Options() if cpu_budget is None else af.Options(cpu_budget=cpu_budget)
    loader = PIPELINES[name]().with_options(options).to_numpy()
    batches = 0
    began = time.perf_counter()
    for _ in loader:
        batches += 1
    first = time.perf_counter() - began
    watches, cores, early = [], [], (0.0, 0.0)
    for _ in range(EPOCHS - 1):
        watch, rows, taken = harness.Stopwatch(), 0, 0
        for batch in loader:
            rows, taken = rows + len(next(iter(batch.values()))), taken + 1
            if taken == batches // 10:
                early = (time.process_time(), time.perf_counter())
            elif taken == batches - batches // 10:
                cores.append((time.process_time() - early[0]) / (time.perf_counter() - early[1]))
        watches.append(watch.measurement(rows))
    median = sorted(watches, key=lambda one: one.seconds)[len(watches) // 2]
    available = min(cpu_budget or len(os.sched_getaffinity(0)), len(os.sched_getaffinity(0)))
    median.extra.update(utilisation=statistics.median(cores) / available, more_seconds=first - median.seconds)
    return median


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Prints the parts, and returns a bar for each workload."""
    bars = []
    for name in rounds:
        if not name.endswith(", parts"):
            bars += _of_epochs(name, rounds[name])
    for name in PIPELINES:
        if name not in rounds or f"{name}, parts" not in rounds:
            continue
        alone, together = rounds[f"{name}, parts"], rounds[name]
        names = [each for each in alone[0].extra if each != "peak_rss_bytes"]
        seconds = {each: harness.median_extra(alone, each) for each in names}
        total = sum(seconds.values())
        cpu, wall = harness.median_cpu(together), together[0].rows / harness.median_speed(together)
        rows = [("part", "CPU ms", "share")]
        rows += [(each, f"{1e3 * value:.1f}", f"{value / total:.0%}") for each, value in seconds.items()]
        rows.append(("sum", f"{1e3 * total:.1f}", ""))
        rows.append(("pipeline", f"{1e3 * cpu:.1f}", f"{cpu / wall:.2f} cores"))
        print(f"\n{name}")
        harness.print_table(rows)
        got = f"{1e3 * cpu:.0f} against {1e3 * total:.0f} ms"
        bars.append(
            harness.Bar(
                f"CPU of {name}",
                f"<= {NEEDED_TIMES} x its parts",
                got,
                cpu / total <= NEEDED_TIMES,
                cpu / total,
            )
        )
    return bars


def _of_epochs(name: str, ones: Sequence[harness.Measurement]) -> list[harness.Bar]:
    share = harness.median_extra(ones, "utilisation")
    title, needed = f"utilisation of {name}", f">= {NEEDED_UTILISATION}"
    found = [harness.Bar(title, needed, f"{share:.3f}", share >= NEEDED_UTILISATION, share)]
    if name in FIRST:
        more = 1e3 * harness.median_extra(ones, "more_seconds")
        needed = f"<= {NEEDED_FIRST_MILLISECONDS} ms more than the next"
        title, met = f"first epoch of {name}", more <= NEEDED_FIRST_MILLISECONDS
        found.append(harness.Bar(title, needed, f"{more:.0f} ms", met))
    return found


CONTENDERS: Final[dict[str, harness.Contender]] = {
    **{
        label: partial(measure, name)
        for name in PIPELINES
        for label, measure in ((name, whole), (f"{name}, parts", parts))
    },
    **{f"{name}, 1 core": partial(whole, name, 1) for name in FIRST},
}

if __name__ == "__main__":
    harness.main("profile", CONTENDERS, judge, rounds=3)

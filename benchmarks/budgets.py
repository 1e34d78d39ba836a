"""The byte bar on pipelines that are hard to keep within a budget: texts of unknown size, inflating maps, many inputs.

Each contender is a pipeline with a CPU budget. Its peak by the ledger may be the budget, and the largest chunk with
what making it takes; or it ends with a `BudgetError` whose budget then does. The resident set is shown beside.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data, harness
from benchmarks.memory import Sampler, resident_bytes

MIB: Final = 1 << 20
CPUS: Final = (2, 8)
SCRATCH: Final = 3
"""A call takes its chunk, up to as much again while it makes it, and the chunk that it works on."""
MAX_REFUSALS: Final = 5

TEXTS, TEXT_BYTES, GROUP_ROWS, GROUPS = 20, 6_000, 8_000, 12
CHUNK_ROWS, WIDTH, MIXED_ROWS = 1_000, 1_250, 30_000


def texts(*, silent: bool) -> Any:
    """Returns a dataset of row groups that hold 46 MiB of texts, from a dictionary of 120 kB."""
    import arrowflow as af

    path = data.DATA / f"texts-{'silent' if silent else 'told'}.parquet"
    if not path.exists():
        rng = np.random.default_rng(0)
        words = pa.array([chr(97 + number) * TEXT_BYTES for number in range(TEXTS)])
        table = pa.table({"text": words.take(pa.array(rng.integers(0, TEXTS, GROUPS * GROUP_ROWS)))})
        data.DATA.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        pq.write_table(table, part, row_group_size=GROUP_ROWS, write_statistics=not silent)
        part.rename(path)
    return af.read_parquet(path)


class Inflate:
    """Makes chunks of 10 MB of chunks of 8 kB."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns wide rows."""
        wide = pa.array(np.ones(batch.num_rows * WIDTH))
        lists = pa.FixedSizeListArray.from_arrays(wide, WIDTH)
        return pa.record_batch({"id": batch.column(0), "wide": lists})


def inflating() -> Any:
    """Returns a dataset whose map inflates."""
    import arrowflow as af

    return af.range(MIXED_ROWS).map(Inflate())


def zipped(inputs: int) -> Any:
    """Returns inflating inputs side by side."""
    import arrowflow as af

    parts = [inflating().rename({"id": f"id{i}", "wide": f"wide{i}"}) for i in range(inputs)]
    return af.zip(*parts).take(10_000)


def interleaved(inputs: int) -> Any:
    """Returns inflating inputs in turn, in blocks that end within chunks."""
    import arrowflow as af

    turns = af.range(inputs).interleave(lambda row: inflating(), cycle_length=inputs, block_length=300)
    return turns.take(MIXED_ROWS)


def chosen(inputs: int) -> Any:
    """Returns rows of inflating inputs, one after the other."""
    import arrowflow as af

    numbers = af.from_numpy({"choice": np.arange(MIXED_ROWS) % inputs})
    return af.choose_from_datasets([inflating() for _ in range(inputs)], numbers)


def sampled(inputs: int) -> Any:
    """Returns rows of inflating inputs at random."""
    import arrowflow as af

    return af.sample_from_datasets([inflating() for _ in range(inputs)], seed=1).take(MIXED_ROWS)


PIPELINES: Final[dict[str, tuple[int, Callable[[], Any]]]] = {
    "texts": (256 * MIB, lambda: texts(silent=False)),
    "texts-silent": (256 * MIB, lambda: texts(silent=True)),
    "map": (64 * MIB, inflating),
    "sample-12": (64 * MIB, lambda: sampled(12)),
    "sample-24": (64 * MIB, lambda: sampled(24)),
    "choose-12": (64 * MIB, lambda: chosen(12)),
    "zip-12": (64 * MIB, lambda: zipped(12)),
    "interleave-12": (64 * MIB, lambda: interleaved(12)),
}


def _measure(name: str, cpus: int) -> harness.Contender:
    def measure() -> harness.Measurement:
        import arrowflow as af

        budget, make = PIPELINES[name]
        baseline, sampler, watch = resident_bytes(), Sampler(), harness.Stopwatch()
        refused = 0
        excess = 0.0
        while True:
            options = af.Options(ram_budget=budget, cpu_budget=cpus, max_chunk_rows=CHUNK_ROWS)
            rows, largest, peak, error = _drain(make().with_options(options))
            excess = max(excess, peak - budget - SCRATCH * largest)
            if error is None or refused == MAX_REFUSALS:
                break
            refused += 1
            budget = _named(error)
        return watch.measurement(
            rows,
            budget_bytes=budget,
            ledger_peak_bytes=peak,
            largest_chunk_bytes=largest,
            excess_bytes=excess,
            refused=refused,
            unfinished=float(error is not None),
            baseline_bytes=baseline,
            rss_peak_bytes=sampler.stop(),
        )

    return measure


def _drain(dataset: Any) -> tuple[int, int, int, Exception | None]:
    """Returns rows, the largest chunk, the peak of the ledger, and what ended the run early."""
    import arrowflow as af

    rows, largest, error = 0, CHUNK_ROWS * WIDTH * 8, None
    with iter(dataset) as batches:
        try:
            for batch in batches:
                rows += batch.num_rows
                largest = max(largest, batch.nbytes)
        except af.BudgetError as found:
            error = found
        return rows, largest, batches.stats().ledger_peak_bytes, error


def _named(error: Exception) -> int:
    found = re.search(r"needs, ([\d,]+) bytes", str(error))
    assert found is not None, str(error)
    return int(found[1].replace(",", ""))


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar for each pipeline: the worst of its rounds."""
    return [_judge(name, measured) for name, measured in rounds.items()]


def _judge(name: str, measured: Any) -> harness.Bar:
    worst = max(measured, key=lambda one: one.extra["excess_bytes"]).extra
    needed = worst["budget_bytes"] + SCRATCH * worst["largest_chunk_bytes"]
    rss = (worst["rss_peak_bytes"] - worst["baseline_bytes"]) / MIB
    refused = f", refused {worst['refused']:.0f} times before" if worst["refused"] else ""
    return harness.Bar(
        f"budgets: {name}",
        f"<= {needed / MIB:.0f} MiB ({worst['budget_bytes'] / MIB:.0f} + a chunk)",
        f"{worst['ledger_peak_bytes'] / MIB:.0f} MiB, RSS +{rss:.0f}{refused}",
        worst["excess_bytes"] <= 0 and not worst["unfinished"],
        worst["ledger_peak_bytes"] / needed,
    )


CONTENDERS: Final = {f"{name}-{cpus}cpus": _measure(name, cpus) for name in PIPELINES for cpus in CPUS}

if __name__ == "__main__":
    harness.main("budgets", CONTENDERS, judge, rounds=1)

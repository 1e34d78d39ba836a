"""`report`: a run in words: its stages, what was tuned and why, what limits it."""

from __future__ import annotations

from collections.abc import Iterator

from arrowflow.autotune.model import phrase
from arrowflow.physical.tuning import StageStatistics, Statistics

MIB = 1 << 20


def report(statistics: Statistics, cpu_budget: int) -> str:
    """Returns one line for the run, one or two a stage (the source first), the bottleneck, and advice.

    Example:
        >>> import arrowflow as af
        >>> with iter(af.range(10).batch(4)) as batches:
        ...     rows = sum(batch.num_rows for batch in batches)
        ...     print(batches.explain().splitlines()[1].split(":")[0])
        1. range
    """
    return "\n".join(_lines(statistics, cpu_budget))


def _lines(statistics: Statistics, cpu_budget: int) -> Iterator[str]:
    yield (
        f"{statistics.rows:,} rows, {statistics.rows_per_second:,.0f} rows/s, "
        f"{100 * statistics.waiting_share:.0f} % of the step is waiting; ledger at most "
        f"{statistics.ledger_peak_bytes / MIB:,.1f} of {statistics.ledger_budget_bytes / MIB:,.1f} MiB; "
        f"cpu_budget {cpu_budget}, {statistics.workers} threads"
    )
    for number, stage in enumerate(reversed(statistics.stages), start=1):
        yield f"{number}. {phrase(stage)}: {_work(stage, statistics.seconds)}"
        if stage.kind == "parallel":
            yield f"   {_tuned(stage)}"
    yield statistics.bottleneck
    for text in statistics.advice:
        yield f"advice: {text}"


def _work(stage: StageStatistics, seconds: float) -> str:
    if not stage.calls:
        return f"{stage.rows:,} rows on the consumer's thread"
    each = 1e3 * stage.busy_seconds / stage.calls
    flying = stage.busy_seconds / seconds if seconds else 0.0
    cores = (stage.busy_seconds if stage.foreign else stage.cpu_seconds) / seconds if seconds else 0.0
    return (
        f"{stage.rows:,} rows in {stage.calls:,} calls of {each:.3g} ms; on average {flying:.2f} in flight, "
        f"using {cores:.2f} cores; {stage.ready_items} of {stage.ready_limit} finished chunks wait"
    )


def _tuned(stage: StageStatistics) -> str:
    if stage.asked_calls is not None:
        calls = f"at most {_calls(stage.max_calls)}, as asked"
    elif stage.cost == "computes":
        calls = f"at most {_calls(stage.max_calls)}: it computes, so the CPU budget is the limit"
    else:
        calls = f"at most {_calls(stage.max_calls)}, {stage.weight:.2f} cores each"
    return f"{calls}; {stage.reason}" if stage.reason else calls


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"

"""`report`: a run in words. The verdict comes first, then a table with a line for each operator that a user wrote."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from arrowflow.autotune.limit import SATURATED, WANTS_MORE, Forecast, forecast, phrase, waiting_after_start
from arrowflow.autotune.model import LOCK
from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.errors import PlanError, counted, cut, printable, shown
from arrowflow.options import available_cpus, check_size
from arrowflow.physical.totals import stages_together
from arrowflow.physical.tuning import ClusterStatistics, EngineStatistics, StageStatistics, Statistics

_WHOLE_CALLS = ("map(", "map-", "filter(", "filter-")
"""Operators that leave out all rows of a call."""

logger = logging.getLogger("arrowflow")

MIB = 1 << 20
FOLDED_SHARE = 0.01
"""Stages with less than this share of the work are named in one line."""
NAME_WIDTH = 44
IDLE_SHARE, IDLE_SECONDS = 0.02, 0.1
"""Cores that are idle for one reason are named from this share of the CPU budget on, and so many seconds of a core."""

HEADER = ("stage", "rows/s", "cores", "in flight", "ready", "memory", "")


def report(statistics: Statistics, *, verbose: bool = False) -> str:
    """Returns the limit of a run, its figures, a table of its stages, the source first, and advice.

    The columns are: rows that came out a second; cores in use; calls in flight, of those that may be; finished chunks
    that waited for the next stage at a time, of those that may; and the memory that they held.

    Args:
        statistics: The measurements.
        verbose: Describes each stage in a sentence, with the tuned values and the reasons for them, in place of the table.

    Examples:
        >>> import arrowflow as af
        >>> with iter(af.range(10).batch(4)) as batches:
        ...     rows = sum(batch.num_rows for batch in batches)
        ...     print(batches.explain(verbose=True).splitlines()[2].split(":")[0])
        1. range
    """
    lines = [
        statistics.bottleneck,
        _figures(statistics),
        *_planning(statistics),
        *_idle(statistics),
        *_retries(statistics),
        *_kept(statistics),
        *_left_out(statistics),
    ]
    if verbose:
        lines += [*_sentences(statistics), f"{statistics.workers} threads"]
    elif statistics.stages:
        lines += ["", *_table(statistics)]
    if statistics.cluster is not None:
        lines += ["", *_cluster(statistics, statistics.cluster, verbose=verbose)]
    lines += [f"advice: {text}" for text in statistics.advice]
    return printable("\n".join(lines))


def _figures(statistics: Statistics) -> str:
    cores = sum(_cores(stage, statistics.seconds) for stage in statistics.stages)
    budget = _mib(statistics.ledger_budget_bytes)
    return (
        f"{statistics.rows:,} rows · {statistics.rows_per_second:,.0f} rows/s · {cores:.1f} of {statistics.cpu_budget} "
        f"cores · memory {_mib(statistics.ledger_peak_bytes)} of {budget} MiB"
    )


def _planning(statistics: Statistics) -> Iterator[str]:
    """Yields a line on the time before the first batch was asked for, if it is worth one."""
    if statistics.planning_seconds >= 0.1:
        yield f"planning: {statistics.planning_seconds:.2f} s, before the first batch was asked for"


def _kept(statistics: Statistics) -> Iterator[str]:
    """Yields a line on chunks that are kept for later epochs, if there are any."""
    taken = {"rows": statistics.kept_rows, "images": statistics.kept_images}
    if statistics.kept_bytes or any(taken.values()):
        kept, all_bytes = statistics.kept_bytes, statistics.keepable_bytes
        more = "" if kept >= all_bytes else "; more ram_budget would save more decoding"
        found = [f"{number:,} {what}" for what, number in taken.items() if number] or ["0 rows"]
        yield (
            f"kept in memory for later epochs: {_mib(kept)} of {_mib(max(kept, all_bytes))} MiB; "
            f"{' and '.join(found)} of this run were not decoded again{more}"
        )


def _idle(statistics: Statistics) -> Iterator[str]:
    """Yields a line on the cores that no call used, if they are worth one."""
    spent = statistics.seconds * statistics.cpu_budget
    shares = {reason: seconds / spent for reason, seconds in statistics.idle.items()} if spent else {}
    found = [
        reason
        for reason, share in shares.items()
        if share >= IDLE_SHARE and statistics.idle[reason] >= IDLE_SECONDS
    ]
    if found:
        cores = (
            f"{statistics.idle[reason] / statistics.seconds:.2f} waited for {reason}" for reason in found
        )
        yield f"of {counted(statistics.cpu_budget, 'core')}, {' and '.join(cores)}"


def _retries(statistics: Statistics) -> Iterator[str]:
    """Yields a line on the reads that failed and were tried again, if there are any."""
    if statistics.retries:
        most_first = sorted(statistics.retries.items(), key=lambda each: (-each[1], each[0]))
        reasons = ", ".join(f"{count:,} {why}" for why, count in most_first)
        yield f"reads tried again: {sum(statistics.retries.values()):,} ({reasons})"


def _left_out(statistics: EngineStatistics) -> Iterator[str]:
    """Yields a line on the bad rows that operators left out, if there were any."""
    found: dict[str, LeftOut] = {}
    for name, left_out in statistics.left_out:
        found[name] = found.get(name, NO_BAD_ROWS).plus(left_out)
    if found:
        yield f"bad rows left out: {', '.join(f'{name} {_rows_of(name, bad)}' for name, bad in found.items())}"


def _rows_of(operator: str, left_out: LeftOut) -> str:
    rows, parts, _ = left_out
    if not parts:
        return f"{rows:,}"
    if operator.startswith(_WHOLE_CALLS):
        return f"{counted(rows, 'row')} of {counted(parts, 'call')} that failed"
    return f"{rows:,} (with {counted(parts, 'part')} left out whole)"


def log_left_out(statistics: EngineStatistics) -> bool:
    """Logs that line, if there is one, and returns whether there was."""
    lines = list(_left_out(statistics))
    for line in lines:
        logger.warning("%s", line)
    return bool(lines)


def _cores(stage: StageStatistics, seconds: float) -> float:
    return stage.core_seconds / seconds if seconds else 0.0


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / MIB:,.{int(num_bytes < 10 * MIB)}f}"


# ---------------------------------------------------------------- the table


def _table(statistics: Statistics) -> Iterator[str]:
    """Yields the lines of the table: each stage that works, and one line for all that hardly do."""
    groups = operators_of(statistics.stages[::-1])
    work = sum(stage.busy_seconds for stage in statistics.stages) or 1.0
    shown: list[list[StageStatistics]] = []
    folded: list[list[StageStatistics]] = []
    for number, group in enumerate(groups, 1):
        share = sum(stage.busy_seconds for stage in group) / work
        small = share < FOLDED_SHARE and 1 < number < len(groups)
        (folded if small else shown).append(group)
    lines: list[tuple[str, ...]] = [HEADER]
    for group in shown:
        name, *others = cells(group, statistics)
        lines.append((cut(name, NAME_WIDTH), *others))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line_cells in lines:
        numbers = zip(line_cells[1:-1], widths[1:-1], strict=True)
        line = "  ".join(
            [line_cells[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in numbers), line_cells[-1]]
        )
        yield line.rstrip()
    if folded:
        names = ", ".join(cut(_name(group), NAME_WIDTH) for group in folded)
        yield f"under {100 * FOLDED_SHARE:.0f} % of the work: {names}"


def operators_of(stages: Sequence[StageStatistics]) -> list[list[StageStatistics]]:
    """Returns the stages of each operator together: neighbours that share one."""
    groups: list[list[StageStatistics]] = []
    for stage in stages:
        if groups and set(groups[-1][-1].operators) & set(stage.operators):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def _name(group: Sequence[StageStatistics]) -> str:
    titles = dict.fromkeys(title for stage in group for title in stage.operators)
    return " + ".join(titles).replace("+", " + ").replace("  +  ", " + ")


def cells(group: Sequence[StageStatistics], statistics: Statistics) -> tuple[str, ...]:
    """Returns the line of the table for the stages of an operator; `HEADER` names the columns."""
    seconds, last = statistics.seconds, group[-1]
    main = max(group, key=lambda stage: stage.busy_seconds)
    calls = any(stage.calls for stage in group)
    flying = sum(stage.busy_seconds for stage in group) / seconds if seconds else 0.0
    most = main.limits.max_calls  # before, more calls may have been allowed than now
    allowed = f" of {most}" if flying <= most + 0.05 else f", now at most {most}"
    held = [stage.max_ready_items * stage.bytes / stage.chunks for stage in group if stage.chunks]
    return (
        _name(group),
        f"{last.rows / seconds:,.0f}" if seconds else "",
        f"{sum(_cores(stage, seconds) for stage in group):.2f}" if calls else "",
        f"{flying:.1f}{allowed}" if calls else "your thread",
        f"{last.max_ready_items} of {max(last.max_ready_items, last.limits.max_ready_items)}"
        if calls
        else "",
        f"{_mib(sum(held))} MiB" if sum(held) else "-",
        _note(main, flying, last, statistics),
    )


def _note(main: StageStatistics, flying: float, last: StageStatistics, statistics: Statistics) -> str:
    """Returns the limit of a stage where it binds, or that it is ahead of a consumer that has what it wants."""
    if LOCK in main.limits.reason:
        return "holds the interpreter lock"
    if main.asked_calls is not None and flying >= SATURATED * main.asked_calls:
        return f"{counted(main.asked_calls, 'call')}, as asked"
    waited, after = waiting_after_start(statistics)
    return "waits for you" if last.refusals.chunks and waited < WANTS_MORE * after else ""


# ---------------------------------------------------------------- a cluster


def _cluster(statistics: Statistics, cluster: ClusterStatistics, *, verbose: bool) -> Iterator[str]:
    """Yields a line for each worker, its stages or those of all together, and why workers came and went."""
    for worker in cluster.workers:
        yield (
            f"worker on {worker.node} (process {worker.process}): {worker.rows:,} rows in {worker.pieces:,} pieces, "
            f"{_mib(worker.bytes)} MiB; lanes waited {worker.waited_seconds:.1f} s for it, all together"
        )
        if verbose:
            for sentence in _sentences(replace(statistics, stages=worker.stages)):
                yield f"  {sentence}"
    together = stages_together(stage for worker in cluster.workers for stage in worker.stages)
    if together and not verbose:
        yield "all workers:"
        for line in _table(replace(statistics, stages=together)):
            yield f"  {line}"
    yield from cluster.moves


# ---------------------------------------------------------------- all that is known


def _sentences(statistics: Statistics) -> Iterator[str]:
    for number, stage in enumerate(reversed(statistics.stages), start=1):
        yield f"{number}. {phrase(stage)}: {_work(stage, statistics.seconds)}"
        if stage.kind == "parallel":
            yield f"   {tuned(stage)}"


def _work(stage: StageStatistics, seconds: float) -> str:
    if not stage.calls:
        return f"{counted(stage.rows, 'row')} on the consumer's thread"
    each = 1e3 * stage.busy_seconds / stage.calls
    flying = stage.busy_seconds / seconds if seconds else 0.0
    return (
        f"{counted(stage.rows, 'row')} in {counted(stage.calls, 'call')} of {each:.3g} ms; on average {flying:.2f} in flight, "
        f"using {_cores(stage, seconds):.2f} cores; {stage.ready_items} of {stage.limits.max_ready_items} finished chunks wait"
    )


def tuned(stage: StageStatistics) -> str:
    """Returns how many calls of a stage there may be at a time, and why."""
    if stage.asked_calls is not None:
        calls = f"at most {counted(stage.limits.max_calls, 'call')}, as asked"
    elif stage.cost == "computes":
        calls = (
            f"at most {counted(stage.limits.max_calls, 'call')}: it computes, so the CPU budget is the limit"
        )
    else:
        calls = f"at most {counted(stage.limits.max_calls, 'call')}, {stage.limits.weight:.2f} cores each"
    if stage.refusals.slots or stage.refusals.turn:
        calls += (
            f"; behind a slow one {stage.undelivered} of {stage.limits.max_slots:,} calls and {stage.turn_chunks:,} of "
            f"{stage.limits.max_turn_chunks:,} chunks wait for their turn"
        )
    return f"{calls}; {stage.limits.reason}" if stage.limits.reason else calls


# ---------------------------------------------------------------- with another CPU budget


def predicted(statistics: Statistics, what_if: Any) -> str:
    """Returns the line of `explain` for other options.

    Raises:
        PlanError: Another option than `cpu_budget` is named, or none, or the budget is no number of cores.
    """
    if not isinstance(what_if, Mapping) or list(what_if) != ["cpu_budget"]:
        given = list(what_if) if isinstance(what_if, Mapping) else what_if
        raise PlanError(
            f"explain: what_if takes the key 'cpu_budget' alone, such as {{'cpu_budget': 8}}, got {shown(given)}; the measurements of a run say "
            "nothing of other options: run with them"
        )
    cores = check_size("explain", "what_if['cpu_budget']", what_if["cpu_budget"])
    line = f"with cpu_budget={cores}"
    if not _is_known(statistics):
        return f"{line}: nothing is known yet, run an epoch first"
    if statistics.cluster is not None:
        return f"{line}: not known, as the lanes ran in the workers of a cluster"
    found = forecast(statistics, cores)
    here = available_cpus()
    beyond = f", on a machine that has them (this one has {here})" if cores > here else ""
    times = found.rows_per_second / statistics.rows_per_second
    return (
        f"{line} about {found.rows_per_second:,.0f} rows/s, {times:.2f} times as many{beyond}; {found.limit} would "
        "limit you"
    )


def forecasts(statistics: Statistics) -> Iterator[tuple[int, Forecast]]:
    """Yields CPU budgets, and what a run would do under them; nothing where that is not known."""
    if _is_known(statistics) and statistics.cluster is None:
        budgets = {max(1, int(times * statistics.cpu_budget)) for times in (0.5, 2, 4)}
        for cores in sorted(budgets - {statistics.cpu_budget}):
            yield cores, forecast(statistics, cores)


def _is_known(statistics: Statistics) -> bool:
    return bool(statistics.stages) and statistics.rows > 0 and statistics.seconds > 0

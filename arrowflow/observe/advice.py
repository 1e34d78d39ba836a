"""`advice`: changes to the order of operators that a person could make, from the measurements of a run.

No tuner may reorder the operators of a user across a user function. But the tuner sees what the order costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from arrowflow.autotune.limit import SATURATED, WANTS_MORE, few_connections, least, waiting_after_start
from arrowflow.autotune.model import LOCK
from arrowflow.physical.tuning import StageKey, StageStatistics, Statistics

INFLATES: Final = 2.0
COSTLY_SHARE: Final = 0.3
WORTH_SHARE: Final = 0.1
"""A cache is worth a line if it saves this share of an epoch."""

FEW_ROWS, MANY_CALLS = 8, 200
MAPS = ("map", "map_rows")
LONG_SECONDS, GOOD_SECONDS = 1.0, 0.25
"""A call that is too long, and one that is not."""


def advice(statistics: Statistics) -> tuple[str, ...]:
    """Returns worthwhile changes in words; nothing where all is well or nothing is known yet."""
    if statistics.seconds < 0.5:
        return ()  # so short a run says nothing, and gains nothing
    stages = statistics.stages
    return (
        *_inflating(stages),
        *_costly_after_cache(stages),
        *_frozen(stages),
        *_where_cache_pays(statistics),
        *_repeated_before_shuffle(stages),
        *_row_wise(stages),
        *_long_calls(stages),
        *_serial_reads(statistics),
        *_few_connections(statistics),
        *locked(stages),
    )


def _named(stages: Sequence[StageStatistics], *names: str) -> Iterator[tuple[int, str]]:
    """Yields the places and titles of stages whose operators have these names, the most downstream first."""
    for place, stage in enumerate(stages):
        yield from ((place, found) for found in stage.operators if _operator(found) in names)


def _operator(title: str) -> str:
    """Returns the operator's name in the title of a stage, `map` of `map(decode) #2`."""
    return title.partition("(")[0]


def _inflating(stages: Sequence[StageStatistics]) -> Iterator[str]:
    """Finds functions that make rows larger before an operator that holds rows."""
    for place, name in _named(stages, "map"):
        made = stages[place]
        given = next((stage for stage in stages[place + 1 :] if stage.bytes), None)
        if given is None or not made.bytes or made.bytes < INFLATES * given.bytes:
            continue
        holders = [holder for _, holder in _named(stages[:place], "shuffle", "cache")]
        if holders:
            yield (
                f"{name} makes its input {made.bytes / given.bytes:.1f} times as large before {holders[-1]}: put it "
                "after, so that less is held and moved"
            )


def _costly_after_cache(stages: Sequence[StageStatistics]) -> Iterator[str]:
    caches = [place for place, _ in _named(stages, "cache")]
    if not caches:
        return
    total = sum(stage.busy_seconds for stage in stages) or 1.0
    for place, name in _named(stages[: caches[-1]], "map"):
        share = stages[place].busy_seconds / total
        if share > COSTLY_SHARE:
            yield (
                f"{name} after cache is {100 * share:.0f} % of the work of each epoch: put it before, unless it is random "
                "or makes rows larger"
            )


def _frozen(stages: Sequence[StageStatistics]) -> Iterator[str]:
    """Finds random operators before a cache, which draw only once."""
    caches = [place for place, _ in _named(stages, "cache")]
    if caches:
        names = dict.fromkeys(stage.operators[-1] for stage in stages[caches[0] + 1 :] if stage.random)
        for name in names:
            yield f"{name} is random and before cache, so every epoch gets the same draw: put it after"


def _where_cache_pays(statistics: Statistics) -> Iterator[str]:
    """Finds the place after deterministic operators where a cache saves the most time of an epoch for its bytes."""
    stages = statistics.stages
    waited, seconds = waiting_after_start(statistics)
    if waited < WANTS_MORE * seconds or any(_named(stages, "cache")):
        return  # it is fast enough, or a cache is there
    remote = next(
        (stage.operators[0] for stage in stages if stage.phase == "read" and stage.cost == "waits"), None
    )
    if any(
        stage.kind == "boundary" for stage in stages
    ):  # several inputs, each of which has places of its own
        if remote is not None:
            yield _local_copy(remote)
        return
    best = None
    for place in reversed(range(len(stages))):
        stage = stages[place]
        if stage.random:
            break
        # No more than the calls took, however long processes took to start.
        busy = sum(each.busy_seconds for each in stages[place:])
        saved = min(busy, statistics.seconds - least(stages[:place], statistics, statistics.cpu_budget)[0])
        if stage.bytes and saved > WORTH_SHARE * statistics.seconds:
            found = (saved / stage.bytes, saved, stage)
            best = found if best is None or found[0] > best[0] else best
    if best is None and remote is not None:
        yield _local_copy(remote)
    keeps_itself = 0 < statistics.keepable_bytes <= statistics.ledger_budget_bytes // 2
    if best is not None and not (keeps_itself and best[-1].phase == "decode"):
        _, saved, stage = best
        where = (
            ""
            if remote is None
            else " on a disk of this machine: cache(folder), as the files come over a network"
        )
        yield (
            f"with more epochs than one a cache pays most right after {stage.operators[-1]}: for these rows it would save "
            f"{saved:.1f} of {statistics.seconds:.1f} s in each epoch, for {stage.bytes / 2**20:,.1f} MiB{where}"
        )


def _local_copy(source: str) -> str:
    return (
        f"the files of {source} come over a network: with more epochs than one, cache(folder) right after it keeps their "
        "rows on a disk of this machine"
    )


def _repeated_before_shuffle(stages: Sequence[StageStatistics]) -> Iterator[str]:
    shuffles = [stages[place].key for place, _ in _named(stages, "shuffle")]
    repeats = [stages[place].key for place, _ in _named(stages, "repeat")]
    if any(_is_input(repeat, shuffle) for shuffle in shuffles for repeat in repeats):
        yield "repeat is before shuffle, so windows mix rows of two epochs: put shuffle before repeat"


def _is_input(stage: StageKey, of: StageKey) -> bool:
    """Whether a stage is among the inputs of another one: of the inputs of a mix each has only its own."""
    *chain, place, _ = of
    return list(stage[: len(chain)]) == chain and stage[len(chain)] > place


def _row_wise(stages: Sequence[StageStatistics]) -> Iterator[str]:
    for place, name in _named(stages, "map"):
        stage = stages[place]
        if stage.calls > MANY_CALLS and stage.cost != "computes" and stage.rows < FEW_ROWS * stage.calls:
            yield (
                f"{name} was called {stage.calls:,} times with {stage.rows / stage.calls:.1f} rows each: let it work on "
                "batches (batch before it), or on larger chunks"
            )


def _long_calls(stages: Sequence[StageStatistics]) -> Iterator[str]:
    """Finds functions whose calls take longer than a batch should, where fewer rows would do."""
    batches = [place for place, _ in _named(stages, "batch")]
    for place, name in _named(stages, *MAPS):
        stage = stages[place]
        if not stage.calls or (batches and batches[-1] > place):
            continue  # behind a batch a call is for that batch
        seconds = (stage.busy_seconds - stage.queued_seconds) / stage.calls
        rows = stage.rows / stage.calls
        if seconds > LONG_SECONDS and rows >= 2:
            fewer = max(1, round(rows * GOOD_SECONDS / seconds))
            yield (
                f"{name} takes {seconds:.1f} s for the {rows:,.0f} rows of a call, so batches come late and much is held: "
                f"give it fewer, by Options(max_chunk_rows={fewer})"
            )


def _serial_reads(statistics: Statistics) -> Iterator[str]:
    for stage in statistics.stages:
        if stage.phase == "read" and stage.asked_calls == 1:
            busy = stage.busy_seconds / statistics.seconds
            if busy > SATURATED and statistics.waiting_share > 1 - SATURATED:
                yield (
                    f"{stage.operators[0]} makes one chunk after the other and is never idle: split it into several and "
                    "`interleave` them"
                )


def _few_connections(statistics: Statistics) -> Iterator[str]:
    if few_connections(statistics) is not None and statistics.waiting_share > 1 - SATURATED:
        yield (
            "more reads wait than your client has connections: give it more (s3fs: config_kwargs={'max_pool_connections': "
            "128}; pyarrow: pyarrow.set_io_thread_count(128) before you make it), or pass the URL instead of the client"
        )


def locked(stages: Sequence[StageStatistics]) -> Iterator[str]:
    """Finds functions that hold the interpreter lock, as the tuner found out."""
    for stage in stages:
        if LOCK in stage.limits.reason:
            processes = ", or executor='process'" if _operator(stage.operators[-1]) in MAPS else ""
            yield (
                f"{stage.operators[0]} holds the interpreter lock, so more calls at a time do not help: use functions "
                f"that release it (NumPy, Arrow, Polars), or expressions{processes}"
            )

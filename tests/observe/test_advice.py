"""Each piece of advice: where it is given, and where not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

import arrowflow as af
from arrowflow.autotune.model import LOCK
from arrowflow.observe.advice import advice
from arrowflow.physical.tuning import StageStatistics, Statistics
from tests.autotune.measured import run, stage

pytestmark = pytest.mark.any_version

MIB = 1 << 20
READ = stage("read_parquet", phase="decode", cost="computes", bytes=10 * MIB, busy_seconds=5.0, calls=100)
SHUFFLE = stage("shuffle", kind="serial")
CACHE = stage("cache", kind="boundary")
REPEAT = stage("repeat", kind="boundary")


def mapped(**fields: Any) -> StageStatistics:
    return stage("map", **({"bytes": 10 * MIB, "busy_seconds": 5.0, "calls": 100, "rows": 100_000} | fields))


LARGER = mapped(bytes=50 * MIB)


def faults(statistics: Statistics) -> tuple[str, ...]:
    """Returns what is wrong with a pipeline, which is more than that a cache would pay."""
    return tuple(text for text in advice(statistics) if "a cache pays most" not in text)


def test_a_pipeline_without_faults_gets_none() -> None:
    assert faults(run(stage("batch", kind="serial"), mapped(), SHUFFLE, READ)) == ()


def test_a_short_run_says_nothing() -> None:
    assert faults(run(SHUFFLE, LARGER, READ, seconds=10.0)) != ()
    assert faults(run(SHUFFLE, LARGER, READ, seconds=0.4)) == ()


@pytest.mark.parametrize("holder", [SHUFFLE, CACHE], ids=["shuffle", "cache"])
def test_a_function_that_makes_rows_larger_goes_above_what_holds_them(holder: StageStatistics) -> None:
    (text,) = faults(run(holder, LARGER, READ))
    assert text == (
        f"map makes its input 5.0 times as large before {holder.operators[0]}: put it after, so that less is held and "
        "moved"
    )


def test_what_cuts_and_checks_beside_a_function_hides_nothing() -> None:
    beside = stage("map(decode)", kind="serial", cost="computes", calls=100, rows=100_000)
    slow = mapped(operators=("map(decode)",), bytes=50 * MIB, calls=10_000, rows=20_000)
    texts = faults(run(SHUFFLE, beside, slow, beside, READ))
    assert [text.partition(" 5")[0].partition(" 10")[0] for text in texts] == [
        "map(decode) makes its input",
        "map(decode) was called",
    ]


@pytest.mark.parametrize(
    "stages",
    [
        (LARGER, SHUFFLE, READ),
        (SHUFFLE, mapped(bytes=15 * MIB), READ),
        (SHUFFLE, mapped(bytes=0), READ),
        (SHUFFLE, LARGER),
        (LARGER, READ),
    ],
    ids=["above", "hardly larger", "passed on", "nothing known of its input", "nobody holds them"],
)
def test_other_functions_stay_where_they_are(stages: tuple[StageStatistics, ...]) -> None:
    assert faults(run(*stages)) == ()


def test_a_long_call_gets_fewer_rows() -> None:
    slow = mapped(operators=("map(load)",), busy_seconds=80.0, queued_seconds=2.0, calls=6, rows=60_000)
    (text,) = faults(run(stage("batch", operators=("batch(128)",), kind="serial"), slow, READ))
    assert text == (
        "map(load) takes 13.0 s for the 10,000 rows of a call, so batches come late and much is held: give it fewer, by "
        "Options(max_chunk_rows=192)"
    )


@pytest.mark.parametrize(
    "stages",
    [
        (mapped(busy_seconds=90.0, calls=100), READ),
        (mapped(busy_seconds=90.0, queued_seconds=85.0, calls=6), READ),
        (mapped(busy_seconds=90.0, calls=6, rows=6), READ),
        (mapped(busy_seconds=90.0, calls=6), stage("batch", operators=("batch(128)",), kind="serial"), READ),
        (mapped(busy_seconds=0.0, calls=0, rows=0), READ),
    ],
    ids=["short", "waited for a core", "single rows", "sees batches", "none is over"],
)
def test_other_calls_keep_their_rows(stages: tuple[StageStatistics, ...]) -> None:
    assert faults(run(*stages)) == ()


def test_a_costly_function_goes_below_the_cache() -> None:
    (text,) = faults(run(mapped(), CACHE, READ))
    assert text == (
        "map after cache is 50 % of the work of each epoch: put it before, unless it is random or makes rows larger"
    )
    assert faults(run(mapped(busy_seconds=1.0), CACHE, READ)) == ()
    assert faults(run(CACHE, mapped(), READ)) == ()
    assert faults(run(mapped(), READ)) == ()


def test_repeat_goes_above_shuffle() -> None:
    text = "repeat is before shuffle, so windows mix rows of two epochs: put shuffle before repeat"
    assert faults(placed(shuffle=(0,), repeat=(1,))) == (text,)
    assert faults(placed(repeat=(0,), shuffle=(1, "", 0, 0))) == ()
    assert faults(placed(repeat=(0,))) == ()


def test_repeat_and_shuffle_of_two_inputs_of_a_mix_are_apart() -> None:
    assert faults(placed(shuffle=(4, "", 0, 1, "", 0, 0), repeat=(4, "", 1, 0))) == ()
    assert faults(placed(shuffle=(2,), repeat=(4, "", 1, 0))) != ()


def test_stages_have_places_that_tell_their_inputs() -> None:
    rows = af.range(100)
    parts = [rows.filter(pl.col("id") < n).shuffle(20, seed=1).repeat() for n in (30, 60)]
    with iter(af.sample_from_datasets(parts, seed=3).batch(64)) as batches:
        next(batches)
        statistics = batches.stats()
    assert faults(replace(statistics, seconds=1.0)) == ()


def placed(**keys: tuple[Any, ...]) -> Statistics:
    """Returns a run with stages at these places, and one that reads."""
    return run(*(stage(name, kind="serial", key=(*key, name)) for name, key in keys.items()), READ)


def test_a_function_that_gets_single_rows_should_get_batches() -> None:
    (text,) = faults(run(mapped(calls=10_000, rows=20_000), READ))
    assert text == (
        "map was called 10,000 times with 2.0 rows each: let it work on batches (batch before it), or on larger chunks"
    )
    assert faults(run(mapped(calls=10_000, rows=200_000), READ)) == ()
    assert faults(run(mapped(calls=100, rows=200), READ)) == ()
    assert faults(run(mapped(calls=10_000, rows=20_000, cost="computes"), READ)) == ()


def generator(busy_seconds: float) -> StageStatistics:
    return stage("from_generator", phase="read", asked_calls=1, calls=100, busy_seconds=busy_seconds)


def test_a_source_that_never_idles_should_be_several() -> None:
    (text,) = faults(run(generator(9.5), waited_seconds=9.0))
    assert text == (
        "from_generator makes one chunk after the other and is never idle: split it into several and `interleave` them"
    )
    assert faults(run(generator(5.0), waited_seconds=9.0)) == ()
    assert faults(run(generator(9.5), waited_seconds=0.1)) == ()


def test_a_function_that_holds_the_lock_should_release_it() -> None:
    (text,) = faults(run(mapped(reason="it holds the interpreter lock: 100 % of a call is CPU time"), READ))
    assert text == (
        "map holds the interpreter lock, so more calls at a time do not help: use functions that release it (NumPy, "
        "Arrow, Polars), or expressions, or executor='process'"
    )
    assert faults(run(mapped(reason="90 % of a call is CPU time"), READ)) == ()


DRAWN = mapped(random=True)


def test_what_is_drawn_goes_above_the_cache() -> None:
    text = "map is random and before cache, so every epoch gets the same draw: put it after"
    assert advice(run(CACHE, DRAWN, READ)) == (text,)
    assert text not in advice(run(DRAWN, CACHE, READ))


def test_a_cache_goes_where_it_saves_the_most_time_for_its_bytes() -> None:
    pays = "with more epochs than one a cache pays most right after {}: for these rows it would save {} of 10.0 s in each epoch, for {} MiB"
    small = mapped(bytes=5 * MIB, operators=("map_rows",))
    costly = mapped(cpu_seconds=18.0)
    assert advice(run(READ)) == (pays.format("read_parquet", "5.0", "10.0"),)
    assert advice(run(costly, READ)) == (pays.format("map", "5.0", "10.0"),)
    assert advice(run(LARGER, small, READ)) == (pays.format("map_rows", "5.0", "5.0"),)
    assert advice(run(DRAWN, READ)) == (pays.format("read_parquet", "5.0", "10.0"),)


def test_a_cache_saves_no_more_than_the_epoch_would_gain() -> None:
    """Wall time of calls that queue is no time of an epoch: ten calls at once that share a lock take 50 s of it."""

    def saved(*stages: StageStatistics, **fields: Any) -> float:
        (text,) = (text for text in advice(run(*stages, **fields)) if "a cache pays" in text)
        return float(text.partition("would save ")[2].partition(" of")[0])

    queued = mapped(busy_seconds=103.0, cpu_seconds=9.0)
    assert saved(queued, READ, waited_seconds=9.5) == 9.5  # the consumer's own steps take the rest
    after = mapped(busy_seconds=50.0, cpu_seconds=8.0, bytes=0, reason=f"{LOCK}: …")
    assert saved(after, READ, waited_seconds=9.5) == 2.0  # one core is all that it gets
    waits = mapped(busy_seconds=60.0, cpu_seconds=0.1, bytes=0, max_calls=10)
    assert saved(waits, READ, waited_seconds=9.5) == 4.0  # ten calls at a time
    assert saved(mapped(cpu_seconds=0.1, bytes=0), READ, waited_seconds=9.5) == 5.0  # reading takes no more
    serial = stage("scan", kind="serial", busy_seconds=8.0, cpu_seconds=8.0)
    assert saved(serial, READ, waited_seconds=9.5) == 2.0
    assert not any("a cache pays" in text for text in advice(run(mapped(cpu_seconds=19.0, bytes=0), READ)))


@pytest.mark.parametrize(
    "stages", [(DRAWN,), (CACHE, READ), (stage("interleave", kind="boundary"), READ), (stage("range"),)]
)
def test_no_cache_where_it_would_not_pay(stages: tuple[StageStatistics, ...]) -> None:
    assert advice(run(*stages)) == ()


FETCH = stage("read_parquet", phase="read", cost="waits", busy_seconds=9.0, calls=100)


def test_files_from_a_network_are_kept_on_this_machine() -> None:
    (pays,) = advice(run(READ, FETCH))
    assert pays.endswith(
        "for 10.0 MiB on a disk of this machine: cache(folder), as the files come over a network"
    )
    copy = (
        "the files of read_parquet come over a network: with more epochs than one, cache(folder) right after it keeps "
        "their rows on a disk of this machine"
    )
    assert advice(run(stage("interleave", kind="boundary"), READ, FETCH)) == (copy,)
    assert advice(run(mapped(random=True, bytes=0), stage("read_parquet", phase="decode"), FETCH)) == (copy,)
    assert advice(run(CACHE, READ, FETCH)) == ()
    assert advice(run(READ, FETCH, waited_seconds=0.5)) == ()


def test_no_cache_where_nobody_waits() -> None:
    assert advice(run(READ, waited_seconds=0.5)) == ()


def test_several_things_are_said_one_after_the_other() -> None:
    mapping = mapped(bytes=50 * MIB, calls=10_000, rows=20_000)
    texts = faults(
        run(replace(SHUFFLE, key=(0, "shuffle")), mapping, replace(REPEAT, key=(2, "repeat")), READ)
    )
    assert [text.split(" ", 2)[0] for text in texts] == ["map", "repeat", "map"]

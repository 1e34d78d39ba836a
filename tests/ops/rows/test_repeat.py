"""`repeat`: its input again and again, each time as the next epoch."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.kernels.items import Item, Origin
from arrowflow.ops.rows import repeat
from arrowflow.ops.sources.dealt import NumberedKernel
from arrowflow.ops.sources.range import Uncounted
from arrowflow.optimizer import RULES
from arrowflow.testing import Fault, batches_of, check_operator, check_resume, raising
from tests.ops.tables import NUMBERS, identity, ids, numbers, refused, rows_of

pytestmark = pytest.mark.any_version


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return list(itertools.chain(*lists))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_contracts(count: int) -> None:
    check_operator(lambda ds: ds.repeat(count), NUMBERS)


def test_contracts_above_a_shuffle() -> None:
    check_operator(lambda ds: ds.shuffle(6, seed=1).repeat(2), NUMBERS, epochs_differ=True)


def test_each_time_is_an_epoch_of_what_is_below() -> None:
    """The orders of one `repeat(3)` are those of epochs 0, 1 and 2; its next epoch has 3, 4 and 5."""
    below = af.range(10).shuffle(10, seed=3)
    orders = [ids(below, epoch=epoch) for epoch in range(12)]
    assert len({tuple(order) for order in orders}) == 12
    assert ids(below.repeat(3)) == flat(orders[:3])
    assert ids(below.repeat(3), epoch=1) == flat(orders[3:6])
    assert ids(below.repeat(2).repeat(3)) == flat(orders[:6])
    assert ids(below.repeat(2).repeat(3), epoch=1) == flat(orders[6:])


def test_once_is_no_operation() -> None:
    """Rules may leave it out, so not even the random numbers above it may tell."""
    below = af.range(9).with_options(af.Options(max_chunk_rows=4))
    expected = rows_of(below.prefetch(0).map(noise, seed=1), "noise")
    for disabled in ((), tuple(rule.name for rule in RULES)):
        ds = below.repeat(1).map(noise, seed=1).with_options(af.Options(disabled_rules=disabled))
        assert rows_of(ds, "noise") == expected


def noise(batch: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
    return batch.append_column("noise", pa.array(rng.random(batch.num_rows)))


def test_windows_may_cross_epochs_above_it() -> None:
    both = ids(af.range(10).repeat(2).shuffle(20, seed=1))
    assert sorted(both[:10]) != list(range(10))
    assert sorted(both) == sorted([*range(10), *range(10)])


def test_it_starts_again_below_what_counts_rows() -> None:
    assert rows_of(numbers(2, 3).take(4).repeat(2)) == [0, 1, 2, 3] * 2
    assert rows_of(numbers(2, 3).skip(4).repeat(3)) == [4, 4, 4]
    assert rows_of(numbers(2, 3).repeat(2).skip(4).take(3)) == [4, 0, 1]


@pytest.mark.parametrize("count", [None, -1])
def test_without_end(count: int | None) -> None:
    ds = af.range(3).repeat(count).batch(2)
    assert ds.num_rows == math.inf
    for endless in (ds, ds.to_polars()):
        with pytest.raises(TypeError, match=r"endless, so it has no length: put take\(n\)"):
            len(endless)
    with iter(ds) as iterator:
        found = flat(batch.column("id").to_pylist() for batch in itertools.islice(iterator, 100))
    assert found == [0, 1, 2] * 66 + [0, 1]


def test_it_resumes_far_into_an_endless_run() -> None:
    ds = af.range(3).shuffle(2, seed=1).repeat().batch(4)
    expected, states = states_of(ds, 30)
    for step in (0, 7, 28):
        with iter(ds) as resumed:
            resumed.load_state_dict(states[step])
            assert next(resumed).equals(expected[step + 1])


def test_an_epoch_without_rows_ends_it() -> None:
    """An endless repeat of nothing would never deliver anything, nor end."""
    for ds in (af.range(0), af.range(9).filter(pl.col("id") > 10), af.range(9).take(0), af.range(9).skip(9)):
        assert not batches_of(ds.repeat())
        assert not batches_of(ds.repeat(5))
    assert af.range(0).repeat().num_rows == 0


def until_second_epoch(batch: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
    """Keeps all rows or none, as the epoch's random numbers have it."""
    return batch if rng.random() < 0.5 else batch.slice(0, 0)


def test_it_ends_in_the_middle_and_resumes_there() -> None:
    """Some epoch has no rows: the rows of the epochs before it come, and none behind it."""
    below = af.range(4).map(until_second_epoch, seed=17, schema=af.range(1).schema)
    alive = list(itertools.takewhile(bool, (ids(below, epoch=epoch) for epoch in range(100))))
    assert 0 < len(alive) < 100
    assert ids(below.repeat()) == flat(alive)
    check_resume(lambda: below.repeat().batch(1))


def test_an_error_comes_in_the_epoch_where_it_is() -> None:
    fault = Fault(raising(ValueError("third time")), at=2)
    with iter(af.range(2).map(fault, num_parallel_calls=1).repeat()) as iterator:
        assert [next(iterator).num_rows, next(iterator).num_rows] == [2, 2]
        refused(af.FunctionError, lambda: next(iterator), "third time")


# ---------------------------------------------------------------- short epochs from memory


def states_of(ds: af.Dataset, steps: int) -> tuple[list[pa.RecordBatch], list[dict[str, Any]]]:
    """Returns some batches, and the state after each."""
    batches, states = [], []
    with iter(ds) as iterator:
        for batch in itertools.islice(iterator, steps):
            batches.append(batch)
            states.append(iterator.state_dict())
    return batches, states


CHOSEN_ROWS = 1_900


def choices(numbers: af.Dataset) -> af.Dataset:
    sources = [af.range(start, start + CHOSEN_ROWS) for start in (0, 10_000, 20_000)]
    return af.choose_from_datasets(sources, numbers)


SHORT: dict[str, Callable[[], af.Dataset]] = {
    "numbers": lambda: af.range(3).repeat().batch(4),
    "a filter": lambda: af.range(40).filter(pl.col("id") % 7 == 0).repeat(9).batch(4),
    "several chunks": lambda: numbers(2, 0, 3).repeat().batch(7),
    "batches below it": lambda: af.range(5).batch(2).repeat(),
    "a random map": lambda: numbers(4, 2).repeat(8).map(noise, seed=1),
    "repeats of a repeat": lambda: af.range(2).repeat(3).repeat(),
    "an order that stays": lambda: (
        af.range(9).shuffle(9, seed=1, reshuffle_each_iteration=False).repeat().batch(4)
    ),
    "an order that does not": lambda: af.range(9).shuffle(9, seed=1).repeat().batch(4),
    "a mix": lambda: af.sample_from_datasets([af.range(9), af.range(50, 59)], seed=1).repeat().batch(4),
    "choices": lambda: choices(af.range(3).repeat()).batch(140),
    "choices that end": lambda: choices(af.range(3).repeat(1_120)).batch(140),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_short_epochs_are_those_that_would_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, states = states_of(SHORT[name](), 30)
    monkeypatch.setattr(repeat, "MAX_KEPT_ITEMS", 0)
    run_again, others = states_of(SHORT[name](), 30)
    assert len(kept) == len(run_again) and all(map(pa.RecordBatch.equals, kept, run_again))
    for most, given in ((0, states), (16, others)):  # each goes on with the states of the other one
        monkeypatch.setattr(repeat, "MAX_KEPT_ITEMS", most)
        for step in (0, 22):
            if step + 3 < len(kept):
                with iter(SHORT[name]()) as resumed:
                    resumed.load_state_dict(given[step])
                    rest = list(itertools.islice(resumed, 3))
                assert all(map(pa.RecordBatch.equals, rest, kept[step + 1 : step + 4]))


ONCE: list[tuple[Callable[[], af.Dataset], int]] = [
    (lambda: af.range(3).repeat(50), 1),
    (lambda: af.range(3).filter(pl.col("id") > 0).repeat(50), 1),
    (lambda: choices(af.range(3).repeat(50)), 1),
    (lambda: af.range(3).map(identity).repeat(50), 50),  # functions are called again
    (lambda: af.range(3).shuffle(3).repeat(50), 50),
    (lambda: af.range(2_000_000).repeat(3), 3),  # long
]


@pytest.mark.parametrize(("make", "runs"), ONCE)
def test_short_epochs_run_once(
    make: Callable[[], af.Dataset], runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[range] = []
    kernel = NumberedKernel.__init__

    def counted(self: NumberedKernel, rows: Uncounted, *arguments: Any, **options: Any) -> None:
        if rows.numbers.start == 0 and rows.numbers.stop != CHOSEN_ROWS:
            made.append(rows.numbers)
        kernel(self, rows, *arguments, **options)

    monkeypatch.setattr(NumberedKernel, "__init__", counted)
    assert make().to_table().num_rows
    assert len(made) in {runs, runs + 1}  # one may be opened ahead


@pytest.mark.parametrize("count", [-2, 1.0, True, "3"])
def test_bad_arguments(count: Any) -> None:
    refused(af.PlanError, lambda: af.range(3).repeat(count), "repeat", "count")


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.set_column(0, "row", batch.column("row").cast(pa.float64())),
        lambda batch: batch.rename_columns(["other"]),
    ],
)
def test_each_epoch_has_the_columns_of_the_first(change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
    """Whichever is made first, while both are under way."""
    ds = numbers(3).map(Fault(change, at=1), num_parallel_calls=1).repeat(2).batch(4)
    refused(af.SchemaError, lambda: list(ds), "repeat", "epoch", "schema=")


class Streams:
    """Opens streams of which nothing is asked."""

    def open(self, child: int, epoch: int, position: Any) -> object:
        return object()


def test_after_an_epoch_that_is_too_long_nothing_is_kept() -> None:
    kernel = repeat.RepeatKernel(None, cast(Any, Streams()), keeps=True)
    kernel.open(None, 0)
    chunk: pa.RecordBatch
    for items in (repeat.MAX_KEPT_ITEMS + 1, 1):
        stream = kernel.next_input()
        assert stream is not None
        for _ in range(items):
            chunk = pa.record_batch({"id": [1]})
            assert [item.chunk for item in kernel.push_from(stream, Item(chunk, None, None, Origin(0)))] == [
                chunk
            ]
        last = weakref.ref(chunk)
        del chunk
        assert last() is None
        assert kernel.ended(stream) is None

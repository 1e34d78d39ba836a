"""`sample_from_datasets`: rows of several datasets, drawn at random by weight."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.ops.combine import mixing
from arrowflow.ops.combine.mix_operator import BLOCK_ROWS
from arrowflow.ops.combine.sample_from_datasets import stratified
from arrowflow.optimizer import RULES
from arrowflow.random import SAMPLE_DRAWS
from arrowflow.testing import Fault, batches_of, check_operator, check_resume, raising
from tests.executor.fakes import read_slowly, stepper_of
from tests.ops.tables import ALL_TYPES_INSIDE, NUMBERS, ids, numbers, refused, rows_of, sizes, stands_for_all

pytestmark = pytest.mark.any_version

ALL_RULES = tuple(rule.name for rule in RULES)
MANY = 10_000_000
WRONG: Any = "rows"


PARTS = [64, 256, 1024, 4096, BLOCK_ROWS - 64 - 256 - 1024 - 4096]
"""Rows of the first parts of narrow rows."""


def sources(count: int, rows: int = MANY) -> list[af.Dataset]:
    """Returns datasets whose numbers tell where they come from."""
    return [af.range(number * MANY, number * MANY + rows) for number in range(count)]


def drawn(dataset: af.Dataset, rows: int) -> npt.NDArray[np.int64]:
    """Returns the numbers of the inputs of the first rows, having checked that each one's rows are in order."""
    values = np.concatenate([batch["id"] for batch in dataset.take(rows).to_numpy()])
    inputs = values // MANY
    for number in np.unique(inputs):
        own = values[inputs == number]
        assert np.array_equal(own, number * MANY + np.arange(len(own)))
    return inputs


def reference(lengths: Sequence[int], weights: Sequence[float], seed: int, *, stop: str) -> list[int]:
    """Draws row by row."""
    left, shares = list(lengths), [float(weight) for weight in weights]
    ended, wanted = set[int](), {number for number, weight in enumerate(weights) if weight}
    rows: list[int] = []
    for block in itertools.count():
        for draw in stratified(BLOCK_ROWS, (seed, SAMPLE_DRAWS, 0, block)).tolist():
            while True:
                total = sum(shares)
                if not total:
                    return rows
                number = next(
                    n for n, limit in enumerate(itertools.accumulate(shares)) if draw < limit / total * 2**32
                )
                if left[number]:
                    break
                ended.add(number)
                if stop == "first_exhausted" or ended == wanted:
                    return rows
                if stop == "all_exhausted" and lengths[number]:
                    left[number] = lengths[number]
                    break
                shares[number] = 0
            rows.append(number * MANY + lengths[number] - left[number])
            left[number] -= 1
    raise AssertionError


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets some rows of data fill several blocks; the draws of a block are then the first ones of a longer one."""
    monkeypatch.setattr(mixing, "BLOCK_ROWS", 4)
    monkeypatch.setattr(mixing, "FIRST_ROWS", 3)
    monkeypatch.setattr("arrowflow.ops.combine.sample_from_datasets.BLOCK_ROWS", 4)
    whole = stratified
    monkeypatch.setattr(
        "arrowflow.ops.combine.sample_from_datasets.stratified",
        lambda num_rows, key: whole(4096, key)[:num_rows],
    )


STOPS = ["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"]
CASES: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "drawn": lambda ds: af.sample_from_datasets([ds, ds.skip(3)], seed=1),
    "without replacement": lambda ds: af.sample_from_datasets(
        [ds, ds.skip(3)], seed=2, stop="all_exhausted_without_replacement"
    ),
    "by weight": lambda ds: af.sample_from_datasets(
        [ds.take(5), ds], [1, 5], seed=4, stop="all_exhausted_without_replacement"
    ).batch(3),
    "with a weight of zero": lambda ds: af.sample_from_datasets([ds.take(5), ds], [0, 1]),
    "again and again": lambda ds: af.sample_from_datasets(
        [ds.take(5), ds], [1, 2], seed=3, stop="all_exhausted"
    ).batch(3),
}


@pytest.mark.parametrize(
    ("case", "table"), [*((case, NUMBERS) for case in CASES), ("without replacement", ALL_TYPES_INSIDE)]
)
def test_contracts(case: str, table: pa.Table, small_blocks: None) -> None:
    differ = case != "with a weight of zero"
    check_operator(CASES[case], table, epochs_differ=differ, in_full=stands_for_all(case, CASES))


def test_contracts_of_whole_blocks() -> None:
    check_operator(CASES["without replacement"], NUMBERS, epochs_differ=True)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(
    ("lengths", "weights"),
    [
        *itertools.product([(40, 30, 50), (30, 0, 900)], [(1, 1, 1), (1, 0, 7), (0.2, 0.5, 0.3)]),
        ((20_000, 900, 18_000), (0.2, 0.5, 0.3)),
    ],
)
def test_it_is_what_drawing_row_by_row_gives(lengths: tuple[int, ...], weights: Any, stop: Any) -> None:
    inputs = [af.range(n * MANY, n * MANY + length) for n, length in enumerate(lengths)]
    ds = af.sample_from_datasets(inputs, list(weights), seed=5, stop=stop)
    found = ids(ds)
    assert found == reference(lengths, weights, 5, stop=stop)
    if stop == "all_exhausted":
        assert ds.num_rows is None
    if stop == "all_exhausted_without_replacement":
        assert len(found) == sum(n for n, weight in zip(lengths, weights, strict=True) if weight)
        assert ds.num_rows == len(found)


@pytest.mark.parametrize(
    ("weights", "seed"), [((0.5, 0.5), 0), ((0.7, 0.2, 0.1), 1), ((1, 2, 3, 4), 2), ((0.85, 0.15), 0)]
)
def test_shares_are_those_of_the_weights_at_every_moment(weights: tuple[float, ...], seed: int) -> None:
    """Within 3 standard deviations of independent draws for every prefix; further on within a few rows."""
    rows = 100_000
    inputs = drawn(af.sample_from_datasets(sources(len(weights)), weights, seed=seed), rows)
    counted = np.arange(1, rows + 1)
    for number, weight in enumerate(np.array(weights) / sum(weights)):
        off = np.abs(np.cumsum(inputs == number) - counted * weight)
        assert np.all(off <= 3 * np.sqrt(counted * weight * (1 - weight)) + 1e-6)
        assert off.max() < 16


def test_which_row_comes_from_where_is_random() -> None:
    """Each place of 16 rows is drawn from each input equally often, over many seeds and blocks."""
    draws = np.stack([stratified(4096, (seed, 0)).reshape(-1, 16) for seed in range(200)]).reshape(-1, 16)
    shares = (draws < 2**30).mean(axis=0)
    assert np.all(np.abs(shares - 0.25) < 4 * np.sqrt(0.25 * 0.75 / len(draws)))
    # Which of two neighbours is from the lower half says little on the next two.
    halves = (draws < 2**31).astype(float)
    assert abs(np.corrcoef(halves[:, 0], halves[:, 8])[0, 1] + 1 / 15) < 0.02


def test_draws_do_not_change_between_releases() -> None:
    """A changed order would break every state that was ever saved."""
    first = stratified(4096, (7, SAMPLE_DRAWS, 0, 0))[:8] >> 24
    assert first.tolist() == [16, 179, 249, 137, 44, 74, 119, 110]


def test_epochs_and_seeds_differ() -> None:
    inputs = [numbers(40), numbers(40)]
    unseeded = af.sample_from_datasets(inputs)
    orders = [
        rows_of(af.sample_from_datasets(inputs, seed=seed), epoch=epoch)
        for seed, epoch in [(1, 0), (1, 1), (2, 0)]
    ]
    orders += [rows_of(unseeded), rows_of(unseeded.with_options(af.Options(seed=9)))]
    assert len(set(map(tuple, orders))) == 5
    assert rows_of(unseeded) == orders[3]


def test_a_weight_of_zero_is_never_read() -> None:
    fault = Fault(raising(ValueError("never read")), at=0)
    never = numbers(3).map(fault, schema=numbers(1).schema)
    ds = af.sample_from_datasets([never, numbers(4)], [0, 2])
    assert rows_of(ds) == [0, 1, 2, 3]
    assert fault.calls == 0
    assert ds.num_rows == 4


def test_endless_inputs() -> None:
    ds = af.sample_from_datasets([af.range(3000).repeat(), af.range(10_000, 12_000).repeat()], [2, 1], seed=1)
    with iter(ds.batch(20_000)) as iterator:
        values = np.array(next(iterator).column("id").to_pylist())
    assert np.array_equal(values[values < 10_000][2998:3002], [2998, 2999, 0, 1])
    assert abs(int((values < 10_000).sum()) - 13_333) < 16


def test_endless_inputs_resume(small_blocks: None) -> None:
    shuffled = af.range(9).repeat(3).shuffle(5, seed=1)
    check_resume(lambda: af.sample_from_datasets([af.range(7).repeat(), shuffled], seed=1).take(40).batch(7))


@pytest.mark.parametrize("disabled", [(), ALL_RULES])
def test_stacking_above_it(disabled: tuple[str, ...]) -> None:
    below = af.range(9).with_columns(x=pl.col("id") * 2)
    ds = af.sample_from_datasets([below, below], seed=1).stack(pair=["id", "x"]).shuffle(4, seed=1)
    pairs = rows_of(ds.with_options(af.Options(disabled_rules=disabled)), "pair")
    assert all(pair[1] == 2 * pair[0] for pair in pairs)


def test_without_an_order_rows_are_the_same() -> None:
    ds = af.sample_from_datasets(sources(3, 9_000), seed=1)
    unordered = ds.with_options(af.Options(deterministic=False))
    assert sorted(ids(unordered)) == sorted(ids(ds))


def test_an_error_comes_behind_the_blocks_before_it() -> None:
    def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("id")[0].as_py() > BLOCK_ROWS:
            raise ValueError("far in")
        return batch

    source = af.range(200_000)
    late = source.map(failing, schema=source.schema).with_options(af.Options(max_chunk_rows=8000))
    with iter(af.sample_from_datasets([source, late], seed=1)) as iterator:
        assert [next(iterator).num_rows for _ in range(5)] == PARTS
        refused(af.FunctionError, lambda: list(iterator), "far in")


def test_it_nests() -> None:
    inner = af.sample_from_datasets(
        [numbers(9, 9), numbers(5)], [2, 1], stop="all_exhausted_without_replacement"
    )
    ds = af.sample_from_datasets([inner.repeat(2), numbers(7)], seed=3).shuffle(4, seed=1).batch(4)
    check_resume(lambda: ds)
    assert rows_of(ds) != rows_of(ds, epoch=1)


@pytest.mark.slow
def test_as_many_inputs_as_there_may_be_keep_a_state_small() -> None:
    one = numbers(60).filter(pl.col("row") > 1).shuffle(50).repeat(9)
    with iter(af.sample_from_datasets([one] * mixing.MAX_DATASETS, seed=1).batch(300)) as iterator:
        assert len(list(itertools.islice(iterator, 5))) == 5
        assert len(json.dumps(iterator.state_dict())) < 1 << 16


def test_many_inputs_keep_a_state_small() -> None:
    """It grows by as much for each: so many inputs as there may be take seconds to run."""
    one = numbers(60).filter(pl.col("row") > 1).shuffle(50).repeat(9)

    def size(inputs: int) -> int:
        with iter(af.sample_from_datasets([one] * inputs, seed=1).batch(15 * inputs)) as iterator:
            next(iterator)
            return len(json.dumps(iterator.state_dict()))

    assert size(4) + (size(12) - size(4)) / 8 * (mixing.MAX_DATASETS - 4) < 1 << 16


def test_any_budget_gives_the_same() -> None:
    """Inputs of a mix, of a zip and of a concatenation share one ledger, and none waits for ever."""
    table = pa.table({"a": np.arange(20_000), "b": np.arange(20_000) / 3})
    source = af.from_arrow(table.to_batches(max_chunksize=1000))
    mix = af.sample_from_datasets(
        [source, source.shuffle(700, seed=1)], [2, 1], stop="all_exhausted_without_replacement"
    )
    wide = af.zip(mix, af.range(50_000).map(lambda batch: batch, schema=af.range(1).schema))
    chosen = af.choose_from_datasets([wide, wide.take(900)], af.range(30_000).select(c=pl.col("id") % 2))
    ds = chosen.concatenate(wide.skip(100)).enumerate().batch(777)
    expected = ds.to_table()
    assert expected.num_rows == 1801 + 39_900
    for options in (
        af.Options(cpu_budget=1, ram_budget="64MiB", autotune=False),
        af.Options(cpu_budget=1, ram_budget="4MiB"),
        af.Options(cpu_budget=4, ram_budget="4MiB", autotune=False),
        af.Options(cpu_budget=4, disabled_rules=ALL_RULES),
    ):
        assert ds.with_options(options).to_table().equals(expected)


BAD: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "none": (lambda: af.sample_from_datasets([]), ("1 to 100",)),
    "no list": (lambda: af.sample_from_datasets(WRONG), ()),
    "no dataset": (lambda: af.sample_from_datasets([af.range(3), WRONG]), ("argument 2", "str")),
    "seed": (lambda: af.sample_from_datasets(sources(2), seed=-1), ("seed",)),
    "stop": (
        lambda: af.sample_from_datasets(sources(2), stop=WRONG),
        ("'first_exhausted', 'all_exhausted' or",),
    ),
    "batches": (lambda: af.sample_from_datasets([af.range(2).batch(1)]), ("batch",)),
    "columns": (
        lambda: af.sample_from_datasets([af.range(2), numbers(2)]).schema,
        ("dataset 2", "'row'", "'id'"),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case: str) -> None:
    call, texts = BAD[case]
    refused(af.PlanError, call, "sample_from_datasets", *texts)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1], "one weight a dataset, got [1.0] for 2"),
        ([1, -1], "not negative"),
        ([1, float("nan")], "finite"),
        ([1, float("inf")], "finite"),
        ([0, 0], "above 0"),
        (["a", 1], "list of numbers"),
        (3, "list of numbers"),
        ({0: 0.9, 1: 0.1}, "one a dataset in their order, got {0: 0.9, 1: 0.1}"),
        ({0.9, 0.1}, "one a dataset in their order"),
        ("12", "list of numbers"),
    ],
)
def test_bad_weights(weights: Any, text: str) -> None:
    refused(af.PlanError, lambda: af.sample_from_datasets(sources(2), weights), "sample_from_datasets", text)


def test_columns_that_only_a_run_tells() -> None:
    late = af.sample_from_datasets([af.range(2), numbers(2).map(lambda batch: batch)], seed=1)
    refused(af.SchemaError, lambda: batches_of(late), "sample_from_datasets", "dataset 2")


def test_parts_of_long_rows_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many bytes are gathered together, however many rows that is."""
    monkeypatch.setattr(mixing, "PART_BYTES", 1 << 16)
    long = af.from_arrow(pa.table({"text": ["x" * 2000] * 100}))
    ds = af.sample_from_datasets([long, long], seed=1).take(164)
    assert [batch.num_rows for batch in ds] == [64, 32, 32, 32, 4]
    check_resume(lambda: ds)


@pytest.mark.parametrize("weights", [[1e308, 1e308], [5e-324, 5e-324]])
def test_weights_of_any_size_count_by_their_relation(weights: list[float]) -> None:
    found = af.sample_from_datasets([numbers(40)] * 2, weights, seed=1)
    assert rows_of(found) == rows_of(af.sample_from_datasets([numbers(40)] * 2, [1, 1], seed=1))


def test_rules_move_no_border() -> None:
    """Parts are cut by the schema as written, whichever columns are left."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(300 * 9_000, np.int64)), 300)
    source = af.from_arrow(pa.table({"a": np.arange(9_000), "b": lists}))
    ds = af.sample_from_datasets([source, source], seed=1).select("a")
    assert sizes(ds) == sizes(ds.with_options(af.Options(disabled_rules=ALL_RULES)))
    assert max(sizes(ds)) < 8_000


def test_a_budget_below_its_parts_is_refused() -> None:
    mixed = af.sample_from_datasets([af.range(500).repeat(100)] * 2, seed=1)
    with_budget = mixed.with_options(af.Options(ram_budget="200KB"))
    refused(af.BudgetError, lambda: batches_of(with_budget), "sample_from_datasets 262,144", "ram_budget")
    with iter(mixed.with_options(af.Options(ram_budget="600KB", cpu_budget=1))) as iterator:
        for _ in iterator:
            pass
        # A part of 16,384 numbers, and as much to gather it.
        assert iterator.stats().ledger_peak_bytes <= 600_000 + 2 * 131_072


@pytest.mark.parametrize("inputs", [1, 8])
def test_a_slow_consumer_leaves_it_within_its_budget(inputs: int) -> None:
    mixed = af.sample_from_datasets([af.range(500).repeat(100)] * inputs, seed=1)
    engine = stepper_of(mixed.with_options(af.Options(ram_budget=600_000, cpu_budget=1)))
    read_slowly(engine, MANY)
    assert engine.ledger.peak <= 600_000 + 2 * 131_072


@pytest.mark.parametrize("small_bytes", [0, 1 << 20], ids=["opened-anew", "from-memory"])
@pytest.mark.parametrize("weights", [(1, 1), (3, 1)])
def test_small_inputs_that_begin_again_very_often(
    weights: tuple[int, int], small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, and states: those inside of a pass, and those between two of them, on which each row before is gone."""
    monkeypatch.setattr(mixing, "SMALL_BYTES", small_bytes)
    lengths = (3, 40)
    first, second = (af.range(n * MANY, n * MANY + length) for n, length in enumerate(lengths))
    small = first.concatenate(first.take(0)).filter(pl.col("id") >= 0)
    mix = af.sample_from_datasets([small, second], weights, seed=5, stop="all_exhausted").batch(7)
    wanted = reference(lengths, weights, 5, stop="all_exhausted")
    run = iter(mix)
    rows: list[int] = []
    for number, batch in enumerate(run):
        rows += batch["id"].to_pylist()
        if number % 3 == 0:
            monkeypatch.setattr(mixing, "SMALL_BYTES", 0 if number % 2 else 1 << 20)
            again = iter(mix)
            again.load_state_dict(run.state_dict())
            assert [row for found in again for row in found["id"].to_pylist()] == wanted[len(rows) :], number
    assert rows == wanted


def test_states_are_the_same_whether_an_input_comes_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def states() -> list[Any]:
        inputs = [af.range(3), af.range(10, 60)]
        run = iter(af.sample_from_datasets(inputs, [1, 2], seed=3, stop="all_exhausted").batch(1))
        return [(run.state_dict()["position"], batch.to_pydict()) for batch in run]

    monkeypatch.setattr(mixing, "FIRST_ROWS", 1)
    monkeypatch.setattr(mixing, "GROWTH", 1)  # parts of one row: no state goes back behind the row before
    found = states()
    monkeypatch.setattr(mixing, "SMALL_BYTES", 0)
    assert found == states()

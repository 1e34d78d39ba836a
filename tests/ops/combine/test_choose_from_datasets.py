"""`choose_from_datasets`: rows of several datasets, in the order that a column of numbers gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.ops.combine import mixing
from arrowflow.optimizer import RULES
from arrowflow.testing import batches_of, check_any_chunks, check_operator, check_resume
from tests.effort import scaled
from tests.ops.tables import ALL_TYPES_INSIDE, NUMBERS, ids, numbers, refused, sizes

pytestmark = pytest.mark.any_version

ALL_RULES = tuple(rule.name for rule in RULES)


def choices(values: Iterable[int | None], type: pa.DataType | None = None) -> af.Dataset:
    return af.from_arrow(pa.table({"choice": pa.array(list(values), type or pa.int64())}))


def alternating(rows: int) -> af.Dataset:
    return af.range(rows).select(choice=pl.col("id") % 2)


def reference(lengths: Sequence[int], chosen: Iterable[int], *, stop: bool) -> list[int]:
    """Chooses row by row; the rows of input n are 1000 n, 1000 n + 1, …"""
    rows, used = [], [0] * len(lengths)
    for number in chosen:
        if used[number] == lengths[number]:
            if stop:
                break
            continue
        rows.append(1000 * number + used[number])
        used[number] += 1
    return rows


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets some rows of data fill several blocks."""
    monkeypatch.setattr("arrowflow.ops.combine.choose_from_datasets.BLOCK_ROWS", 4)
    monkeypatch.setattr(mixing, "FIRST_ROWS", 3)


PATTERN = [0, 1, 1, 0, 2, 1, 0, 0, 2, 2, 1, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("table", "stop", "batched"),
    [(NUMBERS, True, False), (ALL_TYPES_INSIDE, False, False), (NUMBERS, False, True)],
)
def test_contracts(table: pa.Table, stop: bool, batched: bool, small_blocks: None) -> None:
    def apply(ds: af.Dataset) -> af.Dataset:
        mixed = af.choose_from_datasets(
            [ds, ds.skip(3), ds.take(2)], choices(PATTERN), stop_on_empty_dataset=stop
        )
        return mixed.batch(3) if batched else mixed

    check_operator(apply, table, in_full=stop)


def test_contracts_of_whole_blocks() -> None:
    check_operator(lambda ds: af.choose_from_datasets([ds, ds], choices([0, 1] * 12)), NUMBERS, in_full=False)


def test_contracts_of_the_numbers(small_blocks: None) -> None:
    """However the numbers are cut, too."""
    table = pa.table({"choice": pa.array(PATTERN, pa.int16())})
    inputs = [af.range(7), af.range(10, 13), af.range(20, 30)]
    check_any_chunks(lambda ds: af.choose_from_datasets(inputs, ds), table)
    check_any_chunks(lambda ds: af.choose_from_datasets(inputs, ds, stop_on_empty_dataset=False), table)
    check_resume(lambda: af.choose_from_datasets(inputs, numbers(2, 0, 1).repeat().take(11)))


@settings(max_examples=scaled(40))
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    picks=st.lists(st.integers(0, 3), max_size=40),
    block=st.integers(1, 12),
    first=st.integers(1, 12),
    stop=st.booleans(),
)
def test_it_is_what_choosing_row_by_row_gives(
    lengths: list[int], picks: list[int], block: int, first: int, stop: bool
) -> None:
    chosen = [pick % len(lengths) for pick in picks]
    inputs = [af.range(1000 * number, 1000 * number + length) for number, length in enumerate(lengths)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arrowflow.ops.combine.choose_from_datasets.BLOCK_ROWS", block)
        patch.setattr(mixing, "FIRST_ROWS", first)
        ds = af.choose_from_datasets(inputs, choices(chosen), stop_on_empty_dataset=stop)
        assert ids(ds) == reference(lengths, chosen, stop=stop)


@pytest.mark.parametrize("stop", [True, False])
def test_many_rows(stop: bool) -> None:
    chosen = np.random.default_rng(1).integers(0, 3, 70_000)
    lengths = [40_000, 20_000, 40_000]
    inputs = [af.range(number * 10**6, number * 10**6 + length) for number, length in enumerate(lengths)]
    numbers = af.from_numpy({"choice": chosen})
    ds = af.choose_from_datasets(inputs, numbers, stop_on_empty_dataset=stop)
    found = np.concatenate([batch["id"].to_numpy() for batch in ds])
    ranks = np.zeros(len(chosen), np.int64)
    for number in range(3):
        ranks[chosen == number] = np.arange((chosen == number).sum())
    lacking = (chosen == 1) & (ranks >= 20_000)
    expected = chosen * 10**6 + ranks
    expected = expected[: int(np.flatnonzero(lacking)[0])] if stop else expected[~lacking]
    assert np.array_equal(found, expected)


def test_it_ends_with_the_numbers() -> None:
    endless = [af.range(2).repeat(), af.range(10, 13).repeat()]
    assert ids(af.choose_from_datasets(endless, choices([1, 1, 0, 1, 1, 0, 0]))) == [10, 11, 0, 12, 10, 1, 0]
    assert ids(af.choose_from_datasets(endless, choices([]))) == []
    endless = [af.range(5000).repeat(), af.range(10_000, 15_000).repeat()]
    with iter(af.choose_from_datasets(endless, alternating(6000).repeat())) as iterator:
        found = list(itertools.islice(iterator, 6))
    assert [batch.num_rows for batch in found] == [64, 256, 1024, 4096, 10_944, 16_384]
    assert found[0].column("id").to_pylist()[:5] == [0, 10_000, 1, 10_001, 2]


def test_the_first_part_waits_for_its_own_numbers_alone() -> None:
    calls = []

    def numbers(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        calls.append(1)
        return columns

    turns = af.from_numpy({"choice": [0, 1, 1, 0]}).map(numbers, format="numpy").repeat()
    with iter(af.choose_from_datasets([af.range(10**6), af.range(10**6)], turns).batch(64)) as batches:
        assert next(batches).num_rows == 64
    assert 16 <= len(calls) < 512  # a block has 16,384 numbers, so 4,096 repetitions


def test_all_inputs_ended() -> None:
    """Endless numbers choose nothing any more."""
    inputs, chosen = [af.range(3), af.range(10, 11)], alternating(6000).repeat()
    assert ids(af.choose_from_datasets(inputs, chosen, stop_on_empty_dataset=False)) == [0, 10, 1, 2]
    assert ids(af.choose_from_datasets(inputs, chosen)) == [0, 10, 1]


def test_numbers_of_any_type() -> None:
    for type in (pa.int8(), pa.uint8(), pa.int32(), pa.uint64(), pa.int64()):
        ds = af.choose_from_datasets([af.range(3), af.range(10, 13)], choices([1, 0, 1], type))
        assert ids(ds) == [10, 0, 11], type


@pytest.mark.parametrize(
    ("wrong", "before"),
    [(-1, 3), (127, 4), *((None, rows) for rows in range(7)), *((2, rows) for rows in (0, 3, 6))],
)
def test_a_number_of_no_dataset(wrong: int | None, before: int, small_blocks: None) -> None:
    """Rows before it come, at any place in a block, and a state that was taken before it leads to it again."""
    values = [*[0, 1, 0, 1, 1, 0, 1][:before], wrong, 0, 5]
    ds = af.choose_from_datasets([af.range(9), af.range(10, 19)], choices(values, pa.int8()))
    text = (f"row {before:,} ", f"is {wrong},", "0 to 1", "choose_from_datasets")
    with iter(ds) as iterator:
        found, state = list[int](), iterator.state_dict()
        while len(found) < before:
            found += next(iterator).column("id").to_pylist()
            state = iterator.state_dict()
        refused(af.DataError, lambda: next(iterator), *text)
    assert len(found) == before
    with iter(ds) as again:
        again.load_state_dict(state)
        refused(af.DataError, lambda: next(again), *text)


def test_a_wrong_number_behind_the_end_is_not_looked_at() -> None:
    assert ids(af.choose_from_datasets([af.range(1)], choices([0, 0, 7]))) == [0]
    assert ids(af.choose_from_datasets([af.range(9)], choices([0, 0, 7])).take(2)) == [0, 1]


def test_blocks_are_cut_where_inputs_end(small_blocks: None) -> None:
    ds = af.choose_from_datasets(
        [af.range(3), af.range(10, 20)], choices([0, 1, 0, 1, 0, 0, 1, 1, 1]), stop_on_empty_dataset=False
    )
    assert sizes(ds) == [3, 1, 1, 2, 1]


TWO = [af.range(3), af.range(3)]
WRONG: Any = ["rows"]
BAD: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "no dataset": (lambda: af.choose_from_datasets(WRONG, choices([0])), ("argument 1", "str")),
    "no numbers": (lambda: af.choose_from_datasets(TWO, WRONG), ("list",)),
    "batches": (lambda: af.choose_from_datasets(TWO, choices([0]).batch(1)), ("batch",)),
    "no flag": (
        lambda: af.choose_from_datasets(TWO, choices([0]), stop_on_empty_dataset=WRONG),
        ("True or False",),
    ),
    "texts": (
        lambda: af.choose_from_datasets(TWO, af.from_numpy({"choice": ["a"]})).schema,
        ("'choice' of string", "whole numbers"),
    ),
    "two columns": (
        lambda: af.choose_from_datasets(TWO, af.zip(choices([0]), af.range(1))).schema,
        ("one column", "select"),
    ),
    "two columns later": (
        lambda: batches_of(
            af.choose_from_datasets(
                TWO, choices([0, 1]).map(lambda batch: batch.append_column("x", batch[0]))
            )
        ),
        ("one column",),
    ),
    "other columns": (
        lambda: af.choose_from_datasets([af.range(2), numbers(2)], choices([0])).schema,
        ("dataset 2", "'row'"),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case: str) -> None:
    call, texts = BAD[case]
    refused(af.PlanError, call, *(() if case == "no flag" else ["choose_from_datasets"]), *texts)


def failing(first: int, rows: int) -> af.Dataset:
    """Rows from a number on, and then an error."""

    def generate() -> Iterator[dict[str, int]]:
        yield from ({"id": first + row} for row in range(rows))
        raise KeyError("broken")

    return af.from_generator(generate, schema=pa.schema({"id": pa.int64()}))


def delivered(ds: af.Dataset) -> tuple[list[int], str]:
    """Returns the rows before the error, and what it says."""
    rows: list[int] = []
    try:
        for batch in ds:
            rows += batch.column(0).to_pylist()
    except af.FunctionError as error:
        return rows, str(error)
    return rows, ""


FAILING: dict[str, tuple[list[af.Dataset], Sequence[int], list[int]]] = {
    "one": ([failing(100, 2), af.range(9)], [1, 1, 0, 1, 0, 1, 0, 1], [0, 1, 100, 2, 101, 3]),
    "the first row": ([af.range(9), failing(100, 0)], [0, 0, 1, 0], [0, 1]),
    "both": ([failing(100, 3), failing(200, 1)], [0, 1, 0, 1, 0], [100, 200, 101]),
    "behind an end": ([failing(100, 3), af.range(1)], [1, 0, 1, 0, 0, 0], [0, 100]),
}


@pytest.mark.parametrize("name", FAILING)
def test_an_error_comes_behind_the_rows_that_do_without_it(name: str) -> None:
    """A whole part is pulled before any of it is put out, and still no error comes early."""
    datasets, chosen, expected = FAILING[name]
    ds = af.choose_from_datasets(datasets, choices(chosen))
    for options in (af.Options(cpu_budget=1, autotune=False), af.Options(cpu_budget=4)):
        rows, text = delivered(ds.with_options(options))
        assert rows == expected
        assert ("KeyError" in text) == (name != "behind an end")
    assert delivered(ds.take(len(expected))) == (expected, "")
    with iter(ds) as iterator:
        assert next(iterator).num_rows == len(expected)
        state = iterator.state_dict()
    with iter(ds) as iterator:
        iterator.load_state_dict(state)
        if name != "behind an end":
            refused(af.FunctionError, lambda: next(iterator), "KeyError")


def test_one_that_failed_is_not_passed_over() -> None:
    ds = af.choose_from_datasets(
        [failing(100, 1), af.range(2)], choices([1, 1, 1, 0, 0, 1]), stop_on_empty_dataset=False
    )
    rows, text = delivered(ds)
    assert rows == [0, 1, 100] and "KeyError" in text


def test_an_error_of_the_numbers_comes_behind_the_rows_they_chose(small_blocks: None) -> None:
    for count in (0, 3, 4, 6):
        numbers = failing(0, count).select(choice=pl.col("id") % 2)
        rows, text = delivered(af.choose_from_datasets([af.range(9), af.range(10, 19)], numbers))
        assert rows == [row // 2 + 10 * (row % 2) for row in range(count)]
        assert "KeyError" in text

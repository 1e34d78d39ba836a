"""`rejection_resample`: which rows are left out, and that it depends on nothing that it should not."""

from __future__ import annotations

import datetime
import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af
from arrowflow.kernels.items import Item, Origin
from arrowflow.ops.combine import rejection_resample
from arrowflow.ops.combine.classes import MAX_COUNTED_CLASSES, Classed
from arrowflow.ops.combine.rejection_resample import DRAWN_ROWS, draws
from arrowflow.random import RESAMPLE_DRAWS, bits
from arrowflow.testing import batches_of, check_operator, check_resume, chunked, cut
from tests.ops.tables import NUMBERS, Apply, numbers, refused, rows_of, stands_for_all

pytestmark = pytest.mark.any_version

LABELS = NUMBERS.append_column("label", pa.array([(i * i) % 3 for i in range(17)], pa.int16()))
TARGET = [0.3, 0.5, 0.2]
INITIAL = [0.4, 0.2, 0.4]

CASES: dict[str, Apply] = {
    "given": lambda ds: ds.rejection_resample("label", TARGET, INITIAL, seed=3),
    "estimated": lambda ds: ds.rejection_resample("label", TARGET, seed=3),
    "of pyarrow": lambda ds: ds.rejection_resample(pc.field("row") > pc.scalar(9), [1, 2], seed=3),
    "texts, without its class": lambda ds: ds.rejection_resample(
        pl.when(pl.col("label") == 1).then(pl.lit("rare")).otherwise(pl.lit("often")),
        {"rare": 0.5, "often": 0.5},
        seed=3,
    ).select("row"),
    "repeated": lambda ds: ds.rejection_resample("label", TARGET, INITIAL).repeat(2).batch(3),
    "over all": lambda ds: ds.repeat(3).rejection_resample("label", TARGET).batch(4),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(
        CASES[case], LABELS, epochs_differ=True, parts_differ=True, in_full=stands_for_all(case, CASES)
    )


@pytest.mark.parametrize(("case", "rows"), [("given", 3), ("estimated", 5), ("over all", 2)])
def test_contracts_where_blocks_end(case: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection_resample, "BLOCK_ROWS", rows)
    monkeypatch.setattr(rejection_resample, "SAMPLE_BLOCKS", 2)
    monkeypatch.setattr(rejection_resample, "DRAWN_ROWS", rows + 1)
    check_operator(CASES[case], LABELS, epochs_differ=True, parts_differ=True, in_full=False)


def labelled(num_rows: int, shares: list[float], seed: int = 0) -> af.Dataset:
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(shares), num_rows, p=np.array(shares) / sum(shares))
    return af.from_arrow(pa.table({"row": np.arange(num_rows), "label": labels}))


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    ("initial", "target"),
    [([0.9, 0.1], [0.5, 0.5]), ([0.5, 0.3, 0.2], [0.1, 0.1, 0.8]), ([0.25] * 4, [0.0, 1.0, 2.0, 1.0])],
)
def test_shares_are_those_that_are_wanted(given: bool, initial: list[float], target: list[float]) -> None:
    table = labelled(100_000, initial).to_table()
    ds = af.from_arrow(table.to_batches(7_000)).rejection_resample(
        "label", target, initial if given else None
    )
    kept = ds.to_table()
    rows = kept["row"].to_numpy()
    counts = np.bincount(kept["label"], minlength=len(target))
    wanted = np.array(target) / sum(target)
    assert np.abs(counts / len(rows) - wanted).max() < 4 * np.sqrt(0.25 / len(rows)) + (0 if given else 0.003)
    # As many as can be kept: the scarcest class is whole.
    scarce, most = min(enumerate(initial / np.maximum(wanted, 1e-9)), key=lambda pair: pair[1])
    assert abs(len(rows) / 100_000 - most) < 0.01
    if given:
        assert counts[scarce] == np.count_nonzero(table["label"].to_numpy() == scarce)
    assert (np.diff(rows) > 0).all()


def test_shares_may_be_given_by_class() -> None:
    ds = labelled(4_000, [0.7, 0.3])
    for listed, mapped in ((None, None), ([0.7, 0.3], {1: 0.3, 0: 0.7})):
        by_order = ds.rejection_resample("label", [0.2, 0.8], listed, seed=1)
        by_class = ds.rejection_resample("label", {1: 0.8, 0: 0.2}, mapped, seed=1)
        assert by_class == by_order
        assert by_class.to_table().equals(by_order.to_table())


def test_a_class_that_is_not_wanted_is_left_out() -> None:
    for initial in (None, [0.5, 0.5]):
        ds = labelled(2_000, [0.5, 0.5]).rejection_resample("label", [0, 1], initial)
        assert set(rows_of(ds, "label")) == {1}


@pytest.mark.parametrize("rows", [200, 5_000, 20_000])
def test_half_is_half_from_the_first_row_on(rows: int) -> None:
    ds = labelled(rows, [0.9, 0.1], seed=rows).rejection_resample("label", [0.5, 0.5], seed=1)
    labels = rows_of(ds, "label")
    for part in (labels, labels[:500]):
        assert abs(sum(part) / len(part) - 0.5) < 3 * np.sqrt(0.25 / len(part))


def test_no_row_comes_before_the_first_rows_are_counted() -> None:
    counts: list[int] = []

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        counts.append(batch.num_rows)
        return batch

    table = labelled(20_000, [1, 1]).to_table()
    ds = af.from_arrow(table.to_batches(1_000)).map(count, num_parallel_calls=1, schema=table.schema)
    with iter(ds.rejection_resample("label", [1, 1]).batch(1)) as batches:
        next(batches)
        assert sum(counts) >= rejection_resample.SAMPLE_BLOCKS * rejection_resample.BLOCK_ROWS


def test_rows_that_are_held_back_are_budgeted() -> None:
    wide = pa.table(
        {"label": np.zeros(10_000, np.int64), "x": pa.array([b"0" * 1000] * 10_000, pa.binary(1000))}
    )
    ds = af.from_arrow(wide).with_options(af.Options(ram_budget="4MiB"))
    held = ds.rejection_resample("label", [1, 1])
    refused(af.BudgetError, lambda: batches_of(held), "rejection_resample")
    assert batches_of(ds.rejection_resample("label", [1, 1], [1, 1]))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("kind", ["text", "enum", "codes", "binary"])
def test_classes_of_texts_and_enums(kind: str, given: bool) -> None:
    names: list[Any] = ["a", "b", "c"]
    enum = pl.Enum(names)
    values = [names[number] for number in rows_of(labelled(5_000, [0.7, 0.2, 0.1]), "label")]
    frame = pl.DataFrame({"row": range(5_000), "label": pl.Series(values, dtype=enum)})
    ds = af.from_arrow(frame if kind == "enum" else frame.cast({"label": pl.String}))
    if kind == "codes":
        ds = ds.cast({"label": enum})
    if kind == "binary":
        ds = ds.cast({"label": pa.binary()})
        names = [name.encode() for name in names]
    a, b, c = names
    initial = {c: 0.1, a: 0.7, b: 0.2} if given else None
    resampled = ds.rejection_resample("label", {c: 1, a: 1, b: 2}, initial, seed=1)
    kept = [values[row] for row in rows_of(resampled)]
    shares = [kept.count(name) / len(kept) for name in "abc"]
    assert np.abs(np.array(shares) - [0.25, 0.5, 0.25]).max() < 3 * np.sqrt(0.25 / len(kept))


def test_classes_that_are_other_numbers() -> None:
    ds = af.from_arrow(pa.table({"row": np.arange(100), "label": np.arange(100) % 2 * 8 - 1}))
    odd = list(range(1, 100, 2))
    assert rows_of(ds.rejection_resample("label", {np.int64(7): 1, -1: 0})) == odd
    assert rows_of(ds.rejection_resample(pl.col("label") > 0, {True: 1, False: 0})) == odd


LABELLED = af.from_arrow(LABELS)
KNOWN = af.from_arrow(pa.table({"label": ["a", "b"]}))
DATES = KNOWN.select(label=pl.lit(datetime.date(2024, 1, 1)))
WORDS: Any = {"a": 1, "b": 1}
FOR_NUMBERS = "for the whole numbers from 0 on; give a mapping from texts to shares, such as {'cat': 0.5"
UNFIT: dict[str, tuple[type[Exception], af.Dataset, tuple[Any, ...], str]] = {
    "null": (af.DataError, af.from_arrow(pa.table({"label": ["a", None]})), (WORDS,), "null in 1 rows"),
    "unknown": (af.DataError, KNOWN, ({"a": 1},), "'b', expected one of ['a']"),
    "of another type": (af.PlanError, KNOWN, ({"a": 1, 3: 1},), "does not hold 3"),
    "list for texts": (af.PlanError, KNOWN, ([1, 1],), FOR_NUMBERS),
    "list for enums": (af.PlanError, KNOWN.cast({"label": pl.Enum(["a", "b"])}), ([1, 1],), FOR_NUMBERS),
    "numbers for texts": (af.PlanError, KNOWN, ({0: 1, 1: 1},), FOR_NUMBERS),
    "dates": (af.PlanError, DATES, ([1, 1],), "from its values to shares"),
    "no column": (af.PlanError, LABELLED.drop("label"), ([1, 1],), "'label'"),
    "floats": (af.PlanError, LABELLED.select(label="x"), ([1, 1],), "double"),
    "texts": (af.PlanError, LABELLED.select(label="s"), ([1, 1],), "string"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_classes_that_do_not_fit(case: str) -> None:
    error, ds, arguments, text = UNFIT[case]

    def read() -> object:
        resampled = ds.rejection_resample("label", *arguments)
        return resampled.schema if error is af.PlanError else batches_of(resampled)

    refused(error, read, "rejection_resample", text)


def test_estimates_follow_the_blocks_that_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection_resample, "BLOCK_ROWS", 100)
    monkeypatch.setattr(rejection_resample, "SAMPLE_BLOCKS", 2)
    labels = np.zeros(400, np.int64)
    labels[:100] = np.arange(100) % 4 == 0  # 25 of class 1 in the first block, then none
    table = pa.table({"row": np.arange(400), "label": labels})
    ds = af.from_arrow(table).rejection_resample("label", [1, 1], seed=5)
    bound = ds._ready().bound
    drawn = draws((5, RESAMPLE_DRAWS, bound.place, 0), 0, 400)  # type: ignore[attr-defined]
    zeros = np.repeat([175, 175, 175, 275], 100)
    assert rows_of(ds) == np.flatnonzero(drawn < np.where(labels == 1, 1, 25 / zeros)).tolist()


def test_the_first_blocks_are_counted_once_the_last_row_of_them_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rejection_resample, "BLOCK_ROWS", 3)
    monkeypatch.setattr(rejection_resample, "SAMPLE_BLOCKS", 2)
    bound = labelled(9, [1, 1, 1]).rejection_resample("label", [1, 1, 1])._ready().bound
    assert isinstance(bound, rejection_resample.RejectionResample)
    kernel = rejection_resample.ClassCountKernel(bound)

    def push(classes: list[int]) -> list[Item]:
        rows = Classed(pa.record_batch({"label": classes}), np.array(classes))
        return list(kernel.push(Item(rows, None, "ticket", Origin(0))))

    assert not push([0, 0, 1, 0])
    first, second = push([0, 0])
    (third,) = push([1])
    # A class that has not come counts as one row.
    assert [item.chunk.accepted.tolist() for item in (first, second)] == [[[0.2, 1, 1]] * 2, [[0.2, 1, 1]]]
    assert [item.chunk.first for item in (first, second, third)] == [0, 4, 6]
    assert first.position == (None, 4, (5, 1, 0), (2, 1, 0), (1, 0, 0))
    assert second.position == (None, 6, (), (5, 1, 0), (0, 0, 0))
    assert third.position == (None, 7, (), (5, 1, 0), (0, 1, 0))
    # There is new memory to charge.
    assert first.ticket is None


def test_it_resumes_right_after_the_first_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection_resample, "BLOCK_ROWS", 3)
    monkeypatch.setattr(rejection_resample, "SAMPLE_BLOCKS", 2)
    batch = labelled(12, [0.7, 0.3]).to_table().combine_chunks().to_batches()[0]
    table = chunked([cut(batch, [4, 2, 6])], batch.schema)
    check_resume(lambda: table.rejection_resample("label", [1, 1]), in_full=True)


def test_equal_shares_keep_everything() -> None:
    assert rows_of(labelled(900, [1, 1]).rejection_resample("label", [1, 1], [1, 1])) == list(range(900))


def test_draws_are_keyed_by_blocks_of_rows() -> None:
    whole = draws((1, 2), 0, 3 * DRAWN_ROWS)
    assert whole[DRAWN_ROWS] == (int(bits((1, 2, 1), 1)[0]) >> 11) * 2.0**-53
    for first, rows in (
        (0, 1),
        (5, DRAWN_ROWS),
        (DRAWN_ROWS - 1, 2),
        (DRAWN_ROWS, DRAWN_ROWS),
        (7, 2 * DRAWN_ROWS),
    ):
        assert (draws((1, 2), first, rows) == whole[first : first + rows]).all()
    assert 0 <= whole.min() < 0.01 and 0.99 < whole.max() < 1 and abs(whole.mean() - 0.5) < 0.01


def test_two_of_them_decide_apart() -> None:
    ds = labelled(2_000, [1, 1])
    once = ds.rejection_resample("label", [1, 2], [1, 1], seed=1)
    twice = once.rejection_resample("label", [1, 2], [1, 2], seed=1)
    twice = twice.rejection_resample("label", [2, 1], [1, 1], seed=1)
    assert 0 < len(rows_of(twice)) < len(rows_of(once)) < 2_000
    assert rows_of(ds.rejection_resample("label", [1, 2], [1, 1], seed=2)) != rows_of(once)


def test_it_resumes_inside_of_a_block() -> None:
    batch = labelled(1_500, [0.7, 0.3]).to_table().combine_chunks().to_batches()[0]
    table = chunked([cut(batch, [37, 1, 200])], batch.schema)
    check_resume(lambda: table.rejection_resample("label", [1, 1]))


def test_a_state_is_small() -> None:
    number = MAX_COUNTED_CLASSES
    table = pa.table({"label": np.arange(4_000) % number})
    with iter(af.from_arrow(table).rejection_resample("label", [1] * number).batch(7)) as iterator:
        for _ in range(100):
            next(iterator)
        state = iterator.state_dict()
    assert len(json.dumps(state)) + 3 * number * 10 < 64 << 10


@pytest.mark.parametrize("initial", [None, [1, 1, 1]])
@pytest.mark.parametrize(("label", "text"), [(3, "is 3"), (-1, "is -1"), (None, "null in 1 rows")])
def test_a_class_outside_is_an_error(label: int | None, text: str, initial: list[float] | None) -> None:
    table = pa.table({"label": pa.array([0, 1, 2, label], pa.int8())})
    ds = af.from_arrow(table).rejection_resample("label", TARGET, initial)
    refused(af.DataError, lambda: batches_of(ds), "rejection_resample", "label", text)


def test_nothing_moves_across_it() -> None:
    ds = af.from_arrow(LABELS)
    resampled = rows_of(ds.rejection_resample("label", TARGET, INITIAL, seed=1))
    later = ds.rejection_resample("label", TARGET, INITIAL, seed=1).filter(pl.col("row") > 8)
    assert rows_of(later) == [row for row in resampled if row > 8]


def test_it_runs_where_the_schema_is_not_known() -> None:
    ds = numbers(9).map_rows(lambda row: {**row, "label": row["row"] % 2})
    assert rows_of(ds.rejection_resample("label", [0, 1])) == [1, 3, 5, 7]
    refused(
        af.PlanError,
        lambda: batches_of(ds.rejection_resample("lab", [0, 1])),
        "rejection_resample",
        "'label'",
    )


BAD: dict[str, tuple[tuple[Any, ...], str]] = {
    "no list": (("label", 3), "target_dist"),
    "texts": (("label", ["a"]), "target_dist"),
    "negative": (("label", [1, -1]), "target_dist"),
    "nothing": (("label", [0, 0]), "all zero"),
    "empty": (("label", []), "all zero"),
    "nan": (("label", [float("nan"), 1]), "target_dist"),
    "other length": (("label", [1, 1], [1, 1, 1]), "2 shares"),
    "out of reach": (("label", [1, 1], [1, 0]), "[1]"),
    "texts out of reach": (("label", WORDS, {"a": 1, "b": 0}), "['b']"),
    "other classes": (("label", {0: 1, 2: 1}, {0: 1, 1: 1}), "classes [0, 2] and initial_dist [0, 1]"),
    "other texts": (("label", WORDS, {"a": 1, "c": 1}), "target_dist has the classes ['a', 'b']"),
    "texts and numbers": (("label", WORDS, [1, 1]), "target_dist has the classes ['a', 'b']"),
    "no classes": (("label", {}), "all zero"),
    "a share that is text": (("label", {"a": "b"}), "gives each class its share, got {'a': 'b'}"),
    "a set": (("label", {0.2, 0.8}), "target_dist"),
    "digits": (("label", "12"), "target_dist"),
    "too far apart": (("label", [1, 1], [5e-324, 1]), "too far"),
    "too many": (("label", [1] * (MAX_COUNTED_CLASSES + 1)), "initial_dist"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case: str) -> None:
    arguments, text = BAD[case]
    labels = af.from_arrow(LABELS)
    refused(af.PlanError, lambda: labels.rejection_resample(*arguments), "rejection_resample", text)


def test_batches_are_refused() -> None:
    batches = af.range(3).batch(2)
    refused(af.PlanError, lambda: batches.rejection_resample("id", [1]), "rejection_resample", "batch")


def test_shares_of_any_size_count_by_their_relation() -> None:
    ds = labelled(2_000, [0.5, 0.5])
    expected = rows_of(ds.rejection_resample("label", [1, 3], [1, 1], seed=1))
    assert 0 < len(expected) < 2_000
    for target, initial in (([1e300, 3e300], [1e-300, 1e-300]), ([1e-300, 3e-300], [1e300, 1e300])):
        assert rows_of(ds.rejection_resample("label", target, initial, seed=1)) == expected


def test_what_it_draws_from_is_counted() -> None:
    accepted = np.ones((3, 2))
    rows = Classed(pa.record_batch({"x": [1, 2]}), np.zeros(2, np.int64))
    counted = rejection_resample.Numbered(rows, 0, accepted).buffers
    assert accepted.ctypes.data in [buffer.address for buffer in counted if buffer is not None]
    assert len(counted) > len(rows.buffers)


def test_it_shares_no_numbers_with_a_shuffle() -> None:
    """Whatever its place is: the domain tells their keys apart."""
    ds = labelled(50, [1, 1])
    for _ in range(5):
        bound = ds.rejection_resample("label", [1, 1], seed=5)._ready().bound
        assert isinstance(bound, rejection_resample.RejectionResample)
        kernel = rejection_resample.DrawKernel(bound, cast(Any, SimpleNamespace(epoch=0)))
        assert kernel._key == (5, RESAMPLE_DRAWS, bound.place, 0)
        ds = ds.skip(0)

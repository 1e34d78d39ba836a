"""`pack_sequences`: documents into rows of one length."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.ops.batches.packing import best_fit_decreasing, first_fit_decreasing
from arrowflow.testing import batches_of, check_dataset, check_operator, check_resume, chunked, cut
from tests.effort import scaled
from tests.ops.tables import refused, sizes

pytestmark = pytest.mark.any_version

Documents = list[list[int] | None]

LENGTHS = [3, 0, 9, 4, 4, 1, None, 20, 2, 6, 0, 5, 1, 1, 7, 8, 3]
DOCUMENTS = pa.table(
    {
        "tokens": pa.array(
            [
                None if size is None else list(range(100 * i, 100 * i + size))
                for i, size in enumerate(LENGTHS)
            ],
            pa.list_(pa.int32()),
        )
    }
)
STRATEGIES = ["first_fit", "best_fit", "concat_then_split"]
THREE = ["tokens", "labels", "mask"]


def naive_fit(
    documents: Sequence[Sequence[Any] | None], length: int, window: int, *, best: bool
) -> list[list[list[Any]]]:
    """Returns the pieces of each row."""
    rows = []
    for start in range(0, len(documents), window):
        pieces = [
            document[at : at + length]
            for document in documents[start : start + window]
            if document
            for at in range(0, len(document), length)
        ]
        bins: list[list[int]] = []
        for number in sorted(range(len(pieces)), key=lambda number: -len(pieces[number])):
            left = [length - sum(len(pieces[i]) for i in one) for one in bins]
            fits = [at for at, room in enumerate(left) if room >= len(pieces[number])]
            if not fits:
                bins.append([number])
            else:
                bins[min(fits, key=left.__getitem__) if best else fits[0]].append(number)
        rows += [[list(pieces[number]) for number in one] for one in sorted(map(sorted, bins))]
    return rows


def naive_cut(documents: Sequence[Sequence[Any] | None], length: int) -> list[list[list[Any]]]:
    owned = [(number, token) for number, document in enumerate(documents) for token in document or []]
    return [
        [[token for _, token in piece] for _, piece in itertools.groupby(row, key=lambda pair: pair[0])]
        for row in (owned[start : start + length] for start in range(0, len(owned), length))
    ]


def naive(
    documents: Sequence[Sequence[Any] | None], length: int, window: int, strategy: str
) -> list[list[list[Any]]]:
    if strategy == "concat_then_split":
        return naive_cut(documents, length)
    return naive_fit(documents, length, window, best=strategy == "best_fit")


def padded(rows: list[list[list[int]]], length: int, pad: int) -> dict[str, list[list[int]]]:
    def filled(values: list[int], with_: int) -> list[int]:
        return values + [with_] * (length - len(values))

    return {
        "tokens": [filled([token for piece in row for token in piece], pad) for row in rows],
        "segment_ids": [
            filled([number for number, piece in enumerate(row, 1) for _ in piece], 0) for row in rows
        ],
        "positions": [filled([at for piece in row for at in range(len(piece))], 0) for row in rows],
    }


@pytest.mark.parametrize(
    ("strategy", "length", "window"),
    [
        ("first_fit", 9, 4),
        ("first_fit", 5, 100),
        ("best_fit", 4, 1),
        ("best_fit", 30, 3),
        ("concat_then_split", 9, 4),
        ("concat_then_split", 30, 3),
    ],
)
def test_contracts(strategy: Any, length: int, window: int) -> None:
    check_operator(
        lambda ds: ds.pack_sequences("tokens", length, strategy=strategy, window_rows=window),
        DOCUMENTS,
        parts_differ=True,
        in_full=strategy == "first_fit" and length == 9,
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_contracts_of_what_may_stand_around_it(strategy: Any) -> None:
    chunks = [cut(DOCUMENTS.combine_chunks().to_batches()[0], [3, 0, 4])]

    def make() -> af.Dataset:
        shuffled = chunked(chunks, DOCUMENTS.schema).shuffle(6, seed=2).repeat(2)
        packed = shuffled.pack_sequences("tokens", 9, strategy=strategy, window_rows=5)
        return packed.batch(2).repeat(2).batch(3, drop_remainder=True)

    check_dataset(make, epochs_differ=True)


def labelled(lengths: Sequence[int | None]) -> pa.RecordBatch:
    """Returns documents in three columns, of which the second one lies otherwise in memory, and two other columns."""
    documents = [None if size is None else range(size) for size in lengths]
    columns = {
        "name": pa.array([f"d{number}" for number in range(len(lengths))]),
        "tokens": pa.array(
            [each and [100 * i + at for at in each] for i, each in enumerate(documents)], pa.list_(pa.int32())
        ),
        "labels": pa.array(
            [each and [-at for at in each] for each in [range(9), *documents]], pa.large_list(pa.int64())
        ).slice(1),
        "mask": pa.array([each and [at / 2 for at in each] for each in documents], pa.list_(pa.float32())),
        "parts": pa.array([[number] * (number % 3) for number in range(len(lengths))], pa.list_(pa.int8())),
    }
    return pa.record_batch(columns)


def naive_labelled(
    lengths: Sequence[int | None], length: int, window: int, strategy: str, *, bos: bool, drops: bool
) -> dict[str, list[list[Any]]]:
    """Returns the rows of `labelled`, by pairs of a document and the number of a token; -1 is what comes before it."""
    given = [[(i, at) for at in range(-bos, size)] if size else None for i, size in enumerate(lengths)]
    rows = naive(
        [None if drops and len(one or ()) > length else one for one in given], length, window, strategy
    )

    def packed(value: Callable[[int, int], float], first: float, pad: float) -> list[list[float]]:
        found = [[first if at < 0 else value(i, at) for piece in row for i, at in piece] for row in rows]
        return [values + [pad] * (length - len(values)) for values in found]

    owners = [[piece[0][0] for piece in row] for row in rows]
    places = padded(rows, length, 0)
    return {
        "name": [[f"d{number}" for number in row] for row in owners],
        "tokens": packed(lambda i, at: 100 * i + at, 7, 0),
        "labels": packed(lambda i, at: -at, -100, -1),
        "mask": packed(lambda i, at: at / 2, 0.5, 0),
        "parts": [[[number] * (number % 3) for number in row] for row in owners],
        "segment_ids": places["segment_ids"],
        "positions": places["positions"],
    }


@hypothesis.settings(max_examples=scaled(60))
@hypothesis.given(
    lengths=st.lists(st.none() | st.integers(0, 12), max_size=20),
    length=st.integers(1, 10),
    window=st.integers(1, 8),
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(any),
    bos=st.booleans(),
    drops=st.booleans(),
)
def test_columns_are_packed_alike_and_others_have_a_value_a_segment(
    lengths: list[int | None], length: int, window: int, sizes: list[int], bos: bool, drops: bool
) -> None:
    batch = labelled(lengths)
    ds = chunked([cut(batch, sizes)], batch.schema)
    before = {"tokens": 7, "labels": -100, "mask": 0.5} if bos else None
    how: dict[str, Any] = {"window_rows": window, "bos": before, "overlong": "drop" if drops else "cut"}
    for strategy in STRATEGIES[: 2 if drops else 3]:
        packed = ds.pack_sequences(THREE, length, strategy=strategy, pad_value={"labels": -1}, **how)  # type: ignore[arg-type]
        expected = naive_labelled(lengths, length, window, strategy, bos=bos, drops=drops)
        assert packed.to_table().to_pydict() == expected
        assert packed.select("mask").to_table().to_pydict() == {"mask": expected["mask"]}
        check_resume(lambda packed=packed: packed.batch(2))  # type: ignore[misc]


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_contracts_of_several_columns(strategy: Any) -> None:
    check_operator(
        lambda ds: ds.pack_sequences(THREE, 9, strategy=strategy, window_rows=4, bos=1),
        pa.Table.from_batches([labelled(LENGTHS)]),
        parts_differ=True,
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_documents_whose_columns_differ_in_length_are_bad(strategy: Any, tmp_path: Path) -> None:
    table = pa.table({"tokens": [[1], [2, 2], [3], None, [5] * 5], "mask": [[0], [1], [2], [3], [4] * 5]})

    def packed(**given: Any) -> af.Dataset:
        ds = af.from_arrow(table).pack_sequences(["tokens", "mask"], 4, strategy=strategy, window_rows=2)
        return ds.with_options(af.Options(**given))

    told = ["document 1 of window 0", "2 in 'tokens', 1 in 'mask'", "equal lengths"]
    refused(af.DataError, lambda: batches_of(packed()), "pack_sequences", *told)
    folder = str(tmp_path / "bad")
    with iter(packed(on_error="quarantine", quarantine=folder)) as run:
        rows = [row for batch in run for row in batch.to_pylist()]
        assert run.stats().skipped_rows == 2
    good = naive([[1], None, [3], None, [5] * 5], 4, 2, strategy)
    assert [row["tokens"] for row in rows] == padded(good, 4, 0)["tokens"]
    kept = af.read_quarantine(folder).to_table()
    assert sorted(kept["mask"].to_pylist()) == [[1], [3]]
    check_resume(lambda: packed(on_error="skip"))


def test_documents_that_are_too_long_are_bad_if_they_shall_not_be_cut() -> None:
    ds = af.from_arrow(pa.table({"tokens": [[1, 2], [3] * 4, [5] * 3]}))
    raising = ds.pack_sequences("tokens", 3, overlong="raise")
    refused(af.DataError, lambda: batches_of(raising), "document 1 of window 0 has 4", "at most 3", "'drop'")
    skipping = raising.with_options(af.Options(on_error="skip"))
    assert skipping.to_table()["tokens"].to_pylist() == [[1, 2, 0], [5, 5, 5]]
    begun = ds.pack_sequences("tokens", 3, bos=0, overlong="raise")
    refused(af.DataError, lambda: batches_of(begun), "at most 3 with its bos")


def test_documents_without_tokens_do_not_hold_windows_up() -> None:
    """Windows without a full row yield nothing, and what they leave is cut later."""
    documents: Documents = [[1], [], None, [2], [], [], [3, 4, 5, 6], [], [7]]
    ds = af.from_arrow(pa.table({"tokens": pa.array(documents, pa.list_(pa.int64()))}))
    packed = ds.pack_sequences("tokens", 4, strategy="concat_then_split", window_rows=2)
    assert packed.to_table().to_pydict() == padded(naive_cut(documents, 4), 4, 0)
    assert sizes(packed) == [1, 1]
    check_resume(lambda: packed)


@hypothesis.settings(max_examples=scaled(100))
@hypothesis.given(st.lists(st.integers(1, 50), max_size=60), st.booleans())
def test_each_size_goes_into_the_first_or_the_fullest_bin_with_room(drawn: list[int], best: bool) -> None:
    found = (best_fit_decreasing if best else first_fit_decreasing)(np.array(drawn, np.int64), 50)
    left: list[int] = []
    for index in sorted(range(len(drawn)), key=lambda index: -drawn[index]):
        bins = [number for number, room in enumerate(left) if room >= drawn[index]]
        if not bins:
            left.append(50)
        number = min(bins, key=lambda each: left[each] if best else each, default=len(left) - 1)
        left[number] -= drawn[index]
        assert found[index] == number


@pytest.mark.parametrize("strategy", STRATEGIES[:2])
def test_rows_are_full(strategy: Any) -> None:
    """At least 98 % of the places hold tokens, of documents of 50 to 1,500 tokens in rows of 2,048."""
    lengths = np.random.default_rng(3).integers(50, 1501, 4_096)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = pa.array(np.arange(offsets[-1], dtype=np.int32))
    tokens = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
    packed = af.from_arrow(pa.table({"tokens": tokens})).pack_sequences("tokens", 2048, strategy=strategy)
    places = filled = 0
    seen = np.zeros(offsets[-1], np.int64)
    for batch in packed:
        segments = batch.column("segment_ids").flatten().to_numpy()
        rows = batch.column("tokens").flatten().to_numpy()
        seen += np.bincount(rows[segments > 0], minlength=len(seen))
        places += len(segments)
        filled += int((segments > 0).sum())
    assert (seen == 1).all()
    assert filled / places >= 0.98


def test_types_and_names() -> None:
    ds = af.from_arrow(pa.table({"t": pa.array([[1.5], [2.5, 3.5]], pa.list_(pa.float32()))}))
    packed = ds.pack_sequences("t", 4, pad_value=0.25, segment_ids="s", positions=None)
    assert packed.schema == pa.schema([("t", pa.list_(pa.float32(), 4)), ("s", pa.list_(pa.int32(), 4))])
    assert packed.to_table().to_pydict() == {"t": [[1.5, 2.5, 3.5, 0.25]], "s": [[1, 2, 2, 0]]}
    alone = ds.pack_sequences("t", 2, segment_ids=None, positions=None)
    assert [batch["t"].shape for batch in alone.to_numpy()] == [(2, 2)]


def test_batches_of_a_wanted_size_come_from_batch() -> None:
    packed = af.from_arrow(DOCUMENTS).pack_sequences("tokens", 5, window_rows=4)
    assert sizes(packed.batch(4))[:-1] == [4] * (sum(sizes(packed)) // 4)
    refused(af.PlanError, lambda: packed.shuffle(3), "write .shuffle(3).pack_sequences(…)")
    refused(af.PlanError, lambda: packed.take(3), "write .take(3).pack_sequences(…)")


def test_a_null_token_is_an_error() -> None:
    ds = af.from_arrow(pa.table({"tokens": [[1, 2], [3, None]]})).pack_sequences("tokens", 4)
    refused(af.DataError, lambda: batches_of(ds), "pack_sequences", "'tokens'", "1 nulls")


def test_what_does_not_fit_the_columns() -> None:
    table = DOCUMENTS.append_column("id", pa.array(range(17), pa.int64()))
    ds = af.from_arrow(table)
    packed = ds.pack_sequences("tokens", 4)
    assert packed.schema.field("id").type == pa.list_(pa.int64())
    refused(
        af.PlanError,
        lambda: ds.pack_sequences("tokens", 4, positions="id").schema,
        "'id' already",
        "positions=",
    )
    refused(af.PlanError, lambda: ds.pack_sequences("token", 4).schema, "did you mean 'tokens'")
    refused(af.PlanError, lambda: ds.select("id").pack_sequences("id", 4).schema, "lists of numbers", "int64")
    only = ds.select("tokens")
    refused(
        af.PlanError, lambda: only.pack_sequences("tokens", 4, pad_value=0.5).schema, "pad_value", "int32"
    )
    refused(af.PlanError, lambda: only.pack_sequences("tokens", 4, bos=0.5).schema, "bos", "'tokens' (int32)")
    refused(af.PlanError, lambda: only.pack_sequences("tokens", 4, pad_value=1 << 31).schema, "pad_value")


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ({"length": 0}, ["length"]),
        ({"length": 2.0}, ["length"]),
        ({"length": 1 << 40}, ["length", "at most"]),
        ({"window_rows": 1 << 70}, ["window_rows", "at most"]),
        ({"columns": 3}, ["names of columns"]),
        ({"columns": None}, ["column"]),
        ({"columns": []}, ["at least one"]),
        ({"columns": ["tokens", "tokens"]}, ["different names"]),
        ({"window_rows": 0}, ["window_rows"]),
        ({"strategy": "first"}, ["strategy", "'first_fit', 'best_fit' or 'concat_then_split'"]),
        ({"overlong": "skip"}, ["overlong", "'cut', 'drop' or 'raise'"]),
        ({"overlong": "drop", "strategy": "concat_then_split"}, ["cuts documents of any length"]),
        ({"bos": "<s>"}, ["bos", "number"]),
        ({"bos": {"labels": 1}}, ["bos", "'labels'", "not packed"]),
        ({"bos": {"tokens": 1}, "columns": ["tokens", "mask"]}, ["bos", "None", "'mask'"]),
        ({"pad_value": None}, ["pad_value"]),
        ({"pad_value": True}, ["pad_value"]),
        ({"positions": "tokens"}, ["different names"]),
        ({"segment_ids": "positions"}, ["different names"]),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], texts: list[str]) -> None:
    ds = af.from_arrow(DOCUMENTS)
    given: dict[str, Any] = {"columns": "tokens", "length": 4} | arguments
    refused(af.PlanError, lambda: ds.pack_sequences(**given), "pack_sequences", *texts)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_above_a_map_the_schema_is_checked_on_the_way(strategy: Any) -> None:
    table = DOCUMENTS.append_column("id", pa.array(range(17), pa.int64()))
    table = table.append_column("flags", pa.array([[True]] * 17))
    ds = af.from_arrow(table)

    def packed(*columns: str, name: str = "tokens", **arguments: Any) -> af.Dataset:
        hidden = ds.select(*columns).map(lambda batch: batch)
        return hidden.pack_sequences(name, 4, strategy=strategy, **arguments)

    assert (
        packed("tokens")
        .to_table()
        .equals(ds.select("tokens").pack_sequences("tokens", 4, strategy=strategy).to_table())
    )
    for texts, dataset in [
        (["'id' already"], packed("tokens", "id", positions="id")),
        (["did you mean 'tokens'"], packed("tokens", name="token")),
        (["lists of numbers", "bool"], packed("flags", name="flags")),
        (["lists of numbers", "int64"], packed("id", name="id")),
        (["pad_value", "int32"], packed("tokens", pad_value=1.5)),
        (["pad_value", "int32"], packed("tokens", pad_value=1 << 40)),
    ]:
        refused(af.PlanError, partial(batches_of, dataset), "pack_sequences", *texts)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, np.float32(0.5), np.int64(3)])
def test_any_number_is_padding_and_goes_into_a_state(value: Any) -> None:
    ds = af.from_arrow(pa.table({"x": [[1.0], [2.0, 3.0], [4.0]]}))
    check_resume(lambda: ds.pack_sequences("x", 2, pad_value=value, window_rows=1))
    padding = ds.pack_sequences("x", 2, pad_value=value, window_rows=1).to_table()["x"].to_pylist()[0][1]
    assert str(padding) == str(float(value))


def test_padding_is_no_larger_than_its_type() -> None:
    ds = af.from_arrow(pa.table({"x": pa.array([[1.0]], pa.list_(pa.float32()))}))
    refused(af.PlanError, lambda: ds.pack_sequences("x", 2, pad_value=1e300).schema, "pad_value", "float")


def test_expressions_above_see_the_rows() -> None:
    packed = af.from_arrow(DOCUMENTS).pack_sequences("tokens", 5, window_rows=4)
    lengths = packed.with_columns(n=pl.col("segment_ids").arr.max()).select("n").to_table()
    assert lengths.num_rows == sum(sizes(packed))

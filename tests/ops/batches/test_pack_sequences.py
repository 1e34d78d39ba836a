"""`pack_sequences`: documents into rows of one length."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import hypothesis
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.ops.batches.packing import first_fit_decreasing
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
STRATEGIES = ["first_fit", "concat_then_split"]


def naive_first_fit(documents: Documents, length: int, window: int) -> list[list[list[int]]]:
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
            size = len(pieces[number])
            found = next((one for one in bins if sum(len(pieces[i]) for i in one) + size <= length), None)
            if found is None:
                bins.append([number])
            else:
                found.append(number)
        rows += [[pieces[number] for number in one] for one in sorted(map(sorted, bins))]
    return rows


def naive_cut(documents: Documents, length: int) -> list[list[list[int]]]:
    owned = [(number, token) for number, document in enumerate(documents) for token in document or []]
    return [
        [[token for _, token in piece] for _, piece in itertools.groupby(row, key=lambda pair: pair[0])]
        for row in (owned[start : start + length] for start in range(0, len(owned), length))
    ]


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


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("length", "window"), [(9, 4), (4, 1), (30, 3), (5, 100)])
def test_contracts(strategy: Any, length: int, window: int) -> None:
    check_operator(
        lambda ds: ds.pack_sequences("tokens", length, strategy=strategy, window_rows=window),
        DOCUMENTS,
        parts_differ=True,
        in_full=(length, window) == (9, 4),
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


@hypothesis.settings(max_examples=scaled(60))
@hypothesis.given(
    documents=st.lists(st.none() | st.lists(st.integers(0, 9), max_size=12), max_size=20),
    length=st.integers(1, 10),
    window=st.integers(1, 8),
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(any),
    large=st.booleans(),
)
def test_the_rows_are_those_of_the_definition(
    documents: Documents, length: int, window: int, sizes: list[int], large: bool
) -> None:
    type = pa.large_list(pa.int16()) if large else pa.list_(pa.int16())
    schema = pa.schema([("tokens", type)])
    batch = pa.record_batch([pa.array(documents, type)], schema=schema)
    ds = chunked([cut(batch, sizes)], schema)
    for strategy, rows in {
        "first_fit": naive_first_fit(documents, length, window),
        "concat_then_split": naive_cut(documents, length),
    }.items():
        packed = ds.pack_sequences(
            "tokens",
            length,
            strategy=strategy,  # type: ignore[arg-type]
            window_rows=window,
            pad_value=-1,
        )
        assert packed.to_table().to_pydict() == padded(rows, length, -1)


@hypothesis.settings(max_examples=scaled(15))
@hypothesis.given(
    lengths=st.lists(st.integers(0, 12), max_size=14),
    length=st.integers(1, 9),
    window=st.integers(1, 5),
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any),
    strategy=st.sampled_from(STRATEGIES),
)
def test_it_resumes_from_every_step(
    lengths: list[int], length: int, window: int, sizes: list[int], strategy: Any
) -> None:
    documents = [list(range(100 * i, 100 * i + size)) for i, size in enumerate(lengths)]
    schema = DOCUMENTS.schema
    batch = pa.record_batch([pa.array(documents, schema.types[0])], schema=schema)
    check_resume(
        lambda: (
            chunked([cut(batch, sizes)], schema)
            .pack_sequences("tokens", length, strategy=strategy, window_rows=window)
            .batch(2)
        )
    )


def test_documents_without_tokens_do_not_hold_windows_up() -> None:
    """Windows without a full row yield nothing, and what they leave is cut later."""
    documents: Documents = [[1], [], None, [2], [], [], [3, 4, 5, 6], [], [7]]
    ds = af.from_arrow(pa.table({"tokens": pa.array(documents, pa.list_(pa.int64()))}))
    packed = ds.pack_sequences("tokens", 4, strategy="concat_then_split", window_rows=2)
    assert packed.to_table().to_pydict() == padded(naive_cut(documents, 4), 4, 0)
    assert sizes(packed) == [1, 1]
    check_resume(lambda: packed)


@hypothesis.settings(max_examples=scaled(100))
@hypothesis.given(st.lists(st.integers(1, 50), max_size=60))
def test_each_size_goes_into_the_first_bin_with_room(drawn: list[int]) -> None:
    found = first_fit_decreasing(np.array(drawn, np.int64), 50)
    left: list[int] = []
    for index in sorted(range(len(drawn)), key=lambda index: -drawn[index]):
        bins = [number for number, room in enumerate(left) if room >= drawn[index]]
        if not bins:
            left.append(50)
        number = bins[0] if bins else len(left) - 1
        left[number] -= drawn[index]
        assert found[index] == number


def test_rows_are_full_with_first_fit() -> None:
    """At least 98 % of the places hold tokens, of documents of 50 to 1,500 tokens in rows of 2,048."""
    lengths = np.random.default_rng(3).integers(50, 1501, 16_384)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = pa.array(np.arange(offsets[-1], dtype=np.int32))
    tokens = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
    packed = af.from_arrow(pa.table({"tokens": tokens})).pack_sequences("tokens", 2048)
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
    refused(af.PlanError, lambda: ds.pack_sequences("tokens", 4).schema, "'id'", "select('tokens')")
    assert ds.select("tokens").pack_sequences("tokens", 4).schema.names[0] == "tokens"
    refused(af.PlanError, lambda: ds.pack_sequences("token", 4).schema, "did you mean 'tokens'")
    refused(af.PlanError, lambda: ds.select("id").pack_sequences("id", 4).schema, "lists of numbers", "int64")
    only = ds.select("tokens")
    refused(
        af.PlanError, lambda: only.pack_sequences("tokens", 4, pad_value=0.5).schema, "pad_value", "int32"
    )
    refused(af.PlanError, lambda: only.pack_sequences("tokens", 4, pad_value=1 << 31).schema, "pad_value")


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ({"length": 0}, ["length"]),
        ({"length": 2.0}, ["length"]),
        ({"length": 1 << 40}, ["length", "at most"]),
        ({"window_rows": 1 << 70}, ["window_rows", "at most"]),
        ({"column": 3}, ["names of columns"]),
        ({"column": None}, ["column"]),
        ({"window_rows": 0}, ["window_rows"]),
        ({"strategy": "best_fit"}, ["strategy", "first_fit, concat_then_split"]),
        ({"pad_value": None}, ["pad_value"]),
        ({"pad_value": True}, ["pad_value"]),
        ({"positions": "tokens"}, ["different names"]),
        ({"segment_ids": "positions"}, ["different names"]),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], texts: list[str]) -> None:
    ds = af.from_arrow(DOCUMENTS)
    given: dict[str, Any] = {"column": "tokens", "length": 4} | arguments
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
        (["'id'", "select('tokens')"], packed("tokens", "id")),
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

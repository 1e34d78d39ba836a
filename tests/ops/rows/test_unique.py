"""`unique`: the first row of each key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.ops.rows.unique import Keys, SeenKeys, different
from arrowflow.plan.traits import Resume
from arrowflow.testing import batches_of, check_operator, check_resume, chunked, cut
from tests.effort import scaled
from tests.ops.tables import ALL_TYPES, NUMBERS, Apply, identity, numbers, refused, rows_of, stands_for_all

pytestmark = pytest.mark.any_version

INTERVAL = pa.month_day_nano_interval()
KEYS = NUMBERS.append_column("key", pa.array([None if i % 5 == 3 else i % 4 for i in range(17)], pa.int32()))
KEYS = KEYS.append_column("text", pa.array([None if i % 3 == 0 else "ab"[i % 2] for i in range(17)]))

CASES: dict[str, Apply] = {
    "one column": lambda ds: ds.unique("key"),
    "all columns, one wanted": lambda ds: ds.select("key", "text").unique().select("text"),
    "all columns, repeated": lambda ds: ds.select("key", "text", "x").repeat(3).unique(),
    "repeated": lambda ds: ds.unique("key", max_rows=100).take(4).repeat(2).batch(3),
    "in pieces": lambda ds: ds.unique("key").with_options(af.Options(max_chunk_rows=2)).map_rows(same),
    "shuffled": lambda ds: ds.shuffle(9, seed=3).unique(["key", "text"]),
}


def same(row: dict[str, Any]) -> dict[str, Any]:
    return {"row": row["row"]}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(
        CASES[case],
        KEYS,
        splits_matter=case == "in pieces",
        epochs_differ=case == "shuffled",
        in_full=stands_for_all(case, CASES),
    )


KINDS = {name: ALL_TYPES for name in ALL_TYPES.schema.names if name not in ("map", "fixed", "half")}


@pytest.mark.parametrize("column", [*KINDS, "x", "b"])
def test_it_keeps_what_polars_keeps(column: str) -> None:
    table = KINDS.get(column, NUMBERS)
    both = af.from_arrow(pa.concat_tables([table, table.slice(3, 5)]))
    inside = both.select("row", pl.col(column).alias("key"))
    batch = inside.to_table().combine_chunks()
    frame = pl.DataFrame(batch)
    if column in ("large_list", "list", "vector", "struct"):
        seen: dict[str, int] = {}
        for place, value in enumerate(batch.column("key").to_pylist()):
            seen.setdefault(repr(value), place)
        expected = frame["row"].gather(list(seen.values())).to_list()
    else:
        expected = frame.unique("key", keep="first", maintain_order=True)["row"].to_list()
    assert rows_of(inside.unique("key")) == expected


def test_codes_of_dictionaries_are_not_compared() -> None:
    def batch(values: list[str | None], rows: list[int]) -> pa.RecordBatch:
        return pa.record_batch({"k": pa.array(values).dictionary_encode(), "row": rows})

    chunks = [batch(["a", "b", None], [0, 1, 2]), batch(["b", "c", None], [3, 4, 5])]
    assert rows_of(chunked([chunks], chunks[0].schema).unique("k")) == [0, 1, 2, 4]


def test_zeros_and_nans_are_equal_whatever_their_bits() -> None:
    nan = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)
    table = pa.table({"x": np.array([0.0, -0.0, nan[0], nan[1], 1.0]), "row": range(5)})
    assert rows_of(af.from_arrow(table).unique("x")) == [0, 2, 4]


@settings(max_examples=scaled(40))
@given(data=st.data())
def test_random_keys(data: Any) -> None:
    keys = data.draw(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["", "a", None])), max_size=60))
    table = pa.table(
        {
            "a": pa.array([a for a, _ in keys], pa.int64()),
            "b": pa.array([b for _, b in keys], pa.string()),
            "row": pa.array(range(len(keys)), pa.int64()),
        }
    )
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    chunks = [] if not keys else cut(table.combine_chunks().to_batches()[0], sizes)
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    assert rows_of(chunked([chunks], table.schema).unique(["a", "b"])) == sorted(first.values())


# ------------------------------------------------------------------------------------------ keys


@settings(max_examples=scaled(100))
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12), max_size=12)
)
def test_keys_that_share_a_half_are_told_apart(chunks: list[list[tuple[int, int]]]) -> None:
    """With hashes of two bits each half is shared by many."""
    seen = SeenKeys()
    known: set[tuple[int, int]] = set()
    for chunk in chunks:
        keys, rows = different(*(np.array(half, np.uint64) for half in zip(*chunk, strict=True)))
        assert {(int(a), int(b)): int(row) for a, b, row in zip(*keys, rows, strict=True)} == {
            pair: chunk.index(pair) for pair in chunk
        }
        new = seen.missing(keys)
        found = {(int(a), int(b)) for a, b in zip(keys.first[new], keys.second[new], strict=True)}
        assert found == set(chunk) - known
        if found:
            seen.add(Keys(keys.first[new], keys.second[new]))
        known |= found
    assert seen.num_keys == len(known)


def test_there_are_few_arrays() -> None:
    seen = SeenKeys()
    parts = [np.arange(start, start + 100, dtype=np.uint64) for start in range(0, 64_000, 100)]
    for part in parts:
        seen.add(Keys(part, part))
    assert len(seen._parts) <= 10
    assert seen.num_keys == sum(len(part.first) for part in seen._parts) == 64_000
    assert not any(seen.missing(Keys(part, part)).any() for part in parts)


# ------------------------------------------------------------------------------------------ limits


def test_one_key_too_many_is_an_error_behind_those_that_fit() -> None:
    for sizes in ([4, 4], [1] * 8, [8]):
        ds = numbers(*sizes).unique(max_rows=5)
        found: list[int] = []
        with iter(ds) as iterator, pytest.raises(af.BudgetError) as caught:
            found.extend(row for batch in iterator for row in batch["row"].to_pylist())
        assert found == [0, 1, 2, 3, 4]
        assert "unique: " in str(caught.value) and "max_rows=5" in str(caught.value)
    assert rows_of(numbers(8).unique(max_rows=5).take(5)) == [0, 1, 2, 3, 4]
    assert rows_of(numbers(8).repeat(3).unique(max_rows=8)) == list(range(8))


def test_it_says_how_it_resumes_and_what_it_holds() -> None:
    ds = numbers(8).unique(max_rows=1000)
    assert ds._ready().bound.traits.resume is Resume.REPLAY
    assert "hold up to 1,000 keys, 16,000 bytes" in ds.explain()
    with iter(numbers(2, 2).unique(max_rows=5)) as iterator:
        next(iterator)
        state = iterator.state_dict()
    with iter(numbers(2, 2).unique(max_rows=6)) as iterator:
        iterator.load_state_dict(state)
        assert [batch["row"].to_pylist() for batch in iterator] == [[2, 3]]


def test_a_larger_limit_goes_on_behind_the_keys_that_fit() -> None:
    with iter(numbers(8).unique(max_rows=5)) as iterator:
        next(iterator)
        state = iterator.state_dict()
    with iter(numbers(8).unique(max_rows=6)) as iterator:
        iterator.load_state_dict(state)
        assert next(iterator)["row"].to_pylist() == [5]
        refused(af.BudgetError, lambda: next(iterator), "max_rows=6")


def test_nothing_moves_across_it() -> None:
    table = pa.table({"key": [1, 1, 2, 2], "row": range(4)})
    assert rows_of(af.from_arrow(table).unique("key").filter(pl.col("row") % 2 == 1)) == []
    assert rows_of(af.from_arrow(table).filter(pl.col("row") % 2 == 1).unique("key")) == [1, 3]


def test_above_a_map_the_schema_is_checked_on_the_way() -> None:
    ds = af.from_arrow(ALL_TYPES).map(identity)
    assert rows_of(ds.unique("row")) == list(range(11))
    refused(af.PlanError, lambda: batches_of(ds.unique("rows")), "unique", "did you mean 'row'")
    refused(af.PlanError, lambda: batches_of(ds.unique()), "unique", "key")


@pytest.mark.parametrize("column", ["map", "fixed", "half"])
def test_types_that_are_no_keys(column: str) -> None:
    ds = af.from_arrow(ALL_TYPES)
    refused(af.PlanError, lambda: ds.unique(column).schema, "unique", column, "key")
    refused(af.PlanError, lambda: batches_of(ds.map(identity).unique(column)), "unique", column, "key")


@pytest.mark.parametrize("type", [INTERVAL, pa.list_(INTERVAL), pa.struct([("a", INTERVAL)])])
def test_intervals_are_no_keys(type: pa.DataType) -> None:
    """Polars does not know them, and panics."""
    ds = af.from_arrow(pa.table({"x": pa.nulls(2, type)}))
    refused(af.PlanError, lambda: batches_of(ds.unique()), "unique", "'x'", "key")


def test_bad_arguments() -> None:
    refused(af.PlanError, lambda: numbers(3).unique("roww").schema, "unique", "'row'")
    refused(af.PlanError, lambda: numbers(3).unique([]), "unique", "name")
    refused(af.PlanError, lambda: numbers(3).unique(max_rows=0), "unique", "max_rows")
    refused(af.PlanError, lambda: numbers(3).batch(2).unique(), "unique", "batch")


def test_chunks_that_others_left_empty() -> None:
    """They are no record batches, but what one was to be made of."""
    assert rows_of(numbers(1, 1, 1, 1).shard(2, 1).unique("row")) == [1, 3]


def test_random_functions_after_it_resume_with_their_numbers(tmp_path: Path) -> None:
    """A resume in the middle of a split passes on the end of the split before it, without rows."""

    def noisy(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
        return batch.append_column("noise", pa.array(rng.random(batch.num_rows)))

    with pq.ParquetWriter(tmp_path / "rows.parquet", pa.schema({"key": pa.int64()})) as writer:
        for start, stop in ((0, 3), (3, 8), (8, 12)):
            writer.write_table(pa.table({"key": range(start, stop)}))
    ds = af.read_parquet(tmp_path).with_options(af.Options(max_chunk_rows=2))
    check_resume(lambda: ds.unique("key").map(noisy, seed=1))

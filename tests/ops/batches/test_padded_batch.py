"""`padded_batch`: batches whose lists have one length; what becomes of null lists, of nulls in them, of long ones."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.ops.batches.padding import lengths_of
from arrowflow.testing import batches_of, check_dataset, check_operator, check_resume
from tests.ops.tables import ALL_TYPES, refused, sizes

pytestmark = pytest.mark.any_version

COUNTS = [3, 0, 1, 5, 2, 2, 0, 4, 1, 1, 7, 0, 3]


def column(make: Callable[[int], Any], type: pa.DataType, *, null_at: int | None = 6) -> pa.Array:
    values = [[make(10 * row + i) for i in range(count)] for row, count in enumerate(COUNTS)]
    return pa.array([None if row == null_at else value for row, value in enumerate(values)], pa.list_(type))


TABLE = pa.table(
    {
        "row": pa.array(range(13)),
        "tokens": column(lambda i: i, pa.int32()),
        "flags": column(lambda i: i % 3 == 0, pa.bool_()),
        "words": column(lambda i: f"w{i}", pa.string(), null_at=None),
        "holes": column(lambda i: None if i % 4 == 1 else i / 2, pa.float64()),
        "deep": column(lambda i: None if i % 7 == 6 else list(range(i % 3)), pa.list_(pa.int16())),
        "vectors": column(lambda i: [i, -i], pa.list_(pa.float32(), 2)),
        "text": pa.array([None if row == 4 else "x" * row for row in range(13)]),
    }
)
"""List columns of every shape, with empty and null lists; and columns that are no lists."""

ZEROS: dict[str, Any] = {"tokens": 0, "flags": False, "words": "", "holes": 0.0, "vectors": [0.0, 0.0]}


def tokens(*rows: list[int] | None) -> af.Dataset:
    return af.from_arrow(pa.table({"tokens": pa.array(rows, pa.list_(pa.int32()))}))


@pytest.mark.parametrize(
    ("size", "drop_remainder"), [(4, False), (4, True), (1, True), (13, False), (14, True)]
)
def test_contracts(size: int, drop_remainder: bool) -> None:
    check_operator(
        lambda ds: ds.padded_batch(size, lengths={"tokens": "n", "deep": "m"}, drop_remainder=drop_remainder),
        TABLE,
        in_full=size == 4,
    )


def test_contracts_with_everything_set() -> None:
    check_operator(
        lambda ds: ds.padded_batch(
            5,
            padded_shapes={"tokens": 3, "deep": (None, 2), "words": None},
            padding_values={"tokens": -1, "words": "<pad>"},
            multiple_of=4,
            truncate=True,
            lengths={"tokens": "n"},
            num_parallel_calls=2,
        ),
        TABLE,
    )


def test_contracts_on_all_types() -> None:
    check_dataset(lambda: af.from_arrow(ALL_TYPES).padded_batch(3))


def padded_by_hand(rows: list[list[Any] | None], length: int, value: Any) -> list[list[Any]]:
    return [(row or []) + [value] * (length - len(row or [])) for row in rows]


@pytest.mark.parametrize("name", ZEROS)
def test_lists_have_the_length_of_the_longest(name: str) -> None:
    ds = af.from_arrow(TABLE).select(name)
    for number, batch in enumerate(batches_of(ds.padded_batch(4))):
        rows = TABLE[name].to_pylist()[4 * number : 4 * number + 4]
        longest = max(len(row or []) for row in rows)
        assert batch.schema.field(name).type == TABLE.schema.field(name).type
        assert batch[name].to_pylist() == padded_by_hand(rows, longest, ZEROS[name])


def test_lists_of_lists_become_boxes() -> None:
    ds = af.from_arrow(pa.table({"x": pa.array([[[1], [2, 3]], [], [None, [4, 5, 6]]])}))
    (batch,) = ds.padded_batch(3).to_numpy()
    assert batch["x"].tolist() == [
        [[1, 0, 0], [2, 3, 0]],
        [[0, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [4, 5, 6]],
    ]
    (fixed,) = ds.padded_batch(3, padded_shapes={"x": (3, 4)}, padding_values=9).to_numpy()
    assert fixed["x"].shape == (3, 3, 4)
    assert fixed["x"][0].tolist() == [[1, 9, 9, 9], [2, 3, 9, 9], [9] * 4]


def test_a_given_length_is_in_the_schema() -> None:
    ds = tokens([1], [2, 3]).padded_batch(2, padded_shapes={"tokens": [4]})
    assert ds.schema.field("tokens").type == pa.list_(pa.int32(), 4)
    assert [batch["tokens"].tolist() for batch in ds.to_numpy()] == [[[1, 0, 0, 0], [2, 3, 0, 0]]]
    assert tokens([1]).padded_batch(2, padded_shapes={"tokens": -1}).schema == tokens([1]).schema


def test_lengths_are_rounded_up() -> None:
    ds = tokens([1], [2] * 8, [3] * 9, []).padded_batch(1, multiple_of=8)
    assert [batch["tokens"].shape for batch in ds.to_numpy()] == [(1, 8), (1, 8), (1, 16), (1, 0)]


def test_values_go_to_all_columns_that_can_hold_them() -> None:
    ds = af.from_arrow(pa.table({"i": [[1], []], "f": [[0.5], []], "s": [["a"], []]}))
    assert ds.padded_batch(2, padding_values=-1).to_table().to_pydict() == {
        "i": [[1], [-1]],
        "f": [[0.5], [-1.0]],
        "s": [["a"], [""]],
    }
    by_column = ds.padded_batch(2, padding_values={"s": "-", "f": float("nan")}).to_table()
    assert by_column["s"].to_pylist() == [["a"], ["-"]]
    assert np.isnan(by_column["f"].to_pylist()[1][0])


def test_values_beyond_a_column_are_none_of_it() -> None:
    """The kind alone does not say it: an unsigned number is never -1."""
    columns = {"i": pa.array([[1], []], pa.list_(pa.int32())), "u": pa.array([[1], []], pa.list_(pa.uint8()))}
    ds = af.from_arrow(pa.table(columns))
    assert ds.padded_batch(2, padding_values=-1).to_table().to_pydict() == {"i": [[1], [-1]], "u": [[1], [0]]}
    wrong = ds.padded_batch(2, padding_values={"u": -1})
    refused(af.PlanError, lambda: wrong.schema, "padded_batch", "'u'", "uint8")
    floats = af.from_arrow(pa.table({"f": pa.array([[1.0], []], pa.list_(pa.float32()))}))
    for value in (1e300, {"f": -1e300}):
        beyond = floats.padded_batch(2, padding_values=value)
        refused(af.PlanError, partial(getattr, beyond, "schema"), "padded_batch", "f", "float")
    infinite = floats.padded_batch(2, padding_values=float("-inf")).to_table()
    assert infinite["f"].to_pylist() == [[1.0], [float("-inf")]]


@pytest.mark.parametrize("value", [np.int64(7), np.uint8(7), np.float32(7), {"x": np.int16(7)}])
def test_numbers_of_numpy_are_numbers(value: Any) -> None:
    floats = af.from_arrow(pa.table({"x": [[0.5], []]}))
    ds = floats.padded_batch(2, padding_values=value)
    assert ds.to_table()["x"].to_pylist() == [[0.5], [7.0]]
    assert "np." not in ds.explain()


@pytest.mark.parametrize("rules", [[], ["prune_columns"]])
def test_a_value_stays_where_its_columns_are_pruned(rules: list[str]) -> None:
    table = pa.table({"id": [1, 2, 3], "a": [[1], [2, 3], []], "s": [["x"], ["y", "z"], []]})
    ds = af.from_arrow(table).with_options(af.Options(disabled_rules=rules))
    bucketed = ds.bucket_by_sequence_length("s", [2], [2, 2], padding_values=-1)
    for padded in (ds.padded_batch(2, padding_values=-1), bucketed):
        assert sorted(padded.select("id").to_table()["id"].to_pylist()) == [1, 2, 3]
        assert padded.select("s").to_table().num_rows == 3
        seen = padded.map(lambda batch: batch, columns=["id"]).to_table()
        assert seen.schema.names == ["id"] and seen.num_rows == 3
    none = ds.padded_batch(2, padding_values=b"-").select("id")
    refused(af.PlanError, lambda: none.schema, "no column", "b'-'")


def test_a_null_list_is_all_padding_and_a_null_inside_stays() -> None:
    ds = tokens([1, 2], None, [3]).padded_batch(3, lengths={"tokens": "n"})
    (batch,) = ds.to_numpy()
    assert batch["tokens"].tolist() == [[1, 2], [0, 0], [3, 0]]
    assert batch["n"].tolist() == [2, 0, 1]
    holes = af.from_arrow(pa.table({"x": [[1, None], [2]]})).padded_batch(2)
    assert holes.to_table()["x"].to_pylist() == [[1, None], [2, 0]]
    refused(af.DataError, lambda: list(holes.to_numpy()), "'x'", "null")


def test_nothing_under_a_null_list_is_seen() -> None:
    """Arrow allows values there."""
    offsets = pa.array([0, 2, 5, 6], pa.int32()).buffers()[1]
    lists = pa.Array.from_buffers(
        pa.list_(pa.int64()), 3, [pa.py_buffer(b"\x05"), offsets], children=[pa.array([1, 2, 7, 7, 7, 3])]
    )
    assert lengths_of(lists).tolist() == [2, 0, 1]
    ds = af.from_arrow(pa.record_batch({"x": lists})).padded_batch(3)
    assert ds.to_table()["x"].to_pylist() == [[1, 2], [0, 0], [3, 0]]


def test_longer_lists_than_given_are_an_error_or_cut() -> None:
    ds = tokens([1], [1, 2, 3], [4, 5, 6, 7])
    shapes = {"tokens": 2}
    with iter(ds.padded_batch(1, padded_shapes=shapes)) as iterator:
        assert next(iterator)["tokens"].to_pylist() == [[1, 0]]
        refused(
            af.DataError,
            lambda: next(iterator),
            "padded_batch",
            "'tokens'",
            "3 values",
            "the 2",
            "truncate=True",
        )
    (batch,) = ds.padded_batch(3, padded_shapes=shapes, truncate=True, lengths={"tokens": "n"}).to_numpy()
    assert batch["tokens"].tolist() == [[1, 0], [1, 2], [4, 5]]
    assert batch["n"].tolist() == [1, 2, 2]


def test_rows_of_one_length_are_not_copied() -> None:
    lists = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64()))
    (batch,) = af.from_arrow(pa.table({"x": lists})).padded_batch(3).to_numpy()
    assert batch["x"].__array_interface__["data"][0] == lists.values.buffers()[1].address


def test_other_columns_and_rows_are_those_of_batch() -> None:
    plain = af.from_arrow(TABLE).select("row", "text")
    padded = af.from_arrow(TABLE).padded_batch(5).select("row", "text")
    assert [b.to_pydict() for b in plain.batch(5)] == [b.to_pydict() for b in padded]
    assert len(padded.to_polars()) == 3
    assert padded.num_rows == 13
    assert af.from_arrow(TABLE).padded_batch(5, drop_remainder=True).num_rows == 10


def test_what_is_named_may_be_left_out_above() -> None:
    """Pruning takes the column away, and what was said of it."""
    ds = af.from_arrow(TABLE).padded_batch(
        5, padded_shapes={"tokens": 9}, padding_values={"words": "-"}, lengths={"deep": "n", "holes": "m"}
    )
    assert ds.select("row", "n").to_table().to_pydict() == {
        "row": list(range(13)),
        "n": [len(row or []) for row in TABLE["deep"].to_pylist()],
    }
    assert ds.drop("tokens", "words").schema.names[-2:] == ["n", "m"]
    assert ds.select("tokens").schema.field("tokens").type == pa.list_(pa.int32(), 9)


def test_column_operators_stay_on_their_side() -> None:
    """An expression on a padded column sees the padding, whatever is below."""
    ds = tokens([1, 2, 3], [4], [], [5, 6]).with_columns(x=pl.lit(1)).shuffle(4, seed=1).padded_batch(4)
    above = ds.with_columns(n=pl.col("tokens").list.len(), y=pl.lit(2)).stack(both=["x", "y"])
    assert above.to_table()["n"].to_pylist() == [3] * 4


def test_above_a_map_the_schema_is_found_on_the_way() -> None:
    ds = tokens([1], [2, 3], [4, 5, 6]).map(lambda batch: batch).padded_batch(2, padding_values={"tokens": 7})
    assert [batch["tokens"].tolist() for batch in ds.to_numpy()] == [[[1, 7], [2, 3]], [[4, 5, 6]]]
    check_resume(lambda: ds)
    wrong = tokens([1]).map(lambda batch: batch).padded_batch(2, padded_shapes={"token": 3})
    refused(af.PlanError, lambda: list(wrong), "padded_batch", "'token'", "did you mean 'tokens'")


def test_it_is_a_batch_to_what_is_above() -> None:
    ds = tokens([1], [2, 3], [4, 5, 6]).padded_batch(2)
    refused(
        af.PlanError,
        lambda: ds.take(1),
        "write .take(1).padded_batch(2) for rows, .take(2).padded_batch(2) for batches",
    )
    assert sizes(ds.repeat(2)) == [2, 1, 2, 1]
    assert sizes(ds.batch(3)) == [3]


@given(
    rows=st.lists(st.none() | st.lists(st.integers(-9, 9), max_size=6), max_size=20),
    size=st.integers(1, 7),
    start=st.integers(0, 3),
)
def test_it_equals_padding_by_hand(rows: list[list[int] | None], size: int, start: int) -> None:
    table = pa.table({"x": pa.array(rows, pa.list_(pa.int8()))}).slice(start)
    left = rows[start:]
    found = [batch["x"].tolist() for batch in af.from_arrow(table).padded_batch(size).to_numpy()]
    expected = []
    for first in range(0, len(left), size):
        part = left[first : first + size]
        expected.append(padded_by_hand(part, max(len(row or []) for row in part), 0))
    assert found == expected


def test_decimals_and_times_are_padded() -> None:
    table = pa.table(
        {
            "d": pa.array([[decimal.Decimal("1.50")], []], pa.list_(pa.decimal128(9, 2))),
            "t": pa.array([[5], []], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
        }
    )
    found = af.from_arrow(table).padded_batch(2).to_table()
    assert found["d"].to_pylist()[1] == [decimal.Decimal("0.00")]
    assert found["t"].cast(pa.list_(pa.int32())).to_pylist() == [[5], [0]]


@pytest.mark.parametrize(
    ("texts", "arguments"),
    [
        (["batch_size"], {"batch_size": 0}),
        (["padded_shapes", "mapping"], {"padded_shapes": 3}),
        (["padded_shapes", "whole number"], {"padded_shapes": {"tokens": "3"}}),
        (["padded_shapes", "at least 1"], {"padded_shapes": {"tokens": 0}}),
        (["padded_shapes", "at most"], {"padded_shapes": {"tokens": 1 << 40}}),
        (["multiple_of"], {"multiple_of": 0}),
        (["multiple_of", "at most"], {"multiple_of": 1 << 63}),
        (["lengths", "mapping"], {"lengths": "n"}),
        (["lengths", "names"], {"lengths": {"tokens": 1}}),
        (["num_parallel_calls"], {"num_parallel_calls": 0}),
    ],
)
def test_bad_arguments(texts: list[str], arguments: dict[str, Any]) -> None:
    given = {"batch_size": 2, **arguments}
    refused(af.PlanError, lambda: tokens([1]).padded_batch(**given), "padded_batch", *texts)


@pytest.mark.parametrize(
    ("texts", "arguments"),
    [
        (["unknown column 'token'", "did you mean 'tokens'"], {"padded_shapes": {"token": 3}}),
        (["'row'", "only lists"], {"padding_values": {"row": 3}}),
        (["2 lengths", "1 level of lists"], {"padded_shapes": {"tokens": (3, 4)}}),
        (["'tokens'", "'x' is none"], {"padding_values": {"tokens": "x"}}),
        (["'tokens'", "int32"], {"padding_values": {"tokens": 1 << 40}}),
        (["no column", "b'x'"], {"padding_values": b"x"}),
        (["lengths", "'row' already"], {"lengths": {"tokens": "row"}}),
    ],
)
def test_what_does_not_fit_the_columns(texts: list[str], arguments: dict[str, Any]) -> None:
    refused(af.PlanError, lambda: af.from_arrow(TABLE).padded_batch(2, **arguments).schema, *texts)


def test_lists_without_padding_are_named() -> None:
    ds = af.from_arrow(pa.table({"x": [[{"a": 1}]]})).padded_batch(2)
    refused(af.PlanError, lambda: ds.schema, "'x'", "struct", "drop it")

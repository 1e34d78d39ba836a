"""`replace_strict` with a long mapping has the values and types that Polars gives, and is computed without Polars."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af

KEYS = 3_000
"""As many as make a constant long (`expr/parse/lifted.py`)."""
NUMBERS = [pl.Int8, pl.UInt8, pl.Int32, pl.UInt32, pl.Int64, pl.UInt64]
NEW = {
    "ints": pl.Series(np.arange(KEYS) * 7 - 9),
    "small": pl.Series(np.arange(KEYS) % 100, dtype=pl.Int16),
    "floats": pl.Series(np.arange(KEYS) / 3, dtype=pl.Float32),
    "texts": pl.Series([f"new {number}" for number in range(KEYS)]),
    "flags": pl.Series(np.arange(KEYS) % 3 == 0),
    "dates": pl.Series(np.arange(KEYS)).cast(pl.Date),
    "nulls": pl.Series([None if number % 5 else number for number in range(KEYS)]),
    "codes": pl.Series(["a", "b", "c"] * (KEYS // 3), dtype=pl.Enum(["a", "b", "c"])),
}

KINDS, DEFAULTS = ("numbers", "texts"), ("none", "null", "value")


def both(frame: pl.DataFrame, expr: pl.Expr) -> tuple[pl.Series, str]:
    """Returns what arrowflow gives, compared with what Polars gives, and who computed it."""
    rows = af.from_arrow(frame).with_columns(y=expr)
    found = pl.DataFrame(pl.from_arrow(rows.batch(97).to_table()))["y"]
    expected = frame.select(y=expr)["y"]
    assert found.to_list() == expected.to_list()
    if expected.dtype != pl.Enum:
        assert found.dtype == expected.dtype
    return found, rows.explain()


def made_by(text: str) -> str:
    """Returns the engine of the column `y`."""
    (line,) = [line for line in text.splitlines() if " y: " in line]
    return line.rpartition(" ")[2]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_whole_numbers_of_each_type(dtype: Any) -> None:
    limits = np.iinfo(str(dtype).lower())
    wide = np.random.default_rng(0).integers(limits.min, limits.max, KEYS, limits.dtype, endpoint=True)
    keys = np.unique(np.append(wide, np.array([limits.min, limits.max], limits.dtype)))
    new = pl.Series(np.arange(len(keys)) * 1.5)
    rng = np.random.default_rng(1)
    values = rng.choice(np.append(keys, rng.integers(limits.min, limits.max, 100, limits.dtype)), 1_000)
    frame = pl.DataFrame({"x": pl.Series(values, dtype=dtype)})
    expr = pl.col("x").replace_strict(pl.Series(keys, dtype=dtype), new, default=-1.0)
    _, text = both(frame, expr)
    assert made_by(text) == "arrow"


# Each type of values with one way, and one of them with each; codes are a dictionary, also where there is no default.
WAYS = [*((name, "texts", "value") for name in NEW), *(("nulls", *way) for way in product(KINDS, DEFAULTS))]
WAYS += [("codes", "numbers", "none"), ("codes", "texts", "null")]


@pytest.mark.parametrize(("name", "kind", "default"), dict.fromkeys(WAYS))
def test_new_values_of_each_type_with_nulls(name: str, kind: str, default: str) -> None:
    new = NEW[name]
    old = pl.Series(np.arange(KEYS) * 3)
    values = pl.Series([None if row % 11 == 0 else row * 3 % (3 * KEYS) for row in range(1_000)])
    if kind == "texts":
        old, values = old.cast(pl.String), values.cast(pl.String)
    given: dict[str, Any] = {
        "none": {},
        "null": {"default": None},
        "value": {"default": pl.lit(new[1], new.dtype)},
    }
    if default != "none":
        values = values.extend_constant("?" if kind == "texts" else -1, 4)
    _, text = both(pl.DataFrame({"x": values}), pl.col("x").replace_strict(old, new, **given[default]))
    if new.dtype != pl.Enum:
        assert made_by(text) == "arrow"


def test_types_that_differ_are_left_to_polars() -> None:
    keys = pl.Series(np.arange(KEYS))
    frame = pl.DataFrame({"x": pl.Series([1, 5, None, -4]), "z": [7, 8, 9, 10]})
    frame = frame.with_columns(large=pl.col("x").cast(pl.Float64))
    for expr in (
        pl.col("x").replace_strict(keys, keys, default=0.5),
        pl.col("x").replace_strict(keys, keys, default=pl.col("z")),
        pl.col("x").replace_strict(keys, keys, default=pl.coalesce(pl.all(), pl.lit(3))),
        pl.col("x").replace_strict(keys, keys, default=pl.sum_horizontal(pl.all(), pl.lit(3))),
        pl.col("x").replace_strict(keys.cast(pl.Int128), keys, default=None),
        pl.col("x").replace_strict(keys, keys, default=0, return_dtype=pl.Float32),
        pl.col("large").replace_strict(keys, keys, default=0),
        (pl.col("x") + 1).replace_strict(keys, keys, default=0),
        pl.col("x").replace_strict(keys.extend_constant(None, 1), pl.Series(np.arange(KEYS + 1)), default=0),
    ):
        _, text = both(frame, expr)
        assert made_by(text) == "polars"


def test_lists_mappings_names_and_one_value_for_all() -> None:
    frame = pl.DataFrame({"x": [1, 5, -4]})
    numbers = list(range(KEYS))
    for expr in (
        pl.col("x").replace_strict(numbers, numbers, default=-1),
        pl.col("x").replace_strict({number: str(number) for number in numbers}, default="none"),
        pl.col("x").replace_strict(numbers, 7, default=0).alias("other").alias("y"),
    ):
        _, text = both(frame, expr)
        assert made_by(text) == "arrow"


def test_a_value_without_a_new_one_and_a_value_twice_are_refused() -> None:
    frame = pl.DataFrame({"x": pl.Series([None, 5, -4])})
    keys = pl.Series(np.arange(KEYS))
    rows = af.from_arrow(frame)
    with pytest.raises(af.DataError, match=r"no new value for -4 of column 'x'; give default="):
        rows.select(pl.col("x").replace_strict(keys, keys)).to_table()
    twice = keys.clone()
    twice[7] = 5
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    texts = keys.cast(pl.String)
    with pytest.raises(af.DataError, match=r"no new value for b'\\xff'"):
        af.from_arrow(pa.table({"x": bad})).select(pl.col("x").replace_strict(texts, keys)).to_table()
    lists = pl.lit(pl.Series([numbers := list(range(KEYS)), numbers]))
    with pytest.raises(af.DataError, match="different lengths"):
        rows.select(pl.col("x").replace_strict(lists, lists, default=0)).to_table()
    with pytest.raises(af.DataError, match="the mapping has 5 twice"):
        rows.select(pl.col("x").replace_strict(twice, keys, default=0)).to_table()


def test_rows_are_those_of_any_borders() -> None:
    keys = pl.Series(np.arange(KEYS))
    rows = af.range(10_000).with_columns(y=pl.col("id").replace_strict(keys, keys * 2, default=-1))
    ids = np.arange(10_000)
    assert (rows.to_table()["y"].to_numpy() == np.where(ids < KEYS, ids * 2, -1)).all()

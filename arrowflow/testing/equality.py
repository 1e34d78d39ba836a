"""Equality of two streams of batches: types, validity, and valid values.

Memory under a null does not count, and a NaN equals another NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa


def assert_same_values(found: pa.Array, expected: pa.Array, what: str = "values") -> None:
    """Raises `AssertionError` unless two arrays have the same type, validity and valid values.

    Examples:
        >>> assert_same_values(pa.array([1.0, float("nan")]), pa.array([1.0, float("nan")]))
        >>> assert_same_values(pa.array([1, 2]), pa.array([1, None]))
        Traceback (most recent call last):
        AssertionError: values: row 1 is 2, expected None
    """
    if found.type != expected.type:
        raise AssertionError(f"{what}: found {found.type}, expected {expected.type}")
    if len(found) != len(expected):
        raise AssertionError(f"{what}: found {len(found)} rows, expected {len(expected)}")
    if found.equals(expected):
        return
    for row, (mine, theirs) in enumerate(zip(found.to_pylist(), expected.to_pylist(), strict=True)):
        if not _same(mine, theirs):
            raise AssertionError(f"{what}: row {row} is {mine!r}, expected {theirs!r}")


def assert_same_batch(found: pa.RecordBatch, expected: pa.RecordBatch, what: str = "batch") -> None:
    """Raises `AssertionError` unless two record batches have the same columns and the same rows."""
    if found.schema.names != expected.schema.names:
        raise AssertionError(f"{what}: found columns {found.schema.names}, expected {expected.schema.names}")
    if found.num_rows != expected.num_rows:
        raise AssertionError(f"{what}: found {found.num_rows} rows, expected {expected.num_rows}")
    for name, mine, theirs in zip(expected.schema.names, found.columns, expected.columns, strict=True):
        assert_same_values(mine, theirs, f"{what}, column {name!r}")


def assert_same_batches(
    found: Sequence[pa.RecordBatch], expected: Sequence[pa.RecordBatch], what: str = "stream"
) -> None:
    """Raises `AssertionError` unless two streams have the same batches, borders included."""
    rows, expected_rows = ([batch.num_rows for batch in batches] for batches in (found, expected))
    if rows != expected_rows:
        raise AssertionError(f"{what}: found batches of {rows} rows, expected {expected_rows}")
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_same_batch(mine, theirs, f"{what}, batch {number}")


def assert_same_rows(
    found: Sequence[pa.RecordBatch],
    expected: Sequence[pa.RecordBatch],
    what: str = "rows",
    *,
    ordered: bool = True,
) -> None:
    """Raises `AssertionError` unless two streams have the same rows, wherever the borders are.

    Args:
        found: Batches.
        expected: Batches.
        what: Their name in the message.
        ordered: Whether the rows have to come in the same order.
    """
    mine, theirs = joined(found), joined(expected)
    if mine is None or theirs is None:
        counts = [0 if batch is None else batch.num_rows for batch in (mine, theirs)]
        if counts[0] != counts[1]:
            raise AssertionError(f"{what}: found {counts[0]} rows, expected {counts[1]}")
        return
    if ordered:
        assert_same_batch(mine, theirs, what)
        return
    if mine.schema.types != theirs.schema.types or mine.schema.names != theirs.schema.names:
        raise AssertionError(f"{what}: found {mine.schema}, expected {theirs.schema}")
    if sorted(map(repr, mine.to_pylist())) != sorted(map(repr, theirs.to_pylist())):
        raise AssertionError(f"{what}: not the same rows")


def joined(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Returns all rows as one record batch, or None if there is no batch to tell the schema."""
    listed = list(batches)
    return pa.concat_batches(listed) if listed else None


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, float) and isinstance(theirs, float):
        return mine == theirs or (math.isnan(mine) and math.isnan(theirs))
    if isinstance(mine, list | tuple) and isinstance(theirs, list | tuple):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_same(mine[key], theirs[key]) for key in mine)
    return bool(mine == theirs)

"""Bad rows of a block of CSV, told in one pass: lines with too few or too many fields, and texts in columns of numbers.

Decoding without bad rows has to cost little more than decoding. So columns of numbers in which a bad value was seen are
read as texts from then on, and made numbers here: Polars finds the texts that may be none, and pyarrow decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pyarrow import csv

from arrowflow.lazy import compute as pc

_BLANKS = " \t"


def number_columns(types: pa.Schema) -> list[str]:
    """Returns the columns whose bad values this module finds."""
    return [field.name for field in types if pa.types.is_integer(field.type) or _is_float(field.type)]


def _is_float(type: pa.DataType) -> bool:
    return bool(pa.types.is_float32(type) or pa.types.is_float64(type))


class Lines:
    """Lines whose number of fields is not that of the columns. pyarrow calls it for each of them, in order."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.reasons: list[str] = []

    def __call__(self, row: csv.InvalidRow) -> str:
        """Notes a line, and leaves it out."""
        self.numbers.append(row.number - 1)
        self.reasons.append(f"expected {row.expected_columns} fields, found {row.actual_columns}")
        return "skip"


def good_numbers(
    batch: pa.RecordBatch, names: Sequence[str], types: pa.Schema
) -> tuple[pa.RecordBatch, dict[int, str]] | None:
    """Returns the rows of a batch in which texts are numbers, with the columns of `types`; and the others by number.

    Args:
        batch: The rows, with the columns `names` as texts.
        names: Columns of numbers.
        types: All columns.

    Returns: None if pyarrow and Polars do not agree, so that a closer look is needed.
    """
    bad: dict[int, str] = {}
    texts = {name: batch.column(name) for name in names}
    for name, column in texts.items():
        bad |= dict(_no_numbers(column, types.field(name))) | bad
    if bad:
        good = np.ones(batch.num_rows, np.bool_)
        good[list(bad)] = False
        batch = batch.filter(pa.array(good))
    columns = []
    for field in types:
        column = batch.column(field.name)
        try:
            columns.append(_numbers(column, field.type) if field.name in texts else column)
        except pa.ArrowInvalid:
            return None
    return pa.RecordBatch.from_arrays(columns, schema=types), bad


def _no_numbers(texts: pa.Array, field: pa.Field) -> list[tuple[int, str]]:
    column = pl.Series(texts)
    found = column.cast(pl.Series(pa.nulls(0, field.type)).dtype, strict=False)
    doubtful: npt.NDArray[np.int64] = (found.is_null() & column.is_not_null()).arg_true().to_numpy()
    told: list[tuple[int, str]] = []
    known: dict[Any, bool] = {}
    for row in doubtful.tolist():
        text = column[row]
        if text not in known:
            known[text] = _is_number(text, field.type)
        if not known[text]:
            shown = text if len(text) <= 40 else text[:40] + "…"
            told.append((row, f"column {field.name!r}: expected {field.type}, found {shown!r}"))
    return told


def _is_number(text: str, type: pa.DataType) -> bool:
    try:
        _numbers(pa.array([text], pa.string()), type)
    except pa.ArrowInvalid:
        return False
    return True


def _numbers(texts: pa.Array, type: pa.DataType) -> pa.Array:
    """Returns texts as the numbers that the reader of pyarrow makes of them, which leaves blanks around them out."""
    try:
        return texts.cast(type)
    except pa.ArrowInvalid:
        return pc.utf8_trim(texts, _BLANKS).cast(type)

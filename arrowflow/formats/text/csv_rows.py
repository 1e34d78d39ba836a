"""Bad rows of a block of CSV, told in one pass: lines with too few or too many fields, and texts in columns of numbers.

Decoding without bad rows has to cost little more than decoding. So columns of numbers in which a bad value was seen are
read as texts from then on, and made numbers here: Polars finds the texts that may be none, and pyarrow decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pyarrow import csv

from arrowflow.bad_rows import without
from arrowflow.lazy import compute as pc

_BLANKS = " \t"
_SHOWN = 40


def number_columns(types: pa.Schema) -> list[str]:
    """Returns the columns whose bad values this module finds."""
    return [field.name for field in types if pa.types.is_integer(field.type) or _is_float(field.type)]


def _is_float(type: pa.DataType) -> bool:
    return bool(pa.types.is_float32(type) or pa.types.is_float64(type))


class Lines:
    """Lines whose number of fields is not that of the columns. pyarrow calls it for each of them, in order.

    Args:
        keep: Whether to tell what is wrong with them.

    Attributes:
        bad: What is wrong with each line, by its number.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self.bad: dict[int, str] = {}

    def __call__(self, row: csv.InvalidRow) -> str:
        """Notes a line, and leaves it out."""
        self.bad[row.number - 1] = (
            f"expected {row.expected_columns} fields, found {row.actual_columns}" if self._keep else ""
        )
        return "skip"


def good_numbers(
    batch: pa.RecordBatch, names: Sequence[str], types: pa.Schema, *, keep: bool
) -> tuple[pa.RecordBatch, dict[int, str]] | None:
    """Returns the rows of a batch in which texts are numbers, with the columns of `types`; and the others by number.

    Args:
        batch: The rows, with the columns `names` as texts.
        names: Columns of numbers.
        types: All columns.
        keep: Whether to tell what is wrong with the others.

    Returns: None if pyarrow and Polars do not agree, so that a closer look is needed.
    """
    bad: dict[int, str] = {}
    columns = []
    for field in types:
        column = batch.column(field.name)
        if field.name in names:
            others = _no_numbers(column, field, keep=keep)
            try:
                column = _numbers(_without_texts(column, others), field.type)
            except pa.ArrowInvalid:
                return None
            bad = others | bad
        columns.append(column)
    return without(pa.RecordBatch.from_arrays(columns, schema=types), bad), bad


def _no_numbers(texts: pa.Array, field: pa.Field, *, keep: bool) -> dict[int, str]:
    """Returns the rows of texts that are no numbers, with what is wrong if that is to be kept."""
    doubtful = _doubtful(texts, field.type)
    values = texts.take(pa.Array.from_buffers(pa.int64(), len(doubtful), [None, pa.py_buffer(doubtful)], 0))
    found = list(zip(doubtful.tolist(), values.to_pylist(), strict=True))
    told = {
        text: _told(text, field) for text in {text for _, text in found} if not _is_number(text, field.type)
    }
    return {row: told[text] if keep else "" for row, text in found if text in told}


def _told(text: str, field: pa.Field) -> str:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return f"column {field.name!r}: expected {field.type}, found {shown!r}"


def _without_texts(texts: pa.Array, rows: Collection[int]) -> pa.Array:
    """Returns texts with null in some rows, without a copy of the others."""
    if not rows:
        return texts
    valid = np.ones(texts.offset + len(texts), np.bool_)
    valid[texts.offset :] = pl.Series(pc.is_valid(texts)).to_numpy()
    valid[texts.offset + np.array(list(rows))] = False
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    _, *stored = texts.buffers()
    return pa.Array.from_buffers(texts.type, len(texts), [bits, *stored], offset=texts.offset)


def _doubtful(texts: pa.Array, type: pa.DataType) -> npt.NDArray[np.int64]:
    """Returns the texts that may be no numbers: few, and all that are none but for those too large."""
    if pa.types.is_integer(type):
        whole = pc.or_kleene(pc.is_null(texts), pc.ascii_is_decimal(texts))
        others = (~pl.Series(whole)).arg_true().to_numpy().astype(np.int64)
        if 2 * len(others) <= len(texts):
            return others
    column = pl.Series(texts)
    found = column.cast(pl.Float64 if _is_float(type) else pl.Int64, strict=False)
    return (found.is_null() & column.is_not_null()).arg_true().to_numpy().astype(np.int64)


def _is_number(text: str, type: pa.DataType) -> bool:
    try:
        _numbers(pl.Series([text]).to_arrow(), type)
    except pa.ArrowInvalid:
        return False
    return True


def _numbers(texts: pa.Array, type: pa.DataType) -> pa.Array:
    """Returns texts as the numbers that the reader of pyarrow makes of them, which leaves blanks around them out."""
    try:
        return texts.cast(type)
    except pa.ArrowInvalid:
        return pc.utf8_trim(texts, _BLANKS).cast(type)

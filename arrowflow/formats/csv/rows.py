"""Bad rows of a block of CSV, told in one pass: lines with too few or too many fields, and texts in columns of numbers.

Decoding without bad rows has to cost little more than decoding. So columns of numbers in which a bad value was seen are
read as bytes from then on, and made numbers here. Their bytes show which texts may be no numbers, and pyarrow decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pyarrow import csv

from arrowflow.bad_rows import without
from arrowflow.formats.csv.lines import CsvLines
from arrowflow.formats.text.blocks import as_bytes, owned
from arrowflow.formats.text.scan import starts_of
from arrowflow.lazy import compute as pc

RowNumbers = npt.NDArray[np.int64]

_BLANKS = " \t"
_SHOWN = 40

_OF_INTEGERS = np.isin(np.arange(256), list(b"0123456789- \t"))
_OF_FLOATS = _OF_INTEGERS | np.isin(np.arange(256), list(b"./+eE"))


def number_columns(types: pa.Schema, *, fractions: bool) -> list[str]:
    """Returns the columns whose bad values this module finds, with or without those of fractions."""
    return [
        field.name
        for field in types
        if pa.types.is_integer(field.type) or (fractions and _is_float(field.type))
    ]


def _is_float(type: pa.DataType) -> bool:
    return bool(pa.types.is_float32(type) or pa.types.is_float64(type))


class Lines:
    """Lines whose number of fields is not that of the columns. pyarrow calls it for each of them, in order.

    By the number of a line, `bad` has its fault, as a text if `keep`, and `lacking` the fields that it lacks: less than 0 if it
    has too many.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self.bad: dict[int, str] = {}
        self.lacking: dict[int, int] = {}

    def __call__(self, row: csv.InvalidRow) -> str:
        """Notes a line, and leaves it out."""
        self.bad[row.number - 1] = (
            f"expected {row.expected_columns} fields, found {row.actual_columns}" if self._keep else ""
        )
        self.lacking[row.number - 1] = row.expected_columns - row.actual_columns
        return "skip"


def with_lengths(
    data: pa.Buffer, lines: CsvLines, ragged: Mapping[int, int], delimiter: str, nulls: Sequence[str]
) -> pa.Buffer:
    """Returns lines that all have as many fields as there are columns. `ragged` is `Lines.lacking`; the first null fills lines."""
    text = as_bytes(data)
    ends, is_row = lines.scan(text, True)
    starts, ends = starts_of(ends)[is_row], ends[is_row]
    borders = lines.delimiters(text)
    null = "" if "" in nulls or not nulls else nulls[0]
    parts, done = [], 0
    for number, lacking in ragged.items():
        start, stop = int(starts[number]), int(ends[number])
        if lacking < 0:
            last = int(np.searchsorted(borders, stop)) + lacking
            parts += [text[done : borders[last]], np.frombuffer(b"\n", np.uint8)]
        else:
            line = text[start:stop].tobytes().rstrip(b"\r\n")
            more = (delimiter + null) * lacking + "\n"
            parts += [text[done : start + len(line)], np.frombuffer(more.encode(), np.uint8)]
        done = stop
    return owned(np.concatenate([*parts, text[done:]]))


def good_numbers(
    batch: pa.RecordBatch, names: Sequence[str], types: pa.Schema, *, keep: bool
) -> tuple[pa.RecordBatch, dict[int, str]] | None:
    """Returns the rows of a batch in which texts are numbers, with the columns of `types`; and the others by number.

    The columns `names` of the batch are numbers as bytes. `keep` says whether to tell what is wrong with the other rows.

    Returns: None if pyarrow and Polars do not agree, so that a closer look is needed.
    """
    bad: dict[int, str] = {}
    columns = []
    for field in types:
        column = batch.column(field.name)
        if field.name in names:
            found = _as_numbers(column, field, keep=keep)
            if found is None:
                return None
            column, others = found
            bad = others | bad
        columns.append(column)
    return without(pa.RecordBatch.from_arrays(columns, schema=types), bad), bad


def _as_numbers(texts: pa.Array, field: pa.Field, *, keep: bool) -> tuple[pa.Array, dict[int, str]] | None:
    """Returns texts as numbers, and by row what is wrong with those that are none; None if pyarrow and Polars differ."""
    bad: dict[int, str] = {}
    given = texts
    for doubtful in (_odd, _refused):
        bad |= _no_numbers(texts, doubtful(given, field.type), field, keep=keep)
        given = _without_texts(texts, bad)
        try:
            return _numbers(given, field.type), bad
        except pa.ArrowInvalid:
            continue
    return None


def _odd(texts: pa.Array, type: pa.DataType) -> RowNumbers:
    """Returns the texts with a byte that numbers rarely have. This is fast, and misses texts such as `1-2`."""
    _, offsets, stored = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[: len(texts) + 1]
    data = np.frombuffer(stored or b"", np.uint8)[: bounds[-1]]
    first, usual = (ord("-"), _OF_FLOATS) if _is_float(type) else (ord("0"), _OF_INTEGERS)
    places = np.flatnonzero(data - np.uint8(first) > ord("9") - first)
    places = places[~usual[data[places]]]
    return np.unique(np.searchsorted(bounds, places, side="right") - 1)


def _refused(texts: pa.Array, type: pa.DataType) -> RowNumbers:
    """Returns the texts that Polars does not take for numbers."""
    column = pl.Series(texts)
    found = column.str.strip_chars(_BLANKS).cast(pl.Series(pa.nulls(0, type)).dtype, strict=False)
    return (found.is_null() & column.is_not_null()).arg_true().to_numpy().astype(np.int64)


def _no_numbers(texts: pa.Array, doubtful: RowNumbers, field: pa.Field, *, keep: bool) -> dict[int, str]:
    """Returns those of some texts that pyarrow does not take for numbers."""
    rows = pa.Array.from_buffers(pa.int64(), len(doubtful), [None, pa.py_buffer(doubtful)])
    values = texts.take(rows).dictionary_encode()
    texts = values.dictionary
    told = {
        code: _told(texts[code].as_py(), field) if keep else ""
        for code in range(len(texts))
        if not _is_number(texts.slice(code, 1), field.type)
    }
    codes = np.frombuffer(values.indices.buffers()[1], np.int32).tolist()
    return {row: told[code] for row, code in zip(doubtful.tolist(), codes, strict=False) if code in told}


def _told(stored: bytes, field: pa.Field) -> str:
    text = stored.decode(errors="replace")
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return f"column {field.name!r}: expected {field.type}, found {shown!r}"


def _without_texts(texts: pa.Array, rows: Collection[int]) -> pa.Array:
    """Returns texts with null in some rows."""
    is_kept = np.ones(len(texts), np.bool_)
    is_kept[list(rows)] = False
    return pc.if_else(pl.Series(is_kept).to_arrow(), texts, pa.nulls(1, texts.type)[0]).view(pa.string())


def _is_number(text: pa.Array, type: pa.DataType) -> bool:
    try:
        _numbers(text.view(pa.string()), type)
    except pa.ArrowInvalid:
        return False
    return True


def _numbers(texts: pa.Array, type: pa.DataType) -> pa.Array:
    """Returns texts as the numbers that the reader of pyarrow makes of them, which leaves blanks around them out."""
    try:
        return texts.cast(type)
    except pa.ArrowInvalid:
        return pc.ascii_trim(texts, _BLANKS).cast(type)

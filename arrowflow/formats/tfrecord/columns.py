"""Turns lists in a block of bytes into one Arrow column, and knows the types that a column of a TFRecord may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from arrowflow.errors import ArrowflowError, DataError, SchemaError
from arrowflow.formats.text.codings import is_utf8
from arrowflow.formats.tfrecord.proto import KINDS, VALUES
from arrowflow.formats.tfrecord.wire import PADDING, Bytes, Flags, Ints, varints
from arrowflow.lazy import compute as pc
from arrowflow.types import VIEWS, is_list, is_number

BYTES, FLOATS, INTS = 1, 2, 3
_PASS_SCHEMA: Final = "; take a type in schema= that fits all records, or leave this feature out of it"


class Odd(Exception):
    """Records in an encoding that only protobuf reads."""

    def __init__(self, rows: Ints) -> None:
        super().__init__(rows)
        self.rows = np.unique(rows)


class Unfit(Exception):
    """Records that a column cannot hold, in order, with the error of each: `DataError` if a value is at fault."""

    def __init__(self, rows: Ints, errors: Sequence[ArrowflowError]) -> None:
        super().__init__(rows, errors)
        self.rows = rows
        self.errors = errors


class Lists(NamedTuple):
    """One feature of several records.

    Attributes:
        num_rows: The number of records.
        rows: The records that have the feature, in order.
        kinds: The kind of the list of each of these records.
        owners: The index in `rows` of each list element, in order.
        starts: The start of the element: one text, or numbers one after the other.
        stops: The end of the element.
    """

    num_rows: int
    rows: Ints
    kinds: Ints
    owners: Ints
    starts: Ints
    stops: Ints

    def only(self, kept: Flags) -> Lists:
        """Returns the lists of those of `rows` that are flagged; the other records lack the feature."""
        values = kept[self.owners]
        owners = (np.cumsum(kept) - 1)[self.owners[values]]
        starts, stops = self.starts[values], self.stops[values]
        return Lists(self.num_rows, self.rows[kept], self.kinds[kept], owners, starts, stops)


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: The feature.
        type: The type that it is read as.
        kind: The kind of its lists in the file.
        value: Type of one value.
        size: Values in each row, or None for any number.
    """

    name: str
    type: pa.DataType
    kind: int
    value: pa.DataType
    size: int | None

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers in their stored form, one a row."""
        return self.type in {pa.int64(), pa.float32()}

    def place(self, values: Any, rows: Ints, num_rows: int) -> pa.Array:
        """Returns a column of numbers from the numbers of some rows; the other rows are null."""
        if len(rows) == num_rows:
            return _array(values.copy())
        placed = np.zeros(num_rows, values.dtype)
        placed[rows] = values
        buffers = [_bitmap(rows, num_rows), pa.py_buffer(placed)]
        return pa.Array.from_buffers(self.type, num_rows, buffers, num_rows - len(rows))

    def build(self, data: Bytes, lists: Lists) -> pa.Array:
        """Returns the rows of the column, null where a record lacks the feature.

        Raises:
            Unfit: A record's list does not fit.
            Odd: A record's list has an unusual encoding.
        """
        rows = lists.rows
        has_kind = lists.kinds != 0
        wrong = np.flatnonzero(has_kind & (lists.kinds != self.kind))
        if len(wrong):
            found = [KINDS[kind] for kind in lists.kinds[wrong]]
            raise self._unfit(rows[wrong], KINDS[self.kind], found)
        values, counts = self._values(data, lists)
        if self.size is not None:
            wrong = np.flatnonzero(has_kind & (counts != self.size))
            if len(wrong):
                raise self._unfit(rows[wrong], f"{self.size} of {self.value}", counts[wrong])
        if not has_kind.all():
            rows, counts = rows[has_kind], counts[has_kind]
        return self._assemble(values, rows, counts, lists.num_rows)

    def _unfit(self, rows: Ints, expected: str, found: Any) -> Unfit:
        text = f"feature {self.name!r}: expected {expected} ({self.type}), found "
        return Unfit(rows, [SchemaError(f"{text}{each}{_PASS_SCHEMA}") for each in found])

    def _values(self, data: Bytes, lists: Lists) -> tuple[pa.Array, Ints]:
        """Returns all values one after the other, and the number of values for each of `lists.rows`."""
        gathered = gather(data, lists.starts, lists.stops)
        num = len(lists.rows)
        if self.kind == BYTES:
            counts = np.bincount(lists.owners, minlength=num)
            return self._texts(gathered, lists), counts
        sizes = lists.stops - lists.starts
        stored = np.frombuffer(gathered.buffers()[2] or b"", np.uint8)[: int(sizes.sum())]
        if self.kind == INTS:
            return self._wholes(stored, sizes, lists)
        if (sizes & 3).any():
            raise Odd(lists.rows[lists.owners[(sizes & 3) != 0]])
        counts = np.bincount(lists.owners, sizes >> 2, num).astype(np.int64)
        floats = stored.view("<f4")
        return _array(floats if self.value == pa.float32() else floats.astype(np.float64)), counts

    def _wholes(self, stored: Any, sizes: Ints, lists: Lists) -> tuple[pa.Array, Ints]:
        """Decodes the varints of all elements, and counts them by element and by row."""
        found = varints(Bytes(np.concatenate([stored, np.zeros(PADDING, np.uint8)])))
        ends = np.cumsum(sizes)
        # No varint may cross the border between two elements.
        if found is None or (stored[ends[sizes > 0] - 1] & 0x80).any():
            raise Odd(lists.rows[lists.owners])
        values, lasts = found
        per_element = np.diff(np.searchsorted(lasts, ends), prepend=0)
        counts = np.bincount(lists.owners, per_element, len(lists.rows)).astype(np.int64)
        return self._numbers(values, counts, lists), counts

    def _texts(self, gathered: pa.Array, lists: Lists) -> pa.Array:
        if self.value == pa.binary():
            return gathered
        try:
            return gathered.cast(self.value)
        except pa.ArrowInvalid as error:
            wrong = [place for place, value in enumerate(gathered) if not is_utf8(value.as_py())]
            if not wrong:
                raise
            rows = np.unique(lists.rows[lists.owners[wrong]])
            text = f"feature {self.name!r}: expected UTF-8 text ({self.type}), found bytes that are none"
            raise Unfit(rows, [DataError(f"{text}; take binary in schema=") for _ in rows]) from error

    def _numbers(self, values: Ints, counts: Ints, lists: Lists) -> pa.Array:
        if self.value == pa.int64():
            return _array(values)
        low, high = 0, 1
        if self.value != pa.bool_():
            bounds = np.iinfo(self.value.to_pandas_dtype())
            low, high = int(bounds.min), min(int(bounds.max), np.iinfo(np.int64).max)
        outside = np.flatnonzero((values < low) | (values > high))
        if len(outside):
            places, firsts = np.unique(
                np.searchsorted(np.cumsum(counts), outside, side="right"), return_index=True
            )
            text = f"feature {self.name!r}: expected {self.value} ({low} to {high}), found "
            errors = [DataError(f"{text}{value}; take int64 in schema=") for value in values[outside[firsts]]]
            raise Unfit(lists.rows[places], errors)
        return _array(values).cast(self.value)

    def _assemble(self, values: pa.Array, rows: Ints, counts: Ints, num_rows: int) -> pa.Array:
        """Puts values into rows; all rows not in `rows` are null."""
        nulls = num_rows - len(rows)
        validity = _bitmap(rows, num_rows) if nulls else None
        buffers = [validity]
        if self.size is None:
            sizes = np.zeros(num_rows + 1, np.int64 if pa.types.is_large_list(self.type) else np.int32)
            sizes[rows + 1] = counts
            buffers.append(pa.py_buffer(np.cumsum(sizes, out=sizes)))
        elif nulls:
            places = np.zeros(num_rows, np.int64)
            places[rows] = np.arange(len(rows))
            if self.type == self.value:
                buffers.append(pa.py_buffer(places))
                return pc.take(values, pa.Array.from_buffers(pa.int64(), num_rows, buffers, nulls))
            inner = (places[:, None] * self.size + np.arange(self.size)).reshape(-1)
            values = _take(values, inner) if len(values) else pa.nulls(len(inner), self.value)
        elif self.type == self.value:
            return values
        return pa.Array.from_buffers(self.type, num_rows, buffers, nulls, children=[values])


def column_of(field: pa.Field) -> Column:
    """Returns the column by which a field of a schema is read.

    Raises:
        SchemaError: No feature can be read as the field's type.
    """
    type = field.type
    value, size = (type.value_type, None) if is_list(type) else (type, 1)
    if pa.types.is_fixed_size_list(type):
        size = type.list_size
    if value.id in VIEWS:
        return Column(field.name, type, BYTES, value, size)
    if is_number(value) or pa.types.is_boolean(value):
        return Column(field.name, type, FLOATS if pa.types.is_floating(value) else INTS, value, size)
    raise SchemaError(
        f"read_tfrecord: column {field.name!r}: no feature can be read as {type}; expected a whole number, bool, "
        f"float32, float64, binary or string, or a list of one; read it as {VALUES[INTS]}, for example, and cast it"
    )


def gather(data: Bytes, starts: Ints, stops: Ints) -> pa.Array:
    """Returns byte ranges, each after the range before it, as one array of `binary`.

    The bytes between two ranges are elements, too, in an array of twice the length. Arrow takes every other element of
    it: C code makes a copy for each, without an index for each byte.
    """
    if not len(starts):
        return pa.nulls(0, pa.binary())
    borders = np.empty(2 * len(starts), np.int32)
    borders[0::2] = starts
    borders[1::2] = stops
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(data.padded)]
    both = pa.Array.from_buffers(pa.binary(), len(borders) - 1, buffers, 0)
    return _take(both, np.arange(0, len(borders), 2))


def _take(values: pa.Array, places: Ints) -> pa.Array:
    return pc.take(values, _array(places))


_ARROW: Final = {np.dtype("<i8"): pa.int64(), np.dtype("<f4"): pa.float32(), np.dtype("<f8"): pa.float64()}


def _array(values: Any) -> pa.Array:
    """Makes an array without pandas, which `pa.array` would import."""
    return pa.Array.from_buffers(_ARROW[values.dtype], len(values), [None, pa.py_buffer(values)], 0)


def _bitmap(rows: Ints, num_rows: int) -> pa.Buffer:
    valid = np.zeros(num_rows, np.bool_)
    valid[rows] = True
    return pa.py_buffer(np.packbits(valid, bitorder="little"))

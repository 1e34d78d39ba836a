"""Turns lists in a block of bytes into one Arrow column, and knows the types that a column of a TFRecord may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from arrowflow.errors import SchemaError
from arrowflow.formats.tfrecord.proto import KINDS, VALUES
from arrowflow.formats.tfrecord.wire import PADDING, Bytes, Flags, Ints, varints
from arrowflow.lazy import compute as pc

BYTES, FLOATS, INTS = 1, 2, 3
_PASS_SCHEMA: Final = "; take a type in schema= that fits all records, or leave this feature out of it"


class Unfit(Exception):
    """Rows that a column cannot hold, with the reason of each; without reasons, rows with an unusual encoding.

    Attributes:
        rows: The records, in order.
        texts: The reasons.
        is_value: Whether a value is at fault, and not the kind or the number of values.
    """

    def __init__(self, rows: Ints, texts: Sequence[str] | None = None, *, is_value: bool = False) -> None:
        super().__init__(rows, texts)
        self.rows = rows
        self.texts = texts
        self.is_value = is_value


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

    def without(self, rows: Ints) -> Lists:
        """Returns the lists of the other records; these lack the feature."""
        return self.only(~np.isin(self.rows, rows))

    def only(self, kept: Flags) -> Lists:
        """Returns the lists of those of `rows` that are flagged; the other records lack the feature."""
        places = np.cumsum(kept) - 1
        values = kept[self.owners]
        owners = places[self.owners[values]]
        return Lists(
            self.num_rows, self.rows[kept], self.kinds[kept], owners, self.starts[values], self.stops[values]
        )


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
        """
        rows = lists.rows
        has_kind = lists.kinds != 0
        wrong = np.flatnonzero(has_kind & (lists.kinds != self.kind))
        if len(wrong):
            text = f"feature {self.name!r}: expected {KINDS[self.kind]} ({self.type}), found "
            raise Unfit(rows[wrong], [f"{text}{KINDS[lists.kinds[each]]}{_PASS_SCHEMA}" for each in wrong])
        values, counts = self._values(data, lists)
        if self.size is not None:
            wrong = np.flatnonzero(has_kind & (counts != self.size))
            if len(wrong):
                text = f"feature {self.name!r}: expected {self.size} of {self.value} ({self.type}), found "
                raise Unfit(rows[wrong], [f"{text}{counts[each]}{_PASS_SCHEMA}" for each in wrong])
        if not has_kind.all():
            rows, counts = rows[has_kind], counts[has_kind]
        return self._assemble(values, rows, counts, lists.num_rows)

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
            raise Unfit(np.unique(lists.rows[lists.owners[(sizes & 3) != 0]]))
        counts = np.bincount(lists.owners, sizes >> 2, num).astype(np.int64)
        floats = stored.view("<f4")
        return _array(floats if self.value == pa.float32() else floats.astype(np.float64)), counts

    def _wholes(self, stored: Any, sizes: Ints, lists: Lists) -> tuple[pa.Array, Ints]:
        """Decodes the varints of all elements, and counts them by element and by row."""
        found = varints(Bytes(np.concatenate([stored, np.zeros(PADDING, np.uint8)])))
        ends = np.cumsum(sizes)
        # No varint may cross the border between two elements.
        if found is None or (stored[ends[sizes > 0] - 1] & 0x80).any():
            raise Unfit(np.unique(lists.rows[lists.owners]))
        per_element = np.diff(np.searchsorted(found.ends, ends), prepend=0)
        counts = np.bincount(lists.owners, per_element, len(lists.rows)).astype(np.int64)
        return self._numbers(found.values, counts, lists), counts

    def _texts(self, gathered: pa.Array, lists: Lists) -> pa.Array:
        if self.value == pa.binary():
            return gathered
        try:
            return gathered.cast(self.value)
        except pa.ArrowInvalid as error:
            wrong = [place for place, value in enumerate(gathered) if not _is_utf8(value.as_py())]
            if not wrong:
                raise
            rows = np.unique(lists.rows[lists.owners[wrong]])
            text = f"feature {self.name!r}: expected UTF-8 text ({self.type}), found bytes that are none"
            raise Unfit(rows, [f"{text}; take binary in schema="] * len(rows), is_value=True) from error

    def _numbers(self, values: Ints, counts: Ints, lists: Lists) -> pa.Array:
        if self.value == pa.int64():
            return _array(values)
        low, high = (0, 1) if self.value == pa.bool_() else _range(self.value)
        outside = np.flatnonzero((values < low) | (values > high))
        if len(outside):
            places, firsts = np.unique(
                np.searchsorted(np.cumsum(counts), outside, side="right"), return_index=True
            )
            text = f"feature {self.name!r}: expected {self.value} ({low} to {high}), found "
            texts = [f"{text}{value}; take int64 in schema=" for value in values[outside[firsts]]]
            raise Unfit(lists.rows[places], texts, is_value=True)
        return _array(values).cast(self.value)

    def _assemble(self, values: pa.Array, rows: Ints, counts: Ints, num_rows: int) -> pa.Array:
        """Puts values into rows; all rows not in `rows` are null."""
        nulls = num_rows - len(rows)
        validity = _bitmap(rows, num_rows) if nulls else None
        is_list = pa.types.is_list(self.type) or pa.types.is_large_list(self.type)
        if not is_list and not nulls:
            if self.type == values.type:
                return values
            return pa.Array.from_buffers(self.type, num_rows, [None], 0, children=[values])
        if is_list:
            sizes = np.zeros(num_rows + 1, np.int64 if pa.types.is_large_list(self.type) else np.int32)
            sizes[rows + 1] = counts
            offsets = np.cumsum(sizes, out=sizes)
            buffers = [validity, pa.py_buffer(offsets)]
            return pa.Array.from_buffers(self.type, num_rows, buffers, nulls, children=[values])
        places = np.full(num_rows, -1)
        places[rows] = np.arange(len(rows))
        if pa.types.is_fixed_size_list(self.type):
            size = self.type.list_size
            inner = (np.maximum(places, 0)[:, None] * size + np.arange(size)).reshape(-1)
            children = _take(values, inner) if len(values) else pa.nulls(len(inner), self.value)
            return pa.Array.from_buffers(self.type, num_rows, [validity], nulls, children=[children])
        taken = pa.Array.from_buffers(
            pa.int64(), num_rows, [validity, pa.py_buffer(np.maximum(places, 0))], nulls
        )
        return pc.take(values, taken)


def column_of(field: pa.Field) -> Column:
    """Returns the column by which a field of a schema is read.

    Raises:
        SchemaError: No feature can be read as the field's type.
    """
    type, size = field.type, 1
    value = type
    if pa.types.is_fixed_size_list(type):
        value, size = type.value_type, type.list_size
    elif pa.types.is_list(type) or pa.types.is_large_list(type):
        value = type.value_type
    for kind, fits in ((BYTES, _is_text), (FLOATS, _is_float), (INTS, _is_whole)):
        if fits(value):
            is_list = pa.types.is_list(type) or pa.types.is_large_list(type)
            return Column(field.name, type, kind, value, None if is_list else size)
    raise SchemaError(
        f"read_tfrecord: column {field.name!r}: no feature can be read as {type}; expected a whole number, bool, "
        f"float32, float64, binary or string, or a list of one; read it as {VALUES[INTS]}, for example, and cast it"
    )


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_text(type: pa.DataType) -> bool:
    return type in {pa.binary(), pa.large_binary(), pa.string(), pa.large_string()}


def _is_float(type: pa.DataType) -> bool:
    return type in {pa.float32(), pa.float64()}


def _is_whole(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_boolean(type))


def _range(type: pa.DataType) -> tuple[int, int]:
    bounds = np.iinfo(f"{'i' if pa.types.is_signed_integer(type) else 'u'}{type.bit_width // 8}")
    return int(bounds.min), min(int(bounds.max), np.iinfo(np.int64).max)


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

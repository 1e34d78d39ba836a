"""ORC by pyarrow: a split is a stripe, and only wanted columns are decoded.

pyarrow tells the number of stripes, and not their rows. So the footer, which it hands out as bytes, is read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import pyarrow as pa

from arrowflow.errors import SourceError, repeated
from arrowflow.formats.capabilities import Bits, WidthsFormat, bits_of, least_bytes
from arrowflow.formats.protocol import Footer, Split, without_columns
from arrowflow.formats.types import check_arrays, check_texts, conform, decoded_schema
from arrowflow.formats.varints import varint
from arrowflow.lazy import orc
from arrowflow.storage import File, Range, Store

_TAIL_BYTES: Final = 16 << 10
"""Bytes at the end of a file that the decoder reads at once."""

_FOOTER: Final = 2
"""The field of the footer in a file's tail."""
_STRIPES: Final = 3
"""The field of a stripe in the footer."""

_START, _INDEX, _DATA, _END, _ROWS = range(1, 6)
"""The fields of a stripe: its first byte, the bytes of its three parts, its rows."""

_FIXED: Final = {1: 8, 5: 4}
"""Bytes of a field by its wire type, where the type has a fixed width."""


class Stripe(NamedTuple):
    """The first byte of a stripe, the byte after it, and its rows."""

    start: int
    stop: int
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class _Details:
    """The details that `OrcFormat` keeps of a file; `tail` is the first byte that opening the file reads."""

    stripes: tuple[Stripe, ...]
    tail: int
    bits: Bits


@dataclass(frozen=True, slots=True)
class OrcFormat(WidthsFormat):
    """ORC files, read by pyarrow."""

    name: ClassVar[str] = "orc"
    part: ClassVar[str] = "stripe"
    suffixes: ClassVar[tuple[str, ...]] = (".orc",)

    def footer(self, store: Store, file: File) -> Footer:
        with store.unmapped.open(file) as source:
            opened = orc.ORCFile(source)
            found = stripes(opened.reader.serialized_file_tail())
            rows, content, stored = opened.nrows, opened.content_length, opened.schema
        if sum(stripe.num_rows for stripe in found) != rows:
            raise SourceError(
                f"the footer tells {rows:,} rows, and its stripes {sum(stripe.num_rows for stripe in found):,}; the file is "
                "corrupt: write it anew, or leave it out"
            )
        check_arrays(stored)
        twice = repeated(stored.names)
        schema = without_columns(decoded_schema(stored), twice)
        bits = bits_of(schema)
        splits = tuple(
            Split(index, each.num_rows, max(least_bytes(bits, each.num_rows), each.stop - each.start))
            for index, each in enumerate(found)
        )
        tail = max(0, min(content, file.size - _TAIL_BYTES))
        return Footer(file, schema, splits, rows, _Details(found, tail, bits), stored, tuple(twice))

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.scratch_bytes`: the stripe as it is stored, and a copy of its values."""
        stripe: Stripe = footer.details.stripes[split.index]
        return split.num_bytes + stripe.stop - stripe.start

    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        details: _Details = footer.details
        if details.bits.keys().isdisjoint(columns):
            return []
        stripe = details.stripes[split.index]
        return [Range(stripe.start, stripe.stop), Range(details.tail, footer.file.size)]

    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        names = [name for name in schema.names if name in footer.details.bits]
        # Names with dots are none that pyarrow can pick: it takes them for fields of structs.
        has_dots = any("." in name for name in footer.details.bits)
        if not names:
            batch = pa.RecordBatch.from_struct_array(pa.nulls(split.num_rows, pa.struct([])))
        else:
            with store.unmapped.open(footer.file) as source:
                batch = orc.ORCFile(source).read_stripe(split.index, columns=None if has_dots else names)
        if batch.num_rows != split.num_rows:
            raise SourceError(
                f"the stripe has {batch.num_rows:,} rows where the footer says {split.num_rows:,}; the file is corrupt: "
                "write it anew, or leave it out"
            )
        check_texts(batch)
        yield from conform(batch.slice(offset_rows), schema, offset_rows)


def stripes(tail: bytes) -> tuple[Stripe, ...]:
    """Returns the stripes of a file, from its tail: a message of protocol buffers that holds the footer.

    Raises:
        SourceError: The bytes are no such message.

    Examples:
        >>> stripe = bytes([0x08, 3, 0x10, 10, 0x18, 20, 0x20, 5, 0x28, 7])
        >>> footer = bytes([0x1A, len(stripe)]) + stripe
        >>> stripes(bytes([0x12, len(footer)]) + footer)
        (Stripe(start=3, stop=38, num_rows=7),)
    """
    found = []
    try:
        for footer in (value for number, value in _fields(tail) if number == _FOOTER):
            for stripe in (value for number, value in _fields(footer) if number == _STRIPES):
                told = {number: value for number, value in _fields(stripe) if isinstance(value, int)}
                start = told.get(_START, 0)
                size = sum(told.get(part, 0) for part in (_INDEX, _DATA, _END))
                found.append(Stripe(start, start + size, told.get(_ROWS, 0)))
    except (IndexError, ValueError) as error:
        raise SourceError(f"the footer is no message of protocol buffers ({error})") from error
    return tuple(found)


def _fields(message: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the numbers and values of a message's fields: whole numbers, or the bytes of what the field holds."""
    if isinstance(message, int):
        raise ValueError(f"it has the number {message} where a part of it is expected")
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = varint(message, at)
            yield number, value
            continue
        if kind == 2:
            size, at = varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"it has a field of the unknown kind {kind}")
        if at + size > len(message):
            raise ValueError("it ends within a field")
        yield number, message[at : at + size]
        at += size

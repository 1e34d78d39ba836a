"""The base of formats whose files tell how many rows they have, and not how large values are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import pyarrow as pa

from arrowflow.formats.protocol import Footer, Format, Split
from arrowflow.formats.types import width_bits
from arrowflow.storage import Store

_OFFSET_BITS: Final = 33
"""Bits that a value without a fixed width takes at least: its offset, and whether it is null."""

Bits = Mapping[str, int | None]
"""Of each column, the bits of a value, or None where they depend on the value."""


def bits_of(schema: pa.Schema) -> Bits:
    """Returns the bits of each column.

    Examples:
        >>> bits_of(pa.schema({"x": pa.int8(), "text": pa.string()}))
        {'x': 9, 'text': None}
    """
    return {field.name: width_bits(field.type) for field in schema}


def least_bytes(bits: Bits, num_rows: int) -> int:
    """Returns the bytes that rows take at least."""
    return num_rows * sum(_OFFSET_BITS if each is None else each for each in bits.values()) // 8


class WidthsFormat(Format, Protocol):
    """A format that is `Unsure` of columns without a fixed width. The details of its footers have the attribute `bits`."""

    def column_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.column_bytes`: exact for columns of fixed width, a lower bound for others."""
        bits: Bits = footer.details.bits
        return sum(
            least_bytes({name: bits.get(name, 64)}, split.num_rows) + 1  # null fills an absent column
            for name in columns
        )

    def unsure(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[str]:
        """See `Unsure.unsure`: all columns without a fixed width."""
        return [name for name in columns if footer.details.bits.get(name, 64) is None]

    def announced_bytes(self, store: Store, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Unsure.announced_bytes`: nothing tells more than the footer does."""
        return self.column_bytes(footer, split, columns)

"""ORC by pyarrow: a split is a stripe, and only wanted columns are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa

from arrowflow.errors import SourceError, repeated
from arrowflow.formats.orc.stripes import Stripe, stripes
from arrowflow.formats.protocol import Footer, Split, without_columns
from arrowflow.formats.types import check_arrays, check_texts, conform, decoded_schema
from arrowflow.formats.widths import Bits, WidthsFormat, bits_of, least_bytes
from arrowflow.lazy import orc
from arrowflow.storage import File, Range, Store

_TAIL_BYTES: Final = 16 << 10
"""Bytes at the end of a file that the decoder reads at once."""


@dataclass(frozen=True, slots=True, eq=False)
class _Details:
    """The details that `OrcFormat` keeps of a file.

    Attributes:
        stripes: Its stripes.
        tail: The first byte that opening the file reads.
        bits: See `WidthsFormat`.
    """

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
        has_dots = any(
            "." in name for name in footer.details.bits
        )  # else pyarrow takes them for fields of structs
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

"""Parquet: a split is a row group, decoded whole by one short-lived reader on the calling thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, groupby
from typing import Any, ClassVar, Final, Self

import pyarrow as pa

from arrowflow.formats.capabilities import Unsure
from arrowflow.formats.parquet import arrow_decoder, polars_decoder
from arrowflow.formats.parquet.arrow_decoder import ParquetFile
from arrowflow.formats.parquet.column_chunks import ColumnChunks
from arrowflow.formats.parquet.details import (
    MAGIC_BYTES,
    SIGNATURE_BYTES,
    Columns,
    Details,
    check_nesting,
    footer_length,
    splits_of,
)
from arrowflow.formats.parquet.integers import as_integers, stored_as_integers
from arrowflow.formats.parquet.pages import Pages, borders, file_of, pages_of, stored_footer
from arrowflow.formats.parquet.polars_decoder import chunk_range, first_page
from arrowflow.formats.parquet.statistics import RowGroupStatistics
from arrowflow.formats.protocol import Footer, MayMatch, Split
from arrowflow.formats.types import check_texts, conform
from arrowflow.storage import File, Range, Store

_TAIL_BYTES: Final = 1 << 16
"""The bytes that are read of a file's end, where its footer should be."""

_SIGNED_BITS: Final = 256
"""The assumed size of a text if the file does not say how long its texts are."""

_ENCODED: Final = frozenset(("PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"))
"""Encodings that store texts in fewer bytes than they take in memory."""

_OFFSET_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class ParquetFormat(Unsure):
    """Apache Parquet, read by Arrow C++, or by Polars where Polars is faster and allowed.

    Attributes:
        stored: Decimals that may be read as integers.
        fields: For structs the only fields that are read.
        num_threads: The CPU budget. Where Polars' pool has more threads, Polars decodes only what takes one thread a call.
    """

    name: ClassVar[str] = "parquet"
    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".parq", ".pq")

    stored: frozenset[str] = field(default=frozenset(), compare=False)
    fields: Mapping[str, frozenset[str]] = field(default_factory=dict, compare=False)
    num_threads: int = field(default=1, compare=False)

    def with_stored(self, columns: frozenset[str]) -> Self:
        """See `StoredDecimals.with_stored`."""
        return replace(self, stored=columns)

    def with_struct_fields(self, fields: Mapping[str, frozenset[str]]) -> Self:
        """See `StructFields.with_struct_fields`."""
        return replace(self, fields=fields)

    def with_threads(self, num_threads: int) -> Self:
        """See `PooledFormat.with_threads`."""
        return replace(self, num_threads=num_threads)

    def engine(self, store: Store) -> str:
        """See `PooledFormat.engine`."""
        maps = store.is_local and store.memory_map  # as Polars does
        return "arrow+polars" if maps and polars_decoder.is_allowed(self.num_threads) else "arrow"

    @property
    def renaming(self) -> str:
        return "from_arrow(pyarrow.parquet.ParquetFile(path).read().rename_columns([…])) names all columns by their places"

    def footer(self, store: Store, file: File) -> Footer:
        """See `Format.footer`: one read of the end of the file, and another one for a footer over 64 KiB."""
        tail = store.tail(file, _TAIL_BYTES)
        stored_bytes = footer_length(tail, file)
        if stored_bytes + MAGIC_BYTES > tail.size < file.size:
            tail = store.tail(file, stored_bytes + MAGIC_BYTES)
        end = max(0, tail.size - MAGIC_BYTES)
        data = tail.slice(max(0, end - stored_bytes), min(end, stored_bytes))
        check_nesting(data)
        opened = ParquetFile(pa.BufferReader(tail))
        metadata = opened.metadata
        columns = Columns.of(opened.schema_arrow, metadata.num_columns)
        is_signed = stored_bytes - metadata.serialized_size == SIGNATURE_BYTES
        splits = tuple(splits_of(metadata, columns.fixed_bits))
        stored = data.slice(0, metadata.serialized_size).to_pybytes()
        details = Details(
            metadata,
            stored,
            file,
            ColumnChunks(stored, metadata),
            columns,
            is_signed,
            first_page(tail) if tail.size == file.size else b"",
        )
        num_rows = sum(split.num_rows for split in splits)
        return Footer(file, columns.schema, splits, num_rows, details, columns.stored, columns.repeated)

    def column_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.column_bytes`: exact for flat columns of fixed width, a lower bound for others."""
        details: Details = footer.details
        group, num_bytes = None, 0
        for name in columns:
            bits = details.columns.column_bits.get(name, 64)  # null fills a column that the file lacks
            if (bits is None or name in self.fields) and not details.is_signed:
                group = group or details.row_group(split.index)
                leaves = details.leaves_of(name, self.fields)
                num_bytes += sum(_leaf_bytes(details, group, split.index, leaf) for leaf in leaves)
            else:
                num_bytes += split.num_rows * (_SIGNED_BITS if bits is None else bits) // 8 + 1
        return num_bytes

    def unsure(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[str]:
        """See `Unsure.unsure`: encoded texts of files that do not say how long these texts are."""
        details: Details = footer.details
        bits = details.columns.column_bits
        texts = [name for name in columns if name in bits and bits[name] is None]
        if details.is_signed or not texts:
            return texts
        group = details.row_group(split.index)
        return [
            name
            for name in texts
            if any(
                details.columns.leaf_bits[leaf] is None
                and not _ENCODED.isdisjoint(group.column(leaf).encodings)
                and details.chunks.text_bytes(split.index, leaf) is None
                for leaf in details.leaves_of(name, self.fields)
            )
        ]

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.scratch_bytes`: pages of all columns at once, and the views that Arrow reads texts as.

        Measured on lineitem and on a table of 40 numbers: numbers take 0.6 to 2 times the output, and each text takes
        up to 20 bytes a row more.
        """
        texts = sum(1 for name in columns if footer.details.columns.column_bits.get(name, 64) is None)
        return 3 * self.column_bytes(footer, split, columns) // 2 + 24 * texts * split.num_rows

    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        """See `Format.ranges`: the column chunks."""
        details: Details = footer.details
        size = footer.file.size
        if details.is_signed:
            return [Range(0, size)]
        group = details.row_group(split.index)
        leaves = (details.leaves_of(name, self.fields) for name in columns if name in details.columns.leaves)
        chunks = (chunk_range(group.column(leaf)) for each in leaves for leaf in each)
        # Arrow reads 100 bytes after a column chunk of parquet-mr before 1.2.9: its sizes omit a header (PARQUET-816).
        return [Range(start, min(end + 100, max(end, size))) for start, end in chunks]

    def prune(self, footer: Footer, split: Split, may_match: MayMatch) -> bool:
        details: Details = footer.details
        if details.is_signed:
            return False
        group, is_sound = details.row_group(split.index), partial(details.chunks.is_sound, split.index)
        statistics = RowGroupStatistics(group, footer.schema, details.columns.leaves, is_sound)
        return not may_match(statistics, split.num_rows)

    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        integers = _integers(footer, schema, self.stored)
        (decoded,) = _decode(store, [(footer, split)], schema, integers, self)
        schema = _with_integers(schema, footer, integers)
        firsts = accumulate((batch.num_rows for batch in decoded), initial=0)
        parts = (
            part
            for batch, first in zip(decoded, firsts, strict=False)
            for part in conform(batch, schema, first)
        )
        for part in _rows_from(parts, offset_rows):
            check_texts(part)
            yield part

    def read_run(
        self, store: Store, run: Sequence[tuple[Footer, Split]], schema: pa.Schema
    ) -> list[pa.RecordBatch] | None:
        """See `RunFormat.read_run`."""
        files = [list(splits) for _, splits in groupby(run, lambda each: id(each[0]))]
        if len(files) > 1 and not _integers(run[0][0], schema, self.stored):
            decoded = _by_polars(store, run, schema, self)
            if decoded is not None:
                return _one_each(decoded, schema)
        found: list[pa.RecordBatch] = []
        for part in files:
            footer = part[0][0]
            integers = _integers(footer, schema, self.stored)
            decoded = _decode(store, part, schema, integers, self)
            batches = _one_each(decoded, _with_integers(schema, footer, integers))
            if batches is None:
                return None
            found += batches
        return found

    def is_cut(self, footer: Footer, split: Split, columns: Sequence[str]) -> bool:
        """See `PiecesFormat.is_cut`: columns without lists and structs."""
        details: Details = footer.details
        leaves = [range(*details.columns.leaves[name]) for name in columns if name in details.columns.leaves]
        schema = details.metadata.schema
        flat = (len(each) == 1 and not schema.column(each[0]).max_repetition_level for each in leaves)
        return bool(leaves) and not details.is_signed and all(flat)

    def cuts(
        self, store: Store, footer: Footer, split: Split, columns: Sequence[str], rows: int
    ) -> Sequence[int] | None:
        """See `PiecesFormat.cuts`: the rows at which pages begin, as the headers of the pages tell."""
        details: Details = footer.details
        group = details.row_group(split.index)
        found, leaves = [], details.columns.leaves
        with store.unmapped.open(footer.file) as source:
            for leaf in (leaves[name][0] for name in columns if name in leaves):
                table = details.pages.get((split.index, leaf))
                if table is None:
                    first, end = chunk_range(group.column(leaf))
                    table = pages_of(lambda at, to: source.read_at(to - at, at), first, end, split.num_rows)
                if table is None:
                    return None
                details.pages[split.index, leaf] = table
                found.append(table)
        return borders(found, rows)

    def read_rows(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, start: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        """See `PiecesFormat.read_rows`: columns whose pages have the same rows are decoded together."""
        details: Details = footer.details
        integers = _integers(footer, schema, self.stored)
        names = [name for name in schema.names if name in details.columns.leaves]
        together: dict[tuple[int, int], dict[int, tuple[Pages, int, int]]] = {}
        for leaf in (details.columns.leaves[name][0] for name in names):
            table = details.pages[split.index, leaf]
            first, before = table.around(start, stop)
            together.setdefault((table.rows[first], table.rows[before]), {})[leaf] = (table, first, before)
        stored = frozenset(details.columns.leaves[name][0] for name in integers)
        columns: dict[str, pa.ChunkedArray] = {}
        with store.unmapped.open(footer.file) as source:
            for (first, _), leaves in together.items():
                data = file_of(
                    lambda at, to: source.read_at(to - at, at), details.stored, split.index, leaves
                )
                metadata = as_integers(stored_footer(data), stored) if stored else None
                part = ParquetFile(pa.BufferReader(data), metadata=metadata, page_checksum_verification=True)
                table = part.reader.read_row_group(0, column_indices=list(leaves), use_threads=False)
                wanted = table.slice(start - first, stop - start)
                columns |= dict(zip(wanted.column_names, wanted.columns, strict=True))
                # A generator holds its variables as long as its batches are taken.
                del data, part, table, wanted
        rows = pa.table([columns[name] for name in names], names=names).combine_chunks()
        for batch in rows.to_batches():
            for part in conform(batch, _with_integers(schema, footer, integers)):
                check_texts(part)
                yield part


def _leaf_bytes(details: Details, group: Any, row_group: int, leaf: int) -> int:
    """Returns the bytes of a decoded leaf; for encoded texts of unknown size, the stored bytes."""
    column, bits = group.column(leaf), details.columns.leaf_bits[leaf]
    values = int(column.num_values)
    if bits is not None:
        return values * (bits + 32) // 8
    texts = details.chunks.text_bytes(row_group, leaf)
    if texts is None:
        texts = int(column.total_uncompressed_size)
    is_nested = leaf in details.columns.nested_leaves
    return texts + values * (_OFFSET_BITS + is_nested * _OFFSET_BITS + 1) // 8


def _with_integers(schema: pa.Schema, footer: Footer, integers: frozenset[str]) -> pa.Schema:
    """Returns a schema with the decimals that come as integers."""
    if not integers and schema.equals(footer.schema, check_metadata=True):
        return schema
    return pa.schema(
        [pa.field(field.name, pa.int64()) if field.name in integers else field for field in schema]
    )


def _integers(footer: Footer, schema: pa.Schema, stored: frozenset[str]) -> frozenset[str]:
    """Returns the `stored` columns that are wanted as decimals, and that the file has as 64-bit integers."""
    details: Details = footer.details
    return frozenset(
        name
        for name in stored
        if name in details.columns.leaves
        and pa.types.is_decimal128(footer.schema.field(name).type)
        and footer.schema.field(name).type == schema.field(name).type
        and stored_as_integers(details.metadata, details.columns.leaves[name][0])
    )


def _rows_from(batches: Iterable[pa.RecordBatch], offset: int) -> Iterator[pa.RecordBatch]:
    """Drops the first `offset` rows, but yields an empty batch if no row is left."""
    dropped = None
    for batch in batches:
        if 0 < batch.num_rows <= offset:
            offset -= batch.num_rows
            dropped = batch.slice(batch.num_rows)
            continue
        yield batch.slice(offset) if offset else batch
        offset, dropped = 0, None
    if dropped is not None:
        yield dropped


def _one_each(decoded: list[list[pa.RecordBatch]], schema: pa.Schema) -> list[pa.RecordBatch] | None:
    """Returns the batches of splits that have one each; None if some split has several."""
    found = [[part for batch in batches for part in conform(batch, schema)] for batches in decoded]
    if any(len(parts) != 1 for parts in found):
        return None
    for (part,) in found:
        check_texts(part)
    return [part for (part,) in found]


def _by_polars(
    store: Store, run: Sequence[tuple[Footer, Split]], schema: pa.Schema, format: ParquetFormat
) -> list[list[pa.RecordBatch]] | None:
    names = [name for name in schema.names if name in run[0][0].details.columns.leaves]
    suits = names and polars_decoder.suits(store, run, names, format.num_threads)
    return polars_decoder.decode(store, run, names) if suits else None


def _decode(
    store: Store,
    run: Sequence[tuple[Footer, Split]],
    schema: pa.Schema,
    integers: frozenset[str],
    format: ParquetFormat,
) -> list[list[pa.RecordBatch]]:
    """Returns the batches of each of some splits of a file that follow each other."""
    footer, splits = run[0][0], [split for _, split in run]
    details: Details = footer.details
    names = [name for name in schema.names if name in details.columns.leaves]
    if not names:
        return [
            [pa.RecordBatch.from_struct_array(pa.nulls(split.num_rows, pa.struct([])))] for split in splits
        ]
    indices = [leaf for name in names for leaf in details.leaves_of(name, format.fields)]
    if not integers:
        fast = _by_polars(store, run, schema, format)
        if fast is not None:
            return fast
    metadata = details.metadata
    if integers:
        metadata = details.with_integers(frozenset(details.columns.leaves[name][0] for name in integers))
    return arrow_decoder.decode(store, footer.file, metadata, splits, indices)

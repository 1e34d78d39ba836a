"""The common base of CSV and JSON: a file of records without a footer, scanned once to find blocks of rows.

Three decisions matter.

* **Row counts are exact**, since `skip`, `take` and resume count by them. So a footer costs one pass over the file, at
  1 to 3 GB/s for plain lines, 0.4 GB/s if all fields are quoted. Decoding, which is slower still, checks the counts.
* **Types come from the first file's first MiB**, whatever `block_bytes` is, or from `schema=`. For columns that have no
  value there, more of the file is looked through, and then other files; if none has a value, the type is null. `typed`
  makes the format that reads all files by these types. A value that does not fit is an error and never another type.
* **A block is a split**, so that resume seeks. A compressed file is one split, read block by block. Resume runs
  through a compressed file again, but decodes only the blocks that are still to come.
"""

from __future__ import annotations

import dataclasses
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Final, Self

import numpy as np
import pyarrow as pa

from arrowflow.bad_rows import first_bad
from arrowflow.errors import DataError, PlanError, SchemaError, SourceError
from arrowflow.expr import empty_batch
from arrowflow.formats.capabilities import Sifted
from arrowflow.formats.protocol import Footer, Format, Split
from arrowflow.formats.text.blocks import (
    Blocks,
    Source,
    as_bytes,
    cut,
    opened,
    opened_bytes,
    owned,
    streamed,
    windows,
)
from arrowflow.formats.text.codings import UTF8, encoding_of, ending_of, is_stream, packing_of
from arrowflow.formats.text.scan import Bytes, Scanner
from arrowflow.formats.text.sifting import Decode, Records, good_rows, listed, rows_in_front
from arrowflow.formats.types import conform, width_bits
from arrowflow.formats.unknown import is_unknown, with_known
from arrowflow.options import parse_bytes
from arrowflow.storage import File, Range, Store

BLOCK_BYTES: Final = 4 << 20
"""Bytes of a block: 10 to 20 ms of decoding, next to which a call costs nothing."""

SAMPLE_BYTES: Final = 1 << 20
"""Bytes of the first file that tell the types. This is no option, so that nothing else changes the types."""

FURTHER_BYTES: Final = 32 << 20
"""Bytes of the first file that are looked through for values of columns that have none in the sample: 0.2 s."""

_BOM: Final = b"\xef\xbb\xbf"
HIDDEN: Final = "\0"
"""The start of names in a layout by which nobody can ask for a column."""

_ROW: Final = re.compile(r"(\bin row |\bRow #)(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The layout of a file, read from its start.

    Attributes:
        start: First byte of the data.
        schema: Columns, in the order of the file.
        kind: The form of the records, by a name of the format's own.
        repeated: Names that several columns have, which are called otherwise in the schema.
    """

    start: int
    schema: pa.Schema
    kind: str = ""
    repeated: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Block:
    """A block in which rows are bad.

    Attributes:
        data: Its bytes.
        rows: How many rows it has.
        find: Finds the rows, which takes a while.
        layout: The layout of the file.
        types: The columns to decode.
        file: The file.
        keep: Whether bad rows are kept.
    """

    data: pa.Buffer
    rows: int
    find: Callable[[], Records]
    layout: Layout
    types: pa.Schema
    file: File
    keep: bool

    @cached_property
    def records(self) -> Records:
        """Its rows."""
        return self.find()


@dataclass(frozen=True, slots=True, eq=False)
class _Details:
    """The details that `TextFormat` keeps of a file.

    Attributes:
        layout: The layout, read from the start of the file.
        blocks: All blocks; of a stream, their positions in its text.
        is_stream: Whether the file is compressed, or no UTF-8, so that it is one split.
        widths: Bits of a value by column, None for texts and lists.
    """

    layout: Layout
    blocks: Blocks
    is_stream: bool
    widths: Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat(Format):
    """Files of records. A subclass knows how a file starts, where records end, and how they are decoded.

    Attributes:
        block_bytes: Bytes of a block, as a number or as a text like `"4MiB"`.
        types: The columns to read of all files, or None to infer them for each file.
        is_inferred: Whether the types are inferred, and not a user's own.
        encoding: Python's name of the encoding.
    """

    name: ClassVar[str]
    part: ClassVar[str] = "block"
    suffixes: ClassVar[tuple[str, ...]]
    first_row: ClassVar[int]
    """The number that pyarrow's messages give to the first row."""
    recode: ClassVar[str] = "write it as UTF-8"
    """The words for what to do with files of another encoding than UTF-8."""

    block_bytes: int = BLOCK_BYTES
    types: pa.Schema | None = field(default=None, compare=False)
    is_inferred: bool = field(default=False, compare=False)
    encoding: str = field(default=UTF8, init=False, compare=False)

    def __post_init__(self) -> None:
        """Raises `PlanError` for options that make no sense."""
        object.__setattr__(self, "block_bytes", parse_bytes("block_bytes", self.block_bytes))
        if self.block_bytes > 1 << 30:
            # pyarrow takes blocks up to 2 GiB, and a record may begin at the end of one.
            raise PlanError(f"{self.operator}: block_bytes are at most 1 GiB, got {self.block_bytes}")
        self.check_options()

    def check_options(self) -> None:
        """Checks options of the format's own, and normalises them; raises `PlanError` for bad options."""

    @property
    def operator(self) -> str:
        """The name in errors."""
        return f"read_{self.name}"

    def typed(self, schema: pa.Schema, *, is_inferred: bool = False) -> Self:
        """See `Untyped.typed`. Of the columns of enums it decodes the texts."""
        schema = pa.schema(map(_decoded, schema))
        try:
            self.probe(schema)
        except pa.ArrowNotImplementedError as error:
            text = f"{error}: give a type that {self.name.upper()} has, and cast the column after reading"
            raise SchemaError(text).locate(operator=self.operator) from error
        return dataclasses.replace(self, types=schema, is_inferred=is_inferred)

    @abstractmethod
    def probe(self, schema: pa.Schema) -> None:
        """Raises `pa.ArrowNotImplementedError` if pyarrow cannot decode one of the types."""

    @abstractmethod
    def layout(self, source: Source, start: int, file: File) -> Layout:
        """Reads the start of a file after its byte-order mark. The types are the file's own, or the given types."""

    @abstractmethod
    def inferred(self, data: Bytes, layout: Layout, columns: Sequence[str], file: File) -> pa.Schema:
        """Returns the types of columns as the rows in front of the first bad one tell them, or at least of these columns.

        Raises:
            SourceError: The first row is bad.
            SchemaError: There is no type for a column.
        """

    def scanned(self, layout: Layout, scanner: Scanner) -> Layout:
        """Returns the layout with what the scan of the whole file has found."""
        return layout

    @abstractmethod
    def scanner(self, kind: str, file: File) -> Scanner:
        """Returns the scanner that finds the records."""

    @abstractmethod
    def decode(self, data: pa.Buffer, layout: Layout, types: pa.Schema, file: File) -> pa.RecordBatch:
        """Decodes at least one column of whole records."""

    def holds(self, store: Store, footer: Footer, names: Sequence[str]) -> list[str]:
        """See `Untyped.holds`: here for files that name their columns themselves."""
        return _present(footer.details.layout, names)

    def footer(self, store: Store, file: File, *, is_sample: bool = False) -> Footer:
        """See `Untyped.footer`: scans the whole file, a MiB at a time, or one block."""
        with opened(store, file, self.encoding) as source:
            layout = self.layout(source, self._behind_bom(source), file)
            scanner = self.scanner(layout.kind, file)
            blocks = cut(source, scanner, layout.start, self.block_bytes, only_first=is_sample)
        if not is_sample:
            layout = self.scanned(layout, scanner)
        if self.types is None and any(map(is_unknown, layout.schema.types)):
            layout = dataclasses.replace(layout, schema=self._further(store, file, layout))
        widths = {each.name: width_bits(each.type) for each in layout.schema}
        details = _Details(layout, blocks, is_stream(file, self.encoding), widths)
        sizes = _decoded_bytes(details, layout.schema.names)
        rows = blocks.rows.tolist()
        if details.is_stream and rows:
            rows, sizes = [blocks.num_rows], [max(sizes)]
        splits = tuple(map(Split, range(len(rows)), rows, sizes))
        schema = pa.schema([each for each in layout.schema if not each.name.startswith(HIDDEN)])
        return Footer(file, schema, splits, blocks.num_rows, details, repeated=layout.repeated)

    def _behind_bom(self, source: Source) -> int:
        """Returns the start of the text after a byte-order mark."""
        start = source.window(0, SAMPLE_BYTES)[:1024].tobytes()  # so many tell whether it is text
        if (ending := ending_of(start)) is not None:
            raise SourceError(
                f"the file is compressed, and its name does not say so: let the name end in {ending}"
            )
        if (packed := packing_of(start)) is not None:
            raise SourceError(packed)
        if (wide := encoding_of(start)) is not None:
            raise SourceError(f"the text is {wide.upper()}, not UTF-8; {self.recode.format(wide)}")
        return len(_BOM) if start.startswith(_BOM) else 0

    def _further(self, store: Store, file: File, layout: Layout) -> pa.Schema:
        """Returns the types of columns that have no value in the sample, by the text behind it."""
        schema = layout.schema
        scanner = self.scanner(layout.kind, file)
        with opened(store, file, self.encoding) as source:
            for window in windows(source, scanner, layout.start, self.block_bytes):
                unknown = [each.name for each in schema if is_unknown(each.type)]
                if not unknown or window.start - layout.start >= FURTHER_BYTES:
                    break
                if window.start > layout.start and window.is_row.any():
                    with suppress(SourceError, SchemaError):  # its reader tells of bad rows
                        found = self.inferred(window.data, layout, unknown, file)
                        schema = with_known(schema, found)
        return schema

    def column_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.column_bytes`: the bytes of one block; texts share the bytes of the file evenly."""
        return max(_decoded_bytes(footer.details, columns, split.index))

    def footer_bytes(self, file: File) -> int:
        """See `Format.footer_bytes`: records are counted in one pass."""
        return opened_bytes(file, self.encoding)

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.scratch_bytes`: parsed values, their starts, and decompressed bytes."""
        details: _Details = footer.details
        blocks, file = details.blocks, footer.file
        if not details.is_stream:
            return 2 * int(blocks.stops[split.index] - blocks.starts[split.index])
        opened = min(opened_bytes(file, self.encoding), file.size + 2 * int(blocks.stops[-1]))
        return 4 * int((blocks.stops - blocks.starts).max()) + opened

    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        """See `Format.ranges`: the block, or the whole file if it is compressed; nothing if no column is read."""
        details: _Details = footer.details
        if not _present(details.layout, columns):
            return []
        if details.is_stream:
            return [Range(0, footer.file.size)]
        return [Range(int(details.blocks.starts[split.index]), int(details.blocks.stops[split.index]))]

    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """See `Format.read`; a compressed file yields one batch a block. The rows in front of a bad one come before its error."""
        details: _Details = footer.details
        layout = details.layout
        types = pa.schema([_decoded(schema.field(name)) for name in _present(layout, schema.names)])
        if not types.names:
            rows = max(0, split.num_rows - offset_rows)
            yield from conform(pa.RecordBatch.from_struct_array(pa.nulls(rows, pa.struct([]))), schema)
            return
        for data, rows, before, first in self._stored(store, footer, split, offset_rows):
            skipped = max(0, offset_rows - first)
            try:
                batch = self._checked(details, types, footer.file, data, rows, before)
                made = list(conform(batch.slice(skipped), schema))
            except (SourceError, SchemaError, DataError) as error:
                records = self.records(data, layout.kind, footer.file, before)
                decode = partial(self._conformed, details, types, schema, footer.file)
                good, first_error = rows_in_front(records, decode, error)
                if good is not None and good.num_rows > skipped:
                    yield good.slice(skipped)
                raise first_error from first_error.__cause__
            yield from made

    def sift(
        self,
        store: Store,
        footer: Footer,
        split: Split,
        schema: pa.Schema,
        offset_rows: int,
        *,
        keep: bool,
        hints: set[str],
    ) -> Iterator[Sifted]:
        """See `SiftingFormat.sift`: a part is a block."""
        details: _Details = footer.details
        layout, file = details.layout, footer.file
        types = pa.schema([_decoded(schema.field(name)) for name in _present(layout, schema.names)])
        if not types.names:
            (batch,) = self.read(store, footer, split, schema)
            yield Sifted(batch, 0, split.num_rows)
            return
        decode = partial(self._conformed, details, types, schema, file)
        for data, rows, before, first in self._stored(store, footer, split, offset_rows):
            if not hints:
                try:
                    yield Sifted(decode(data, rows, before), first, rows)
                    continue
                except (SourceError, SchemaError, DataError):
                    pass  # which rows are bad is found out now
            find = partial(self.records, data, layout.kind, file, before)
            block = Block(data, rows, find, layout, types, file, keep)
            yield self._sifted(block, first, decode, schema, hints)

    def _sifted(self, block: Block, first: int, decode: Decode, schema: pa.Schema, hints: set[str]) -> Sifted:
        """Returns the rows of a block, as far as a quick look has found them already."""
        batch, bad = self.quick(block, hints) or (None, {})
        if batch is not None:
            try:
                (batch,) = conform(batch, schema)
            except (SourceError, SchemaError, DataError):
                batch = None
        if batch is None:
            batch, bad = good_rows(block.records, decode, bad)
        if batch is None:
            batch = empty_batch(schema)
        strip = partial(self.stripped, block.layout.kind)
        kept = listed(block.records, bad, first, strip) if block.keep else ()
        return Sifted(batch, first, block.rows, [first + number for number in sorted(bad)], kept)

    def quick(self, block: Block, hints: set[str]) -> tuple[pa.RecordBatch | None, Mapping[int, str]] | None:
        """Returns the good rows of a block, or None in their place, and bad ones by number; None if that takes long.

        If it returns the good rows, the bad ones are all that there are. Of each bad row it tells what is wrong, if bad
        rows are kept.

        Args:
            block: The block.
            hints: See `SiftingFormat.sift`. Where there are some, blocks are not decoded as a whole before.
        """
        return None

    def records(self, data: pa.Buffer, kind: str, file: File, first: int) -> Records:
        """Returns the rows of a block, the first of which has this number in the file."""
        text = as_bytes(data)
        return Records.of(text, *self.scanner(kind, file).scan(text, True), first)

    def stripped(self, kind: str, row: bytes) -> bytes:
        """Returns the bytes of a row without what separates it from the next one."""
        return row

    def _stored(
        self, store: Store, footer: Footer, split: Split, offset_rows: int
    ) -> Iterator[tuple[pa.Buffer, int, int, int]]:
        """Yields the blocks of a split that hold rows from one on: bytes, rows, rows of the file and of the split before."""
        details: _Details = footer.details
        blocks = details.blocks
        if not details.is_stream:
            start, stop, rows, before = (int(each[split.index]) for each in blocks)
            data = store.fetch(footer.file, [(start, stop)])[0]
            yield data if store.is_local else owned(as_bytes(data)), rows, before, 0
            return
        source = streamed(store, footer.file, self.encoding)
        ends = blocks.rows_before + blocks.rows
        first = min(int(np.searchsorted(ends, offset_rows, side="right")), ends.size - 1)
        for start, stop, rows, before in zip(*(each[first:].tolist() for each in blocks), strict=True):
            yield owned(source.window(start, stop - start)), rows, before, before

    def _conformed(
        self, details: _Details, types: pa.Schema, schema: pa.Schema, file: File, *text: Any
    ) -> pa.RecordBatch:
        """Decodes some rows of a file into one batch; `text` is as for `Decode`."""
        (batch,) = conform(self._checked(details, types, file, *text), schema)
        return batch

    def sample(
        self, data: Bytes, kind: str, file: File, infer: Callable[[pa.Buffer], pa.Schema]
    ) -> tuple[Bytes, pa.Schema]:
        """Returns the rows of a sample that tell its types, and these types: those in front of the first bad row."""

        def explained(start: int, stop: int) -> pa.Schema:
            with self._explained(start):
                return infer(records.between(start, stop))

        try:
            with self._explained():
                return data, infer(owned(data))
        except (SourceError, SchemaError) as error:
            records = self.records(owned(data), kind, file, 0)
            place, first_error = first_bad(len(records), explained, error)
            if place == 0:
                raise first_error from first_error.__cause__
            return as_bytes(records.between(0, place)), explained(0, place)

    def _checked(
        self, details: _Details, types: pa.Schema, file: File, data: pa.Buffer, expected: int, before: int
    ) -> pa.RecordBatch:
        """Decodes rows and compares their number with the count of the scan."""
        with self._explained(before):
            batch = self.decode(data, details.layout, types, file)
        if batch.num_rows != expected:
            raise SourceError(
                f"expected {expected} rows behind row {before}, one for each record that was counted, found "
                f"{batch.num_rows}: the file changed while it was read, or has not one record a line"
            )
        return batch

    @contextmanager
    def _explained(self, rows_before: int = 0) -> Iterator[None]:
        """Adds to an error the row of the file in which a value does not fit, and a way to mend it."""

        def row_of_file(found: re.Match[str]) -> str:  # counted from 1
            return (
                f"{'in ' * found[1].startswith('in')}row {rows_before + int(found[2]) - self.first_row + 1}"
            )

        try:
            yield
        except pa.ArrowInvalid as error:
            text = _ROW.sub(row_of_file, str(error).strip()[:500])
            if self.is_misfit(text):
                raise SchemaError(f"{text}; {self.advice(text)}") from error
            raise SourceError(f"{text}; {self.cure(text)}") from error

    def advice(self, text: str) -> str:
        """Returns what to do about a value that does not have the type of its column."""
        return (
            "types are those of schema=, and without it those that the first MiB with values tells: take a type in schema= "
            "that holds all values of the column, or leave the column out of it"
        )

    def cure(self, text: str) -> str:
        """Returns what to do about text that cannot be parsed."""
        return "the file is malformed: write it anew, or leave it out"

    @abstractmethod
    def is_misfit(self, text: str) -> bool:
        """Returns whether a message of pyarrow's is about a value that does not have the type of its column."""


def _decoded(field: pa.Field) -> pa.Field:
    """Returns the field as pyarrow decodes it: of an enum the texts."""
    return pa.field(field.name, pa.string()) if pa.types.is_dictionary(field.type) else field


def _present(layout: Layout, columns: Sequence[str]) -> list[str]:
    known = frozenset(layout.schema.names)
    return [name for name in columns if name in known]


def _decoded_bytes(details: _Details, columns: Sequence[str], index: int | None = None) -> list[int]:
    """Returns the decoded bytes of columns, of each block or of one."""
    blocks, widths = details.blocks, details.widths
    place = slice(None) if index is None or details.is_stream else slice(index, index + 1)
    rows, text = blocks.rows[place], (blocks.stops - blocks.starts)[place]
    fixed = sum(widths.get(name) or 0 for name in columns)
    wanted = sum(name in widths and widths[name] is None for name in columns)
    texts = sum(width is None for width in widths.values())
    share = text * wanted // max(1, texts) + 5 * wanted * rows
    return (rows * fixed // 8 + share).tolist()

"""TFRecord files: a split is a block of records, found when the file is opened; a compressed file is one split.

Such a file has no schema. The schema is given, or inferred from the first records of the first file. Either way every
other file is read by that schema, and a record that does not fit is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from arrowflow.bad_rows import BadRow
from arrowflow.errors import ArrowflowError, PlanError, SchemaError
from arrowflow.formats.capabilities import Sifted
from arrowflow.formats.protocol import Footer, Format, Split
from arrowflow.formats.tfrecord import framing, proto
from arrowflow.formats.tfrecord.columns import gather
from arrowflow.formats.tfrecord.example import ExampleDecoder, Records, has_feature
from arrowflow.formats.tfrecord.wire import PADDING, Bytes
from arrowflow.formats.types import width_bits
from arrowflow.options import check_choice, check_flag
from arrowflow.storage import File, Range, Store

RAW_SCHEMA: Final = pa.schema([("record", pa.binary())])
RAW_HAS_NO_SCHEMA: Final = (
    "read_tfrecord: records come as one column with raw=True, so there is no schema= to give"
)
INFERRED_ROWS: Final = 1_000
"""The most records that infer a schema, all of them in the first block. Each takes 20 µs."""


@dataclass(frozen=True, slots=True, eq=False)
class _Details:
    """The details that `TfrecordFormat` keeps of a file.

    Attributes:
        compression: One of `COMPRESSIONS`.
        borders: Byte where each block starts, and where the last block stops; of a compressed file once inflated.
        rows: Records before each border.
        fault: The fault at which the whole records end, or None. It is a split of its own.
        widths: Bits of a value by column; for texts and lists the bits without any values.
    """

    compression: str
    borders: Any
    rows: Any
    fault: framing.Fault | None
    widths: Mapping[str, int] = field(default_factory=dict)

    def block(self, index: int) -> tuple[int, int]:
        """Returns rows and bytes of a block; for a compressed file, of its largest blocks."""
        own = slice(None) if self.compression != "none" else slice(index, index + 2)
        rows, sizes = np.diff(self.rows[own]), np.diff(self.borders[own])
        return int(rows.max(initial=0)), int(sizes.max(initial=0))

    def decoded_bytes(self, index: int, columns: Sequence[str]) -> int:
        """Returns the bytes of columns of a block: their share of the records, or the least bytes for any values.

        Each buffer ends with a whole byte or an offset.
        """
        num_rows, size = self.block(index)
        least = num_rows * sum(self.widths.get(name, 0) for name in columns) // 8 + 8 * len(columns)
        # Numbers are stored in a byte or two, so that records become twice as large.
        return max(2 * size * len(columns) // max(1, len(self.widths)), least)


@dataclass(frozen=True, slots=True)
class TfrecordFormat(Format):
    """TFRecord files of `tf.train.Example`.

    Attributes:
        raw: Whether records stay undecoded.
        compression: The compression of the files, or None to detect it.
        schema: The columns to read of all files, or None to infer them.
    """

    name: ClassVar[str] = "tfrecord"
    part: ClassVar[str] = "block"
    suffixes: ClassVar[tuple[str, ...]] = ("",)
    """All files of a folder, since TFRecord has no usual suffix."""

    raw: bool = False
    compression: str | None = None
    schema: pa.Schema | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_choice("read_tfrecord", "compression", self.compression, (*framing.COMPRESSIONS, None))
        object.__setattr__(self, "raw", check_flag("read_tfrecord", "raw", self.raw))

    def arguments(self) -> Mapping[str, Any]:
        """See `OwnArguments.arguments`: the compression of a file does not change its rows."""
        most = self._max_rows()
        return {"raw": self.raw} if most == framing.MAX_SPLIT_ROWS else {"raw": self.raw, "block_rows": most}

    def _max_rows(self) -> int:
        """Returns the most rows of a block: few enough that all columns of records without features stay small."""
        columns = 1 if self.schema is None else len(self.schema)
        return min(
            framing.MAX_SPLIT_ROWS, max(framing.SPLIT_ROWS, framing.MAX_SPLIT_CELLS // max(1, columns))
        )

    def typed(self, schema: pa.Schema, *, is_inferred: bool = False) -> Self:
        """See `Untyped.typed`."""
        if not self.raw:
            ExampleDecoder(schema)
        elif schema.names != RAW_SCHEMA.names:
            raise PlanError(RAW_HAS_NO_SCHEMA)
        return dataclasses.replace(self, schema=schema)

    def holds(self, store: Store, footer: Footer, names: Sequence[str]) -> list[str]:
        """See `Untyped.holds`: looks at the records from which a schema would be inferred."""
        if self.raw:
            return [name for name in names if name in RAW_SCHEMA.names]
        records = self._first_records(store, footer.file, footer.details)
        return [name for name in names if records is not None and has_feature(records, name)]

    def footer(self, store: Store, file: File, *, is_sample: bool = False) -> Footer:
        """See `Untyped.footer`: walks the whole file, or its first block."""
        compression = self.compression
        if compression is None:
            size = min(framing.HEADER_BYTES, file.size)
            compression = framing.compression_of(
                store.fetch(file, [(0, size)])[0].to_pybytes() if size else b""
            )
        walk = _walk(store, file, compression, framing.Walk(1 if is_sample else None, self._max_rows()))
        details = _Details(compression, np.array(walk.borders), np.array(walk.rows), walk.fault)
        schema = self._schema(store, file, details)
        # A list or text without values has an offset, and may be null.
        widths = {each.name: width_bits(each.type) or 33 for each in schema}
        details = dataclasses.replace(details, widths=widths)
        return Footer(file, schema, _splits(details), walk.rows[-1], details)

    def _schema(self, store: Store, file: File, details: _Details) -> pa.Schema:
        if self.raw:
            return RAW_SCHEMA
        if self.schema is not None:
            return self.schema
        records = self._first_records(store, file, details)
        if records is None:
            raise SchemaError("the file has no records to infer a schema from; pass schema=")
        return proto.infer(records.record(row) for row in range(len(records)))

    def _first_records(self, store: Store, file: File, details: _Details) -> Records | None:
        """Returns the records that tell a schema, None if there are none; raises if the first record is broken."""
        for data, base, num_rows in _blocks(store, file, details, 0):
            starts, stops, faults = framing.framed(data, base, min(num_rows, INFERRED_ROWS))
            if 0 in faults:
                raise faults[0].error(0)
            before = slice(min(faults, default=None))
            return Records(Bytes(np.frombuffer(data, np.uint8)), starts[before], stops[before])
        if details.fault is not None:
            raise details.fault.error(0)
        return None

    def column_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.column_bytes`: a column's share of the records, or the bytes of nulls if these are more."""
        return footer.details.decoded_bytes(split.index, columns)

    def footer_bytes(self, file: File) -> int:
        """See `Format.footer_bytes`: windows in which records are counted."""
        return min(file.size, framing.WINDOW_BYTES)

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.scratch_bytes`."""
        details: _Details = footer.details
        windows = 0 if details.compression == "none" else 2 * framing.WINDOW_BYTES
        num_rows, size = details.block(split.index)
        if self.raw:
            return size + windows
        # For each byte 5 to 8 were measured with numbers, and 1 with images. A cell takes its place, or that it is absent.
        return 8 * size + 9 * num_rows * len(columns) + windows

    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        """See `Format.ranges`: the block, or all of a compressed file."""
        details: _Details = footer.details
        if details.compression != "none":
            return [Range(0, footer.file.size)]
        borders = details.borders[split.index : split.index + 2].tolist()
        return [Range(*borders)] if len(borders) == 2 else []  # else it stands for the fault

    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """See `Format.read`: many batches of a compressed file, and only the rows before a fault."""
        for before, num_rows, block in self._decoded(store, footer, split, schema, offset_rows):
            skipped = max(0, offset_rows - before)
            bad = min(block.errors, default=num_rows)
            if bad > skipped:
                yield block.batch.slice(skipped, bad - skipped)
            if block.errors:
                raise block.errors[bad]

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
        """See `SiftingFormat.sift`: a part is a block. Behind a damaged length no record can be found."""
        parts = self._decoded(store, footer, split, schema, offset_rows)
        for before, num_rows, (batch, records, errors) in parts:
            if len(records) < num_rows:
                raise errors[len(records)]
            bad = sorted(errors)
            kept = [BadRow(before + row, str(errors[row]), records.record(row)) for row in bad if keep]
            yield Sifted(batch, before, num_rows, [before + row for row in bad], tuple(kept))

    def _decoded(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int
    ) -> Iterator[tuple[int, int, _Block]]:
        """Decodes the blocks of a split that hold rows from one on; yields the rows before each, its rows, and the block."""
        details: _Details = footer.details
        if details.fault is not None and split.index == len(footer.splits) - 1:
            raise details.fault.error(int(details.rows[-1]))
        is_raw = self.raw and schema.names  # to count records, no byte of them is copied
        decoder = None if is_raw else _decoder(schema.serialize().to_pybytes())
        first, before = int(details.rows[split.index]), 0
        for data, base, num_rows in _blocks(store, footer.file, details, split.index):
            if before + num_rows > offset_rows:
                yield before, num_rows, _block_of(data, base, num_rows, first + before, schema, decoder)
            before += num_rows


class _Block(NamedTuple):
    """A block of records: the good ones as rows, all that it holds, and by number why the others are none."""

    batch: pa.RecordBatch
    records: Records
    errors: dict[int, ArrowflowError]


def _block_of(
    data: memoryview, base: int, num_rows: int, first: int, schema: pa.Schema, decoder: ExampleDecoder | None
) -> _Block:
    """Decodes a padded block, whose first record has the number `first` in its file."""
    starts, stops, faults = framing.framed(data, base, num_rows)
    records = Records(Bytes(np.frombuffer(data, np.uint8)), starts, stops)
    errors: dict[int, ArrowflowError] = {row: fault.error(first + row) for row, fault in faults.items()}
    intact = np.setdiff1d(np.arange(len(records)), list(faults))
    whole = Records(records.data, starts[intact], stops[intact]) if faults else records
    if decoder is None:
        texts = gather(whole.data, whole.starts, whole.stops)
        return _Block(pa.RecordBatch.from_arrays([texts], schema=schema), records, errors)
    batch, misfits = decoder.decode(whole)
    for number, error in misfits.items():
        row = int(intact[number])
        errors[row] = type(error)(f"record {first + row}: {error}")
        errors[row].__cause__ = error.__cause__
    return _Block(batch, records, errors)


@functools.lru_cache(maxsize=16)
def _decoder(schema: bytes) -> ExampleDecoder:
    """Made once, not once a block: for 2,000 columns that takes 10 ms. Equal schemas may differ in metadata."""
    return ExampleDecoder(pa.ipc.read_schema(pa.py_buffer(schema)))


def _walk(store: Store, file: File, compression: str, walk: framing.Walk) -> framing.Walk:
    """Finds the records of a file, or of its first blocks."""
    if compression != "none":
        return _walk_inflated(walk, framing.inflate(store, file, compression))
    if store.is_local and store.memory_map and file.size:
        with store.open(file) as source:
            walk.see(memoryview(source.read_buffer(file.size)), 0)
    while not walk.done and walk.position + framing.HEADER_BYTES <= file.size:
        start = walk.position
        stop = min(start + framing.WINDOW_BYTES, file.size)
        walk.see(memoryview(store.fetch(file, [(start, stop)])[0]), start)
    walk.end(file.size)
    return walk


def _walk_inflated(walk: framing.Walk, pieces: Iterator[bytes]) -> framing.Walk:
    held, base, why = b"", 0, None
    try:
        for piece in pieces:
            gone = min(walk.position - base, len(held))
            held, base = held[gone:] + piece, base + gone
            walk.see(held, base)
            if walk.done:
                break
    except (EOFError, zlib.error) as error:
        why = f"what follows cannot be inflated ({error})"
    walk.end(base + len(held), why)
    return walk


def _splits(details: _Details) -> tuple[Split, ...]:
    rows = details.rows if details.compression == "none" else details.rows[[0, -1]]
    found = [
        Split(index, num_rows, details.decoded_bytes(index, list(details.widths)))
        for index, num_rows in enumerate(np.diff(rows).tolist())
        if num_rows
    ]
    if details.fault is not None:
        found.append(Split(len(found), 1, 0))
    return tuple(found)


def _blocks(store: Store, file: File, details: _Details, split: int) -> Iterator[tuple[memoryview, int, int]]:
    """Yields the blocks of a split: their bytes and `PADDING`, the number of the first byte, and their rows."""
    borders, rows = details.borders.tolist(), np.diff(details.rows).tolist()
    if details.compression == "none":
        if split < len(rows):
            start, stop = borders[split : split + 2]
            yield _block(store, file, start, stop), start, rows[split]
        return
    pieces, held = framing.inflate(store, file, details.compression), b""
    for start, stop, num_rows in zip(borders[:-1], borders[1:], rows, strict=True):
        parts, size = [held], len(held)
        while size < stop - start and (piece := next(pieces, None)) is not None:
            parts.append(piece)
            size += len(piece)
        held = b"".join(parts)
        data, held = held[: stop - start], held[stop - start :]
        yield memoryview(data + bytes(PADDING)), start, num_rows


def _block(store: Store, file: File, start: int, stop: int) -> memoryview:
    """Returns a block and the bytes after it; for a mapped file a view, except for the last block."""
    if store.is_local and store.memory_map and stop + PADDING <= file.size:
        with store.open(file) as source:
            source.seek(start)
            return memoryview(source.read_buffer(stop + PADDING - start))
    return memoryview(b"".join([memoryview(store.fetch(file, [(start, stop)])[0]), bytes(PADDING)]))

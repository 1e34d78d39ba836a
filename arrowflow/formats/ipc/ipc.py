"""Arrow IPC files (Feather V2) and streams: a split is a record batch, mapped if it is in a local, uncompressed file."""

from __future__ import annotations

import errno
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import PlanError, SourceError, repeated
from arrowflow.formats.capabilities import InPlaceFormat
from arrowflow.formats.ipc import checks
from arrowflow.formats.ipc.messages import TRAILER_BYTES, Messages, listed, walk
from arrowflow.formats.ipc.metadata import DICTIONARY, RECORD_BATCH, Batch, Block, first_buffers, parse_batch
from arrowflow.formats.ipc.private_map import map_private
from arrowflow.formats.protocol import Footer, Split, without_columns
from arrowflow.formats.types import conform, decoded_schema, width_bits
from arrowflow.storage import File, Mapped, Range, Store, coalesce
from arrowflow.workarounds.codes import masked

_TAIL_BYTES: Final = 64 << 10
_INFLATION: Final = 4
"""The assumed growth of compressed texts and lists, where only decoding would tell their size."""


@dataclass(frozen=True, slots=True, eq=False)
class _Details:
    """The details that `IpcFormat` keeps of a file.

    Attributes:
        messages: The messages of the file.
        names: Names of the columns, in the order of the file.
        unsafe: Numbers of the columns with offsets, codes or texts, which are checked; in other columns a bad value
            is only wrong.
        dictionary_bytes: The bytes that compressed dictionaries announce.
        compressed: Whether the record batches are compressed.
        column_bytes: Decoded bytes of each column (second axis) in each batch (first axis), estimated.
        first_buffers: For each column the number of its first buffer, then the number of all buffers.
        buffers: `Batch.buffers` of each batch that is compressed or not local. None for other batches, and where
            only the data tell the layout.
        encoded: Numbers of the columns that the file holds as codes, and that are decoded.
        is_stream: Whether it is no file, but a stream, of which each batch is read by itself.
    """

    messages: Messages
    names: tuple[str, ...]
    unsafe: frozenset[int]
    dictionary_bytes: int
    compressed: tuple[bool, ...]
    column_bytes: npt.NDArray[np.int64]
    first_buffers: tuple[int, ...]
    buffers: tuple[npt.NDArray[np.int64] | None, ...]
    encoded: frozenset[int]
    is_stream: bool


@dataclass(frozen=True, slots=True)
class IpcFormat(InPlaceFormat):
    """Arrow IPC files and streams. Batches of uncompressed, local files are views into the mapped file."""

    name: ClassVar[str] = "ipc"
    part: ClassVar[str] = "record batch"
    suffixes: ClassVar[tuple[str, ...]] = (".arrow", ".feather", ".ipc", ".arrows")

    def footer(self, store: Store, file: File) -> Footer:
        """See `Format.footer`: reads the footer, and the metadata of each batch for its number of rows."""
        found = _read_tail(store, file)
        if found is None:
            messages = walk(store, file)
            stored = pa.ipc.read_schema(messages.head)
        else:
            # The footer is opened as a file, so that Arrow verifies all of it before `parse_footer` reads it.
            with pa.ipc.open_file(pa.BufferReader(b"ARROW1\0\0" + found[1].to_pybytes())) as opened:
                stored = opened.schema
            messages = listed(store, file, *found)
            if not store.is_local:
                checks.check_head(messages.head, stored)
        batches = _read_metadata(store, file, messages.batches, len(stored))
        dictionaries = _read_metadata(store, file, messages.dictionaries, 1, DICTIONARY)
        encoded = zip(messages.dictionaries, dictionaries, strict=True)
        compressed = [(block, batch.buffers) for block, batch in encoded if batch.is_compressed]
        firsts = first_buffers(stored)
        checks.check_lengths(stored, batches, firsts)
        sizes = _column_bytes(stored, batches, firsts)
        details = _Details(
            messages,
            tuple(stored.names),
            frozenset(index for index, type in enumerate(stored.types) if width_bits(type) is None),
            checks.announced(store, file, compressed),
            tuple(batch.is_compressed for batch in batches),
            sizes,
            firsts,
            tuple(
                # A copy keeps no other part of the file in memory.
                batch.buffers.copy()
                if (batch.is_compressed or not store.is_local or found is None)
                and (batch.fills_block and firsts and firsts[-1] == len(batch.buffers))
                else None
                for batch in batches
            ),
            frozenset(index for index, type in enumerate(stored.types) if checks.is_encoded(type)),
            found is None,
        )
        splits = tuple(
            Split(index, batch.num_rows, int(sizes[index].sum())) for index, batch in enumerate(batches)
        )
        num_rows = sum(split.num_rows for split in splits)
        twice = tuple(repeated(stored.names))
        schema = without_columns(decoded_schema(stored), twice)
        return Footer(file, schema, splits, num_rows, details, stored, twice)

    def column_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.column_bytes`: exact for all but dictionaries, compressed texts and compressed lists."""
        details: _Details = footer.details
        return int(details.column_bytes[split.index, _wanted(details, columns)].sum())

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.scratch_bytes`: at most the stored bytes, and none if they are mapped."""
        return footer.details.messages.batches[split.index].body_bytes

    def unsure(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[str]:
        """See `Unsure.unsure`: columns of codes, and compressed columns without a fixed width."""
        details: _Details = footer.details
        unsure = details.encoded | (details.unsafe if details.compressed[split.index] else frozenset())
        return [details.names[index] for index in _wanted(details, columns) if index in unsure]

    def announced_bytes(self, store: Store, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Unsure.announced_bytes`: each compressed buffer begins with its decoded size. Mapped batches take none."""
        details: _Details = footer.details
        block, buffers = details.messages.batches[split.index], details.buffers[split.index]
        wanted = _wanted(details, columns)
        if not details.compressed[split.index]:
            decoded = 0 if self.is_mapped(store, footer) else self.column_bytes(footer, split, columns)
            return decoded + details.dictionary_bytes
        if buffers is None:
            return 0  # only the data tell the places of the buffers
        found = [buffers[slice(*details.first_buffers[index : index + 2])] for index in wanted]
        return (
            checks.announced(store, footer.file, [(block, each) for each in found]) + details.dictionary_bytes
        )

    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        """See `Format.ranges`: all dictionaries, the metadata of the batch, and the buffers of the columns."""
        details: _Details = footer.details
        wanted = _wanted(details, columns)
        if not wanted:
            return []
        dictionaries = [block.range for block in details.messages.needed[split.index]]
        return dictionaries + _batch_ranges(details, split.index, wanted)

    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        wanted, batch = _wanted(footer.details, schema.names), None
        if wanted and isinstance(store, Mapped):
            batch = _read_opened(store.open(footer.file), split, wanted, is_view=True)
        elif wanted:
            is_file = store.is_local and not footer.details.is_stream
            batch = (_read_local if is_file else _read_fetched)(store, footer, split, wanted)
        batch = _checked(batch, split, footer, wanted)
        yield from conform(batch.slice(offset_rows) if offset_rows else batch, schema, offset_rows)

    def is_mapped(self, store: Store, footer: Footer) -> bool:
        details: _Details = footer.details
        return store.is_local and store.memory_map and not details.is_stream and not any(details.compressed)

    def only_maps(self, store: Store, footer: Footer, columns: Sequence[str]) -> bool:
        """See `InPlaceFormat.only_maps`: texts and offsets are checked, and codes are decoded."""
        return self.is_mapped(store, footer) and footer.details.unsafe.isdisjoint(
            _wanted(footer.details, columns)
        )

    def check_in_place(self, store: Store, footer: Footer) -> None:
        details: _Details = footer.details
        if not (store.is_local and store.memory_map):
            why = "are not mapped into memory: they are not on a local disk, or memory_map is False"
        elif details.is_stream:
            why = "are streams, of which single rows cannot be read (write them as files)"
        elif any(details.compressed):
            why = "hold compressed record batches, of which single rows cannot be read (write them uncompressed)"
        else:
            return
        raise PlanError(
            f"shuffle without buffer_size, and sample, gather rows from where they lie, but the files {why}; put "
            "`.cache()` right before it, or use shuffle(buffer_size)"
        ).locate(file=footer.file.path)


def _checked(batch: pa.RecordBatch | None, split: Split, footer: Footer, wanted: list[int]) -> pa.RecordBatch:
    """Returns a batch that is safe to use; if no batch was read, a batch without columns."""
    if batch is None:
        return pa.RecordBatch.from_struct_array(pa.nulls(split.num_rows, pa.struct([])))
    if batch.num_rows != split.num_rows:
        raise SourceError(f"expected {split.num_rows} rows as the metadata say, found {batch.num_rows}")
    batch.validate()
    mended: dict[int, pa.Array] = {}
    for place, index in enumerate(wanted):
        if index not in footer.details.unsafe:
            if (column := checks.recounted(batch, place)) is not None:
                mended[place] = column
        else:
            try:
                batch.column(place).validate(full=True)
            except pa.ArrowInvalid:
                column = masked(batch.column(place))
                column.validate(full=True)
                mended[place] = column
    return checks.with_columns(batch, mended) if mended else batch


def _wanted(details: _Details, columns: Sequence[str]) -> list[int]:
    names = frozenset(columns)
    return [index for index, name in enumerate(details.names) if name in names]


def _batch_ranges(details: _Details, index: int, wanted: list[int]) -> list[Range]:
    """Returns the metadata of a batch and the columns' parts of its body; the whole block if the parts are unknown."""
    block, buffers = details.messages.batches[index], details.buffers[index]
    if buffers is None:
        return [block.range]
    body = block.offset + block.metadata_bytes
    found = [Range(block.offset, body)]
    for column in wanted:
        own = buffers[slice(*details.first_buffers[column : column + 2])]
        found += [Range(body + start, body + start + size) for start, size in own.tolist() if size]
    return found


def _read_local(store: Store, footer: Footer, split: Split, wanted: list[int]) -> pa.RecordBatch:
    # With a choice of fields Arrow copies the columns that it would else map. The choice saves decoding only if there
    # is any.
    if store.memory_map and not footer.details.compressed[split.index]:
        try:
            # Each batch has a map of its own: writes to the batch change neither the file nor another batch.
            mapped = map_private(footer.file.path, *footer.details.messages.batches[split.index].range)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
        else:
            return _read_opened(pa.BufferReader(mapped), split, wanted, is_view=True)
    with store.open(footer.file) as source:
        return _read_opened(source, split, wanted, is_view=False)


def _read_opened(source: pa.NativeFile, split: Split, wanted: list[int], *, is_view: bool) -> pa.RecordBatch:
    options = pa.ipc.IpcReadOptions(included_fields=[] if is_view else wanted, use_threads=False)
    with pa.ipc.open_file(source, options=options) as opened:
        batch = opened.get_batch(split.index)
    return batch.select(wanted) if is_view else batch


def _read_fetched(store: Store, footer: Footer, split: Split, wanted: list[int]) -> pa.RecordBatch:
    """Reads the batch as a stream of its own: Arrow opens *files* in its I/O threads, which must not meet Python.

    The stream has the batch's whole length. Of its body, only the parts that the wanted columns need are written or
    read.
    """
    details: _Details = footer.details
    batch = details.messages.batches[split.index]
    dictionaries = store.fetch(footer.file, [block.range for block in details.messages.needed[split.index]])
    ranges = _batch_ranges(details, split.index, wanted)
    head = b"".join([details.messages.head, *dictionaries])
    start, size = len(head), batch.range[1] - batch.offset
    data = pa.allocate_buffer(start + size)  # which any thread may free, whether it has the GIL or not
    view = memoryview(data).cast("B")
    view[:start] = head
    for (low, high), part in zip(ranges, store.fetch(footer.file, ranges), strict=True):
        view[start + low - batch.offset : start + high - batch.offset] = memoryview(part).cast("B")
    options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
    with pa.ipc.open_stream(pa.BufferReader(data), options=options) as opened:
        return opened.read_next_batch()


def _read_tail(store: Store, file: File) -> tuple[int, pa.Buffer] | None:
    """Returns where the footer of a file starts, and its bytes; None if it has none, as a stream."""
    tail = store.tail(file, _TAIL_BYTES) if file.size else pa.py_buffer(b"")
    length, magic = struct.unpack("<i6s", tail[-TRAILER_BYTES:]) if file.size >= TRAILER_BYTES else (0, b"")
    if magic != checks.MAGIC:
        checks.check_start(store, file)
        return None
    num_bytes = TRAILER_BYTES + length
    if length <= 0 or num_bytes > file.size:
        raise SourceError(
            f"a footer of {length} bytes does not fit a file of {file.size}; the file is corrupt"
        )
    if num_bytes > tail.size:
        tail = store.tail(file, num_bytes)
    return file.size - num_bytes, tail.slice(tail.size - num_bytes)


def _read_metadata(
    store: Store, file: File, blocks: Sequence[Block], num_columns: int, kind: int = RECORD_BATCH
) -> list[Batch]:
    ranges = [(block.offset, block.offset + block.metadata_bytes) for block in blocks]
    merged = coalesce(ranges, hole_bytes=0) if store.is_local else coalesce(ranges)
    buffers = store.fetch(file, merged)
    lows = [low for low, _ in merged]
    batches = []
    for block, (start, end) in zip(blocks, ranges, strict=True):
        place = bisect_right(lows, start) - 1
        found = memoryview(buffers[place])[start - lows[place] : end - lows[place]]
        batches.append(parse_batch(found, block.body_bytes, num_columns, kind))
    return batches


def _column_bytes(
    schema: pa.Schema, batches: Sequence[Batch], firsts: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """Returns the decoded bytes of each column in each batch."""
    bits = [width_bits(type) for type in schema.types]
    fixed = np.array([each or 0 for each in bits], np.int64)
    is_fixed = np.array([each is not None for each in bits], np.bool_)
    encoded = np.array([_INFLATION if checks.is_encoded(type) else 1 for type in schema.types], np.int64)
    borders = np.array(firsts, np.int64)
    sizes = np.zeros((len(batches), len(bits)), np.int64)
    for row, batch in zip(sizes, batches, strict=True):
        stored = np.cumsum([0, *batch.buffers[:, 1]])
        if firsts and firsts[-1] == len(batch.buffers):
            own = stored[borders[1:]] - stored[borders[:-1]]
        else:
            own = stored[-1] // max(1, int((~is_fixed).sum()))
        inflated = own * (_INFLATION if batch.is_compressed else encoded)
        row[:] = np.where(is_fixed, batch.num_rows * fixed // 8, inflated)
    return sizes

"""The metadata of an IPC file, checked before anything is made of it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import SourceError
from arrowflow.formats.ipc.metadata import Batch, Block
from arrowflow.formats.types import width_bits
from arrowflow.storage import File, Store
from arrowflow.types import WITHOUT_ARRAYS

MAGIC: Final = b"ARROW1"
"""The first and the last bytes of a file."""

_ALIGNMENT: Final = 8
_LENGTH: Final = struct.Struct("<q")


def check_start(store: Store, file: File) -> None:
    """Raises `SourceError` for the start of a file without its end, and for another format."""
    head = store.fetch(file, [(0, min(file.size, len(MAGIC)))])[0].to_pybytes() if file.size else b""
    if head == MAGIC:
        raise SourceError(
            "the file starts as an Arrow IPC file but does not end as one: it is truncated; write it anew"
        )
    if head[:4] == b"FEA1":
        raise SourceError(
            "the file is Feather V1, which read_ipc does not read; rewrite it with pyarrow.feather.write_feather"
        )


def check_blocks(blocks: Sequence[Block], file: File) -> None:
    """Refuses messages that lie outside of the file, or that no writer places so."""
    for block in blocks:
        outside = (
            block.offset < 0 or block.metadata_bytes < 8 or block.body_bytes < 0 or block.range[1] > file.size
        )
        if outside or any(number % _ALIGNMENT for number in block):
            raise SourceError(f"a message at {block} lies outside of the file; the file is corrupt")


def check_head(head: pa.Buffer, stored: pa.Schema) -> None:
    """Compares the two schemas of a file: batches that are read as a stream are read by the first one."""
    found = pa.ipc.read_schema(head)
    if not found.equals(stored, check_metadata=True):
        raise SourceError(
            "the schemas at the start and at the end of the file differ; the file is corrupt: write it anew"
        )


def check_lengths(schema: pa.Schema, batches: Sequence[Batch], firsts: tuple[int, ...]) -> None:
    """Refuses a batch that tells of more rows than it has values, before memory is planned for them."""
    widths = [0 if is_encoded(type) else width_bits(type, validity_bits=0) or 0 for type in schema.types]
    bits, borders = np.array(widths, np.float64), np.array(firsts, np.int64)
    for index, batch in enumerate(batches):
        if batch.is_compressed or not firsts or firsts[-1] != len(batch.buffers):
            continue
        ends = np.cumsum([0, *batch.buffers[:, 1]])[borders]
        (few,) = np.nonzero(8 * np.diff(ends) < batch.num_rows * bits)
        if few.size:
            raise SourceError(
                f"record batch {index} has {batch.num_rows:,} rows, as its metadata say, and column "
                f"{schema.names[few[0]]!r} does not have so many values; the file is corrupt: write it anew"
            )


def announced(store: Store, file: File, buffers: Iterable[tuple[Block, npt.NDArray[np.int64]]]) -> int:
    """Returns the decoded bytes of compressed buffers, with which each of them begins."""
    places = [
        (block.offset + block.metadata_bytes + start, size)
        for block, each in buffers
        for start, size in each.tolist()
        if size >= _LENGTH.size
    ]
    ranges = [(start, start + _LENGTH.size) for start, _ in places]
    lengths = (_LENGTH.unpack(part)[0] for part in store.fetch(file, ranges))
    # A length of -1 marks a buffer that is stored uncompressed.
    return sum(size if length < 0 else length for length, (_, size) in zip(lengths, places, strict=True))


def recounted(batch: pa.RecordBatch, place: int) -> pa.Array | None:
    """Returns a column whose nulls are counted when somebody asks: the file may say another number. None if it has none."""
    try:
        column = batch.column(place)
    except KeyError:  # of a type in `WITHOUT_ARRAYS`
        return None
    if not column.null_count:
        return None
    type = column.type
    if pa.types.is_nested(type) or isinstance(type, pa.BaseExtensionType):
        column.validate(full=True)
        return None
    return pa.Array.from_buffers(type, len(column), column.buffers(), -1, column.offset)


def with_columns(batch: pa.RecordBatch, columns: Mapping[int, pa.Array]) -> pa.RecordBatch:
    """Returns a batch with other columns in some places."""
    if any(type.id in WITHOUT_ARRAYS for type in batch.schema.types):
        for place, column in columns.items():
            batch = batch.set_column(place, batch.schema.field(place), column)
        return batch
    made = [columns.get(place, column) for place, column in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(made, schema=batch.schema)


def is_encoded(type: pa.DataType) -> bool:
    """Whether a file holds a column of this type in another form, which decoding unfolds."""
    return bool(pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type))

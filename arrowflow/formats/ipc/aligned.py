"""Writes Arrow IPC files in which every buffer starts at a multiple of 64 bytes, as Arrow recommends for mapped files.

pyarrow aligns to 8 bytes and offers no other alignment. So pyarrow writes its file into a sink that keeps all pieces
that it gets. For columns these pieces are views of their memory. Each message then goes on to the file, with padding
after its metadata and between its buffers. Three places in the metadata hold positions and are changed to match: the
start of each buffer in the body, the size of the body, and the list of all messages in the footer.

All written bytes pass one checksum on their way, in blocks that are still in the processor's cache when the operating
system copies them.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from arrowflow.formats.ipc.messages import PREFIX, TRAILER_BYTES
from arrowflow.formats.ipc.metadata import (
    BLOCK,
    CONTINUATION,
    DICTIONARY,
    RECORD_BATCH,
    Block,
    locate_blocks,
    locate_message,
)
from arrowflow.workarounds.codes import has_dictionary

ALIGNMENT: Final = 64

_ZEROS: Final = memoryview(bytes(ALIGNMENT))
_BLOCK_BYTES: Final = 1 << 20

Sink = Callable[[list[memoryview]], int]
"""Takes the first bytes of some pieces, and returns how many, as `os.writev` does."""


class Written(NamedTuple):
    """The size of a written file, and the XXH3 of all its bytes, in 64 bits.

    XXH3 takes 0.02 ms a megabyte, where `zlib.crc32` takes 0.25.
    """

    num_bytes: int
    checksum: int


def write_aligned(
    sink: Sink,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    compression: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Written:
    """Writes a whole file, without a copy of the batches' values, except where pyarrow packs slices.

    Args:
        sink: Takes all bytes of the file. It may keep the pieces, which do not change.
        schema: Schema of the batches.
        batches: The record batches; a column's dictionary is the same in all of them.
        compression: `"lz4"`, `"zstd"` or None.
        metadata: Further entries for the footer.

    Raises:
        OSError: The file cannot be written.
        pyarrow.ArrowInvalid: A batch has another schema or another dictionary.
    """
    collected = _Collected()
    messages = _Messages(collected, _Output(sink))
    # Explicit options override environment variables, which may ask for old formats.
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(
        pa.PythonFile(collected, mode="w"), schema, options=options, metadata=metadata
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)
            messages.move()
    return messages.finish()


def same_file(batches: Sequence[pa.RecordBatch]) -> bool:
    """Returns whether record batches of one schema have the same dictionaries: a file holds only one for each encoded column.

    Examples:
        >>> first, other = (pa.record_batch({"x": pa.array([x]).dictionary_encode()}) for x in "ab")
        >>> same_file([first, first]), same_file([first, other])
        (True, False)
    """
    if len(batches) < 2 or not any(map(has_dictionary, batches[0].schema.types)):
        return True
    first, *others = ([d for column in batch.columns for d in _dictionaries(column)] for batch in batches)
    return all(len(first) == len(other) and all(map(pa.Array.equals, first, other)) for other in others)


def _dictionaries(array: pa.Array) -> Iterator[pa.Array]:
    type = array.type
    if not has_dictionary(type):
        return
    if isinstance(type, pa.BaseExtensionType):
        yield from _dictionaries(array.storage)
    elif pa.types.is_dictionary(type):
        yield array.dictionary
        yield from _dictionaries(array.dictionary)
    elif pa.types.is_map(type):
        yield from _dictionaries(array.keys)
        yield from _dictionaries(array.items)
    elif pa.types.is_struct(type) or pa.types.is_union(type):
        for index in range(type.num_fields):
            yield from _dictionaries(array.field(index))
    else:  # lists of all kinds, and run-end-encoded arrays
        yield from _dictionaries(array.values)


class _Collected:
    """A sink that pyarrow takes for a file: it keeps views of all pieces that it gets, until they are taken."""

    closed = False

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self._position = 0

    def write(self, data: pa.Buffer | bytes) -> int:
        view = memoryview(data)
        if view.nbytes:
            self._pieces.append(view)
            self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def take(self, num_bytes: int) -> list[memoryview]:
        taken = []
        while num_bytes:
            piece = self._pieces[0]
            if piece.nbytes <= num_bytes:
                self._pieces.popleft()
            else:
                piece, self._pieces[0] = piece[:num_bytes], piece[num_bytes:]
            taken.append(piece)
            num_bytes -= piece.nbytes
        return taken

    def read(self, num_bytes: int) -> bytearray:
        return bytearray().join(self.take(num_bytes))

    def read_all(self) -> bytearray:
        return self.read(sum(piece.nbytes for piece in self._pieces))


class _Messages:
    """Moves messages from pyarrow's output to the file, and remembers their new places for the footer."""

    def __init__(self, source: _Collected, output: _Output) -> None:
        self._source = source
        self._output = output
        self._dictionaries: list[Block] = []
        self._batches: list[Block] = []
        self._ended = False

    def move(self) -> None:
        """Moves all messages that pyarrow has written so far."""
        if not self._output.num_bytes:
            self._output.add(memoryview(self._source.read(len(b"ARROW1\0\0"))))
        while self._source and not self._ended:
            self._move_next()

    def finish(self) -> Written:
        """Moves the remaining messages, and the footer."""
        self.move()
        footer = self._source.read_all()
        view = memoryview(footer)[:-TRAILER_BYTES]
        for (start, end), blocks in zip(
            locate_blocks(view), (self._dictionaries, self._batches), strict=True
        ):
            if end - start != len(blocks) * BLOCK.size:
                raise AssertionError("the footer lists other messages than were written")
            for index, block in enumerate(blocks):
                BLOCK.pack_into(footer, start + index * BLOCK.size, *block)
        self._output.add(memoryview(footer))
        return self._output.finish()

    def _move_next(self) -> None:
        source, output = self._source, self._output
        prefix = source.read(PREFIX.size)
        continuation, size = PREFIX.unpack(prefix)
        if continuation != CONTINUATION:
            raise AssertionError(f"expected the start of a message, found {bytes(prefix)!r}")
        if not size:
            self._ended = True
            output.add(memoryview(prefix))
            return
        metadata = source.read(size)
        message = locate_message(memoryview(metadata))
        buffers = np.frombuffer(metadata, "<i8", 2 * message.num_buffers, message.buffers).reshape(-1, 2)
        stored = buffers.tolist()
        padded = buffers[:, 1] + -buffers[:, 1] % ALIGNMENT
        buffers[:, 0] = np.cumsum(padded) - padded
        body_bytes = int(padded.sum())
        if message.body_field is not None:
            struct.pack_into("<q", metadata, message.body_field, body_bytes)
        start = output.num_bytes
        room = -(start + PREFIX.size + size) % ALIGNMENT
        output.add(memoryview(PREFIX.pack(CONTINUATION, size + room)))
        output.add(memoryview(metadata))
        output.add(_ZEROS[:room])
        self._move_body(stored, message.body_bytes)
        block = Block(start, PREFIX.size + size + room, body_bytes)
        if message.kind == DICTIONARY:
            self._dictionaries.append(block)
        elif message.kind == RECORD_BATCH:
            self._batches.append(block)

    def _move_body(self, buffers: list[list[int]], body_bytes: int) -> None:
        position = 0
        for start, size in buffers:
            if start < position:
                raise AssertionError("the buffers of a message do not follow each other")
            self._source.take(start - position)
            for piece in self._source.take(size):
                self._output.add(piece)
            self._output.add(_ZEROS[: -size % ALIGNMENT])
            position = start + size
        self._source.take(body_bytes - position)


class _Output:
    """Writes pieces to a file in few calls, and adds up their checksum."""

    def __init__(self, sink: Sink) -> None:
        self.num_bytes = 0
        self._sink = sink
        self._checksum = xxhash.xxh3_64()
        self._pieces: list[memoryview] = []
        self._held_bytes = 0

    def add(self, data: memoryview) -> None:
        for start in range(0, data.nbytes, _BLOCK_BYTES):
            piece = data[start : start + _BLOCK_BYTES]
            self._pieces.append(piece)
            self._held_bytes += piece.nbytes
            # Of pieces Linux takes twice as many in one call.
            if self._held_bytes >= _BLOCK_BYTES or len(self._pieces) >= 512:
                self._flush()
        self.num_bytes += data.nbytes

    def finish(self) -> Written:
        self._flush()
        return Written(self.num_bytes, self._checksum.intdigest())

    def _flush(self) -> None:
        pieces, self._pieces, self._held_bytes = self._pieces, [], 0
        for piece in pieces:
            self._checksum.update(piece)
        while pieces:
            written = self._sink(pieces)
            done = 0
            while done < len(pieces) and written >= pieces[done].nbytes:
                written -= pieces[done].nbytes
                done += 1
            pieces = pieces[done:]
            if written:
                pieces[0] = pieces[0][written:]

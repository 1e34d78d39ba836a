"""`SpillFile`: record batches moved out of memory into files without a name, and mapped back.

* **Nothing is left behind.** The files are made without a name if the system can do so (Linux), and lose their name at
  once elsewhere. Their space is freed with the last record batch in them, however the process ends.
* **Few maps.** A process may have some 65,000 maps and 1,024 descriptors; a cache may have more chunks. So chunks lie
  one after the other in segments, each twice as large as the segment before. A segment is mapped once, as a whole,
  while it is still empty: holes take no space. The next run continues where the run before it stopped.
* **A full disk is an error, not a signal.** The map is only read. Its content was written through the descriptor, which
  reports when there is no room.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import tempfile
from typing import Any, Final, NamedTuple

import pyarrow as pa

from arrowflow.errors import CacheFullError, WriteError
from arrowflow.storage import NO_ROOM
from arrowflow.workarounds.streams import stream_bytes, write_stream

FIRST_SEGMENT_BYTES: Final = 64 << 20
MAX_SEGMENT_BYTES: Final = 4 << 30
ALIGNMENT: Final = 64
TOO_MANY: Final = (errno.EMFILE, errno.ENFILE)


class Segment:
    """A file without a name, open for writing, and its map."""

    __slots__ = ("buffer", "descriptor", "end")

    def __init__(self, folder: str, num_bytes: int) -> None:
        self.descriptor = -1
        with tempfile.TemporaryFile(prefix=".spilled-", dir=folder) as file:
            self.descriptor = os.dup(file.fileno())
        os.ftruncate(self.descriptor, num_bytes)
        self.buffer = pa.py_buffer(mmap.mmap(self.descriptor, num_bytes, prot=mmap.PROT_READ))
        self.end = 0

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Spilled(NamedTuple):
    """Rows that lie in a file.

    Attributes:
        chunk: The rows, mapped.
        num_bytes: The bytes that they take there.
    """

    chunk: pa.RecordBatch
    num_bytes: int


class SpillFile:
    """Moves record batches into a folder's file system. Used by one thread at a time.

    A forked process shares the descriptor, and would write to the same place. So it begins a segment of its own.

    Args:
        folder: The folder of the files.
    """

    __slots__ = ("_folder", "_next_bytes", "_process", "_segment")

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._segment: Segment | None = None
        self._next_bytes = FIRST_SEGMENT_BYTES
        self._process = os.getpid()

    def move(self, chunk: pa.RecordBatch) -> Spilled:
        """Writes a chunk, and returns the chunk as a view of the file. The view may be used without a limit of time.

        Raises:
            CacheFullError: There is no room for the chunk.
            WriteError: The chunk cannot be written.

        Examples:
            >>> chunk = pa.record_batch({"x": [1, 2, 3]})
            >>> SpillFile(tempfile.gettempdir()).move(chunk).chunk.equals(chunk)
            True
        """
        num_bytes = stream_bytes(chunk)
        try:
            segment = self._segment_for(num_bytes)
            write_stream(chunk, pa.PythonFile(Sink(segment.descriptor, segment.end), mode="w"))
        except OSError as error:
            raise self._failed(error, num_bytes) from error
        written = segment.buffer.slice(segment.end, num_bytes)
        segment.end += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return Spilled(_read(written, chunk.schema), num_bytes)

    def _segment_for(self, num_bytes: int) -> Segment:
        segment = self._segment if self._process == os.getpid() else None
        if segment is None or segment.end + num_bytes > segment.buffer.size:
            segment = self._segment = Segment(self._folder, max(self._next_bytes, num_bytes))
            self._process = os.getpid()
            self._next_bytes = min(2 * self._next_bytes, MAX_SEGMENT_BYTES)
        return segment

    def _failed(self, error: OSError, num_bytes: int) -> CacheFullError | WriteError:
        if error.errno in NO_ROOM:
            return CacheFullError(
                f"{num_bytes:,} bytes were to be spilled to {self._folder!r}, and there is no room, since "
                f"{NO_ROOM[error.errno]} ({error.strerror}); "
                "free space there, name another folder in cache(spill=…), or raise ram_budget"
            )
        if error.errno in TOO_MANY:
            return WriteError(
                f"no file can be opened in {self._folder!r}, since too many are open ({error.strerror}); raise their "
                "limit (ulimit -n), close what is not needed, or raise ram_budget"
            )
        return WriteError(
            f"{self._folder!r} cannot be written ({error}); name a folder in cache(spill=…) that can"
        )


class SpillFiles:
    """Spill files for any number of threads: each thread takes a file that nobody uses, and gives it back.

    So there are as many files as were in use at the same time. There is no lock: `list.pop` is a single step.
    """

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: list[SpillFile] = []

    def move(self, chunk: pa.RecordBatch, folder: str) -> Spilled:
        """Writes a chunk, as `SpillFile.move` does; always to the same folder."""
        try:
            file = self._free.pop()
        except IndexError:
            file = SpillFile(folder)
        try:
            return file.move(chunk)
        finally:
            self._free.append(file)


class Sink(io.RawIOBase):
    """The sink that Arrow writes into: a part of a file."""

    def __init__(self, descriptor: int, start: int) -> None:
        self._descriptor = descriptor
        self._place = start

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Writes all of `data`; a disk that fills up takes only a part at first."""
        view = memoryview(data).cast("B")
        num_bytes = len(view)
        while view:
            count = os.pwrite(self._descriptor, view, self._place)
            self._place += count
            view = view[count:]
        return num_bytes

    def tell(self) -> int:
        """Returns the place of the next byte."""
        return self._place


def _read(written: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with pa.ipc.open_stream(pa.BufferReader(written), options=options) as reader:
        chunk = reader.read_next_batch()
    if not chunk.schema.equals(schema):
        raise WriteError(
            f"rows of the schema {schema} come back from Arrow IPC as {chunk.schema}; register their extension types, "
            "or cache in memory alone"
        )
    return chunk

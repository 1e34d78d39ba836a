"""Files and their file systems, as far as readers see them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from arrowflow.errors import ArrowflowError, SourceError, said
from arrowflow.lazy import fs as pafs
from arrowflow.storage.requests import PART_BYTES, Requests, SentWhole, short_read
from arrowflow.storage.retries import about_credentials, passing

T = TypeVar("T")

HOLE_BYTES: Final = 1 << 20
"""Bytes between two ranges that are fetched along instead of by a second request: the cost of a round trip."""

NO_RANGES: Final = (
    "the server does not deliver parts of files (HTTP range requests), which reading needs; copy the file to this "
    "machine, or to storage that does"
)


class Range(NamedTuple):
    """Bytes of a file: the offset of the first one, and the offset after the last one."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class File:
    """One file of a source.

    Attributes:
        path: Full path within its file system.
        relative: Path below the folder that all files of the source have in common. This part of the path stays
            when the data move, so a state digests it.
        size: Bytes.
        start: The index in `path` at which the part found by listing begins: after a named directory, or before the
            first wildcard. None for a file that the user named itself.
        mtime_ns: Time of the last change, in nanoseconds since 1970, by its listing; None if the listing does not
            say.
        is_local: Whether it lies on this machine's own file system.
        inode: The number of the file in its local file system, when it was listed; None if it is not known.
    """

    path: str
    relative: str
    size: int
    start: int | None = field(default=None, compare=False)
    mtime_ns: int | None = field(default=None, compare=False)
    is_local: bool = field(default=False, compare=False)
    inode: int | None = field(default=None, compare=False)

    @property
    def change(self) -> str | None:
        """How the file differs from its listing; None if it does not. Only local files are looked at."""
        if not self.is_local:
            return None
        try:
            found = os.stat(self.path)  # noqa: PTH116  (`Path.stat` takes twice as long, and each split asks)
        except OSError as error:
            return f"it was removed, or cannot be reached ({error.strerror})"
        if found.st_size != self.size:
            return f"it had {self.size:,} bytes, and has {found.st_size:,}"
        if self.inode not in (None, found.st_ino):
            return "another file of the same size took its place"
        if self.mtime_ns not in (None, found.st_mtime_ns):
            return "it was written again, with the same size"
        return None

    @property
    def is_changed(self) -> bool:
        """Whether it differs from its listing; only local files are looked at."""
        return self.change is not None


@dataclass(frozen=True, slots=True)
class Store:
    """A file system as the readers see it. Picklable; many threads may use it at the same time.

    Attributes:
        filesystem: The `pyarrow.fs.FileSystem` of the paths.
        memory_map: Whether local files are mapped. If another process shortens a mapped file while it is read, the
            reading process dies (SIGBUS). False reads files instead.
        is_network: Whether local paths lead to a mounted file system of another machine.
        connections: The most connections that its client opens; None if there is no such number, or nobody knows.
        requests: The way to ask for bytes of files that are not local.
    """

    filesystem: Any
    memory_map: bool = True
    is_network: bool = False
    connections: int | None = field(default=None, compare=False)
    requests: Requests = field(default_factory=Requests, compare=False, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether the files lie on this machine's own file system."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    @property
    def is_python(self) -> bool:
        """Whether the file system is written in Python (fsspec): Arrow's own threads must not enter it."""
        return isinstance(self.filesystem, pafs.PyFileSystem)

    @property
    def unmapped(self) -> Store:
        """The store that reads local files. A map counts as memory of this process, which ends if its file is shortened."""
        return replace(self, memory_map=False) if self.is_local else self

    def together(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Makes calls that read, beside each other where they wait for a network; returns their results, in order."""
        return [call() for call in calls] if self.is_local else self.requests.services.together(calls)

    def open(self, file: File) -> pa.NativeFile:
        """Opens a file for random access; the caller closes it."""
        if not self.is_local:
            return self.open_briefly(file, 4 << 20)
        if self.memory_map and file.size > 0:
            return pa.memory_map(file.path)
        return self.filesystem.open_input_file(file.path)

    def open_briefly(self, file: File, ahead_bytes: int) -> pa.NativeFile:
        """Opens a file that is read in order, at least so many bytes at once: nothing is open between two reads."""
        return pa.PythonFile(_BriefFile(self, file, ahead_bytes), "r")

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """The bytes that it holds in memory: none, unless it is a `Fetched`."""
        return ()

    def fetch_ahead(self, file: File, ranges: Iterable[tuple[int, int]]) -> Fetched:
        """Fetches byte ranges with few requests and returns a store that serves reads of them from memory.

        Raises:
            SourceError: A range does not lie within the file.
        """
        merged = coalesce(ranges)
        for start, end in merged:
            if start < 0 or end > file.size:
                raise SourceError(
                    f"bytes {start} to {end} lie outside of the file of {file.size}; the file is corrupt"
                ).locate(file=file.path)
        buffers = self.fetch(file, merged)
        # A reader that finds that the file has changed tells the runs of this store; the bytes need no more of its requests.
        requests = Requests(changed=self.requests.changed)
        held = zip(merged, buffers, strict=True)
        return Fetched(self.filesystem, requests=requests, file=file, held=dict(held))

    def fetch(self, file: File, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Returns the bytes of each `Range` in memory of their own. Some file systems fetch them at the same time.

        Raises:
            SourceError: The file ends before a range does, or its storage fails.
            OSError: A local file cannot be opened or read, or another file is gone.
        """
        if not ranges:
            return []
        if self.is_local:
            local = [pa.allocate_buffer(end - start) for start, end in ranges]
            _read(file, zip(ranges, local, strict=True))
            return local
        buffers = self._requested(file, ranges)
        for (start, end), buffer in zip(ranges, buffers, strict=True):
            if buffer.size > end - start:
                raise _failed(NO_RANGES, file)
            _check_whole(file, start, end - start, buffer.size)
        return buffers

    def tail(self, file: File, num_bytes: int) -> pa.Buffer:
        """Returns the last bytes of a file, or all of a smaller one, by one read; raises as `fetch` does."""
        return self.fetch(file, [(max(0, file.size - num_bytes), file.size)])[0]

    def read_into(self, file: File, memory: Any) -> None:
        """Reads a whole file into writable memory of its size; raises as `fetch` does."""
        if self.is_local:
            _read(file, [((0, file.size), memory)])
        elif file.size:
            memory[:] = memoryview(self.fetch(file, [(0, file.size)])[0]).cast("B")

    def _requested(self, file: File, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        try:
            if not self.requests.wholes:
                try:
                    return self.requests.fetch(self.filesystem, file.path, ranges)
                except SentWhole as sent:
                    if len(sent.data) != file.size:
                        raise _failed(NO_RANGES, file) from None
                    self.requests.wholes.hold(file.path, pa.py_buffer(sent.data))
            whole = self.requests.fetch_whole(self.filesystem, file.path, file.size)
            return [whole.slice(start, end - start) for start, end in ranges]
        except ArrowflowError as error:
            error.locate(file=file.path)
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) and passing(error) is None:
                raise
            raise _failed(undelivered(said(error)), file) from error


@dataclass(frozen=True, slots=True, eq=False)
class Fetched(Store):
    """Some bytes of one file, held in memory by range: a reader that reads through it waits for nothing.

    Examples:
        >>> file = File("bucket/a.parquet", "a.parquet", 100)
        >>> held = Fetched(None, file=file, held={(90, 100): pa.py_buffer(b"0123456789")})
        >>> held.fetch(file, [(92, 95)])[0].to_pybytes()
        b'234'
    """

    file: File = field(kw_only=True)
    held: Mapping[tuple[int, int], pa.Buffer] = field(kw_only=True, repr=False)

    @property
    def is_local(self) -> bool:
        """Never local: there is no path that somebody else could open."""
        return False

    @property
    def is_python(self) -> bool:
        """Always in Python: the files that `open` returns are written in Python, too."""
        return True

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """All bytes that it holds."""
        return tuple(self.held.values())

    def open(self, file: File) -> pa.NativeFile:
        """Opens the file; only the held bytes can be read."""
        whole = self.held.get((0, file.size))
        return self.open_briefly(file, 0) if whole is None else pa.BufferReader(whole)

    def fetch(self, file: File, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Returns the bytes of each range, without a copy.

        Raises:
            SourceError: A range is not held.
        """
        return [self._slice(start, end) for start, end in ranges]

    def _slice(self, start: int, end: int) -> pa.Buffer:
        for (low, high), buffer in self.held.items():
            if low <= start and end <= high:
                return buffer.slice(start - low, end - start)
        raise SourceError(
            f"bytes {start} to {end} are no part of the {len(self.held)} ranges that were fetched; the file is "
            "corrupt, or its format's `ranges` leaves them out"
        ).locate(file=self.file.path)


class Mapped(Fetched):
    """A whole file that is mapped into memory. Its bytes belong to the system: nobody writes them."""

    def __init__(self, store: Store, file: File) -> None:
        with store.open(file) as source:
            held = {(0, file.size): source.read_buffer(file.size)}
        super().__init__(store.filesystem, file=file, held=held)

    def has(self, buffer: pa.Buffer) -> bool:
        """Returns whether a buffer is a view of the file."""
        (mapped,) = self.buffers
        return bool(mapped.address <= buffer.address < mapped.address + mapped.size)


def coalesce(ranges: Iterable[tuple[int, int]], *, hole_bytes: int = HOLE_BYTES) -> list[Range]:
    """Merges byte ranges that overlap or lie at most `hole_bytes` apart.

    Examples:
        >>> coalesce([(100, 200), (0, 50), (200, 300), (90_000_000, 90_000_001)])
        [Range(start=0, end=300), Range(start=90000000, end=90000001)]
    """
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1] + hole_bytes and end - merged[-1][0] <= PART_BYTES:
            merged[-1] = Range(merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append(Range(start, end))
    return merged


def _failed(message: str, file: File) -> ArrowflowError:
    """Returns the error of a file whose storage failed: `on_error` never leaves its rows out."""
    error = SourceError(message)
    error.of_data = False
    return error.locate(file=file.path)


def undelivered(reason: str) -> str:
    """Returns the message that storage failed; the file may be whole."""
    return (
        f"the storage did not deliver it: {about_credentials(reason)}; the file may be whole: try again, and check the address, "
        "the credentials and the network"
    )


def _check_whole(file: File, start: int, expected: int, found: int) -> None:
    if found < expected:
        raise short_read(start, expected, found).locate(file=file.path)


def _read(file: File, parts: Iterable[tuple[tuple[int, int], Any]]) -> None:
    """Reads ranges of a local file into memory."""
    # An Arrow file takes 30 µs more, and lets go of the interpreter lock twice as often.
    opened = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for (start, end), memory in parts:
            rest = memoryview(memory).cast("B")
            os.lseek(opened, start, os.SEEK_SET)
            while rest and (read := os.readv(opened, [rest])):
                rest = rest[read:]
            _check_whole(file, start, end - start, end - start - len(rest))
    finally:
        os.close(opened)


class _BriefFile:
    """A read-only file whose bytes a store fetches, at least `ahead_bytes` at once if the file has them.

    It has the methods that `pa.PythonFile` needs.
    """

    def __init__(self, store: Store, file: File, ahead_bytes: int) -> None:
        self._store = store
        self._file = file
        self._ahead_bytes = ahead_bytes
        self._position = 0
        self._held_from = 0
        self._held: pa.Buffer = pa.py_buffer(b"")
        self.closed = False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> pa.Buffer:
        start, size_bytes = self._position, self._file.size
        end = size_bytes if size < 0 else min(start + size, size_bytes)
        self._position = max(start, end)
        if end <= start:
            return pa.py_buffer(b"")
        if not self._held_from <= start <= end <= self._held_from + self._held.size:
            ahead = min(max(end, start + self._ahead_bytes), size_bytes)
            (self._held,) = self._store.fetch(self._file, [(start, ahead)])
            self._held_from = start
        return self._held.slice(start - self._held_from, end - start)

    def close(self) -> None:
        self._held = pa.py_buffer(b"")
        self._held_from = 0
        self.closed = True

"""`Requests`: how the bytes of files that are not local are asked for.

Each range is a request of its own, which is tried again by itself. The ranges of one read are asked for beside each other.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar, cast

import pyarrow as pa

from arrowflow.lazy import fs as pafs
from arrowflow.options import ResolvedOptions
from arrowflow.storage.clients import fsspec_client
from arrowflow.storage.retries import Alone, Patience, Services, ShortRead
from arrowflow.storage.settings import without_secrets

logger = logging.getLogger("arrowflow")

T = TypeVar("T")

PART_BYTES: Final = 16 << 20
"""A longer range is asked for in parts of this size, beside each other. A request of a client in Python costs 2 to 3 ms of the
interpreter lock, as much as 2 MB of its bytes do, so it should bring many more; one connection of S3 gives some 90 MB/s."""

MAX_HANDLES: Final = 512
"""Files of which an open handle is kept for the next read."""

WHOLE_BYTES: Final = 256 << 20
"""The most bytes that are held of files whose server sends no parts, or the last file if that is larger."""

_MARK: Final = 0xA7
"""The last byte of memory that a read has to overwrite. It is rare at the end of ranges of Parquet, Arrow IPC and text."""

_BY_NAME: Final = frozenset(("s3", "gcs", "abfs"))
"""Types of `pyarrow.fs` that answer one request to open a file, and one for each read. Their handles are no more than the
name and the size of a file, so that many threads can read by one of them."""


LARGE_BYTES: Final = 1 << 20
"""Requests of so many bytes count."""

FIRST_BYTES, FIRST_SECONDS = 4 << 20, 4.0
"""The rate of a line before it is measured: 1 MiB a second."""

LOOK_SECONDS: Final = 5.0
"""A request that waits looks so often how fast the line is by now."""


class Line:
    """The line to a store: tells a request that hangs from one that has to wait for others. For asynchronous clients of fsspec.

    Requests that share a line may all take minutes, and end at the same time. So each may take twice the time that the line needs
    for all bytes on their way, as fast as it was so far, and then some seconds more. Small requests, of which the delay takes
    most, tell nothing of the line. Only the thread of the clients' event loop changes it.
    """

    __slots__ = ("_came", "_on_their_way", "_seconds", "_since")

    def __init__(self) -> None:
        self._came, self._seconds = FIRST_BYTES, FIRST_SECONDS
        self._on_their_way = 0
        self._since = 0.0  # when the first of what is on its way was asked for, or the latest came

    async def cat_ranges(self, client: Any, path: str, start: int, end: int, seconds: float) -> list[bytes]:
        """Returns a range as the client's `cat_ranges` does; raises `TimeoutError` if the request hangs."""
        import asyncio  # 30 ms; fsspec has imported it by now

        now = asyncio.get_running_loop().time
        began, size = now(), end - start if end - start >= LARGE_BYTES else 0
        if not self._on_their_way:
            self._since = began
        self._on_their_way += size
        request = asyncio.ensure_future(client._cat_ranges([path], [start], [end], on_error="raise"))
        try:
            while (left := began + seconds + 2 * self._needed() - now()) > 0:
                done, _ = await asyncio.wait([request], timeout=min(left, LOOK_SECONDS))
                if done:
                    found: list[bytes] = request.result()
                    if size:
                        self._came += size
                        self._seconds += now() - self._since
                    return found
            raise TimeoutError
        finally:
            request.cancel()
            if size:
                self._on_their_way -= size
                self._since = now()

    def _needed(self) -> float:
        """Returns the seconds that the line needs for what is on its way."""
        return self._on_their_way * self._seconds / self._came


class SentWhole(Exception):
    """A server sent more than the part of a file that it was asked for."""

    def __init__(self, data: bytes) -> None:
        super().__init__("the server sent more than it was asked for")
        self.data = data


class Wholes:
    """The files that servers without parts of files sent last; many threads may use it at the same time."""

    def __init__(self, *, is_told: bool = False) -> None:
        self._held: dict[str, pa.Buffer] = {}
        self._told: dict[str, object] = {"told": self} if is_told else {}

    def __bool__(self) -> bool:
        """Whether a server is known to send no parts."""
        return bool(self._told)

    def held(self, path: str) -> pa.Buffer | None:
        """Returns a file that is still held."""
        return self._held.get(path)

    def hold(self, path: str, data: pa.Buffer) -> None:
        """Keeps a file, and lets go of those that came first; says it at the first file.

        Each step is one operation of a dict. Threads that come at the same time may let go of more than they need to.
        """
        token = object()
        is_first = self._told.setdefault("told", token) is token
        self._held[path] = data
        others = [(each, kept.size) for each, kept in self._held.copy().items() if each != path]
        room = WHOLE_BYTES - data.size - sum(size for _, size in others)
        for each, size in others:
            if room >= 0:
                break
            self._held.pop(each, None)
            room += size
        if is_first:
            logger.warning(
                "%s: its server does not send parts of files (HTTP range requests), so files are read whole and up to "
                "%d MiB of them are held in memory; a copy nearby is faster: cache(folder), or simplecache::URL",
                without_secrets(path),
                WHOLE_BYTES >> 20,
            )


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Requests:
    """The way to ask one store for bytes. Picklable, without the services.

    Attributes:
        patience: How long reads are tried again.
        services: Those of the run.
        handles: Open files, by path.
        wholes: Files of servers that send no parts.
        line: The line to the store, of all runs.
        changed: Files that a run has found other than their listing; the next run lists all files again.
    """

    patience: Patience = field(default_factory=Patience)
    services: Services = field(default_factory=Alone)
    handles: dict[str, Any] = field(default_factory=dict, repr=False)
    wholes: Wholes = field(default_factory=Wholes, repr=False)
    line: Line = field(default_factory=Line, repr=False)
    changed: set[str] = field(default_factory=set, repr=False)

    def __reduce__(self) -> tuple[type[Requests], tuple[Patience]]:
        return Requests, (self.patience,)

    @classmethod
    def of(cls, options: ResolvedOptions, services: Services | None) -> Requests:
        """Returns the way to ask by the options of a pipeline."""
        patience = Patience(options.retries, options.retry_deadline_seconds, options.hedge_seconds)
        return cls(patience, Alone() if services is None else services)

    @property
    def tries_again(self) -> bool:
        """Whether reads that fail are tried again, where that may help."""
        return self.patience.retries > 0 and not isinstance(self.services, Alone)

    def served_by(self, services: Services) -> Requests:
        """Returns the same for a run, which has open files of its own."""
        wholes = Wholes(is_told=bool(self.wholes))
        return Requests(self.patience, services, wholes=wholes, line=self.line, changed=self.changed)

    def persist(self, request: Callable[[float], T]) -> T:
        """Makes a request until it succeeds, as long as `patience` allows; it is given the seconds that it may take."""
        return self.patience.persist(request, self.services)

    def fetch(self, filesystem: Any, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Returns the bytes of each range, in memory of their own.

        Raises:
            ShortRead: The file ends before a range does.
            Exception: The client's own errors.
        """
        client = fsspec_client(filesystem)
        if client is not None:
            calls = [partial(self._asked, client, path, start, end) for start, end in ranges]
            return self.services.together(calls) if len(calls) > 1 else [calls[0]()]
        buffers = [pa.allocate_buffer(end - start) for start, end in ranges]
        reads = [
            partial(
                self._read, filesystem, path, low, memoryview(buffer).cast("B")[low - start :][:PART_BYTES]
            )
            for (start, end), buffer in zip(ranges, buffers, strict=True)
            for low in range(start, end, PART_BYTES)
        ]
        if len(reads) == 1:
            reads[0]()
        else:
            self.services.together(reads)
        return buffers

    def fetch_whole(self, filesystem: Any, path: str, size: int) -> pa.Buffer:
        """Returns a file of a server that sends no parts, from memory if it was sent lately.

        Raises:
            ShortRead: It is shorter than its listing said.
            Exception: The client's own errors.
        """
        held = self.wholes.held(path)
        if held is None or held.size != size:
            client = fsspec_client(filesystem)
            held = pa.py_buffer(self.persist(partial(self._cat, client, path, 0, size)))
            self.wholes.hold(path, held)
        return held

    def _asked(self, client: Any, path: str, start: int, end: int) -> pa.Buffer:
        """Returns a range from a client of fsspec; a long one in parts."""
        if end - start <= PART_BYTES:
            return pa.py_buffer(self.persist(partial(self._cat, client, path, start, end)))
        lows = range(start, end, PART_BYTES)
        calls = [partial(self._asked, client, path, low, min(low + PART_BYTES, end)) for low in lows]
        whole = pa.allocate_buffer(end - start)
        view = memoryview(whole).cast("B")
        for low, part in zip(lows, self.services.together(calls), strict=True):
            view[low - start : low - start + part.size] = memoryview(part).cast("B")
        return whole

    def _cat(self, client: Any, path: str, start: int, end: int, seconds: float) -> bytes:
        """Returns bytes from a client of fsspec. A request of an asynchronous client that hangs is cut."""
        if _is_limited(client):
            sync = sys.modules["fsspec.asyn"].sync
            (data,) = sync(client.loop, self.line.cat_ranges, client, path, start, end, seconds)
        else:
            (data,) = client.cat_ranges([path], [start], [end], on_error="raise")
        if len(data) < end - start:
            raise short_read(start, end - start, len(data))
        if len(data) > end - start:
            raise SentWhole(data)
        return cast(bytes, data)

    def _read(self, filesystem: Any, path: str, start: int, memory: memoryview) -> None:
        """Fills memory from a native client."""
        if self.patience.hedge_seconds is None:
            self.persist(lambda _: self._read_once(filesystem, path, start, memory))
        else:  # the slower of two requests writes when the faster one's bytes are already in use
            memory[:] = self.persist(
                lambda _: self._read_once(filesystem, path, start, memoryview(bytearray(len(memory))))
            )

    def _read_once(self, filesystem: Any, path: str, start: int, memory: memoryview) -> memoryview:
        length = len(memory)
        with self._handle(filesystem, path) as handle:

            def last_byte(mark: int) -> int:
                memory[-1] = mark
                found = handle.get_stream(start, length).readinto(memory)
                if found < length:
                    raise short_read(start, length, found)
                return memory[-1]

            # The client of S3 says that it filled the memory when a server announced and sent fewer bytes: a mark at the
            # end stays. A range that ends as the mark does ends so where another mark stood, too.
            if last_byte(_MARK) != _MARK or last_byte(_MARK ^ 0xFF) == _MARK:
                return memory
        raise short_read(start, length, length - 1)

    @contextmanager
    def _handle(self, filesystem: Any, path: str) -> Iterator[Any]:
        """Lends an open file, which is kept for other reads and for the next try of one that fails."""
        if not is_by_name(filesystem):
            with filesystem.open_input_file(path) as handle:
                yield handle
            return
        handle = self.handles.get(path)
        if handle is None:
            handle = filesystem.open_input_file(path)
            if len(self.handles) >= MAX_HANDLES:
                self.handles.clear()
            self.handles[path] = handle
        yield handle


def short_read(start: int, expected: int, found: int) -> ShortRead:
    """Returns the error of a read that got too little."""
    return ShortRead(
        f"expected {expected} bytes at offset {start}, got {found}: the file is truncated or changed while it was read"
    )


def is_by_name(filesystem: Any) -> bool:
    """Whether an open file is no more than the name, the size and the metadata of an object."""
    base = filesystem.base_fs if isinstance(filesystem, pafs.SubTreeFileSystem) else filesystem
    return base.type_name in _BY_NAME


def time_limit(client: Any, seconds: float) -> dict[str, float]:
    """Returns the argument by which fsspec waits for a coroutine of a client for so long; nothing for other clients."""
    return {"timeout": seconds} if _is_limited(client) else {}


def _is_limited(client: Any) -> bool:
    """Whether calls of a client are coroutines that fsspec waits for."""
    asynchronous = sys.modules["fsspec.asyn"].AsyncFileSystem if "fsspec.asyn" in sys.modules else ()
    return isinstance(client, asynchronous) and "cat_ranges" in object.__getattribute__(client, "__dict__")

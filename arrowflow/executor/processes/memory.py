"""Record batches in shared memory without a name: one side writes them, the other one reads them where they lie.

The memory is an anonymous file (`memfd_create`, elsewhere an unlinked temporary file) whose descriptor goes over a
socket and is closed on both sides as soon as it is mapped. So there is never anything to clean up, whoever is killed
when, and a batch that somebody keeps costs no descriptor.

Fresh pages are expensive to touch: 2.6 MB of them take 8 ms where the same memory again takes 0.08 ms. So the writer
reuses an arena once the reader says that no batch lies there any more. The reader knows this from the finalizer of the
object that keeps the batch's buffers alive. The writer never guesses: an arena that is not given back is never reused.
Either side may forget all arenas at any time. Numbers are never given twice, so a late message means nothing.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from arrowflow.executor.limits import LEAST_ARENA_BYTES, MAX_FREE_ARENAS

_libc = ctypes.CDLL(None, use_errno=True)
_map, _unmap = _libc.mmap, _libc.munmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class Parcel(NamedTuple):
    """Where a batch lies.

    Attributes:
        number: Number of the arena.
        capacity: Bytes of the arena.
        num_bytes: Bytes of the batch, from its beginning on.
        dropped: Numbers of arenas that the sender will not use again.
    """

    number: int
    capacity: int
    num_bytes: int
    dropped: tuple[int, ...]


class Mapping:
    """An anonymous file as memory, as long as somebody refers to this.

    `mmap.mmap` would keep a descriptor each, and batches may be kept by the thousand.
    """

    __slots__ = ("address", "capacity")

    def __init__(self, descriptor: int, capacity: int) -> None:
        self.capacity = capacity
        self.address: int | None = None
        address = _map(None, capacity, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
        if address in {None, _FAILED}:
            code = ctypes.get_errno()
            raise OSError(code, f"{capacity:,} bytes of shared memory cannot be mapped: {os.strerror(code)}")
        self.address = address

    def __del__(self, unmap: Any = _unmap) -> None:
        if self.address is not None:
            unmap(self.address, self.capacity)


class _Lease:
    """The buffers of a batch that was read keep this alive. Its finalizer notes that the last of them is gone."""

    __slots__ = ("_mapping", "_number", "_returned")

    def __init__(self, mapping: Mapping, number: int, returned: deque[int]) -> None:
        self._mapping = mapping
        self._number = number
        self._returned = returned

    def __del__(self) -> None:
        self._returned.append(self._number)  # in any thread, at any time: one atomic step


class _Arena:
    __slots__ = ("buffer", "capacity", "mapping", "number")

    def __init__(self, number: int, capacity: int, descriptor: int) -> None:
        self.number = number
        self.capacity = capacity
        self.mapping = Mapping(descriptor, capacity)
        self.buffer = pa.py_buffer((ctypes.c_char * capacity).from_address(self.mapping.address or 0))


class Outbox:
    """The arenas that this side writes. One thread at a time."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._free: list[_Arena] = []
        self._lent: dict[int, _Arena] = {}
        self._dropped: list[int] = []

    def put(self, batch: pa.RecordBatch) -> tuple[Parcel, int | None]:
        """Copies the rows of a batch, and no others, into an arena.

        Returns:
            Where they lie, and the arena's descriptor where it is new; the caller sends and closes it.
        """
        counted = pa.MockOutputStream()
        _write(batch, counted)
        num_bytes = counted.size()
        arena, descriptor = self._arena(num_bytes)
        try:
            _write(batch, pa.FixedSizeBufferWriter(arena.buffer))
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        self._lent[arena.number] = arena
        dropped, self._dropped = tuple(self._dropped), []
        return Parcel(arena.number, arena.capacity, num_bytes, dropped), descriptor

    def take_back(self, numbers: Iterable[int]) -> None:
        """Is told that nobody reads these arenas any more."""
        for number in numbers:
            arena = self._lent.pop(number, None)
            if arena is not None:
                self._free.append(arena)
        while len(self._free) > MAX_FREE_ARENAS:
            self._dropped.append(self._free.pop(0).number)

    def clear(self) -> None:
        """Forgets all arenas; batches that the other side has go on living there."""
        self._free.clear()
        self._lent.clear()
        self._dropped.clear()

    def _arena(self, num_bytes: int) -> tuple[_Arena, int | None]:
        for index in reversed(range(len(self._free))):  # the last one used is the warmest
            if self._free[index].capacity >= num_bytes:
                return self._free.pop(index), None
        self._dropped += [arena.number for arena in self._free]
        self._free.clear()
        # Powers of two, so that sizes repeat: batches differ a little. Unwritten pages take no memory.
        capacity = max(LEAST_ARENA_BYTES, 1 << (num_bytes - 1).bit_length())
        descriptor = _anonymous_file(capacity)
        try:
            return _Arena(next(self._numbers), capacity, descriptor), descriptor
        except BaseException:
            os.close(descriptor)
            raise


class Inbox:
    """The arenas that this side reads. One thread at a time, but batches may be let go of by any."""

    def __init__(self) -> None:
        self._mappings: dict[int, Mapping] = {}
        self._returned: deque[int] = deque()

    def take(self, parcel: Parcel, descriptor: int | None) -> pa.RecordBatch:
        """Returns the batch that lies there, without a copy; it cannot be written. Closes the descriptor."""
        for number in parcel.dropped:
            self._mappings.pop(number, None)
        if descriptor is not None:
            try:
                self._mappings[parcel.number] = Mapping(descriptor, parcel.capacity)
            finally:
                os.close(descriptor)
        mapping = self._mappings[parcel.number]
        lease = _Lease(mapping, parcel.number, self._returned)
        buffer = pa.foreign_buffer(mapping.address, parcel.num_bytes, base=lease)
        return pa.ipc.open_stream(buffer).read_next_batch()

    def returned(self) -> tuple[int, ...]:
        """Returns the arenas of which no batch is left, each time it is asked once."""
        found = []
        while self._returned:
            found.append(self._returned.popleft())
        return tuple(found)

    def clear(self) -> None:
        """Forgets all arenas; batches that lie in them go on living."""
        self._mappings.clear()


def _write(batch: pa.RecordBatch, sink: Any) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _anonymous_file(num_bytes: int) -> int:
    """Returns the descriptor of a file without a name; programs that are started do not inherit it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("arrowflow", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, num_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

"""Memory that two processes share: one writes it, the other one reads it where it lies.

An *arena* is an anonymous file (`memfd_create`, elsewhere an unlinked temporary file). Its descriptor goes to the other
process and is closed on both sides as soon as it is mapped. So there is never anything to clean up, whoever is killed
when, and what somebody keeps costs no descriptor.

Fresh pages are expensive to touch: 2.6 MB of them take 8 ms where the same memory again takes 0.08 ms. So the writer
reuses an arena once the reader says that nobody reads it any more. The reader knows this from the weak reference to the
object that keeps the memory alive. The writer never guesses: an arena that is not given back is never reused. Either side
may forget all arenas at any time. Numbers are never given twice, so a late message means nothing.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import tempfile
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

LEAST_ARENA_BYTES: Final = 1 << 16
"""Bytes of the smallest arena."""
MAX_WAIT: Final = 64
"""An arena that was not needed while so many others were lent is dropped."""

_libc = ctypes.CDLL(None, use_errno=True)
_map, _unmap = _libc.mmap, _libc.munmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class Parcel(NamedTuple):
    """Where something lies.

    Attributes:
        number: Number of the arena.
        capacity: Bytes of the arena.
        num_bytes: Bytes of what lies there, from the arena's beginning on.
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


class Arena:
    """An arena as its writer sees it.

    Attributes:
        number: Its number.
        capacity: Its bytes.
        bytes: Its memory, as an array that may be written.
        waits_since: How many arenas had been lent when it was given back.
    """

    __slots__ = ("_mapping", "bytes", "capacity", "number", "waits_since")

    def __init__(self, number: int, capacity: int, mapping: Mapping) -> None:
        self.number = number
        self.capacity = capacity
        self.waits_since = 0
        self._mapping = mapping
        self.bytes = np.asarray(_Lease(mapping))


class Outbox:
    """The arenas that this side writes. One thread at a time."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lendings = 0
        self._free: list[Arena] = []
        self._lent: OrderedDict[int, Arena] = OrderedDict()
        self._dropped: list[int] = []

    def lend(self, num_bytes: int) -> tuple[Arena, Parcel, int | None]:
        """Returns an arena for so many bytes, and the message of it.

        Returns:
            The arena, where it lies, and its descriptor where it is new; the caller sends and closes it.
        """
        arena, descriptor = self._arena(num_bytes)
        self._lent[arena.number] = arena
        self._lendings += 1
        dropped, self._dropped = tuple(self._dropped), []
        return arena, Parcel(arena.number, arena.capacity, num_bytes, dropped), descriptor

    def take_back(self, numbers: Iterable[int]) -> None:
        """Is told that nobody reads these arenas any more."""
        for number in numbers:
            arena = self._lent.pop(number, None)
            if arena is not None:
                arena.waits_since = self._lendings
                self._free.append(arena)
        # The last one given back is lent first, so the first one has waited longest.
        while self._free and self._free[0].waits_since < self._lendings - MAX_WAIT:
            self._dropped.append(self._free.pop(0).number)

    def take_back_marked(self, value: int) -> None:
        """Takes back arenas in whose first byte the reader has put this value.

        It looks at some arenas, and at others the next time: a reader may keep many thousands.
        """
        looked = list(itertools.islice(self._lent, MAX_WAIT))
        for number in looked:
            self._lent.move_to_end(number)
        self.take_back([number for number in looked if self._lent[number].bytes[0] == value])

    def clear(self) -> None:
        """Forgets all arenas; what the other side has goes on living there."""
        self._free.clear()
        self._lent.clear()
        self._dropped.clear()

    def _arena(self, num_bytes: int) -> tuple[Arena, int | None]:
        for index in reversed(range(len(self._free))):  # the last one used is the warmest
            if self._free[index].capacity >= num_bytes:
                return self._free.pop(index), None
        self._dropped += [arena.number for arena in self._free]
        self._free.clear()
        # Powers of two, so that sizes repeat: batches differ a little. Unwritten pages take no memory.
        capacity = max(LEAST_ARENA_BYTES, 1 << (num_bytes - 1).bit_length())
        descriptor = _anonymous_file(capacity)
        try:
            return Arena(next(self._numbers), capacity, Mapping(descriptor, capacity)), descriptor
        except BaseException:
            os.close(descriptor)
            raise


class _Lease:
    """Memory in NumPy's array interface: what is made of it keeps this alive."""

    __slots__ = ("__array_interface__", "__weakref__", "_mapping")

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping
        place = (mapping.address, False)
        self.__array_interface__ = {
            "shape": (mapping.capacity,),
            "typestr": "|u1",
            "data": place,
            "version": 3,
        }


class _Back(weakref.ref[_Lease]):
    """The weak reference that is called when a lease is gone."""

    __slots__ = ("number",)

    number: int


class Inbox:
    """The arenas that this side reads. One thread at a time, but leases end in any."""

    def __init__(self) -> None:
        self._mappings: dict[int, Mapping] = {}
        self._leases: set[_Back] = set()
        self._returned: deque[_Back] = deque()

    def lease(self, parcel: Parcel, descriptor: int | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Returns the memory of an arena, which is given back with the last view of it. Closes the descriptor."""
        for number in parcel.dropped:
            self._mappings.pop(number, None)
        if descriptor is not None:
            try:
                self._mappings[parcel.number] = Mapping(descriptor, parcel.capacity)
            finally:
                os.close(descriptor)
        lease = _Lease(self._mappings[parcel.number])
        # The callback is a method of a `deque`: it runs no line of Python, in which an interrupt would be lost.
        back = _Back(lease, self._returned.append)
        back.number = parcel.number
        self._leases.add(back)
        return np.asarray(lease)

    def returned(self) -> tuple[int, ...]:
        """Returns the arenas that nobody reads any more, each time it is asked once."""
        found = []
        while self._returned:
            back = self._returned.popleft()
            self._leases.discard(back)
            found.append(back.number)
        return tuple(found)

    def mark(self, number: int, value: int) -> None:
        """Writes the first byte of an arena, for a writer that no message reaches; not of one that it has dropped."""
        mapping = self._mappings.get(number)
        if mapping is not None:
            ctypes.c_uint8.from_address(mapping.address or 0).value = value

    def keep(self) -> None:
        """Has no arena that is read now returned ever."""
        self._leases.clear()

    def clear(self) -> None:
        """Forgets all arenas; what lies in them goes on living."""
        self._mappings.clear()


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

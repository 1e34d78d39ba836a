"""Files mapped into writable memory. Writes change neither the file nor any other map of it.

So a batch of a mapped file belongs to its reader, as a decoded batch does, and is no copy. A page is the page cache's
page until it is written; the write copies the page. Arrow's maps are shared or read-only. Python's `mmap` keeps a file
descriptor open for as long as the memory is used, so a loop that keeps its batches would run out of descriptors.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

_FAILED: Final = ctypes.c_void_p(-1).value

# Memory that is never written needs no reserved swap space. Python names these flags from 3.13 on.
_NO_RESERVE: Final = getattr(
    mmap, "MAP_NORESERVE", {"Linux": 0x4000, "Darwin": 0x40}.get(os.uname().sysname, 0)
)
MAX_MAPS: Final = 1 << 15
"""The approximate limit of maps that are in use at once: Linux allows 65,530, and heaps need some of these."""


class _PrivateMap:
    """A map of a whole file, in NumPy's array interface. It is unmapped when nobody refers to it any more."""

    def __init__(self, path: str, start: int, stop: int) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            address = _mmap()(None, size, protection, mmap.MAP_PRIVATE | _NO_RESERVE, descriptor, 0)
            if address is None or address == _FAILED:
                number = ctypes.get_errno()
                raise OSError(number, f"cannot map it: {os.strerror(number)}")
            if start < stop <= size:
                _begin_reading(descriptor, start, stop)
        finally:
            os.close(descriptor)  # the map outlives it
        self.__array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
        weakref.finalize(self, _library().munmap, address, size).atexit = False


def map_private(path: str, start: int = 0, stop: int = 0) -> pa.Buffer:
    """Maps a file that is not empty. Each call makes a map of its own.

    Args:
        path: The file.
        start: First byte that is needed soon, so that the system begins to read it.
        stop: The byte after the last byte that is needed soon.

    Raises:
        OSError: The file cannot be mapped. `ENOMEM` means that there is no room for one more map, and reading may still
        work.

    Examples:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "a"
        >>> _ = file.write_bytes(b"abc")
        >>> memoryview(map_private(str(file)))[0] = ord("x")
        >>> file.read_bytes()
        b'abc'
    """
    if len(_maps) >= MAX_MAPS:
        raise OSError(errno.ENOMEM, f"cannot map it: {MAX_MAPS} maps are in use")
    made = _PrivateMap(path, start, stop)
    _maps.add(made)
    return pa.py_buffer(np.asarray(made))


_maps: weakref.WeakSet[_PrivateMap] = weakref.WeakSet()


def _begin_reading(descriptor: int, start: int, stop: int) -> None:
    """Asks the system to read a range with an end that is not in memory. A look at all pages would take 12 µs a MiB."""
    if not hasattr(os, "posix_fadvise"):
        return
    try:
        for place in (start, stop - 1):
            os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT)
    # The system would have to wait; or the file system, the kernel or this build of Python cannot tell.
    except (OSError, AttributeError, NotImplementedError):
        os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)


@cache
def _mmap() -> Any:
    # The call takes 2 µs. To release the interpreter lock may cost 5 ms, for which another thread then keeps the lock.
    function = ctypes.PyDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    ]  # fmt: skip
    return function


@cache
def _library() -> Any:
    library = ctypes.CDLL(None)
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library

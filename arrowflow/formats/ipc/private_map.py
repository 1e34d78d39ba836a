"""Files mapped into memory that may be written, without the file or any other map of it seeing what is written.

So a batch of a mapped file belongs to whoever reads it, as a decoded one does, and is no copy: pages are those of the
page cache until one is written, which copies that page. Arrow's maps are shared or read-only, and Python's `mmap` keeps
a file descriptor open for as long as the memory is used, of which a loop that keeps its batches would run out.
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
# Memory that is never written needs no swap space set aside for it; Python has names for it from 3.13 on.
_NO_RESERVE: Final = getattr(
    mmap, "MAP_NORESERVE", {"Linux": 0x4000, "Darwin": 0x40}.get(os.uname().sysname, 0)
)
MAX_MAPS: Final = 1 << 15
"""Maps that are made, give or take a few, as long as all are in use: Linux allows 65,530, and heaps need some, too."""


class _PrivateMap:
    """A map of a whole file, as NumPy sees memory. Unmapped when nobody refers to it any more."""

    def __init__(self, path: str, start: int, stop: int) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            address = _mapped(descriptor, size)
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
        start: First byte of what is needed soon, so that the system begins to read it.
        stop: The byte after the last of these.

    Raises:
        OSError: The file cannot be mapped; with `ENOMEM` there is no room for one more map, and reading may still do.

    Example:
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


def _mapped(descriptor: int, size: int) -> int:
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _mmap()(None, size, protection, mmap.MAP_PRIVATE | _NO_RESERVE, descriptor, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map it: {os.strerror(number)}")
    return int(address)


def _begin_reading(descriptor: int, start: int, stop: int) -> None:
    """Asks the system to read a range of which an end is not in memory; to look at all pages takes it 12 µs a MiB."""
    if not hasattr(os, "posix_fadvise"):
        return
    try:
        for place in (start, stop - 1):
            os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT)
    # It would have to wait; or the file system, the kernel or this build of Python cannot tell.
    except (OSError, AttributeError, NotImplementedError):
        os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)


@cache
def _mmap() -> Any:
    # It takes 2 µs, and letting go of the interpreter lock may cost the time that another thread keeps it: 5 ms.
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

"""Who may write where: writable views of memory that Arrow calls immutable, although its owner made it writable.

A slice of a buffer never counts as mutable in Arrow, be it one of memory that may be written: of the body of an IPC
message, or of a private map of a file. Whether it may be, the buffer at the root of all slices tells.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from arrowflow.interchange.to_numpy import NumpyArray, Ragged


class _Memory:
    """What NumPy reads an array from; keeps the view alive, and that the buffer."""

    __slots__ = ("__array_interface__", "view")

    def __init__(self, view: NumpyArray) -> None:
        self.view = view
        about = view.__array_interface__
        self.__array_interface__ = {**about, "data": (about["data"][0], False)}


def writable_root(buffer: Any) -> Any:
    """Returns the buffer that a buffer is a slice of, or itself, if it may be written without a crash; else None.

    It does not tell whether anybody else reads the memory.

    Example:
        >>> import pyarrow as pa
        >>> writable_root(pa.allocate_buffer(8).slice(4)).size, writable_root(pa.py_buffer(b"text").slice(2))
        (8, None)
    """
    while buffer is not None and not buffer.is_mutable:
        buffer = buffer.parent
    return buffer


class Roots:
    """Writable arrays of flat columns that lie in slices of few buffers: 1 µs each, a third of `unlocked`."""

    __slots__ = ("_address", "_bytes", "_root")

    def __init__(self) -> None:
        self._root: Any = None
        self._address = -1
        self._bytes = np.empty(0, np.uint8)

    def array(self, root: Any, address: int, count: int, dtype: np.dtype[Any]) -> NumpyArray:
        """Returns `count` values from an address within a root."""
        if root.address != self._address:
            self._root, self._address = root, root.address
            self._bytes = np.frombuffer(root, np.uint8)
        start = address - self._address
        return self._bytes[start : start + count * dtype.itemsize].view(dtype)


def unlocked(view: Any) -> Any:
    """Returns a writable view of the same memory, of a buffer that has a `writable_root`."""
    if isinstance(view, Ragged):
        return view._replace(values=unlocked(view.values))
    if view.flags.writeable or view.dtype.hasobject:
        return view
    array = np.asarray(_Memory(view))
    return array if array.dtype == view.dtype else array.view(view.dtype)


def lock(view: Any) -> None:
    """Makes an array read-only."""
    (view.values if isinstance(view, Ragged) else view).setflags(write=False)

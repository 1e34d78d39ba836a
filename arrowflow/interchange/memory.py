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


def is_writable(buffer: Any) -> bool:
    """Returns whether memory may be written without a crash; not whether anybody else reads it.

    Example:
        >>> import pyarrow as pa
        >>> is_writable(pa.allocate_buffer(8).slice(4)), is_writable(pa.py_buffer(b"text").slice(2))
        (True, False)
    """
    while not buffer.is_mutable:
        buffer = buffer.parent
        if buffer is None:
            return False
    return True


def unlocked(view: Any) -> Any:
    """Returns a writable view of the same memory, of which `is_writable` was true."""
    if isinstance(view, Ragged):
        return view._replace(values=unlocked(view.values))
    if view.flags.writeable or view.dtype.hasobject:
        return view
    array = np.asarray(_Memory(view))
    return array if array.dtype == view.dtype else array.view(view.dtype)


def lock(view: Any) -> None:
    """Makes an array read-only."""
    (view.values if isinstance(view, Ragged) else view).setflags(write=False)

"""Memory that is handed over: memory that a user's code could write again is copied before the code goes on.

A generator may refill one array, and a function an array that it keeps. Earlier results would then change on their way.
So all memory is copied, unless provably nobody writes it. Nobody writes memory of the batch that the function was
given, buffers that are read-only, and NumPy arrays without other references. Arrow's own buffers can be written, and
look the same as NumPy arrays that Arrow views. The origin of memory from another library is unknown, too.

Arrow never counts a slice of a buffer as mutable, even if its memory may be written: for example the body of an IPC
message, or a private map of a file. The buffer at the root of all slices knows whether its memory may be written. So the
library hands over writable views of memory that Arrow calls immutable, although its owner made it writable.
"""

from __future__ import annotations

import operator
import sys
import weakref
from bisect import bisect_right
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from arrowflow.interchange.to_numpy import NumpyArray, Ragged


def _references(holder: Any, key: Any) -> int:
    return sys.getrefcount(holder[key])


_ONE = _references([object()], 0)
"""The count of references to an object that only a list or dict holds, counted in the same way as all others."""

_COUNTS = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether counts of references are exact; without an interpreter lock, threads keep some counts to themselves."""


def unshared(holder: list[Any]) -> frozenset[str]:
    """Returns the names of arrays whose memory nobody else can reach.

    Args:
        holder: Holds a dict of arrays. Nothing else in this library refers to the dict.

    Examples:
        >>> import numpy as np
        >>> kept = np.zeros(3)
        >>> unshared([{"a": np.zeros(3), "b": kept, "c": np.zeros(4).reshape(2, 2), "d": kept[1:]}]) == {"a", "c"}
        True
    """
    if not _COUNTS or type(holder[0]) is not dict or _references(holder, 0) > _ONE:
        return frozenset()
    arrays: dict[str, Any] = holder[0]
    return frozenset(name for name in arrays if _is_unshared(arrays, name))


def _is_unshared(holder: Any, key: Any) -> bool:
    if type(holder[key]) is not np.ndarray or _references(holder, key) > _ONE:
        return False
    if weakref.getweakrefcount(holder[key]):
        return False
    base = [holder[key].base]
    if base[0] is None:
        return bool(holder[key].flags.owndata)
    # The array and the list both hold the base.
    return (
        type(base[0]) is np.ndarray
        and base[0].base is None
        and bool(base[0].flags.owndata)
        and _references(base, 0) <= _ONE + 1
        and not weakref.getweakrefcount(base[0])
    )


def is_frozen(array: np.ndarray[Any, Any]) -> bool:
    """Returns whether nobody can write an array's memory: bytes, or a read-only Arrow buffer."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return isinstance(base, bytes) or (isinstance(base, pa.Buffer) and writable_root(base) is None)


class TakeOver:
    """Copies the memory of a handed-over object that a user's code could still write.

    Args:
        given: The input of the user's code, whose memory is the library's.
        unshared: Names of arrays that nobody else can reach.
        foreign: Whether the object came through an interface that does not tell which memory may be written.
    """

    def __init__(
        self,
        given: pa.RecordBatch | None = None,
        *,
        unshared: frozenset[str] = frozenset(),
        foreign: bool = False,
    ) -> None:
        self._given = given
        self._unshared = unshared
        self._foreign = foreign
        self._spans: tuple[list[int], list[int]] | None = None

    def array(self, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns an array whose memory Arrow may show."""
        if array.dtype.kind not in "iufmM" or not array.flags.c_contiguous:
            return array  # Arrow gets a copy in any case
        if name in self._unshared or is_frozen(array) or self._is_given(array.ctypes.data, array.nbytes):
            return array
        return array.copy()

    def column(self, column: pa.Array) -> pa.Array:
        """Returns a column that nobody else can write; a copy has only the column's own rows."""
        for buffer in column.buffers():
            if buffer is None or not buffer.size or not (self._foreign or writable_root(buffer) is not None):
                continue
            if not self._is_given(buffer.address, buffer.size):
                return pa.concat_arrays([column])
        return column

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a batch whose columns nobody else can write."""
        given = batch.columns
        columns = [self.column(column) for column in given]
        if all(map(operator.is_, given, columns)):
            return batch
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _is_given(self, address: int, num_bytes: int) -> bool:
        if self._given is None:
            return False
        if self._spans is None:
            found = [buffer for column in self._given.columns for buffer in column.buffers()]
            spans = sorted((each.address, each.address + each.size) for each in found if each is not None)
            # For each span: the furthest end of all spans up to this one.
            self._spans = [low for low, _ in spans], list(accumulate((high for _, high in spans), max))
        starts, ends = self._spans
        index = bisect_right(starts, address) - 1
        return index >= 0 and address + num_bytes <= ends[index]


def copied_from(operator: str) -> str:
    """Returns the line of `explain(copies=True)` of an operator that takes over arrays of a user's code."""
    return f"{operator}: what its function could write again is copied: arrays that it keeps, memory of other libraries"


def copied_value(value: Any) -> Any:
    """Returns a value of a row that does not change when lists, dicts and arrays inside the original do."""
    kind = type(value)
    if kind is list or kind is tuple:
        plain = _CONTAINERS.isdisjoint(map(type, value))
        return kind(value) if plain else kind(copied_value(each) for each in value)
    if kind is dict:
        return {key: copied_value(each) for key, each in value.items()}
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        # Of a tensor of another library too; a masked array keeps its mask.
        return value.copy() if isinstance(value, np.ndarray) else np.asarray(value).copy()
    if kind is bytearray or kind is memoryview:
        return bytes(value)
    return value


_CONTAINERS = frozenset((list, tuple, dict, np.ndarray, bytearray, memoryview))


class _Memory:
    """The memory of a NumPy array: it keeps the view alive, and the view keeps the buffer alive."""

    __slots__ = ("__array_interface__", "view")

    def __init__(self, view: NumpyArray) -> None:
        self.view = view
        about = view.__array_interface__
        self.__array_interface__ = {**about, "data": (about["data"][0], False)}


def writable_root(buffer: Any) -> Any:
    """Returns the root of a buffer's slices, or the buffer itself, if it may be written without a crash; else None.

    The function does not tell whether anybody else reads the memory.

    Examples:
        >>> import pyarrow as pa
        >>> writable_root(pa.allocate_buffer(8).slice(4)).size, writable_root(pa.py_buffer(b"text").slice(2))
        (8, None)
    """
    while buffer is not None and not buffer.is_mutable:
        buffer = buffer.parent
    return buffer


class Roots:
    """Writable arrays of flat columns that are slices of few buffers: 1 µs each, a third of the time of `unlocked`."""

    __slots__ = ("_address", "_bytes", "_root")

    def __init__(self) -> None:
        self._root: Any = None
        self._address = -1
        self._bytes = np.empty(0, np.uint8)

    def array(self, root: Any, address: int, count: int, dtype: np.dtype[Any]) -> NumpyArray:
        """Returns `count` values from an address within `root`."""
        if root.address != self._address:
            self._root, self._address = root, root.address
            self._bytes = np.frombuffer(root, np.uint8)
        start = address - self._address
        return self._bytes[start : start + count * dtype.itemsize].view(dtype)


def unlocked(view: Any) -> Any:
    """Returns a writable view of the same memory; the buffer has a `writable_root`."""
    if isinstance(view, Ragged):
        return view._replace(values=unlocked(view.values))
    if view.flags.writeable or view.dtype.hasobject:
        return view
    array = np.asarray(_Memory(view))
    return array if array.dtype == view.dtype else array.view(view.dtype)


def lock(view: Any) -> None:
    """Makes an array read-only."""
    (view.values if isinstance(view, Ragged) else view).setflags(write=False)

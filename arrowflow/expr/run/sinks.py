"""Sinks receive computed blocks: a sink for a column, for a mask, and for a column of a stack."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from arrowflow.errors import DataError
from arrowflow.expr.run.columns import allocate, bitmap
from arrowflow.expr.run.numpy_kernels import Valid
from arrowflow.recycler import Recycler
from arrowflow.types import Array


@dataclass(slots=True)
class ColumnSink:
    """One output column of `rows` rows; its memory is Arrow's."""

    type: pa.DataType
    dtype: np.dtype[Any]
    rows: int
    recycler: Recycler | None
    values: Array = field(init=False)
    _buffer: pa.Buffer | None = None
    _valid: Array | None = None

    def __post_init__(self) -> None:
        self._buffer, self.values = allocate(self.rows, self.dtype, self.recycler)

    @property
    def sinks(self) -> list[ColumnSink]:
        """The sink itself."""
        return [self]

    def validity(self, start: int, stop: int, valid: Valid) -> None:
        """Takes the validity of the rows from `start` to `stop`."""
        if valid is None and self._valid is None:
            return
        if self._valid is None:
            self._valid = np.ones(self.rows, np.bool_)
        self._valid[start:stop] = True if valid is None else valid

    def array(self) -> pa.Array:
        """Returns the column, once all its rows are written."""
        nulls = 0 if self._valid is None else self.rows - int(np.count_nonzero(self._valid))
        valid = bitmap(self._valid) if self._valid is not None and nulls else None
        data = bitmap(self.values) if self._buffer is None else self._buffer
        return pa.Array.from_buffers(self.type, self.rows, [valid, data], nulls)


@dataclass(slots=True)
class MaskSink:
    """The rows that pass a predicate: a null does not pass."""

    values: Array

    def validity(self, start: int, stop: int, valid: Valid) -> None:
        """Takes the validity of the rows from `start` to `stop`."""
        if valid is not None:
            self.values[start:stop] &= valid


@dataclass(slots=True)
class StackSink:
    """One column of a stack; the input column `name` may hold no null."""

    name: str
    values: Array
    nulls: int = 0

    def validity(self, start: int, stop: int, valid: Valid) -> None:
        """Counts the nulls among the rows from `start` to `stop`."""
        if valid is not None:
            self.nulls += stop - start - int(np.count_nonzero(valid))


@dataclass(slots=True)
class Matrix:
    """A stack of `names` as one fixed-size list column of `rows` rows, with a sink for each of them in order."""

    names: tuple[str, ...]
    type: pa.DataType
    dtype: np.dtype[Any]
    rows: int
    recycler: Recycler | None
    sinks: list[StackSink] = field(init=False)
    _values: Array = field(init=False)
    _buffer: pa.Buffer | None = None

    def __post_init__(self) -> None:
        self._buffer, self._values = allocate(self.rows * len(self.names), self.dtype, self.recycler)
        table = self._values.reshape(self.rows, len(self.names))
        self.sinks = [StackSink(name, table[:, index]) for index, name in enumerate(self.names)]

    def array(self) -> pa.Array:
        """Returns the stack, once its sinks have every row.

        Raises:
            DataError: A column of the stack has a null.
        """
        check_nulls({sink.name: sink.nulls for sink in self.sinks})
        data = bitmap(self._values) if self._buffer is None else self._buffer
        items = pa.Array.from_buffers(self.type.value_type, len(self._values), [None, data], 0)
        return pa.Array.from_buffers(self.type, self.rows, [None], 0, children=[items])


def check_nulls(nulls: dict[str, int]) -> None:
    """Raises `DataError` if a column for a stack has nulls: `nulls` counts them by name."""
    found = [f"{name!r} ({count:,})" for name, count in nulls.items() if count]
    if found:
        shown = ", ".join(found[:20]) + (f", … {len(found)} columns in all" if len(found) > 20 else "")
        raise DataError(
            f"stack: nulls in {shown}: a stack has no place for them. Replace them first with"
            " fill_null, or drop the rows with filter"
        )

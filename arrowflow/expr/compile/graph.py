"""The typed graph of operations that NumPy runs.

An `Op` is one operation on whole blocks of values, with its NumPy and its Arrow type decided. A `Graph` makes
each distinct operation once, so that operations that several outputs share are computed once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from arrowflow.types import FIXED, numpy_dtype

INPUT: Final = "input"
CONSTANT: Final = "constant"


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operation.

    Attributes:
        number: Its place in the graph. Its arguments have smaller numbers.
        kernel: The name of its function: `INPUT`, `CONSTANT`, or a name that `numpy_kernels` knows.
        args: The operations that it reads.
        param: The name of the column, the constant, or a setting of the kernel.
        dtype: The NumPy type of its values.
        type: The Arrow type of its values.
    """

    number: int
    kernel: str
    args: tuple[Op, ...]
    param: Any
    dtype: np.dtype[Any]
    type: pa.DataType


@dataclass(slots=True)
class Graph:
    """Makes operations, each distinct one only once."""

    ops: dict[tuple[object, ...], Op] = field(default_factory=dict)

    def op(self, kernel: str, args: tuple[Op, ...], type: pa.DataType, param: Any = None) -> Op:
        """Returns the operation `kernel` on `args` with values of `type`."""
        # A constant's bytes distinguish -0.0 from 0.0, which compare as equal.
        shown = (param.dtype.str, param.tobytes()) if isinstance(param, np.generic) else param
        # The hash of a type is the hash of its text, and slow. Most types are distinct by their number.
        key = (kernel, type.id if type.id in FIXED else type, shown, *[arg.number for arg in args])
        found = self.ops.get(key)
        if found is None:
            dtype = numpy_dtype(type)
            assert dtype is not None, type
            found = self.ops[key] = Op(len(self.ops), kernel, args, param, dtype, type)
        return found

    def input(self, name: str, type: pa.DataType) -> Op:
        """Returns the input column `name`."""
        return self.op(INPUT, (), type, name)

    def gather(self, name: str, type: pa.DataType) -> Op | None:
        """Returns the input column `name` for copying only, or None when its values have no fixed width."""
        if pa.types.is_decimal128(type):
            # One row is sixteen bytes, which NumPy moves as one value.
            key = (INPUT, (), type, name, "whole")
            return self.ops.setdefault(key, Op(len(self.ops), INPUT, (), name, np.dtype(np.complex128), type))
        return self.input(name, type) if numpy_dtype(type) is not None else None

    def constant(self, value: np.generic, type: pa.DataType) -> Op:
        """Returns a constant."""
        return self.op(CONSTANT, (), type, value)

    def convert(self, arg: Op, type: pa.DataType) -> Op:
        """Returns `arg` with its values converted to the numbers of `type`, as C does."""
        return arg if arg.type.equals(type) else self.op("convert", (arg,), type)

    def retype(self, arg: Op, type: pa.DataType) -> Op:
        """Returns `arg` with the same stored values under another Arrow type."""
        return self.input(arg.param, type) if arg.kernel == INPUT else self.convert(arg, type)


def reachable(roots: Iterable[Op]) -> list[Op]:
    """Returns every operation that `roots` need in an order of execution: arguments right before their use."""
    found: dict[int, Op] = {}
    stack = list(roots)[::-1]
    while stack:
        waiting = [arg for arg in stack[-1].args if arg.number not in found]
        if waiting:
            stack += waiting[::-1]
        else:
            op = stack.pop()
            found[op.number] = op
    return list(found.values())

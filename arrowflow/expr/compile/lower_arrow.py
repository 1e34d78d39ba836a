"""How `pyarrow.compute` expressions, and pyarrow's casts, become NumPy kernels.

Comparisons follow IEEE. A null condition gives null. Operations that pyarrow checks (overflow, division by zero,
lossy casts) stay with pyarrow, unless the types alone say that the check cannot fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pyarrow as pa

from arrowflow.expr.compile.graph import Graph, Op
from arrowflow.expr.compile.lowering import EXACT_DIGITS, FLOATS, SHARED, Lowering, require, stored_type
from arrowflow.expr.parse.tree import COMPARISONS, Call, Literal, Node
from arrowflow.types import is_number, numpy_dtype


class ArrowLowering(Lowering):
    """Lowers expressions that pyarrow owns."""

    rules: ClassVar[dict[str, Callable[..., Op]]]
    choice = "if_else_null"

    def widens(self, source: pa.DataType, target: pa.DataType) -> bool:
        return _fits(source, target)

    def compared(self, op: Op, literal: Literal) -> tuple[Op, Op]:
        type = literal.type
        if type is None or not is_number(type):
            return super().compared(op, literal)
        if op.type.equals(type) or (op.type in FLOATS and pa.types.is_integer(type)):
            return super().compared(op, literal)
        # pyarrow compares in the wider of both types. Its conversion of 64 bits is checked, and may fail. pyarrow takes
        # a constant as a float32 where a float32 holds the constant.
        require(_fits(op.type, type) and (type not in FLOATS or _fits(op.type, pa.float32())))
        return self.graph.convert(op, type), self.constant(literal, type)

    def arithmetic(self, call: Call, left: Node, right: Node, *, checked: bool = False) -> Op:
        """Lowers `+`, `-`, `*` and `/`."""
        type = self.type_of(call)
        require(type in FLOATS or (pa.types.is_integer(type) and not checked and call.function != "divide"))
        operands = (self.operand(left, type), self.operand(right, type))
        if call.function == "divide" and checked:
            require(isinstance(right, Literal) and operands[1].param != 0)
        return self.graph.op(call.function, operands, type)

    def cast(self, call: Call, value: Node, *, to_type: pa.DataType, **allowed: object) -> Op:
        """Lowers a conversion between types."""
        require(not any(allowed.values()))
        return safe_cast(self.graph, self.lower(value), to_type)


def safe_cast(graph: Graph, op: Op, type: pa.DataType) -> Op:
    """Returns `op` cast to `type` by pyarrow's rules, where no value of its type can fail.

    Raises:
        Unsupported: pyarrow would refuse some values of this type, or converts them in its own way.
    """
    source = op.type
    if source.equals(type):
        return op
    if pa.types.is_decimal(source):
        require(source.precision <= EXACT_DIGITS and source.scale >= 0 and type in FLOATS)
        if type == pa.float32():
            power = graph.constant(np.int64(10**source.scale), pa.int64())
            return graph.op("decimal_to_float32", (op, power), type)
        power = graph.constant(np.float64(10.0**-source.scale), pa.float64())
        return graph.op("multiply", (op, power), type)
    if pa.types.is_temporal(source):
        require(type == stored_type(source))
        return graph.retype(op, type)
    require(is_number(type) and (is_number(source) or pa.types.is_boolean(source)))
    require(pa.types.is_boolean(source) or _fits(source, type) or (source in FLOATS and type in FLOATS))
    return graph.convert(op, type)


def _fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether every number of `source` is also a number of `target`, so that no check can fail."""
    if not is_number(source) or not is_number(target):
        return False
    given, wanted = numpy_dtype(source), numpy_dtype(target)
    assert given is not None and wanted is not None
    return bool(np.can_cast(given, wanted, "safe") and not (given.itemsize == 8 and given != wanted))


ArrowLowering.rules = SHARED | {
    **dict.fromkeys(COMPARISONS, Lowering.comparison),
    **dict.fromkeys(("add", "subtract", "multiply", "divide"), ArrowLowering.arithmetic),
    "log": Lowering.float_function,
    "cast": ArrowLowering.cast,
}

"""Lowering: expressions become graphs of NumPy kernels where the kernels give exactly the owning engine's values.

`Lowering` holds the rules that Polars and pyarrow share; `lower_polars` and `lower_arrow` hold the rules that differ.
A node without a rule raises `Unsupported`, and so does an option that its rule does not read (see `apply`). The whole
expression then runs on its engine. The choice depends on the plan alone, never on the data.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr.compile.graph import Graph, Op
from arrowflow.expr.parse.tree import MIRRORED, Call, Column, Literal, Node, Unsupported, apply
from arrowflow.types import is_number, numpy_dtype, scalar

Env = Callable[[str], Op | None]

FLOATS: Final = (pa.float32(), pa.float64())
# A decimal of up to 15 digits is exact in a float64.
EXACT_DIGITS: Final = 15


def require(condition: object) -> None:
    """Raises `Unsupported` unless `condition` is true."""
    if not condition:
        raise Unsupported


class Lowering:
    """Lowers the nodes of one engine's expressions.

    Attributes:
        graph: The graph that receives the operations.
        env: Returns the operation that computes a column, None for a column that NumPy cannot read.
        type_of: Asks the engine for the type that a call yields.
        choice: The kernel that chooses between two values.
    """

    rules: ClassVar[dict[str, Callable[..., Op]]] = {}
    choice: ClassVar[str]

    def __init__(self, graph: Graph, env: Env, type_of: Callable[[Call], pa.DataType]) -> None:
        self.graph = graph
        self.env = env
        self.type_of = type_of

    def lower(self, node: Node) -> Op:
        """Returns the operation that computes `node`, or raises `Unsupported`."""
        if isinstance(node, Column) and (op := self.env(node.name)) is not None:
            return op
        if isinstance(node, Call) and node.function in self.rules:
            return apply(self.rules[node.function], self, node)
        raise Unsupported

    # -- constants

    def constant(self, literal: Literal, type: pa.DataType) -> Op:
        """Returns `literal` as a constant of `type`, which must hold it exactly."""
        value = literal.value
        require(value is not None and not isinstance(value, list | tuple | dict))
        if pa.types.is_decimal(type):
            return self.graph.constant(np.int64(decimal_digits(value, type)), type)
        if is_number(type):
            return self.graph.constant(exact_number(value, type), type)
        if pa.types.is_boolean(type):
            require(isinstance(value, bool))
        else:
            require(pa.types.is_temporal(type) and literal.type is not None and type.equals(literal.type))
        return self._constant(value, type)

    def _constant(self, value: Any, type: pa.DataType) -> Op:
        dtype = numpy_dtype(type)
        assert dtype is not None
        return self.graph.constant(dtype.type(value), type)

    def operand(self, node: Node, type: pa.DataType) -> Op:
        """Returns `node` as an operand of arithmetic in `type`."""
        if isinstance(node, Literal):
            return self.constant_as(node, type)
        op = self.lower(node)
        require(is_number(op.type) and self.widens(op.type, type))
        return self.graph.convert(op, type)

    def constant_as(self, literal: Literal, type: pa.DataType) -> Op:
        """Returns `literal` as the engine converts it for arithmetic in `type`: rounded, if `type` is a float."""
        value = literal.value
        if type in FLOATS and isinstance(value, float | int) and not isinstance(value, bool):
            require(isinstance(value, float) or abs(value) <= 1 << 24)
            with np.errstate(over="ignore"):  # infinite in a float32, as for the engine
                return self._constant(value, type)
        return self.constant(literal, type)

    def widens(self, source: pa.DataType, target: pa.DataType) -> bool:
        """Returns whether the engine converts each number of `source` to `target` as C does."""
        raise NotImplementedError

    # -- rules that both engines share

    def comparison(self, call: Call, left: Node, right: Node) -> Op:
        """Lowers `==`, `!=`, `<`, `<=`, `>` and `>=`."""
        function = call.function
        if isinstance(left, Literal):
            left, right, function = right, left, MIRRORED[function]
        require(not isinstance(left, Literal))
        op = self.lower(left)
        op, other = self.compared(op, right) if isinstance(right, Literal) else (op, self.lower(right))
        require(other.type.equals(op.type) and not pa.types.is_boolean(op.type))
        return self.compare(function, op, other, constant=isinstance(right, Literal))

    def compared(self, op: Op, literal: Literal) -> tuple[Op, Op]:
        """Returns an operation and a literal as the operands that the engine compares."""
        return op, self.constant(literal, op.type)

    def compare(self, function: str, left: Op, right: Op, *, constant: bool) -> Op:
        """Returns the comparison of two lowered operands, by the rules of the engine."""
        return self.graph.op(function, (left, right), pa.bool_())

    def logic(self, call: Call, *args: Node) -> Op:
        """Lowers and, or, not; both engines treat nulls alike."""
        ops = tuple(self.lower(arg) for arg in args)
        require(all(pa.types.is_boolean(op.type) for op in ops))
        return self.graph.op(call.function, ops, pa.bool_())

    def null_test(self, call: Call, value: Node, *, nan_is_null: bool = False) -> Op:
        """Lowers the tests for null."""
        require(not nan_is_null)
        return self.graph.op(call.function, (self.lower(value),), pa.bool_())

    def float_test(self, call: Call, value: Node) -> Op:
        """Lowers the tests for NaN, infinite and finite."""
        op = self.lower(value)
        require(op.type in FLOATS)
        return self.graph.op(call.function, (op,), pa.bool_())

    def float_function(self, call: Call, value: Node) -> Op:
        """Lowers functions of one float that give a float of the same type: roots, exponentials, rounding."""
        op = self.lower(value)
        require(op.type in FLOATS)
        return self.graph.op(call.function, (op,), op.type)

    def absolute(self, call: Call, value: Node, *, checked: bool = False) -> Op:
        """Lowers the absolute value and the negation."""
        op = self.lower(value)
        require(op.type in FLOATS or (pa.types.is_signed_integer(op.type) and not checked))
        return self.graph.op(call.function, (op,), op.type)

    def power(self, call: Call, base: Node, exponent: Node, *, checked: bool = False) -> Op:
        """Lowers `**` with a constant exponent."""
        require(not checked)
        type = self.type_of(call)
        require(type in FLOATS and isinstance(exponent, Literal) and exponent.value == 2)
        op = self.lower(base)
        require(op.type.equals(type))
        return self.graph.op("square", (op,), type)

    def if_else(self, call: Call, test: Node, yes: Node, no: Node) -> Op:
        """Lowers a choice between two values by a condition."""
        type = self.type_of(call)
        require(numpy_dtype(type) is not None and not pa.types.is_decimal(type))
        condition = self.lower(test)
        require(pa.types.is_boolean(condition.type))
        branches = (self.branch(yes, type), self.branch(no, type))
        return self.graph.op(self.choice, (condition, *branches), type)

    def fill_null(self, call: Call, value: Node, other: Node) -> Op:
        """Lowers the replacement of nulls by a constant."""
        op = self.lower(value)
        require(not pa.types.is_decimal(op.type) and self.type_of(call).equals(op.type))
        return self.graph.op("fill", (op, self.branch(other, op.type)), op.type)

    def branch(self, node: Node, type: pa.DataType) -> Op:
        """Returns `node` as one of the values of `type` between which a condition chooses for each row."""
        if isinstance(node, Literal):
            return self.constant_as(node, type) if is_number(type) else self.constant(node, type)
        op = self.lower(node)
        require(not pa.types.is_decimal(type))
        return op if op.type.equals(type) else self.operand(node, type)


def exact_number(value: object, type: pa.DataType) -> np.generic:
    """Returns the number `value` of the numeric `type`, which must hold it exactly, else raises `Unsupported`."""
    require(isinstance(value, int | float) and not isinstance(value, bool))
    dtype = numpy_dtype(type)
    assert dtype is not None and isinstance(value, int | float)
    if pa.types.is_integer(type):
        limits = np.iinfo(dtype)
        require(isinstance(value, int) and limits.min <= value <= limits.max)
    else:
        require(
            not math.isnan(value) and (abs(value) <= float(np.finfo(dtype).max) or abs(value) == float("inf"))
        )
        require(float(dtype.type(value)) == value)
    number: np.generic = dtype.type(value)
    return number


def decimal_digits(value: object, type: pa.DataType) -> int:
    """Returns the digits of `value` as the decimal `type` stores them, or raises `Unsupported` if it cannot."""
    require(isinstance(value, int | decimal.Decimal) and not isinstance(value, bool))
    assert isinstance(value, int | decimal.Decimal)
    with decimal.localcontext(prec=76):
        scaled = decimal.Decimal(value).scaleb(type.scale)
        require(scaled == scaled.to_integral_value() and abs(scaled) < 10**type.precision)
        return int(scaled)


def stored_integer(value: object, type: pa.DataType) -> int:
    """Returns the integer that Arrow stores for the temporal `value` in a column of `type`.

    Examples:
        >>> import datetime, pyarrow as pa
        >>> stored_integer(datetime.date(1995, 1, 1), pa.date32())
        9131
    """
    require(isinstance(value, datetime.date | datetime.time | datetime.timedelta))
    try:
        found = scalar(value, type)
        return int(found.cast(stored_type(type)).as_py())
    except (PlanError, pa.ArrowException) as error:
        raise Unsupported from error


def stored_type(type: pa.DataType) -> pa.DataType:
    """Returns the type of the integers that Arrow stores for a temporal type."""
    return pa.int32() if type.bit_width == 32 else pa.int64()


SHARED: Final[dict[str, Callable[..., Op]]] = {
    **dict.fromkeys(("and", "or", "not"), Lowering.logic),
    **dict.fromkeys(("is_null", "is_not_null"), Lowering.null_test),
    **dict.fromkeys(("is_nan", "is_finite", "is_infinite"), Lowering.float_test),
    **dict.fromkeys(("exp", "log1p", "sqrt", "floor", "ceil"), Lowering.float_function),
    **dict.fromkeys(("abs", "negate"), Lowering.absolute),
    "power": Lowering.power,
    "if_else": Lowering.if_else,
    "fill_null": Lowering.fill_null,
}

"""How Polars' expressions become NumPy kernels.

NaN equals itself and is greater than everything; integers wrap around; a null condition is false; a bare number
takes the type of its neighbour; decimals become floats by division.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from arrowflow.expr.graph import Op
from arrowflow.expr.lowering import FLOATS, SHARED, Lowering, Unsupported, require
from arrowflow.expr.tree import BETWEEN, COMPARISONS, Call, Literal, Node
from arrowflow.expr.types import is_number, numpy_dtype, scalar
from arrowflow.lazy import compute as pc

# A decimal of so many digits is exact in a float64, in which Polars divides it by its power of ten.
EXACT_DIGITS: Final = 15


class PolarsLowering(Lowering):
    """Lowers expressions that Polars owns."""

    rules: ClassVar[dict[str, Callable[[Any, Call], Op]]]

    def widens(self, source: pa.DataType, target: pa.DataType) -> bool:
        """Returns whether a constant of the one type may be taken as the other without a change of meaning."""
        return True  # arithmetic is done in the common supertype, to which both sides are converted unchecked

    def compare(self, function: str, left: Op, right: Op, *, constant: bool) -> Op:
        """Returns the comparison of two lowered operands, by the rules of the engine."""
        graph, boolean = self.graph, pa.bool_()
        if left.type not in FLOATS:
            return super().compare(function, left, right, constant=constant)
        if constant:  # which is not NaN: then NaN is greater, and not (x <= c) says so
            if function in ("greater", "greater_equal"):
                opposite = "less_equal" if function == "greater" else "less"
                return graph.op("not", (graph.op(opposite, (left, right), boolean),), boolean)
            return graph.op(function, (left, right), boolean)
        if function in ("equal", "not_equal"):
            equal = graph.op("equal", (left, right), boolean)
            nans = tuple(graph.op("is_nan", (side,), boolean) for side in (left, right))
            same = graph.op("either", (equal, graph.op("both", nans, boolean)), boolean)
            return same if function == "equal" else graph.op("not", (same,), boolean)
        if function in ("less", "less_equal"):
            mirrored = "greater" if function == "less" else "greater_equal"
            return self.compare(mirrored, right, left, constant=False)
        # Not Kleene's logic: a null on either side is null.
        if function == "greater_equal":
            larger = graph.op(function, (left, right), boolean)
            return graph.op("either", (larger, graph.op("is_nan", (left,), boolean)), boolean)
        larger = graph.op("not", (graph.op("less_equal", (left, right), boolean),), boolean)
        number = graph.op("not", (graph.op("is_nan", (right,), boolean),), boolean)
        return graph.op("both", (larger, number), boolean)

    def compared(self, literal: Literal, type: pa.DataType) -> Op:
        """Returns the operation that compares two operands of one type."""
        if literal.type is None and type in FLOATS and isinstance(literal.value, float):
            return self.constant_as(literal, type)
        return self.constant(literal, type)

    def arithmetic(self, call: Call) -> Op:
        """Lowers `+`, `-`, `*` and `/`."""
        type = self.type_of(call)
        require(is_number(type))
        left, right = (self.operand(arg, type) for arg in call.args)
        if call.function == "divide" and isinstance(call.args[1], Literal):
            # Polars multiplies by the reciprocal of a constant, which rounds differently.
            require(right.param != 0)
            reciprocal = self.graph.constant(right.dtype.type(1) / right.param, type)
            return self.graph.op("multiply", (left, reciprocal), type)
        return self.graph.op(call.function, (left, right), type)

    def integer_division(self, call: Call) -> Op:
        """Lowers `//` and `%`."""
        # Only by a positive constant: division by zero is null, and floats are divided by another algorithm.
        type = self.type_of(call)
        divisor = call.args[1]
        require(pa.types.is_integer(type) and isinstance(divisor, Literal))
        left, right = (self.operand(arg, type) for arg in call.args)
        require(right.param > 0)
        return self.graph.op(call.function, (left, right), type)

    def power(self, call: Call) -> Op:
        """Lowers `**` with a constant exponent."""
        type = self.type_of(call)
        base, exponent = call.args
        require(type in FLOATS and isinstance(exponent, Literal) and exponent.value == 2)
        op = self.lower(base)
        require(op.type.equals(type))
        return self.graph.op("square", (op,), type)

    def absolute(self, call: Call) -> Op:
        """Lowers the absolute value and the negation."""
        op = self.lower(call.args[0])
        require(op.type in FLOATS or pa.types.is_signed_integer(op.type))
        return self.graph.op(call.function, (op,), op.type)

    def logarithm(self, call: Call) -> Op:
        """Lowers logarithms of a constant base."""
        op, base = self.lower(call.args[0]), call.args[1]
        require(op.type in FLOATS)
        number = base.value if isinstance(base, Literal) else None
        if not isinstance(number, int | float) or number <= 1:
            raise Unsupported
        # As Polars does it: of a float32 e, the logarithm is not 1.
        natural = self.graph.op("log", (op,), op.type)
        # By the C library, as Polars: that of another library may be an ulp away, which the quotient would double.
        divisor = self.graph.constant(op.dtype.type(pc.ln(scalar(number, op.type)).as_py()), op.type)
        return self.graph.op("divide", (natural, divisor), op.type)

    def clip(self, call: Call) -> Op:
        """Lowers the restriction to an interval."""
        op = self.lower(call.args[0])
        require(is_number(op.type) and self.type_of(call).equals(op.type))
        bounds = list(call.args[1:])
        for option, kernel in (("has_min", "clip_low"), ("has_max", "clip_high")):
            if call.option(option):
                bound = bounds.pop(0)
                require(isinstance(bound, Literal))
                op = self.graph.op(kernel, (op, self.operand(bound, op.type)), op.type)
        return op

    def between(self, call: Call) -> Op:
        """Lowers a test for lying in an interval."""
        value, *bounds = call.args
        names = BETWEEN[str(call.option("closed"))]
        tests = tuple(
            self.comparison(Call(name, (value, bound))) for name, bound in zip(names, bounds, strict=True)
        )
        return self.graph.op("and", tests, pa.bool_())

    def is_in(self, call: Call) -> Op:
        """Lowers membership in a list of constants."""
        values = call.args[1]
        require(isinstance(values, Literal) and isinstance(values.value, list))
        assert isinstance(values, Literal) and isinstance(values.value, list) and values.type is not None
        op = self.lower(call.args[0])
        return self.membership(op, tuple(values.value), values.type.value_type)

    def if_else(self, call: Call) -> Op:
        """Lowers a choice between two values by a condition."""
        type = self.type_of(call)
        require(numpy_dtype(type) is not None and not pa.types.is_decimal(type))
        condition = self.lower(call.args[0])
        require(pa.types.is_boolean(condition.type))
        yes, no = (self.branch(arg, type) for arg in call.args[1:])
        return self.graph.op("if_else", (condition, yes, no), type)

    def cast(self, call: Call) -> Op:
        """Lowers a conversion between types."""
        require(not call.option("wrap"))
        return self._converted(call.args[0], self.type_of(call))

    def to_physical(self, call: Call) -> Op:
        """Lowers the view of dates and times as the integers that they are stored as."""
        return self._converted(call.args[0], self.type_of(call))

    def _converted(self, node: Node, type: pa.DataType) -> Op:
        op = self.lower(node)
        source = op.type
        if source.equals(type):
            return op
        if pa.types.is_decimal(source):
            require(source.precision <= EXACT_DIGITS and source.scale >= 0 and type in FLOATS)
            power = self.graph.constant(np.float64(10.0**source.scale), pa.float64())
            return self.graph.op("quotient", (op, power), type)
        if pa.types.is_date32(source) or _counts(source):
            require(type in (pa.int32(), pa.int64()))
            return self.graph.convert(self.graph.retype(op, _integer(source)), type)
        require(is_number(type) and (is_number(source) or pa.types.is_boolean(source)))
        target, given = numpy_dtype(type), op.dtype
        assert target is not None
        require(type in FLOATS or np.can_cast(given, target, "safe"))
        return self.graph.convert(op, type)


def _counts(type: pa.DataType) -> bool:
    """Whether Polars stores `type` as Arrow does: seconds become milliseconds there, times nanoseconds."""
    if pa.types.is_timestamp(type) or pa.types.is_duration(type):
        return bool(type.unit != "s")
    return bool(pa.types.is_time64(type) and type.unit == "ns")


def _integer(type: pa.DataType) -> pa.DataType:
    return pa.int32() if type.bit_width == 32 else pa.int64()


PolarsLowering.rules = SHARED | {
    **dict.fromkeys(COMPARISONS, PolarsLowering.comparison),
    **dict.fromkeys(("add", "subtract", "multiply", "divide"), PolarsLowering.arithmetic),
    **dict.fromkeys(("floor_divide", "modulo"), PolarsLowering.integer_division),
    **dict.fromkeys(("abs", "negate"), PolarsLowering.absolute),
    "power": PolarsLowering.power,
    "log": PolarsLowering.logarithm,
    "clip": PolarsLowering.clip,
    "is_between": PolarsLowering.between,
    "is_in": PolarsLowering.is_in,
    "is_not_nan": lambda self, call: self.graph.op(
        "not", (self.float_test(Call("is_nan", call.args)),), pa.bool_()
    ),
    "if_else": PolarsLowering.if_else,
    "cast": PolarsLowering.cast,
    "to_physical": PolarsLowering.to_physical,
}

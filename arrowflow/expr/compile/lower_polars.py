"""How Polars' expressions become NumPy kernels.

NaN equals itself and is greater than every other number. Integers wrap around. A null condition is false. A bare
number takes the type of its neighbour. A division makes floats of decimals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from arrowflow.expr.compile.graph import Op
from arrowflow.expr.compile.lowering import EXACT_DIGITS, FLOATS, SHARED, Lowering, require, stored_type
from arrowflow.expr.parse.tree import (
    BETWEEN,
    COMPARISONS,
    MIRRORED,
    OPPOSITE,
    Call,
    Literal,
    Node,
    Unsupported,
)
from arrowflow.lazy import compute as pc
from arrowflow.types import is_number, numpy_dtype, scalar


class PolarsLowering(Lowering):
    """Lowers expressions that Polars owns."""

    rules: ClassVar[dict[str, Callable[..., Op]]]
    choice = "if_else"

    def widens(self, source: pa.DataType, target: pa.DataType) -> bool:
        given, wanted = numpy_dtype(source), numpy_dtype(target)
        return target in FLOATS or (
            given is not None and wanted is not None and np.can_cast(given, wanted, "safe")
        )

    def compare(self, function: str, left: Op, right: Op, *, constant: bool) -> Op:
        if left.type not in FLOATS:
            require(not pa.types.is_float16(left.type))
            return super().compare(function, left, right, constant=constant)

        def test(kernel: str, *args: Op) -> Op:
            return self.graph.op(kernel, args, pa.bool_())

        if constant:  # a constant is not NaN: a NaN in the column is greater, as not (x <= c) says
            if function in ("greater", "greater_equal"):
                return test("not", test(OPPOSITE[function], left, right))
            return test(function, left, right)
        if function in ("equal", "not_equal"):
            nans = test("both", test("is_nan", left), test("is_nan", right))
            same = test("either", test("equal", left, right), nans)
            return same if function == "equal" else test("not", same)
        if function in ("less", "less_equal"):
            return self.compare(MIRRORED[function], right, left, constant=False)
        # This is not Kleene's logic: a null on either side gives null.
        if function == "greater_equal":
            return test("either", test(function, left, right), test("is_nan", left))
        return test("both", test("not", test("less_equal", left, right)), test("not", test("is_nan", right)))

    def compared(self, op: Op, literal: Literal) -> tuple[Op, Op]:
        if literal.type is None and op.type in FLOATS and isinstance(literal.value, float):
            return op, self.constant_as(literal, op.type)
        return super().compared(op, literal)

    def arithmetic(self, call: Call, left: Node, right: Node) -> Op:
        """Lowers `+`, `-`, `*` and `/`."""
        type = self.type_of(call)
        require(is_number(type))
        for constant, other in ((left, right), (right, left)):
            if isinstance(constant, Literal):
                self._check_constant(call.function, constant.value, self.lower(other).type)
        first, second = self.operand(left, type), self.operand(right, type)
        if call.function == "divide" and isinstance(right, Literal):
            # Polars multiplies by the reciprocal of a constant, which rounds differently.
            require(second.param != 0)
            with np.errstate(over="ignore"):  # of a number below the normal ones
                inverse = second.dtype.type(1) / second.param
            require(np.isfinite(inverse))
            reciprocal = self.graph.constant(inverse, type)
            return self.graph.op("multiply", (first, reciprocal), type)
        return self.graph.op(call.function, (first, second), type)

    def _check_constant(self, function: str, value: Any, type: pa.DataType) -> None:
        """Refuses constants that Polars adds to a column of `type`, or divides it by, in a special way."""
        require(value is not None)
        if function in ("add", "subtract"):
            require(value != 0)  # 0 yields the other side, of which -0.0 keeps its sign, or negates it
        if function == "divide" and pa.types.is_unsigned_integer(type):
            require(value >= 0)  # else Polars makes both signed integers first, which may not hold them

    def integer_division(self, call: Call, dividend: Node, divisor: Node) -> Op:
        """Lowers `//` and `%`."""
        # The divisor has to be a positive constant. A division by zero is null, and floats take another algorithm.
        type = self.type_of(call)
        require(pa.types.is_integer(type) and isinstance(divisor, Literal))
        operands = (self.operand(dividend, type), self.operand(divisor, type))
        require(operands[1].param > 0)
        return self.graph.op(call.function, operands, type)

    def logarithm(self, call: Call, value: Node, base: Node) -> Op:
        """Lowers logarithms of a constant base."""
        number = base.value if isinstance(base, Literal) else None
        if not isinstance(number, int | float) or number <= 1:
            raise Unsupported
        # Polars divides two logarithms, too. The logarithm of e as a float32 is not 1.
        natural = self.float_function(call, value)
        # Polars uses the C library. The logarithm of another library may be an ulp away, and the quotient would double
        # that.
        logarithm = pc.ln(scalar(number, natural.type)).as_py()
        divisor = self.graph.constant(natural.dtype.type(logarithm), natural.type)
        return self.graph.op("divide", (natural, divisor), natural.type)

    def between(self, call: Call, value: Node, low: Node, high: Node, *, closed: str) -> Op:
        """Lowers a test for lying in an interval."""
        require(closed in BETWEEN)
        above, below = BETWEEN[closed]
        tests = (Call(above, (value, low)), Call(below, (value, high)))
        return self.graph.op("and", tuple(self.lower(test) for test in tests), pa.bool_())

    def is_not_nan(self, call: Call, value: Node) -> Op:
        """Lowers the test for anything but NaN."""
        return self.lower(Call("not", (Call("is_nan", (value,)),)))

    def cast(self, call: Call, value: Node, *, options: object = "Strict") -> Op:
        """Lowers a conversion between types, and the view of dates and times as the integers that they are stored as."""
        require(options in ("Strict", "NonStrict"))
        type = self.type_of(call)
        op = self.lower(value)
        source = op.type
        if source.equals(type):
            return op
        if pa.types.is_decimal(source):
            require(source.precision <= EXACT_DIGITS and source.scale >= 0 and type in FLOATS)
            power = self.graph.constant(np.float64(10.0**source.scale), pa.float64())
            return self.graph.op("quotient", (op, power), type)
        if pa.types.is_date32(source) or _counts(source):
            integer = stored_type(source)
            require(pa.types.is_integer(type) and self.widens(integer, type))
            return self.graph.convert(self.graph.retype(op, integer), type)
        require(is_number(type) and (is_number(source) or pa.types.is_boolean(source)))
        require(self.widens(source, type))
        return self.graph.convert(op, type)


def _counts(type: pa.DataType) -> bool:
    """Whether Polars stores `type` as Arrow does: seconds become milliseconds, and times become nanoseconds."""
    if pa.types.is_timestamp(type) or pa.types.is_duration(type):
        return bool(type.unit != "s")
    return bool(pa.types.is_time64(type) and type.unit == "ns")


PolarsLowering.rules = SHARED | {
    **dict.fromkeys(COMPARISONS, PolarsLowering.comparison),
    **dict.fromkeys(("add", "subtract", "multiply", "divide"), PolarsLowering.arithmetic),
    **dict.fromkeys(("floor_divide", "modulo"), PolarsLowering.integer_division),
    "log": PolarsLowering.logarithm,
    "is_between": PolarsLowering.between,
    "is_not_nan": PolarsLowering.is_not_nan,
    **dict.fromkeys(("cast", "to_physical"), PolarsLowering.cast),
}

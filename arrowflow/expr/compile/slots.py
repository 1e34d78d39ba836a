"""The slots of a stage: a slot says how an output column is made, as decided when a program is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.expr.compile.arrow_repairs import repaired
from arrowflow.expr.compile.graph import CONSTANT, Graph, Op
from arrowflow.expr.compile.lower_arrow import ArrowLowering, safe_cast
from arrowflow.expr.compile.lower_polars import PolarsLowering
from arrowflow.expr.compile.lowering import Env
from arrowflow.expr.compile.steps import Cast, FillNull, Keep, Output, Stack, columns_of
from arrowflow.expr.own.function import Compute, function
from arrowflow.expr.own.replaced import Replaced
from arrowflow.expr.parse import arrow_tree, polars_tree
from arrowflow.expr.parse.expression import Expr, expand, of_column, parse_expression
from arrowflow.expr.parse.lifted import OWN
from arrowflow.expr.parse.long_constants import long_mapping
from arrowflow.expr.parse.tree import Call, Column, Literal, Node, Unsupported
from arrowflow.expr.run.eager import Casting, Filling, FillingCodes, Stacking
from arrowflow.expr.run.foreign import arrow_type, check_columns, has_single_type, polars_field, polars_type
from arrowflow.types import (
    convert,
    declared_values,
    exact_values,
    is_number,
    is_string,
    normalise,
    numpy_dtype,
    scalar,
)


@dataclass(frozen=True, slots=True)
class Passed:
    """The input column `name` of the stage under `type`, which stores the same values."""

    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Computed:
    """An output column that NumPy computes."""

    op: Op
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Stacked:
    """Several computed columns side by side."""

    names: tuple[str, ...]
    ops: tuple[Op, ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Foreign:
    """An output column that is computed by the engine that owns the expression."""

    expr: Expr
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Eager:
    """An output column that a pyarrow function makes from the input columns `names`."""

    names: tuple[str, ...]
    type: pa.DataType
    function: Callable[..., pa.Array]


Slot = Passed | Computed | Stacked | Foreign | Eager


def names_of(slot: Slot) -> tuple[str, ...]:
    """Returns the input columns that `slot` reads by itself; `ops_of` returns the operations that NumPy runs for it."""
    if isinstance(slot, Passed):
        return (slot.name,)
    if isinstance(slot, Foreign):
        return slot.expr.columns
    return slot.names if isinstance(slot, Eager) else ()


def ops_of(slot: Slot) -> tuple[Op, ...]:
    """Returns the operations that NumPy runs for `slot`."""
    if isinstance(slot, Computed):
        return (slot.op,)
    return slot.ops if isinstance(slot, Stacked) else ()


def metadata_of(slot: Slot, schema: pa.Schema) -> Mapping[bytes, bytes] | None:
    """Returns the metadata of an output's field: of an enum, the values of its codes."""
    field: pa.Field | None = None
    if pa.types.is_dictionary(slot.type):
        if isinstance(slot, Passed | Eager):  # nothing but `FillingCodes` makes codes
            field = schema.field(*names_of(slot))
        elif isinstance(slot, Foreign) and slot.expr.engine == "polars":
            field = polars_field(slot.expr.whole, schema)
    return None if field is None else field.metadata


def type_of_expr(expr: Expr, schema: pa.Schema) -> pa.DataType:
    """Returns the type that `expr` yields on `schema`, by asking its engine."""
    check_columns(expr.columns, schema)
    if expr.engine == "arrow":
        return arrow_type(expr.source, expr.columns, schema)
    text = expr.json()
    for part in polars_tree.cast_to(text, *polars_tree.TEMPORAL):
        if pa.types.is_string(polars_type(part, schema)):
            raise PlanError(
                f"{expr!r} guesses a format from the first text of a chunk: take str.to_date(format)"
            )
    for part in polars_tree.cast_to(text, "Struct"):
        found = polars_type(part, schema)
        if not (pa.types.is_nested(found) or pa.types.is_null(found)):
            raise PlanError(
                f"{expr!r} casts {found} to a struct: where Polars finds nothing but nulls in a chunk, it gives other nulls"
                " than elsewhere. Make one with pl.struct"
            )
    for part in polars_tree.choices(text):
        if not has_single_type(part, schema):
            raise PlanError(
                f"Polars gives {part.expr} a type that depends on the rows: a bare number is in one branch, and in"
                " another are no numbers. Name the type of the number, as in pl.lit(0, dtype=pl.Int64), or cast the others"
            )
    for call, part in polars_tree.own_calls(text):
        _own_function(call, polars_type(part, schema), most=1)
    return polars_type(expr.whole, schema)


def steady(expr: Expr, type: pa.DataType, schema: pa.Schema) -> Expr:
    """Returns `expr`, which yields `type`, in the form that its engine runs: chunk borders then change no value."""
    if expr.engine == "arrow":
        data = repaired(bytes(expr.form))  # type: ignore[arg-type]
        return expr if data is None else Expr("arrow", arrow_tree.deserialise(data), expr.name, expr.columns)
    text = polars_tree.spread(expr.json())
    source = None if text is None else polars_tree.deserialise(text)
    if source is None:
        return expr
    found = Expr(expr.engine, source, expr.name, expr.columns)
    return found if polars_type(found.whole, schema).equals(type) else expr


def lowered(expr: Expr, type: pa.DataType, env: Env, schema: pa.Schema, graph: Graph) -> Op | None:
    """Returns `expr`, which yields `type`, as an operation of `graph`, or None when its engine has to run it."""

    def type_of(call: Call) -> pa.DataType:
        if isinstance(call.source, str):
            part = polars_tree.deserialise(call.source)
            if part is None:
                raise Unsupported
            return polars_type(polars_tree.Subexpression(part, call.source, expr.columns), schema)
        return arrow_type(arrow_tree.deserialise(call.source), expr.columns, schema)

    try:
        op = (PolarsLowering if expr.engine == "polars" else ArrowLowering)(graph, env, type_of).lower(
            expr.tree()
        )
    except Unsupported:
        return None
    decimals = pa.types.is_decimal(op.type)  # NumPy has read only the low word of a decimal
    return op if op.type.equals(type) and op.kernel != CONSTANT and not decimals else None


def slot_of(output: Output, env: Env, schema: pa.Schema, graph: Graph) -> Slot:
    """Returns how to make `output` on a stage with the columns `schema`, which `env` knows as operations."""
    if isinstance(output, Expr):
        return _expr_slot(output, env, schema, graph)
    check_columns(columns_of(output), schema)
    if isinstance(output, Stack):
        return _stack_slot(output, env, schema, graph)
    type = schema.field(output.name).type
    if isinstance(output, Keep):
        return Passed(output.name, type)
    if isinstance(output, Cast):
        return _cast_slot(output, schema, env(output.name), graph)
    if pa.types.is_dictionary(type):
        return _fill_codes(output, schema.field(output.name))
    return _fill_slot(output, type, env(output.name), graph)


def _expr_slot(expr: Expr, env: Env, schema: pa.Schema, graph: Graph) -> Slot:
    parts = expand(expr, schema)
    if len(parts) != 1:
        raise PlanError(f"{expr!r} yields {len(parts)} columns where one is expected")
    (expr,) = parts
    tree = expr.tree()
    if isinstance(tree, Column):
        # No engine is asked: Polars cannot read some types, and their columns pass all the same.
        check_columns((tree.name,), schema)
        return Passed(tree.name, schema.field(tree.name).type)
    type = type_of_expr(expr, schema)
    own = _own_slot(tree, type, schema) or _replaced_slot(expr, type, schema)
    if own is not None:
        return own
    op = lowered(expr, type, env, schema, graph)
    return Foreign(steady(expr, type, schema), type) if op is None else Computed(op, type)


def _own_slot(tree: Node, type: pa.DataType, schema: pa.Schema) -> Slot | None:
    """Returns how to make a column that is nothing but a function of `expr/own`, of a column that is there."""
    if (
        not isinstance(tree, Call)
        or not tree.function.startswith(OWN)
        or not isinstance(tree.args[0], Column)
    ):
        return None
    name = tree.args[0].name
    return Eager((name,), type, _own_function(tree, schema.field(name).type))


def _replaced_slot(expr: Expr, type: pa.DataType, schema: pa.Schema) -> Slot | None:
    """Returns how to make a column that is nothing but `replace_strict` with a long mapping.

    Polars runs it where types differ: of the column and the old values, or of the new values, the default and the result.
    """
    found = long_mapping(expr.json()) if expr.engine == "polars" else None
    if found is None or found.old.null_count():
        return None
    own = schema.field(found.column).type
    try:
        old, new = (_as_arrow(series) for series in (found.old, found.new))
        default = None if found.default is None else _as_arrow(found.default.cast(found.new.dtype))
    except (pl.exceptions.PolarsError, pa.ArrowException):
        return None
    is_key = own.equals(old.type) if pa.types.is_integer(own) else is_string(own) and is_string(old.type)
    is_value = not (pa.types.is_nested(type) or pa.types.is_dictionary(type)) and type.equals(
        normalise(new.type)
    )
    if not (is_key and is_value and len(new) in (1, len(old))):
        return None
    default = None if default is None else convert(default, type)
    return Eager((found.column,), type, Replaced(found.column, old, convert(new, type), default))


def _as_arrow(series: pl.Series) -> pa.Array:
    return series.to_arrow(compat_level=pl.CompatLevel.oldest())


def _own_function(call: Call, type: pa.DataType, most: int | None = None) -> Compute:
    """Returns a function of `expr/own` for a column of `type`, with its first constants or with all of them."""
    words = None
    for constants in call.args[1:]:
        assert isinstance(constants, Literal) and constants.type is not None
        kind = constants.type.value_type
        whole = pl.UInt64 if kind == pa.uint64() else pl.Int64
        numbers = pl.Float64 if pa.types.is_floating(kind) else whole
        dtype = pl.String if pa.types.is_string(kind) else numbers
        words = pl.Series(constants.value[:most], dtype=dtype)  # type: ignore[index]
    return function(call.function.removeprefix(OWN), words, type)


def _cast_slot(cast: Cast, schema: pa.Schema, op: Op | None, graph: Graph) -> Slot:
    name, type = cast.name, cast.type
    if isinstance(type, pl.Enum):
        expr = of_column(parse_expression(pl.col("x").cast(type), operator="cast"), name)
        return Foreign(expr, polars_type(expr.whole, schema))
    source = schema.field(name).type
    if source.equals(type):
        return Passed(name, type)
    found = _safe(graph, op, type)
    if found is not None:
        return Computed(found, type)
    if pa.types.is_dictionary(source) and not pa.types.is_string(type):
        raise PlanError(
            f"column {name!r} is an enum, which is cast to pl.String or to another pl.Enum, not to {type}; for its codes write "
            f"with_columns(pl.col({name!r}).to_physical())"
        )
    try:
        pa.nulls(0, source).cast(type)
    except (pa.ArrowException, TypeError) as error:
        raise PlanError(f"column {name!r} of type {source} cannot be cast to {type}: {error}") from error
    if pa.types.is_dictionary(type):
        raise PlanError(
            f"column {name!r} cannot be cast to {type}: its codes would depend on the data. Take"
            " with_columns(pl.col(…).cast(pl.Enum([…]))), whose codes do not"
        )
    return Eager((name,), type, Casting(name, type))


def _safe(graph: Graph, op: Op | None, type: pa.DataType) -> Op | None:
    if op is None or numpy_dtype(type) is None:
        return None
    try:
        return safe_cast(graph, op, type)
    except Unsupported:
        return None


def _fill_slot(fill: FillNull, type: pa.DataType, op: Op | None, graph: Graph) -> Slot:
    if fill.value is None:
        raise PlanError(f"column {fill.name!r}: fill_null needs a value, got None")
    given = fill.value if isinstance(fill.value, Literal) else Literal(fill.value, None)
    value = scalar(given.value, type, given.type)
    if op is not None and not pa.types.is_decimal(type):
        engine = ArrowLowering(graph, lambda name: None, lambda call: type)
        try:
            constant = engine.constant_as(Literal(exact_values(pa.repeat(value, 1))[0], type), type)
            return Computed(graph.op("fill", (op, constant), type), type)
        except Unsupported:
            pass
    return Eager((fill.name,), type, Filling(scalar(fill.value, type)))


def _fill_codes(fill: FillNull, field: pa.Field) -> Slot:
    values = declared_values(field) or []
    if fill.value not in values:
        raise PlanError(
            f"column {fill.name!r} is an enum, and {shown(fill.value)} is none of its values: {shown(values)}"
        )
    return Eager((fill.name,), field.type, FillingCodes(values.index(fill.value)))


def _stack_slot(stack: Stack, env: Env, schema: pa.Schema, graph: Graph) -> Slot:
    types = {name: schema.field(name).type for name in stack.names}
    type = stack.type if stack.type is not None else _one_type(types)
    if not (is_number(type) or pa.types.is_boolean(type) or pa.types.is_float16(type)):
        raise PlanError(f"a stack holds numbers or booleans, not {type}: name a numeric dtype= or cast first")
    result = pa.list_(type, len(stack.names))
    ops = [_safe(graph, env(name), type) for name in stack.names]
    for name, op in zip(stack.names, ops, strict=True):
        if op is None:
            _cast_slot(Cast(name, type), schema, None, graph)
    found = tuple(op for op in ops if op is not None)
    if len(found) == len(ops):
        return Stacked(stack.names, found, result)
    return Eager(stack.names, result, Stacking(stack.names, type))


def _one_type(types: Mapping[str, pa.DataType]) -> pa.DataType:
    if not types:
        raise PlanError("a stack needs at least one column")
    first, *rest = types.values()
    if any(type != first for type in rest):
        shown = ", ".join(f"{name}: {type}" for name, type in types.items())
        raise PlanError(
            f"the columns of a stack have different types ({shown}); name the common one with dtype="
        )
    return first

"""`fill_null`: a value in place of nulls."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.expr import FillNull as FillNullStep
from arrowflow.expr import Step
from arrowflow.expr.parse.tree import Literal
from arrowflow.ops.columns.column_program import (
    ColumnOperator,
    as_text,
    chosen_columns,
    values_by_column,
    with_outputs,
)
from arrowflow.plan.node import Node
from arrowflow.types import declared_values, exact_values, is_string, is_untyped, normalise


@dataclass(frozen=True, slots=True, kw_only=True)
class FillNull(ColumnOperator):
    """Its input with nulls replaced: in the named columns, or in all columns whose type can hold the value.

    Row order: as its input. Memory: the columns that had nulls, one chunk a call. Deterministic. Resume: as its
    input.
    """

    name: ClassVar[str] = "fill_null"

    value: Any = None
    by_column: tuple[tuple[Any, Any], ...] | None = None

    @classmethod
    def of(cls, below: Node, value: Any) -> Self:
        if value is None:
            raise PlanError("fill_null: expected a value, got None")
        if isinstance(value, Mapping):
            pairs = tuple(
                (*chosen_columns(cls.name, (name,)), constant(single)) for name, single in value.items()
            )
            return cls(inputs=(below,), by_column=pairs)
        return cls(inputs=(below,), value=constant(value))

    def arguments(self) -> Mapping[str, Any]:
        if self.by_column is not None:
            return {"values": [[as_text(name), repr(value)] for name, value in self.by_column]}
        return {"value": repr(self.value)}

    def describe(self) -> str:
        return (
            f"fill_null({self.value!r})" if self.by_column is None else f"fill_null({dict(self.by_column)})"
        )

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        values = self._everywhere(schema) if self.by_column is None else self._by_column(schema)
        return with_outputs(schema, {name: FillNullStep(name, value) for name, value in values.items()})

    def _by_column(self, schema: pa.Schema) -> dict[str, Any]:
        values = values_by_column(self.by_column or (), schema)
        for name, value in values.items():
            text = isinstance(value.value if isinstance(value, Literal) else value, str)
            if not text and normalise(schema.field(name).type) == pa.string():
                # Arrow would write the number as a text.
                raise PlanError(f"column {name!r} holds texts, and {shown(value)} is none")
        return values

    def _everywhere(self, schema: pa.Schema) -> dict[str, Any]:
        if is_untyped(schema):
            return {}
        names = [
            field.name
            for field in schema
            if holds(field.type, self.value) or self.value in (declared_values(field) or ())
        ]
        if not names:
            raise PlanError(
                f"no column can hold {shown(self.value)} ({type(self.value).__name__}); columns are "
                + ", ".join(f"{field.name}: {field.type}" for field in schema)
            )
        return dict.fromkeys(names, self.value)


_KINDS: Final[tuple[tuple[Any, ...], ...]] = (
    (bool, pa.types.is_boolean),
    (int, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    (float, pa.types.is_floating),
    (decimal.Decimal, pa.types.is_decimal),
    (str, is_string),
    (bytes, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary),
    (datetime.datetime,),
    (datetime.date, pa.types.is_date),
    (datetime.timedelta, pa.types.is_duration),
)
"""Classes of values, each in front of those it derives from, and the types that take them as they are."""


def constant(value: Any) -> Any:
    """Returns a value, an Arrow scalar as a literal: Python's own times do not reach as far, nor does their text."""
    if not isinstance(value, pa.Scalar):
        return value
    return Literal(exact_values(pa.repeat(value, 1))[0], value.type)


def holds(type: pa.DataType, value: Any) -> bool:
    """Whether a column of `type` takes `value` as it is: whole numbers go into every number, fractions do not.

    Examples:
        >>> holds(pa.float32(), 0), holds(pa.int32(), 0.5)
        (True, False)
    """
    if isinstance(value, Literal):
        return bool(type.equals(value.type))
    if pa.types.is_timestamp(type) and isinstance(value, datetime.datetime):
        return (type.tz is None) == (value.tzinfo is None)
    tests = next((tests for kind, *tests in _KINDS if isinstance(value, kind)), [])
    return any(test(type) for test in tests)

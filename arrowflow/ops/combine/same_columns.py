"""The shared base of operators over several inputs with the same columns: it checks columns and conforms chunks.

Inputs agree by name and type; the first input's order counts. Rules may leave an input more columns than another. So
each chunk is brought to the output's columns before it is passed on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from arrowflow.errors import PlanError, SchemaError
from arrowflow.interchange.enums import other_values
from arrowflow.kernels.items import Item
from arrowflow.kernels.operator import Operator
from arrowflow.ops.functions.function import conform
from arrowflow.plan.node import BindContext, Columns, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class SameColumnsOperator(Operator):
    """Base of the operators that emit rows of several inputs with the same columns.

    Attributes:
        columns: Bound: the columns of the output; None where only a run tells them.
    """

    columns: tuple[str, ...] | None = field(default=None, compare=False)

    @property
    def num_sources(self) -> int:
        """How many of its inputs, from the first input on, have the columns of the output."""
        return len(self.inputs)

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Notes the columns, so that rules may remove some."""
        bound = self.on(*inputs)
        names = None if bound.schema is None else tuple(bound.schema.names)
        return dataclasses.replace(bound, columns=names)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        sources = inputs[: self.num_sources]
        if self.columns is None:
            for number, other in enumerate(sources[1:], 2):
                _check_agrees(other, sources[0], number)
            return sources[0]
        return pa.schema([sources[0].field(name) for name in self.columns])

    def rows_wanted(self, rows: int | None) -> int | None:
        return rows

    def carrying(self, columns: Sequence[str]) -> Node:
        return dataclasses.replace(self, columns=None)

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns the wanted columns for each input that has them, and all columns for any other input.

        Where only a run tells the columns, each input keeps its own: the inputs would no longer agree.
        """
        if self.columns is None:
            return (None,) * len(self.inputs)
        others = len(self.inputs) - self.num_sources
        return (wanted,) * self.num_sources + (None,) * others

    def narrow(self, wanted: frozenset[str]) -> Node:
        if self.columns is None:
            return self
        names = tuple(name for name in self.columns if name in wanted)
        return self if names == self.columns else dataclasses.replace(self, columns=names).on(*self.inputs)


def _check_agrees(found: pa.Schema, first: pa.Schema, number: int) -> None:
    """Raises `PlanError` where input `number` has other columns than the first input."""
    ours, others = set(first.names), set(found.names)
    missing = [name for name in first.names if name not in others]
    further = [name for name in found.names if name not in ours]
    if missing or further:
        parts = [f"lacks {missing}"] * bool(missing) + [f"has {further} besides"] * bool(further)
        raise PlanError(
            f"all datasets have the same columns; dataset {number} {' and '.join(parts)}, against dataset 1 with "
            f"{first.names}; `select` or `rename` to make them agree"
        )
    for expected in first:
        type = found.field(expected.name).type
        if type != expected.type:
            raise PlanError(
                f"all datasets have the same types; column {expected.name!r} is {expected.type} in dataset 1 and "
                f"{type} in dataset {number}; `cast` one of them"
            )
        codes = [each.field(expected.name).metadata for each in (first, found)]
        if pa.types.is_dictionary(type) and all(codes) and codes[0] != codes[1]:
            raise PlanError(
                f"all datasets have the same types; the enum {expected.name!r} of dataset 1 has other values than that of "
                f"dataset {number}, so one code would stand for two of them; cast both to one pl.Enum"
            )


class FirstSchema:
    """Checks that all chunks have the schema of the first chunk with rows.

    The first chunk depends on where a run was resumed. So the order of columns counts as well: a later chunk is not
    changed to fit it.
    """

    __slots__ = ("_schema",)

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def checked(self, chunk: pa.RecordBatch, what: str, advice: str) -> pa.RecordBatch:
        """Returns the chunk; errors name it as `what` and give the `advice`.

        Raises:
            SchemaError: The chunk has other columns, or another order, or other types.
        """
        if not chunk.num_rows:
            return chunk  # perhaps no record batch yet, but parts to make one of
        if self._schema is None:
            self._schema = chunk.schema
        found, expected = chunk.schema, self._schema
        if found.equals(expected, check_metadata=True):
            return chunk
        if found.names != expected.names:
            raise SchemaError(
                f"{what} has the columns {found.names}, expected what came before, {expected.names}; {advice}"
            )
        differing = other_values(expected, found)
        if differing is not None:
            raise SchemaError(f"{what}: {differing}; {advice}")
        try:
            return conform(chunk, expected, what)
        except SchemaError as error:
            raise SchemaError(f"{error}; {advice}") from None


class Agreement:
    """Brings chunks of all inputs to the same columns in the same order.

    Args:
        schema: The schema of the output; None for the schema of the first chunk with rows.
    """

    __slots__ = ("_declared", "_first")

    def __init__(self, schema: pa.Schema | None) -> None:
        self._declared = schema
        self._first = FirstSchema()

    def conforming(self, item: Item, number: int) -> Item:
        """Returns an item of input `number`, counted from 0, with the right columns.

        Raises:
            SchemaError: The item has other columns than the first chunk had.
        """
        chunk, expected = item.chunk, self._declared
        if expected is None:
            made = self._first.checked(
                chunk, f"dataset {number + 1}", "`select` columns in one order, `cast` types"
            )
            return item if made is chunk else item._replace(chunk=made)
        if not chunk.num_rows or chunk.schema.equals(expected):
            return item
        columns = [chunk.column(name) for name in expected.names]
        return item._replace(chunk=pa.RecordBatch.from_arrays(columns, schema=expected))

"""`take_while`: the rows before the first one that a predicate does not hold for.

The predicate is an expression (`TakeWhile`) or a user function (`TakeWhileBy`). Calls of a function are serial, so that
no row after the end is handed to it, except for the rest of its piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr import Expr, Program, Project, compile_steps, expand, parse_expression
from arrowflow.kernels.context import Context
from arrowflow.kernels.gather import OfSchema
from arrowflow.kernels.kinds import StateKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.kernels.recut import recut_specs
from arrowflow.ops.columns.column_program import check_columns, given_names
from arrowflow.ops.columns.filter import PredicateFunction
from arrowflow.ops.functions.function import check_function, function_name
from arrowflow.ops.functions.invocation import BatchFormat, PredicateOperator, check_format
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import Columns, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits
from arrowflow.types import is_untyped


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeWhile(RowOperator):
    """The rows of its input before the first one for which the predicate is not true; null is not true.

    Row order: as its input. Memory: nothing held. Deterministic. Resume: (input's position, whether it ended).
    """

    name: ClassVar[str] = "take_while"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True)

    predicate: Expr

    @classmethod
    def of(
        cls, below: Node, predicate: Any, *, format: BatchFormat, columns: Sequence[str] | None
    ) -> TakeWhile | TakeWhileBy:
        """Returns the node for this predicate, with arguments as users write them."""
        if callable(predicate):
            check_function(cls.name, predicate)
            check_format(cls.name, format)
            names = given_names(cls.name, columns)
            return TakeWhileBy(inputs=(below,), fn=predicate, format=format, columns=names)
        if check_format(cls.name, format) != "arrow" or columns is not None:
            raise PlanError("take_while: format= and columns= are for a function, not an expression")
        return cls(inputs=(below,), predicate=parse_expression(predicate, operator=cls.name))

    def arguments(self) -> Mapping[str, Any]:
        return {"predicate": self.predicate.digest()}

    def describe(self) -> str:
        return f"take_while({self.predicate!r})"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        self.program(inputs[0])
        return inputs[0]

    def program(self, schema: pa.Schema) -> Program:
        """Returns the program that computes the predicate, one column for each column that it stands for.

        Raises:
            PlanError: A column is unknown, or the predicate is no boolean.
        """
        check_columns(self.predicate.columns, schema)
        singles = expand(self.predicate, schema)
        program = compile_steps((Project(tuple((str(at), one) for at, one in enumerate(singles))),), schema)
        for found in program.schema:
            if not (is_untyped(schema) or pa.types.is_boolean(found.type)):
                raise PlanError(
                    f"take_while: {self.predicate!r} is {found.type}, expected a boolean, as in pl.col('x') > 0"
                )
        return program

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        schema = self.inputs[0].schema
        if wanted is None or schema is None:
            return (None,)
        return (wanted.union(*(single.columns for single in expand(self.predicate, schema))),)

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        schema = self.inputs[0].schema
        known = None if schema is None else self.program(schema)
        program = OfSchema(lambda schema: known or self.program(schema))
        return KernelSpec(
            "serial",
            lambda context: TakeWhileKernel(lambda chunk: program(chunk.schema).run(chunk).columns),
            position=Shape(TakeWhilePosition),
            engine="numpy+arrow",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeWhileBy(PredicateOperator):
    """The rows of its input before the first one for which `fn`, called on a piece of them, does not return true.

    Row order: as its input. Memory: input and output of one call. Deterministic if `fn` is. Resume: (position before
    the piece, rows, split, piece; whether it ended).
    """

    name: ClassVar[str] = TakeWhile.name
    traits: ClassVar[Traits] = Traits(opaque=True, needs_rows=True)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:

        def make(context: Context) -> TakeWhileKernel:
            predicate = PredicateFunction(self, context)
            return TakeWhileKernel(lambda chunk: predicate(chunk, lambda mask: [mask]))

        call = KernelSpec(
            "serial",
            make,
            position=Shape(TakeWhilePosition),
            engine="python",
            facts=f"{function_name(self.fn)}({self.format}), one call at a time, in order",
        )
        return (*recut_specs(self), call)


class TakeWhilePosition(NamedTuple):
    """Position of a `TakeWhileKernel`: the input's position, and whether a row ended the stream."""

    input: Position
    ended: bool


class TakeWhileKernel(StateKernel):
    """Passes chunks on until a row's predicate is not true, then is done, which stops all work before it.

    Args:
        masks: Returns masks of a chunk's rows, all of which have to be true.
    """

    position = TakeWhilePosition
    state = False

    def __init__(self, masks: Callable[[pa.RecordBatch], Sequence[pa.BooleanArray]]) -> None:
        self._masks = masks

    def open(self, position: Position, epoch: int) -> Position:
        before = StateKernel.open(self, position, epoch)
        self.done = self.state
        return before

    def step(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        rows = min(map(_leading_true, self._masks(chunk)), default=chunk.num_rows)
        self.state = self.done = rows < chunk.num_rows
        return chunk.slice(0, rows) if self.done else chunk


def _leading_true(mask: pa.BooleanArray) -> int:
    """Returns how many entries are true before the first one that is false or null."""
    ends = (~pl.Series(mask).fill_null(False)).arg_true()
    return int(ends[0]) if len(ends) else len(mask)

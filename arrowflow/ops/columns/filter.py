"""`filter`: the rows for which a predicate is true: expressions (`Filter`), or a user function (`FilterBy`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.bad_rows import BY_OPTIONS, BadRowPolicy
from arrowflow.errors import FunctionError, PlanError, SchemaError
from arrowflow.expr import Expr, Step, Where, expand, parse_many
from arrowflow.interchange.from_numpy import column_from_array
from arrowflow.kernels.context import Context
from arrowflow.kernels.gather import kept
from arrowflow.kernels.items import Origin, Outcome
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.kernels.recut import recut_specs
from arrowflow.ops.columns.column_program import ColumnOperator, check_columns, given_names
from arrowflow.ops.functions.bad_results import results_specs, whole
from arrowflow.ops.functions.function import check_function, function_name
from arrowflow.ops.functions.invocation import BatchFormat, BatchFunction, PredicateOperator, check_format
from arrowflow.options import OnError, ResolvedOptions, parallel_calls
from arrowflow.plan.node import Node
from arrowflow.plan.traits import Traits

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(ColumnOperator):
    """The rows of its input where all predicates are true; null is not true.

    Row order: as its input. Memory: the kept rows, one chunk a call. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "filter"
    traits: ClassVar[Traits] = Traits(drops_rows=True, needs_rows=True)

    predicates: tuple[Expr, ...]

    @classmethod
    def of(
        cls,
        below: Node,
        predicates: tuple[Any, ...],
        *,
        format: BatchFormat,
        columns: Any,
        num_parallel_calls: int,
        on_error: OnError | None,
        quarantine: str | os.PathLike[str] | None,
    ) -> Filter | FilterBy:
        """Returns the node for these predicates, with arguments as users write them."""
        if not predicates:
            raise PlanError("filter: expected at least one predicate")
        functions = [predicate for predicate in predicates if callable(predicate)]
        if functions:
            if len(predicates) > 1:
                raise PlanError(
                    "filter: expected expressions or one function, got both or more; call `filter` once for each"
                )
            check_function(cls.name, functions[0])
            check_format(cls.name, format)
            return FilterBy(
                inputs=(below,),
                fn=functions[0],
                format=format,
                columns=given_names(cls.name, columns),
                num_parallel_calls=parallel_calls(cls.name, num_parallel_calls),
                policy=BadRowPolicy.of(cls.name, on_error, quarantine),
            )
        given = (columns, on_error, quarantine)
        calls = parallel_calls(cls.name, num_parallel_calls)
        if check_format(cls.name, format) != "arrow" or any(each is not None for each in (calls, *given)):
            raise PlanError(
                "filter: format=, columns=, num_parallel_calls=, on_error= and quarantine= are for a function, not "
                "expressions"
            )
        return cls(inputs=(below,), predicates=tuple(parse_many(predicates, operator=cls.name)))

    def arguments(self) -> Mapping[str, Any]:
        return {"predicates": [predicate.digest() for predicate in self.predicates]}

    def describe(self) -> str:
        return f"filter({', '.join(map(repr, self.predicates))})"

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        for predicate in self.predicates:
            check_columns(predicate.columns, schema)
        return tuple(Where(single) for predicate in self.predicates for single in expand(predicate, schema))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        self.program(inputs[0])
        return inputs[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterBy(PredicateOperator):
    """The rows of its input for which `fn`, called on a piece of them, returns true; null is not true.

    Row order: as its input. Memory: input and output of each call. Deterministic if `fn` is. Resume: (position before
    the piece, rows, split, piece).

    Attributes:
        num_parallel_calls: Calls at the same time, or None for the CPU budget.
        policy: The treatment of pieces for which `fn` fails.
    """

    name: ClassVar[str] = Filter.name
    traits: ClassVar[Traits] = Traits(opaque=True, needs_rows=True, local=True, in_turn=True)

    num_parallel_calls: int | None = None
    policy: BadRowPolicy = BY_OPTIONS

    def arguments(self) -> Mapping[str, Any]:
        return {**PredicateOperator.arguments(self), **self.policy.arguments()}

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        call = KernelSpec(
            "stateless",
            lambda context: FilterByKernel(self, context),
            engine="python",
            cost="unknown",
            max_calls=self.num_parallel_calls,
            facts=f"{function_name(self.fn)}({self.format}), one call a piece",
        )
        return (
            *recut_specs(self),
            call,
            *results_specs(f"{self.title}-{self.place}", policy=self.policy),
        )


class FilterByKernel(StatelessKernel):
    """Calls the function, and keeps the rows for which it returned true."""

    def __init__(self, node: FilterBy, context: Context) -> None:
        self._policy = node.policy
        self._predicate = PredicateFunction(node, context)

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch | Outcome:
        return whole(self._policy, chunk, lambda: self._predicate(chunk, partial(kept, chunk)))


class PredicateFunction:
    """A user function that returns the mask of a chunk's rows."""

    def __init__(self, node: PredicateOperator, context: Context) -> None:
        self._function = BatchFunction.of(node, context)

    def __call__(self, chunk: pa.RecordBatch, then: Callable[[pa.BooleanArray], T]) -> T:
        """Returns what `then` makes of the mask."""
        function = self._function

        def use(returned: list[Any]) -> T:
            return then(_mask_of(returned.pop(), chunk.num_rows, function.what))

        found: T = function.call(chunk.num_rows, function.argument(chunk), then=use)
        return found


def _mask_of(result: object, num_rows: int, what: str) -> pa.BooleanArray:
    """Returns the booleans that a user's predicate returned; raises `FunctionError` where they are not one a row."""
    found: Any = result
    if isinstance(found, pl.Series):
        found = found.to_arrow()
    elif isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    elif isinstance(found, np.ndarray) and found.ndim == 1:
        try:
            found = column_from_array(found)
        except SchemaError:
            pass  # an array of objects
    if not isinstance(found, pa.Array) or not pa.types.is_boolean(found.type):
        shown = (
            f"an array of {result.dtype}" if isinstance(result, np.ndarray) else f"a {type(result).__name__}"
        )
        typed = f" of {result.type}" if isinstance(result, pa.Array | pa.ChunkedArray) else ""
        raise FunctionError(
            f"{what} is {shown}{typed}, expected one boolean a row: an array of NumPy or pyarrow, or a Polars Series"
            + ("; the function is given many rows, not one" if isinstance(result, bool | np.bool_) else "")
        )
    if len(found) != num_rows:
        raise FunctionError(f"{what} has {len(found):,} entries for {num_rows:,} rows, expected one a row")
    return found

"""`filter`: the rows for which a predicate is true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.expr import Expr, Step, Where, expand
from arrowflow.ops.columns import ColumnOperator, check_columns
from arrowflow.plan.traits import Traits
from arrowflow.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(ColumnOperator):
    """The rows of its input where all predicates are true; null is not true.

    Row order: as its input. Memory: the rows it keeps, one chunk a call. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "filter"
    traits: ClassVar[Traits] = Traits(drops_rows=True, needs_rows=True)

    predicates: tuple[Expr, ...]

    def arguments(self) -> Mapping[str, Any]:
        """Returns the digests of the predicates."""
        return {"predicates": [predicate.digest() for predicate in self.predicates]}

    def describe(self) -> str:
        """Returns the predicates as text."""
        return f"filter({', '.join(map(repr, self.predicates))})"

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        """Returns one step per predicate."""
        for predicate in self.predicates:
            check_columns(predicate.columns, schema)
        return tuple(Where(single) for predicate in self.predicates for single in expand(predicate, schema))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Returns its input's schema, once the predicates are found to fit it."""
        self.program(inputs[0])
        return inputs[0]

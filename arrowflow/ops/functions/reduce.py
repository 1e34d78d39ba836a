"""`reduce`: one value of all rows, folded together by a user function on the consumer's thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.kernels.instances import OneEach
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.kernels.pieces import PieceOperator
from arrowflow.kernels.recut import recut_specs
from arrowflow.ops.functions.invocation import BatchFormat, BatchFunction
from arrowflow.options import ResolvedOptions
from arrowflow.plan.traits import Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(RowOperator, PieceOperator):
    """The rows of its input in the pieces that a function sees: the pieces of `map`; after `batch` the batches.

    Row order: as its input. Memory: one piece. Deterministic. Resume: (position before the piece, rows, split, piece).
    """

    name: ClassVar[str] = "reduce"
    traits: ClassVar[Traits] = Traits()

    def arguments(self) -> Mapping[str, Any]:
        return {}

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return recut_specs(self)


def fold_batches(
    batches: Iterator[pa.RecordBatch], state: Any, fn: Callable[..., Any], format: BatchFormat
) -> Any:
    """Returns the state after the function got batch after batch.

    Raises:
        FunctionError: The function raised.
    """
    lender = OneEach()
    function = BatchFunction(fn, lender, 0, format=format)
    try:
        for batch in batches:
            state = function.call(batch.num_rows, state, function.argument(batch))
    finally:
        for text in lender.close():
            warnings.warn(text, RuntimeWarning, stacklevel=3)
    return state

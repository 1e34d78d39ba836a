"""`map`: a user function of record batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from arrowflow.errors import FunctionError
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Origin, Outcome
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.functions.bad_results import whole
from arrowflow.ops.functions.function import conform, function_name
from arrowflow.ops.functions.invocation import BatchFormat, BatchFunction, MappingOperator
from arrowflow.options import ResolvedOptions
from arrowflow.plan.traits import Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(MappingOperator):
    """The results of `fn` for each piece of its input, with any number of rows.

    Before `batch`, `fn` sees pieces, see `kernels.pieces`; after `batch`, exactly the batches. Row order:
    as its input. Memory: input and output of each call. Deterministic if `fn` is; the generator that `fn` may get
    depends on (seed, operator, epoch, split, piece) alone. Resume: (position before the piece, rows, split, piece).

    Attributes:
        format: The format of the argument and of the result.
        policy: The treatment of pieces for which `fn` fails.
        keeps_rows: Whether the results have as many rows as the pieces.
    """

    name: ClassVar[str] = "map"

    format: BatchFormat = "arrow"
    keeps_rows: bool = False

    @property
    def traits(self) -> Traits:  # type: ignore[override]  # the number of rows depends on the arguments
        """As many rows, if the function keeps their number and no bad rows are left out."""
        keeps = self.keeps_rows and not self.policy.leaves_out
        return Traits(opaque=True, local=True, in_turn=True, keeps_number=keeps)

    def rows_again(self, rows: int) -> int | None:
        return rows if self.traits.keeps_number else MappingOperator.rows_again(self, rows)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return self.specs(
            MapKernel,
            fact=f"{function_name(self.fn)}({self.format}), one call a piece",
            unit="chunk",
        )


class MapKernel(StatelessKernel):
    """Calls the function, in the format that the user chose."""

    def __init__(self, node: Map, context: Context) -> None:
        self._node = node
        self._epoch = context.epoch
        self._function = BatchFunction.of(node, context)

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch | Outcome:
        return whole(self._node.policy, chunk, lambda: self._result(chunk, origin))

    def _result(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        node, function = self._node, self._function
        more = node.more_arguments(self._epoch, origin)
        given = chunk if node.executor == "thread" else None  # from a worker process comes a copy
        batch = function.call(
            chunk.num_rows, function.argument(chunk), *more, then=lambda made: function.batch(made, given)
        )
        if node.keeps_rows and batch.num_rows != chunk.num_rows:
            raise FunctionError(
                f"{function.what} has {batch.num_rows:,} rows, but keeps_rows=True was declared and it was given "
                f"{chunk.num_rows:,}"
            )
        return batch if node.types is None else conform(batch, node.types, function.what)

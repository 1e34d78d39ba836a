"""`map`: a user function of record batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.errors import FunctionError
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Origin, Outcome
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.columns.column_program import as_texts
from arrowflow.ops.functions.bad_results import whole
from arrowflow.ops.functions.function import conform, function_name
from arrowflow.ops.functions.invocation import BatchFormat, BatchFunction, MappingOperator
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import Count
from arrowflow.plan.traits import Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(MappingOperator):
    """The results of `fn` for each piece of its input, with any number of rows.

    Before `batch`, `fn` sees pieces, see `kernels.pieces`; after `batch`, exactly the batches. Row order:
    as its input. Memory: input and output of each call. Deterministic if `fn` is; the generator that `fn` may get
    depends on (seed, operator, epoch, split, piece) alone. Resume: (position before the piece, rows, split, piece).

    Attributes:
        fn: The function, or a class of which each worker makes and calls an instance.
        format: The format of the argument and of the result.
        columns: The only columns that `fn` reads and sees; None for all columns.
        types: The schema of the result, or None to take the first chunk's.
        seed: With a seed, `fn` also gets a random generator.
        epoch: Whether `fn` also gets the number of the epoch.
        num_parallel_calls: Calls at the same time, or None for the CPU budget.
        executor: Where `fn` is called; this changes no value.
        policy: The treatment of pieces for which `fn` fails.
        place: Bound: the operator's place in the plan as written.
        keeps_rows: Whether the results have as many rows as the pieces.
    """

    name: ClassVar[str] = "map"
    traits: ClassVar[Traits] = Traits(opaque=True, local=True, in_turn=True)

    format: BatchFormat = "arrow"
    keeps_rows: bool = False

    def arguments(self) -> Mapping[str, Any]:
        """Returns the arguments that decide the input of the function."""
        return {
            "fn": function_name(self.fn),
            "format": self.format,
            "columns": as_texts(self.columns),
            "seed": self.seed,
            **self.more_settings(),
        }

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns its input's rows, if the function keeps them."""
        keeps = self.keeps_rows and not self.policy.leaves_out
        return inputs[0] if keeps or inputs[0] == 0 else None

    def count_batches(self, rows: Sequence[Count], batches: Sequence[Count]) -> Count:
        """Returns its input's batches, if the function keeps their rows."""
        return batches[0] if self.keeps_rows and not self.policy.leaves_out else None

    def rows_again(self, rows: int) -> int | None:
        """Returns as many rows, if the function keeps them."""
        keeps = self.keeps_rows and not self.policy.leaves_out
        return rows if keeps else MappingOperator.rows_again(self, rows)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns the cutter of pieces (without a `batch` before it), the caller, and the check of results."""
        return self.specs(
            MapKernel,
            options,
            fact=f"{function_name(self.fn)}({self.format}), one call a piece",
            unit="chunk",
        )


class MapKernel(StatelessKernel):
    """Calls the function, in the format that the user chose."""

    def __init__(self, node: Map, context: Context) -> None:
        self._node = node
        self._epoch = context.epoch
        self._function = BatchFunction(
            node.fn,
            context,
            node.place,
            format=node.format,
            columns=node.columns,
            schema=node.types,
        )

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch | Outcome:
        """Returns the function's result for a chunk."""
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

"""`map`: a user function of record batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Origin
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.functions.function import conform, function_name
from arrowflow.ops.functions.invocation import BatchFormat, BatchFunction, MappingOperator
from arrowflow.options import ResolvedOptions
from arrowflow.plan.traits import Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(MappingOperator):
    """What `fn` returns for each piece of its input, with any number of rows.

    Below `batch`, `fn` sees each split cut every `max_chunk_rows` rows; above, exactly the batches. Row order: as
    its input. Memory: input and output of each call. Deterministic if `fn` is; a generator handed to it depends on
    (seed, operator, epoch, split, piece) alone. Resume: (position before the piece, rows, split, piece).

    Attributes:
        fn: The function, or a class of which each worker makes an instance that it calls.
        format: What it sees and returns.
        columns: What it reads, and all that it sees; None for all columns.
        types: The schema of what it returns, or None to take the first chunk's.
        seed: Makes `fn` be called with a random generator too.
        num_parallel_calls: Calls at the same time, or None for the CPU budget.
        executor: Where it is called, which changes none of its values.
        place: Bound: the operator's place in the plan as written.
    """

    name: ClassVar[str] = "map"
    traits: ClassVar[Traits] = Traits(opaque=True)

    format: BatchFormat = "arrow"

    def arguments(self) -> Mapping[str, Any]:
        """Returns what decides what the function is called with."""
        return {
            "fn": function_name(self.fn),
            "format": self.format,
            "columns": None if self.columns is None else list(self.columns),
            "seed": self.seed,
        }

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns the cutter of pieces (below `batch`), the caller, and the check of what came back."""
        return self.specs(
            MapKernel,
            options,
            fact=f"{function_name(self.fn)}({self.format}), one call a piece",
            unit="chunk",
        )


class MapKernel(StatelessKernel):
    """Calls the function, in the format that it wants."""

    def __init__(self, node: Map, context: Context) -> None:
        self._node = node
        self._epoch = context.epoch
        self._function = BatchFunction(
            node.fn,
            context.run_storage,
            node.place,
            format=node.format,
            columns=node.columns,
            schema=node.types,
        )

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """Returns what the function makes of a chunk."""
        node, function = self._node, self._function
        more = node.generators(self._epoch, origin)
        given = chunk if node.executor == "thread" else None  # from a worker process comes a copy
        batch = function.call(
            chunk.num_rows, function.argument(chunk), *more, then=lambda made: function.batch(made, given)
        )
        return batch if node.types is None else conform(batch, node.types, function.what)

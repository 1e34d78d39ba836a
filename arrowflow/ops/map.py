"""`map`: a user function of record batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.ops.base import Context, KernelSpec, Origin, StatelessKernel
from arrowflow.ops.calls import BatchFormat, BatchFunction, FunctionOperator, UniformKernel
from arrowflow.ops.functions import conform, function_name
from arrowflow.ops.pieces import pieces_spec
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import BindContext, Node
from arrowflow.plan.traits import Traits
from arrowflow.random import generator
from arrowflow.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(FunctionOperator):
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
        place: Bound: the operator's place in the plan as written.
    """

    name: ClassVar[str] = "map"
    traits: ClassVar[Traits] = Traits(opaque=True)

    format: BatchFormat = "arrow"
    seed: int | None = None
    num_parallel_calls: int | None = None
    place: int = field(default=0, compare=False)

    def arguments(self) -> Mapping[str, Any]:
        """Returns what decides what the function is called with."""
        return {
            "fn": function_name(self.fn),
            "format": self.format,
            "columns": None if self.columns is None else list(self.columns),
            "seed": self.seed,
        }

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Notes its place, for the key of its random numbers."""
        return dataclasses.replace(self, place=context.place).on(*inputs)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns the cutter of pieces (below `batch`), the caller, and the check of what came back."""
        cut = () if self.batched else (pieces_spec(self.name, options),)
        call = KernelSpec(
            operator=self.name,
            kind="stateless",
            make=lambda context: MapKernel(self, context),
            engine="python",
            cost="unknown",
            max_calls=self.num_parallel_calls,
            facts=lambda: (f"{function_name(self.fn)}({self.format}), one call a piece",),
        )
        if self.types is not None:
            return (*cut, call)
        check = KernelSpec(
            operator=self.name,
            kind="serial",
            make=lambda context: UniformKernel(self.name, self.fn),
            facts=lambda: ("the first chunk declares the schema",),
        )
        return (*cut, call, check)


class MapKernel(StatelessKernel):
    """Calls the function, in the format that it wants."""

    def __init__(self, node: Map, context: Context) -> None:
        self._node = node
        self._epoch = context.epoch
        self._function = BatchFunction(node.fn, context.kept, format=node.format, columns=node.columns)

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """Returns what the function makes of a chunk."""
        node, function = self._node, self._function
        argument = function.argument(chunk)
        if node.seed is None:
            result = function.call(chunk.num_rows, argument)
        else:
            key = (node.seed, node.place, self._epoch, origin.split, origin.piece)
            result = function.call(chunk.num_rows, argument, generator(key))
        batch = function.batch(result)
        return batch if node.types is None else conform(batch, node.types, function.what)

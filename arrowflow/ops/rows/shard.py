"""`shard`: every n-th row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.kernels.gather import GatherKernel, gathered
from arrowflow.kernels.items import Origin
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.order.random_access import InPlaceRows, PickedRows
from arrowflow.ops.rows.split import Numbered, NumberKernel
from arrowflow.options import ResolvedOptions, check_size
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Counted
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(RowOperator):
    """The rows whose number leaves the remainder `index` when divided by `num_shards`.

    Row order: as its input. Memory: the kept rows, one chunk a call. Deterministic. Resume: (input's position, rows
    counted modulo `num_shards`).

    Attributes:
        num_shards: How many shards there are.
        index: The number of this one.
        in_place: Whether a global `shuffle` after it gathers the rows where they lie.
    """

    name: ClassVar[str] = "shard"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True)

    num_shards: int
    index: int
    in_place: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, below: Node, num_shards: int, index: int) -> Self:
        shards = check_size(cls.name, "num_shards", num_shards)
        number = check_size(cls.name, "index", index, least=0)
        if number >= shards:
            raise PlanError(f"shard: index is below num_shards={shards}, got {number}")
        return cls(inputs=(below,), num_shards=shards, index=number)

    def arguments(self) -> Mapping[str, Any]:
        return {"num_shards": self.num_shards, "index": self.index}

    @property
    def noop(self) -> bool:
        return self.num_shards == 1

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        rows = inputs[0]
        return len(range(self.index, rows, self.num_shards)) if isinstance(rows, int) else rows

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """The kept rows are gathered into new memory."""
        return inputs[0] or self.num_shards > 1

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return (
            KernelSpec(
                "serial",
                lambda context: NumberKernel(modulo=self.num_shards),
                position=Shape(Counted),
                facts="count rows",
            ),
            KernelSpec(
                "stateless",
                lambda context: StrideKernel(self),
                engine="arrow",
                facts=f"{'pick' if self.in_place else 'gather'} every {self.num_shards}th row",
            ),
        )


class StrideKernel(GatherKernel):
    """Gathers every n-th row, or picks it where it lies."""

    def __init__(self, node: Shard) -> None:
        self._stride, self._index = node.num_shards, node.index
        self._in_place = node.in_place

    def gather(self, chunk: Numbered, origin: Origin) -> pa.RecordBatch | PickedRows:
        rows = range((self._index - chunk.first) % self._stride, chunk.num_rows, self._stride)
        if not self._in_place:
            return gathered(chunk.chunk, np.arange(rows.start, rows.stop, rows.step, dtype=np.int64))
        found = InPlaceRows(chunk.chunk) if isinstance(chunk.chunk, pa.RecordBatch) else chunk.chunk
        return PickedRows(found, rows)

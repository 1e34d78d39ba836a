"""`take`: the first rows. The pattern to copy for an operator that only drops rows.

`enumerate` is the pattern for an operator that adds a column or keeps a state, `unique` for one whose state is too large
for a position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from arrowflow.kernels.kinds import StateKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.options import ResolvedOptions, check_size
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Counted, Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Take(RowOperator):
    """The first `count` rows of its input.

    Row order: as its input. Memory: nothing held. Deterministic. Resume: (input's position, rows taken).
    """

    name: ClassVar[str] = "take"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True)

    count: int

    @classmethod
    def of(cls, below: Node, count: int) -> Self:
        return cls(inputs=(below,), count=check_size(cls.name, "count", count, least=0))

    def arguments(self) -> Mapping[str, Any]:
        return {"count": self.count}

    @property
    def row_range(self) -> tuple[int, int | None]:
        return 0, self.count

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        return None if inputs[0] is None else min(self.count, inputs[0])

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        return KernelSpec("serial", lambda context: TakeKernel(self.count), position=Shape(Counted))


class TakeKernel(StateKernel):
    """Passes chunks on until `count` rows have passed, then is done, which stops all work before it in the chain."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.done = count == 0

    def open(self, position: Position, epoch: int) -> Position:
        below = StateKernel.open(self, position, epoch)
        self.done = self.state >= self._count
        return below

    def step(self, chunk: Any) -> Any:
        rows = min(chunk.num_rows, self._count - self.state)
        self.state += rows
        self.done = self.state >= self._count
        return chunk if rows == chunk.num_rows else chunk.slice(0, rows)

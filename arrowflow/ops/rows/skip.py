"""`skip`: all but the first rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from arrowflow.kernels.items import Item
from arrowflow.kernels.kinds import StateKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.options import ResolvedOptions, check_size
from arrowflow.plan.access import position_behind
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Counted, Position
from arrowflow.plan.shape import Shape, below
from arrowflow.plan.traits import Borders, Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip(RowOperator):
    """All but the first `count` rows of its input.

    Row order: as its input. Memory: nothing held. Deterministic. Resume: (input's position, rows skipped).
    """

    name: ClassVar[str] = "skip"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True)

    count: int

    @classmethod
    def of(cls, below: Node, count: int) -> Self:
        return cls(inputs=(below,), count=check_size(cls.name, "count", count, least=0))

    def arguments(self) -> Mapping[str, Any]:
        return {"count": self.count}

    @property
    def noop(self) -> bool:
        return self.count == 0

    @property
    def row_range(self) -> tuple[int, int | None]:
        return self.count, None

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        return None if inputs[0] is None else max(0, inputs[0] - self.count)

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        behind: tuple[Position, int] = None, 0
        if options.deterministic:  # without an order places are not counted in rows
            behind = position_behind(self.inputs[0], self.count) or behind
        return KernelSpec(
            "serial",
            lambda context: SkipKernel(self.count, *behind),
            position=Shape(Counted, lambda at: below("rows", at.rows, self.count + 1)),
        )


class SkipKernel(StateKernel):
    """Drops chunks until `count` rows have passed, then passes everything on.

    Args:
        count: Rows to drop.
        behind: A position of the input after some of these rows, to start there.
        skipped: Rows before that position.
    """

    def __init__(self, count: int, behind: Position = None, skipped: int = 0) -> None:
        self._count = count
        self._behind = behind
        self.state = skipped

    def open(self, position: Position, epoch: int) -> Position:
        self._begins = position is None and self._behind is not None
        return self._behind if position is None else StateKernel.open(self, position, epoch)

    def step(self, chunk: Any) -> Any:
        """Returns the rows after the first `count`; a chunk that is dropped whole goes on empty."""
        drop = min(chunk.num_rows, self._count - self.state)
        self.state += drop
        return chunk.slice(drop) if drop else chunk

    def push(self, item: Item) -> Iterator[Item]:
        if self._begins:
            # The empty item gives the start's position: the operators after this one keep it.
            self._begins = False
            here = Counted(self._behind, self.state)
            yield Item(item.chunk.slice(0, 0), here, item.ticket, item.origin._replace(last=False))
        yield from StateKernel.push(self, item)

"""`skip`: all but the first rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from arrowflow.kernels.items import Item
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.options import ResolvedOptions, check_size
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
        """Returns the node, with arguments as users write them."""
        return cls(inputs=(below,), count=check_size(cls.name, "count", count, least=0))

    def arguments(self) -> Mapping[str, Any]:
        """Returns the number of rows."""
        return {"count": self.count}

    @property
    def noop(self) -> bool:
        """Skipping no rows changes nothing."""
        return self.count == 0

    @property
    def row_range(self) -> tuple[int, int | None]:
        """All rows from number `count` on."""
        return self.count, None

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns the number of remaining rows."""
        return None if inputs[0] is None else max(0, inputs[0] - self.count)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns one serial kernel."""
        behind: tuple[Position, int] = None, 0
        if options.deterministic:  # without an order places are not counted in rows
            behind = self.inputs[0].position_behind(self.count) or behind
        return (
            KernelSpec(
                operator=self.name,
                kind="serial",
                make=lambda context: SkipKernel(self.count, *behind),
                position=Shape(Counted, lambda at: below("rows", at.rows, self.count + 1)),
            ),
        )


class SkipKernel(SerialKernel):
    """Drops chunks until `count` rows have passed, then passes everything on.

    Args:
        count: Rows to drop.
        behind: A position of the input after some of these rows, to start there.
        skipped: Rows before that position.
    """

    def __init__(self, count: int, behind: Position = None, skipped: int = 0) -> None:
        self._count = count
        self._behind = behind
        self._skipped = skipped
        self._begins = False  # at the position `behind`

    def open(self, position: Position, epoch: int) -> Position:
        """Restores how many rows were skipped."""
        if position is None:
            self._begins = self._behind is not None
            return self._behind
        at = Counted._make(position)
        self._skipped = at.rows
        return at.input

    def push(self, item: Item) -> Iterator[Item]:
        """Passes on the rows after the first `count`; a chunk that is dropped whole goes on empty."""
        if self._begins:
            # The empty item gives the start's position: the operators after this one keep it.
            self._begins = False
            here = Counted(self._behind, self._skipped)
            yield Item(item.chunk.slice(0, 0), here, item.ticket, item.origin._replace(last=False))
        drop = min(item.chunk.num_rows, self._count - self._skipped)
        self._skipped += drop
        chunk = item.chunk if not drop else item.chunk.slice(drop)
        yield item._replace(chunk=chunk, position=Counted(item.position, self._skipped))

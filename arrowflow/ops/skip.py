"""`skip`: all but the first rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

from arrowflow.ops.base import Item, KernelSpec, Position, RowOperator, SerialKernel
from arrowflow.options import ResolvedOptions
from arrowflow.plan.traits import Borders, Traits
from arrowflow.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip(RowOperator):
    """All but the first `count` rows of its input.

    Row order: as its input. Memory: nothing held. Deterministic. Resume: (input's position, rows skipped).
    """

    name: ClassVar[str] = "skip"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True)

    count: int

    def arguments(self) -> Mapping[str, Any]:
        """Returns the number of rows."""
        return {"count": self.count}

    @property
    def noop(self) -> bool:
        """Skipping nothing."""
        return self.count == 0

    @property
    def row_range(self) -> tuple[int, int | None]:
        """All rows from number `count` on."""
        return self.count, None

    def count_rows(self, inputs: Sequence[int | None]) -> int | None:
        """Returns the rows that are left."""
        return None if inputs[0] is None else max(0, inputs[0] - self.count)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns one serial kernel."""
        return (KernelSpec(operator=self.name, kind="serial", make=lambda context: SkipKernel(self.count)),)


class SkipKernel(SerialKernel):
    """Drops chunks until `count` rows went by, then passes everything on."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._skipped = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores how many rows were skipped."""
        if position is None:
            return None
        child, self._skipped = position
        return cast(Position, child)

    def push(self, item: Item) -> Iterator[Item]:
        """Passes on what is behind the first `count` rows; a chunk that is dropped whole goes on empty."""
        drop = min(item.chunk.num_rows, self._count - self._skipped)
        self._skipped += drop
        chunk = item.chunk if not drop else item.chunk.slice(drop)
        yield item._replace(chunk=chunk, position=(item.position, self._skipped))

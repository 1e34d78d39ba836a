"""`RecutKernel`: cuts the rows of each split into the pieces that a user function sees, see `pieces.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from arrowflow.kernels.held import Held, join
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.kernels.pieces import PieceCutter, PieceOperator, Pieces
from arrowflow.plan.position import Gone, Position
from arrowflow.plan.shape import MAX_SPLIT, Shape


def recut_specs(node: PieceOperator) -> tuple[KernelSpec, ...]:
    """Returns the kernel that an operator with a user function puts in front of it: none after `batch`."""
    pieces = node.pieces
    if pieces is None:
        return ()
    spec = KernelSpec(
        "serial",
        lambda context: RecutKernel(pieces),
        position=Shape(RecutPosition),
        sees_borders=True,
        facts=pieces.describe(),
    )
    return (spec,)


class RecutPosition(NamedTuple):
    """Position of a `RecutKernel`.

    Attributes:
        before: Position of the input before the oldest held row.
        offset: Rows from there on that are gone.
        split: The split that is being cut; -1 before the first one.
        piece: Number of its next piece.
    """

    before: Position
    offset: Gone
    split: Annotated[int, -1, MAX_SPLIT]
    piece: int


class RecutKernel(SerialKernel):
    """Cuts each split's rows into pieces. Chunks without rows in front of all rows pass."""

    def __init__(self, pieces: Pieces) -> None:
        self._held = Held()
        self._cutter = PieceCutter(pieces)
        self._split = -1
        self._piece = 0
        self._ends = False  # whether no row of the split is still to come

    def open(self, position: Position, epoch: int) -> Position:
        """Restores which split is being cut, and how many pieces of it were made."""
        if position is None:
            return None
        at = RecutPosition._make(position)
        self._held, self._split, self._piece = Held(at.before, at.offset), at.split, at.piece
        return at.before

    def push(self, item: Item) -> Iterator[Item]:
        """Yields complete pieces, and the rest at the end of a split."""
        if item.origin.split != self._split:
            if self._held.rows:
                yield from self.finish()
            if not item.chunk.num_rows:
                # A resumed run may pass on the end of an earlier split, whose rows it left out.
                self._held.add(item)
                if self._split < 0:
                    yield item._replace(position=self._position())
                return
            self._split, self._piece = item.origin.split, 0
        before = self._held.rows
        self._held.add(item)
        if added := self._held.rows - before:
            self._cutter.add(item.chunk, item.chunk.num_rows - added)
        self._ends = item.origin.last
        while rows := self._cutter.rows(self._held.rows, self._split, self._piece):
            yield self._cut(rows)
        if self._ends and self._held.rows:
            yield self._cut(self._held.rows)
        self._held.compact()

    def finish(self) -> Iterator[Item]:
        """Yields what is left of the split."""
        self._ends = True
        if self._held.rows:
            yield self._cut(self._held.rows)

    def _cut(self, rows: int) -> Item:
        chunks, tickets = self._held.pop(rows)
        self._cutter.pop(rows)
        origin = Origin(self._split, self._piece, last=self._ends and not self._held.rows)
        self._piece += 1
        return Item(join(chunks), self._position(), tickets if len(chunks) == 1 else None, origin)

    def _position(self) -> Position:
        return RecutPosition(*self._held.mark(), self._split, self._piece)

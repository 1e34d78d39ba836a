"""`concatenate`: the rows of one dataset after those of another.

As in `repeat`, the next input is opened as soon as the current input has started all its work. So the first rows of an
input are under way while the last rows of the input before it are delivered.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.items import Item
from arrowflow.kernels.kinds import BoundaryKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.combine.same_columns import Agreement, SameColumnsOperator
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape, below
from arrowflow.plan.traits import Borders, Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Concatenate(SameColumnsOperator):
    """The rows of its first input, then the rows of the next input, and so on; batches stay as they are.

    Row order: as its inputs, in turn. Memory: nothing held; two inputs are under way at most. Deterministic. Resume:
    (number of the input, position in this input).
    """

    name: ClassVar[str] = "concatenate"
    traits: ClassVar[Traits] = Traits(borders=Borders.KEEP, local=True)

    def __post_init__(self) -> None:
        SameColumnsOperator.__post_init__(self)
        batched = [child.batched for child in self.inputs]
        if any(batched) and not all(batched):
            raise PlanError(
                f"concatenate: dataset {batched.index(True) + 1} is in batches, dataset {batched.index(False) + 1} "
                "is not; `batch` all of them, or put `batch` after `concatenate`"
            )

    @classmethod
    def of(cls, below: Node, others: tuple[Node, ...]) -> Self:
        if not others:
            raise PlanError("concatenate: expected at least one other dataset")
        return cls(inputs=(below, *others))

    def arguments(self) -> Mapping[str, Any]:
        return {"datasets": len(self.inputs)}

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        return _total(inputs)

    def count_batches(self, rows: Sequence[Count], batches: Sequence[Count]) -> Count:
        return _total(batches)

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        return KernelSpec(
            "boundary",
            lambda context: ConcatenateKernel(len(self.inputs), self.schema, context),
            position=Shape(
                ConcatenatePosition,
                lambda at: below("number", at.number, len(self.inputs)),
                inputs=lambda at: [(at.number, at.input)],
            ),
        )


def _total(counts: Sequence[Count]) -> Count:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


class ConcatenatePosition(NamedTuple):
    """Position of a `ConcatenateKernel`: the number of an input, and the position of that input."""

    number: int
    input: Position


class InTurnKernel(BoundaryKernel):
    """Opens one stream after the other, the next as soon as the current stream has started all its work, or all that waits."""

    reads_runs = True

    def __init__(self, context: Context) -> None:
        self._context = context
        self._index = 0
        self._resumed_at: Position = None
        self._current: StreamHandle | None = None
        self._next: StreamHandle | None = None

    @abstractmethod
    def exhausted_at(self, index: int) -> bool:
        """Whether there is no stream number `index`."""

    @abstractmethod
    def _open(self, index: int, position: Position) -> StreamHandle:
        """Opens stream number `index`."""

    def next_input(self) -> StreamHandle | None:
        """Returns the current stream; None after the last one."""
        if self._current is None and not self.exhausted_at(self._index):
            if self._next is None:
                self._next = self._open(self._index, self._resumed_at)
            self._current, self._next, self._resumed_at = self._next, None, None
        return self._current

    @property
    def exhausted(self) -> bool:
        """Whether the current stream, or the stream opened ahead, is the last one."""
        return self.exhausted_at(self._index + 1 + (self._next is not None))

    def ahead(self) -> None:
        if self._next is None and not self.exhausted_at(self._index + 1):
            self._next = self._open(self._index + 1, None)


class ConcatenateKernel(InTurnKernel):
    """Opens one stream per input."""

    def __init__(self, num_inputs: int, schema: pa.Schema | None, context: Context) -> None:
        super().__init__(context)
        self._num_inputs = num_inputs
        self._agreement = Agreement(schema)
        self._epoch = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the input and the position in this input; `next_input` opens the streams."""
        self._epoch = epoch
        if position is not None:
            self._index, self._resumed_at = ConcatenatePosition._make(position)
        return None

    def exhausted_at(self, index: int) -> bool:
        return index >= self._num_inputs

    def _open(self, index: int, position: Position) -> StreamHandle:
        return self._context.open(index, self._epoch, position)

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        item = self._agreement.conforming(item, self._index)
        # Splits of different inputs are different splits: a kernel that counts their rows must not mix them up.
        origin = item.origin._replace(split=item.origin.split * self._num_inputs + self._index)
        yield item._replace(position=ConcatenatePosition(self._index, item.position), origin=origin)

    def ended(self, stream: StreamHandle) -> None:
        self._current = None
        self._index += 1

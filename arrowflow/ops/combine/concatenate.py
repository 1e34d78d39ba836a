"""`concatenate`: the rows of one dataset after those of another.

As in `repeat`, the next input is opened as soon as the current input has started all its work. So the first rows of an
input are under way while the last rows of the input before it are delivered.
"""

from __future__ import annotations

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
        """Returns the node, with arguments as users write them."""
        if not others:
            raise PlanError("concatenate: expected at least one other dataset")
        return cls(inputs=(below, *others))

    def arguments(self) -> Mapping[str, Any]:
        """Returns the number of inputs."""
        return {"datasets": len(self.inputs)}

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns the rows of all inputs together, where every input's are known."""
        return _total(inputs)

    def count_batches(self, rows: Sequence[Count], batches: Sequence[Count]) -> Count:
        """Returns the batches of all inputs together, where every input's are known."""
        return _total(batches)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns one boundary kernel."""
        return (
            KernelSpec(
                operator=self.name,
                kind="boundary",
                make=lambda context: ConcatenateKernel(len(self.inputs), self.schema, context),
                position=Shape(
                    ConcatenatePosition,
                    lambda at: below("number", at.number, len(self.inputs)),
                    inputs=lambda at: [(at.number, at.input)],
                ),
            ),
        )


def _total(counts: Sequence[Count]) -> Count:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


class ConcatenatePosition(NamedTuple):
    """Position of a `ConcatenateKernel`: the number of an input, and the position of that input."""

    number: int
    input: Position


class ConcatenateKernel(BoundaryKernel):
    """Opens one stream per input, the next as soon as the current stream has started all its work."""

    reads_runs = True

    def __init__(self, num_inputs: int, schema: pa.Schema | None, context: Context) -> None:
        self._num_inputs = num_inputs
        self._agreement = Agreement(schema)
        self._context = context
        self._epoch = 0
        self._index = 0
        self._resumed_at: Position = None
        self._current: StreamHandle | None = None
        self._next: StreamHandle | None = None

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the input and the position in this input; `next_input` opens the streams."""
        self._epoch = epoch
        if position is not None:
            self._index, self._resumed_at = ConcatenatePosition._make(position)
        return None

    def next_input(self) -> StreamHandle | None:
        """Returns the current input's stream; None after the last one."""
        if self._current is None:
            if self._index >= self._num_inputs:
                return None
            if self._next is None:
                self._next = self._context.open(self._index, self._epoch, self._resumed_at)
            self._current, self._next, self._resumed_at = self._next, None, None
        return self._current

    @property
    def exhausted(self) -> bool:
        """Whether the current input, or the input opened ahead, is the last one."""
        opened = 2 if self._next is not None else 1
        return self._index + opened >= self._num_inputs

    def ahead(self) -> None:
        """Opens the next input while the current input's last calls still run."""
        if self._next is None and self._index + 1 < self._num_inputs:
            self._next = self._context.open(self._index + 1, self._epoch, None)

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        """Passes the item on."""
        item = self._agreement.conforming(item, self._index)
        # Splits of different inputs are different splits: a kernel that counts their rows must not mix them up.
        origin = item.origin._replace(split=item.origin.split * self._num_inputs + self._index)
        yield item._replace(position=ConcatenatePosition(self._index, item.position), origin=origin)

    def ended(self, stream: StreamHandle) -> None:
        """Moves to the next input."""
        self._current = None
        self._index += 1

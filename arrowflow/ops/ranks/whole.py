"""`split_by_rank` of a plan that cannot run in parts: each process runs all of it, and takes its rows of each batch.

Of a batch of n rows, rank r of W takes rows rn/W to (r + 1)n/W. So all ranks make equally many steps, whatever the plan
does and however many rows it has: neither counts nor a coordinator are needed. Batches that are groups, such as those
of `group_by_window`, are not cut: batch number i goes to rank i mod W.

The plan costs each process the work of all. So everything that may run on the rows of a rank alone does: what follows
the batches, if it keeps their rows and draws no random numbers, and row-wise operators right before them, which move
after them.

Positions are those of the plan, so any rank of any number of processes loads the state of any other rank.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from arrowflow.errors import PlanError
from arrowflow.kernels.items import Item
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.batches.batch import Batch
from arrowflow.ops.combine.interleave import in_order
from arrowflow.ops.ranks.agreed_steps import AgreedSteps, Coordinator
from arrowflow.ops.ranks.rank import Rank
from arrowflow.ops.ranks.steps import no_step
from arrowflow.ops.rows.repeat import Repeat
from arrowflow.options import ResolvedOptions
from arrowflow.plan.access import RowAccess, position_at
from arrowflow.plan.lane import InLanes, Obstacle
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.traits import Borders, SharedByEpochs, Traits
from arrowflow.plan.walk import fold

_LOGGER: Final = logging.getLogger("arrowflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOfBatches(RowOperator, InLanes, RowAccess):
    """The rows of one rank of each batch; or of whole batches in turn.

    Row order: its input's. Memory: its input's; with whole batches in turn, those of one round. Deterministic. Resume: its
    input's position.

    Attributes:
        process: This process.
        cuts: Whether batches are divided. Otherwise they come in turn.
        because: Why the plan does not run in parts; None if the user wants it so.
        coordinator: The means by which ranks compare their epochs.
    """

    name: ClassVar[str] = "split_by_rank"
    traits: ClassVar[Traits] = Traits(borders=Borders.KEEP)

    process: Rank
    cuts: bool = True
    because: Obstacle | None = field(default=None, compare=False)
    coordinator: Coordinator | None = field(default=None, compare=False, repr=False)

    def arguments(self) -> Mapping[str, Any]:
        """Returns what all ranks have in common."""
        return {"how": "whole"}

    def describe(self) -> str:
        return f"split_by_rank(rank {self.process.rank} of {self.process.world_size}: whole)"

    @property
    def processes(self) -> int:
        return self.process.local_world_size

    @property
    def _size(self) -> int | None:
        """Rows of a batch, if all but the last have as many."""
        before = self.inputs[0]
        return before.size if isinstance(before, Batch) else None

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        rows, size = inputs[0], self._size
        if self.process.world_size == 1 or not isinstance(rows, int):
            return rows
        if size is None:
            return None
        return rows // size * len(self.process.share(size)) + len(self.process.share(rows % size))

    def count_batches(self, rows: Sequence[Count], batches: Sequence[Count]) -> Count:
        """Returns the batches of this rank: those that have a row for each rank, or a part of all of them."""
        number, total, size = batches[0], rows[0], self._size
        if self.process.world_size == 1 or not isinstance(number, int):
            return number
        if not self.cuts:
            return number // self.process.world_size
        if size is None or not isinstance(total, int):
            return None
        return total // size + (total % size >= self.process.world_size)

    def shared_by_epochs(self, share: SharedByEpochs) -> SharedByEpochs:
        return share

    def position_at(self, step: int, epoch: int) -> Position:
        return position_at(self.inputs[0], step, epoch)  # of groups, which a rank gets whole, it is None

    def at_end(self, plan: Node) -> Node:
        """Has ranks compare their epochs, where they can."""
        if self.coordinator is None or self.process.world_size == 1:
            return plan
        return AgreedSteps(coordinator=self.coordinator, ends=False).on(plan)

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        """Returns one serial kernel. Called once for each plan that is prepared, so it writes the line of the log."""
        if self.process.world_size > 1 and not options.deterministic:
            raise PlanError(
                "split_by_rank: each process runs the whole plan, and with deterministic=False each would have its rows in an "
                "order of its own, so that some would come twice and others never; leave the option out"
            )
        taken = "its rows of each batch" if self.cuts else f"one batch in {self.process.world_size}"
        facts = [f"each process runs the whole plan and takes {taken}: {self.why}"]
        before = self.inputs[0]
        if before.batched and before.traits.opaque and before.traits.local:
            advice = "with keeps_rows=True and no seed, for those of the process alone"
            facts.append(f"{before.call()} is called for all rows: {advice}")
        if self.because is not None and self.process.world_size > 1:
            _LOGGER.warning("split_by_rank: %s", "; ".join(facts))
        return KernelSpec(
            "serial", lambda context: ShareKernel(self), has_position=False, facts=lambda: tuple(facts)
        )

    @property
    def why(self) -> str:
        """Why the plan does not run in parts, and what would let it."""
        return 'how="whole"' if self.because is None else str(self.because)


def share_of_batches(plan: Node, share: ShareOfBatches) -> Node:
    """Returns a bound plan of which a rank takes its share: right after its batches, and before all that treats each batch.

    Raises:
        PlanError: A batch has not a row for each rank.
    """
    plan, world_size = in_order(plan), share.process.world_size
    cuts = fold(plan, _is_of_batches)
    moved: list[Node] = []
    while _treats_parts(plan, cuts):
        moved.append(plan)
        (plan,) = plan.inputs
    if isinstance(plan, Batch):
        if plan.size < world_size:
            raise PlanError(
                f"split_by_rank: {world_size} processes cannot share a batch of {plan.size:,} rows; use a batch size that is a "
                f"multiple of {world_size}"
            )
        (rows,) = plan.inputs
        while plan.mask is None and rows.traits.one_to_one and _treats_parts(rows, cuts):
            moved.append(rows)
            (rows,) = rows.inputs
        plan = plan.on(rows)
    plan = dataclasses.replace(share, cuts=cuts).on(plan)
    for node in reversed(moved):
        plan = node.on(plan)
    return plan


def _treats_parts(node: Node, cuts: bool) -> bool:
    """Whether an operator gives of some rows of a batch what it gives of them among all.

    A function that may leave rows out could leave none to one rank, which then made fewer steps. Random numbers are
    those of a whole batch. Rounds of whole batches go on in the next repetition.
    """
    traits = node.traits
    if traits.borders is not Borders.KEEP or len(node.inputs) != 1:
        return False
    if traits.opaque:
        return traits.local and node.count_rows((1,)) == 1 and node.arguments().get("seed") is None
    return traits.one_to_one or (traits.counts_alone and (cuts or not isinstance(node, Repeat)))


def _is_of_batches(node: Node, inputs: Sequence[bool]) -> bool:
    """Whether `batch` makes the batches of a plan, of all inputs that it joins."""
    return all(inputs) if node.traits.borders is Borders.KEEP else isinstance(node, Batch)


class ShareKernel(SerialKernel):
    """Takes the part of a rank: its rows of each batch, or one batch of each round of as many batches as there are ranks.

    A batch that has not a row for each rank is left out by all of them, and so is an incomplete round.
    """

    def __init__(self, node: ShareOfBatches) -> None:
        self._node = node
        self._began = False  # a step was delivered in this epoch
        self._left = 0  # rows of batches that were left out; or the batches of a round so far
        self._own: Item | None = None  # of the round

    def open(self, position: Position, epoch: int) -> Position:
        self._began = position is not None
        return position

    def push(self, item: Item) -> Iterator[Item]:
        rows, process = item.chunk.num_rows, self._node.process
        if process.world_size == 1:
            yield item
        elif self._node.cuts:
            part = process.share(rows)
            self._began = self._began or bool(part)
            self._left += 0 if part else rows
            yield item._replace(chunk=item.chunk.slice(part.start, len(part)))
        elif rows:
            self._own = item if self._left == process.rank else self._own
            self._left += 1
            if self._left == process.world_size and self._own is not None:
                own, self._own, self._left, self._began = self._own, None, 0, True
                yield own._replace(position=item.position)

    def finish(self) -> Iterator[Item]:
        """Raises where all that came was left out."""
        if self._left and not self._began:
            left = f"{self._left:,} {'rows' if self._node.cuts else 'batches'}"
            why = f"it has {left}, which are too few for {self._node.process.world_size} processes"
            raise no_step(why, is_whole=True)
        return iter(())

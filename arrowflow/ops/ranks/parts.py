"""`split_by_rank` of a plan that runs in parts: in lanes, see `arrowflow.plan.lane`.

Three things may be right before it:

* `batch`. Lanes run the plan before it, and their rows are merged: `rows_of_lanes.py`.
* A function after `batch`. Lanes run it on batches of their own, which are joined: `batches_of_lanes.py`.
* Any other maker of batches. Lanes run it, and their batches come in turn: `batches_of_lanes.py`, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from arrowflow.errors import PlanError, StateError
from arrowflow.kernels.cutting import CutPosition
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.memory import Recycler
from arrowflow.ops.batches.batch import Batch, BatchKernel, JoinKernel
from arrowflow.ops.cache.cache import dealt_caches
from arrowflow.ops.combine.concatenate import Concatenate
from arrowflow.ops.order.shuffle import Shuffle
from arrowflow.ops.ranks.agreed_steps import AgreedSteps
from arrowflow.ops.ranks.batches_of_lanes import TurnsKernel
from arrowflow.ops.ranks.coordinator import Coordinator
from arrowflow.ops.ranks.lane_count import batch_rows, maker_of
from arrowflow.ops.ranks.merge import MergeKernel
from arrowflow.ops.ranks.rows_of_lanes import PART_BYTES, PARTS_IN_BUDGET, LanesKernel
from arrowflow.ops.ranks.steps import EqualSteps, Steps, steps_of
from arrowflow.ops.rows.repeat import Repeat
from arrowflow.ops.rows.take import Take
from arrowflow.options import ResolvedOptions
from arrowflow.plan.lane import FOREVER, Lane
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import LanesPosition, Position
from arrowflow.plan.shape import Inputs, Shape
from arrowflow.plan.traits import Borders, SharedByEpochs, Traits
from arrowflow.plan.walk import count, post_order, rows_in_lanes
from arrowflow.plan.widths import row_width

How = Literal["parts", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitInParts(RowOperator):
    """The part of the global batches that belongs to one of several processes.

    Row order: in parts, at each step rows of each lane of the rank, lane after lane; whole, that of its input. Memory: in
    parts at least one chunk of each lane, and two parts of some 16 MiB; whole, its input's. Deterministic: the batches
    of all ranks together do not depend on their number. Resume: in parts (steps, of each lane its position, rows and
    whether it has ended); whole, its input's position.

    Attributes:
        rank: Number of this process.
        world_size: How many processes there are.
        local_world_size: How many of them share this machine.
        how: The way to run the plan; None for parts wherever they are right. Bound: always parts.
        lanes: How many lanes there are in all processes; None until bound, unless given.
        equal_steps: What happens where lanes end at different steps.
        coordinator: What ranks agree by, where only a run tells how many steps they have.
    """

    name: ClassVar[str] = "split_by_rank"

    rank: int
    world_size: int
    local_world_size: int = 1
    how: How | None = None
    lanes: int | None = None
    equal_steps: EqualSteps | None = None
    coordinator: Coordinator | None = field(default=None, compare=False, repr=False)

    def arguments(self) -> Mapping[str, Any]:
        """Returns what all ranks have in common."""
        return {"lanes": self.lanes, "equal_steps": self.equal_steps}

    def describe(self) -> str:
        """Returns the rank and its lanes as one line."""
        ends = "" if self.equal_steps is None else f"; equal_steps={self.equal_steps!r}"
        own = self.own_lanes
        lanes = f": lanes {own[0]} to {own[-1]} of {self.lanes}" if own else ""
        return f"split_by_rank(rank {self.rank} of {self.world_size}{lanes}{ends})"

    @property
    def own_lanes(self) -> range:
        """The numbers of the lanes of this rank; none until bound."""
        share = (self.lanes or 0) // self.world_size
        return range(self.rank * share, (self.rank + 1) * share)

    @property
    def processes(self) -> int:
        """The processes on this machine, which share its budgets."""
        return self.local_world_size

    def _before(self, node: Node) -> Node:
        """Moves down to the operator that makes the batches, through all that treat each batch for itself."""
        traits = node.traits
        moves = traits.one_to_one or traits.drops_rows or traits.counts_alone
        if moves and not traits.opaque and traits.borders is Borders.KEEP:
            return node.on(self._before(node.inputs[0]))
        split = dataclasses.replace(self, inputs=(node,)).on(node)
        ends: EqualSteps | None = (
            "drop" if self.coordinator is not None and split._rows_to_deal is None else None
        )
        return dataclasses.replace(split, equal_steps=self.equal_steps or ends)

    @property
    def _batch(self) -> Batch | None:
        """The `batch` whose rows are merged; None where lanes make batches of their own."""
        before = self.inputs[0]
        return before if isinstance(before, Batch) else None

    @property
    def _joins(self) -> bool:
        """Whether the batches of the lanes are parts of global ones."""
        return isinstance(maker_of(self.inputs[0]), Batch)

    @property
    def _drops(self) -> bool:
        """Whether a short last batch is left out: always where lanes may be of unequal length, known or not."""
        batch = self._batch
        return self.equal_steps == "drop" or (batch is not None and batch.drop_remainder)

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """Merged rows are new memory; batches in turn, and those of one lane, pass as they are."""
        return inputs[0] or (self._joins and len(self.own_lanes) > 1)

    # ------------------------------------------------------------------ lanes

    @property
    def _collects(self) -> bool:
        """Whether a lane sees all rows before it puts out the first one."""
        return any(node.traits.collects for node in post_order(self.inputs[0]))

    def _lane(self, number: int) -> Node:
        """Returns the plan of a lane: before `batch` where its rows are merged."""
        assert self.lanes is not None
        batch, step_rows = self._batch, (batch_rows(self.inputs[0]) or 0) // self.lanes
        plan = self.inputs[0] if batch is None else batch.inputs[0]
        # A cache keeps the rows that a lane has in epoch 0. Beside one, no remainder goes to another lane in another epoch.
        rotating = 0 if dealt_caches(plan) else plan.dealt_rows()
        return plan.in_lane(Lane(number, self.lanes, step_rows, turns=((FOREVER, rotating),)))

    @property
    def _shuffles(self) -> tuple[Shuffle, ...]:
        """The `shuffle` of each of its own lanes, if lanes end in one and their rows are merged."""
        batch = self._batch
        if batch is None or not isinstance(batch.inputs[0], Shuffle):
            return ()
        lanes = map(self._lane, self.own_lanes)
        return tuple(lane for lane in lanes if isinstance(lane, Shuffle))

    def lane_plans(self, numbers: Sequence[int]) -> tuple[Node, ...]:
        """Returns the plans of some lanes, each with all that it does before its rows are merged or its batches come."""
        plans = map(self._lane, numbers)
        if self._batch is not None or not self._joins:
            return tuple(plans)
        most = self._least_rows()
        return tuple(self._even(plan, most) for plan in plans)

    @property
    def planned_inputs(self) -> tuple[Node, ...]:
        """The plans of its own lanes."""
        plans = self.lane_plans(self.own_lanes)
        return tuple(plan.inputs[0] for plan in plans) if self._shuffles else plans

    def position_at(self, step: int, epoch: int) -> Position:
        """Returns the number of steps, from which the places of lanes follow where their rows are merged."""
        return None if self._batch is None else CutPosition(LanesPosition(step, ()).position(), 0, step)

    def lanes_from_start(self, lanes: Sequence[int], step: int) -> Sequence[int]:
        """Returns the lanes whose plan cannot tell a position behind so many steps."""
        batch = self._batch
        if batch is None:
            raise StateError(
                f"split_by_rank: the state has no places for the lanes {', '.join(map(str, lanes))}, and they do not follow "
                "from its steps, unless batch comes last; merge the states of all ranks by af.merge_states"
            )
        rows = step * (batch.size // (self.lanes or 1))
        return [lane for lane in lanes if self._lane(lane).position_behind(rows, 0) is None]

    @property
    def _rows_to_deal(self) -> Count:
        """The rows that reach the batches, of which all lanes have equally many up to one; None where only a run tells."""
        before = maker_of(self.inputs[0]).inputs[0]
        rows = rows_in_lanes(before)
        return rows if self._joins or rows == math.inf else None

    def steps(self) -> Steps:
        """Returns what each lane delivers: rows where they are merged, else batches. Reads all footers, once."""
        batch, rows = self._batch, self._rows_to_deal
        assert self.lanes is not None
        size = 1 if batch is None else batch.size // self.lanes
        if batch is None and isinstance(rows, int):  # each lane makes as many batches, of as many rows
            each = count(self._even(self._lane(0), rows // self.lanes))[1]
            rows = self.lanes * each if isinstance(each, int) else each
        pads = batch is not None and batch.mask is not None
        alone = self.world_size == 1 or (self.coordinator is not None and not pads)
        return steps_of(rows, self.lanes, size, pads=pads, given=self.equal_steps, alone=alone)

    def _least_rows(self) -> int | None:
        """Returns the rows of the shortest lane before `batch`, where functions follow it; None if that is not known."""
        rows = self._rows_to_deal
        return rows // (self.lanes or 1) if isinstance(rows, int) else None

    def _even(self, plan: Node, most: int | None) -> Node:
        """Returns a lane whose batches are as many, and as long, as those of all others: of so many rows at most."""
        if not isinstance(plan, Batch):
            return plan.on(self._even(plan.inputs[0], most))
        batch = dataclasses.replace(plan, drop_remainder=plan.drop_remainder or self._drops)
        return batch.on(*plan.inputs) if most is None else batch.on(FirstRows(count=most).on(*plan.inputs))

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns the rows of this rank."""
        batch, most = self._batch, self.steps().most
        if batch is None or most is None:
            return None
        own = most - most % (batch.size // (self.lanes or 1)) if self._drops else most
        return own * len(self.own_lanes)

    def count_batches(self, rows: Sequence[Count], batches: Sequence[Count]) -> Count:
        """Returns the batches of this rank, the same number as those of every other one."""
        batch, most = self._batch, self.steps().most
        if most is None:
            return None
        if batch is None:
            return most if self._joins else most * len(self.own_lanes)
        size = batch.size // (self.lanes or 1)
        return most // size if self._drops else -(-most // size)

    def shared_by_epochs(self, share: SharedByEpochs) -> SharedByEpochs:
        """Returns nothing: remainders rotate, so rows that only a run counts are other ones in each epoch."""
        return SharedByEpochs.NOTHING

    def at_end(self, plan: Node) -> Node:
        """Has ranks agree on their last step, where only a run tells which it is, and on their epoch.

        Raises:
            PlanError: An operator after it repeats or joins batches whose number only a run tells: ranks agree once.
        """
        steps = self.steps()
        repeats = (node for node in post_order(plan) if isinstance(node, Repeat | Concatenate))
        after = next((node for node in repeats if self in post_order(node)), None)
        if after is not None and steps.most is None and self._rows_to_deal is None:
            raise PlanError(
                f"{after.name}: only a run tells how many steps the ranks of split_by_rank make before it; put {after.name} "
                'before batch, or write split_by_rank(how="whole")'
            )
        if self.coordinator is None or self.world_size == 1:
            return plan
        return AgreedSteps(coordinator=self.coordinator, ends=steps.most is None).on(plan)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns the boundary over the lanes, and what merges their rows or joins their batches."""
        steps, batch, lanes = self.steps(), self._batch, self.own_lanes
        facts = (f"lanes {lanes[0]} to {lanes[-1]} of {self.lanes}", *steps.facts(of_rows=batch is not None))
        if batch is None:
            turns = KernelSpec(
                operator=self.name,
                kind="boundary",
                make=lambda context: TurnsKernel(
                    lanes, steps, joins=self._joins, collects=self._collects, context=context
                ),
                position=Shape(LanesPosition, inputs=lambda at: _inputs(at, lanes, windows=False)),
                pins_order=True,
                splits=True,
                alike=True,
                facts=lambda: facts,
            )
            join = KernelSpec(
                operator=self.name,
                kind="stateless",
                make=lambda context: JoinKernel(),
                engine="arrow",
                facts=lambda: ("join the batches of the lanes",),
            )
            return (turns, join) if self._joins else (turns,)
        size, recycler, shuffles = (
            batch.size // (self.lanes or 1),
            Recycler(options.ram_budget),
            self._shuffles,
        )
        width = row_width(batch.inputs[0].schema)
        window_rows = max((shuffle.size for shuffle in shuffles), default=0)
        part_bytes = min(PART_BYTES, options.ram_budget // PARTS_IN_BUDGET)
        return (
            KernelSpec(
                operator=self.name,
                kind="boundary",
                make=lambda context: LanesKernel(
                    lanes,
                    size,
                    steps,
                    drop=self._drops,
                    drop_remainder=batch.drop_remainder,
                    width=width,
                    part_bytes=part_bytes,
                    behind=lambda lane, rows, epoch: self._lane(lane).position_behind(rows, epoch),
                    shuffles=shuffles,
                    collects=self._collects,
                    context=context,
                ),
                position=Shape(LanesPosition, inputs=lambda at: _inputs(at, lanes, windows=bool(shuffles))),
                runs_last=(Shuffle.name,) if shuffles else (),
                pins_order=True,
                splits=True,
                alike=True,
                facts=lambda: facts,
            ),
            KernelSpec(
                operator=self.name,
                kind="stateless",
                make=lambda context: MergeKernel(size, batch.mask, recycler, of_windows=bool(shuffles)),
                random=bool(shuffles),
                engine="numpy+arrow",
                # One part is copied while another is consumed; a part has one step at least, and a window.
                floor_bytes=2 * max(size, window_rows) * len(lanes) * width.num_bytes,
                facts=lambda: (
                    f"permute windows of {window_rows:,} rows of each lane, and gather them into their batches"
                    if shuffles
                    else f"copy the rows of lanes into their batches, up to {part_bytes:,} bytes a call",
                ),
            ),
            KernelSpec(
                operator=batch.name,
                kind="serial",
                make=lambda context: BatchKernel(size * len(lanes)),
                position=Shape(CutPosition),
                splits=True,
                engine="arrow",
            ),
        )


def _inputs(at: LanesPosition, lanes: Sequence[int], *, windows: bool) -> Inputs:
    """Yields the position of each lane that runs here; before its `shuffle`, if that runs here, too."""
    for mark in at.lanes:
        if mark.lane in lanes:
            before = mark.before
            if windows and before is not None:
                ((_, before),) = Shape(CutPosition).inputs_of(before, Shuffle.name)
            yield lanes.index(mark.lane), before


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRows(Take):
    """`take`, also of rows that come in batches which are cut anew."""

    name: ClassVar[str] = SplitInParts.name
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE)

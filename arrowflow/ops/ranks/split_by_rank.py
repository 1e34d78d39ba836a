"""`split_by_rank`: each of several processes delivers its part of the same batches.

A plan runs in parts where every operator before the batches is local: in lanes, see `arrowflow.plan.lane`. Every other
plan runs whole (`whole.py`). The plan without the operator is the truth for both.

When a plan is bound, the operator moves down to the `batch` that makes the global batches. Columns can be computed and batches
padded for the rows that a process delivers, to the same result. In parts, three things may then be right before it:

* `batch`. Lanes run the plan before it, and their rows are merged.
* A function after `batch`. Lanes run it on batches of their own, which are joined.
* Any other maker of batches. Lanes run it, and their batches come in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self, get_args

from arrowflow.errors import PlanError, StateError, shown
from arrowflow.kernels.cutting import CutPosition
from arrowflow.kernels.kinds import BoundaryKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.batches.batch import Batch
from arrowflow.ops.cache.cache import dealt_caches
from arrowflow.ops.combine.concatenate import Concatenate
from arrowflow.ops.order.shuffle import Shuffle
from arrowflow.ops.ranks.agreed_steps import AgreedSteps, Coordinator, coordinator_of
from arrowflow.ops.ranks.lane_count import batch_rows, checked_lanes, lanes_of_plan, maker_of
from arrowflow.ops.ranks.lane_kernels import PART_BYTES, PARTS_IN_BUDGET, LanesKernel, TurnsKernel
from arrowflow.ops.ranks.merge import MergeKernel
from arrowflow.ops.ranks.rank import Rank, found_rank
from arrowflow.ops.ranks.steps import EqualSteps, Steps, uncounted, ways_to_count
from arrowflow.ops.ranks.whole import ShareOfBatches, share_of_batches
from arrowflow.ops.rows.repeat import Repeat
from arrowflow.ops.rows.take import Take
from arrowflow.options import ResolvedOptions, check_choice
from arrowflow.plan.access import RowAccess, position_behind
from arrowflow.plan.file_source import push_row_ranges
from arrowflow.plan.lane import FOREVER, InLanes, Lane, Obstacle, dealt_rows, in_lane
from arrowflow.plan.node import BindContext, Count, Node
from arrowflow.plan.position import LanesPosition, Position
from arrowflow.plan.shape import Inputs, Shape
from arrowflow.plan.traits import Borders, SharedByEpochs, Traits
from arrowflow.plan.walk import count, post_order, rows_in_lanes
from arrowflow.plan.widths import row_width
from arrowflow.recycler import Recycler

How = Literal["parts", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitByRank(RowOperator, InLanes, RowAccess):
    """The part of the global batches that belongs to one of several processes.

    Row order: in parts, at each step rows of each lane of the rank, lane after lane; whole, that of its input. Memory: in
    parts at least one chunk of each lane, and two parts of some 16 MiB; whole, its input's. Deterministic: the batches
    of all ranks together do not depend on their number. Resume: in parts (steps, of each lane its position, rows and
    whether it has ended); whole, its input's position.

    Attributes:
        process: This process.
        how: The way to run the plan; None for parts wherever they are right. Bound: always parts.
        lanes: How many lanes there are in all processes; None until bound, unless given.
        equal_steps: The end of an epoch where lanes end at different steps.
        coordinator: The means by which ranks agree, where only a run tells how many steps they have.
    """

    name: ClassVar[str] = "split_by_rank"

    process: Rank
    how: How | None = None
    lanes: int | None = None
    equal_steps: EqualSteps | None = None
    coordinator: Coordinator | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        below: Node,
        rank: int | None,
        world_size: int | None,
        *,
        how: Any = None,
        lanes: int | None = None,
        equal_steps: Any = None,
        coordinator: Any = None,
    ) -> Self:
        if not below.batched:
            raise PlanError(
                "split_by_rank: it comes last, after the batches of all processes together; write "
                ".batch(global_batch_size).split_by_rank()"
            )
        if any(isinstance(node, cls) for node in post_order(below)):
            raise PlanError("split_by_rank: the plan is split by rank already; leave one of the two out")
        check_choice("split_by_rank", "how", how, (*get_args(How), None))
        found = found_rank(rank, world_size)
        if lanes is not None:
            if how == "whole":
                raise PlanError(
                    'split_by_rank: lanes= is for a plan that runs in parts; leave it or how="whole" out'
                )
            checked_lanes(lanes, batch_rows(below), found.world_size)
        if equal_steps not in (None, *get_args(EqualSteps)):
            raise PlanError(
                f"split_by_rank: equal_steps is 'drop' or None, got {shown(equal_steps)}; to fill up the last batch write "
                "batch(…, pad_remainder=True)"
            )
        agree = coordinator_of(coordinator, found.world_size)
        return cls(
            inputs=(below,), process=found, how=how, lanes=lanes, equal_steps=equal_steps, coordinator=agree
        )

    def settings(self) -> dict[str, Any]:
        """Returns the arguments of a node like it, also of one that runs its lanes in another way."""
        return {each.name: getattr(self, each.name) for each in fields(SplitByRank) if each.init}

    def arguments(self) -> Mapping[str, Any]:
        """Returns what all ranks have in common."""
        return {"lanes": self.lanes, "equal_steps": self.equal_steps}

    def describe(self) -> str:
        ends = "" if self.equal_steps is None else f"; equal_steps={self.equal_steps!r}"
        own = self.own_lanes
        lanes = f": lanes {own[0]} to {own[-1]} of {self.lanes}" if own else ""
        return f"split_by_rank(rank {self.process.rank} of {self.process.world_size}{lanes}{ends})"

    @property
    def own_lanes(self) -> range:
        """The numbers of the lanes of this rank; none until bound."""
        return self.process.share(self.lanes or 0)

    @property
    def processes(self) -> int:
        return self.process.local_world_size

    # ------------------------------------------------------------------ binding

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Decides how the plan runs, and moves down to the operator that makes the batches."""
        plan = push_row_ranges(inputs[0])
        lanes: int | Obstacle | None = None
        if self.how != "whole":
            wanted = self.how == "parts"
            lanes = lanes_of_plan(plan, self.lanes, self.process.world_size, small_windows=wanted)
        if isinstance(lanes, int):
            return replace(self, how="parts", lanes=lanes)._before(plan)
        if self.how == "parts":
            raise PlanError(
                f'split_by_rank: how="parts" would change what the plan means: {lanes}; leave how= out, and each process '
                "runs the whole plan"
            )
        return share_of_batches(plan, self._share(lanes))

    def _share(self, obstacle: Obstacle | None) -> ShareOfBatches:
        """Returns the operator that takes the rows of this rank of each batch of a whole plan."""
        return ShareOfBatches(process=self.process, because=obstacle, coordinator=self.coordinator)

    def _before(self, node: Node) -> Node:
        """Moves down to the operator that makes the batches, through all that treat each batch for itself."""
        traits = node.traits
        moves = traits.one_to_one or traits.drops_rows or traits.counts_alone
        if moves and not traits.opaque and traits.borders is Borders.KEEP:
            return node.on(self._before(node.inputs[0]))
        split = self.on(node)
        if self.coordinator is None or self.equal_steps is not None or split._rows_to_deal is not None:
            return split
        return replace(split, equal_steps="drop")

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

    def lane_plan(self, number: int) -> Node:
        """Returns the plan of a lane: before `batch` where its rows are merged, else with all that makes its batches."""
        assert self.lanes is not None
        batch, step_rows = self._batch, (batch_rows(self.inputs[0]) or 0) // self.lanes
        plan = self.inputs[0] if batch is None else batch.inputs[0]
        # A cache keeps the rows that a lane has in epoch 0. Beside one, no remainder goes to another lane in another epoch.
        rotating = 0 if dealt_caches(plan) else dealt_rows(plan)
        lane = in_lane(plan, Lane(number, self.lanes, step_rows, turns=((FOREVER, rotating),)))
        return self._even(lane) if batch is None and self._joins else lane

    @property
    def _shuffles(self) -> tuple[Shuffle, ...]:
        """The `shuffle` of each of its own lanes, if lanes end in one."""
        return tuple(lane for lane in map(self.lane_plan, self.own_lanes) if isinstance(lane, Shuffle))

    @property
    def planned_inputs(self) -> tuple[Node, ...]:
        lanes = map(self.lane_plan, self.own_lanes)
        return tuple(lane.inputs[0] if isinstance(lane, Shuffle) else lane for lane in lanes)

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
        return [lane for lane in lanes if position_behind(self.lane_plan(lane), rows, 0) is None]

    @property
    def _rows_to_deal(self) -> Count:
        """The rows that reach the batches, of which all lanes have equally many up to one; None where only a run tells."""
        rows = rows_in_lanes(maker_of(self.inputs[0]).inputs[0])
        return rows if self._joins or rows == math.inf else None

    def steps(self) -> Steps:
        """Returns what each lane delivers: rows where they are merged, else batches. Reads all footers, once."""
        batch, rows = self._batch, self._rows_to_deal
        assert self.lanes is not None
        size = 1 if batch is None else batch.size // self.lanes
        if batch is None and isinstance(rows, int):  # each lane makes as many batches, of as many rows
            each = count(self.lane_plan(0))[1]
            if isinstance(each, int):
                return Steps(size, self._drops, each, -(rows % self.lanes))
            rows = each
        agrees = self.process.world_size == 1 or self.coordinator is not None
        if rows is None and (self.equal_steps is None or not agrees):
            raise uncounted(() if batch is None else ways_to_count(batch.inputs[0]), agrees=agrees)
        if not isinstance(rows, int):
            return Steps(size, self._drops)
        least = rows // self.lanes
        if batch is None or batch.mask is None:
            return Steps(size, self._drops, least, least * self.lanes - rows)
        most = -(-rows // batch.size) * size
        added = most * self.lanes - rows
        filled_from = most - size if added else None
        repeats_from = filled_from if filled_from == least else None
        return Steps(size, self._drops, most, added, filled_from, repeats_from)

    def _even(self, plan: Node) -> Node:
        """Returns a lane whose batches are as many, and as long, as those of all others: of its first rows, if it has more."""
        if not isinstance(plan, Batch):
            return plan.on(self._even(plan.inputs[0]))
        (below,), rows = plan.inputs, self._rows_to_deal
        if isinstance(rows, int):
            below = FirstRows(count=rows // (self.lanes or 1)).on(below)
        return replace(plan, drop_remainder=plan.drop_remainder or self._drops).on(below)

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        steps = self.steps()
        if self._batch is None or steps.most is None:
            return None
        return (steps.most - steps.most % steps.size * steps.drops) * len(self.own_lanes)

    def count_batches(self, rows: Sequence[Count], batches: Sequence[Count]) -> Count:
        steps = self.steps()
        if steps.most is None:
            return None
        number = steps.most // steps.size if steps.drops else -(-steps.most // steps.size)
        return number if self._joins else number * len(self.own_lanes)

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
        if self.coordinator is None or self.process.world_size == 1:
            return plan
        return AgreedSteps(coordinator=self.coordinator, ends=steps.most is None).on(plan)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        steps, batch, lanes, shuffles = self.steps(), self._batch, self.own_lanes, self._shuffles
        kernel: Callable[..., BoundaryKernel]
        after: tuple[KernelSpec, ...] = ()
        if batch is None:
            kernel = partial(TurnsKernel, joins=self._joins)
            if self._joins:
                _, join = Batch(size=1, joins=True).lower(options)
                after = (replace(join, facts="join the batches of the lanes"),)
        else:
            part_bytes = min(PART_BYTES, options.ram_budget // PARTS_IN_BUDGET)
            recycler, width = Recycler(options.ram_budget), row_width(batch.inputs[0].schema)
            window_rows = max((shuffle.size for shuffle in shuffles), default=0)
            kernel = partial(
                LanesKernel,
                drop_remainder=batch.drop_remainder,
                width=width,
                part_bytes=part_bytes,
                behind=lambda lane, rows, epoch: position_behind(self.lane_plan(lane), rows, epoch),
                shuffles=shuffles,
            )
            merge = KernelSpec(
                "stateless",
                lambda context: MergeKernel(steps.size, batch.mask, recycler),
                random=bool(shuffles),
                engine="numpy+arrow",
                # One part is copied while another is consumed; a part has one step at least, and a window.
                floor_bytes=2 * max(steps.size, window_rows) * len(lanes) * width.num_bytes,
                facts=(
                    f"permute windows of {window_rows:,} rows of each lane, and gather them into their batches"
                    if shuffles
                    else f"copy the rows of lanes into their batches, up to {part_bytes:,} bytes a call"
                ),
            )
            (cut,) = Batch(size=steps.size * len(lanes)).lower(options)
            after = (merge, replace(cut, operator=Batch.name))
        collects = any(node.traits.collects for node in post_order(self.inputs[0]))
        facts = (f"lanes {lanes[0]} to {lanes[-1]} of {self.lanes}", *steps.facts())
        boundary = KernelSpec(
            "boundary",
            partial(kernel, lanes=lanes, steps=steps, collects=collects),
            position=Shape(LanesPosition, inputs=lambda at: _inputs(at, lanes, windows=bool(shuffles))),
            runs_last=(Shuffle.name,) if shuffles else (),
            pins_order=True,
            splits=True,
            alike=True,
            facts=lambda: facts,
        )
        return (boundary, *after)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRows(Take):
    """`take`, also of rows that come in batches which are cut anew."""

    name: ClassVar[str] = SplitByRank.name
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE)


def _inputs(at: LanesPosition, lanes: Sequence[int], *, windows: bool) -> Inputs:
    """Yields the position of each lane that runs here; before its `shuffle`, if that runs here, too."""
    for mark in at.lanes:
        if mark.lane in lanes:
            before = mark.before
            if windows and before is not None:
                ((_, before),) = Shape(CutPosition).inputs_of(before, Shuffle.name)
            yield lanes.index(mark.lane), before

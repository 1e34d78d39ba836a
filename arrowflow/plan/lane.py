"""`Lane`: one of the equal parts in which `split_by_rank` runs a plan, so that many processes deliver one stream.

The plan as written describes the *global* stream, and its batches are the global ones. It runs as `count` lanes that do
not see each other. Each lane is the whole plan on its part of the source's rows. A step of the global stream takes
equally many rows of each lane, lane after lane. The number of lanes belongs to the plan, the number of processes does
not: the rows of a lane follow from its own number alone. So the same batches come, whichever process runs which lanes.

Three decisions matter:

* **The plan without lanes is the truth.** Lanes run a plan only where each operator is *local*: it treats a row by that
  row alone, or by neighbours that are free by its definition, as in a `shuffle`. `obstacle_of` tells which operator is
  not local. Such a plan runs as a whole, see `arrowflow.ops.ranks.whole`.
* **Rows are dealt once**, by the operator that decides their order: a source, or a global `shuffle` after it. Each lane
  gets rows that follow each other in the epoch's order.
* **Remainders rotate.** A source whose rows do not divide evenly gives one row more to some lanes. The next source, the
  next repetition and the next epoch go on with the lane after them. So all lanes have equally many rows of an epoch, up
  to one, however many sources the plan has.

The operators of a lane are those of the plan, with two differences. Sizes that count rows of a buffer are divided by
`count`. Seeds get the number of the lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from arrowflow.plan.node import Count, Node
from arrowflow.random import LANE_SEEDS, philox

FOREVER: Final = 1 << 62
"""More epochs than there ever are."""
MIN_WINDOW_ROWS: Final = 100
"""The least rows of a lane's part of a window: 20 rows in 16 lanes would be windows of one row, in plain order."""


class Obstacle(NamedTuple):
    """The reason for which a plan cannot run in lanes.

    Attributes:
        operator: The name of the operator that is not local.
        reason: The change that lanes would make, as the rest of a sentence about the operator.
        remedy: The change to the plan that would let it run in lanes; empty where there is none.
        most_lanes: The most lanes in which it could run as it is; 0 where the number makes no difference.
    """

    operator: str
    reason: str
    remedy: str = ""
    most_lanes: int = 0

    def __str__(self) -> str:
        return f"{self.operator} {self.reason}{f' ({self.remedy})' if self.remedy else ''}"


def worst(obstacles: Iterable[Obstacle | None]) -> Obstacle | None:
    """Returns an obstacle for any number of lanes, if there is one, else one for too many lanes."""
    found = [each for each in obstacles if each is not None]
    return min(found, key=lambda each: each.most_lanes > 0, default=None)


def too_few(operator: str, rows: float | None, lanes: int, times: float | None) -> Obstacle | None:
    """Returns the obstacle of a source with fewer rows than lanes; rows that are repeated go to one lane after another."""
    if rows is None or rows >= lanes or times != 1:
        return None
    return Obstacle(operator, f"has {rows:,} rows for {lanes} lanes", f"lanes={max(rows, 1)} or fewer")


def small_windows(operator: str, rows: int, lanes: int) -> Obstacle | None:
    """Returns the obstacle of an operator whose windows of so many rows are too small to be divided."""
    if lanes == 1 or rows // lanes >= MIN_WINDOW_ROWS:
        return None
    least = MIN_WINDOW_ROWS * lanes
    return Obstacle(
        operator,
        f"works on {rows:,} rows at a time, which would be {rows // lanes:,} in each of {lanes} lanes",
        f"give it {least:,} rows or more, or fewer lanes=",
        most_lanes=max(1, rows // MIN_WINDOW_ROWS),
    )


class KeptRows(Protocol):
    """The rows of a source that an operator after it keeps, where their numbers alone decide."""

    @property
    def num_rows(self) -> int:
        """How many they are."""

    def number(self, index: int) -> int:
        """Returns the number in the source of one of them."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane.

    Attributes:
        number: Its number, from 0.
        count: How many lanes there are.
        step_rows: Rows that each lane gives to a step; 0 where that is no fixed number.
        before: Rows that other sources deal earlier in each epoch.
        turns: How many epochs of a source make one epoch of the operators after it, and the rows that each epoch of the
            source deals: from the source to the end of the plan.
        kept: The rows of the source that are dealt: the others are dropped. None where all are dealt.
    """

    number: int
    count: int
    step_rows: int = 0
    before: int = 0
    turns: tuple[tuple[int, int], ...] = ()
    kept: KeptRows | None = None

    def after(self, rows: int) -> Lane:
        """Returns the lane for a source whose rows are dealt after so many others."""
        return replace(self, before=self.before + rows)

    def repeated(self, times: int, rows: int) -> Lane:
        """Returns the lane for a source that deals so many rows `times` in a row."""
        return replace(self, turns=((times, rows), *self.turns))

    def _dealt(self, epoch: int) -> int:
        """Returns how many rows were dealt before those of an epoch of its source, in all epochs so far."""
        dealt = self.before
        for times, rows in self.turns:
            epoch, turn = divmod(epoch, times)
            dealt += turn * rows
        return dealt

    def rows(self, num_rows: int, epoch: int = 0) -> tuple[int, int]:
        """Returns its part of the rows of a source in an epoch, as (first, before).

        Lanes have equally many rows, up to one. Of fewer rows than lanes each goes to the lane that follows the one before.

        Examples:
            >>> [Lane(number, 3).rows(8) for number in range(3)]
            [(0, 3), (3, 6), (6, 8)]
            >>> [Lane(number, 3, turns=((FOREVER, 8),)).rows(8, epoch=1) for number in range(3)]
            [(0, 3), (3, 5), (5, 8)]
            >>> [Lane(number, 3, turns=((FOREVER, 2),)).rows(2, epoch=1) for number in range(3)]
            [(1, 2), (2, 2), (0, 1)]
        """
        if self.kept is None:
            return self._share(num_rows, epoch)
        first, before = self._share(self.kept.num_rows, epoch)
        return (self.kept.number(first), self.kept.number(before - 1) + 1) if first < before else (0, 0)

    def _share(self, num_rows: int, epoch: int) -> tuple[int, int]:
        share, more = divmod(num_rows, self.count)
        begins = self._dealt(epoch) % self.count
        turn = (self.number - begins) % self.count
        if not share:
            return min(turn, num_rows), min(turn + 1, num_rows)
        ends = begins + more - self.count  # if positive, lanes before this number have one row more, too
        earlier = max(0, min(self.number, begins + more) - begins) + max(0, min(self.number, ends))
        start = self.number * share + earlier
        return start, start + share + (turn < more)

    def size(self, rows: int) -> int:
        """Returns its part of a buffer of so many rows, at least one row."""
        return max(1, rows // self.count)

    def seed(self, seed: int) -> int:
        """Returns its own seed in place of the plan's; a lane alone has the plan's."""
        return seed if self.count == 1 else int(philox((seed, LANE_SEEDS, self.number)).random_raw())


@dataclass(frozen=True, slots=True, kw_only=True)
class InLanes(Node):
    """An operator that answers otherwise than most where a plan is split: the base beside its other one.

    `split_by_rank` asks the first three of each operator before it, by `obstacle_of`, `in_lane` and `dealt_rows`. The
    other ones are asked of the operators that split a plan.
    """

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """See `obstacle_of`. An operator that is local under a condition checks that, and asks its inputs."""
        return default_obstacle(self, lanes, times)

    def in_lane(self, lane: Lane) -> Node:
        """See `in_lane`."""
        return _default_in_lane(self, lane)

    def dealt_rows(self) -> int:
        """See `dealt_rows`."""
        return _default_dealt_rows(self)

    @property
    def planned_inputs(self) -> tuple[Node, ...]:
        """The plans that run as its inputs."""
        return self.inputs

    def lanes_from_start(self, lanes: Sequence[int], step: int) -> Sequence[int]:
        """Returns those of its own lanes that, without a place in a state, run from an epoch's start up to a step.

        Raises:
            StateError: The places of such lanes do not follow from the number of steps.
        """
        return lanes

    @property
    def own_lanes(self) -> Sequence[int]:
        """The numbers of the lanes that it runs: a state has to tell their places."""
        return ()

    def at_end(self, plan: Node) -> Node:
        """Returns an optimised plan that it is part of, with what it does to the plan's last batches. May read footers."""
        return plan

    def let_go(self) -> None:
        """Ends what all runs of this bound plan share, such as workers on a cluster; the next run makes it anew.

        Called where a loader is closed, and once no dataset, loader or iterator has the plan. Any thread; waits for nothing.
        """

    @property
    def processes(self) -> int:
        """How many processes of this machine share the budgets that nobody set."""
        return 1


def obstacle_of(node: Node, lanes: int, times: Count) -> Obstacle | None:
    """Returns why an operator, or one before it, would mean something else in so many lanes; None where all is local.

    Called on bound nodes as written; may read footers.

    Args:
        node: The operator.
        lanes: How many lanes there are.
        times: How often its rows are repeated by operators after it.
    """
    asked = node.obstacle if isinstance(node, InLanes) else partial(default_obstacle, node)
    return asked(lanes, times)


def default_obstacle(node: Node, lanes: int, times: Count) -> Obstacle | None:
    """Returns the obstacle of most operators: the traits tell whether they are local."""
    traits = node.traits
    if not node.inputs:
        return Obstacle(
            node.name, "has rows that cannot be found by their numbers", "write them to files first"
        )
    if not (traits.one_to_one or traits.drops_rows or traits.local):
        return Obstacle(node.name, "counts or compares the rows of the whole stream")
    return worst(obstacle_of(child, lanes, times) for child in node.inputs)


def in_lane(node: Node, lane: Lane) -> Node:
    """Returns the plan up to an operator as one lane runs it. Called on optimised nodes without an obstacle; no I/O."""
    return node.in_lane(lane) if isinstance(node, InLanes) else _default_in_lane(node, lane)


def _default_in_lane(node: Node, lane: Lane) -> Node:
    changes: dict[str, Any] = {name: lane.size(getattr(node, name)) for name in node.traits.row_sizes}
    if (seed := node.arguments().get("seed")) is not None:
        changes["seed"] = lane.seed(seed)
    inputs, own = [], lane
    for child in node.inputs:
        inputs.append(in_lane(child, own))
        own = own.after(dealt_rows(child))
    return replace(node, **changes).on(*inputs)


def dealt_rows(node: Node) -> int:
    """Returns how many rows the sources of a plan deal to lanes in one epoch; 0 where that is not known."""
    return node.dealt_rows() if isinstance(node, InLanes) else _default_dealt_rows(node)


def _default_dealt_rows(node: Node) -> int:
    if node.inputs:
        return sum(map(dealt_rows, node.inputs))
    rows = node.count_rows(())
    return rows if isinstance(rows, int) else 0

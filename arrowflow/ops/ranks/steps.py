"""`Steps`: how much each lane delivers in an epoch, so that all ranks make equally many steps of equal size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from arrowflow.errors import DataError, PlanError, counted
from arrowflow.ops.columns.column_program import ColumnOperator
from arrowflow.ops.columns.filter import FilterBy
from arrowflow.ops.functions.map import Map
from arrowflow.ops.sources.files.read import Read
from arrowflow.plan.node import Node
from arrowflow.plan.walk import post_order

EqualSteps = Literal["drop"]


@dataclass(frozen=True, slots=True)
class Steps:
    """How many rows, or batches, each lane delivers.

    Attributes:
        size: Those of a lane in a whole step.
        drops: Whether a short last step is left out.
        most: The number, the same for all lanes; None where lanes deliver until the first of them ends.
        added: Rows that fill up the last step, where lanes repeat their last row; as a negative number, rows that are
            left out.
        filled_from: Rows of each lane before the step that is filled up; None where there is none.
        repeats_from: The same, if a lane has no row in that step, and repeats one of the step before; None if all have one.
    """

    size: int
    drops: bool
    most: int | None = None
    added: int = 0
    filled_from: int | None = None
    repeats_from: int | None = None

    def facts(self) -> tuple[str, ...]:
        """Returns what equal steps cost, for `explain`."""
        if self.added < 0:
            return (f"equal steps leave out {counted(-self.added, 'row')} of an epoch",)
        return (f"equal steps add {counted(self.added, 'repeated row')} to an epoch",) if self.added else ()


def uncounted(ways: Sequence[str], *, agrees: bool) -> PlanError:
    """Returns the error of lanes that may end at different steps, of which nothing tells all ranks.

    Args:
        ways: Ways to tell the number of rows before a run that this plan has.
        agrees: Whether this process sees itself where the lanes end, or agrees on it with the others.
    """
    if agrees:
        effect = "the lanes in which the plan runs may end at different steps"
        more = "; more than one process also needs coordinator="
    else:
        effect = "the processes could end at different steps and wait for each other for ever"
        more = ") together with coordinator= (a process group of torch.distributed, or an object with all_min(numbers)"
    return PlanError(
        "split_by_rank: how many rows reach its batches is only known when they have come, so that "
        f'{effect}; write one of these: how="whole" (each process runs the whole plan); '
        f'{"".join(f"{way}; " for way in ways)}equal_steps="drop" (the epoch ends with the first lane that ends{more})'
    )


def ways_to_count(plan: Node) -> tuple[str, ...]:
    """Returns the ways to tell before a run how many rows reach the batches after a plan, if only a run tells it now."""
    nodes = list(post_order(plan))
    unknown = [node for node in nodes if node.count_rows((1_000,) * len(node.inputs)) is None]
    if not unknown:
        return ()
    if all(isinstance(node, Map) and not node.keeps_rows for node in unknown):
        return ("map(…, keeps_rows=True), if the function keeps the number of rows",)
    last = unknown[-1]
    source, *rest = nodes[: nodes.index(last) + 1]
    local = (each.traits.one_to_one or each.traits.drops_rows or isinstance(each, FilterBy) for each in rest)
    if not isinstance(source, Read) or any(len(node.inputs) > 1 for node in nodes) or not all(local):
        return ()
    name = last.operators_merged()[-1] if isinstance(last, ColumnOperator) else last.name
    return (
        f".assert_cardinality(af.count_rows(dataset)) right after {name} (`dataset` is all up to there, counted once)",
    )


def no_step(why: str, *, is_whole: bool = False) -> DataError:
    """Returns the error of an epoch that has rows and no step, of a plan that runs in parts or whole."""
    last = "" if is_whole else ', or how="whole"'
    return DataError(
        f"an epoch has rows, but equal steps leave all of them out: {why}; use fewer processes, a smaller batch size, "
        f"{'or ' if is_whole else ''}batch(…, pad_remainder=True){last}"
    )

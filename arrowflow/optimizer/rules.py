"""The ordered list of rules, and how they are applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from arrowflow.errors import PlanError, closest
from arrowflow.optimizer.lengthen_chunks import lengthen_chunks
from arrowflow.optimizer.limit_reads import limit_reads
from arrowflow.optimizer.merge_columns import merge_columns
from arrowflow.optimizer.prune_columns import prune_columns
from arrowflow.optimizer.prune_row_groups import prune_row_groups
from arrowflow.optimizer.read_stored_decimals import read_stored_decimals
from arrowflow.optimizer.read_struct_fields import read_struct_fields
from arrowflow.optimizer.remove_noops import remove_noops
from arrowflow.optimizer.stack_before_shuffle import stack_before_shuffle
from arrowflow.plan.node import Node


class Rule(NamedTuple):
    """One rewriting.

    Attributes:
        apply: Returns the rewritten plan, or the very same one where it finds nothing to do.
        reason: Why it stands where it stands in `RULES`.
    """

    apply: Callable[[Node], Node]
    reason: str

    @property
    def name(self) -> str:
        """Its name in `Options.disabled_rules` and `explain`."""
        return self.apply.__name__


RULES = (
    Rule(remove_noops, "first, so that operators stand side by side that only a no-op kept apart"),
    Rule(limit_reads, "while take and skip still stand where they were written, after one-to-one operators"),
    Rule(
        merge_columns, "before all rules that look at columns, so that they see one program and not a chain"
    ),
    Rule(
        stack_before_shuffle,
        "before columns are pruned, since it changes which of them a shuffle has to carry",
    ),
    Rule(prune_columns, "once every operator is where it will run"),
    Rule(prune_row_groups, "when the filters right after a source are known"),
    Rule(read_struct_fields, "when columns that nothing needs are gone, which would read whole structs"),
    Rule(
        read_stored_decimals,
        "once nothing moves any more: what stands right after the source has to stay there",
    ),
    Rule(lengthen_chunks, "last: how wide rows are follows from the columns that are left"),
)


def optimise(plan: Node, disabled: tuple[str, ...]) -> tuple[Node, tuple[str, ...]]:
    """Returns the plan after all rules that are not disabled, and the names of those that changed it.

    Raises:
        PlanError: A disabled rule does not exist.
    """
    names = [rule.name for rule in RULES]
    for name in disabled:
        if name not in names:
            raise PlanError(f"with_options: there is no rule {name!r} to disable; {closest(name, names)}")
    applied = []
    for rule in RULES:
        if rule.name not in disabled:
            changed = rule.apply(plan)
            if changed is not plan:
                applied.append(rule.name)
                plan = changed
    return plan, tuple(applied)

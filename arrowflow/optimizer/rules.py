"""The ordered list of rules, and how they are applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rewriting.

    Attributes:
        name: Its name in `Options.disabled_rules` and `explain`.
        reason: Why it stands where it stands in `RULES`.
        apply: Returns the rewritten plan, or the very same one where it finds nothing to do.
    """

    name: str
    reason: str
    apply: Callable[[Node], Node]


RULES: tuple[Rule, ...] = (
    Rule(
        name="remove_noops",
        reason="first, so that operators stand side by side that only a no-op kept apart",
        apply=remove_noops,
    ),
    Rule(
        name="limit_reads",
        reason="while take and skip still stand where they were written, after one-to-one operators",
        apply=limit_reads,
    ),
    Rule(
        name="merge_columns",
        reason="before all rules that look at columns, so that they see one program and not a chain",
        apply=merge_columns,
    ),
    Rule(
        name="stack_before_shuffle",
        reason="before columns are pruned, since it changes which of them a shuffle has to carry",
        apply=stack_before_shuffle,
    ),
    Rule(
        name="prune_columns",
        reason="once every operator is where it will run",
        apply=prune_columns,
    ),
    Rule(
        name="prune_row_groups",
        reason="when the filters right after a source are known",
        apply=prune_row_groups,
    ),
    Rule(
        name="read_struct_fields",
        reason="when columns that nothing needs are gone, which would read whole structs",
        apply=read_struct_fields,
    ),
    Rule(
        name="read_stored_decimals",
        reason="once nothing moves any more: what stands right after the source has to stay there",
        apply=read_stored_decimals,
    ),
    Rule(
        name="lengthen_chunks",
        reason="last: how wide rows are follows from the columns that are left",
        apply=lengthen_chunks,
    ),
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

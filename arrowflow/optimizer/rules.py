"""The ordered list of rules, and how they are applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from arrowflow.errors import PlanError, closest
from arrowflow.plan.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rewriting.

    Attributes:
        name: What `Options.disabled_rules` and `explain` call it.
        reason: Why it stands where it stands in `RULES`.
        apply: Returns the rewritten plan, or the very same one where it finds nothing to do.
    """

    name: str
    reason: str
    apply: Callable[[Node], Node]


RULES: tuple[Rule, ...] = ()


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

"""Rules: bound plan in, equivalent bound plan out. One file each; `RULES` is their order, with the reasons.

What no rule may do: move anything across `cache`; a filter across `shuffle`, `take`, `skip` or `batch`; or anything
across a user function. A rule never changes a row, an order or a random value, so each can be switched off with
`Options(disabled_rules=…)`.
"""

from arrowflow.optimizer.rules import RULES, Rule, optimise

__all__ = ["RULES", "Rule", "optimise"]

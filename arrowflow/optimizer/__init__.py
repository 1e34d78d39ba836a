"""Rules: bound plan in, equivalent bound plan out. Each rule has one file; `RULES` is their order, with the reasons.

No rule may move anything across `cache` or across a user function. No rule may move a filter across `shuffle`, `take`,
`skip` or `batch`. A rule never changes a row, an order or a random value, so each can be switched off with
`Options(disabled_rules=…)`.
"""

from arrowflow.optimizer.rules import RULES, Rule, optimise

__all__ = ["RULES", "Rule", "optimise"]

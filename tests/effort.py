"""How often tests try what is random, or what races: as often as hypothesis' profile says."""

from __future__ import annotations

from hypothesis import settings

DEFAULT_EXAMPLES = 100
"""Examples of the profiles `dev` and `ci`. `quick` has a fifth of them, `thorough` twenty times as many."""


def scaled(count: int) -> int:
    """Returns `count` for the usual profiles, and as many more or less as another profile has examples."""
    examples = settings.default.max_examples if settings.default else DEFAULT_EXAMPLES
    return max(1, count * examples // DEFAULT_EXAMPLES)

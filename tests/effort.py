"""How often tests try what is random, or what races: as often as hypothesis' profile says."""

from __future__ import annotations

from hypothesis import settings

FULL_EXAMPLES = 100
"""The profile `usual` has a tenth of them, and `thorough` twenty times as many."""


def scaled(count: int) -> int:
    """Returns `count` for a profile of 100 examples, and as many more or less as the profile has examples."""
    examples = settings.default.max_examples if settings.default else FULL_EXAMPLES
    return max(1, count * examples // FULL_EXAMPLES)

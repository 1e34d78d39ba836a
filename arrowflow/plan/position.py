"""`Position`: the state from which a producer makes its next chunk, and how it is kept as JSON."""

from __future__ import annotations

from typing import Any

Position = tuple[Any, ...] | None
"""State from which the next chunk is made: nested tuples of JSON values, None for the start."""


def listed(position: Any) -> Any:
    """Returns a position as JSON has it.

    Example:
        >>> listed((0, (None, "a")))
        [0, [None, 'a']]
    """
    return [listed(part) for part in position] if isinstance(position, tuple) else position


def tupled(position: Any) -> Any:
    """Returns a position that was kept as JSON.

    Example:
        >>> tupled([0, [None, "a"]])
        (0, (None, 'a'))
    """
    return tuple(tupled(part) for part in position) if isinstance(position, list) else position

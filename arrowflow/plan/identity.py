"""What a node may say of itself in `Node.identity` beside plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Code:
    """A user's function or stream, known by its code and by what it refers to; where a cache has a key, by that.

    Attributes:
        value: The function, class or object.
    """

    value: Any


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that nothing tells from others like it; where a cache has a key, it is known by that.

    Attributes:
        what: What it is, as the subject of a sentence.
        reason: Why nothing tells, as the rest of the sentence.
        instead: What to do about it, other than to give a key.
    """

    what: str
    reason: str
    instead: str = ""

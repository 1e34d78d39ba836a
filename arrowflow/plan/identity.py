"""The values, beside plain ones, by which a node may describe itself in `Node.identity`."""

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
        what: Its description, as the subject of a sentence.
        reason: Why nothing tells, as the rest of the sentence.
        instead: A remedy, other than to give a key.
    """

    what: str
    reason: str
    instead: str = ""

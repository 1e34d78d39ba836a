"""The library's own form of an expression: a tree of columns, literals and calls.

`polars_tree` and `arrow_tree` read both engines' expressions into this tree. The tree decides nothing about meaning:
the engine that owns the expression decides, so lowering and pruning ask for the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Signature, signature
from typing import Final, TypeVar

import pyarrow as pa

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """The value of an input column."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant.

    Attributes:
        value: The constant as a Python object; a date or time is its stored integer, and None is null. `is_in` has
            a list of constants; if they are many, a sorted `array` of whole numbers, or `ManyTexts`.
        type: Its Arrow type, or None for a bare Python number in Polars, which takes its neighbour's type.
    """

    value: object
    type: pa.DataType | None


@dataclass(frozen=True, slots=True)
class Call:
    """A function of other nodes.

    Attributes:
        function: The name of the function: one name for both engines if they agree (`add`, `greater`), and for a function of
            one engine that has a rule; else `polars:` or `arrow:` and the engine's own name.
        args: The nodes that the function takes.
        options: All constant settings, as pairs of names and values. Only a rule may read them: see `apply`.
        source: The engine's own serialised form of this node, from which it can be rebuilt alone.
    """

    function: str
    args: tuple[Node, ...]
    options: tuple[tuple[str, object], ...] = ()
    source: str | bytes = field(default="", repr=False)


Node = Column | Literal | Call

MANY: Final = 1000
"""Constants of a list that is too long to look at its values one by one."""

COMPARISONS: Final = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
MIRRORED: Final = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
OPPOSITE: Final = {
    "equal": "not_equal",
    "not_equal": "equal",
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
}

BETWEEN: Final = {
    "Both": ("greater_equal", "less_equal"),
    "Left": ("greater_equal", "less"),
    "Right": ("greater", "less_equal"),
    "None": ("greater", "less"),
}


class Unsupported(Exception):
    """No rule provably knows the meaning of a call."""


def apply(rule: Callable[..., T], owner: object, call: Call) -> T:
    """Returns `rule(owner, call, *arguments, **options)`: a rule takes all parts of `call`, or nothing.

    A rule names its arguments by position and its options by keyword, so that its signature refuses all others. An
    option that an engine's next release adds is thus never ignored.

    Raises:
        Unsupported: The rule lacks a parameter for an argument or an option, or refuses the call itself.
    """
    try:
        bound = _signature(rule).bind(owner, call, *call.args, **dict(call.options))
    except TypeError:
        raise Unsupported from None
    return rule(*bound.args, **bound.kwargs)


@lru_cache
def _signature(rule: Callable[..., object]) -> Signature:
    return signature(rule)


def walk(node: Node) -> Iterator[Node]:
    """Yields `node` and all its descendants, parents first."""
    yield node
    if isinstance(node, Call):
        for arg in node.args:
            yield from walk(arg)


def column_names(node: Node) -> tuple[str, ...]:
    """Returns the names of the columns that `node` reads, sorted."""
    return tuple(sorted({part.name for part in walk(node) if isinstance(part, Column)}))

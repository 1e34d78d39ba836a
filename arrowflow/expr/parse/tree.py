"""The library's own form of an expression: a tree of columns, literals and calls.

Both engines' expressions are read into it (`polars_tree`, `arrow_tree`). It decides nothing about meaning: the
engine that owns the expression does, which is why lowering and pruning ask for it.
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
        value: It as a Python object, of a date or time the integer that is stored; None is null. A list of them for
            `is_in`.
        type: Its Arrow type, or None for a bare Python number in Polars, which takes its neighbour's type.
    """

    value: object
    type: pa.DataType | None


@dataclass(frozen=True, slots=True)
class Call:
    """A function of other nodes.

    Attributes:
        function: The function under one name for both engines where they agree (`add`, `greater`), else
            `polars:` or `arrow:` and the engine's own name.
        args: What it is applied to.
        options: All its constant settings, as pairs of names and values; only a rule may read them: see `apply`.
        source: The engine's own serialised form of this node, from which it can be rebuilt alone.
    """

    function: str
    args: tuple[Node, ...]
    options: tuple[tuple[str, object], ...] = ()
    source: str | bytes = field(default="", repr=False)


Node = Column | Literal | Call

COMPARISONS: Final = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
MIRRORED: Final = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}

BETWEEN: Final = {
    "Both": ("greater_equal", "less_equal"),
    "Left": ("greater_equal", "less"),
    "Right": ("greater", "less_equal"),
    "None": ("greater", "less"),
}


class Unsupported(Exception):
    """There is no rule that provably knows the meaning of a call."""


def apply(rule: Callable[..., T], owner: object, call: Call) -> T:
    """Returns `rule(owner, call, *arguments, **options)`: a rule takes all that `call` says, or nothing.

    A rule names its arguments by position and its options by keyword, so that its signature refuses the others. What
    an engine's next release adds to a function is thus never ignored.

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
    """Yields `node` and everything below it, parents first."""
    yield node
    if isinstance(node, Call):
        for arg in node.args:
            yield from walk(arg)


def column_names(node: Node) -> tuple[str, ...]:
    """Returns the names of the columns that `node` reads, sorted."""
    return tuple(sorted({part.name for part in walk(node) if isinstance(part, Column)}))

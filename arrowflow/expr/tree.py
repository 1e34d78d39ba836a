"""The library's own form of an expression: a tree of columns, literals and calls.

Both engines' expressions are read into it (`polars_tree`, `arrow_tree`). It decides nothing about meaning: the
engine that owns the expression does, which is why lowering and pruning ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Final

import pyarrow as pa

from arrowflow.records import dataclass


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
        options: Its constant settings: sorted pairs of names and values.
        source: The engine's own serialised form of this node, from which it can be rebuilt alone.
    """

    function: str
    args: tuple[Node, ...]
    options: tuple[tuple[str, object], ...] = ()
    source: str | bytes = field(default="", repr=False)

    def option(self, name: str) -> object:
        """Returns the setting called `name`, None when it is not there."""
        return dict(self.options).get(name)


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


def walk(node: Node) -> Iterator[Node]:
    """Yields `node` and everything below it, parents first."""
    yield node
    if isinstance(node, Call):
        for arg in node.args:
            yield from walk(arg)


def column_names(node: Node) -> tuple[str, ...]:
    """Returns the names of the columns that `node` reads, sorted."""
    return tuple(sorted({part.name for part in walk(node) if isinstance(part, Column)}))

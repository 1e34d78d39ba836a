"""`Change`: how a node differs from what it was when a state was taken, if the state can go on in spite of that.

A position tells where a run goes on, and the operators after a source or a mix often have to see some rows again from
there: the rest of a chunk, or a whole window. If these rows were others than before, rows would be lost or come twice.
So each operator says how many rows it asks for (`Node.rows_again`), and a change says which rows stay as they were.
"""

from __future__ import annotations

import dataclasses
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from arrowflow.plan.node import Node

_DIGEST: Final = re.compile(r"(?:polars|arrow):[0-9a-f]{32}")
"""An expression, as `Node.arguments` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that a state can go on in spite of.

    Attributes:
        arguments: The arguments that the node had when the state was taken.
        effect: The effect of the change, as the rest of a sentence on the node.
        repeats: Whether as many rows come again unchanged as operators ask for; else only the split at the position does.
    """

    arguments: Mapping[str, Any]
    effect: str
    repeats: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Changeable(Node):
    """An operator that may differ from what it was when a state was taken."""

    @abstractmethod
    def change_since(self, arguments: Mapping[str, Any]) -> Change | None:
        """Returns how it has changed since a state was taken that holds other `arguments`; None if no state can go on.

        Long arguments are digests there. So the arguments of the change are compared, digests with digests.
        """


def expressions_of(node: Node) -> dict[str, Any]:
    """Returns the expressions among the fields of an operator, by the digests that its arguments hold."""
    fields = [each.name for each in dataclasses.fields(node) if each.compare and each.name != "inputs"]
    found = _expressions([getattr(node, name) for name in fields])
    return {each.digest(): each for each in found}


def _expressions(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _expressions(each)
    elif callable(getattr(value, "digest", None)):
        yield value


def other_expressions(node: Node, theirs: Mapping[str, Any]) -> str:
    """Returns which expressions of an operator differ, as the rest of a sentence; nothing if others of its arguments do.

    Args:
        node: The operator.
        theirs: The arguments that it has in a state, which holds digests of expressions, and of long lists of these.
    """
    own, known = node.arguments(), expressions_of(node)
    changed = {key: own.get(key) for key in {**own, **theirs} if own.get(key) != theirs.get(key)}
    if not changed or not all(_DIGEST.search(str(value)) for value in changed.values()):
        return ""
    old = {key: str(theirs.get(key)) for key in changed}
    if any(without_digests(str(value)) != without_digests(old[key]) for key, value in changed.items()):
        long = all(text.startswith("digest ") for text in old.values())
        text = f" is {node.describe()} here, and has other expressions in the state, which holds a digest of them alone"
        return text if long else ""
    names = {
        pair[1]: pair[0] or known[pair[1]].name
        for value in changed.values()
        for pair in (value if isinstance(value, list) else ())
        if isinstance(pair, list)
    }
    listed = [
        f"{'an' if digest not in names else 'the'} expression"
        + (f" of the column {names[digest]!r}" if names.get(digest) else "")
        + f" is {expr!r} here"
        for digest, expr in known.items()
        if not any(digest in text for text in old.values())
    ]
    return (
        f" ({node.name}) has other expressions in the state: {', '.join(listed)}; a state holds the digest of an expression and "
        "not its text; write the expression as it was, or start the epoch anew"
    )


def without_digests(text: str) -> str:
    """Returns a text with dots in place of the digests of expressions."""
    return _DIGEST.sub("…", text)

"""`Change`: how a node differs from what it was when a state was taken, if the state can go on in spite of that.

A position tells where a run goes on, and the operators after a source or a mix often have to see some rows again from
there: the rest of a chunk, or a whole window. If these rows were others than before, rows would be lost or come twice.
So each operator says how many rows it asks for (`Node.rows_again`), and a change says which rows stay as they were.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arrowflow.plan.node import Node


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

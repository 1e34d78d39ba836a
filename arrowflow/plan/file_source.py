"""`FileSource`: a source whose rows follow from files; states, caches and runs ask it whether these are the same.

Also which nodes of a plan keep what they make for later epochs, see `arrowflow.kernels.kept`, and which rows sources need
not read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arrowflow.plan.node import Node
from arrowflow.plan.walk import fold, reading, rebuild


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeps(Node):
    """A node that may keep what it makes for later epochs."""

    def keeping(self, asked_bytes: int | None, *, copies: bool, only_dear: bool) -> Node:
        """Returns itself, with a place for what later epochs take from memory; itself where it has no use for one.

        Args:
            asked_bytes: The most bytes to keep, as a user says.
            copies: Whether consumers may write the memory of the plan's sources.
            only_dear: Whether an operator after it keeps what it makes of this, too.
        """
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource(Keeps):
    """A source that found files when it was bound. The defaults are those of a source that opens none of them."""

    @property
    @abstractmethod
    def is_current(self) -> bool:
        """Whether the files that it was bound to are still there. Asked when a run begins, and for each question."""

    def changed_file(self) -> str | None:
        """Returns a file on a local disk that is not what it was when the node was bound. Asked by caches."""
        return None

    def local_files(self) -> Sequence[str]:
        """Returns the paths of the files that it reads from disks of this machine. Asked by workers of a cluster."""
        return ()

    def contents(self) -> Sequence[Any]:
        """Returns JSON values that tell its files from others of the same names and sizes; none where nothing does.

        They are the same for a copy of the files. Called for the first state of a run; takes about 20 µs a file.
        """
        return ()

    def changed_contents(self, then: Sequence[Any]) -> str | None:
        """Returns in words how the files differ from those with the `contents` of a state; None if they do not."""
        return None

    def files_since(self, then: Sequence[Any]) -> str | None:
        """Returns in words which files were added, removed or replaced since a state with these `contents`; None if nothing tells."""
        return None

    def with_row_range(self, start: int, stop: int | None) -> Node | None:
        """Returns itself with only these rows of its output, or None if it cannot leave others out cheaply."""
        return None


def with_kept_chunks(plan: Node, asked_bytes: int | None) -> Node:
    """Returns a bound plan whose nodes keep what they make, if they can, and if each epoch asks them for it.

    A plan hands out memory of its sources if its batches own their memory only as long as its sources own theirs. Such a
    plan keeps copies.
    """
    owned = fold(plan, lambda node, inputs: node.owns_buffers(inputs))
    shared = fold(plan, lambda node, inputs: not isinstance(node, FileSource) and node.owns_buffers(inputs))
    return _marked(plan, asked_bytes, copies=owned and not shared)


def _marked(node: Node, asked_bytes: int | None, *, copies: bool, only_dear: bool = False) -> Node:
    if node.traits.once:
        return node
    kept: Node = node
    if isinstance(node, Keeps):
        kept = node.keeping(asked_bytes, copies=copies, only_dear=only_dear)
        only_dear |= kept is not node
    return reading(
        kept, [_marked(child, asked_bytes, copies=copies, only_dear=only_dear) for child in node.inputs]
    )


def push_row_ranges(plan: Node) -> Node:
    """Returns a bound plan whose sources do not read what `take` and `skip` leave out.

    Rows move into a source only where one-to-one operators lie between.
    """

    def push(node: Node) -> Node:
        return node if node.row_range is None else _ranged(node.inputs[0], *node.row_range) or node

    return rebuild(plan, push)


def _ranged(node: Node, start: int, stop: int | None) -> Node | None:
    if not node.inputs:
        return node.with_row_range(start, stop) if isinstance(node, FileSource) else None
    if not node.traits.one_to_one or node.traits.opaque:
        return None
    child = _ranged(node.inputs[0], start, stop)
    return None if child is None else node.on(child)

"""`Context`: the services that the executor gives to a kernel, and the streams that a boundary kernel opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from arrowflow.bad_rows import LeftOut
from arrowflow.kernels.instances import Lender
from arrowflow.kernels.items import Claim
from arrowflow.plan.node import Node
from arrowflow.plan.position import Position
from arrowflow.storage import Services


class SubPlan:
    """A plan that `Context.plan` made of a node, and that `Context.open` takes. Kernels only hand it over."""

    __slots__ = ()


class StreamHandle(Protocol):
    """An opened sub-plan, as a boundary kernel sees it: something to name in `next_input`."""

    @property
    def ready(self) -> bool:
        """Whether it has an item, or has ended."""

    @property
    def ready_without_error(self) -> bool:
        """Whether it has an item, or has ended without an error. Reading it early cannot raise an error before its turn."""


class Spans(Protocol):
    """Records spans that another process recorded."""

    def merge(self, spans: Sequence[Any], place: str, ahead_seconds: float) -> None:
        """Adds spans of another process, whose clock is ahead by so many seconds, on tracks that name the place."""


class Elsewhere(Protocol):
    """The work of other processes for a run. Any thread."""

    def add(self, worker: Any) -> None:
        """Adds what a worker did since it was asked last: a `WorkerStatistics` of `physical.tuning`."""

    def leave_out(self, operator: str, place: Any, found: LeftOut) -> None:
        """Counts bad rows that an operator left out at a place. Rows that come again, computed anew, count once."""

    def move(self, moves: Sequence[str]) -> None:
        """Takes the reasons for which workers were added or given up so far."""


class Context(Services, Lender, Protocol):
    """The executor gives this to a kernel that it makes. Its `Services` are for `read` and `apply`."""

    @property
    def epoch(self) -> int:
        """The epoch of the stream that the kernel belongs to."""

    @property
    def keeps(self) -> bool:
        """Whether what kernels make may be kept for later epochs, and be taken from earlier ones."""

    def plan(self, node: Node, first_place: int) -> SubPlan:
        """Makes a plan that was only known now ready to be opened. Does I/O: from `apply` or `read`.

        Its operators' places, which are part of the keys of everything random, are counted from `first_place`.
        """

    def open(self, child: int | SubPlan, epoch: int, position: Position) -> StreamHandle:
        """Starts the sub-plan of input number `child`, or one that `plan` made, in the same executor and ledger.

        Under the executor's lock; no I/O.
        """

    def keep(self, buffers: Mapping[int, int]) -> Claim:
        """Counts memory that outlives its items, like that of a cache, as long as the ticket is held.

        Takes no time for each buffer. The items stand on a `BorrowedTicket` each.

        Args:
            buffers: The bytes of each buffer, by address. Must not change any more.
        """

    @property
    def run_storage(self) -> dict[Any, Any]:
        """Things that kernels keep until the run ends, by owner: tickets that outlive their stream, say. Any thread."""

    def close(self, stream: StreamHandle) -> None:
        """Stops a stream and drops what it holds. Under the executor's lock."""

    @property
    def elsewhere(self) -> Elsewhere:
        """Takes figures of what other processes do for the kernel."""

    @property
    def spans(self) -> Spans | None:
        """Takes spans that other processes recorded; None where nobody wants to see them."""

"""`Operator`: a node that says which kernels run it. A `KernelSpec` describes a kernel to the planner."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import pyarrow as pa

from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Origin
from arrowflow.kernels.kept import Kept
from arrowflow.kernels.kinds import Kernel
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import Columns, Node
from arrowflow.plan.shape import Shape

Kind = Literal["source", "reader", "stateless", "serial", "boundary", "buffer"]

Cost = Literal["computes", "waits", "unknown"]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """How the planner learns of a kernel without making one.

    Attributes:
        kind: The kind of kernel; `buffer` has none and only sets how far the stage before it may run ahead.
        make: Makes the kernel of one stream.
        operator: Name of the operator, for errors and statistics; empty for the one whose kernel it is.
        phase: Name of its calls in a timeline ("open", "read", "decode"); empty for the operator's name.
        engine: Where its work runs, for `explain`: "arrow", "numpy", "polars", "python" or mixtures.
        max_calls: Calls at the same time that the user asked for, or None for the CPU budget.
        cost: Cores that its calls take: `computes` one core each, `waits` hardly any (I/O). `unknown`, as with user
            functions, is found out while the run goes on.
        connections: The most connections that the client opens by which its calls wait, or None; sources share them.
        buffer_items: How many chunks its stage (for `buffer`: the stage before) may hold ready, or None.
        pins_order: Whether the inputs of a serial kernel or of a boundary run in order even where `deterministic=False`.
        floor_bytes: The least bytes that it needs to make progress, as far as the plan tells.
        alike: Whether a boundary's inputs are one plan on parts of the rows, so that they count as one in measurements.
        where: Returns the file of what has this origin, its number there, and what the number counts, for errors; None
            where that is not known.
        random: Whether what it yields is drawn from a seed, so that a cache after it freezes one draw.
        splits: Whether what it yields are splits of its own (windows, batches), which lie in no one file.
        position: The shape of its position, beside the kernel's type for it; None where positions are its input's.
        has_position: Whether a serial kernel or a boundary has a say in positions, so that a state fits only with it.
        runs_last: Operators that have a say in positions though this chain does not run them: those that the inputs of a
            boundary end in, and that the boundary itself runs; of a source those that another machine runs.
        sees_borders: Whether the borders between the chunks that it gets, and their splits, decide anything.
        fixed: Makes the kernel to take instead where the consumer or a kernel after it sees borders; None where borders
            of its chunks do not depend on timing anyway.
        facts: A line for `explain`, or a function that returns several; called for nothing else.
        holds_lock: Whether its calls hold the interpreter lock nearly all of their time. Another thread would then make
            calls in place of this thread, not beside it.
        process: Whether its calls, of a stateless kernel that computes, run in worker processes. `make` is then pickled
            and called there, one call at a time. The context there has `epoch` and `run_storage` alone.
        fuses: Whether a stateless kernel after this one may run in the same call.
        keeps: Where a reader or a stateless kernel keeps what it makes for later epochs, if it does. Only kernels that
            repeat are then in the call after a reader.
        repeats: Whether a stateless kernel makes the same of the same chunk in every epoch, and calls no user's function.
        title: Its name in `explain`, statistics and timelines; empty for the operator's name. The planner sets it.
    """

    kind: Kind
    make: Callable[[Context], Kernel] | None = None
    _: KW_ONLY
    operator: str = ""
    phase: str = ""
    engine: str = "python"
    max_calls: int | None = None
    cost: Cost = "computes"
    connections: int | None = None
    buffer_items: int | None = None
    pins_order: bool = False
    floor_bytes: int = 0
    alike: bool = False
    where: Callable[[Origin], tuple[str, int, str]] | None = None
    random: bool = False
    splits: bool = False
    position: Shape | None = None
    has_position: bool = True
    runs_last: tuple[str, ...] = ()
    sees_borders: bool = False
    fixed: Callable[[Context], Kernel] | None = None
    facts: str | Callable[[], tuple[str, ...]] = tuple
    holds_lock: bool = False
    process: bool = False
    fuses: bool = True
    keeps: Kept | None = None
    repeats: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(Node):
    """A node that says which kernels run it: the base of everything in `arrowflow.ops`."""

    @classmethod
    def of(cls, *arguments: Any, **named: Any) -> Any:
        """Returns the node, with arguments as users write them. Called by the method of `Dataset`, if it checks any.

        Raises:
            PlanError: An argument is not valid, or two contradict each other.
        """
        raise NotImplementedError

    @property
    def title(self) -> str:
        """A name that tells this operator from others of its kind, such as `map(decode)`; empty if there is none."""
        return ""

    @abstractmethod
    def lower(self, options: ResolvedOptions) -> KernelSpec | tuple[KernelSpec, ...]:
        """Returns its kernel, or several from its input to its output. Called by the planner, on bound nodes only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOperator(Operator):
    """An operator on whole rows of one input: it reads no column, changes none, and copies none."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        """Returns its input's schema."""
        return inputs[0]

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns the wanted columns: it reads none itself."""
        return (wanted,)

"""`Node`: one operator of a plan, as written and as bound.

A plan is a tree of nodes; a node holds its inputs. Two decisions matter:

* **One tree, two stages.** As written, a node knows only its arguments. `bind` returns a copy that also knows
  its `schema`, its seed and, for a source, its files. Rules and the planner see bound nodes only, so there is
  no second class per operator.
* **A node answers, nobody asks what it is.** Which columns it reads, how many rows it yields, what may pass
  through it: all are methods; `arrowflow.kernels.operator.Operator` adds which kernels run it. No rule and no planner
  has a branch per operator. Questions that few operators answer are those of a base beside it: `FileSource`,
  `Changeable`, `RowAccess` and `InLanes`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.options import ResolvedOptions
from arrowflow.plan.traits import Borders, SharedByEpochs, Traits

Count = int | float | None
"""Rows or batches of an epoch: a whole number, `math.inf` where they never end, None where only a run tells."""

Columns = frozenset[str] | None
"""Names of columns, or None for all of them."""

_NOT_IDENTITY = frozenset(("inputs", "num_parallel_calls", "policy"))
"""Fields that decide nothing of what a node makes of its inputs, or are among its arguments where they do."""

_CALLED: Final = {
    ("batch", "size"): "batch_size",
    ("fill_null", "values"): "value",
    ("pack_sequences", "column"): "columns",
    ("rejection_resample", "initial"): "initial_dist",
    ("rejection_resample", "target"): "target_dist",
    ("sample", "count"): "n",
    ("shuffle", "size"): "buffer_size",
}
"""Names in methods of what `Node.arguments` calls otherwise. States hold the latter, also those of operators that a plan lacks."""


@dataclass(frozen=True, slots=True)
class Code:
    """In `Node.identity`, a user's function or stream: known by its code and by what it refers to, or by a cache's key.

    Attributes:
        value: The function, class or object.
    """

    value: Any


@dataclass(frozen=True, slots=True)
class Unknown:
    """In `Node.identity`, something that nothing tells from others like it but a cache's key.

    Attributes:
        what: Its description, as the subject of a sentence.
        reason: Why nothing tells, as the rest of the sentence.
        instead: A remedy, other than to give a key.
    """

    what: str
    reason: str
    instead: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindContext:
    """The facts that `Node.bind` may look at.

    Attributes:
        options: The options of the whole pipeline.
        place: Number of the operator in the plan as written, counted from the sources. Part of the key of
            everything random, so that no rule changes a value.
        services: How reads wait, and are made beside each other: see `arrowflow.storage.Services`.
    """

    options: ResolvedOptions
    place: int
    services: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(ABC):
    """One operator. Subclasses are frozen dataclasses that live in `arrowflow.ops`, one file each.

    The methods stand in groups, by who asks. A new operator has to think of the first group; all others have defaults.

    Attributes:
        inputs: The operators that it reads from.
        bound: Whether `bind` made this copy.
        schema: Schema of what it yields; None while not bound, and where only the data can tell (a `map`
            without `schema=` and what comes after it).
        foreseen: Its columns where their names are known before it is bound, see `arrowflow.plan.foresight`.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits] = Traits()

    inputs: tuple[Node, ...] = ()
    bound: bool = field(default=False, compare=False)
    schema: pa.Schema | None = field(default=None, compare=False)
    foreseen: pa.Schema | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for child in self.inputs if self.traits.needs_rows else ():
            if (cut := child.batched_by) is not None:
                raise PlanError(_needs_rows(self, cut))

    # ---- Every operator answers these. The planner asks for its kernels besides, see `Operator.lower`.

    @abstractmethod
    def arguments(self) -> Mapping[str, Any]:
        """Returns what decides its rows and their order, as JSON values; a state is compared by them."""

    @abstractmethod
    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        """Returns the schema of what it yields, given those of its inputs; None if only a run tells.

        Called while a plan is bound and optimised. Also called when a user writes the plan, if the names of columns are
        known there: then `is_untyped` holds, and names alone are checked. So there is no I/O, and no call of Polars,
        whose threads a later fork would lack.

        Raises:
            PlanError: A column is unknown, or has a type that does not fit.
            UntypedError: Without types it cannot tell its columns.
        """

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns, per input, the columns it has to read so that the `wanted` ones of its output are right.

        There may be names that the input lacks, such as those of columns that it adds.
        """
        return (None,) * len(self.inputs)

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns the rows of one epoch, given those of its inputs; never a guess."""
        if self.traits.one_to_one or self.traits.keeps_number:
            return inputs[0]
        return 0 if inputs and inputs[0] == 0 else None

    def shared_by_epochs(self, share: SharedByEpochs) -> SharedByEpochs:
        """Returns the part of its rows that all epochs have in common, given the least that its inputs have."""
        traits = self.traits
        if share is SharedByEpochs.NOTHING or self.arguments().get("seed") is not None:
            return SharedByEpochs.NOTHING
        kept = traits.one_to_one or traits.drops_rows or traits.counts_alone or share is SharedByEpochs.ORDER
        return share if kept else SharedByEpochs.NOTHING

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """Returns whether nobody but its batches holds the memory that it yields, so that it may be written."""
        traits = self.traits
        return traits.new_memory or (not traits.opaque and bool(inputs) and all(inputs))

    # ---- Binding builds plans with these; operators with a seed, a place or files have a `bind` of their own.

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Returns a bound copy on top of bound inputs. Called once per plan, from the thread that asks.

        Raises:
            PlanError: The operator does not fit its inputs, such as an unknown column.
        """
        return self.on(*inputs)

    def on(self, *inputs: Node) -> Self:
        """Returns a bound copy of itself on other bound inputs; how rules rebuild a plan."""
        schemas = [child.schema for child in inputs]
        known = [schema for schema in schemas if schema is not None]
        schema = self.output_schema(known) if len(known) == len(schemas) else None
        return dataclasses.replace(self, inputs=inputs, bound=True, schema=schema)

    @property
    def batched(self) -> bool:
        """Whether its output comes in batches, so that single rows are not addressable."""
        return self.batched_by is not None

    @property
    def batched_by(self) -> Node | None:
        """The operator that made the batches of its output, as the user called it; None if there are no batches."""
        if self.traits.borders is not Borders.KEEP:
            return self if self.traits.borders is Borders.CUT else None
        return next(filter(None, (child.batched_by for child in self.inputs)), None)

    def count_batches(self, rows: Sequence[Count], batches: Sequence[Count]) -> Count:
        """Returns the batches of one epoch where the output is batched, else None."""
        kept = self.traits.one_to_one or (self.traits.keeps_number and self.traits.borders is Borders.KEEP)
        return batches[0] if kept and batches else None

    @property
    def in_memory(self) -> bool:
        """Whether all its rows come from memory, so that binding reads nothing and takes no time. Asked by `repr`."""
        return bool(self.inputs) and all(child.in_memory for child in self.inputs)

    # ---- A state asks these: whether it can be taken, and whether it can go on where something has changed.

    def functions(self) -> Mapping[str, str]:
        """Returns a digest of the code of each user function; a state from other code warns."""
        return {}

    def rows_again(self, rows: int) -> int | None:
        """Returns how many rows it has to see again, unchanged, from its input's position on, to go on exactly.

        None if that cannot be told. Of n rows the first stands for the split that lies at the position, whole, and
        the others are the n - 1 rows after this split.

        Args:
            rows: As many rows of its own output are asked for; 0 if its chunks are never cut after it.
        """
        traits = self.traits
        if traits.one_to_one or self.row_range is not None:
            return rows
        kept = traits.drops_rows or traits.counts_alone or traits.in_turn
        return rows if kept and rows <= 1 else None

    def asked_for(self, again: int | None, rows: int | None, options: ResolvedOptions) -> Node:
        """Returns itself, bound, with what it has to know of the operators after it. See `kernels.pieces`.

        Args:
            again: How many of its rows they ask for again; None if that cannot be told.
            rows: How many of its rows they want at a time; None for any number.
            options: The options of the whole pipeline.
        """
        return self

    # ---- Functions see borders: binding asks these, from the end of the plan on, and a state is compared by the result.

    def rows_wanted(self, rows: int | None) -> int | None:
        """Returns how many rows of its inputs are wanted at a time where so many of its own are; None for any number."""
        traits = self.traits
        kept = traits.one_to_one or traits.drops_rows or traits.counts_alone or traits.in_turn
        return rows if kept or self.row_range is not None else None

    def borders(self) -> Mapping[str, Any]:
        """Returns, as JSON values, what decides borders that it sees or counts; nothing where borders mean nothing to it.

        Called on bound nodes: a state is compared by these values and by the arguments.
        """
        return {}

    # ---- `explain` and messages ask these.

    def call(self) -> str:
        """Returns the call that made it, in short: with its number of rows, or with dots for other arguments."""
        rows = _rows_named(self)
        return f"{self.name}({'…' if rows is None else rows})"

    def describe(self) -> str:
        """Returns the operator as one line for `explain` and `repr`."""
        return called(self.name, {key: value for key, value in self.arguments().items() if value is not None})

    def copies(self) -> tuple[str, ...]:
        """Returns what it copies beyond what its job is, one text each, for `explain(copies=True)`."""
        return ()

    # ---- Rules ask these. The defaults change nothing.

    @property
    def noop(self) -> bool:
        """Whether leaving it out changes nothing that a batch shows."""
        return False

    @property
    def row_range(self) -> tuple[int, int | None] | None:
        """The rows of its input that it passes on, as (first, before), if that is all it does."""
        return None

    def narrow(self, wanted: frozenset[str]) -> Node:
        """Returns itself with no other columns than the wanted ones, in the same order, where it can."""
        return self

    def carrying(self, columns: Sequence[str]) -> Node:
        """Returns itself, bound, for an input that has these columns besides, which then are in its output, too."""
        return self

    # ---- Caches ask these: which plan filled an entry, and whether it would yield the same again.

    def identity(self) -> dict[str, Any]:
        """Returns what, besides its inputs, decides its rows, their order, borders and positions.

        A cache on disk is known by it. Values may be of any kind: what fields hold, `Code`, or `Unknown`. An operator
        that decides nothing returns nothing, and a plan with it is the same as one without.
        """
        fields = [each.name for each in dataclasses.fields(self) if each.compare]
        values = {name: getattr(self, name) for name in fields if name not in _NOT_IDENTITY}
        found = {name: Code(value) if callable(value) else value for name, value in values.items()}
        if values.get("seed") is not None:  # random values follow from both
            found["place"] = getattr(self, "place", None)
        told = {key: value for key, value in self.arguments().items() if not isinstance(found.get(key), Code)}
        return {**found, "arguments": told}


def called(operator: str, arguments: Mapping[str, Any]) -> str:
    """Returns an operator with arguments, as a state holds them, by the names that its method has for them.

    Examples:
        >>> called("batch", {"size": 4, "drop_remainder": False})
        'batch(batch_size=4, drop_remainder=False)'
    """
    named = (f"{argument_name(operator, key)}={value!r}" for key, value in arguments.items())
    return f"{operator}({', '.join(named)})"


def argument_name(operator: str, key: str) -> str:
    """Returns the name that a method has for an argument of `Node.arguments`."""
    return _CALLED.get((operator, key), key)


def _rows_named(node: Node) -> int | None:
    """Returns the number of rows in the call that made a node; a method that pads batches of its own has theirs."""
    if node.traits.borders is Borders.KEEP and node.batched_by is node:
        return _rows_named(node.inputs[0])
    arguments = node.arguments()
    rows: int | None = arguments.get("count", arguments.get("size"))
    return rows


def _needs_rows(node: Node, cut: Node) -> str:
    before, after = cut.call(), node.call()
    text = f"{node.name}: after `{cut.name}` the rows are no longer addressable"
    if len(node.inputs) > 1:
        return f"{text}; leave .{before} out of its inputs, and call .{before} on its result"
    text += f", since .{before}.{after} could mean batches or rows; write .{after}.{before}"
    count, size = _rows_named(node), _rows_named(cut)
    if node.row_range is None or cut not in node.inputs or not count or not size:
        return text
    return f"{text} for rows, .{node.name}({count * size}).{before} for batches"

"""`Node`: one operator of a plan, as written and as bound.

A plan is a tree of nodes; a node holds its inputs. Two decisions matter:

* **One tree, two stages.** As written, a node knows only its arguments. `bind` returns a copy that also knows
  its `schema`, its seed and, for a source, its files. Rules and the planner see bound nodes only, so there is
  no second class per operator.
* **A node answers, nobody asks what it is.** Which columns it reads, how many rows it yields, what may pass
  through it: all are methods; `arrowflow.kernels.operator.Operator` adds which kernels run it. No rule and no planner
  has a branch per operator.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.options import Options, ResolvedOptions
from arrowflow.plan.change import Change
from arrowflow.plan.identity import Code
from arrowflow.plan.lane import Lane, Obstacle, worst
from arrowflow.plan.position import Position
from arrowflow.plan.traits import Borders, Resume, SharedByEpochs, Traits

Count = int | float | None
"""Rows or batches of an epoch: a whole number, `math.inf` where they never end, None where only a run tells."""

Names = tuple[str, ...]
"""Names of all columns, in order."""

Columns = frozenset[str] | None
"""Names of columns, or None for all of them."""

_NOT_IDENTITY = frozenset(("inputs", "num_parallel_calls", "policy"))
"""Fields that decide nothing of what a node makes of its inputs, or are among its arguments where they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOrder:
    """How a `shuffle` after it wants its source ordered: a pure function of (seed, epoch).

    Attributes:
        seed: The shuffle's seed.
        reshuffle: Whether each epoch has an order of its own.
        window: Rows that the shuffle permutes together. A source that heeds it says so in a field of its own.
    """

    seed: int
    reshuffle: bool
    window: int = field(default=0, compare=False)


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
        foreseen: Names of its columns where they are known before it is bound, see `arrowflow.plan.foresight`.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits] = Traits()

    inputs: tuple[Node, ...] = ()
    bound: bool = field(default=False, compare=False)
    schema: pa.Schema | None = field(default=None, compare=False)
    foreseen: Names | None = field(default=None, init=False, compare=False, repr=False)

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
        """Returns the schema of what it yields, given those of its inputs; raises `PlanError` where they clash."""

    @property
    def stored_schema(self) -> pa.Schema | None:
        """The schema that the data of a source have, with metadata that writers keep; None for other operators."""
        return None

    def foresee(self, names: Sequence[Names]) -> Names | None:
        """Returns the names of its columns, given those of its inputs; None if only binding tells.

        Called when a user writes the plan: no I/O, and no call of Polars, whose threads a later fork would lack.

        Raises:
            PlanError: A column is unknown.
        """
        return None

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns, per input, the columns it has to read so that the `wanted` ones of its output are right."""
        return (None,) * len(self.inputs)

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns the rows of one epoch, given those of its inputs; never a guess."""
        if self.traits.one_to_one:
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
        return (self.traits.one_to_one or self.traits.drops_rows) and not self.traits.opaque and inputs[0]

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
        return batches[0] if self.traits.one_to_one and batches else None

    def sets(self) -> Options | None:
        """Returns the options that it sets for the whole pipeline, or None. Called before binding."""
        return None

    @property
    def in_memory(self) -> bool:
        """Whether all its rows come from memory, so that binding reads nothing and takes no time. Asked by `repr`."""
        return bool(self.inputs) and all(child.in_memory for child in self.inputs)

    @property
    def is_current(self) -> bool:
        """Whether what it was bound to is still there. Asked when a run begins, and for each question."""
        return True

    # ---- A state asks these: whether it can be taken, and whether it can go on where something has changed.

    @property
    def resume(self) -> Resume:
        """How the operator goes on from a position."""
        return self.traits.resume

    def functions(self) -> Mapping[str, str]:
        """Returns a digest of the code of each user function; a state from other code warns."""
        return {}

    def change_since(self, arguments: Mapping[str, Any]) -> Change | None:
        """Returns how it has changed since a state was taken that holds other `arguments`; None if no state can go on.

        Long arguments are digests there. So the arguments of the change are compared, digests with digests.
        """
        return None

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

    def asked_again(self, rows: int) -> Node:
        """Returns itself as it is bound below operators that ask for so many of its rows again."""
        return self

    # ---- Functions see borders: binding asks these, from the end of the plan on, and a state is compared by the result.

    def rows_wanted(self, rows: int | None) -> int | None:
        """Returns how many rows of its inputs are wanted at a time where so many of its own are; None for any number."""
        traits = self.traits
        kept = traits.one_to_one or traits.drops_rows or traits.counts_alone or traits.in_turn
        return rows if kept or self.row_range is not None else None

    def cut_for(self, rows: int | None, options: ResolvedOptions) -> Node:
        """Returns itself, bound, with what it has to know to cut its input for a function. See `kernels.pieces`."""
        return self

    def borders(self) -> Mapping[str, Any]:
        """Returns, as JSON values, what decides borders that it sees or counts; nothing where borders mean nothing to it.

        Called on bound nodes: a state is compared by these values and by the arguments.
        """
        return {}

    # ---- `explain` and messages ask these.

    def call(self) -> str:
        """Returns the call that made it, in short: with its number of rows, or with dots for other arguments."""
        return f"{self.name}({'…' if self.rows_named is None else self.rows_named})"

    @property
    def rows_named(self) -> int | None:
        """The number of rows in the call that made it."""
        arguments = self.arguments()
        rows: int | None = arguments.get("count", arguments.get("size"))
        return rows

    def describe(self) -> str:
        """Returns the operator as one line for `explain` and `repr`."""
        shown = ", ".join(f"{key}={value!r}" for key, value in self.arguments().items() if value is not None)
        return f"{self.name}({shown})"

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

    def with_row_range(self, start: int, stop: int | None) -> Node | None:
        """Returns itself with only these rows of its output, or None if it cannot leave others out cheaply."""
        return None

    def narrow(self, wanted: frozenset[str]) -> Node:
        """Returns itself with no other columns than the wanted ones, in the same order, where it can."""
        return self

    def with_predicates(self, predicates: tuple[Any, ...]) -> Node | None:
        """Returns itself without splits that hold no row for which all predicates are true; None if it has none."""
        return None

    def with_stored(self, columns: frozenset[str]) -> Node | None:
        """Returns itself with leave to yield these decimals as the integers they are stored as, or None."""
        return None

    def with_struct_fields(self, fields: Mapping[str, frozenset[str]]) -> Node | None:
        """Returns itself reading, of these structs, only these fields, or None."""
        return None

    def with_provenance(self, names: tuple[str, str, str]) -> Node | None:
        """Returns itself with columns for the file, the row group and the row of each row, or None: a source answers."""
        return None

    def carrying(self, columns: Sequence[str]) -> Node:
        """Returns itself, bound, for an input that has these columns besides, which then are in its output, too."""
        return self

    # ---- A `shuffle` or `skip` after the operator asks these, for a cheaper way to its rows.

    def with_source_order(self, order: SourceOrder) -> Node:
        """Returns itself with the source before it ordered by `order`, where nothing in between forbids it."""
        if (
            (self.traits.one_to_one or self.traits.drops_rows)
            and not self.traits.opaque
            and len(self.inputs) == 1
        ):
            return dataclasses.replace(self, inputs=(self.inputs[0].with_source_order(order),))
        return self

    def random_access(self) -> Node | None:
        """Returns itself as a source that a global `shuffle` gathers rows from; None if it has none to find by number.

        Its items are then `ops.order.random_access.Rows` instead of chunks, unless its rows stay in memory anyway.

        Raises:
            PlanError: It cannot, and there is more to say about it than that.
        """
        return None

    @property
    def picks_rows(self) -> bool:
        """Whether the numbers of its input's rows alone decide which rows it passes on."""
        return self.row_range is not None

    def picking_from(self, source: Node) -> Node:
        """Returns itself, if it picks rows, on a source with random access, whose rows it leaves where they lie."""
        return self.on(source)

    def position_behind(self, rows: int, epoch: int | None = None) -> tuple[Any, int] | None:
        """Returns a position in an epoch that has at most so many rows in front of it, and how many it has.

        None where that cannot be told without running. A `skip` right after it begins there in every epoch, and a lane
        in one: `epoch` is None if the position has to hold for all.
        """
        if self.traits.one_to_one and not self.traits.opaque and len(self.inputs) == 1:
            return self.inputs[0].position_behind(rows, epoch)
        return None

    def position_at(self, step: int, epoch: int) -> Position:
        """Returns the position of a batch of an epoch; None where that cannot be told without running."""
        if self.traits.one_to_one and not self.traits.opaque and len(self.inputs) == 1:
            return self.inputs[0].position_at(step, epoch)
        return None

    # ---- `split_by_rank` asks these, see `arrowflow.plan.lane`.

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """Returns why it, or an operator before it, would mean something else in so many lanes; None where all is local.

        Called on bound nodes as written; may read footers. An operator that is local under a condition checks that, and
        asks its inputs by `Node.obstacle`.

        Args:
            lanes: How many lanes there are.
            times: How often its rows are repeated by operators after it.
        """
        traits = self.traits
        if not self.inputs:
            return Obstacle(
                self.name, "has rows that cannot be found by their numbers", "write them to files first"
            )
        if not (traits.one_to_one or traits.drops_rows or traits.local):
            return Obstacle(self.name, "counts or compares the rows of the whole stream")
        return worst(child.obstacle(lanes, times) for child in self.inputs)

    def in_lane(self, lane: Lane) -> Node:
        """Returns the plan up to here as one lane runs it. Called on optimised nodes without an `obstacle`; no I/O."""
        changes: dict[str, Any] = {name: lane.size(getattr(self, name)) for name in self.traits.row_sizes}
        if (seed := self.arguments().get("seed")) is not None:
            changes["seed"] = lane.seed(seed)
        inputs, own = [], lane
        for child in self.inputs:
            inputs.append(child.in_lane(own))
            own = own.after(child.dealt_rows())
        return dataclasses.replace(self, **changes).on(*inputs)

    def dealt_rows(self) -> int:
        """Returns how many rows its sources deal to lanes in one epoch; 0 where that is not known."""
        if self.inputs:
            return sum(child.dealt_rows() for child in self.inputs)
        rows = self.count_rows(())
        return rows if isinstance(rows, int) else 0

    @property
    def planned_inputs(self) -> tuple[Node, ...]:
        """The plans that run as its inputs."""
        return self.inputs

    def lanes_from_start(self, lanes: Sequence[int], step: int) -> Sequence[int]:
        """Returns those of its own lanes that, without a place in a state, run from an epoch's start up to a step.

        Raises:
            StateError: The places of such lanes do not follow from the number of steps.
        """
        return lanes

    @property
    def own_lanes(self) -> Sequence[int]:
        """The numbers of the lanes that it runs: a state has to tell their places."""
        return ()

    def at_end(self, plan: Node) -> Node:
        """Returns an optimised plan that it is part of, with what it does to the plan's last batches. May read footers."""
        return plan

    def let_go(self) -> None:  # noqa: B027  (nothing of most nodes lasts)
        """Ends what all runs of this bound plan share, such as workers on a cluster; the next run makes it anew.

        Called where a loader is closed, and once no dataset, loader or iterator has the plan. Any thread; waits for nothing.
        """

    @property
    def processes(self) -> int:
        """How many processes of this machine share the budgets that nobody set."""
        return 1

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

    @property
    def known_as(self) -> str | None:
        """A text, such as a key, that identifies the node with all of its inputs; None: their identities do."""
        return None

    @property
    def repeatable(self) -> bool:
        """Whether running it again yields the same, from any position on, as long as its identity is the same."""
        return all(child.repeatable for child in self.inputs)

    def changed_file(self) -> str | None:
        """Returns a file on a local disk that is not what it was when the node was bound, of those it reads."""
        return None

    def local_files(self) -> Sequence[str]:
        """Returns the paths of the files that it reads from disks of this machine."""
        return ()

    def contents(self) -> Sequence[Any]:
        """Returns JSON values that tell its files from others of the same names and sizes; none where nothing does.

        They are the same for a copy of the files. Called for the first state of a run; takes about 20 µs a file.
        """
        return ()

    def changed_contents(self, then: Sequence[Any]) -> str | None:
        """Returns in words how the files differ from those with the `contents` of a state; None if they do not."""
        return None

    def in_order(self) -> Node:
        """Returns the plan up to here with its rows in one exact order, where an operator was asked for less."""
        inputs = tuple(child.in_order() for child in self.inputs)
        same = all(new is old for new, old in zip(inputs, self.inputs, strict=True))
        return self if same else dataclasses.replace(self, inputs=inputs)


def _needs_rows(node: Node, cut: Node) -> str:
    before, after = cut.call(), node.call()
    text = f"{node.name}: after `{cut.name}` the rows are no longer addressable"
    if len(node.inputs) > 1:
        return f"{text}; leave .{before} out of its inputs, and call .{before} on its result"
    text += f", since .{before}.{after} could mean batches or rows; write .{after}.{before}"
    count, size = node.rows_named, cut.rows_named
    if node.row_range is None or cut not in node.inputs or not count or not size:
        return text
    return f"{text} for rows, .{node.name}({count * size}).{before} for batches"

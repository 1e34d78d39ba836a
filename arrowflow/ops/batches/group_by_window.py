"""`group_by_window`: batches of rows with equal keys.

A `map` after this operator reduces a batch, and sees exactly the batches; so this operator has no function of its own.
Chunks are kept, not copied, until none of their rows is held. A stateless kernel gathers a batch from these chunks.
The module `groups` decides which rows make a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr import Cast, Expr, Program, Project, Step, compile_steps, parse_expression
from arrowflow.interchange.to_numpy import is_text
from arrowflow.kernels.gather import OfSchema
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import SerialKernel, StatelessKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.batches.groups import MAX_GROUPS, Emission, Groups
from arrowflow.ops.batches.row_selection import HeldChunks, SelectionKernel, held_bytes
from arrowflow.ops.columns.select import expand_named
from arrowflow.options import ResolvedOptions, check_size
from arrowflow.plan.node import Columns, Node
from arrowflow.plan.position import Gone, Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits
from arrowflow.types import is_untyped


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupByWindow(Operator):
    """Batches of `window_size` rows with the same key; a batch is short where a group would be held for too long.

    Row order: within a batch as its input; batches by the row that emits them, at the end by their oldest rows.
    Memory: the chunks from the oldest held row on, of at most `max_lag_rows` rows, and one batch a call. Deterministic.
    Resume: (position before the chunk of the oldest held row, rows of that chunk that are gone, number of that row,
    number of the next row, last emitted row of each key from there on, batches made). These rows are read again.

    Attributes:
        key: The expression by which rows are grouped.
        window_size: Rows of a full batch.
        max_groups: Groups that are held at most; when another group opens, the oldest is emitted short.
        max_lag_rows: A group whose oldest row came this many rows ago is emitted short.
    """

    name: ClassVar[str] = "group_by_window"
    traits: ClassVar[Traits] = Traits(borders=Borders.CUT, new_memory=True, keeps_number=True)

    key: Expr
    window_size: int
    max_groups: int
    max_lag_rows: int

    @classmethod
    def of(cls, below: Node, key: Any, window_size: int, *, max_groups: int, max_lag_rows: int) -> Self:
        return cls(
            inputs=(below,),
            key=parse_expression(key, operator=cls.name, allow_name=True),
            window_size=check_size(cls.name, "window_size", window_size),
            max_groups=check_size(cls.name, "max_groups", max_groups, most=MAX_GROUPS),
            max_lag_rows=check_size(cls.name, "max_lag_rows", max_lag_rows),
        )

    def arguments(self) -> Mapping[str, Any]:
        return {
            "key": self.key.digest(),
            "window_size": self.window_size,
            "max_groups": self.max_groups,
            "max_lag_rows": self.max_lag_rows,
        }

    def describe(self) -> str:
        return f"group_by_window({self.key!r}, window_size={self.window_size})"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        key_program(self.name, self.key, inputs[0])
        return inputs[0]

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        return (with_key(wanted, self.key, self.inputs[0].schema),)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        compute = KernelSpec(
            "stateless",
            lambda context: KeyKernel(partial(key_program, self.name, self.key)),
            engine="numpy+arrow",
            facts="compute and number the keys of a chunk",
        )
        group = KernelSpec(
            "serial",
            lambda context: GroupKernel(self),
            position=Shape(GroupPosition, _wrong),
            splits=True,
            floor_bytes=held_bytes(self.inputs[0], self.max_lag_rows),
            facts=f"hold up to {self.max_groups:,} groups, no copy",
        )
        gather = KernelSpec(
            "stateless",
            lambda context: SelectionKernel("window_size"),
            engine="arrow",
            facts="gather, one call a batch",
        )
        return compute, group, gather


def key_program(operator: str, key: Expr, schema: pa.Schema) -> Program:
    """Returns the program that computes a key as a column of its own.

    Raises:
        PlanError: A column is unknown, or the key has no type to group by.
    """
    steps: list[Step] = [Project(tuple(expand_named((("key", key),), schema)))]
    program = compile_steps(steps, schema)
    type = program.schema.types[0]
    if pa.types.is_dictionary(type):  # an enum, which is grouped by its texts
        return compile_steps([*steps, Project((("key", Cast("key", pa.string())),))], schema)
    types = pa.types
    fits = is_text(type) or types.is_integer(type) or types.is_boolean(type) or types.is_date32(type)
    if not (fits or is_untyped(schema)):
        raise PlanError(
            f"{operator}: a key is an integer, a boolean, a string, a binary or a date, {key!r} is "
            f"{type}; `cast` it, or group by something like pl.col('x') // 100"
        )
    return program


def with_key(wanted: Columns, key: Expr, schema: pa.Schema | None) -> Columns:
    """Returns the wanted columns and those of a key; None, for all, where the schema is not known."""
    if wanted is None or schema is None:
        return None
    ((_, single),) = expand_named((("key", key),), schema)
    return wanted | set(single.columns)


class KeyKernel(StatelessKernel):
    """Appends the keys of a chunk, as one more column of codes and dictionary.

    Args:
        program: Returns the program that computes the key, for a schema.
    """

    def __init__(self, program: Callable[[pa.Schema], Program]) -> None:
        self._program = OfSchema(program)

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        keys = self._program(chunk.schema).run(chunk).column(0).dictionary_encode("encode")
        columns = [*chunk.columns, keys]
        return pa.RecordBatch.from_arrays(columns, names=[*chunk.schema.names, "key"])


class GroupPosition(NamedTuple):
    """Position of a `GroupKernel`.

    Attributes:
        before: Position of the input before the chunk of the oldest held row.
        offset: Rows of the chunk that are gone.
        first: Number of the oldest held row.
        next_row: Number of the next row.
        emitted: The last emitted row of each key, from the oldest held row on.
        number: Batches made.
    """

    before: Position
    offset: Gone
    first: int
    next_row: int
    emitted: Sequence[int]
    number: int


def _wrong(at: GroupPosition) -> str | None:
    numbers = at.offset, at.first, at.next_row
    if list(numbers) != sorted(numbers):
        return f"offset, first and next_row are {', '.join(map(str, numbers))}, expected them to ascend"
    if list(at.emitted) != sorted(set(at.emitted)):
        return "emitted is out of order, expected rows that ascend"
    return None


class GroupKernel(SerialKernel):
    """Numbers the rows, and keeps each chunk until none of its rows is held."""

    def __init__(self, node: GroupByWindow) -> None:
        self._limits = node.window_size, node.max_groups, node.max_lag_rows
        self._groups = Groups(*self._limits)
        self._held = HeldChunks()
        self._first = 0  # rows before it were emitted and do not count
        self._number = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores numbers of rows; the rows themselves come again."""
        if position is None:
            return None
        at = GroupPosition._make(position)
        self._first, self._number = at.first, at.number
        self._held = HeldChunks(at.before, at.first - at.offset)
        self._groups = Groups(*self._limits, at.next_row, at.emitted)
        return at.before

    def push(self, item: Item) -> Iterator[Item]:
        chunk, start = item.chunk, self._held.rows
        if not chunk.num_rows:
            self._held.add(item)
            return
        keys = chunk.column(chunk.num_columns - 1)
        self._held.add(item._replace(chunk=chunk.select(range(chunk.num_columns - 1))))
        gone = min(max(0, self._first - start), chunk.num_rows)
        codes = keys.indices.to_numpy()[gone:]
        for emission in self._groups.add(codes, keys.dictionary.to_pylist(), start + gone):
            yield self._item(emission)

    def finish(self) -> Iterator[Item]:
        for emission in self._groups.finish(self._held.rows):
            yield self._item(emission)

    def _item(self, emission: Emission) -> Item:
        """Returns a batch with its position, and releases the chunks without held rows."""
        batch, tickets = self._held.select(emission.rows)
        oldest = min(self._groups.oldest, emission.next_row)
        self._held.release(oldest)
        before, start, _ = self._held.first()
        emitted = self._groups.emitted(oldest)
        self._number += 1
        position = GroupPosition(before, oldest - start, oldest, emission.next_row, emitted, self._number)
        return Item(batch, position, tickets, Origin(self._number - 1))

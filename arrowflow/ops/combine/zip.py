"""`zip`: the columns of several datasets side by side, row by row.

Nothing is copied: a chunk of the output is as long as all inputs' current chunks overlap, and holds slices of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import BoundaryKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.options import ResolvedOptions
from arrowflow.plan.lane import InLanes, Lane, Obstacle, dealt_rows, in_lane, obstacle_of
from arrowflow.plan.node import Columns, Count, Node
from arrowflow.plan.position import Mark, Position
from arrowflow.plan.shape import Shape, parts
from arrowflow.plan.traits import Borders, Traits
from arrowflow.plan.walk import post_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Zip(Operator, InLanes):
    """The columns of all its inputs side by side, as many rows as the shortest input has, in the first input's splits.

    Row order: as its inputs. Memory: one chunk of each input, no copy. Deterministic. Resume: per input (position
    before its current chunk, rows of this chunk that are used).
    """

    name: ClassVar[str] = "zip"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True)

    def arguments(self) -> Mapping[str, Any]:
        return {"datasets": len(self.inputs)}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return joint_schema(inputs)

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns the wanted columns, of which each input has some.

        Where only a run tells the columns of an input, all columns are kept: equal names have to be found.
        """
        return (None if self.schema is None else wanted,) * len(self.inputs)

    def rows_wanted(self, rows: int | None) -> int | None:
        return rows

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        known = [rows for rows in inputs if rows is not None]
        return min(known) if len(known) == len(inputs) else 0 if 0 in known else None

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """Rows of different inputs stand side by side in each lane only if all inputs are columns of the same rows."""
        first, *others = (_rows_of(child) for child in self.inputs)
        if any(other != first or _draws(other) != _draws(first) for other in others):
            return Obstacle(self.name, "pairs rows of different inputs by their numbers")
        return obstacle_of(first, lanes, times)

    def in_lane(self, lane: Lane) -> Node:
        return self.on(*(in_lane(child, lane) for child in self.inputs))

    def dealt_rows(self) -> int:
        """Returns the rows that all inputs have in common."""
        return dealt_rows(self.inputs[0])

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        return KernelSpec(
            "boundary",
            lambda context: ZipKernel(len(self.inputs), context),
            position=Shape(tuple[Mark, ...], lambda marks: parts("it", marks, len(self.inputs))),
            pins_order=True,
            facts="slices of all inputs side by side, no copy",
        )


def _rows_of(plan: Node) -> Node:
    """Returns the plan of the rows of which a plan has columns."""
    while plan.inputs and plan.traits.one_to_one and not plan.traits.opaque:
        (plan,) = plan.inputs
    return plan


def _draws(plan: Node) -> list[int | None]:
    """Returns the places of the operators that draw by their places: equal plans in other places draw other rows."""
    nodes = post_order(plan)
    return [getattr(node, "place", None) for node in nodes if node.arguments().get("seed", 0) is not None]


def joint_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Returns the columns of all schemas, which have to have different names."""
    counted = Counter(name for schema in schemas for name in schema.names)
    twice = [name for name, count in counted.items() if count > 1]
    if twice:
        raise PlanError(
            f"zip: the datasets have columns of different names, got {', '.join(map(repr, twice))} more than once; "
            "`rename` or `drop` them before"
        )
    return pa.schema([field for schema in schemas for field in schema])


class ZipKernel(BoundaryKernel):
    """Pulls a chunk of each input that holds no rows, in the inputs' order, and emits the rows that all inputs have."""

    chunks_held = 1

    def __init__(self, num_inputs: int, context: Context) -> None:
        self._context = context
        self._epoch = 0
        self._streams: list[StreamHandle] = []
        self._held = [Held() for _ in range(num_inputs)]
        self._starts: list[Position] = [None] * num_inputs
        self._origin = Origin(0)  # of the first input's current chunk
        self._schema: pa.Schema | None = None

    def open(self, position: Position, epoch: int) -> Position:
        self._epoch = epoch
        if position is not None:
            marks = [Mark._make(mark) for mark in position]
            self._held = [Held(*mark) for mark in marks]
            self._starts = [mark.before for mark in marks]
        return None

    def next_input(self) -> StreamHandle | None:
        """Returns the first stream that holds no rows; None once a stream has ended."""
        if self.done:
            return None
        if not self._streams:
            self._streams = [
                self._context.open(number, self._epoch, start) for number, start in enumerate(self._starts)
            ]
        empty = (stream for stream, held in zip(self._streams, self._held, strict=True) if not held.rows)
        return next(empty)

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        number = next(number for number, one in enumerate(self._streams) if one is stream)
        if number == 0:
            self._origin = item.origin
        self._held[number].add(item)
        if all(held.rows for held in self._held):
            yield self._put()

    def _put(self) -> Item:
        rows = min(held.rows for held in self._held)
        chunks, tickets = [], []
        for held in self._held:
            # One chunk: an input is pulled from only when it holds no rows.
            (chunk,), (ticket,) = held.pop(rows)
            chunks.append(chunk)
            tickets.append(ticket)
        if self._schema is None:
            self._schema = joint_schema([chunk.schema for chunk in chunks])
        columns = [column for chunk in chunks for column in chunk.columns]
        last = self._origin.last and not self._held[0].rows
        return Item(
            pa.RecordBatch.from_arrays(columns, schema=self._schema),
            tuple(held.mark() for held in self._held),
            tuple(tickets),
            self._origin._replace(last=last),
        )

    def held(self) -> list[Held]:
        return self._held

    def ended(self, stream: StreamHandle) -> None:
        """Ends with the shortest input."""
        self.done = True

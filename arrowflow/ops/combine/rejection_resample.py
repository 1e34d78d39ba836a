"""`rejection_resample`: rows left out at random, so that classes have wanted shares.

A row of class i is kept with the probability (target[i] / initial[i]), divided by the largest of these ratios: as many
rows are kept as the target allows. It follows from (seed, operator, epoch, number of the row) and the row's class alone.

Initial shares that are not given are estimated. The first 16 blocks of 512 rows are held back and decided from their own
counts, each later block from the counts of all blocks before it. So a state holds only counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa

from arrowflow.errors import DataError, PlanError
from arrowflow.expr import Expr, Program, Project, compile_steps, expand, parse_expression
from arrowflow.interchange.converted import arrays_of, column_exports
from arrowflow.interchange.to_numpy import is_text
from arrowflow.kernels.context import Context
from arrowflow.kernels.gather import GatherKernel, OfSchema, chosen
from arrowflow.kernels.items import Item, Noted, Origin
from arrowflow.kernels.kinds import SerialKernel, StateKernel, StatelessKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.batches.group_by_window import with_key
from arrowflow.ops.batches.row_selection import held_bytes
from arrowflow.ops.columns.column_program import check_columns
from arrowflow.ops.combine.classes import (
    Classed,
    Floats,
    Integers,
    Shares,
    acceptance,
    check_shares,
    numbers_of,
    values_of,
)
from arrowflow.ops.order.source_order import bound_seed
from arrowflow.options import ResolvedOptions, check_seed
from arrowflow.plan.lane import InLanes, Obstacle
from arrowflow.plan.node import BindContext, Columns, Count, Node
from arrowflow.plan.position import Counted, Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits
from arrowflow.random import RESAMPLE_DRAWS, Key, bits
from arrowflow.types import is_untyped

BLOCK_ROWS = 512
"""Rows that are decided from the same counts. More would adapt later, fewer would cost more: 0.6 ms for 65,536 rows."""
SAMPLE_BLOCKS = 16
"""Blocks that are held back and counted before the first row. A class of 1 in 100 rows is estimated to a ninth."""
DRAWN_ROWS = 4096
"""Rows whose random numbers have one key: a chunk of one row takes 30 µs."""
LABEL = "class"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionResample(RowOperator, InLanes):
    """Rows of its input, left out at random so that classes have the shares `target`.

    Row order: as its input. Memory: input and output of each call; where shares are estimated, also the chunks of the
    first 8,192 rows. Deterministic. Resume: (input's position, rows of the input); where shares are estimated, up to
    three counts of each class, too.

    Attributes:
        label: The class of a row.
        target: The wanted shares.
        labels: The classes in the order of the shares; None for whole numbers from 0 on.
        initial: The shares in the input, or None to estimate them.
        seed: The seed of the draws; None until bound, then derived from `Options.seed` and the operator's place.
        place: Bound: the operator's place in the plan as written.
    """

    name: ClassVar[str] = "rejection_resample"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True, local=True)

    label: Expr
    target: Shares
    labels: tuple[Any, ...] | None = None
    initial: Shares | None = None
    seed: int | None = None
    place: int = dataclasses.field(default=0, compare=False)

    @classmethod
    def of(cls, below: Node, label: Any, target_dist: Any, initial_dist: Any, seed: int | None) -> Self:
        labels, target, initial = check_shares(target_dist, initial_dist)
        return cls(
            inputs=(below,),
            label=parse_expression(label, operator=cls.name, allow_name=True),
            target=target,
            labels=labels,
            initial=initial,
            seed=check_seed(cls.name, seed),
        )

    def arguments(self) -> Mapping[str, Any]:
        return {
            "label": self.label.digest(),
            "target": list(self.target),
            **({} if self.labels is None else {"labels": [repr(label) for label in self.labels]}),
            "initial": None if self.initial is None else list(self.initial),
            "seed": self.seed,
        }

    def describe(self) -> str:
        initial = "estimated" if self.initial is None else list(self.initial)
        return f"rejection_resample({self.label!r}, target_dist={list(self.target)}, initial_dist={initial})"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Fixes seed and place, for the key of its random numbers."""
        seed = bound_seed(self.seed, context)
        return dataclasses.replace(self, seed=seed, place=context.place).on(*inputs)

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """Shares that are not given are estimated from the rows of the whole stream."""
        if self.initial is None:
            return Obstacle(self.name, "estimates shares from the whole stream", "give it initial_dist=")
        return InLanes.obstacle(self, lanes, times)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        self.program(inputs[0])
        return inputs[0]

    def program(self, schema: pa.Schema) -> Program:
        """Returns the program that computes the class of each row.

        Raises:
            PlanError: A column is unknown, or the class has another type than the keys of the shares.
        """
        check_columns(self.label.columns, schema)
        singles = expand(self.label, schema)
        if len(singles) != 1:
            raise PlanError(
                f"{self.label!r} makes {len(singles)} columns, expected the one that holds the class"
            )
        program = compile_steps((Project(((LABEL, singles[0]),)),), schema)
        if is_untyped(schema):
            return program
        type = program.schema.field(LABEL).type
        if self.labels is not None:
            values_of(self.label, self.labels, type)
        elif not pa.types.is_integer(type) and not pa.types.is_boolean(type):
            texts = pa.types.is_dictionary(type) or is_text(type)
            kind, example = ("texts", ", such as {'cat': 0.5, 'dog': 0.5}") if texts else ("its values", "")
            raise PlanError(
                f"the class {self.label!r} is {type}, and these shares are for the whole numbers from 0 on; give a mapping "
                f"from {kind} to shares{example}"
            )
        return program

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        return (with_key(wanted, self.label, self.inputs[0].schema),)

    def _wrong(self, at: ClassCountPosition) -> str | None:
        sample = at.sample if at.sample or at.rows < SAMPLE_BLOCKS * BLOCK_ROWS else at.open
        lengths = [len(each) for each in (sample, at.closed, at.open)]
        return None if set(lengths) == {len(self.target)} else f"counts have {lengths} parts"

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        counts = self.initial is None
        how = f"in blocks of {BLOCK_ROWS}, counting classes" if counts else "by their number"
        return (
            KernelSpec("stateless", lambda context: ClassKernel(self), engine="numpy", facts="find classes"),
            KernelSpec(
                "serial",
                lambda context: ClassCountKernel(self) if counts else RowCountKernel(self),
                position=Shape(ClassCountPosition, self._wrong) if counts else Shape(Counted),
                engine="numpy",
                floor_bytes=held_bytes(self.inputs[0], SAMPLE_BLOCKS * BLOCK_ROWS) if counts else 0,
                facts=f"take rows {how}",
            ),
            KernelSpec(
                "stateless",
                lambda context: DrawKernel(self, context),
                random=True,
                engine="numpy+arrow",
                facts="draw, and gather what is kept",
            ),
        )


@dataclass(slots=True)
class Numbered(Noted):
    """A `Classed` chunk whose rows are ready to be decided.

    Attributes:
        first: Number of the first row in the input.
        accepted: The probability to keep a row, by block and class; or by class alone.
    """

    first: int
    accepted: Floats


class ClassKernel(StatelessKernel):
    """Finds the class of each row."""

    def __init__(self, node: RejectionResample) -> None:
        self._node = node
        self._program = OfSchema(node.program)

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> Classed:
        found = self._program(chunk.schema).run(chunk)
        nulls = found.column(0).null_count
        if nulls:
            raise DataError(
                f"the class {self._node.label!r} is null in {nulls:,} rows; `fill_null` or `filter` first"
            )
        if self._node.labels is not None:
            return Classed(chunk, numbers_of(self._node.label, self._node.labels, found.column(0)))
        classes = arrays_of(found, column_exports(found.schema))[LABEL]
        number = len(self._node.target)
        outside = (classes < 0) | (classes >= number)
        if outside.any():
            value = classes[outside.argmax()]
            raise DataError(
                f"the class {self._node.label!r} is {value}, expected 0 to {number - 1}, since target_dist has "
                f"{number} shares"
            )
        return Classed(chunk, classes.astype(np.int64, copy=False))


class RowCountKernel(StateKernel):
    """Numbers the rows."""

    def __init__(self, node: RejectionResample) -> None:
        self._accepted = acceptance(node.target, np.array(node.initial, np.float64))

    def step(self, chunk: Classed) -> Numbered:
        first = self.state
        self.state += chunk.num_rows
        return Numbered(chunk, first, self._accepted)


class ClassCountPosition(NamedTuple):
    """Position of a `ClassCountKernel`.

    Attributes:
        input: The input's position.
        rows: Rows of the input.
        sample: Rows of each class in the first blocks, by which these are decided; empty after them.
        closed: Rows of each class in the closed blocks.
        open: Rows of each class in the open block.
    """

    input: Position
    rows: int
    sample: tuple[int, ...]
    closed: tuple[int, ...]
    open: tuple[int, ...]


class ClassCountKernel(SerialKernel):
    """Numbers the rows and counts classes; holds the first rows back until they are counted."""

    def __init__(self, node: RejectionResample) -> None:
        self._target = node.target
        self._rows = 0
        self._held: list[Item] | None = []
        self._sample, self._closed, self._open = np.zeros((3, len(node.target)), np.int64)
        self._num_held = 0

    def open(self, position: Position, epoch: int) -> Position:
        if position is None:
            return None
        at = ClassCountPosition._make(position)
        self._rows, self._held = at.rows, None
        self._sample, self._closed, self._open = (
            np.array(counts, np.int64) for counts in (at.sample, at.closed, at.open)
        )
        return at.input

    def push(self, item: Item) -> Iterator[Item]:
        """Passes chunks on with the counts for each of their blocks, once the first rows have been counted."""
        if self._held is None:
            yield self._counted(item)
            return
        self._held.append(item)
        if item.chunk.num_rows:
            missing = SAMPLE_BLOCKS * BLOCK_ROWS - self._num_held
            self._sample += np.bincount(item.chunk.classes[:missing], minlength=len(self._sample))
            self._num_held += item.chunk.num_rows
        if self._num_held >= SAMPLE_BLOCKS * BLOCK_ROWS:
            yield from self.finish()

    def finish(self) -> Iterator[Item]:
        held, self._held = self._held or [], None
        held.reverse()
        while held:
            yield self._counted(held.pop())

    def _counted(self, item: Item) -> Item:
        chunk, ticket = item.chunk, item.ticket
        if chunk.num_rows:
            ticket = None  # there is new memory to charge, and the chunk's is charged once more with it
            first, before = self._rows, self._count(chunk.classes)
            within = SAMPLE_BLOCKS - first // BLOCK_ROWS
            if within > 0:
                before = before.copy()  # a row of it counts the closed blocks
                before[:within] = self._sample
            # A class that has not come yet counts as one row: it would be kept whole.
            chunk = Numbered(chunk, first, acceptance(self._target, np.maximum(before, 1).astype(np.float64)))
        if self._rows >= SAMPLE_BLOCKS * BLOCK_ROWS:
            self._sample = self._sample[:0]
        counts = (tuple(each.tolist()) for each in (self._sample, self._closed, self._open))
        position = ClassCountPosition(item.position, self._rows, *counts)
        return item._replace(chunk=chunk, position=position, ticket=ticket)

    def _count(self, classes: Integers) -> Integers:
        """Counts the rows of a chunk, and returns the counts at the start of each of its blocks."""
        number = len(self._target)
        blocks = _blocks(self._rows, len(classes), BLOCK_ROWS)
        counted = np.bincount(blocks * number + classes, minlength=(int(blocks[-1]) + 1) * number)
        counts = counted.reshape(-1, number).astype(np.int64, copy=False)
        counts[0] += self._open
        ends = self._closed + np.cumsum(counts, axis=0)
        before = np.concatenate([self._closed[None], ends[:-1]])
        self._rows += len(classes)
        if self._rows % BLOCK_ROWS:
            self._closed, self._open = before[-1], counts[-1]
        else:
            self._closed, self._open = ends[-1], np.zeros(number, np.int64)
        return before


def _blocks(first: int, num_rows: int, size: int) -> Integers:
    """Returns the block of each row, counted from the block of the first row."""
    return (np.arange(num_rows, dtype=np.int64) + first % size) // size


class DrawKernel(GatherKernel):
    """Draws a number for each row, and keeps the rows whose number is below the probability of their class."""

    def __init__(self, node: RejectionResample, context: Context) -> None:
        assert node.seed is not None
        self._key = (node.seed, RESAMPLE_DRAWS, node.place, context.epoch)

    def gather(self, chunk: Numbered, origin: Origin) -> pa.RecordBatch:
        rows, first, accepted = chunk.chunk, chunk.first, chunk.accepted
        if accepted.ndim == 1:
            chances = accepted[rows.classes]
        else:
            chances = accepted[_blocks(first, len(rows.classes), BLOCK_ROWS), rows.classes]
        kept = np.flatnonzero(draws(self._key, first, len(chances)) < chances)
        return chosen(rows.chunk, kept.astype(np.int64, copy=False))


def draws(key: Key, first: int, num_rows: int) -> Floats:
    """Returns the numbers of some rows: uniform in [0, 1), with 53 random bits each."""
    start = first // DRAWN_ROWS
    stop = (first + num_rows - 1) // DRAWN_ROWS + 1
    words = np.concatenate([bits((*key, block), DRAWN_ROWS) for block in range(start, stop)])
    skip = first - start * DRAWN_ROWS
    drawn: Floats = (words[skip : skip + num_rows] >> np.uint64(11)).astype(np.float64)
    return drawn * np.float64(2.0**-53)

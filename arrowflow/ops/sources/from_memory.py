"""Rows of record batches in memory."""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError, PlanError, SchemaError, repeated, shown
from arrowflow.formats.types import check_arrays, has_list_view
from arrowflow.formats.types import convert as decode
from arrowflow.interchange.enums import as_enum, enum_of
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Made, Origin, Task
from arrowflow.kernels.kinds import SourceKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.order.random_access import InPlaceRows
from arrowflow.ops.order.source_order import Blocks
from arrowflow.ops.sources.dealt import BlockSource
from arrowflow.options import MAX_CHUNK_ROWS, ResolvedOptions
from arrowflow.plan.node import Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits
from arrowflow.types import arrow_type, convert, enum_field, normalise
from arrowflow.workarounds.codes import masked

LONG_CHUNKS_BUDGET: Final = 512 << 20
"""Room for 32 chunks of 16 MiB: several calls at a time, each with its input, and what waits for its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromMemory(BlockSource):
    """The rows of record batches in memory, without a copy.

    Row order: as given; before a windowed `shuffle` in blocks of rows, ordered by (seed, epoch). Memory: none of its
    own. Deterministic. Resume: seeks. A split is one record batch as given, or a block. It travels in chunks of at most
    65,536 rows, or 131,072, so that the next operators can work on several chunks at once.

    Attributes:
        batches: The rows; no record batch is empty.
        types: Their schema.
        given: The schema as the user gave it, with its metadata.
        long_chunks: Whether chunks have twice the rows, if the byte budget has room for many of them.
    """

    name: ClassVar[str] = "from_arrow"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE)

    batches: tuple[pa.RecordBatch, ...] = field(repr=False)
    types: pa.Schema
    given: pa.Schema | None = field(default=None, compare=False, repr=False)
    long_chunks: bool = field(default=False, repr=False)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FromMemory)
            and (self.blocks, self.lane) == (other.blocks, other.lane)
            and self.types.equals(other.types, check_metadata=True)
            and same_batches(self.batches, other.batches)
        )

    def __hash__(self) -> int:
        return hash((self.name, self.count_rows(()), str(self.types)))

    def arguments(self) -> Mapping[str, Any]:
        """Returns rows and schema, a cheap way to tell other data apart."""
        return {"rows": self.count_rows(()), "schema": str(self.types)}

    def borders(self) -> Mapping[str, Any]:
        """Returns the rows of each of several batches, which positions count; blocks lie across them."""
        if self.in_place or self.blocks is not None or len(self.batches) < 2:
            return {}
        return {"batches": [batch.num_rows for batch in self.batches]}

    def describe(self) -> str:
        return f"from_arrow({self.count_rows(()):,} rows, {len(self.types)} columns in memory)"

    @property
    def stored_schema(self) -> pa.Schema | None:
        """The schema as the user gave it."""
        return self.given

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return self.types

    def count_rows(self, inputs: Sequence[Count]) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def part(self, first: int, before: int) -> Self:
        table = pa.Table.from_batches(self.batches, self.types).slice(first, before - first)
        return dataclasses.replace(self, batches=tuple(table.to_batches()))

    def position_behind(self, rows: int, epoch: int | None = None) -> tuple[tuple[int, int], int] | None:
        """Returns the position of this row, or of the block with it; blocks have an order of each epoch."""
        if self.in_place or (epoch is None and not (self.blocks is None and self.lane is None)):
            return None
        if self.lane is not None and epoch is not None:
            return self.of_epoch(epoch).position_behind(rows, epoch)
        if self.blocks is not None and epoch is not None:
            turn, before = self.blocks.behind(rows, sum(batch.num_rows for batch in self.batches), epoch)
            return (turn, 0), before
        starts = [0, *itertools.accumulate(batch.num_rows for batch in self.batches)]
        index = bisect_right(starts, rows) - 1
        return (index, rows - starts[index]), rows

    def narrow(self, wanted: frozenset[str]) -> Node:
        """Leaves columns out where rows stay in place; otherwise a later operator does so."""
        found = self.of_columns(wanted) if self.in_place else self
        return self if found is self else found.on()

    def of_columns(self, wanted: frozenset[str]) -> Self:
        """Returns the rows with no other columns than the wanted ones."""
        types = pa.schema([each for each in self.types if each.name in wanted])
        if len(types) == len(self.types):
            return self
        batches = tuple(batch.select(types.names) for batch in self.batches)
        return dataclasses.replace(self, batches=batches, types=types)

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        kind = tuple[int] if self.in_place else tuple[int, int]
        is_long = self.long_chunks and options.ram_budget >= LONG_CHUNKS_BUDGET
        rows = 2 * MAX_CHUNK_ROWS if is_long else MAX_CHUNK_ROWS

        def make(context: Context) -> SourceKernel:
            if self.in_place:
                return MemoryKernel(self.batches, None)
            if self.blocks is None:
                return MemoryKernel(self.of_epoch(context.epoch).batches, rows)
            return BlockKernel(self.batches, self.blocks, context.epoch)

        return KernelSpec("source", make, position=Shape(kind))


class MemoryKernel(SourceKernel):
    """One task per slice; the position is (batch, row). Or one task per record batch that stays in place: then it is (batch,).

    Args:
        batches: The rows.
        chunk_rows: The most rows of a slice; None if they stay in place.
    """

    lends = True

    def __init__(self, batches: tuple[pa.RecordBatch, ...], chunk_rows: int | None) -> None:
        self._batches = batches
        self._rows = chunk_rows

    def tasks(self, position: Position) -> Iterator[Task]:
        first, row = (0, 0) if position is None else (*position, 0)[:2]
        for index in range(first, len(self._batches)):
            rows = self._batches[index].num_rows
            for start in range(row if index == first else 0, rows, self._rows or max(rows, 1)):
                yield Task((index, start), Origin(index))

    def read(self, task: Task) -> Iterator[Made]:
        index, start = task.payload
        batch = self._batches[index]
        if self._rows is None:
            yield Made(InPlaceRows(batch), (index + 1,))
            return
        chunk = batch.slice(start, self._rows) if batch.num_rows > self._rows else batch.slice(start)
        stop = start + chunk.num_rows
        yield Made(chunk, (index, stop), stop == batch.num_rows)


class BlockKernel(SourceKernel):
    """One task per block; the position is (blocks done, rows of the next block that are done)."""

    lends = True

    def __init__(self, batches: tuple[pa.RecordBatch, ...], blocks: Blocks, epoch: int) -> None:
        self._batches = batches
        self._starts = [0, *itertools.accumulate(batch.num_rows for batch in batches)]
        self._blocks = blocks
        self._epoch = epoch

    def tasks(self, position: Position) -> Iterator[Task]:
        first, row = (0, 0) if position is None else position
        for block in self._blocks.of_epoch(self._starts[-1], self._epoch):
            if block.turn >= first:
                done = row if block.turn == first else 0
                yield Task((block, done), Origin(block.number))

    def read(self, task: Task) -> Iterator[Made]:
        """Yields the block, in a slice of each record batch that holds a part of it."""
        (turn, _, begin, stop), done = task.payload
        row = begin + done
        index = bisect_right(self._starts, row) - 1
        while row < stop:
            before = min(stop, self._starts[index + 1])
            chunk = self._batches[index].slice(row - self._starts[index], before - row)
            row, index = before, index + 1
            yield Made(chunk, (turn + 1, 0) if row == stop else (turn, row - begin), row == stop)


def from_batches(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> FromMemory:
    """Returns the node for record batches in memory; each has to have the schema's columns."""
    try:
        types = normalised_schema(schema)
        for index, batch in enumerate(batches):
            if not batch.schema.equals(schema):
                raise SchemaError(
                    f"record batch {index} has the schema {batch.schema}, the first one {schema}"
                )
        kept = tuple(normalised(batch, types) for batch in batches if batch.num_rows)
    except (SchemaError, DataError) as error:
        error.locate(operator="from_arrow")
        raise
    return FromMemory(batches=kept, types=types, given=schema)


def same_batches(mine: Sequence[pa.RecordBatch], theirs: Sequence[pa.RecordBatch]) -> bool:
    """Returns whether record batches hold the same values, where a NaN equals itself."""
    return len(mine) == len(theirs) and all(
        # Arrow's own comparison stops at the first difference, but counts a NaN as a difference.
        one is other or one.equals(other) or one.serialize().equals(other.serialize())
        for one, other in zip(mine, theirs, strict=True)
    )


def normalised_schema(schema: pa.Schema) -> pa.Schema:
    """Returns a schema with the types that travel inside a pipeline, with no metadata but the values of enums.

    Raises:
        SchemaError: There is no column, two columns have one name, or pyarrow has no arrays of a column's type.
    """
    names = schema.names
    if not names:
        raise SchemaError("expected at least one column, since rows without columns cannot be counted")
    twice = repeated(names)
    if twice:
        raise SchemaError(f"expected columns of different names, found several called {twice}; rename them")
    check_arrays(schema)
    return pa.schema([enum_of(field) or pa.field(field.name, normalise(field.type)) for field in schema])


def changed_schema(schema: pa.Schema) -> pa.Schema | None:
    """Returns `normalised_schema`, or None for a schema whose batches travel as they are.

    Codes of an enum are always looked at: a dictionary may have the declared values in another order.
    """
    made = normalised_schema(schema)
    is_same = made.equals(schema, check_metadata=True)
    return None if is_same and not any(map(pa.types.is_dictionary, made.types)) else made


def given_schema(operator: str, schema: object) -> pa.Schema | None:
    """Returns an argument `schema` with the types that travel inside a pipeline; None where it was not given.

    Examples:
        >>> import polars as pl
        >>> given_schema("map", {"x": pl.Float32, "y": "int8"}).types
        [DataType(float), DataType(int8)]
    """
    if schema is None:
        return None
    if isinstance(schema, Mapping):
        schema = _schema_of(operator, schema)
    if not isinstance(schema, pa.Schema):
        raise PlanError(
            f"{operator}: schema is a pyarrow.Schema, a polars.Schema, or a mapping from columns to types, got "
            f"{type(schema).__name__}"
        )
    try:
        return normalised_schema(schema)
    except SchemaError as error:
        error.locate(operator=operator)
        raise


def _schema_of(operator: str, types: Mapping[Any, Any]) -> pa.Schema:
    fields = []
    for name, value in types.items():
        if not isinstance(name, str):
            raise PlanError(f"{operator}: schema names columns by texts, got {shown(name)}")
        found = arrow_type(value, operator=f"{operator}: schema: column {name!r}")
        is_enum = isinstance(found, pl.Enum)
        fields.append(enum_field(name, found.categories.to_list()) if is_enum else pa.field(name, found))
    return pa.schema(fields)


def normalised(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns a record batch with exactly this schema; the batch's own types normalise to the schema's types."""
    columns = [
        as_enum(column, schema.field(place))
        if pa.types.is_dictionary(type)
        else _normalised(name, column, type)
        for place, (name, column, type) in enumerate(
            zip(schema.names, batch.columns, schema.types, strict=True)
        )
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _normalised(name: str, column: pa.Array, type: pa.DataType) -> pa.Array:
    if not has_list_view(column.type):
        return convert(column, type)
    try:
        return decode(masked(column), type)  # Arrow's own cast makes lists that are not valid
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(f"column {name!r}: cannot take {error}; cast it to lists first") from error

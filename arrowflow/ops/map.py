"""`map`: a user function of record batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal

import polars as pl
import pyarrow as pa

from arrowflow.errors import ArrowflowError, FunctionError, SchemaError
from arrowflow.interchange.from_numpy import batch_from_arrays
from arrowflow.interchange.to_numpy import ColumnExport, arrays_of, column_exports
from arrowflow.ops.base import (
    Context,
    Item,
    KernelSpec,
    Operator,
    Origin,
    Position,
    SerialKernel,
    StatelessKernel,
)
from arrowflow.ops.columns import check_columns
from arrowflow.ops.from_arrow import normalised, normalised_schema
from arrowflow.ops.functions import code_digest, conform, function_name
from arrowflow.ops.pieces import pieces_spec
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import BindContext, Columns, Node
from arrowflow.plan.traits import Traits
from arrowflow.random import generator
from arrowflow.records import dataclass

BatchFormat = Literal["arrow", "numpy", "polars"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Operator):
    """What `fn` returns for each piece of its input, with any number of rows.

    Below `batch`, `fn` sees each split cut every `max_chunk_rows` rows; above, exactly the batches. Row order: as
    its input. Memory: input and output of each call. Deterministic if `fn` is; a generator handed to it depends on
    (seed, operator, epoch, split, piece) alone. Resume: (position before the piece, rows, split, piece).

    Attributes:
        fn: The function.
        format: What it sees and returns.
        columns: What it reads, and all that it sees; None for all columns.
        types: The schema of what it returns, or None to take the first chunk's.
        seed: Makes `fn` be called with a random generator too.
        num_parallel_calls: Calls at the same time, or None for the CPU budget.
        place: Bound: the operator's place in the plan as written.
    """

    name: ClassVar[str] = "map"
    traits: ClassVar[Traits] = Traits(opaque=True)

    fn: Callable[..., Any] = field(hash=False)
    format: BatchFormat = "arrow"
    columns: tuple[str, ...] | None = None
    types: pa.Schema | None = None
    seed: int | None = None
    num_parallel_calls: int | None = None
    place: int = field(default=0, compare=False)

    def arguments(self) -> Mapping[str, Any]:
        """Returns what decides what the function is called with."""
        return {
            "fn": function_name(self.fn),
            "format": self.format,
            "columns": None if self.columns is None else list(self.columns),
            "seed": self.seed,
        }

    def functions(self) -> Mapping[str, str]:
        """Returns a digest of the function's code."""
        return {self.name: code_digest(self.fn)}

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Notes its place, for the key of its random numbers."""
        return dataclasses.replace(self, place=context.place).on(*inputs)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        """Returns the declared schema; without one only running it tells."""
        if self.columns is not None:
            check_columns(self.columns, inputs[0])
        return self.types

    def declared_schema(self) -> pa.Schema | None:
        """Returns the declared schema."""
        return self.types

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns the columns that the function reads."""
        return (None if self.columns is None else frozenset(self.columns),)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns the cutter of pieces (below `batch`), the caller, and the check of what came back."""
        cut = () if self.batched else (pieces_spec(self.name, options),)
        call = KernelSpec(
            operator=self.name,
            kind="stateless",
            make=lambda context: MapKernel(self, context),
            engine="python",
            cost="unknown",
            max_calls=self.num_parallel_calls,
            facts=lambda: (f"{function_name(self.fn)}({self.format}), one call a piece",),
        )
        if self.types is not None:
            return (*cut, call)
        check = KernelSpec(
            operator=self.name,
            kind="serial",
            make=lambda context: UniformKernel(function_name(self.fn)),
            facts=lambda: ("the first chunk declares the schema",),
        )
        return (*cut, call, check)


class MapKernel(StatelessKernel):
    """Calls the function, in the format that it wants."""

    def __init__(self, node: Map, context: Context) -> None:
        self._node = node
        self._epoch = context.epoch
        self._what = f"what {function_name(node.fn)} returned"
        self._exports: tuple[pa.Schema, tuple[ColumnExport, ...]] | None = (
            None  # replaced as a whole, by any thread
        )

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """Returns what the function makes of a chunk."""
        node = self._node
        if node.columns is not None:
            check_columns(node.columns, chunk.schema)
            chunk = chunk.select(list(node.columns))
        argument = self._argument(chunk)
        try:
            if node.seed is None:
                result = node.fn(argument)
            else:
                key = (node.seed, node.place, self._epoch, origin.split, origin.piece)
                result = node.fn(argument, generator(key))
        except Exception as error:
            raise self._failed(error, chunk) from error
        batch = self._batch(result)
        return batch if node.types is None else conform(batch, node.types, self._what)

    def _argument(self, chunk: pa.RecordBatch) -> Any:
        if self._node.format == "arrow":
            return chunk
        if self._node.format == "polars":
            return pl.DataFrame(chunk)
        schema, known = chunk.schema, self._exports
        if known is None or not known[0].equals(schema):
            known = self._exports = (schema, column_exports(schema))
        return arrays_of(chunk, known[1])

    def _batch(self, result: Any) -> pa.RecordBatch:
        expected = {"arrow": pa.RecordBatch, "numpy": dict, "polars": pl.DataFrame}[self._node.format]
        if not isinstance(result, expected):
            raise FunctionError(
                f"{self._what} is a {type(result).__name__}, expected a {expected.__name__}, since "
                f"format={self._node.format!r}"
            )
        try:
            if isinstance(result, dict):
                return batch_from_arrays(result)
            if isinstance(result, pl.DataFrame):
                result = result.to_arrow().combine_chunks()
                result = pa.RecordBatch.from_arrays(
                    [_whole(column) for column in result.columns], schema=result.schema
                )
            return normalised(result, normalised_schema(result.schema))
        except SchemaError as error:
            raise FunctionError(f"{self._what} is no table: {error}") from error

    def _failed(self, error: BaseException, chunk: pa.RecordBatch) -> ArrowflowError:
        node = self._node
        text = f"{function_name(node.fn)} raised {type(error).__name__}: {error}"
        if isinstance(error, TypeError | AttributeError | ValueError) and node.format == "arrow":
            text += (
                f" (it was given {chunk.num_rows:,} rows as a pyarrow.RecordBatch, not one row; "
                "format='numpy' hands it arrays, format='polars' a data frame)"
            )
        return FunctionError(text)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class UniformKernel(SerialKernel):
    """Sees to it that all chunks have the schema of the first one that has rows."""

    def __init__(self, function: str) -> None:
        self._what = f"what {function} returned"
        self._schema: pa.Schema | None = None

    def open(self, position: Position, epoch: int) -> Position:
        """Passes the position on."""
        return position

    def push(self, item: Item) -> Iterator[Item]:
        """Passes the chunk on, its columns in the first one's order."""
        chunk = item.chunk
        if chunk.num_rows:
            if self._schema is None:
                self._schema = chunk.schema
            try:
                chunk = conform(chunk, self._schema, self._what + " later")
            except SchemaError as error:
                error.locate(operator=Map.name)
                raise
        yield item._replace(chunk=chunk)

"""`join`: rows look up a table by a key.

The table lies in memory. A process makes one index of its keys, when the first chunk comes. So each chunk is joined for
itself, by any worker, and a run begins anywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import pyarrow as pa

from arrowflow.errors import DataError, PlanError, SchemaError, repeated, shown
from arrowflow.kernels.context import Context
from arrowflow.kernels.gather import GatherKernel, OfSchema, chosen, gathered
from arrowflow.kernels.items import Noted, Origin
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.lookup.key_index import MAX_ROWS, MISSING, Groups, KeyIndex, Places, index_bytes
from arrowflow.lookup.keys import check_keys
from arrowflow.ops.columns.column_program import check_columns, column_names
from arrowflow.ops.rows.explode import repeat_cut_spec
from arrowflow.ops.sources.from_memory import same_batches
from arrowflow.options import ResolvedOptions, check_choice, check_flag
from arrowflow.plan.node import Columns, Node
from arrowflow.plan.traits import Borders, Traits
from arrowflow.types import is_untyped, normalise, untyped

How = Literal["left", "inner"]


class LookupTable:
    """A table with an index of its keys.

    Args:
        rows: The table.
        on: The columns that make the key.

    Attributes:
        rows: The table.
        keys: The columns of the key.
        values: The other columns.
    """

    def __init__(self, rows: pa.RecordBatch, on: Sequence[str]) -> None:
        self.rows = rows
        self.keys = rows.select(list(on))
        self.values = rows.select([name for name in rows.schema.names if name not in on])

    def __reduce__(self) -> tuple[Any, ...]:
        return LookupTable, (self.rows, self.keys.schema.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LookupTable) and same_batches([self.rows], [other.rows])

    def __hash__(self) -> int:
        return hash((self.rows.num_rows, str(self.rows.schema)))

    @cached_property
    def index(self) -> KeyIndex:
        """The index. Several workers may make it at once; each of the results is right."""
        return KeyIndex(self.keys)

    @cached_property
    def groups(self) -> Groups:
        """All rows of each key; as `index`."""
        return self.index.groups()

    def check_once(self) -> None:
        """Raises `DataError` if a key comes twice."""
        again = self.index.again
        if again is not None:
            key = shown(dict(self.keys.slice(again[0], 1).to_pylist()[0]))
            raise DataError(
                f"rows {again[0]:,} and {again[1]:,} of the table have the key {key}, expected each key once; drop one of the "
                "rows, or write unique=False for a row of each"
            )

    def buffers(self, *, groups: bool) -> dict[int, int]:
        """Returns the bytes of all that is held, by address; the index has that of this object, which no buffer has.

        Args:
            groups: Whether `groups` is used, too.
        """
        held = (buffer for column in self.rows.columns for buffer in column.buffers() if buffer is not None)
        index = {id(self): index_bytes(self.keys, groups=groups)}
        return index | {buffer.address: buffer.size for buffer in held}


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Operator):
    """The rows of its input with the columns of the rows of a table that have the same key; null is no key.

    Row order: as its input, then as the table. Memory: the table and its index, 28 to 52 bytes a row (up to 65,536
    rows at most 1 MiB more), and 20 more where rows repeat, charged to the budget; output of each call, where rows repeat of
    `max_chunk_rows` rows, 65,536. Deterministic. Resume: as its input; where rows repeat, (position before the chunk, rows
    of it that are gone).

    Attributes:
        table: The table.
        key: The columns of the key.
        columns: The columns of the table that the output has.
        how: The treatment of rows whose key the table lacks: "left" keeps them, with null.
        unique: Whether each key comes once in the table.
    """

    name: ClassVar[str] = "join"

    table: LookupTable = dataclasses.field(repr=False)
    key: tuple[str, ...]
    columns: tuple[str, ...]
    how: How
    unique: bool

    @classmethod
    def of(cls, below: Node, table: pa.RecordBatch, on: Any, *, how: Any, unique: Any) -> Self:
        """Returns the node, with arguments as users write them; the table has the types of a pipeline."""
        names = column_names(cls.name, (on,))
        if twice := repeated(names):
            raise PlanError(f"join: on= names different columns, got {twice[0]!r} more than once")
        check_choice(cls.name, "how", how, get_args(How))
        try:
            check_columns(names, table.schema)
            check_keys(names, table.schema, "name others with on=")
        except PlanError as error:
            raise PlanError(f"join: in the table: {error}") from error
        if table.num_rows > MAX_ROWS:
            raise PlanError(f"join: a table has at most {MAX_ROWS:,} rows, got {table.num_rows:,}")
        lookup = LookupTable(table, names)
        columns = tuple(lookup.values.schema.names)
        return cls(
            inputs=(below,),
            table=lookup,
            key=names,
            columns=columns,
            how=how,
            unique=check_flag(cls.name, "unique", unique),
        )

    @property
    def traits(self) -> Traits:  # type: ignore[override]  # what becomes of rows depends on the arguments
        """One row out per row in, unless rows are left out or repeat."""
        if not self.unique:
            return Traits(borders=Borders.FREE, needs_rows=True, local=True, in_turn=True)
        drops = self.how == "inner"
        return Traits(one_to_one=not drops, drops_rows=drops, needs_rows=drops)

    def arguments(self) -> Mapping[str, Any]:
        """Returns the arguments, and of the table rows and schema, a cheap way to tell another one apart."""
        rows = self.table.rows
        told = {"rows": rows.num_rows, "schema": str(rows.schema)}
        return {"on": list(self.key), "how": self.how, "unique": self.unique, "table": told}

    def identity(self) -> dict[str, Any]:
        return {"table": self.table.rows, "columns": self.columns, "arguments": self.arguments()}

    def describe(self) -> str:
        more = "" if self.unique else ", unique=False"
        rows = self.table.rows.num_rows
        return f"join({rows:,} rows in memory, on={list(self.key)!r}, how={self.how!r}{more})"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Returns its input's columns, then those of the table.

        Raises:
            PlanError: A column of the key is unknown, or a column is in both.
            SchemaError: A column of the key has another type in the table.
        """
        schema, values = inputs[0], self.table.values.schema
        check_columns(self.key, schema)
        for name in self.columns:
            if name in schema.names:
                raise PlanError(
                    f"column {name!r} is in the dataset and in the table; write .drop({name!r}) or "
                    f".rename({{{name!r}: {name + '_of_rows'!r}}}) before join, or leave it out of the table"
                )
        if is_untyped(schema):
            return untyped([*schema.names, *self.columns])
        for wanted in self.table.keys.schema:
            found = schema.field(wanted.name).type
            codes = pa.types.is_dictionary(found) or pa.types.is_dictionary(wanted.type)
            # The width of offsets does not matter: equal values have equal words.
            if found != wanted.type and (codes or normalise(found) != normalise(wanted.type)):
                raise SchemaError(
                    f"the key {wanted.name!r} is {found} in the dataset and {wanted.type} in the table, expected one type; "
                    f"write .cast({{{wanted.name!r}: {_spelled(wanted.name, wanted.type)}}}) before join, or cast it in the table"
                ).locate(operator=self.name)
        return pa.schema([*schema, *(values.field(name) for name in self.columns)])

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        return (None if wanted is None else wanted.union(self.key),)

    def narrow(self, wanted: frozenset[str]) -> Node:
        columns = tuple(name for name in self.columns if name in wanted)
        same = columns == self.columns
        return self if same else dataclasses.replace(self, columns=columns).on(*self.inputs)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        held = sum(self.table.buffers(groups=not self.unique).values())
        look_up = KernelSpec(
            "stateless",
            lambda context: (JoinKernel if self.unique else MatchKernel)(self, context),
            engine="numpy+arrow",
            floor_bytes=held,
            repeats=self.unique,
            facts=f"look up {', '.join(map(repr, self.key))}; table and index hold {held:,} bytes",
        )
        if self.unique:
            return (look_up,)
        cut = repeat_cut_spec("matches", lambda matches: matches.counts, options)
        gather = KernelSpec(
            "stateless",
            lambda context: MatchedKernel(self, context),
            engine="numpy+arrow",
            facts="gather a row for each match",
        )
        return look_up, cut, gather


def _spelled(name: str, type: pa.DataType) -> str:
    """Returns a type as Python code; `table` is the user's table."""
    text = {"double": "float64", "float": "float32", "bool": "bool_"}.get(str(type), str(type))
    if text.isidentifier():
        return f"pa.{text}()"
    return f"pa.{text}" if pa.types.is_decimal(type) else f"pa.table(table).schema.field({name!r}).type"


class _JoinKernel:
    """Base of the kernels of a join.

    The claim on the memory of the table lies with the run: several streams of it share the table.
    """

    def __init__(self, node: Join, context: Context) -> None:
        self.node = node
        self.table = node.table
        self.values = node.table.values.select(list(node.columns))
        self.schema_of = OfSchema(lambda schema: node.output_schema([schema]))
        if (Join, id(self.table)) not in context.run_storage:
            context.run_storage[Join, id(self.table)] = context.keep(
                self.table.buffers(groups=not node.unique)
            )

    def attached(self, chunk: pa.RecordBatch, rows: Any) -> pa.RecordBatch:
        """Returns a chunk with the values of these rows of the table, int32 or int64; null where a row is missing."""
        columns = chunk.columns
        if self.values.num_columns:
            places = rows.view(np.uint32) if rows.dtype == np.int32 else rows
            columns += gathered(self.values, places, rows != MISSING).columns
        return pa.RecordBatch.from_arrays(columns, schema=self.schema_of(chunk.schema))


class JoinKernel(_JoinKernel, GatherKernel):
    """Looks up the one row of each key."""

    def gather(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        self.schema_of(chunk.schema)
        self.table.check_once()
        rows = self.table.index.find(chunk)
        if self.node.how == "inner":
            found = np.flatnonzero(rows != MISSING)
            chunk, rows = chosen(chunk, found), rows[found]
        return self.attached(chunk, rows)


@dataclass(slots=True)
class Matches(Noted):
    """Rows with their matches.

    Attributes:
        starts: Where the matches of each row begin in `Groups.rows`, or `MISSING`.
        counts: How many rows each of them makes.
    """

    starts: Places
    counts: Places

    def slice(self, offset: int, length: int | None = None) -> Matches:
        """Returns some of the rows."""
        stop = None if length is None else offset + length
        return Matches(self.chunk.slice(offset, length), self.starts[offset:stop], self.counts[offset:stop])


class MatchKernel(_JoinKernel, StatelessKernel):
    """Finds the matches of each row."""

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> Matches:
        self.schema_of(chunk.schema)
        rows, groups = self.table.index.find(chunk), self.table.groups
        starts, counts = groups.starts.take(rows), groups.counts.take(rows)
        if self.node.how == "left":
            counts[rows == MISSING] = 1
        return Matches(chunk, starts, counts)


class MatchedKernel(_JoinKernel, GatherKernel):
    """Gathers a row for each match."""

    def gather(self, chunk: Matches, origin: Origin) -> pa.RecordBatch:
        starts, counts = chunk.starts, chunk.counts
        places = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        places += np.arange(len(places))
        rows = self.table.groups.rows.take(places, mode="clip")
        if starts.min() == MISSING:
            rows[np.repeat(starts == MISSING, counts)] = MISSING
        again = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)
        return self.attached(gathered(chunk.chunk, again), rows)

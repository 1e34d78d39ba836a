"""`FromTables`: tables that a neighbouring library computes or fetches piece by piece.

Such a library is never imported here: the owner of one of its objects has imported it already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import polars as pl
import pyarrow as pa

from arrowflow.errors import SourceError, said
from arrowflow.interchange.tensors import tensor_schema, tensor_table
from arrowflow.ops.sources.from_generator import FromGenerator
from arrowflow.ops.sources.from_memory import normalised_schema
from arrowflow.options import MAX_CHUNK_ROWS
from arrowflow.plan.node import BindContext, Node, Unknown
from arrowflow.workarounds.forks import check_polars

TABLE_ROWS = 1_000
"""Rows asked of `datasets` and Ray at once: a row may be an image. A fixed number of rows, not the rows that lie
together: a state counts tables, and so holds wherever the other library cuts."""


class Tables(Protocol):
    """An object that gives tables of one schema, from the start each time `tables` is called."""

    def schema(self) -> pa.Schema | None:
        """Returns the tables' schema, or None if only the first table tells."""

    def tables(self) -> Iterator[Any]:
        """Yields tables or record batches, cut at the same rows each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromTables(FromGenerator):
    """The rows of tables that another library makes, asked anew in each epoch.

    Row order: as they come. Memory: one table and a few ahead, and the other library's memory. Resume: asks anew and
    drops the delivered tables. Each table is a split.
    """

    name: ClassVar[str] = "from_arrow"
    takes_over: ClassVar[bool] = False

    source: Tables = field(hash=False)

    def arguments(self) -> Mapping[str, Any]:
        return {"source": type(self.source).__name__}

    def identity(self) -> dict[str, Any]:
        reason = "reads its data anew each time, which may be other data"
        return {"source": Unknown(f"the {type(self.source).__name__}", reason)}

    def functions(self) -> Mapping[str, str]:
        """The plan has no function of the user here."""
        return {}

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Asks the other library for the schema; without it the first table tells."""
        try:
            schema = self.source.schema()
        except Exception as error:
            kind = type(self.source).__name__
            raise SourceError(f"{kind}: its schema: {said(error)}") from error
        types = None if schema is None else normalised_schema(schema)
        return dataclasses.replace(self, bound=True, schema=types)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        return self.schema


@dataclass(frozen=True, slots=True)
class LazyFrame(Tables):
    """A lazy frame of Polars: run once an epoch, in its streaming engine."""

    frame: pl.LazyFrame

    def schema(self) -> pa.Schema:
        """Returns the query's schema, which at most reads the footer of a file."""
        return pl.DataFrame(schema=self.frame.collect_schema()).to_arrow().schema

    def tables(self) -> Iterator[pa.Table]:
        """Yields the result in pieces of 65,536 rows."""
        check_polars()
        if pl.__version__.startswith("1."):  # there an error of the query looks like the end of its result
            return map(
                pl.DataFrame.to_arrow, self.frame.collect(engine="streaming").iter_slices(MAX_CHUNK_ROWS)
            )
        return map(pl.DataFrame.to_arrow, self.frame.collect_batches(chunk_size=MAX_CHUNK_ROWS))


@dataclass(frozen=True, slots=True)
class Scanner(Tables):
    """A `pyarrow.dataset.Scanner`."""

    scanner: Any

    def schema(self) -> pa.Schema:
        return self.scanner.projected_schema

    def tables(self) -> Iterator[pa.RecordBatch]:
        return iter(self.scanner.to_reader())


@dataclass(frozen=True, slots=True)
class Scan(Tables):
    """An object that makes a new reader whenever it is asked, such as a scan of `pyiceberg`."""

    scan: Any

    def schema(self) -> pa.Schema:
        """Returns the schema of a reader, which is not read."""
        with self.scan.to_arrow_batch_reader() as reader:
            return reader.schema

    def tables(self) -> Iterator[pa.RecordBatch]:
        return iter(self.scan.to_arrow_batch_reader())


@dataclass(frozen=True, slots=True)
class IterableDataset(Tables):
    """A `datasets.IterableDataset`."""

    dataset: Any

    def schema(self) -> pa.Schema | None:
        """Returns the types of its features, if it knows these types."""
        features = self.dataset.features
        return None if features is None else tensor_schema(features.arrow_schema)

    def tables(self) -> Iterator[pa.Table]:
        """Yields its rows, not decoded."""
        return map(tensor_table, self.dataset.with_format("arrow").iter(TABLE_ROWS))


@dataclass(frozen=True, slots=True)
class RayDataset(Tables):
    """A `ray.data.Dataset`."""

    dataset: Any

    def schema(self) -> pa.Schema | None:
        """Returns its schema; to find an unknown schema, Ray runs the dataset up to the first row."""
        schema = self.dataset.schema()
        found = None if schema is None else schema.base_schema
        return tensor_schema(found) if isinstance(found, pa.Schema) else None

    def tables(self) -> Iterator[pa.Table]:
        return map(tensor_table, self.dataset.iter_batches(batch_size=TABLE_ROWS, batch_format="pyarrow"))

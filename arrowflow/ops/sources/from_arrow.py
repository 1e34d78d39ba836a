"""The nodes that read objects of other libraries: everything that `from_arrow` takes.

Libraries are found among the loaded modules, and never imported.
"""

from __future__ import annotations

import sys
from typing import Any

import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.ops.sources.from_indexed import FromMapped
from arrowflow.ops.sources.from_memory import from_batches
from arrowflow.ops.sources.from_stream import FromOneShot, FromStream, OneShot, is_dataset
from arrowflow.ops.sources.from_tables import (
    FromTables,
    IterableDataset,
    LazyFrame,
    RayDataset,
    Scanner,
    Tables,
)
from arrowflow.plan.node import Node


def from_arrow(source: Any) -> Node:
    """Returns the node that reads `source`.

    Raises:
        PlanError: `source` neither holds nor streams Arrow data.
    """
    tables = _tables(source)
    if tables is not None:
        return FromTables(fn=tables.tables, source=tables)
    if _is(source, "datasets", "Dataset"):
        return FromMapped(source=source)
    if not hasattr(source, "__arrow_c_stream__") and hasattr(source, "__arrow_c_array__"):
        try:
            return _held_or_streamed(pa.record_batch(source))
        except pa.ArrowInvalid as error:
            raise PlanError(
                f"from_arrow: {type(source).__name__} holds no rows of columns: {error}"
            ) from error
    return _held_or_streamed(source)


def _tables(source: Any) -> Tables | None:
    if isinstance(source, pl.LazyFrame):
        return LazyFrame(source)
    if _is(source, "datasets", "IterableDataset"):
        return IterableDataset(source)
    if _is(source, "ray.data", "Dataset"):
        return RayDataset(source)
    if _is(source, "pyarrow.dataset", "Scanner"):
        return Scanner(source)
    return None


def _is(source: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(source, kind)


def _held_or_streamed(source: Any) -> Node:
    """Returns the node for any object that holds or streams Arrow data.

    Raises:
        PlanError: The object does neither.
    """
    if isinstance(source, pa.RecordBatch):
        source = [source]
    if isinstance(source, pl.DataFrame):
        source = source.to_arrow()
    if isinstance(source, pa.Table):
        return from_batches(source.to_batches(), source.schema)
    if isinstance(source, list | tuple):
        if not source or not all(isinstance(batch, pa.RecordBatch) for batch in source):
            raise PlanError(
                "from_arrow: a list holds record batches, and at least one, which tells the schema"
            )
        return from_batches(source, source[0].schema)
    if isinstance(source, pa.RecordBatchReader):
        return FromOneShot(source=OneShot(source))
    if is_dataset(source) or hasattr(source, "__arrow_c_stream__"):
        return FromStream(source=source)
    raise PlanError(
        "from_arrow: expected a table, record batches, a pyarrow.dataset.Dataset or anything with "
        f"__arrow_c_stream__ (Polars, DuckDB, …), got {type(source).__name__}"
    )

"""The nodes that read objects of other libraries: everything that `from_arrow` takes.

Libraries are found among the loaded modules, and never imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError, SourceError, said
from arrowflow.ops.sources.from_indexed import FromMapped
from arrowflow.ops.sources.from_memory import from_batches
from arrowflow.ops.sources.from_stream import FromDataset, FromOneShot, FromStream, OneShot, is_instance
from arrowflow.ops.sources.from_tables import (
    FromTables,
    IterableDataset,
    LazyFrame,
    RayDataset,
    Scan,
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
    if is_instance(source, "datasets", "Dataset"):
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
    if is_instance(source, "datasets", "IterableDataset"):
        return IterableDataset(source)
    if is_instance(source, "ray.data", "Dataset"):
        return RayDataset(source)
    if is_instance(source, "pyarrow.dataset", "Scanner"):
        return Scanner(source)
    return None


def _held_or_streamed(source: Any) -> Node:
    """Returns the node for any object that holds or streams Arrow data."""
    if isinstance(source, pa.RecordBatch):
        source = [source]
    if isinstance(source, pl.DataFrame):
        source = source.to_arrow()
    if isinstance(source, pa.Table):
        return from_batches(source.to_batches(), source.schema)
    if isinstance(source, list | tuple):
        if not source or not all(isinstance(batch, pa.RecordBatch) for batch in source):
            raise PlanError(
                f"from_arrow: a list holds record batches, and at least one, which tells the schema{_way(source)}"
            )
        return from_batches(source, source[0].schema)
    if isinstance(source, pa.RecordBatchReader):
        return FromOneShot(source=OneShot(source))
    if is_instance(source, "pyarrow.dataset", "Dataset"):
        return FromDataset(source=source)
    if hasattr(source, "__arrow_c_stream__"):
        return FromStream(source=source)
    if _has(source, "to_arrow_batch_reader"):
        scan = Scan(source)
        return FromTables(fn=scan.tables, source=scan)
    for method in _ARROW_METHODS:
        if _has(source, method):
            try:
                made = getattr(source, method)()
            except Exception as error:
                text = f"{type(source).__name__}.{method}() gave no data: {said(error)}"
                raise SourceError(text).locate(operator="from_arrow") from error
            return from_arrow(made)
    raise PlanError(
        "from_arrow: expected a table, record batches, a pyarrow.dataset.Dataset or anything with "
        f"__arrow_c_stream__ (Polars, DuckDB, …), got {type(source).__name__}{_way(source)}"
    )


_ARROW_METHODS: Final = (
    "to_pyarrow_dataset",
    "fetch_record_batch",
    "to_arrow_reader",
    "to_arrow",
    "to_pyarrow",
    "to_arrow_table",
    "to_polars",
)
"""Methods by which tables of Delta Lake, cursors of databases and other objects give Arrow data; the first one counts.

Types that hold all rows in memory come last.
"""


def _has(source: Any, method: str) -> bool:
    return not isinstance(source, type) and callable(getattr(source, method, None))


def _way(source: Any) -> str:
    """Returns the way in for what is no Arrow data, as the end of a message."""
    first = source[0] if isinstance(source, list | tuple) and source else None
    if isinstance(source, Mapping):
        code = "af.from_numpy(columns)"
    elif isinstance(first, Mapping):
        code = "af.from_arrow(pa.Table.from_pylist(rows))"
    elif isinstance(first, pa.Table):
        code = "af.from_arrow(pa.concat_tables(tables))"
    elif isinstance(first, pl.DataFrame):
        code = "af.from_arrow(pl.concat(frames))"
    elif isinstance(source, str | PathLike):
        code = "af.read_parquet(path)"
    elif isinstance(source, np.ndarray):
        code = 'af.from_numpy({"x": array})'
    elif callable(source) or isinstance(source, Iterator):
        code = "af.from_generator(lambda: rows)"
    else:
        return ""
    return f"; write `{code}`"

"""Which node reads which object of another library: the whole of what `from_arrow` takes.

Libraries are found among the modules that are loaded, and never imported.
"""

from __future__ import annotations

import sys
from typing import Any

import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.ops.from_arrow import from_arrow
from arrowflow.ops.from_indexed import FromMapped
from arrowflow.ops.from_tables import FromTables, IterableDataset, LazyFrame, RayDataset, Scanner, Tables
from arrowflow.plan.node import Node


def node_for(source: Any) -> Node:
    """Returns the node that reads `source`.

    Raises:
        PlanError: It neither holds nor streams Arrow data.
    """
    tables = _tables(source)
    if tables is not None:
        return FromTables(fn=tables.tables, source=tables)
    if _is(source, "datasets", "Dataset"):
        return FromMapped(source=source)
    if not hasattr(source, "__arrow_c_stream__") and hasattr(source, "__arrow_c_array__"):
        try:
            return from_arrow(pa.record_batch(source))
        except pa.ArrowInvalid as error:
            raise PlanError(
                f"from_arrow: {type(source).__name__} holds no rows of columns: {error}"
            ) from error
    return from_arrow(source)


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

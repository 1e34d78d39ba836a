"""Batches that Polars cannot hold: a typed error, from expressions and from loaders."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

import arrowflow as af
from tests.ops.tables import refused


def test_times_of_a_zone_that_polars_does_not_know() -> None:
    ds = af.from_arrow(
        pa.table({"row": [1, 2], "time": pa.array([1, 2], pa.timestamp("us", "Mars/Olympus"))})
    )
    assert ds.filter(pl.col("row") > 1).to_table().num_rows == 1
    for read in (lambda: list(ds.to_polars()), lambda: ds.filter(pl.col("time").is_not_null()).to_table()):
        refused(af.SchemaError, read, "Polars cannot hold these columns", "Mars/Olympus", "cast the column")

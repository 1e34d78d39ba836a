"""pandas, pyarrow and nanoarrow: data frames by the Arrow C stream, and what reads a dataset by it."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.errors import PlanError
from tests.ops.tables import refused

pytestmark = pytest.mark.any_version

pd: Any = pytest.importorskip("pandas", reason="pandas is not installed")


def frame() -> Any:
    return pd.DataFrame({"x": [1, 2, 3], "text": ["a", None, "c"], "kind": pd.Categorical(["u", "v", "u"])})


def test_a_data_frame_is_rows() -> None:
    ds = af.from_arrow(frame())
    assert ds.schema == pa.schema({"x": pa.int64(), "text": pa.string(), "kind": pa.string()})
    expected = {"x": [1, 2, 3], "text": ["a", None, "c"], "kind": ["u", "v", "u"]}
    assert [ds.to_table().to_pydict() for _ in range(2)] == [expected] * 2


def test_an_index_that_says_something_comes_as_a_column() -> None:
    indexed = frame().set_index("text")
    assert af.from_arrow(indexed).schema.names == ["x", "kind", "text"]
    shifted = frame().iloc[[2, 0, 1]]
    assert "__index_level_0__" in af.from_arrow(shifted).schema.names
    assert af.from_arrow(shifted.reset_index(drop=True)).schema.names == ["x", "text", "kind"]


@pytest.mark.skipif(not hasattr(pd.DataFrame, "from_arrow"), reason="pandas 3 reads streams")
def test_pandas_reads_a_dataset() -> None:
    ds = af.range(5).with_columns(half=pl.col("id") / 2).batch(2)
    assert pd.DataFrame.from_arrow(ds).to_dict("list") == {"id": [0, 1, 2, 3, 4], "half": [0, 0.5, 1, 1.5, 2]}


def test_pyarrow_reads_a_dataset_as_the_types_that_it_asks_for() -> None:
    ds = af.range(300).batch(2)
    assert pa.table(ds) == ds.to_table()
    asked = pa.RecordBatchReader.from_stream(ds, pa.schema({"id": pa.int16()})).read_all()
    assert asked.schema.field("id").type == pa.int16() and asked.num_rows == 300
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        pa.RecordBatchReader.from_stream(ds, pa.schema({"id": pa.int8()})).read_all()


def test_nanoarrow_reads_a_dataset_and_gives_streams_once() -> None:
    na: Any = pytest.importorskip("nanoarrow", reason="nanoarrow is not installed")
    ds = af.range(5).batch(2)
    array = na.Array(ds)
    assert len(array) == 5
    assert af.from_arrow(array).to_table() == ds.to_table()
    refused(af.SourceError, lambda: af.from_arrow(na.ArrayStream(ds)).to_table(), "ArrayStream", "read once")
    once = pa.RecordBatchReader.from_stream(na.ArrayStream(ds))
    assert af.from_arrow(once).to_table() == ds.to_table()


def test_nanoseconds_of_pandas_are_not_dropped() -> None:
    table = pa.table(
        {"t": pa.array([None, 1], pa.timestamp("ns")), "d": pa.array([None, 1], pa.duration("ns"))}
    )
    for name, value in (("t", pd.Timestamp(5)), ("d", pd.Timedelta(5))):
        filled = af.from_arrow(table).fill_null({name: value})
        refused(PlanError, filled.to_table, "cannot be a value of type")

"""Polars reads a dataset; `from_arrow` reads frames, lazy ones in batches, and series of structs."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import check_epochs, check_resume
from tests.neighbours.snippets import run_snippet
from tests.ops.tables import refused

pytestmark = pytest.mark.any_version

ROWS = 250_000
FRAME = pl.DataFrame({"x": range(ROWS)}).with_columns(text=pl.col("x").cast(pl.String))


def test_the_snippet_does_what_it_says(tmp_path: Path) -> None:
    af.range(10).with_columns(price=pl.col("id") * 1.5, day=pl.col("id") % 3).write_parquet(
        tmp_path / "train"
    )
    found = run_snippet("polars", af=af, pl=pl, folder=tmp_path / "train")
    assert found["frame"].shape == (10, 3)
    assert found["cheap"].to_table()["id"].to_pylist() == [0, 1, 2, 3]


def test_polars_reads_a_dataset() -> None:
    ds = af.range(10).with_columns(half=pl.col("id") / 2).batch(3)
    expected = pl.DataFrame({"id": range(10)}).with_columns(half=pl.col("id") / 2)
    assert pl.DataFrame(ds).equals(expected)
    assert pl.LazyFrame(ds).collect().equals(expected)
    found = pl.from_arrow(ds)  # Polars 2 makes a series of any stream
    frame = found.struct.unnest() if isinstance(found, pl.Series) else found
    assert frame.equals(expected)


def test_a_lazy_frame_is_run_anew_in_each_epoch_in_batches() -> None:
    ds = af.from_arrow(FRAME.lazy())
    assert ds.schema == pa.schema({"x": pa.int64(), "text": pa.string()})
    assert ds.num_rows is None
    assert ds.to_table().equals(af.from_arrow(FRAME).to_table())
    assert [batch.num_rows for batch in ds] == [65_536, 65_536, 65_536, 53_392]
    check_epochs(lambda: af.from_arrow(FRAME.lazy()).batch(50_000), differ=False)
    check_resume(lambda: af.from_arrow(FRAME.lazy()).batch(50_000))


def test_a_lazy_frame_over_files_reads_nothing_before_it_is_asked(tmp_path: Path) -> None:
    ds = af.from_arrow(pl.scan_parquet(tmp_path / "a.parquet"))
    FRAME.write_parquet(tmp_path / "a.parquet")
    assert ds.take(2).to_table()["x"].to_pylist() == [0, 1]
    missing = af.from_arrow(pl.scan_parquet(tmp_path / "b.parquet"))
    refused(af.SourceError, lambda: missing.schema, "LazyFrame", "schema")


def test_a_cache_of_a_lazy_frame_needs_a_key(tmp_path: Path) -> None:
    ds = af.from_arrow(FRAME.head(3).lazy())
    refused(af.FingerprintError, lambda: ds.cache(tmp_path).to_table(), "LazyFrame", "key=")
    assert ds.cache(tmp_path, key="first three").to_table() == ds.to_table()


def test_an_error_of_a_lazy_query_is_not_its_end() -> None:
    def fails(frame: pl.DataFrame) -> pl.DataFrame:
        raise ValueError("no luck")

    ds = af.from_arrow(pl.LazyFrame({"x": [1]}).map_batches(fails, schema={"x": pl.Int64}))
    with pytest.raises(af.FunctionError, match="no luck"):
        ds.to_table()


def test_categories_are_texts_however_they_come() -> None:
    texts = ["a", None, "b"]
    values = [pl.Series("c", texts, dtype=pl.Categorical), pl.Series("e", texts, dtype=pl.Enum(["b", "a"]))]
    frame = pl.DataFrame(values)
    streamed = pa.RecordBatchReader.from_stream(frame)
    structs = pa.RecordBatchReader.from_stream(frame.to_struct("s"))
    for source in (frame, frame.lazy(), frame.select(pl.struct("c", "e")).lazy(), streamed, structs):
        table = af.from_arrow(source).to_table()
        table.validate(full=True)
        flat = table.flatten() if len(table.columns) == 1 else table
        assert [column.to_pylist() for column in flat.columns] == [texts, texts]


def test_a_series_of_structs_is_rows_and_another_one_is_not() -> None:
    structs = pl.Series("s", [{"x": 1, "y": "a"}, {"x": 2, "y": None}])
    assert af.from_arrow(structs).to_table().to_pylist() == structs.to_list()
    refused(af.SourceError, lambda: af.from_arrow(pl.Series("x", [1])).schema, "Series", "non-struct")

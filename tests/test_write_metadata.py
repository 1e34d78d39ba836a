"""Metadata of schemas go from what is read to what is written, where their columns do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af

GEO = {
    "version": "1.1.0",
    "primary_column": "shape",
    "columns": {
        "shape": {"encoding": "WKB", "geometry_types": ["Point"], "crs": {"id": 4326}, "bbox": [0, 0, 1, 1]}
    },
}
KEPT = {
    **GEO,
    "columns": {"shape": {"encoding": "WKB", "geometry_types": [], "crs": {"id": 4326}}},
}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), metadata={"unit": "m"}),
        pa.field("shape", pa.binary(), metadata={"ARROW:extension:name": "geoarrow.wkb"}),
        pa.field("é", pa.string()),
    ],
    metadata={"geo": json.dumps(GEO), "by": "me", "notes": '["\\u00e9"]'},
)
TABLE = pa.table({"id": [1, 2], "shape": [b"x", b"y"], "é": ["a", "b"]}, schema=SCHEMA)


def stored(folder: Path, name: str) -> pa.Schema:
    (path,) = folder.glob("*")
    if name == "write_parquet":
        return pq.read_schema(path)
    with pa.ipc.open_file(path) as opened:
        return opened.schema


def sources(folder: Path) -> dict[str, af.Dataset]:
    pq.write_table(TABLE, folder / "a.parquet")
    pq.write_table(TABLE, folder / "b.parquet")
    with pa.ipc.new_file(folder / "a.arrow", SCHEMA) as writer:
        writer.write_table(TABLE)
    return {
        "parquet": af.read_parquet(folder / "*.parquet"),
        "ipc": af.read_ipc(folder / "a.arrow"),
        "memory": af.from_arrow(TABLE),
    }


@pytest.mark.parametrize(
    ("source", "write"),
    [("parquet", "write_parquet"), ("ipc", "write_ipc"), ("memory", "write_parquet")],
)
@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda ds: ds, {b"geo", b"by", b"notes"}),
        (lambda ds: ds.filter(pl.col("id") > 1).shuffle(2).batch(1), {b"geo", b"by", b"notes"}),
        (lambda ds: ds.with_columns(pl.col("id") + 1, new=1), {b"geo", b"by", b"notes"}),
        (lambda ds: ds.map(lambda batch: batch, schema=SCHEMA), {b"geo", b"by", b"notes"}),
        (lambda ds: ds.select("shape", "id"), {b"geo", b"by"}),
        (lambda ds: ds.select("id", "é"), {b"by", b"notes"}),
        (lambda ds: ds.rename({"shape": "form"}), {b"by", b"notes"}),
        (lambda ds: ds.cast({"shape": pa.string()}), {b"by", b"notes"}),
        (lambda ds: af.zip(af.range(2).rename({"id": "n"}), ds), {b"geo", b"by", b"notes"}),
    ],
)
def test_metadata_are_kept_where_their_columns_are(
    tmp_path: Path, write: str, source: str, change: Any, keys: set[bytes]
) -> None:
    ds = change(sources(tmp_path)[source])
    getattr(ds, write)(tmp_path / "out")
    found = stored(tmp_path / "out", write)
    assert set(found.metadata) - {b"ARROW:schema"} == keys
    if b"geo" in keys:
        assert json.loads(found.metadata[b"geo"]) == KEPT
        assert (found.field("shape").metadata or {}).get(b"ARROW:extension:name") == b"geoarrow.wkb"
    assert (found.field("id").metadata or {}).get(b"unit") == b"m"
    read = af.read(tmp_path / "out", format=write.removeprefix("write_"))
    assert read.schema == ds.schema and not read.schema.metadata, "no metadata travel inside"


def test_pandas_reads_its_index_again(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.5, 2.5]}, index=pd.Index(["a", "b"], name="key"))
    frame.to_parquet(tmp_path / "a.parquet")
    ds = af.read_parquet(tmp_path / "a.parquet")
    ds.write_parquet(tmp_path / "all")
    assert pd.read_parquet(tmp_path / "all" / "part-00000.parquet").equals(frame)
    ds.select("x").write_parquet(tmp_path / "some")
    found = pd.read_parquet(tmp_path / "some" / "part-00000.parquet")
    assert found.to_dict("list") == {"x": [1.5, 2.5]}
    np.testing.assert_array_equal(found.index, [0, 1])


@pytest.mark.parametrize("geo", [b"{}", b"[]", b"no JSON", b'{"columns": []}', b'{"columns": {"shape": 1}}'])
def test_what_is_no_metadata_of_geoparquet_is_kept_as_it_is(geo: bytes, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}).replace_schema_metadata({"geo": geo}), tmp_path / "a.parquet")
    af.read_parquet(tmp_path / "a.parquet").write_parquet(tmp_path / "out")
    assert stored(tmp_path / "out", "write_parquet").metadata[b"geo"] == geo


def test_a_plan_without_sources_of_metadata(tmp_path: Path) -> None:
    af.range(2).write_ipc(tmp_path / "out")
    assert not stored(tmp_path / "out", "write_ipc").metadata

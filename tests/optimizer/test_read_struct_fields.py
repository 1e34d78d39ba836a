"""Single fields of structs are read from Parquet without the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.testing import check_dataset
from tests.ops.tables import refused

pytestmark = pytest.mark.any_version

INNER = pa.struct({"deep": pa.list_(pa.int8()), "flat": pa.float64()})
STRUCT = pa.struct({"a": pa.int64(), "b": pa.string(), "c": INNER})
ROWS: list[Any] = [
    {
        "row": row,
        "s": None if row % 5 == 0 else {"a": None if row % 7 == 0 else row, "b": "x" * row, "c": inner},
    }
    for row, inner in enumerate([None, {"deep": [1, 2], "flat": 0.5}, {"deep": None, "flat": None}] * 8)
]
TABLE = pa.Table.from_pylist(ROWS, pa.schema({"row": pa.int64(), "s": STRUCT}))
S = pl.col("s").struct

READS: dict[str, Any] = {
    "one field": lambda ds: ds.select("row", a=S.field("a")),
    "a field in a filter": lambda ds: ds.filter(S.field("a") > 3).select("row"),
    "two fields": lambda ds: ds.select(x=S.field("a") + S.field("b").str.len_bytes()),
    "a field of a field": lambda ds: ds.select(x=S.field("c").struct.field("flat")),
    "a field with lists": lambda ds: ds.select(x=S.field("c")),
    "null structs": lambda ds: ds.select(x=S.field("b").is_null()),
    "a field, then batches": lambda ds: ds.select(x=S.field("a")).shuffle(9, seed=1).batch(4),
}
WHOLE: dict[str, Any] = {
    "the struct as well": lambda ds: ds.with_columns(a=S.field("a")),
    "nulls of the struct": lambda ds: ds.select(a=S.field("a"), n=pl.col("s").is_null()),
    "by pyarrow": lambda ds: ds.select(a=pc.field("s", "a")),
    "all fields": lambda ds: ds.select(a=S.field("a"), b=S.field("b"), c=S.field("c")),
    "a function": lambda ds: ds.map(lambda batch: batch, schema=TABLE.schema).select(a=S.field("a")),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("structs")
    for number in range(2):
        pq.write_table(TABLE, folder / f"{number}.parquet", row_group_size=7)
    return folder


def _read(ds: af.Dataset) -> Any:
    node: Any = ds._ready().optimised
    while node.inputs:
        (node,) = node.inputs
    return node


@pytest.mark.parametrize("name", READS)
def test_fields_are_read_alone(name: str, files: Path) -> None:
    ds = READS[name](af.read_parquet(files))
    off = ds.with_options(af.Options(disabled_rules=["read_struct_fields"]))
    assert ds.to_table().equals(off.to_table())
    some, all_of_them = _read(ds), _read(off)
    split = some.first.splits[0]
    ranges, sizes = [], []
    for source in (some, all_of_them):
        ranges.append(sum(end - start for start, end in source.format.ranges(source.first, split, ["s"])))
        sizes.append(source.format.column_bytes(source.first, split, ["s"]))
    assert 0 < ranges[0] < ranges[1]
    assert 0 < sizes[0] < sizes[1]
    assert some.schema.field("s").type.num_fields < 3


@pytest.mark.parametrize("name", WHOLE)
def test_structs_that_are_needed_are_read_whole(name: str, files: Path) -> None:
    ds = WHOLE[name](af.read_parquet(files))
    assert _read(ds).schema.field("s").type == STRUCT
    off = ds.with_options(af.Options(disabled_rules=["read_struct_fields"]))
    assert ds.to_table().equals(off.to_table())


def test_contracts(files: Path) -> None:
    check_dataset(lambda: READS["two fields"](af.read_parquet(files)))


def test_a_file_with_another_struct_is_refused_all_the_same(files: Path, tmp_path: Path) -> None:
    other = tmp_path / "2.parquet"
    pq.write_table(pa.table({"row": [1], "s": pa.array([{"a": 1}])}), other)
    ds = af.read_parquet([files / "0.parquet", other])
    refused(af.SchemaError, lambda: READS["one field"](ds).to_table(), "'s'", "2.parquet")


def test_names_with_dots_are_read_whole(tmp_path: Path) -> None:
    struct = pa.array([{"a": 1, "a.b": 2}])
    pq.write_table(pa.table({"s": struct}), tmp_path / "0.parquet")
    ds = af.read_parquet(tmp_path).select(x=S.field("a"))
    assert ds.to_table().to_pydict() == {"x": [1]}


def test_files_on_other_stores_fetch_fewer_bytes(files: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(files / "0.parquet"), "/structs/0.parquet")
    ds = af.read_parquet("/structs/0.parquet", filesystem=memory)
    assert READS["one field"](ds).to_table()["a"].to_pylist() == [
        None if row["s"] is None else row["s"]["a"] for row in ROWS
    ]
    memory.rm("/structs", recursive=True)

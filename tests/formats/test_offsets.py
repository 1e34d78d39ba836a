"""Files whose texts and lists have offsets of another width than those of the first file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.errors import SchemaError
from arrowflow.testing import check_dataset
from tests.formats.reading import write_table

VALUES: dict[str, list[Any]] = {
    "text": ["u", None],
    "bytes": [b"1", None],
    "list": [["q"], [None]],
    "fixed": [["z"], ["y"]],
    "struct": [{"a": "1", "b": ["x"]}, None],
    "map": [[("k", "v")], []],
}


def table(*, wide: bool) -> pa.Table:
    text, binary = (pa.large_string(), pa.large_binary()) if wide else (pa.string(), pa.binary())
    some = pa.large_list(text) if wide else pa.list_(text)
    schema = pa.schema(
        {
            "text": text,
            "bytes": binary,
            "list": some,
            "fixed": pa.list_(text, 1),
            "struct": pa.struct({"a": text, "b": some}),
            "map": pa.map_(pa.string(), text),
        }
    )
    return pa.table(VALUES, schema=schema)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("wide_first", [True, False])
def test_they_mix(tmp_path: Path, suffix: str, wide_first: bool) -> None:
    for number in range(4):
        write_table(tmp_path / f"{number}{suffix}", table(wide=(number % 2 == 0) == wide_first))
    first = table(wide=wide_first).schema
    if suffix == ".parquet":  # of maps pyarrow 22 reads `large_string` as `string`
        first = pq.read_schema(tmp_path / f"0{suffix}").remove_metadata()
    ds = af.read(tmp_path, format="parquet" if suffix == ".parquet" else "ipc")
    found = ds.to_table()
    assert ds.schema == found.schema == first
    for name, values in VALUES.items():
        assert found.column(name).to_pylist() == values * 4
    assert ds.filter(pl.col("text") == "u").to_table().num_rows == 4
    if wide_first:
        check_dataset(lambda: ds.batch(3))


def test_other_types_do_not(tmp_path: Path) -> None:
    write_table(tmp_path / "0.parquet", pa.table({"x": pa.array([["a"]], pa.list_(pa.string()))}))
    write_table(tmp_path / "1.parquet", pa.table({"x": pa.array([[1]], pa.large_list(pa.int64()))}))
    with pytest.raises(SchemaError, match="column 'x': expected list"):
        af.read_parquet(tmp_path).to_table()

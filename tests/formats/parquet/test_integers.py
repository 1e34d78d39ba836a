"""Footers that call decimals integers: same values, half the bytes, and nothing else changed."""

from __future__ import annotations

import decimal
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats.parquet.integers import as_integers, stored_as_integers
from arrowflow.formats.parquet.pages import stored_footer

SCALED = [None, -1234, 0, 5, 99_999_999_999_999]


def table(type: pa.DataType) -> pa.Table:
    """A decimal between other columns, nested and annotated ones too."""
    values = [None if v is None else decimal.Decimal(v).scaleb(-type.scale) for v in SCALED]
    return pa.table(
        {
            "s": pa.array(["a", "b", None, "d", "e"]),
            "nested": pa.array(
                [{"d": value, "l": [1, 2]} for value in values],
                pa.struct({"d": type, "l": pa.list_(pa.int64())}),
            ),
            "d": pa.array(values, type),
            "t": pa.array([1, 2, 3, None, 5], pa.timestamp("us")),
            "other": pa.array(values, type),
        }
    )


def write(path: Path, type: pa.DataType, *, as_int: bool = True) -> Path:
    pq.write_table(table(type), path, store_decimal_as_integer=as_int, row_group_size=2)
    return path


@pytest.mark.parametrize("type", [pa.decimal128(15, 2), pa.decimal128(18, 0), pa.decimal128(18, 3)])
def test_only_the_named_leaf_changes(tmp_path: Path, type: pa.DataType) -> None:
    path = write(tmp_path / "a.parquet", type)
    metadata = pq.read_metadata(path)
    names = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)]
    leaf = names.index("d")
    changed = as_integers(stored_footer(path.read_bytes()), frozenset({leaf}))
    with pq.ParquetFile(path, metadata=changed) as file:
        read = file.read()
    assert read["d"].to_pylist() == SCALED
    assert read["d"].type == pa.int64()
    plain = pq.read_table(path)
    for name in ("s", "nested", "other"):
        assert read[name].combine_chunks().cast(plain[name].type) == plain[name].combine_chunks(), name
    assert changed.num_rows == metadata.num_rows
    assert changed.num_row_groups == metadata.num_row_groups


def test_only_64_bit_integers_count(tmp_path: Path) -> None:
    wide = pq.read_metadata(write(tmp_path / "w.parquet", pa.decimal128(15, 2), as_int=False))
    narrow = pq.read_metadata(write(tmp_path / "n.parquet", pa.decimal128(18, 4)))
    leaf = narrow.num_columns - 1
    assert not stored_as_integers(wide, leaf)
    assert stored_as_integers(narrow, leaf)


FEATURES = (
    pl.col("d").cast(pl.Float32).alias("f"),
    (pl.col("d").cast(pl.Float64) * 2).alias("g"),
    pl.col("t"),
)


@pytest.mark.parametrize("as_int", [True, False])
def test_the_rule_never_changes_a_row(tmp_path: Path, as_int: bool) -> None:
    write(tmp_path / "a.parquet", pa.decimal128(15, 2), as_int=as_int)
    write(tmp_path / "b.parquet", pa.decimal128(15, 2), as_int=not as_int)
    dataset = af.read_parquet(tmp_path).filter(pl.col("t").is_not_null()).select(*FEATURES)
    off = dataset.with_options(af.Options(disabled_rules=["read_stored_decimals"]))
    assert "as stored integers: d" in dataset.explain()
    assert "as stored integers" not in off.explain()
    assert dataset.to_table() == off.to_table()
    assert dataset.to_table()["f"].to_pylist()[1] == np.float32(-12.34)


def test_a_decimal_that_somebody_needs_stays_one(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.decimal128(15, 2))
    files = af.read_parquet(tmp_path)
    for dataset in (
        files.with_columns(f=pl.col("d").cast(pl.Float32)),
        files.select("d", pl.col("other").cast(pl.Float32)),
        files.select((pl.col("d") * pl.col("d")).alias("x")),
    ):
        assert "integers: d" not in dataset.explain()
        off = dataset.with_options(af.Options(disabled_rules=["read_stored_decimals"]))
        assert dataset.to_table() == off.to_table()

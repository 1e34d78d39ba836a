"""Rows from the middle of a row group, decoded from their pages alone."""

from __future__ import annotations

import decimal
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arrowflow.formats.parquet import pages
from arrowflow.formats.parquet.parquet import ParquetFormat
from arrowflow.formats.parquet.thrift import fields, list_header, written_list, written_struct
from arrowflow.formats.varints import varint, written_number
from tests.formats.reading import open_footer

ROWS = 5_000


def table() -> pa.Table:
    rng = np.random.default_rng(3)
    mask = rng.random(ROWS) < 0.1
    return pa.table(
        {
            "id": np.arange(ROWS),
            "few": pa.array(rng.integers(0, 9, ROWS).astype(np.int32), mask=mask),
            "float": pa.array(rng.standard_normal(ROWS), mask=mask),
            "flag": rng.random(ROWS) < 0.5,
            "time": pa.array(np.arange(ROWS), pa.timestamp("us", "UTC")),
            "text": [("ä" * (number % 70)) for number in range(ROWS)],
            "enum": pa.array(["x", "yy", None, "z"] * (ROWS // 4)).dictionary_encode(),
            "price": pa.array([decimal.Decimal(number) / 4 for number in range(ROWS)], pa.decimal128(15, 2)),
            "void": pa.nulls(ROWS, pa.int16()),
        }
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False},
    "dictionaries": {"compression": "zstd"},
    "second version": {"data_page_version": "2.0", "compression": "snappy"},
    "checksums": {"write_page_checksum": True},
    "page index": {"write_page_index": True, "compression": "none"},
    "a dictionary that overflows": {"dictionary_pagesize_limit": 512},
    "decimals as integers": {"store_decimal_as_integer": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_any_rows_are_those_of_the_whole(tmp_path: Path, name: str) -> None:
    path, groups = tmp_path / "a.parquet", 2
    pq.write_table(
        table(),
        path,
        row_group_size=ROWS // groups,
        data_page_size=1 << 10,
        write_batch_size=64,
        **OPTIONS[name],
    )
    store, footer = open_footer(ParquetFormat(), path)
    format, names = ParquetFormat(), footer.schema.names
    for split in footer.splits:
        assert format.is_cut(footer, split, names)
        (whole,) = format.read(store, footer, split, footer.schema)
        cuts = format.cuts(store, footer, split, names, 300)
        assert cuts
        assert min(np.diff([0, *cuts, split.num_rows])[:-1]) >= 300
        ends = [0, *cuts, split.num_rows]
        for start, stop in [
            *itertools.pairwise(ends),
            (0, 1),
            (7, 1999),
            (split.num_rows - 1, split.num_rows),
        ]:
            (piece,) = format.read_rows(store, footer, split, footer.schema, start, stop)
            assert piece.schema.equals(whole.schema, check_metadata=True)
            assert piece.equals(whole.slice(start, stop - start)), (start, stop)


def test_decimals_come_as_the_integers_that_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, data_page_size=1 << 10, write_batch_size=64, store_decimal_as_integer=True)
    format = ParquetFormat(stored=frozenset(["price"]))
    store, footer = open_footer(format, path)
    (split,) = footer.splits
    wanted = pa.schema([footer.schema.field("price"), footer.schema.field("id")])
    assert format.cuts(store, footer, split, wanted.names, 100)
    (piece,) = format.read_rows(store, footer, split, wanted, 1000, 1003)
    assert piece.to_pydict() == {"price": [25000, 25025, 25050], "id": [1000, 1001, 1002]}


def test_columns_that_a_file_lacks_are_null(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, data_page_size=1 << 10, write_batch_size=64)
    format = ParquetFormat()
    store, footer = open_footer(format, path)
    wanted = pa.schema([("absent", pa.int64()), ("id", pa.float64())])
    assert format.cuts(store, footer, footer.splits[0], wanted.names, 100)
    (piece,) = format.read_rows(store, footer, footer.splits[0], wanted, 10, 12)
    assert piece.to_pydict() == {"absent": [None, None], "id": [10.0, 11.0]}


def test_lists_and_structs_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1], "list": [[1, 2]], "struct": [{"a": 1, "b": 2}]}), path)
    format = ParquetFormat()
    _, footer = open_footer(format, path)
    cut = {name: format.is_cut(footer, footer.splits[0], [name]) for name in footer.schema.names}
    assert cut == {"id": True, "list": False, "struct": False}
    assert not format.is_cut(footer, footer.splits[0], [])


# ---------------------------------------------------------------- what may be wrong with a file


def column_chunk(tmp_path: Path) -> tuple[bytes, int, int]:
    path = tmp_path / "a.parquet"
    pq.write_table(table().select(["few"]), path, data_page_size=1 << 10, write_batch_size=64)
    column = pq.read_metadata(path).row_group(0).column(0)
    start = column.dictionary_page_offset
    return path.read_bytes(), start, start + column.total_compressed_size


def found(data: bytes, start: int, end: int, rows: int = ROWS) -> pages.Pages | None:
    return pages.pages_of(lambda at, to: data[at:to], start, end, rows)


def test_damaged_headers_are_noticed(tmp_path: Path) -> None:
    data, start, end = column_chunk(tmp_path)
    known = found(data, start, end)
    assert known is not None
    assert known.dictionary[0] == start
    assert known.offsets[-1] == end
    assert found(data, start, end, ROWS - 1) is None
    assert found(data, start, end, ROWS + 1) is None
    assert found(data, start, end - 1) is None
    rng = np.random.default_rng(0)
    for _ in range(500):
        damaged = bytearray(data)
        for at in rng.integers(start, end, 4):
            damaged[at] = rng.integers(256)
        found(bytes(damaged), start, end)


def test_long_statistics_are_read_in_a_second_try(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [chr(97 + number % 26) * 900 for number in range(200)]
    pq.write_table(
        pa.table({"text": texts}), path, use_dictionary=False, data_page_size=4096, write_batch_size=8
    )
    format = ParquetFormat()
    store, footer = open_footer(format, path)
    cuts = format.cuts(store, footer, footer.splits[0], ["text"], 1)
    assert cuts
    (piece,) = format.read_rows(store, footer, footer.splits[0], footer.schema, cuts[3], cuts[3] + 2)
    assert piece["text"].to_pylist() == texts[cuts[3] : cuts[3] + 2]


# ---------------------------------------------------------------- Thrift


def numbers(data: bytes) -> Iterator[tuple[int, int]]:
    for field in fields(data, 0):
        value, _ = varint(data, field.start)
        yield field.number, value >> 1


def test_structures_are_read_as_they_were_written() -> None:
    values = {1: 5, 2: 0, 16: 1 << 40, 32: 127, 300: 128}
    written = written_struct((number, 6, written_number(value)) for number, value in values.items())
    assert dict(numbers(written)) == values
    for count in (0, 14, 15, 400):
        data = written_list(6, [written_number(7)] * count)
        assert list_header(data, 0)[:2] == (count, 6)

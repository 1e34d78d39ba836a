"""Parquet: every kind of column, file system and decoder gives what pyarrow reads; the rest is one typed error."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import arrowflow as af
from arrowflow.errors import SourceError
from arrowflow.formats import FORMATS, ColumnStatistics, Footer, Split, decoded_schema, match
from arrowflow.formats.parquet import arrow_decoder, details, parquet, polars_decoder
from arrowflow.formats.parquet.parquet import ParquetFormat, _rows_from
from arrowflow.physical.tuning import POOLED_CORES
from arrowflow.storage import Store, coalesce
from tests.formats.reading import KINDS, open_footer, read_all, read_split

PARQUET = FORMATS["parquet"]
DAY = dt.date(2020, 1, 1)
TIME = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC).replace(tzinfo=None)


@functools.cache
def table(rows: int = 10) -> pa.Table:
    numbers = list(range(rows))
    texts = [None if i % 3 == 0 else f"text number {i}" for i in numbers]
    return pa.table(
        {
            "a": pa.array(numbers, pa.int32()),
            "a.b": pa.array([float(i) for i in numbers]),
            "nest": pa.array([{"a": i, "b": {"c": str(i)}} for i in numbers]),
            "text": pa.array(texts),
            "view": pa.array(texts, pa.string_view()),
            "raw": pa.array([None if t is None else t.encode() for t in texts], pa.binary_view()),
            "code": pa.array(texts).dictionary_encode(),
            "price": pa.array([decimal.Decimal(i) / 4 for i in numbers], pa.decimal128(15, 2)),
            "list": pa.array([[i, None] if i % 2 else None for i in numbers], pa.list_(pa.int16())),
            "lists": pa.array([[[str(i)], []] for i in numbers]),
            "map": pa.array([[(str(i), i)] for i in numbers], pa.map_(pa.string(), pa.int64())),
            "null": pa.nulls(rows),
            "day": pa.array([DAY] * rows),
            "time": pa.array([TIME] * rows, pa.timestamp("ns", "UTC")),
            "fixed": pa.array([[i, i] for i in numbers], pa.list_(pa.float32(), 2)),
            "flag": pa.array([i % 2 == 0 for i in numbers]),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parquet")
    pq.write_table(table(), path / "all.parquet", row_group_size=4)
    return path


def write(path: Path, data: pa.Table, **options: Any) -> Path:
    pq.write_table(data, path, **options)
    return path


def test_all_columns_on_all_file_systems(folder: Path) -> None:
    path = folder / "all.parquet"
    for kind in KINDS:
        assert read_all(PARQUET, path, kind=kind).equals(table().cast(decoded_schema(table().schema)))
    for name, kind in itertools.product(table().column_names, ("mapped", "fsspec")):
        schema = decoded_schema(table().select([name]).schema)
        found = read_all(PARQUET, path, kind=kind, schema=schema)
        assert found.column(0).to_pylist() == table().column(name).to_pylist()


def test_footer(folder: Path) -> None:
    _, footer = open_footer(PARQUET, folder / "all.parquet")
    assert [split.num_rows for split in footer.splits] == [4, 4, 2]
    assert all(field.nullable and field.metadata is None for field in footer.schema)
    assert all(split.num_bytes > 0 for split in footer.splits)
    assert "details" not in repr(footer), "it is not printed whole"


def test_offset(folder: Path) -> None:
    store, footer = open_footer(PARQUET, folder / "all.parquet")
    for offset in (0, 1, 3, 4, 9):
        found = read_split(PARQUET, store, footer, footer.splits[1], pa.schema({"a": pa.int32()}), offset)
        assert found.column(0).to_pylist() == [4, 5, 6, 7][offset:]


def test_offset_across_batches() -> None:
    batches = [pa.RecordBatch.from_pydict({"a": values}) for values in ([1, 2], [3], [4, 5])]
    for offset in range(6):
        found = [value for batch in _rows_from(batches, offset) for value in batch.column(0).to_pylist()]
        assert found == [1, 2, 3, 4, 5][offset:]
    assert [batch.num_rows for batch in _rows_from(batches[:1], 2)] == [0]


def test_order_widening_and_absent_columns(folder: Path) -> None:
    schema = pa.schema(
        {"text": pa.large_string(), "new": pa.list_(pa.string()), "a": pa.int64(), "code": pa.string()}
    )
    store, footer = open_footer(PARQUET, folder / "all.parquet")
    match(schema, footer, widen=True)
    found = read_split(PARQUET, store, footer, footer.splits[0], schema)
    assert found.to_pylist() == [
        {"text": text, "new": None, "a": index, "code": text}
        for index, text in enumerate(table().column("text").to_pylist()[:4])
    ]


def test_no_column_of_the_file(folder: Path) -> None:
    store, footer = open_footer(PARQUET, folder / "all.parquet")
    for schema in (pa.schema([]), pa.schema({"new": pa.int8()})):
        [batch] = PARQUET.read(store, footer, footer.splits[0], schema)
        assert (batch.num_rows, batch.schema) == (4, schema)


def test_without_rows(tmp_path: Path) -> None:
    empty = table().slice(0, 0)
    path = write(tmp_path / "none.parquet", empty)
    assert read_all(PARQUET, path).num_rows == 0
    with pq.ParquetWriter(tmp_path / "groups.parquet", empty.schema) as writer:
        writer.write_table(empty)
        writer.write_table(table(3))
        writer.write_table(empty)
    assert read_all(PARQUET, tmp_path / "groups.parquet").num_rows == 3


def test_texts_over_2_gib_of_lists_are_read_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def __init__(self, reader: Any) -> None:
            self.iter_batches = reader.iter_batches

        def read_row_groups(self, *_: Any, **__: Any) -> pa.Table:
            raise pa.ArrowNotImplementedError(
                "Nested data conversions not implemented for chunked array outputs"
            )

    original = arrow_decoder._read
    monkeypatch.setattr(arrow_decoder, "_PART_ROWS", 3)
    monkeypatch.setattr(arrow_decoder, "_read", lambda reader, *rest: original(Reader(reader), *rest))
    expected = table().cast(decoded_schema(table().schema))
    assert read_all(PARQUET, folder / "all.parquet").equals(expected)


# --- the second decoder ----------------------------------------------------------------------------------


def numbers(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    mask = rng.random(rows) < 0.2
    floats = rng.standard_normal(rows).astype(np.float32)
    floats[::7] = np.nan
    return pa.table(
        {
            "f32": pa.array(floats, mask=mask),
            "f64": pa.array(floats.astype(np.float64)),
            "i8": pa.array(rng.integers(-100, 100, rows).astype(np.int8), mask=mask),
            "u64": pa.array(rng.integers(0, 2**63, rows).astype(np.uint64) * 2),
            "i32": pa.array((rng.zipf(1.5, rows) % 1000).astype(np.int32)),
            "flag": pa.array(mask, mask=mask[::-1].copy()),
            "price": pa.array([decimal.Decimal(i) / 4 for i in range(rows)], pa.decimal128(15, 2)),
            "day": pa.array(rng.integers(0, 9999, rows).astype(np.int32)).cast(pa.date32()),
            "void": pa.nulls(rows, pa.int16()),
        }
    )


@pytest.fixture
def few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets Polars decode small row groups."""
    monkeypatch.setattr(polars_decoder, "_MIN_VALUES", 1)
    monkeypatch.setattr(polars_decoder, "_FOOTER_SHARE", 0)
    monkeypatch.setattr(pl, "thread_pool_size", lambda: 2)


def decoded_by_polars(format_path: Path, names: list[str] | None = None) -> list[bool]:
    store, footer = open_footer(PARQUET, format_path)
    wanted = names or footer.schema.names
    return [
        polars_decoder.suits(store, [(footer, split)], wanted, 1 << 10)
        and polars_decoder.decode(store, [(footer, split)], wanted) is not None
        for split in footer.splits
    ]


@pytest.mark.usefixtures("few_values")
@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"use_dictionary": False, "data_page_version": "2.0"},
        {"compression": "none", "data_page_size": 256, "store_decimal_as_integer": True},
    ],
    ids=str,
)
def test_both_decoders_agree(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "n.parquet", numbers(1000), row_group_size=300, **options)
    assert decoded_by_polars(path) == [True] * 4
    fast = read_all(PARQUET, path)
    monkeypatch.setattr(polars_decoder, "_MIN_VALUES", 10**9)
    assert decoded_by_polars(path) == [False] * 4
    exact = read_all(PARQUET, path)
    assert fast.schema == exact.schema
    for name in fast.column_names:
        one, other = fast.column(name).combine_chunks(), exact.column(name).combine_chunks()
        assert one.is_valid().equals(other.is_valid())
        assert repr(one.drop_null().to_pylist()) == repr(other.drop_null().to_pylist()), name


@pytest.mark.usefixtures("few_values")
@pytest.mark.parametrize("least", [1, 10**9], ids=["polars", "arrow"])
def test_runs_decode_as_their_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    path = write(tmp_path / "n.parquet", numbers(1000), row_group_size=150)
    store, footer = open_footer(PARQUET, path)
    format = ParquetFormat(num_threads=2)
    alone = [next(format.read(store, footer, split, footer.schema)) for split in footer.splits]
    monkeypatch.setattr(polars_decoder, "_MIN_VALUES", least)
    for first, stop in ((0, 7), (2, 5), (6, 7)):
        run = format.read_run(store, [(footer, split) for split in footer.splits[first:stop]], footer.schema)
        assert run is not None
        assert [str(each.to_pydict()) for each in run] == [
            str(each.to_pydict()) for each in alone[first:stop]
        ]
        assert [each.schema for each in run] == [each.schema for each in alone[first:stop]]


FILES = 5
"""Enough files for a query of Polars, however small they are."""


def write_files(folder: Path, *, rows: Sequence[int] = (40,) * FILES, **options: Any) -> list[Path]:
    return [
        write(folder / f"{number}.parquet", numbers(size).slice(0, size), row_group_size=15, **options)
        for number, size in enumerate(rows)
    ]


def run_of(paths: Sequence[Path]) -> tuple[Store, list[tuple[Footer, Split]]]:
    opened = [open_footer(PARQUET, path) for path in paths]
    return opened[0][0], [(footer, split) for _, footer in opened for split in footer.splits]


def assert_run_is_exact(run: Sequence[tuple[Footer, Split]], store: Store, *, by_polars: bool) -> None:
    schema = run[0][0].schema
    format = ParquetFormat(num_threads=1 << 10)
    assert polars_decoder.suits(store, run, schema.names, format.num_threads)
    assert (polars_decoder.decode(store, run, schema.names) is not None) is by_polars
    found = format.read_run(store, run, schema)
    assert found is not None
    alone = [next(PARQUET.read(store, footer, split, schema)) for footer, split in run]
    assert [str(each.to_pydict()) for each in found] == [str(each.to_pydict()) for each in alone]
    assert [each.schema for each in found] == [each.schema for each in alone]


def test_small_files_are_decoded_together(tmp_path: Path) -> None:
    store, run = run_of(write_files(tmp_path, rows=(40, 1, 15, 31, 16)))
    assert_run_is_exact(run, store, by_polars=True)
    assert_run_is_exact(run[1:-1], store, by_polars=True)
    assert not polars_decoder.suits(store, run[:3], ["f32"], 1 << 10), "one small file"


def test_small_files_that_are_decoded_alone(tmp_path: Path) -> None:
    paths = write_files(tmp_path)
    store, run = run_of(paths)
    write(paths[1], numbers(20), row_group_size=15)
    assert polars_decoder.decode(store, run, run[0][0].schema.names) is None, "a file has lost rows"
    write(paths[1], numbers(40), row_group_size=15, write_page_checksum=True)
    store, run = run_of(paths)
    assert_run_is_exact(run, store, by_polars=False)
    write(paths[3], numbers(40).append_column("more", pa.array(range(40))), row_group_size=15)
    store, run = run_of(paths)
    assert not polars_decoder.suits(store, run, ["f32"], 1 << 10), "a file has other columns"
    found = ParquetFormat(num_threads=1 << 10).read_run(store, run, run[0][0].schema)
    assert found is not None and [each.num_rows for each in found] == [split.num_rows for _, split in run]


@pytest.mark.usefixtures("few_values")
def test_polars_is_left_out_where_it_does_not_suit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "n.parquet", numbers(100).append_column("^x$", pa.array(range(100))))
    assert decoded_by_polars(path, ["f32"]) == [True]
    assert decoded_by_polars(path, ["^x$"]) == [False], "a regex to Polars"
    checked = write(tmp_path / "c.parquet", numbers(100), write_page_checksum=True)
    assert decoded_by_polars(checked) == [False], "Polars does not verify checksums"
    assert read_all(PARQUET, checked).num_rows == 100
    split = write(
        tmp_path / "s.parquet",
        numbers(100).select(["f32", "f64", "i32", "day", "flag"]),
        use_dictionary=False,
        column_encoding={"f64": "BYTE_STREAM_SPLIT", "i32": "DELTA_BINARY_PACKED"},
    )
    assert decoded_by_polars(split) == [False], "Arrow decodes these two faster"
    assert decoded_by_polars(split, ["f32", "f64", "day", "flag"]) == [False]
    assert decoded_by_polars(split, ["f32", "day", "flag"]) == [True]
    text = write(tmp_path / "t.parquet", pa.table({"t": ["a"]}))
    assert decoded_by_polars(text) == [False]
    store, footer = open_footer(PARQUET, path, "fsspec")
    assert not polars_decoder.suits(store, [(footer, footer.splits[0])], ["f32"], 1 << 10)
    monkeypatch.setattr(pl, "thread_pool_size", lambda: 1)
    assert decoded_by_polars(path, ["f32"]) == [False]


@pytest.mark.usefixtures("few_values")
def test_a_pool_over_the_budget_decodes_by_one_thread_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "n.parquet", numbers(100), row_group_size=50)
    store, footer = open_footer(PARQUET, path)
    one, both = [[(footer, split) for split in footer.splits[:count]] for count in (1, 2)]
    names = ["f32", "i32"]

    def suits(run: Sequence[tuple[Footer, Split]], threads: int) -> bool:
        return polars_decoder.suits(store, run, names, threads)

    monkeypatch.setattr(pl, "thread_pool_size", lambda: 4)
    monkeypatch.setattr(polars_decoder, "ONE_THREAD_VALUES", 100)
    assert [suits(one, threads) for threads in (1, 2, 4)] == [True] * 3
    assert [suits(both, threads) for threads in (1, 2, 4)] == [False, False, True], "a thread each"
    monkeypatch.setattr(polars_decoder, "ONE_THREAD_VALUES", 99)
    assert [suits(one, threads) for threads in (1, 2, 4)] == [False, False, True]
    monkeypatch.setattr(polars_decoder, "ONE_THREAD_VALUES", 100)
    for least, expected in ((50, [True] * 3), (51, [False, False, True])):
        monkeypatch.setattr(polars_decoder, "_MIN_VALUES", least)
        assert [suits(one, threads) for threads in (1, 2, 4)] == expected, (
            "a query costs more in a larger pool"
        )


@pytest.mark.parametrize(
    ("pool", "budget", "weight"), [(2, 2, POOLED_CORES), (4, 2, 1.0), (2, 1, 1.0), (1, 1, 1.0)]
)
def test_a_call_counts_as_a_core_where_the_pool_is_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: int, budget: int, weight: float
) -> None:
    monkeypatch.setattr(pl, "thread_pool_size", lambda: pool)
    path = write(tmp_path / "n.parquet", numbers(100))
    dataset = af.read_parquet(path).with_options(af.Options(cpu_budget=budget))
    with iter(dataset) as iterator:
        next(iterator)
        decoding = [stage for stage in iterator.stats().stages if "polars" in stage.engine]
    assert [stage.limits.weight for stage in decoding] == [weight]


@pytest.mark.usefixtures("few_values")
def test_arrow_takes_over_where_polars_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "n.parquet", numbers(100))
    for raised in (pl.exceptions.ComputeError, pl.exceptions.PanicException):
        monkeypatch.setattr(polars_decoder, "_collect", Mock(side_effect=raised("no")))
        assert decoded_by_polars(path) == [False]
        assert read_all(PARQUET, path).num_rows == 100
    monkeypatch.setattr(polars_decoder, "_collect", lambda *_: pl.DataFrame({"f32": [1] * 100}))
    assert decoded_by_polars(path, ["f32"]) == [False], "Polars reads it differently"


def test_headers_that_cannot_be_told() -> None:
    for data in (b"", b"\x15\x00\x25\x00", b"\x15\x80"):
        assert polars_decoder.has_checksum(data)


@pytest.mark.usefixtures("few_values")
def test_files_that_begin_with_no_page_are_left_to_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "n.parquet", numbers(100))
    monkeypatch.setattr(polars_decoder, "_FIRST_PAGE", 0)
    assert decoded_by_polars(path, ["f32"]) == [False]


# --- statistics ------------------------------------------------------------------------------------------


def statistics(path: Path, row_group: int = 0) -> Mapping[str, ColumnStatistics]:
    seen: list[Mapping[str, ColumnStatistics]] = []
    _, footer = open_footer(PARQUET, path)
    split = footer.splits[row_group]

    def may_match(found: Mapping[str, ColumnStatistics], rows: int) -> bool:
        assert rows == split.num_rows
        seen.append(found)
        return False

    assert PARQUET.prune(footer, split, may_match)
    assert not PARQUET.prune(footer, split, lambda *_: True)
    return seen[0]


def test_statistics(tmp_path: Path) -> None:
    utc = dt.UTC
    data = pa.table(
        {
            "int": pa.array([3, None, 1]),
            "u8": pa.array([3, 200, 4], pa.uint8()),
            "f": [1.5, float("nan"), 0.5],
            "text": ["b", "a", None],
            "code": pa.array(["b", "a", None]).dictionary_encode(),
            "raw": [b"\xff", b"a", None],
            "flag": [True, False, None],
            "price": pa.array([decimal.Decimal("1.25"), None, None]),
            "day": [DAY, None, None],
            "ms": pa.array([TIME, None, None], pa.timestamp("ms")),
            "s": pa.array([TIME, None, None], pa.timestamp("s")),
            "ns": pa.array([1001, 2001, None], pa.timestamp("ns", "UTC")),
            "void": pa.nulls(3, pa.int32()),
            "span": pa.array([1, 2, 3], pa.duration("s")),
            "clock": pa.array([1, 2, 3], pa.time64("ns")),
            "half": pa.array(np.array([1, 2, 3], np.float16)),
            "list": [[1], [2], [3]],
            "null": pa.nulls(3),
        }
    )
    found = statistics(write(tmp_path / "s.parquet", data))
    epoch = dt.datetime(1970, 1, 1, tzinfo=utc)
    assert {name: dataclasses.astuple(found[name]) for name in found} == {
        "int": (1, 3, 1),
        "u8": (3, 200, 0),
        "f": (0.5, 1.5, 0),
        "text": ("a", "b", 1),
        "code": ("a", "b", 1),
        "raw": (b"a", b"\xff", 1),
        "flag": (False, True, 1),
        "price": (decimal.Decimal("1.25"), decimal.Decimal("1.25"), 2),
        "day": (DAY, DAY, 2),
        "ms": (TIME, TIME, 2),
        "s": (TIME, TIME, 2),
        "ns": (epoch + dt.timedelta(microseconds=1), epoch + dt.timedelta(microseconds=3), 1),
        "void": (None, None, 3),
        "span": (None, None, 0),
        "clock": (None, None, 0),
        "half": (None, None, 0),
    }
    assert len(found) == 16
    for name in ("list", "null", "nowhere"):
        with pytest.raises(KeyError):
            found[name]


def test_no_statistics(tmp_path: Path) -> None:
    path = write(tmp_path / "s.parquet", table(), write_statistics=False)
    assert dict(statistics(path)) == {}


# --- sizes -----------------------------------------------------------------------------------------------


def test_sizes_are_near_the_truth(tmp_path: Path) -> None:
    for name in table().column_names:
        path = write(tmp_path / "s.parquet", table(2_000).select([name]))
        store, footer = open_footer(PARQUET, path)
        [split] = footer.splits
        found = read_split(PARQUET, store, footer, split, footer.schema)
        guess = PARQUET.column_bytes(footer, split, [name])
        assert found.nbytes / 2 <= guess <= found.nbytes * 3 + 2_000, name
        assert PARQUET.scratch_bytes(footer, split, [name]) >= guess
        assert PARQUET.column_bytes(footer, split, []) == 0
        assert PARQUET.column_bytes(footer, split, ["absent"]) > 0


def test_ranges_are_those_of_the_columns(folder: Path) -> None:
    _, footer = open_footer(PARQUET, folder / "all.parquet")
    size = footer.file.size
    sizes = []
    for split in footer.splits:
        everything = coalesce(PARQUET.ranges(footer, split, footer.schema.names))
        ((start, end),) = everything
        assert 4 <= start < end <= size
        for name in footer.schema.names:
            found = PARQUET.ranges(footer, split, [name, "absent"])
            assert found
            assert all(start <= low < high <= end for low, high in found)
        sizes.append(end - start)
        assert PARQUET.ranges(footer, split, []) == PARQUET.ranges(footer, split, ["absent"]) == []
    assert sum(sizes) <= size + 100 * len(sizes)


def test_a_range_outside_of_the_file_is_told_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, footer = open_footer(PARQUET, folder / "all.parquet", "fsspec")
    monkeypatch.setattr(parquet, "chunk_range", lambda _: (10**9, 10**9 + 5))
    found = PARQUET.ranges(footer, footer.splits[1], ["a"])
    assert found[0][0] == 10**9
    with pytest.raises(SourceError, match="outside of the file"):
        store.fetch_ahead(footer.file, found)


# --- bad input -------------------------------------------------------------------------------------------


def refuse(path: Path, text: str, *, row_group: int | None = None, kind: str = "mapped") -> None:
    with pytest.raises(SourceError, match=text) as caught:
        read_all(PARQUET, path, kind=kind)
    assert caught.value.operator == "read_parquet"
    assert path.name in str(caught.value.file)
    assert caught.value.row_group == row_group


def test_no_parquet_at_all(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "all.parquet").read_bytes()
    path = tmp_path / "x.parquet"
    for content, text in (
        (b"", "found 0 bytes"),
        (b"PAR1", "found 4 bytes"),
        (b"x" * 1000, "truncated or no Parquet file"),
        (b"x" * 1000 + b"PAR1", "cannot read it"),
        (b"x" * 1000 + b"PARE", "encrypted"),
        (whole[:-1], "truncated or no Parquet file"),
        (whole[: len(whole) // 2], "truncated or no Parquet file"),
        (whole[:12], "truncated or no Parquet file"),
    ):
        path.write_bytes(content)
        refuse(path, text)
    path.write_bytes(whole[:4] + bytes(196) + whole[200:])
    refuse(path, "cannot read it", row_group=0)


def test_checksums_are_verified(tmp_path: Path) -> None:
    data = pa.table({"a": np.arange(1000)})
    path = write(
        tmp_path / "x.parquet", data, write_page_checksum=True, compression="none", use_dictionary=False
    )
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    refuse(path, "CRC checksum verification failed", row_group=0)


def test_invalid_utf8(tmp_path: Path) -> None:
    raw = pa.table({"a": pa.array([b"\xff\xfe"])})
    texts = pa.Table.from_arrays(
        [pa.Array.from_buffers(pa.string(), 1, raw.column(0).chunk(0).buffers())], names=["a"]
    )
    refuse(write(tmp_path / "x.parquet", texts), r"UTF8|UTF-8", row_group=0)


def test_file_that_changes_after_its_footer(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes((folder / "all.parquet").read_bytes())
    store, footer = open_footer(PARQUET, path)
    path.write_bytes(b"short")
    with pytest.raises(SourceError, match="has changed since it was listed"):
        read_split(PARQUET, store, footer, footer.splits[0], footer.schema)
    path.unlink()
    with pytest.raises(SourceError, match="removed after it was listed") as caught:
        read_split(PARQUET, store, footer, footer.splits[1], footer.schema)
    assert caught.value.row_group == 1


def test_columns_of_different_length(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(arrow_decoder, "_read", lambda *_: pa.table({"a": [1, 2]}))
    refuse(folder / "all.parquet", "column 'a' has 2 rows where the footer says 4", row_group=0)


def test_leaves_that_do_not_fit_the_schema(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(details.Columns, "_latest", None)
    monkeypatch.setattr(details, "leaf_types", lambda _: [])
    refuse(folder / "all.parquet", "expected 0 leaf columns")


class _Keys(pe.KmsClient):
    def __init__(self, _: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return key

    def unwrap_key(self, key: bytes, _: str) -> bytes:
        return key


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_encrypted(tmp_path: Path, plaintext_footer: bool) -> None:
    config = pe.EncryptionConfiguration(
        footer_key="k", column_keys={"k": ["a"]}, plaintext_footer=plaintext_footer, double_wrapping=False
    )
    keys = pe.CryptoFactory(_Keys).file_encryption_properties(pe.KmsConnectionConfig(), config)
    path = write(tmp_path / "x.parquet", table().select(["a", "text", "flag"]), encryption_properties=keys)
    for kind in KINDS:
        refuse(path, r"encrypted|decrypt", row_group=0 if plaintext_footer else None, kind=kind)
    if plaintext_footer:
        _, footer = open_footer(PARQUET, path)
        assert PARQUET.column_bytes(footer, footer.splits[0], ["a", "text"]) > 0, (
            "to ask would end the process"
        )
        assert not PARQUET.prune(footer, footer.splits[0], lambda *_: False)

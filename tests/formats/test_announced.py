"""What a file announces is checked against the budget before it is allocated, whatever its format."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats.ipc.ipc import IpcFormat
from arrowflow.formats.parquet.column_chunks import ColumnChunks
from arrowflow.formats.parquet.parquet import ParquetFormat
from tests.executor.fakes import Running, Stepper, read_slowly, stepper_of
from tests.formats.reading import open_footer, read_split, write_table

MIB = 1 << 20
BOMB_BYTES = 32 * MIB
BUDGET = 4 * MIB

SMALL = pa.table({"text": ["a", "b"], "number": [1, 2]})
TEXT = "a" * (BOMB_BYTES // 64)
BOMB = pa.table({"text": pa.array([TEXT] * 64), "number": range(64)})


def as_maps(table: pa.Table) -> pa.Table:
    """Returns maps of one text each, as in the file of other projects."""
    maps = [[(text, 1)] for text in table["text"].to_pylist()]
    return pa.table({"maps": pa.array(maps, pa.map_(pa.string(), pa.int32()))})


BOMBS: dict[str, Callable[[Path, pa.Table], Any]] = {
    "parquet": partial(write_table, compression="zstd"),
    "without statistics": lambda path, table: pq.write_table(table, path, write_statistics=False),
    "without dictionaries": lambda path, table: pq.write_table(table, path, use_dictionary=False),
    "maps": lambda path, table: pq.write_table(as_maps(table), path, compression="brotli"),
    "ipc": partial(write_table, compression="zstd"),
}


@pytest.fixture(scope="module", params=BOMBS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A small file, and one that decodes to much more than it takes."""
    suffix = "arrow" if request.param == "ipc" else "parquet"
    paths = [tmp_path_factory.mktemp("bombs") / f"{name}.{suffix}" for name in "ab"]
    for path, table in zip(paths, (SMALL, BOMB), strict=True):
        BOMBS[request.param](path, table)
    assert paths[1].stat().st_size < BOMB_BYTES // 18
    return paths


def read(paths: list[Path], budget: int) -> af.Dataset:
    format = "ipc" if paths[0].suffix == ".arrow" else "parquet"
    return af.read(paths, format=format).with_options(af.Options(ram_budget=budget))


def test_a_small_file_that_decodes_to_much_is_refused_before_it_is_decoded(files: list[Path]) -> None:
    with iter(read(files, BUDGET)) as batches:
        assert next(batches).num_rows == 2, "what comes before it is delivered"
        with pytest.raises(af.BudgetError) as caught:
            next(batches)
        peak = batches.stats().ledger_peak_bytes
    assert peak <= BUDGET
    error = caught.value
    assert (error.file, error.row_group) == (str(files[1]), 0)
    for part in (f"{BUDGET:,}", "raise the budget to", "smaller row groups", "leave it out"):
        assert part in str(error)


def test_it_is_read_where_it_fits_or_nobody_wants_the_column(files: list[Path]) -> None:
    dataset = read(files, 8 * BOMB_BYTES)
    assert sum(batch.num_rows for batch in dataset) == 66
    if "number" in dataset.schema.names:
        assert read(files, BUDGET).select("number").to_table().num_rows == 66


def test_mapped_batches_take_no_memory_and_are_not_refused(tmp_path: Path) -> None:
    paths = [
        write_table(tmp_path / name, pa.table({"number": np.arange(rows)}))
        for name, rows in (("a.arrow", 10), ("b.arrow", 1_000_000))
    ]
    assert sum(batch.num_rows for batch in read(paths, BUDGET)) == 1_000_010


def test_a_compressed_text_file_is_decoded_in_blocks(tmp_path: Path) -> None:
    rows = 3 * MIB
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"number\n" + b"1234567\n" * rows, 1))
    dataset = af.read_csv(tmp_path / "a.csv.gz", block_bytes=MIB // 2).with_options(
        af.Options(ram_budget=2 * BUDGET, cpu_budget=2)
    )
    with iter(dataset) as batches:
        assert sum(batch.num_rows for batch in batches) == rows
        assert batches.stats().ledger_peak_bytes <= 3 * BUDGET


def texts(rows: int = 3000) -> pa.Table:
    return pa.table(
        {
            "number": range(rows),
            "long": ["x" * 6000, "y" * 5000, None] * (rows // 3),
            "list": pa.array([["ab"] * 3, [], None] * (rows // 3)),
            "plain": [f"text {row}" for row in range(rows)],
        }
    )


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_the_bytes_of_unencoded_texts_are_read_from_the_footer(tmp_path: Path, version: str) -> None:
    pq.write_table(
        texts(), tmp_path / "a", row_group_size=1500, write_statistics=False, data_page_version=version
    )
    data = (tmp_path / "a").read_bytes()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    chunks = ColumnChunks(footer, pq.read_metadata(tmp_path / "a"))
    for group in range(2):
        part = texts().slice(1500 * group, 1500)
        lists = [text for row in part["list"].to_pylist() if row for text in row]
        expected = [None, 500 * 11_000, sum(map(len, lists)), sum(map(len, part["plain"].to_pylist()))]
        assert [chunks.text_bytes(group, leaf) for leaf in range(4)] == expected


@pytest.mark.parametrize("name", ["long", "list", "plain"])
def test_texts_are_counted_by_what_they_take(tmp_path: Path, name: str) -> None:
    pq.write_table(texts(), tmp_path / "a", write_statistics=False)
    format = ParquetFormat()
    store, footer = open_footer(format, tmp_path / "a")
    (split,) = footer.splits
    found = read_split(format, store, footer, split, footer.schema).column(name).nbytes
    assert found <= format.column_bytes(footer, split, [name]) <= 1.6 * found + 1000
    assert format.unsure(footer, split, footer.schema.names) == []


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes footers say nothing of texts, as those of many writers."""
    monkeypatch.setattr(ColumnChunks, "text_bytes", lambda self, row_group, leaf: None)


def test_texts_that_nothing_is_said_of_are_unsure_where_they_are_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(monkeypatch)
    format = ParquetFormat()
    pq.write_table(texts(), tmp_path / "a", use_dictionary=["long", "list.list.element"])
    _, footer = open_footer(format, tmp_path / "a")
    assert format.unsure(footer, footer.splits[0], footer.schema.names) == ["long", "list"]
    assert format.unsure(footer, footer.splits[0], ["plain", "number", "absent"]) == []


def test_ipc_batches_are_unsure_where_texts_are_compressed_or_encoded(tmp_path: Path) -> None:
    codes = pa.table({"number": [1, 2], "text": ["a", "b"], "code": pa.array(["a", "a"]).dictionary_encode()})
    format = IpcFormat()
    for compression, unsure in ((None, ["code"]), ("zstd", ["text", "code"])):
        _, footer = open_footer(format, write_table(tmp_path / "a", codes, compression=compression))
        assert format.unsure(footer, footer.splits[0], codes.column_names) == unsure


def decoding(engine: Stepper) -> list[Running]:
    """Starts all reads that can be in flight together, and finishes what else there is to do."""
    held: list[Running] = []
    while (running := engine.begin()) is not None:
        if running[0].plan.phase == "decode":
            held.append(running)
        else:
            engine.finish(running)
    return held


@pytest.fixture
def unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> af.Dataset:
    """Eight row groups of 6 MB, from dictionaries of 12 KB."""
    silent(monkeypatch)
    pq.write_table(texts(12_000), tmp_path / "a", row_group_size=1500)
    options = af.Options(ram_budget=60 * MIB, cpu_budget=8)
    return af.read_parquet(tmp_path / "a").select("long").with_options(options)


def test_splits_of_unknown_size_are_read_one_at_a_time_until_one_was_measured(unknown: af.Dataset) -> None:
    engine = stepper_of(unknown)
    found = decoding(engine)
    assert len(found) == 1
    engine.finish(found.pop())
    found = decoding(engine)
    assert 1 < len(found) < 8
    for running in found:
        engine.finish(running)
    read_slowly(engine, 100)
    assert engine.ledger.peak <= 60 * MIB


def test_sizes_that_were_measured_are_known_in_the_next_epoch(unknown: af.Dataset) -> None:
    counts = []
    for _ in range(2):
        engine = stepper_of(unknown)
        found = decoding(engine)
        counts.append(len(found))
        for running in found:
            engine.finish(running)
        engine.close()
    assert counts[0] == 1 < counts[1]

"""What a file announces is checked against the budget before it is allocated, whatever its format."""

from __future__ import annotations

import gzip
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
from tests.formats.reading import open_footer, read_split

MIB = 1 << 20
BOMB_BYTES = 64 * MIB
BUDGET = 8 * MIB

SMALL = pa.table({"text": ["a", "b"], "number": [1, 2]})
TEXT = "a" * (BOMB_BYTES // 64)
BOMB = pa.table({"text": pa.array([TEXT] * 64), "number": range(64)})


def write_parquet(path: Path, table: pa.Table, **options: Any) -> None:
    pq.write_table(table, path, compression="zstd", **options)


def write_ipc(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)


def write_maps(path: Path, table: pa.Table) -> None:
    """Two maps of one text each, as in the file of other projects."""
    texts = table["text"].to_pylist()
    maps = pa.array([[(text, 1)] for text in texts], pa.map_(pa.string(), pa.int32()))
    pq.write_table(pa.table({"maps": maps}), path, compression="brotli")


BOMBS = {
    "parquet": write_parquet,
    "parquet without statistics": lambda path, table: write_parquet(path, table, write_statistics=False),
    "parquet without dictionaries": lambda path, table: write_parquet(path, table, use_dictionary=False),
    "parquet of maps": write_maps,
    "ipc": write_ipc,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_decodes_to_much_is_refused_before_it_is_decoded(tmp_path: Path, name: str) -> None:
    write = BOMBS[name]
    write(tmp_path / "a", SMALL)
    write(tmp_path / "b", BOMB)
    assert (tmp_path / "b").stat().st_size < BOMB_BYTES // 20
    read = af.read_ipc if name == "ipc" else af.read_parquet
    dataset = read([tmp_path / "a", tmp_path / "b"]).with_options(af.Options(ram_budget=BUDGET))
    with iter(dataset) as batches:
        assert next(batches).num_rows == 2, "what comes before it is delivered"
        with pytest.raises(af.BudgetError) as caught:
            next(batches)
        peak = batches.stats().ledger_peak_bytes
    assert peak <= BUDGET
    error = caught.value
    assert (error.file, error.row_group) == (str(tmp_path / "b"), 0)
    for part in (f"{BUDGET:,}", "raise the budget to", "smaller row groups", "leave it out"):
        assert part in str(error)


@pytest.mark.parametrize("name", BOMBS)
def test_a_budget_in_which_it_fits_reads_it(tmp_path: Path, name: str) -> None:
    write = BOMBS[name]
    write(tmp_path / "a", SMALL)
    write(tmp_path / "b", BOMB)
    read = af.read_ipc if name == "ipc" else af.read_parquet
    dataset = read([tmp_path / "a", tmp_path / "b"]).with_options(af.Options(ram_budget=8 * BOMB_BYTES))
    assert sum(batch.num_rows for batch in dataset) == 66


def test_columns_that_nobody_wants_are_not_counted(tmp_path: Path) -> None:
    for suffix, write, read in (("p", write_parquet, af.read_parquet), ("i", write_ipc, af.read_ipc)):
        write(tmp_path / f"a.{suffix}", SMALL)
        write(tmp_path / f"b.{suffix}", BOMB)
        dataset = read([tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"]).select("number")
        assert dataset.with_options(af.Options(ram_budget=BUDGET)).to_table().num_rows == 66


def test_mapped_batches_take_no_memory_and_are_not_refused(tmp_path: Path) -> None:
    for name, rows in (("a", 10), ("b", 2_000_000)):
        table = pa.table({"number": np.arange(rows)})
        with pa.ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    dataset = af.read_ipc([tmp_path / "a", tmp_path / "b"]).with_options(af.Options(ram_budget=BUDGET))
    assert sum(batch.num_rows for batch in dataset) == 2_000_010


def test_a_compressed_text_file_is_decoded_in_blocks(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.csv.gz", "wb") as file:
        file.write(b"number\n" + b"1234567\n" * (BOMB_BYTES // 8))
    dataset = af.read_csv(tmp_path / "a.csv.gz", block_bytes=MIB).with_options(
        af.Options(ram_budget=2 * BUDGET, cpu_budget=2)
    )
    with iter(dataset) as batches:
        assert sum(batch.num_rows for batch in batches) == BOMB_BYTES // 8
        assert batches.stats().ledger_peak_bytes <= 3 * BUDGET


# --- what footers say of texts ---------------------------------------------------------------------------


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
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(tmp_path / "a", codes.schema, options=options) as writer:
            writer.write_table(codes)
        _, footer = open_footer(format, tmp_path / "a")
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


def test_splits_of_unknown_size_are_read_one_at_a_time_until_one_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight row groups of 6 MB, from dictionaries of 12 KB."""
    silent(monkeypatch)
    pq.write_table(texts(12_000), tmp_path / "a", row_group_size=1500)
    dataset = af.read_parquet(tmp_path / "a").select("long")
    engine = stepper_of(dataset.with_options(af.Options(ram_budget=60 * MIB, cpu_budget=8)))
    found = decoding(engine)
    assert len(found) == 1
    engine.finish(found.pop())
    found = decoding(engine)
    assert 1 < len(found) < 8
    for running in found:
        engine.finish(running)
    read_slowly(engine, 100)
    assert engine.ledger.peak <= 60 * MIB


def test_sizes_that_were_measured_are_known_in_the_next_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(monkeypatch)
    pq.write_table(texts(12_000), tmp_path / "a", row_group_size=1500)
    options = af.Options(ram_budget=60 * MIB, cpu_budget=8)
    dataset = af.read_parquet(tmp_path / "a").select("long").with_options(options)
    counts = []
    for _ in range(2):
        engine = stepper_of(dataset)
        found = decoding(engine)
        counts.append(len(found))
        for running in found:
            engine.finish(running)
        engine.close()
    assert counts[0] == 1 < counts[1]

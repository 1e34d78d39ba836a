"""Runs of splits that one call decodes: they change neither rows, nor chunks, nor positions, nor errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats import Footer, Split, Store
from arrowflow.formats.parquet.parquet import ParquetFormat
from arrowflow.kernels.kept import KeptChunk, KeptChunks, sizes_of
from arrowflow.ops.sources.files.runs import Runs
from arrowflow.ops.sources.files.split_readers import SplitReader
from arrowflow.ops.sources.files.split_tasks import ReadPosition, SplitTask
from arrowflow.storage import File
from tests.ops.sources.files.test_read import node_of, tasks_of

pytestmark = pytest.mark.any_version

ROWS = 10
GROUPS = 64


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for number in range(2):
        first = number * ROWS * GROUPS
        rows = pa.table({"id": np.arange(first, first + ROWS * GROUPS), "x": np.ones(ROWS * GROUPS)})
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=ROWS)
    return tmp_path


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lists the lengths of the runs that are read."""
    found: list[int] = []
    original = ParquetFormat.read_run

    def read_run(
        self: ParquetFormat, store: Store, run: Sequence[tuple[Footer, Split]], schema: pa.Schema
    ) -> Any:
        found.append(len(run))
        return original(self, store, run, schema)

    monkeypatch.setattr(ParquetFormat, "read_run", read_run)
    return found


def rows_and_error(ds: af.Dataset) -> tuple[int, af.ArrowflowError]:
    rows, iterator = 0, iter(ds)
    while True:
        try:
            rows += next(iterator).num_rows
        except af.ArrowflowError as error:
            return rows, error


def resumed(ds: af.Dataset, taken: int) -> Iterator[pa.RecordBatch]:
    """Returns an iterator that goes on where another one was after some batches."""
    with iter(ds) as iterator:
        for _ in range(taken):
            next(iterator)
        other = iter(ds)
        other.load_state_dict(iterator.state_dict())
    return other


def sizes(ds: af.Dataset) -> list[tuple[int, int]]:
    return [(batch.num_rows, batch["id"][0].as_py()) for batch in ds]


def test_chunks_are_those_of_splits_read_alone(files: Path, runs: list[int]) -> None:
    ds = af.read_parquet(files).map(lambda batch: batch)
    found = sizes(ds)
    assert sum(runs) > GROUPS
    assert max(runs) == 2 * GROUPS // 16
    assert found == [(ROWS, first) for first in range(0, 2 * ROWS * GROUPS, ROWS)]
    runs.clear()
    small = ds.with_options(af.Options(ram_budget=1 << 20, cpu_budget=8))
    assert sizes(small) == found
    assert max(runs, default=1) < 2 * GROUPS // 16


def test_random_values_do_not_depend_on_runs(files: Path, runs: list[int]) -> None:
    def drawn(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
        return pa.record_batch({"id": batch["id"], "draw": rng.random(batch.num_rows)})

    ds = af.read_parquet(files).map(drawn, seed=5)
    whole = ds.to_table()
    assert runs
    assert ds.with_options(af.Options(cpu_budget=64)).to_table().equals(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        *(
            lambda files, skipped=skipped: af.read_parquet(files).skip(skipped).filter(pl.col("id") % 3 != 0)
            for skipped in (0, 3, ROWS, 10 * ROWS + 7)
        ),
        # Some splits come to follow each other.
        lambda files: af.read_parquet(files / "0.parquet").shuffle(
            40, seed=4, reshuffle_each_iteration=False
        ),
    ],
)
def test_a_resume_in_the_middle_of_a_run(
    files: Path, runs: list[int], make: Callable[[Path], af.Dataset]
) -> None:
    ds = make(files).batch(7)
    expected = list(ds)
    assert runs
    for taken in range(0, len(expected), 9):
        assert list(resumed(ds, taken)) == expected[taken:]


@pytest.mark.parametrize("broken", [0, 30, GROUPS - 1])
def test_an_error_names_its_split_and_comes_after_all_rows_before_it(files: Path, broken: int) -> None:
    path = files / "1.parquet"
    column = pq.read_metadata(path).row_group(broken).column(0)
    data = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    data[start : start + 16] = b"\xff" * 16
    path.write_bytes(data)
    rows, error = rows_and_error(af.read_parquet(files))
    assert rows == (GROUPS + broken) * ROWS
    assert (type(error), error.file, error.row_group) == (af.SourceError, str(path), broken)


def test_a_function_that_fails_names_its_split(files: Path) -> None:
    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["id"][0].as_py() == 33 * ROWS:
            raise ValueError("no")
        return batch

    rows, error = rows_and_error(af.read_parquet(files).map(fails))
    assert rows == 33 * ROWS
    assert (type(error), error.row_group) == (af.FunctionError, 33)


# ---------------------------------------------------------------- many small files


@pytest.fixture
def many(tmp_path: Path) -> Path:
    for number in range(100):
        pq.write_table(
            pa.table({"id": np.arange(3 * number, 3 * number + 3)}), tmp_path / f"{number:03}.parquet"
        )
    return tmp_path


@pytest.mark.slow
def test_one_call_reads_many_small_files(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    original = SplitReader.read

    def read(self: SplitReader, payload: SplitTask) -> Any:
        lengths.append(len(payload.splits))
        return original(self, payload)

    monkeypatch.setattr(SplitReader, "read", read)
    ds = af.read_parquet(many)
    assert sizes(ds) == [(3, first) for first in range(0, 300, 3)]
    assert lengths[0] == 1, "the first batch comes soon"
    assert sum(lengths) == 100
    assert len(lengths) < 40
    assert ds.take(31).to_table()["id"].to_pylist() == list(range(31))
    expected = [batch.to_pydict() for batch in ds.skip(1).batch(4)]
    for taken in range(0, len(expected), 6):
        assert [batch.to_pydict() for batch in resumed(ds.skip(1).batch(4), taken)] == expected[taken:]


@pytest.mark.parametrize(
    ("broken", "cut"), [(1, 2), (2, 2), (50, 2), (99, 2), (1, 60), (2, 60), (50, 60), (99, 60)]
)
def test_a_broken_file_comes_after_all_rows_before_it(many: Path, broken: int, cut: int) -> None:
    path = many / f"{broken:03}.parquet"
    data = path.read_bytes()  # without its footer's end, or with rows of other bytes
    path.write_bytes(data[:-cut] if cut == 2 else data[:4] + b"\xff" * cut + data[4 + cut :])
    rows, error = rows_and_error(af.read_parquet(many))
    assert rows == 3 * broken
    assert (type(error), error.file) == (af.SourceError, str(path))


# ---------------------------------------------------------------- which splits are joined


def tasks(sizes: Sequence[int], **changes: Any) -> list[SplitTask]:
    footer = Footer(File("a", "a", 9), pa.schema([]), (), 0)
    found, counted = [], 0
    for index, num_bytes in enumerate(sizes):
        split = Split(index, 5, num_bytes)
        base = ReadPosition(0, index, 0, counted)
        found.append(SplitTask(cast(Store, None), (), footer, split, 0, 5, base, output_bytes=num_bytes))
        counted += 5
    for name, values in changes.items():
        index = int(name[1:])
        found[index] = found[index]._replace(**values)
    return found


def joined(most_bytes: int, tasks: Sequence[SplitTask]) -> list[SplitTask]:
    runs = Runs(most_bytes)
    return [run for task in tasks for run in runs.add(task)] + list(runs.rest())


def lengths(most_bytes: int, tasks: Sequence[SplitTask]) -> list[int]:
    return [len(run.splits) for run in joined(most_bytes, tasks)]


def test_runs_grow_up_to_the_limit() -> None:
    mib = 1 << 20
    assert lengths(32 * mib, tasks([mib] * 100)) == [1, 2, 4, 8, 16, 32, 32, 5]
    assert lengths(2 * mib, tasks([mib] * 6)) == [1, 2, 2, 1]
    assert lengths(0, tasks([mib, 0, 0])) == [1, 1, 1]
    assert lengths(mib, tasks([5 * mib, mib, mib])) == [1, 1, 1]
    assert lengths(mib, tasks([0] * 300)) == [1, 2, 4, 8, 16, 32, 64, 64, 64, 45]


def test_splits_of_unknown_size_and_pieces_are_read_alone() -> None:
    for values in ({"unsure": ("text",)}, {"is_piece": True}):
        assert lengths(1 << 20, tasks([9] * 7, i4=values)) == [1, 2, 1, 1, 2]


def test_a_run_is_what_it_was_made_of() -> None:
    made = tasks([9] * 7, i3={"start": 2})
    _, _, run = joined(1 << 20, made)
    assert (run.output_bytes, run.num_rows) == (36, 18)
    assert run.splits == tuple(made[3:])


def test_splits_follow_each_other_if_all_rows_between_are_wanted() -> None:
    other = Footer(File("b", "b", 9), pa.schema([]), (), 0)
    for number, values, follow in (
        (0, {"start": 2}, True),
        (0, {"stop": 3}, False),
        (0, {"is_piece": True}, False),
        (0, {"footer": other}, False),
        (1, {"start": 2}, False),
        (1, {"stop": 3}, False),
    ):
        first, second = tasks([9, 9], **{f"i{number}": values})
        assert second.follows(first) == follow
    first, _, third = tasks([9, 9, 9])
    assert not third.follows(first), "a split between them is pruned"


def test_lanes_read_runs_too(files: Path, runs: list[int]) -> None:
    lanes = 16
    split = af.read_parquet(files).batch(ROWS * lanes).split_by_rank(0, 1, lanes=lanes)
    assert sorted(id for batch in split for id in batch["id"].to_pylist()) == list(range(2 * ROWS * GROUPS))
    assert sum(runs) > GROUPS


@pytest.mark.parametrize("copies", [False, True])
def test_a_run_takes_the_copies_of_what_is_kept_and_the_bytes_of_the_rest(
    files: Path, *, copies: bool
) -> None:
    kept = KeptChunks(copies=copies)
    node = node_of(af.read_parquet(files))
    reader = SplitReader(node, 1, kept=kept)
    first, last = [task for each in tasks_of(node) for task in each.splits][:2]
    run = SplitTask.joined([first, last])
    alone = [reader.num_bytes(task) for task in (first, last)]
    assert reader.num_bytes(run) == sum(alone)
    chunk = pa.record_batch({"id": np.arange(ROWS), "x": np.ones(ROWS)})
    kept.chunks[first.key, 0, ROWS, ""] = KeptChunk(chunk, sizes_of(chunk))
    expected = copies * chunk.nbytes + alone[1]
    assert reader.num_bytes(run) == expected
    held, found = reader.holding(run)
    assert [each.chunk for each in found] == [chunk]
    assert reader.num_bytes(held) == expected

"""The columns of a filter are decoded first, and the others only where a row passes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats.parquet import parquet
from arrowflow.formats.protocol import Footer, Split
from arrowflow.ops.sources.files.survivors import _SELDOM, Survivors
from tests.ops.sources.files.test_runs import resumed
from tests.ops.tables import ids, rows_of

pytestmark = pytest.mark.any_version

GROUPS, ROWS = 48, 100
RARE = (17, 30)
"""Row groups with a row of the rare class."""

COLUMNS = 9


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    rows = GROUPS * ROWS
    kind = rng.integers(0, 2, rows) * 6  # 0 and 6: bounds never rule 3 out
    for group in RARE:
        kind[group * ROWS + 5] = 3
    floats = {f"x{number}": rng.random(rows) for number in range(COLUMNS)}
    return pa.table({"id": np.arange(rows), "kind": kind.astype(np.int64), **floats})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rare")
    for number in range(2):
        half = table().slice(number * GROUPS // 2 * ROWS, GROUPS // 2 * ROWS)
        pq.write_table(half, folder / f"{number}.parquet", row_group_size=ROWS)
    return folder


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Lists (row groups, columns) of all that is decoded."""
    found: list[tuple[int, int]] = []
    original = parquet._decode

    def decode(store: Any, run: Sequence[tuple[Footer, Split]], schema: pa.Schema, *rest: Any) -> Any:
        found.append((len(run), len(schema)))
        return original(store, run, schema, *rest)

    monkeypatch.setattr(parquet, "_decode", decode)
    return found


def whole(decoded: Sequence[tuple[int, int]]) -> int:
    """Returns the row groups that were decoded with all columns."""
    return sum(groups for groups, columns in decoded if columns > 1)


@pytest.mark.parametrize("predicate", [pl.col("kind") == 3, pc.field("kind") == 3], ids=["polars", "pyarrow"])
def test_the_others_are_decoded_only_where_a_row_passes(
    folder: Path, decoded: list[tuple[int, int]], predicate: Any
) -> None:
    ds = af.read_parquet(folder).filter(predicate)
    assert ds.to_table().equals(table().filter(pc.field("kind") == 3))
    assert whole(decoded) == len(RARE)
    assert f"kind alone ruled out {GROUPS - len(RARE)} of {GROUPS} splits that were looked at" in ds.explain()


def test_a_look_goes_on_only_while_it_pays(folder: Path, decoded: list[tuple[int, int]]) -> None:
    ds = af.read_parquet(folder).filter(pl.col("kind") >= 0)
    for _ in range(4):
        decoded.clear()
        assert ds.to_table().num_rows == GROUPS * ROWS
        assert whole(decoded) == GROUPS
    looked = sum(groups for groups, columns in decoded if columns == 1)
    assert looked < GROUPS // 2
    assert _SELDOM > GROUPS


def test_no_look_at_columns_that_are_most_of_all(folder: Path, decoded: list[tuple[int, int]]) -> None:
    ds = af.read_parquet(folder, columns=["kind", "x0"]).filter(pl.col("kind") == 3)
    assert ds.to_table().num_rows == len(RARE)
    assert whole(decoded) == GROUPS


def test_states_fit_at_each_row(folder: Path) -> None:
    ds = af.read_parquet(folder).filter(pl.col("kind") == 3).with_columns(y=pl.col("x0") + 1).batch(1)
    expected = ids(ds)
    assert len(expected) == len(RARE)
    for taken in range(len(expected) + 1):
        assert [batch["id"][0].as_py() for batch in resumed(ds, taken)] == expected[taken:]


def test_other_predicates_and_folders(folder: Path, tmp_path: Path, decoded: list[tuple[int, int]]) -> None:
    for number in range(2):
        target = tmp_path / f"part={number}"
        target.mkdir()
        (target / "a.parquet").write_bytes((folder / f"{number}.parquet").read_bytes())
    ds = af.read_parquet(tmp_path, partitioning="hive")
    found = ds.filter((pl.col("kind") == 3) & (pl.col("part") + pl.col("id") > 0), pl.col("kind") == 3)
    assert found.to_table().column("id").to_pylist() == [group * ROWS + 5 for group in RARE]
    assert found.to_table().column("part").to_pylist() == [0, 1]
    decoded.clear()
    assert ds.filter(pl.col("kind") == 3).map(lambda batch: batch).to_table().num_rows == len(RARE)
    assert whole(decoded) == len(RARE)


def test_splits_that_do_not_follow_each_other(folder: Path) -> None:
    """In the order of a shuffle, and with row groups between that bounds rule out."""
    rare = af.read_parquet(folder).filter((pl.col("kind") == 3) & (pl.col("id") % 7 >= 0))
    shuffled = rare.shuffle(10**6, seed=1).batch(64)
    for epoch in range(2):
        assert sorted(rows_of(shuffled, "id", epoch=epoch)) == [group * ROWS + 5 for group in RARE]
    for first in range(0, GROUPS, 5):
        kept = (pl.col("id") < first * ROWS) | (pl.col("id") >= (first + 3) * ROWS)
        found = rare.filter(kept).to_table().column("id").to_pylist()
        assert found == [group * ROWS + 5 for group in RARE if not first <= group < first + 3]


def test_errors_are_those_of_a_read_without_a_look(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=ROWS)
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    chunk = metadata.row_group(RARE[0]).column(1)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + 40] = b"\xff" * 40
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(af.SourceError, match=rf"row group {RARE[0]}"):
        af.read_parquet(tmp_path).filter(pl.col("kind") == 3).to_table()
    wide = af.read_parquet(tmp_path, columns=["id", "x0", "x1", "x2", "x3"])
    raising = pl.col("id").cast(pl.Int8) == 3
    with pytest.raises(af.DataError):
        wide.filter(raising).to_table()


def test_the_share_follows_the_files() -> None:
    class Chunk:
        def __init__(self, rows: int) -> None:
            self.num_rows = rows

    class Format:
        rows = 0

        def read_run(self, store: Any, run: Sequence[Any], schema: pa.Schema) -> list[Chunk]:
            return [Chunk(self.rows) for _ in run]

    class Program:
        def run(self, chunk: Chunk) -> Chunk:
            return chunk

    class Task:
        is_piece, store, footer, split, key = False, None, None, None, 7

    format = Format()
    survivors = Survivors(format, Program(), pa.schema({"x": pa.int8()}), 0.1)  # type: ignore[arg-type]
    tasks: Any = [Task()]
    assert all(survivors.missing(tasks) == {7} for _ in range(20))
    format.rows = 1
    for _ in range(200):
        assert not survivors.missing(tasks)
    assert 15 < survivors._looked - 20 < 40, "until it does not pay, and then seldom"
    format.rows = 0
    assert sum(bool(survivors.missing(tasks)) for _ in range(1000)) > 500, "it pays again"

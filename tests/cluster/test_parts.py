"""Batches on their way through the object store: their parts, and the bytes of the store that they take."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.cluster.parts import Joined, Kept, parts_of
from arrowflow.cluster.session import STORE_SHARE
from benchmarks.cluster import store_statistics
from tests.cluster.test_on_cluster import engine, session_of
from tests.ray_cluster import STORE_BYTES

pytestmark = pytest.mark.any_version

SHARE = STORE_BYTES // STORE_SHARE


def columns(rows: int) -> pa.RecordBatch:
    values = np.arange(rows, dtype=np.float64)
    return pa.record_batch(
        {
            "x": values,
            "name": pa.array([None if row % 3 == 0 else "n" * (row % 5) for row in range(rows)]),
            "list": pa.array([[row] * (row % 3) for row in range(rows)]),
            "nothing": pa.nulls(rows),
            "kind": pa.array(["a", "b"] * (rows // 2) + ["a"] * (rows % 2)).dictionary_encode(),
        }
    )


@pytest.mark.parametrize("most_bytes", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize("rows", [0, 1, 301])
def test_a_batch_comes_out_of_its_parts(rows: int, most_bytes: int) -> None:
    batch, joined = columns(rows), Joined(Kept(1 << 30))
    for _ in range(2):
        parts = list(parts_of(batch, ("here",), most_bytes))
        assert max(part.num_bytes for part in parts) <= most_bytes
        assert len(parts) == max(1, -(-sum(parts[0].sizes) // most_bytes))
        assert all(joined.add([part]) == [] for part in parts[:-1])
        ((found, position),) = joined.add(parts[-1:])
        assert found.equals(batch) and position == ("here",)
        found.validate(full=True)
        assert [part.rows for part in parts] == [0] * (len(parts) - 1) + [rows]


def test_batches_keep_so_many_bytes_in_the_store_and_no_more() -> None:
    piece = [*parts_of(columns(500), (), 1 << 20), *parts_of(columns(300), (), 1 << 20)]
    size = sum(part.num_bytes for part in piece)
    kept = Kept(2 * size + 1)
    found = [Joined(kept).add(piece) for _ in range(4)]
    assert kept.num_bytes == 2 * size
    addresses = {each.column("x").buffers()[1].address for batches in found for each, _ in batches}
    assert len(addresses) == 2 * 3, "two where they lie, two copies"
    column = found[0][1][0].column("list")
    del found
    gc.collect()
    assert kept.num_bytes == size, "a column keeps its piece"
    del column
    gc.collect()
    assert kept.num_bytes == 0


@pytest.fixture(scope="module")
def large_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of 96 MiB in row groups of 16 MiB, twice the part of the store that may be used."""
    rows = 6 << 20
    path = tmp_path_factory.mktemp("groups") / "large.parquet"
    table = pa.table({"x": np.arange(rows), "y": np.arange(rows) * 0.5})
    pq.write_table(table, path, row_group_size=1 << 20, use_dictionary=False, compression="none")
    return path


def used_bytes() -> int:
    """Returns the bytes in use once two seconds changed nothing: the store frees what nobody needs in its own time."""
    found: list[int] = []
    for _ in range(600):
        found.append(store_statistics().object_store_bytes_used)
        if len(found) >= 20 and len(set(found[-20:])) == 1:
            return found[-1]
        threading.Event().wait(0.1)
    raise AssertionError(f"the bytes in use do not settle: {found}")


@pytest.mark.slow
@pytest.mark.parametrize("joins", [True, False], ids=["rows", "whole batches"])
def test_the_store_holds_its_part_and_no_more(ray: Any, large_groups: Path, joins: bool) -> None:
    """By the store's own numbers: while the consumer sleeps, and while it keeps all that it got."""
    dataset = af.read_parquet(large_groups).batch(1 << 17)
    if not joins:
        dataset = dataset.map(lambda batch: batch, keeps_rows=True)
    dataset = dataset.split_by_rank(0, 1, lanes=8)
    clustered = dataset.with_engine(engine(2))
    with iter(clustered) as run:
        batches = [next(run)]
        assert used_bytes() <= SHARE
        assert session_of(clustered).kept.num_bytes <= SHARE // 2
        batches += run
        assert used_bytes() <= SHARE
    found = store_statistics()
    assert found.spilled_bytes_total == found.object_store_bytes_fallback == 0
    assert pa.Table.from_batches(batches).equals(pa.Table.from_batches(list(dataset)))

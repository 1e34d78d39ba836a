"""A rank fetches its share of the bytes, and the row groups at the borders of its lanes: counted by a file system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFile

import arrowflow as af
from tests.ops.sources.files.test_read import Remote, as_bytes

pytestmark = pytest.mark.any_version

FILES, GROUPS, ROWS, RANKS = 8, 40, 400, 4
MOST = 1.1
"""Of its share. Files are too large to be fetched whole with their footers. Of 320 row groups 16 lie on borders."""


class Apart(Remote):
    """Opens a file as often as it is asked to: in fsspec's memory all who open a file share its position."""

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            return super()._open(path, mode, **options)
        return MemoryFile(self, path, self.store[self._strip_protocol(path)].getvalue())


@pytest.fixture(scope="module")
def remote() -> Remote:
    filesystem = Apart()
    for number in range(FILES):
        start = number * GROUPS * ROWS
        table = pa.table(
            {
                "id": range(start, start + GROUPS * ROWS),
                "x": np.random.default_rng(number).random(GROUPS * ROWS),
            }
        )
        filesystem.pipe_file(f"/bucket/{number}.parquet", as_bytes("parquet", table, ROWS))
    return filesystem


def fetched(remote: Remote, dataset: af.Dataset) -> int:
    """Returns the bytes of columns that an epoch fetches, without the ends of files, where footers are."""
    remote.fetched.clear()
    for _ in dataset:
        pass
    sizes = {remote.info(path)["size"] for path in remote.glob("/bucket/*")}
    return sum(end - start for start, end in remote.fetched if end not in sizes)


@pytest.mark.parametrize(
    "then",
    [
        lambda ds: ds.batch(512),
        lambda ds: ds.select("x").with_columns(y=pl.col("x") + 1).shuffle(3_200, seed=1).batch(512),
    ],
)
def test_a_rank_reads_its_share(remote: Remote, then: Callable[[af.Dataset], af.Dataset]) -> None:
    plan = then(af.read_parquet("/bucket/*.parquet", filesystem=remote))
    share = fetched(remote, plan) / RANKS
    assert share > 0
    for rank in range(RANKS):
        assert share * 0.9 < fetched(remote, plan.split_by_rank(rank, RANKS)) <= MOST * share

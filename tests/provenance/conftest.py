"""Files of few rows in unequal row groups."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import arrowflow as af

GROUPS = [[100, 33], [64], [500, 1, 200], [7], [128, 300], [44], [250, 150]]
"""Rows of the row groups of each file."""


def write_shards(path: Path) -> Path:
    """Writes 1,777 rows."""
    at = 0
    for number, groups in enumerate(GROUPS):
        with pq.ParquetWriter(path / f"{number}.parquet", af.range(1).schema) as writer:
            for rows in groups:
                writer.write_table(af.range(at, at + rows).to_table())
                at += rows
    return path


@pytest.fixture(scope="package")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files."""
    return write_shards(tmp_path_factory.mktemp("shards"))

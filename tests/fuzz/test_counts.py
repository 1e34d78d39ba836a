"""Damaged files of counts: the counts, or an error that names the file. Forged ones: an error, or a run that ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.ops.sources.files.row_counts import _MAGIC, RowCounts, _digest
from tests.effort import scaled
from tests.fuzz.damage import DAMAGES, Damage, damaged
from tests.fuzz.watch import kinds
from tests.ops.tables import write_shards

pytestmark = pytest.mark.any_version


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counted")
    write_shards(folder, [[9, 4], [13]])
    return folder


def rows_of(folder: Path) -> af.Dataset:
    return af.read_parquet(folder).filter(pl.col("row") % 3 == 0)


@pytest.fixture(scope="module")
def written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("counts") / "rows"
    af.count_rows(rows_of(folder), save=path)
    return path.read_bytes()


def told(counts: RowCounts) -> tuple[Any, ...]:
    return counts.of, counts.splits


@settings(max_examples=scaled(150), database=None)
@given(damages=DAMAGES)
def test_damaged_counts_are_refused(
    folder: Path, written: bytes, tmp_path_factory: pytest.TempPathFactory, damages: list[Damage]
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(written)
    expected = told(RowCounts.load(path))
    path.write_bytes(damaged(written, damages))
    text = ""
    try:
        assert told(RowCounts.load(path)) == expected
    except af.PlanError as error:
        text = str(error)
    kinds["refused" if text else "the same"] += 1
    assert not text or str(path) in text


@settings(max_examples=scaled(150), database=None)
@given(damages=DAMAGES, rank=st.integers(0, 1))
def test_forged_counts_are_refused_or_the_run_ends(
    folder: Path, written: bytes, tmp_path_factory: pytest.TempPathFactory, damages: list[Damage], rank: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "forged"
    start = len(_MAGIC) + len(_digest(b""))
    body = damaged(written[start:], damages)
    path.write_bytes(_MAGIC + _digest(body) + body)
    raised: Any = None
    try:
        for _ in rows_of(folder).assert_cardinality(path).batch(4).split_by_rank(rank, 2):
            pass
    except af.ArrowflowError as error:
        raised = type(error)
    assert raised is not af.ArrowflowError, "an error of Python"
    kinds["ran" if raised is None else "refused"] += 1

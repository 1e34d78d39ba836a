"""`count_rows`: which rows a filter leaves, and lanes that are dealt by them."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.errors import DataError, PlanError
from tests.ops.ranks.pipelines import doubled, of, ranks, steps_of
from tests.provenance.conftest import write_shards

pytestmark = pytest.mark.any_version

FILTERS = {
    "even": pl.col("id") % 7 != 3,
    "uneven": pl.col("id") > 120,
    "few": pl.col("id") % 100 < 2,
    "none": pl.col("id") < 0,
    "all": pl.col("id") >= 0,
}


def test_they_are_shown_in_one_line(path: Path) -> None:
    rows = af.read_parquet(path)
    shown = repr(af.count_rows(rows.filter(pl.col("id") < 1)))
    assert shown == "RowCounts: 1 row of 1 split"
    counts = af.count_rows(rows)
    assert repr(counts) == f"RowCounts: {counts.num_rows:,} rows of {len(counts.splits)} splits"


def ids(steps: Any) -> list[int]:
    return [row["id"] for step in steps for row in step]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILTERS)
def test_lanes_are_dealt_the_rows_that_are_left(path: Path, name: str) -> None:
    """Equally many of them: the same batches for all numbers of ranks, and less than a row a lane is left out."""
    rows = of(path).filter(FILTERS[name])
    counts = af.count_rows(rows)
    left = rows.to_table()["id"].to_pylist()
    assert counts.num_rows == len(left)
    plan = rows.assert_cardinality(counts).shuffle(64, seed=1).batch(16, drop_remainder=True)
    for epoch in range(2):
        found = {}
        for size in (1, 4):
            datasets = ranks(lambda: plan, size)
            for _ in range(epoch):
                steps_of(datasets)
            found[size] = steps_of(datasets)
            assert len(datasets[0]) == len(found[size])
        assert found[1] == found[4]
        assert len(set(ids(found[1]))) == len(ids(found[1])) == len(left) // 16 * 16
        assert set(ids(found[1])) <= set(left)


def test_what_is_left_out_and_what_is_filled_up(path: Path) -> None:
    rows = of(path).filter(FILTERS["even"]).with_columns(x=pl.col("id") + 1)
    counted = rows.assert_cardinality(af.count_rows(rows))
    padded = steps_of(ranks(lambda: counted.batch(32, pad_remainder=True), 4))
    real = [row["id"] for step in padded for row in step if row["mask"]]
    assert sorted(real) == sorted(rows.to_table()["id"].to_pylist())
    twice = steps_of(ranks(lambda: counted.repeat(2).batch(32), 4))
    assert len(ids(twice)) > 2 * (counted.num_rows or 0) - 32


def test_ranks_go_on_in_other_numbers(path: Path) -> None:
    rows = of(path).filter(FILTERS["uneven"])
    plan = rows.assert_cardinality(af.count_rows(rows)).shuffle(40, seed=2).batch(16, drop_remainder=True)
    whole = steps_of(ranks(lambda: plan, 1))
    runs = [iter(dataset) for dataset in ranks(lambda: plan, 4)]
    for run in runs:
        for _ in range(11):
            next(run)
    merged = af.merge_states([run.state_dict() for run in runs])
    again = [iter(dataset) for dataset in ranks(lambda: plan, 2)]
    for run in again:
        run.load_state_dict(merged)
    steps = zip(*again, strict=True)
    assert [list(itertools.chain(*(part.to_pylist() for part in step))) for step in steps] == whole[11:]


def test_lanes_begin_near_the_step_of_a_state_that_lacks_them(path: Path) -> None:
    """Without a warning: counts tell where the rows of a step are."""
    rows = of(path).filter(FILTERS["uneven"])
    plan = rows.assert_cardinality(af.count_rows(rows)).shuffle(40, seed=2).batch(16, drop_remainder=True)
    for step in (1, 20, 36):
        first, second = ranks(lambda: plan, 2)
        runs = [iter(first), iter(second)]
        for run in runs:
            run.set_epoch(2)
            for _ in range(step):
                next(run)
        expected = list(runs[1])
        again = iter(ranks(lambda: plan, 2)[1])
        again.load_state_dict(runs[0].state_dict())
        assert list(again) == expected


def test_counts_are_kept_beside_the_data(path: Path, tmp_path: Path) -> None:
    rows = of(path).filter(FILTERS["few"])
    counts = af.count_rows(rows, save=tmp_path / "counts")
    assert [entry.name for entry in tmp_path.iterdir()] == ["counts"]
    saved = rows.assert_cardinality(tmp_path / "counts").batch(4)
    assert (
        list(saved) == list(rows.assert_cardinality(str(tmp_path / "counts")).batch(4)) == list(rows.batch(4))
    )
    assert len(saved) == -(-counts.num_rows // 4)
    again = pickle.loads(pickle.dumps(saved.split_by_rank(0, 2)))
    assert list(again) == list(saved.split_by_rank(0, 2))


def test_counts_are_never_read_as_data(path: Path, tmp_path: Path) -> None:
    rows = of(path).filter(FILTERS["few"])
    for name in ("counts.arrow", "counts.Parquet", "counts.csv"):
        with pytest.raises(PlanError, match=r"save=.* ends in \..*as in 'counts.counts'"):
            af.count_rows(rows, save=tmp_path / name)
    assert not list(tmp_path.iterdir())
    af.range(9).write_ipc(tmp_path / "data")
    af.count_rows(rows, save=tmp_path / "data" / "rows.counts")
    assert af.read_ipc(tmp_path / "data").num_rows == 9


def test_columns_and_functions_before_the_filter(path: Path) -> None:
    """Also selectors, which do not see the columns that counting adds, and columns that come and go."""
    selected = af.read_parquet(path).with_columns(s=pl.sum_horizontal(pl.selectors.numeric()))
    rows = (
        selected.select(pl.selectors.all(), t=pl.col("s") % 11).filter(pl.col("t") > 4).drop("s").map(doubled)
    )
    with pytest.raises(PlanError, match="__arrowflow_file"):  # the function makes other columns
        af.count_rows(rows)
    rows = selected.select(pl.selectors.all(), t=pl.col("s") % 11).filter(pl.col("t") > 4).drop("s")
    assert af.count_rows(rows.select(x=pl.col("id") * 2)).num_rows == rows.to_table().num_rows
    kept = af.read_parquet(path).map(lambda batch: batch, keeps_rows=True).filter(pl.col("id") > 5)
    assert af.count_rows(kept).num_rows == 1_771


@pytest.mark.parametrize(
    ("name", "apply"),
    {
        "batch": lambda ds: ds.batch(4),
        "shard": lambda ds: ds.shard(2, 0).filter(pl.col("id") > 1),
        "take": lambda ds: ds.filter(pl.col("id") > 1).take(9),
        "concatenate": lambda ds: ds.concatenate(ds),
        "rejection_resample": lambda ds: ds.rejection_resample(pl.col("id") % 2, [0.9, 0.1], [0.5, 0.5]),
        "map": lambda ds: ds.map(lambda batch, rng: batch.slice(0, rng.integers(9)), seed=1),
    }.items(),
)
def test_other_operators_are_refused(
    path: Path, name: str, apply: Callable[[af.Dataset], af.Dataset]
) -> None:
    with pytest.raises(
        PlanError, match=rf"count_rows: {name}\(.*\) does not keep or drop each row for itself"
    ):
        af.count_rows(apply(of(path)))


def test_other_datasets_are_refused(path: Path) -> None:
    with pytest.raises(PlanError, match="count_rows: rows are repeated"):
        af.count_rows(
            of(path)
            .filter(FILTERS["few"])
            .flat_map(lambda row: af.from_arrow(pa.table({key: [value] * 2 for key, value in row.items()})))
        )
    with pytest.raises(PlanError, match="argument 1 is a Dataset"):
        af.count_rows(3)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="it counts rows of files"):
        af.count_rows(af.range(9).filter(pl.col("id") > 1))


def test_counts_of_something_else_are_refused(path: Path, tmp_path: Path) -> None:
    counts = af.count_rows(of(path).filter(FILTERS["few"]), save=tmp_path / "counts")
    other = of(path).filter(FILTERS["even"])
    with pytest.raises(
        PlanError, match=r"counts are of another pipeline than the one before it, which is read.*filter"
    ):
        _ = other.assert_cardinality(counts).schema
    old = dataclasses.replace(counts, operators=None)  # of an earlier release
    with pytest.raises(PlanError, match="the counts are of another pipeline or of other files"):
        _ = other.assert_cardinality(old).schema
    folder = tmp_path / "more"
    folder.mkdir()
    write_shards(folder)
    rows = of(folder).filter(FILTERS["few"])
    assert rows.assert_cardinality(counts).num_rows == counts.num_rows  # a copy of the same files
    pq.write_table(pa.table({"id": [1]}), folder / "z.parquet")
    with pytest.raises(
        PlanError, match=r"counts are of other files: since they were counted a file was.*count again"
    ):
        _ = rows.assert_cardinality(tmp_path / "counts").num_rows
    with pytest.raises(
        PlanError, match=r"cannot read the counts in .*nothing.*count_rows\(dataset, save=path\)"
    ):
        rows.assert_cardinality(tmp_path / "nothing")
    af.range(3).write_ipc(tmp_path / "ipc")
    with pytest.raises(PlanError, match="no file of counts of this release"):
        rows.assert_cardinality(next((tmp_path / "ipc").glob("*.arrow")))
    (tmp_path / "cut").write_bytes((tmp_path / "counts").read_bytes()[:-9])
    with pytest.raises(PlanError, match="cannot read the counts"):
        rows.assert_cardinality(tmp_path / "cut")


def test_a_function_that_decides_otherwise_is_noticed(path: Path) -> None:
    kept = {"limit": 500}

    def few(batch: pa.RecordBatch) -> pa.Array:
        return pa.array([value < kept["limit"] for value in batch.column("id").to_pylist()])

    rows = of(path).filter(few)
    counts = af.count_rows(rows)
    kept["limit"] = 400
    with pytest.raises(DataError, match=r"expected \d+ rows, found"):
        steps_of(ranks(lambda: rows.assert_cardinality(counts).batch(16), 2))

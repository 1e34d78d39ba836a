"""`read_iceberg`: each snapshot of a table has the rows that `pyiceberg` reads by itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.testing import check_dataset
from tests.effort import scaled
from tests.ops.sources.bounds_of_logs import (
    POOLS,
    check_bounds,
    check_bounds_of,
    check_state_of_version,
    drawn_files,
)
from tests.ops.tables import refused

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")  # the catalog of the tests
pytest.importorskip("pyiceberg_core")  # computes months of partitions
pytestmark = pytest.mark.filterwarnings("ignore")  # of pyiceberg's own dependencies

DAY = dt.date(2024, 1, 31)
ROWS = pa.table(
    {
        "x": pa.array(range(10), pa.int32()),
        "part": ["a", "b", None, "c d/%", "ü"] * 2,
        "day": [DAY, DAY + dt.timedelta(1)] * 5,
        "deep": [{"a": [row]} for row in range(10)],
    }
)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    folder = tmp_path_factory.mktemp("iceberg")
    found = SqlCatalog("test", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}/lake")
    found.create_namespace("n")
    yield found
    found.close()


@pytest.fixture
def new(catalog: Any) -> Iterator[Callable[..., Any]]:
    """Makes a table."""
    yield lambda *given, **options: catalog.create_table("n.new", *given, **options)
    catalog.drop_table("n.new")


@pytest.fixture(scope="module")
def table(catalog: Any) -> Any:
    """Snapshots: rows in partitions with odd names, more of them, a wider type and a column that came later, rows deleted."""
    from pyiceberg.types import DoubleType, LongType

    table = catalog.create_table("n.t", ROWS.schema)
    with table.update_spec() as spec:
        spec.add_identity("part")
        spec.add_field("day", "month", "month")
    table.append(ROWS)
    table.append(ROWS.set_column(0, "x", pa.array(range(10, 20), pa.int32())))
    with table.update_schema() as schema:
        schema.update_column("x", LongType())
        schema.add_column("new", DoubleType())
    table.append(pa.table({"x": [100], "part": ["a"], "day": [DAY], "deep": [{"a": [1]}], "new": [1.5]}))
    table.delete("part == 'ü'")
    return table


def rows(found: Any) -> list[dict[str, Any]]:
    return sorted(found.to_pylist(), key=lambda row: row["x"])


def test_a_cache_on_a_disk_knows_the_snapshot(table: Any, tmp_path: Path) -> None:
    first, *_, last = (each.snapshot_id for each in table.metadata.snapshots)
    for snapshot in (first, last, first):
        ds = af.read_iceberg(table, snapshot=snapshot)
        assert ds.cache(tmp_path / "cache").to_table().equals(ds.to_table())


def test_every_snapshot_has_the_rows_that_its_own_library_reads(table: Any) -> None:
    assert len(table.snapshots()) == 4
    for snapshot in table.snapshots():
        theirs = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        ours = af.read_iceberg(table, snapshot=snapshot.snapshot_id)
        assert ours.schema.names == theirs.schema.names
        assert ours.schema.field("part").type == pa.string() and "large" not in str(ours.schema)
        assert rows(ours.to_table()) == rows(theirs)
        assert ours.num_rows == theirs.num_rows
    assert af.read_iceberg(table.metadata_location).num_rows == table.scan().count()


def test_filters_open_only_the_files_of_their_partitions(table: Any) -> None:
    ds = af.read_iceberg(table)
    for predicate in (pl.col("part") == "c d/%", pl.col("part").is_null(), pl.col("day") > DAY):
        whole = pl.DataFrame(ds.to_table()).filter(predicate)
        assert 0 < len(whole) < 17
        assert rows(ds.filter(predicate).to_table()) == rows(whole.to_arrow())
    assert "the log rules out" in ds.filter(pl.col("part") == "a").explain()


@pytest.fixture
def drawn(new: Callable[..., Any]) -> Any:
    files = [file.set_column(1, "small", file["small"].cast(pa.int32())) for file in drawn_files()]
    table = new(files[0].schema)
    for file in files:
        table.append(file)
    return table


def test_the_manifests_rule_out_no_file_with_a_match(drawn: Any) -> None:
    ds = af.read_iceberg(drawn)
    check_bounds(ds, scaled(1_000))
    for name in POOLS:
        check_bounds_of(name, ds)


def test_files_that_the_manifests_rule_out_are_not_opened(new: Callable[..., Any], opened: list[str]) -> None:
    from pyiceberg.types import LongType

    table = new(pa.schema({"day": pa.int32(), "x": pa.int64()}))
    for day in range(4):
        if day == 2:  # bounds of four bytes before, and of eight from here on
            with table.update_schema() as schema:
                schema.update_column("day", LongType())
        type = pa.int32() if day < 2 else pa.int64()
        table.append(pa.table({"day": pa.array([day - 1] * 3, type), "x": range(3)}))
    ds = af.read_iceberg(table)
    whole = pl.DataFrame(ds.to_table())
    for predicate, files in ((pl.col("day") >= 1, 2), (pl.col("day") == -1, 1), (pl.col("x").is_null(), 0)):
        part = ds.filter(predicate)
        assert f"the log rules out {4 - files} of 4 files" in part.explain()
        opened.clear()
        assert part.to_table().to_pylist() == whole.filter(predicate).to_dicts()
        assert len(opened) == files


@pytest.mark.slow
def test_contracts(table: Any) -> None:
    check_dataset(lambda: af.read_iceberg(table).shuffle(8, seed=1).batch(4), epochs_differ=True)


def test_a_state_goes_on_with_its_own_snapshot_alone(new: Callable[..., Any]) -> None:
    table = new(pa.schema({"x": pa.int64()}))
    assert af.read_iceberg(table).to_table().to_pydict() == {"x": []}
    table.append(pa.table({"x": range(10)}))
    first = table.current_snapshot().snapshot_id
    check_state_of_version(
        lambda then=False: af.read_iceberg(table, snapshot=first if then else None),
        lambda: table.overwrite(pa.table({"x": range(20, 30)})),
        "snapshot",
    )


def renamed(schema: Any) -> None:
    schema.rename_column("x", "y")


def renamed_within(schema: Any) -> None:
    schema.rename_column("deep.a", "b")


def named_again(schema: Any) -> None:
    from pyiceberg.types import StringType

    schema.delete_column("part")
    schema.add_column("part", StringType())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (renamed, "column 'y' was called 'x' before"),
        (renamed_within, "column 'deep.b' was called 'deep.a' before"),
        (named_again, "column 'part' has the name of another one"),
    ],
    ids=["renamed", "renamed within", "named again"],
)
def test_names_that_stood_for_others_are_refused(
    new: Callable[..., Any], change: Callable[[Any], None], text: str
) -> None:
    table = new(ROWS.schema)
    table.append(ROWS)
    for step in (change, lambda schema: schema.delete_column("day")):
        with table.update_schema(allow_incompatible_changes=True) as schema:
            step(schema)
    table.append(table.scan().to_arrow())
    refused(af.PlanError, lambda: af.read_iceberg(table).schema, text, "from_arrow(table.scan())")


def test_a_column_that_was_dropped(new: Callable[..., Any]) -> None:
    table = new(ROWS.schema)
    table.append(ROWS)
    with table.update_schema() as schema:
        schema.delete_column("part")
    found = af.read_iceberg(table).to_table()
    assert found.to_pylist() == ROWS.drop_columns("part").to_pylist()


def test_files_that_lack_the_column_of_their_partition(new: Callable[..., Any]) -> None:
    """As files of Hive do that a table takes over: the value is in the manifest alone."""
    table = new(pa.schema({"day": pa.date32(), "x": pa.int64()}))
    with table.update_spec() as spec:
        spec.add_identity("day")
    table.append(pa.table({"day": [DAY, None], "x": [1, 2]}))
    for task in table.scan().plan_files():
        path = task.file.file_path.removeprefix("file://")
        pq.write_table(pq.ParquetFile(path).read().drop_columns("day"), path)
    expected = [{"day": DAY, "x": 1}, {"day": None, "x": 2}]
    assert rows(af.read_iceberg(table).to_table()) == expected
    assert rows(af.read_iceberg(table).filter(pl.col("day") == DAY).to_table()) == expected[:1]


DOUBLES = pa.table({"k": [0.1, 1e300, 2.5, 1 / 3, None], "x": range(5)})


@pytest.fixture(params=["full", "none"])
def doubles(request: pytest.FixtureRequest, new: Callable[..., Any]) -> Any:
    """A table that is partitioned by doubles, which have 32 bits in its manifests; its metadata have counts, or none."""
    metrics = {"write.metadata.metrics.default": request.param}
    table = new(DOUBLES.schema, properties=metrics)
    with table.update_spec() as spec:
        spec.add_identity("k")
    table.append(DOUBLES)
    assert any(task.file.value_counts for task in table.scan().plan_files()) == (request.param == "full")
    return table


def test_partitions_of_doubles_have_the_values_of_the_files(doubles: Any) -> None:
    ds = af.read_iceberg(doubles)
    found, theirs = (pl.DataFrame(each).sort("x") for each in (ds.to_table(), doubles.scan().to_arrow()))
    assert found.equals(theirs) and found.equals(pl.DataFrame(DOUBLES))
    for row, value in enumerate(DOUBLES["k"].to_pylist()[:4]):
        assert ds.filter(pl.col("k") == value).to_table()["x"].to_pylist() == [row]
    assert ds.filter(pl.col("k").is_null()).to_table()["x"].to_pylist() == [4]
    assert sorted(ds.filter(pl.col("k") > 1).to_table()["x"].to_pylist()) == [1, 2]


def test_files_that_lack_their_double_have_that_of_the_partition(
    doubles: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.manifest import DataFile

    monkeypatch.setattr(DataFile, "value_counts", None)
    paths = [task.file.file_path.removeprefix("file://") for task in doubles.scan().plan_files()]
    for number, path in enumerate(paths):
        if number == 1:  # so that some have it, and one does not
            refused(af.PlanError, lambda: af.read_iceberg(doubles).schema, "column 'k'", "only some")
        pq.write_table(pq.ParquetFile(path).read().drop_columns("k"), path)
    found = {row["x"]: row["k"] for row in af.read_iceberg(doubles).to_table().to_pylist()}
    assert found[2] == 2.5 and found[4] is None and len(found) == 5
    Path(max(paths)).write_bytes(b"no Parquet")
    refused(af.SourceError, lambda: af.read_iceberg(doubles).schema, "columns of the file cannot be read")


def test_bad_input(table: Any, tmp_path: Path) -> None:
    newest = Path(table.metadata_location.removeprefix("file://"))
    folder = newest.parent.parent  # a catalog keeps which metadata are current
    cases: list[tuple[type[Exception], Callable[[], object], str]] = [
        (af.SourceError, lambda: af.read_iceberg(tmp_path / "none").schema, "none"),
        (af.SourceError, lambda: af.read_iceberg(table, snapshot=99).schema, "there is no snapshot 99"),
        (af.PlanError, lambda: af.read_iceberg(table, snapshot=True), "snapshot is a whole number"),
        (af.PlanError, lambda: af.read_iceberg(None), "path or the URL of a table, got None"),
        (af.PlanError, lambda: af.read_iceberg(table, properties=3), "is a mapping"),  # type: ignore[arg-type]
        (af.PlanError, lambda: af.read_parquet(folder).schema, "af.read_iceberg"),
    ]
    for error, call, text in cases:
        refused(error, call, text)
    refused(
        af.SourceError,
        lambda: af.read_iceberg(folder).schema,
        "which of its metadata are current",
        newest.name,
    )


def test_delete_files_and_other_formats_are_refused(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestFile

    with monkeypatch.context() as patched:
        patched.setattr(ManifestFile, "content", ManifestContent.DELETES)
        refused(af.PlanError, lambda: af.read_iceberg(table).schema, "deleted by delete files")
    with monkeypatch.context() as patched:
        patched.setattr(DataFile, "file_format", FileFormat.ORC)
        refused(af.PlanError, lambda: af.read_iceberg(table).schema, "files of ORC")

"""`read_delta`: each version of a table has the rows that `deltalake` reads by itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
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
    moment,
    ruled_out,
)
from tests.ops.tables import refused

deltalake = pytest.importorskip("deltalake")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions: rows in partitions with odd names, rows deleted, a column that came later, all rows gone."""
    folder = tmp_path_factory.mktemp("delta") / "table"
    first = pa.table({"x": range(10), "part": ["a", "b", None, "c d/%", "ü"] * 2, "s": [None] * 9 + ["z"]})
    deltalake.write_deltalake(folder, first, partition_by=["part"])
    deltalake.write_deltalake(folder, first.set_column(0, "x", pa.array(range(10, 20))), mode="append")
    deltalake.DeltaTable(folder).delete("x = 3 or x = 14")
    wider = pa.table({"x": [100], "part": ["a"], "s": ["n"], "new": [1.5]})
    deltalake.write_deltalake(folder, wider, mode="append", schema_mode="merge")
    deltalake.DeltaTable(folder).delete()
    return folder


def rows(found: pa.Table) -> list[dict[str, Any]]:
    return sorted(found.to_pylist(), key=lambda row: (row["x"], str(row)))


@pytest.mark.parametrize("version", range(5))
def test_every_version_has_the_rows_that_its_own_library_reads(table: Path, version: int) -> None:
    theirs = deltalake.DeltaTable(table, version=version).to_pyarrow_table()
    ours = af.read_delta(table, version=version)
    assert ours.schema.names == theirs.schema.names
    assert rows(ours.to_table()) == rows(theirs)
    assert ours.num_rows == theirs.num_rows


def test_a_cache_on_a_disk_knows_the_version(table: Path, tmp_path: Path) -> None:
    for version in (0, 1, 0):
        ds = af.read_delta(table, version=version)
        assert ds.cache(tmp_path).to_table().equals(ds.to_table())


def test_filters_open_only_the_files_of_their_partitions(table: Path, tmp_path: Path) -> None:
    ds = af.read_delta(table, version=3)
    for predicate in (
        pl.col("part") == "c d/%",
        pl.col("part").is_null(),
        pl.col("x") > 12,
        pl.col("new") > 1,
    ):
        whole = pl.DataFrame(ds.to_table()).filter(predicate)
        assert rows(ds.filter(predicate).to_table()) == rows(whole.to_arrow())
    assert "the log rules out" in ds.filter(pl.col("part") == "a").explain()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("delta") / "drawn"
    for file in drawn_files():
        deltalake.write_deltalake(folder, file, mode="append")
    return folder


def test_the_log_rules_out_no_file_with_a_match(drawn: Path) -> None:
    check_bounds(af.read_delta(drawn), scaled(2_000))


def test_what_the_log_knows_of_each_type(drawn: Path) -> None:
    for name in POOLS:
        check_bounds_of(name, af.read_delta(drawn))


def test_files_that_the_log_rules_out_are_not_opened(tmp_path: Path, opened: list[str]) -> None:
    for day in range(4):
        deltalake.write_deltalake(tmp_path, pa.table({"day": [day] * 3, "x": range(3)}), mode="append")
    ds = af.read_delta(tmp_path)
    whole = pl.DataFrame(ds.to_table())
    predicate = (pl.col("day") >= 2) & (pl.col("x") != 1)
    for part, expected, files in (
        (ds.filter(predicate), whole.filter(predicate), 2),
        (ds.skip(4).filter(predicate), whole[4:].filter(predicate), 4),
        (ds.take(11).filter(predicate), whole[:11].filter(predicate), 4),
    ):
        assert ("the log rules out 2 of 4 files" in part.explain()) == (files == 2)
        opened.clear()
        assert part.to_table().to_pylist() == expected.to_dicts()
        assert len(opened) == files


def with_statistics(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Returns a table of two files; the log says of the later one what `change` returns."""
    early, late = ({"x": [row, row + 1, None], "at": [moment(row)] * 3, "a.b": [row] * 3} for row in (0, 10))
    deltalake.write_deltalake(folder, pa.table({**early, "a": [{"b": 10}] * 3}))
    deltalake.write_deltalake(folder, pa.table({**late, "a": [{"b": 0}] * 3}), mode="append")
    log = folder / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            found = change(json.loads(action["add"]["stats"]))
            action["add"]["stats"] = json.dumps(found) if isinstance(found, dict) else found
    log.write_text("\n".join(map(json.dumps, actions)))
    return folder


LOGS: Final[dict[str, tuple[Callable[[dict[str, Any]], Any], int]]] = {
    "all": (lambda found: found, 1),
    "none": (lambda found: None, 0),
    "an empty text": (lambda found: "", 0),
    "nothing": (lambda found: {}, 0),
    "no JSON": (lambda found: "{", 0),
    "no rows": (lambda found: {name: each for name, each in found.items() if name != "numRecords"}, 0),
    "no least values": (lambda found: {name: each for name, each in found.items() if name != "minValues"}, 0),
    "another column's": (lambda found: {**found, "minValues": {"at": found["minValues"]["at"]}}, 0),
    "no numbers": (lambda found: {**found, "minValues": {"x": "ten"}}, 0),
    "bounds that are not tight": (lambda found: {**found, "tightBounds": False}, 1),
}


@pytest.mark.parametrize("name", LOGS)
def test_logs_that_say_less(tmp_path: Path, name: str) -> None:
    change, count = LOGS[name]
    folder = with_statistics(tmp_path, change)
    assert ruled_out(af.read_delta(folder), [pl.col("x") < 5]) == [count]
    assert ruled_out(
        af.read_delta(folder), [pl.col("x") > 5, pl.col("x").is_null(), pl.col("x").is_not_null()]
    ) == [1, 0, 0]


def test_columns_with_the_name_of_a_field_and_checkpoints(tmp_path: Path) -> None:
    folder = with_statistics(tmp_path, lambda found: found)
    deltalake.DeltaTable(folder).create_checkpoint()
    (folder / "_delta_log" / f"{1:020}.json").unlink()
    assert ruled_out(af.read_delta(folder), [pl.col("a.b") < 5, pl.col("a.b") >= 5, pl.col("a.b") < 0]) == [
        1,
        1,
        2,
    ]


def test_a_column_that_came_later_is_null_in_files_before(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"x": [1, 2]}))
    deltalake.write_deltalake(tmp_path, pa.table({"x": [3], "y": [3]}), mode="append", schema_mode="merge")
    for source, expected in ((pl.col("y").is_null(), [1, 2]), (pl.col("y") == 3, [3])):
        assert sorted(af.read_delta(tmp_path).filter(source).to_table()["x"].to_pylist()) == expected


@pytest.mark.slow
def test_contracts(table: Path) -> None:
    check_dataset(lambda: af.read_delta(table, version=3).batch(4))
    check_dataset(lambda: af.read_delta(table, version=3).shuffle(8, seed=1).batch(4), epochs_differ=True)


def test_a_state_goes_on_with_its_own_version_alone(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"x": range(10)}))
    check_state_of_version(
        lambda then=False: af.read_delta(tmp_path, version=0 if then else None),
        lambda: deltalake.DeltaTable(tmp_path).delete("x = 5"),
        "read_delta(version=1, ",
        "read_delta(version=0, ",
    )


def test_the_version_is_fixed_once_it_is_bound(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", pa.table({"x": [1]}))
    ds = af.read_delta(tmp_path / "t")
    assert ds.num_rows == 1 and "version 0" in ds.explain() and str(tmp_path) in repr(ds)
    deltalake.write_deltalake(tmp_path / "t", pa.table({"x": [2]}), mode="append")
    assert ds.num_rows == 1
    assert af.read_delta(tmp_path / "t").num_rows == 2


def with_protocol(folder: Path, features: list[str], **configuration: str) -> Path:
    """Returns a copy of a table whose log asks for more."""
    deltalake.write_deltalake(folder, pa.table({"x": [1]}))
    log = folder / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7} | {
                "readerFeatures": features,
                "writerFeatures": features,
            }
        if "metaData" in action:
            action["metaData"]["configuration"] = configuration
    log.write_text("\n".join(map(json.dumps, actions)))
    return folder


def test_tables_that_ask_for_more_are_refused(tmp_path: Path) -> None:
    mapped = with_protocol(tmp_path / "mapped", ["columnMapping"], **{"delta.columnMapping.mode": "name"})
    later = with_protocol(tmp_path / "later", ["later"])
    plain = with_protocol(tmp_path / "plain", ["deletionVectors"])
    with pytest.raises(
        (af.PlanError, af.SourceError), match=r"read_delta: .*(columnMapping|column mapping|mapped)"
    ):
        _ = af.read_delta(mapped).schema
    with pytest.raises(af.PlanError, match=r"read_delta: .*later.*(newer `deltalake`|another engine)"):
        _ = af.read_delta(later).schema
    assert af.read_delta(plain).num_rows == 1


def test_a_protocol_of_the_future_is_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"x": [1]}))
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace('"minReaderVersion":1', '"minReaderVersion":9'))
    refused(
        af.PlanError, lambda: af.read_delta(tmp_path).schema, "version 9", "newer `deltalake`", "from_arrow"
    )


def test_a_damaged_log_is_told_without_a_stack_trace(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"x": [1]}))
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text("{garbage")
    with pytest.raises(af.SourceError, match="the log of the table cannot be read: ") as caught:
        _ = af.read_delta(tmp_path).schema
    assert "\n" not in str(caught.value) and "parsing" in str(caught.value)


def test_folders_with_odd_names(tmp_path: Path) -> None:
    folder = tmp_path.joinpath("sp ace", "ü", "a#b", "q?x", "100%", "a+b", "table")
    deltalake.write_deltalake(folder, pa.table({"x": [1, 2], "part": ["a b", "%20"]}), partition_by=["part"])
    expected = [{"x": 1, "part": "a b"}, {"x": 2, "part": "%20"}]
    assert rows(af.read_delta(folder).to_table()) == expected
    assert rows(af.read_delta(folder.as_uri()).to_table()) == expected


@pytest.mark.parametrize("name", ["50%25", "sp%20ace"])
def test_folders_with_percent_codes_in_their_names(tmp_path: Path, name: str) -> None:
    """`deltalake` 1.6 decodes them once too often, and finds no log; another version may find it."""
    deltalake.write_deltalake(tmp_path / "plain", pa.table({"x": [1, 2]}))
    folder = (tmp_path / "plain").rename(tmp_path / name)
    try:
        deltalake.DeltaTable(folder)
    except Exception:  # noqa: BLE001  # of any kind
        refused(af.SourceError, lambda: af.read_delta(folder).schema, "percent codes", "rename the folder")
    else:
        assert rows(af.read_delta(folder).to_table()) == [{"x": 1}, {"x": 2}]


def test_bad_input(tmp_path: Path, table: Path) -> None:
    cases: list[tuple[type[Exception], Callable[[], object], str]] = [
        (af.SourceError, lambda: af.read_delta(tmp_path / "none").schema, "none"),
        (
            af.SourceError,
            lambda: af.read_delta(table, version=99).schema,
            "there is no version 99; there are 0 to 4",
        ),
        (af.SourceError, lambda: af.read_delta(tmp_path, version=3).schema, "cannot be read"),
        (af.PlanError, lambda: af.read_delta(table, version=-1), "version is at least 0"),
        (af.PlanError, lambda: af.read_delta(3), "path or the URL of a table, got 3"),  # type: ignore[arg-type]
        (af.PlanError, lambda: af.read_delta(""), "path or the URL of a table, got ''"),
        (af.PlanError, lambda: af.read_delta(table, storage_options=3), "is a mapping"),  # type: ignore[arg-type]
        (af.PlanError, lambda: af.read_parquet(table).schema, 'af.read_delta("…")'),
    ]
    for error, call, text in cases:
        refused(error, call, text)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "version", "count"),
    [("delta-0.8.0", 1, 4), ("delta-0.8.0", 0, 5), ("table-with-dv-small", 0, 10)],
)
def test_tables_of_others(name: str, version: int, count: int) -> None:
    assert (
        af.read_delta(Path(os.environ["ARROWFLOW_CORPUS"], "delta", name), version=version).num_rows == count
    )


@pytest.mark.corpus
def test_deletion_vectors_are_refused() -> None:
    folder = Path(os.environ["ARROWFLOW_CORPUS"], "delta", "table-with-dv-small")
    refused(af.PlanError, lambda: af.read_delta(folder).schema, "deleted by deletion vectors", "duckdb")


def test_errors_of_the_log_show_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(table: str, **arguments: Any) -> None:
        raise OSError(f"{table}: the key {arguments['storage_options']['secret_access_key']} is wrong")

    monkeypatch.setattr(deltalake, "DeltaTable", refuses)
    options = {"secret_access_key": "hunter2hunter2"}
    with pytest.raises(af.SourceError, match="the key … is wrong") as caught:
        af.read_delta("s3://bucket/table", storage_options=options).num_rows  # noqa: B018  # reads the log
    assert "hunter2" not in str(caught.value)

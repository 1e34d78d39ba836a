"""Hive partitions: columns that the names of folders give."""

from __future__ import annotations

import datetime
import decimal
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.fs as pafs
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats.parquet.parquet import ParquetFormat
from arrowflow.ops.sources.files.partitions import discover
from arrowflow.ops.sources.from_memory import normalised_schema
from arrowflow.storage import File
from arrowflow.testing import assert_same_batches, assert_same_rows, batches_of, check_dataset, check_resume
from tests.formats.tfrecords import encoded, framed
from tests.ops.sources.files.written import write_file
from tests.ops.tables import Apply, refused, rows_of, stands_for_all

pytestmark = pytest.mark.any_version

SCHEMA = pa.schema([("row", pa.int64()), ("text", pa.string())])


def write_tree(folder: Path, sizes: Mapping[str, int], suffix: str = ".parquet") -> Path:
    """Writes one file in each of some folders; `row` counts through all of them."""
    start = 0
    for name, size in sizes.items():
        rows = range(start, start + size)
        table = pa.table({"row": rows, "text": [f"text {row}" for row in rows]}, schema=SCHEMA)
        write_file(folder / name / f"a{suffix}", table)
        start += size
    return folder


SIZES = {"year=2023/month=01": 7, "year=2023/month=12": 4, "year=2024/month=01": 0, "year=2024/month=02": 8}
YEARS = [2023] * 11 + [2024] * 8
MONTHS = [1] * 7 + [12] * 4 + [2] * 8


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "data", SIZES)


# ---------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("suffix", "read"),
    [(".parquet", af.read_parquet), (".arrow", af.read_ipc), (".csv", af.read_csv), (".jsonl", af.read_json)],
)
def test_folders_give_columns(tmp_path: Path, suffix: str, read: Callable[..., af.Dataset]) -> None:
    sizes = {key: size for key, size in SIZES.items() if size}
    write_tree(tmp_path, sizes, suffix)
    ds = read(tmp_path)
    assert ds.schema.names == ["row", "text", "year", "month"]
    assert ds.to_table().column("year").to_pylist() == YEARS
    assert rows_of(ds, "month") == MONTHS
    assert rows_of(ds) == list(range(19))
    typed = read(tmp_path, schema=pa.schema([("month", pa.int8()), ("row", pa.int64())]))
    assert typed.schema.names == ["month", "row"]
    assert typed.schema.types == [pa.int8(), pa.int64()]
    assert rows_of(typed, "month") == MONTHS
    assert read(tmp_path, partitioning=None).schema.names == ["row", "text"]
    if suffix == ".csv":
        check_dataset(lambda: read(tmp_path).batch(4), in_full=True)
    else:
        check_resume(lambda: read(tmp_path).batch(4), in_full=False)


def test_the_same_as_pyarrow_and_polars(tree: Path) -> None:
    found = af.read_parquet(tree).to_table()
    theirs = pa.dataset.dataset(tree, partitioning="hive").to_table()
    assert found.to_pylist() == theirs.to_pylist()
    frame = pl.read_parquet(tree / "**/*.parquet", hive_partitioning=True)
    assert found.to_pylist() == frame.to_dicts()


def test_values_are_decoded(tmp_path: Path) -> None:
    names = ["a b", "50%", "x=y", "ä/ö", ""]
    folders = ["k=a%20b", "k=50%25", "k=x=y", "k=%C3%A4%2F%C3%B6", "k="]
    write_tree(tmp_path, dict.fromkeys(folders, 1))
    found = af.read_parquet(tmp_path).to_table()
    by_row = {name: row for row, name in enumerate(names)}
    assert {
        name: row for row, name in zip(found["row"].to_pylist(), found["k"].to_pylist(), strict=True)
    } == by_row
    write_tree(tmp_path / "keys", {"a%20key=1": 1})
    assert af.read_parquet(tmp_path / "keys").schema.names == ["row", "text", "a key"]


@pytest.mark.parametrize(
    ("texts", "type", "values"),
    [
        (["1", "02", "-3"], pa.int64(), [1, 2, -3]),
        (["1", "__HIVE_DEFAULT_PARTITION__"], pa.int64(), [1, None]),
        (["__HIVE_DEFAULT_PARTITION__"], pa.string(), [None]),
        (["1", "2x"], pa.string(), ["1", "2x"]),
        (["1", "2.5"], pa.string(), ["1", "2.5"]),
        (["9223372036854775807", "-9223372036854775808"], pa.int64(), [2**63 - 1, -(2**63)]),
        (["9223372036854775808"], pa.string(), ["9223372036854775808"]),
        (["1_000"], pa.string(), ["1_000"]),
        (["+1"], pa.string(), ["+1"]),
        (["٣"], pa.string(), ["٣"]),
        (["2024-01-01"], pa.string(), ["2024-01-01"]),
        (["true"], pa.string(), ["true"]),
    ],
    ids=str,
)
def test_types_are_told_by_all_folders(texts: list[str], type: pa.DataType, values: list[Any]) -> None:
    files = [File(f"/data/k={text}/a.parquet", "", 1, 5) for text in texts]
    found = discover(files, partitioning="hive", target=None, operator="read_parquet")
    assert found is not None
    assert found.values.schema == pa.schema([("k", type)])
    assert found.values.column(0).to_pylist() == values


@pytest.mark.parametrize(
    ("text", "type", "value"),
    [
        ("1", pa.string(), "1"),
        ("1", pa.uint8(), 1),
        ("1.5", pa.float32(), 1.5),
        ("true", pa.bool_(), True),
        ("2024-02-29", pa.date32(), datetime.date(2024, 2, 29)),
        ("2024-02-29 10%3A00%3A00", pa.timestamp("us"), datetime.datetime(2024, 2, 29, 10)),
        ("1.50", pa.decimal128(5, 2), decimal.Decimal("1.50")),
        ("x", pa.large_string(), "x"),
        ("x", pa.binary(), b"x"),
        ("x", pa.dictionary(pa.int8(), pa.string()), "x"),
        ("__HIVE_DEFAULT_PARTITION__", pa.date32(), None),
    ],
    ids=str,
)
def test_a_schema_gives_types(tmp_path: Path, text: str, type: pa.DataType, value: Any) -> None:
    write_tree(tmp_path, {f"k={text}": 2})
    schema = pa.schema([("k", type), ("row", pa.int64())])
    ds = af.read_parquet(tmp_path, schema=schema)
    assert ds.schema.equals(normalised_schema(schema))
    assert rows_of(ds, "k") == [value, value]
    if value is not None:
        assert rows_of(ds.filter(pc.field("k") == pa.scalar(value, ds.schema.field("k").type))) == [0, 1]
    assert rows_of(ds.filter(pl.col("k").is_null())) == ([] if value is not None else [0, 1])


def test_columns_that_nobody_names(tree: Path) -> None:
    """`schema=` names all columns; those that neither file nor folder has are null."""
    schema = pa.schema([("row", pa.int64()), ("year", pa.string()), ("day", pa.int8())])
    ds = af.read_parquet(tree, schema=schema)
    assert ds.schema.equals(schema)
    assert rows_of(ds, "year") == [str(year) for year in YEARS]
    assert set(rows_of(ds, "day")) == {None}
    only = af.read_parquet(tree, schema=pa.schema([("row", pa.int64())]))
    assert only.schema.names == ["row"]


# ------------------------------------------------------------------------------------ which folders count


def test_folders_that_are_found_count(tree: Path) -> None:
    def found(paths: Any, **arguments: Any) -> list[str]:
        return list(af.read_parquet(paths, **arguments).schema.names[2:])

    both = ["year", "month"]
    assert found(tree) == found(f"file://{tree}") == found(str(tree) + "/") == both
    assert found(str(tree / "**/*.parquet")) == found(str(tree / "year=*")) == both
    assert found(str(tree / "year=*/month=*/a.parquet")) == both
    assert found(tree / "year=2023") == found(str(tree / "year=2023/month=*/*")) == ["month"]
    assert found([tree / "year=2023", tree / "year=2024"]) == ["month"]
    assert found(tree / "year=2023/month=01") == []
    file = tree / "year=2023/month=01/a.parquet"
    assert found(file) == found([tree / "year=2024/month=02", file]) == []
    assert found(file, partitioning="hive") == both
    assert found(tree, partitioning=None) == []
    below = pafs.SubTreeFileSystem(str(tree), pafs.LocalFileSystem())
    assert found("year=*", filesystem=below) == found("**/*.parquet", filesystem=below) == both
    refused(
        af.PlanError,
        lambda: found(tree / "year=2023/month=01", partitioning="hive"),
        "read_parquet",
        "key=value",
        "a.parquet",
    )


def test_arguments() -> None:
    wrong: Any = "directory"
    refused(af.PlanError, lambda: af.read_parquet("a", partitioning=wrong), "partitioning is", "'directory'")
    refused(af.PlanError, lambda: af.read_ipc("a", partitioning=wrong), "read_ipc", "'hive'")


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("name", ["year=..%2Fsecret", "year=%2e%2e", "a%5c..%5cyear=1", "year=a%2F..%2Fb"])
def test_names_that_leave_their_folder(tmp_path: Path, name: str) -> None:
    folder = write_tree(tmp_path, {name: 3})
    with pytest.raises(af.SchemaError, match=r"names a place outside of itself") as caught:
        _ = af.read_parquet(folder).schema
    assert caught.value.file == str(tmp_path / name / "a.parquet")
    assert af.read_parquet(folder, partitioning=None).num_rows == 3
    write_tree(tmp_path / "dots", {"year=..a": 2})
    assert af.read_parquet(tmp_path / "dots").to_table().column("year").to_pylist() == ["..a"] * 2


@pytest.mark.parametrize("member", ["../outside.parquet", "a/../../outside.parquet"])
def test_members_of_archives_stay_in_their_archive(tmp_path: Path, member: str) -> None:
    write_file(tmp_path / "outside.parquet", pa.table({"row": [9]}))
    data = (tmp_path / "outside.parquet").read_bytes()
    inside = pa.BufferOutputStream()
    pq.write_table(pa.table({"row": [1]}), inside)
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in" / "a.zip", "w") as archive:
        archive.writestr(member, inside.getvalue().to_pybytes())
    files = fsspec.filesystem("zip", fo=str(tmp_path / "in" / "a.zip"))
    before = sorted(tmp_path.rglob("*"))
    found = [path for path in files.find("") if path.endswith(".parquet")]
    assert af.read_parquet(found, filesystem=files).to_table().column("row").to_pylist() == [1]
    assert sorted(tmp_path.rglob("*")) == before, "nothing is unpacked"
    assert (tmp_path / "outside.parquet").read_bytes() == data


def test_folders_have_to_agree(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a=1/b=2": 1, "b=1/a=2": 1})
    with pytest.raises(af.SchemaError, match=r"keys \['a', 'b'\].*found \['b', 'a'\]") as caught:
        af.read_parquet(tmp_path).num_rows  # noqa: B018
    assert caught.value.file == str(tmp_path / "b=1/a=2/a.parquet")
    assert caught.value.operator == "read_parquet"
    write_tree(tmp_path / "other", {".": 1, "a=1": 1})
    refused(
        af.SchemaError, lambda: af.read_parquet(tmp_path / "other").schema, "found ['a']", "partitioning=None"
    )
    assert af.read_parquet(tmp_path / "other", partitioning=None).num_rows == 2
    write_tree(tmp_path / "twice", {"a=1/a=2": 1})
    refused(af.SchemaError, lambda: af.read_parquet(tmp_path / "twice").schema, "one key twice", "a=1/a=2")


def test_values_have_to_fit(tmp_path: Path) -> None:
    write_tree(tmp_path, {"k=1": 1, "k=300": 1, "k=x": 1})

    def read(type: pa.DataType) -> Callable[[], Any]:
        return lambda: af.read_parquet(tmp_path, schema=pa.schema([("k", type)])).schema

    refused(af.SchemaError, read(pa.int8()), "column 'k'", "expected int8", "'300'", "k=300/a.parquet")
    refused(af.SchemaError, read(pa.int64()), "expected int64", "'x'", "k=x/a.parquet")
    refused(af.SchemaError, read(pa.list_(pa.int8())), "column 'k'", "cannot become list")


def test_a_key_that_is_a_column_too(tmp_path: Path, opened: list[str]) -> None:
    """Some writers put keys into the files as well: these are then read as they are, unless they are asked for."""
    write_file(tmp_path / "a/k=5/a.parquet", pa.table({"k": [5, 5], "x": [1, 2]}))
    write_file(tmp_path / "a/k=6/a.parquet", pa.table({"k": [6], "x": [3]}))
    ds = af.read_parquet(tmp_path / "a")
    assert sorted(ds.to_table().to_pylist(), key=str) == [
        {"k": 5, "x": 1},
        {"k": 5, "x": 2},
        {"k": 6, "x": 3},
    ]
    refused(af.SchemaError, lambda: af.read_parquet(tmp_path / "a", partitioning="hive").schema, "'k'", "k=5")
    write_file(tmp_path / "b/k=1/j=2/a.parquet", pa.table({"k": [1], "x": [1]}))
    refused(af.SchemaError, lambda: af.read_parquet(tmp_path / "b").schema, "column 'k'", "partitioning=None")
    write_file(tmp_path / "c/k=1/a.parquet", pa.table({"x": [1]}))
    write_file(tmp_path / "c/k=2/a.parquet", pa.table({"x": [1], "k": [2]}))
    late = af.read_parquet(tmp_path / "c")
    assert late.schema.names == ["x", "k"]
    with pytest.raises(af.SchemaError, match="column 'k'") as caught:
        late.to_table()
    assert caught.value.file == str(tmp_path / "c/k=2/a.parquet")


Rows = list[dict[str, Any]]


def as_lines(rows: Rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_array(rows: Rows) -> bytes:
    return json.dumps(rows, indent=1).encode()


def as_examples(rows: Rows) -> bytes:
    return framed(encoded({key: [value] for key, value in row.items()}) for row in rows)


@pytest.mark.parametrize("given", [True, False], ids=["schema", "no schema"])
@pytest.mark.parametrize(
    ("suffix", "encode", "read"),
    [
        (".jsonl", as_lines, af.read_json),
        (".json", as_array, af.read_json),
        (".tfrecord", as_examples, af.read_tfrecord),
    ],
)
def test_a_key_that_is_a_column_of_files_that_do_not_list_theirs(
    tmp_path: Path, suffix: str, encode: Callable[[Rows], bytes], read: Callable[..., af.Dataset], given: bool
) -> None:
    def write(path: Path, rows: Rows) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(rows))

    both = tmp_path / "both"
    write(both / f"year=2023/a{suffix}", [{"x": 1, "year": 9}])
    arguments = {"schema": pa.schema([("x", pa.int64()), ("year", pa.int64())])} if given else {}
    assert rows_of(read(both, **arguments), "year") == [9]
    refused(af.SchemaError, lambda: read(both, partitioning="hive", **arguments).schema, "'year'", "2023")
    late = tmp_path / "late"
    write(late / f"year=2023/a{suffix}", [{"x": 1}])
    write(late / f"year=2024/a{suffix}", [{"x": 2}, {"x": 3, "year": 9}])
    assert read(late, **arguments).schema.names == ["x", "year"]
    with pytest.raises(af.SchemaError, match="column 'year' is in the file") as caught:
        read(late, **arguments).to_table()
    assert caught.value.file == str(late / f"year=2024/a{suffix}")
    write(late / f"year=2024/a{suffix}", [{"x": 2}, {"x": 3, "years": 9}])
    assert rows_of(read(late, **arguments), "year") == [2023, 2024, 2024]


def test_rows_of_folders_alone(tmp_path: Path) -> None:
    """Rows without columns are refused, but not where folders give them one."""
    (tmp_path / "year=2023").mkdir()
    (tmp_path / "year=2023/a.jsonl").write_bytes(as_lines([{}, {}]))
    assert rows_of(af.read_json(tmp_path), "year") == [2023, 2023]
    refused(af.SchemaError, lambda: af.read_json(tmp_path, partitioning=None).schema, "no columns")


# ----------------------------------------------------------------------------------------------- pruning

FILTERS: dict[str, tuple[Any, int]] = {
    "a value": (pl.col("year") == 2024, 2),
    "pyarrow's": (pc.field("year") == pc.scalar(2023), 2),
    "two keys": ((pl.col("year") == 2023) & (pl.col("month") > 6), 1),
    "a key and a column": ((pl.col("year") == 2024) & (pl.col("row") > 12), 2),
    "either": ((pl.col("year") == 2024) | (pl.col("row") == 3), 4),
    "a set": (pl.col("month").is_in([2, 5]), 1),
    "none": (pl.col("year") > 3000, 0),
    "no null": (pl.col("year").is_null(), 0),
    "another": (pl.col("year") != 2023, 2),
}


@pytest.mark.parametrize("name", FILTERS)
def test_files_without_a_match_are_not_opened(tree: Path, opened: list[str], name: str) -> None:
    predicate, expected = FILTERS[name]
    everything = af.read_parquet(tree).with_options(af.Options(disabled_rules=["prune_row_groups"]))
    rows = rows_of(everything.filter(predicate))
    ds = af.read_parquet(tree).filter(predicate)
    assert f"folders rule out {4 - expected} of 4 files" in ds.explain()
    opened.clear()
    assert rows_of(ds) == rows
    assert len(opened) == expected
    opened.clear()
    # Files are permuted, too, and drawn from in turn: the same order, whatever is left out.
    shuffled = [
        batches_of(each.filter(predicate).shuffle(5, seed=3)) for each in (everything, af.read_parquet(tree))
    ]
    assert_same_rows(shuffled[1], shuffled[0])


def test_null_is_a_value(tmp_path: Path, opened: list[str]) -> None:
    write_tree(tmp_path, {"k=1": 2, "k=2": 2, "k=__HIVE_DEFAULT_PARTITION__": 2})
    ds = af.read_parquet(tmp_path)
    assert rows_of(ds, "k") == [1, 1, 2, 2, None, None]
    for predicate, rows, files in (
        (pl.col("k").is_null(), [4, 5], 1),
        (pl.col("k").is_not_null(), [0, 1, 2, 3], 2),
        (pl.col("k") < 2, [0, 1], 1),
        (~(pl.col("k") < 2), [2, 3], 1),
    ):
        filtered = ds.filter(predicate)
        assert filtered.schema
        opened.clear()
        assert (rows_of(filtered), len(opened)) == (rows, files)


def test_pruned_files_of_other_formats(tmp_path: Path) -> None:
    write_tree(tmp_path, SIZES, ".arrow")
    ds = af.read_ipc(tmp_path)
    assert rows_of(ds.filter(pl.col("year") == 2024)) == list(range(11, 19))
    assert "folders rule out 2 of 4 files" in ds.filter(pl.col("year") == 2024).explain()
    assert rows_of(ds.skip(5).filter(pl.col("month") == 12)) == [7, 8, 9, 10]


def test_rows_that_are_counted_are_counted_in_all_files(tree: Path, opened: list[str]) -> None:
    applies: list[Apply] = [
        lambda ds: ds.skip(9).filter(pl.col("year") == 2024),
        lambda ds: ds.take(13).filter(pl.col("year") == 2024),
        lambda ds: ds.skip(3).take(10).filter(pl.col("month") == 12),
        lambda ds: ds.filter(pl.col("year") == 2024).skip(3).take(2),
    ]
    for apply in applies:
        plain = af.read_parquet(tree).with_options(
            af.Options(disabled_rules=["prune_row_groups", "limit_reads"])
        )
        assert rows_of(apply(af.read_parquet(tree))) == rows_of(apply(plain))


@pytest.mark.parametrize(
    "order", [lambda ds: ds, lambda ds: ds.shuffle(4, seed=1)], ids=["sorted", "shuffled"]
)
def test_rows_that_lanes_count_are_counted_in_all_files(tmp_path: Path, order: Apply) -> None:
    write_tree(tmp_path, {f"file={number}/k={number % 2}": 10 for number in range(6)})

    def lanes(*disabled: str) -> list[pa.RecordBatch]:
        ds = af.read_parquet(tmp_path).with_options(af.Options(disabled_rules=disabled))
        kept = order(ds.filter(pl.col("k") == 1)).batch(4)
        return batches_of(kept.split_by_rank(0, 1, how="parts", lanes=4, equal_steps="drop"))

    assert_same_batches(lanes(), lanes("prune_row_groups"))


def test_only_what_is_needed_is_read(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = af.read_parquet(tree)
    wanted: list[list[str]] = []
    original = ParquetFormat.read

    def read(self: ParquetFormat, store: Any, footer: Any, split: Any, schema: pa.Schema, *rest: Any) -> Any:
        wanted.append(schema.names)
        return original(self, store, footer, split, schema, *rest)

    monkeypatch.setattr(ParquetFormat, "read", read)
    assert ds.select("month", "year").to_table().to_pydict() == {"month": MONTHS, "year": YEARS}
    assert wanted == [[]] * 8
    wanted.clear()
    assert rows_of(ds.select("row")) == list(range(19))
    assert wanted == [["row"]] * 8
    assert ds.num_rows == 19
    assert ds.select("year").num_rows == 19
    assert "columns 1 of 4: year" in ds.select("year").explain()
    assert "4 files by year, month" in ds.explain()
    assert rows_of(ds.with_columns(one=pl.lit(1)).select("one"), "one") == [1] * 19


# --------------------------------------------------------------------------------------- the contracts

PIPELINES: dict[str, Apply] = {
    "plain": lambda ds: ds,
    "one column of folders": lambda ds: ds.select("year").batch(4),
    "a filter": lambda ds: ds.filter(pl.col("month") != 1).batch(2),
    "a filter below a .shuffle": lambda ds: ds.filter(pl.col("month") != 12).shuffle(4, seed=5).batch(3),
    "rows": lambda ds: ds.skip(2).take(14).filter(pl.col("year") == 2023).batch(3),
    "an expression": lambda ds: ds.with_columns(sum=pl.col("year") * 100 + pl.col("month") + pl.col("row")),
}


CHECKED = {
    "local": {"plain", "one column of folders", "a filter below a .shuffle", "rows"},
    "fetched": {"a filter", "a filter below a .shuffle"},
}
"""Pipelines whose states are checked: the others pass the same positions on."""


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("where", ["local", "fetched"])
def test_contracts(tree: Path, name: str, where: str) -> None:
    below = pafs.SubTreeFileSystem(str(tree.parent), pafs.LocalFileSystem())
    apply = PIPELINES[name]

    def make() -> af.Dataset:
        return apply(af.read_parquet(tree) if where == "local" else af.read_parquet("data", filesystem=below))

    table = af.read_parquet(tree).to_table()
    if ".shuffle" not in name:
        assert_same_rows(batches_of(make()), batches_of(apply(af.from_arrow(table))))
    if name in CHECKED[where]:
        check_dataset(make, epochs_differ=".shuffle" in name, in_full=stands_for_all(name, PIPELINES))


def test_states_follow_from_one_set_of_rules_to_the_other(tmp_path: Path) -> None:
    """Leaving files out renumbers nothing, also where several files are open at once and have different splits."""
    write_tree(tmp_path, {f"k={key}": 3 * (key % 4) + 2 for key in range(9)})

    def make(*disabled: str) -> Iterator[Any]:
        ds = af.read_parquet(tmp_path).filter(pl.col("k").is_in([1, 2, 6, 7])).shuffle(4, seed=2).batch(2)
        return iter(ds.with_options(af.Options(disabled_rules=disabled)))

    whole = list(make())
    assert len(whole) > 10
    for one, other in (((), ("prune_row_groups",)), (("prune_row_groups",), ())):
        running: Any = make(*one)
        for step in range(1, len(whole)):
            next(running)
            if step % 2 == len(one):
                continue
            resumed: Any = make(*other)
            resumed.load_state_dict(running.state_dict())
            assert_same_batches(list(resumed), whole[step:], f"{one} to {other} after {step}")


def test_a_state_knows_its_folders(tmp_path: Path) -> None:
    write_tree(tmp_path / "a", {"k=1": 5})
    write_tree(tmp_path / "b", {"k=2": 5})
    running: Any = iter(af.read_parquet(tmp_path / "a").batch(2))
    next(running)
    moved = write_tree(tmp_path / "c", {"k=1": 5})
    same: Any = iter(af.read_parquet(moved).batch(2))
    same.load_state_dict(running.state_dict())
    assert next(same)["row"].to_pylist() == [2, 3]
    other: Any = iter(af.read_parquet(tmp_path / "b").batch(2))
    refused(af.StateError, lambda: other.load_state_dict(running.state_dict()), "another pipeline")


def test_global_shuffle(tmp_path: Path) -> None:
    write_tree(tmp_path, SIZES, ".arrow")
    ds = af.read_ipc(tmp_path).shuffle(seed=1)
    table = ds.to_table()
    assert table["row"].to_pylist() != sorted(table["row"].to_pylist())
    assert table.sort_by("row").equals(af.read_ipc(tmp_path).to_table())
    check_dataset(lambda: af.read_ipc(tmp_path).shuffle(seed=1).batch(4), epochs_differ=True)


def test_columns_are_new_memory(tree: Path) -> None:
    one, two = list(af.read_parquet(tree, columns=["year", "month"]).to_numpy())[:2]
    assert one["year"].flags.writeable
    one["year"][:] = 0
    assert set(two["year"].tolist()) == {2023}

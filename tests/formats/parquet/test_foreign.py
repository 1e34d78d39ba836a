"""Parquet files of other writers: names that stand twice, codecs, counts, types that Polars or pyarrow do not read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.errors import PlanError, SchemaError, SourceError
from arrowflow.formats.parquet import arrow_decoder
from tests.formats.reading import write_table

NAMES = ["a", "b", "a", "s"]


def twice() -> pa.Table:
    struct = pa.array([{"x": 1}, None, {"x": 3}], pa.struct({"x": pa.int64()}))
    return pa.Table.from_arrays(
        [pa.array([1, 2, 3]), pa.array(["u", None, "w"]), pa.array([7, 8, 9]), struct], NAMES
    )


def write(folder: Path, kind: str) -> af.Dataset:
    folder.mkdir(exist_ok=True)
    if kind == "csv":
        (folder / "a.csv").write_text("a,b,a\n1,u,7\n2,,8\n3,w,9\n")
    else:
        write_table(folder / ("a.parquet" if kind == "parquet" else "a.arrow"), twice(), rows=2)
    return af.read(folder, format=kind)


@pytest.mark.parametrize("kind", ["parquet", "ipc", "csv"])
def test_names_that_stand_twice(tmp_path: Path, kind: str) -> None:
    ds = write(tmp_path, kind)
    with pytest.raises(SchemaError, match=rf"read_{kind}: .*several called \['a'\]; columns= picks others"):
        _ = ds.schema
    picked = af.read(tmp_path, format=kind, columns=["b"])
    assert picked.to_table().to_pydict() == {"b": ["u", None, "w"]}
    assert picked.skip(2).to_table().to_pydict() == {"b": ["w"]}
    assert af.read(tmp_path, format=kind, schema={"b": pa.string()}).to_table().num_rows == 3
    with pytest.raises(SchemaError, match=r"several called \['a'\]; columns= picks others"):
        af.read(tmp_path, format=kind, columns=["b", "a"]).to_table()
    with pytest.raises(PlanError, match="unknown column 'c'"):
        af.read(tmp_path, format=kind, columns=["c"]).to_table()
    with pytest.raises(SchemaError, match="several called"):
        af.read(tmp_path, format=kind, schema={"a": pa.int64()}).to_table()


def test_the_error_says_how_to_name_them_by_their_places(tmp_path: Path) -> None:
    """As `column_names=` of read_csv does."""
    for kind, name in (("parquet", "a.parquet"), ("ipc", "a.arrow")):
        with pytest.raises(SchemaError) as caught:
            _ = write(tmp_path / kind, kind).schema
        assert re.search(r"from_arrow\(.*rename_columns\(.* by their places", str(caught.value))
        path = tmp_path / kind / name
        table = pq.ParquetFile(path).read() if kind == "parquet" else pa.ipc.open_file(path).read_all()
        named = af.from_arrow(table.rename_columns(["x", "y", "z", "s"]).drop(["s"]))
        assert named.to_table().to_pydict() == {"x": [1, 2, 3], "y": ["u", None, "w"], "z": [7, 8, 9]}


def test_names_that_stand_twice_in_a_later_file(tmp_path: Path) -> None:
    pq.write_table(twice().select([1, 2]), tmp_path / "0.parquet")
    pq.write_table(twice(), tmp_path / "1.parquet", row_group_size=2)
    with pytest.raises(SchemaError, match=r"several called \['a'\].*1.parquet"):
        af.read_parquet(tmp_path).to_table()
    found = af.read_parquet(tmp_path / "1.parquet", columns=["s", "b"]).to_table()
    assert found.to_pydict() == {"s": [{"x": 1}, None, {"x": 3}], "b": ["u", None, "w"]}


@pytest.mark.corpus
def test_names_that_stand_twice_in_a_file_of_others(corpus: Path) -> None:
    found = af.read_parquet(corpus / "odd" / "bug13053-2.parquet", columns=["column_1"]).to_table()
    assert found.to_pydict() == {"column_1": [4, 5, 6]}


def footer_of(path: Path) -> tuple[bytearray, int]:
    data = bytearray(path.read_bytes())
    return data, len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def test_a_codec_that_pyarrow_lacks(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path, compression="snappy")
    data, start = footer_of(path)
    place = data.index(b"\x15\x02\x16", start)  # the codec of the column chunk, before its number of values
    data[place + 1] = 6  # LZO, as zigzag
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"compressed by LZO.*another codec") as caught:
        af.read_parquet(path).to_table()
    assert "corrupt" not in str(caught.value)


def test_a_file_that_counts_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1, 2, 3]}), path, row_group_size=2)
    data, start = footer_of(path)
    place = data.index(b"\x16\x06\x19", start)  # the rows of the file, before its row groups
    data[place + 1] = 2
    path.write_bytes(data)
    with pytest.raises(SourceError, match="its row groups have 3 rows, and the file has 1"):
        af.read_parquet(path).to_table()
    data[place + 1] = 0
    path.write_bytes(data)
    ds = af.read_parquet(path)
    assert ds.num_rows == 3
    assert ds.to_table().to_pydict() == {"x": [1, 2, 3]} == pq.read_table(path).to_pydict()
    assert ds.skip(1).to_table().to_pydict() == {"x": [2, 3]}


STRUCTS: list[Any] = [{"a": 1, "m": [("k", 1)], "b": "x"}, None, {"a": 3, "m": [], "b": None}]


@pytest.mark.parametrize("source", ["parquet", "memory"])
def test_a_field_of_a_struct_beside_one_that_polars_cannot_read(tmp_path: Path, source: str) -> None:
    type = pa.struct({"a": pa.int64(), "m": pa.map_(pa.string(), pa.int64()), "b": pa.string()})
    rows = pa.table({"s": pa.array(STRUCTS, type), "i": [1, 2, 3]})
    pq.write_table(rows, tmp_path / "a.parquet")
    ds = af.read_parquet(tmp_path) if source == "parquet" else af.from_arrow(rows)
    field = pl.col("s").struct.field
    found = ds.select(a=field("a") + pl.col("i"), b=field("b")).to_table()
    assert found.to_pydict() == {"a": [2, None, 6], "b": ["x", None, None]}
    kept = ds.filter(field("a") > 1).to_table()
    assert kept.to_pydict() == {"s": STRUCTS[2:], "i": [3]}
    assert ds.skip(2).with_columns(a=field("a")).to_table().to_pydict() == {
        "s": STRUCTS[2:],
        "i": [3],
        "a": [3],
    }
    for expr in (field("m"), pl.col("s").is_null()):
        with pytest.raises(PlanError, match="Polars cannot read column 's'"):
            ds.select(x=expr).to_table()


def test_fixed_size_lists_with_nulls(tmp_path: Path) -> None:
    rows = pa.table({"x": pa.array([[1, 2], None], pa.list_(pa.int64(), 2))})
    af.from_arrow(rows).write_parquet(tmp_path / "out")
    assert pl.read_parquet(tmp_path / "out" / "*.parquet")["x"].to_list() == [[1, 2], None]
    if arrow_decoder._LACKS_NULLS:
        with pytest.raises(SourceError, match="upgrade pyarrow"):
            af.read_parquet(tmp_path / "out").to_table()
    else:
        assert af.read_parquet(tmp_path / "out").to_table().equals(rows)


def test_errors_of_fixed_size_lists_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def read_row_groups(self, *args: Any, **options: Any) -> Any:
            raise pa.ArrowInvalid("Expected all lists to be of size=2 but index 1 had size=0")

    for lacks, kind in ((True, SourceError), (False, pa.ArrowInvalid)):
        monkeypatch.setattr(arrow_decoder, "_LACKS_NULLS", lacks)
        with pytest.raises(kind):
            arrow_decoder._read(Reader(), [0], [0])

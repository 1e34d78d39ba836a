"""WebDataset shards: read back by this library and by tarfile; what an archive cannot hold is refused."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from tests.ops.tables import refused

KEYS = ["a", "folder.d/b", "c" * 150, "d-1"]
TABLE = pa.table(
    {
        "__key__": KEYS,
        "jpg": [b"\0" * 512, b"", None, b"x" * 513],
        "seg.png": [None, b"1", None, b"2"],
        "cls": [1, None, -3, 2**62],
        "txt": ["x", None, "", "é\n"],
        "real": pa.array([0.1, None, -0.0, float("inf")]),
        "yes": [True, None, False, True],
    }
)


def test_rows_are_read_back_by_two_readers(tmp_path: Path) -> None:
    written = af.from_arrow(TABLE).write_webdataset(tmp_path / "out", shard_rows=3)
    assert [Path(file).name for file in written.files] == [f"part-0000{number}.tar" for number in range(2)]
    assert written.num_bytes == sum(Path(file).stat().st_size for file in written.files)
    assert af.read_webdataset(tmp_path / "out", schema=TABLE.schema).to_table().combine_chunks().equals(TABLE)
    found: list[tuple[str, bytes]] = []
    for file in written.files:
        with tarfile.open(file) as archive:
            found += [(member.name, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]
    expected = [
        (f"{row['__key__']}.{name}", row[name])
        for row in TABLE.to_pylist()
        for name in TABLE.column_names[1:]
        if row[name] is not None
    ]
    texts = {True: b"true", False: b"false"}
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, data), (_, value) in zip(found, expected, strict=True):
        if name.endswith(("jpg", "png")):
            assert data == value
        elif name.endswith("real"):
            assert float(data) == value
        else:
            assert data == (texts[value] if isinstance(value, bool) else str(value).encode())


def test_equal_rows_make_equal_archives(tmp_path: Path) -> None:
    one, other = (af.from_arrow(TABLE).write_webdataset(tmp_path / name).files[0] for name in ("a", "b"))
    assert Path(one).read_bytes() == Path(other).read_bytes()


def test_numbers_are_keys(tmp_path: Path) -> None:
    written = (
        af.from_arrow(TABLE.drop(["__key__"])).enumerate(name="__key__").write_webdataset(tmp_path / "out")
    )
    assert af.read_webdataset(written.files).to_table()["__key__"].to_pylist() == ["0", "1", "2", "3"]


def test_without_rows_there_is_an_empty_archive(tmp_path: Path) -> None:
    (file,) = af.from_arrow(TABLE.slice(0, 0)).write_webdataset(tmp_path / "out").files
    assert af.read_webdataset(file, schema=TABLE.schema).to_table().num_rows == 0
    with tarfile.open(file) as archive:
        assert archive.getnames() == []


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"jpg": [b"x"]}, ["__key__", "enumerate"]),
        ({"__key__": ["a"], "json": [{"a": 1}]}, ["'json'", "struct", "map"]),
        ({"__key__": [0.5], "txt": ["a"]}, ["'__key__'", "double"]),
        ({"__key__": ["a"], "x/y": ["a"]}, ["'x/y'", "rename"]),
        ({"__key__": ["a"], "": ["a"]}, ["''", "rename"]),
        ({"__key__": ["a"], "txt": ["a"], "TXT": ["b"]}, ["'TXT'", "lower case", "rename it to 'txt'"]),
        ({"__key__": ["a", None], "txt": ["a", "b"]}, ["None is no key"]),
        ({"__key__": ["a.b"], "txt": ["a"]}, ["'a.b' is no key"]),
        ({"__key__": ["a/"], "txt": ["a"]}, ["'a/' is no key"]),
        ({"__key__": ["/a"], "txt": ["a"]}, ["'/a' is no key"]),
        ({"__key__": ["b/../../a"], "txt": ["a"]}, ["'b/../../a' is no key"]),
        ({"__key__": [""], "txt": ["a"]}, ["'' is no key"]),
        ({"__key__": ["a", "a"], "txt": ["a", "b"]}, ["'a' comes twice"]),
        ({"__key__": ["a"], "txt": pa.nulls(1, pa.string())}, ["'a' has nulls alone"]),
    ],
)
def test_what_an_archive_lacks_is_refused(tmp_path: Path, columns: dict[str, Any], words: list[str]) -> None:
    ds = af.from_arrow(pa.table(columns))
    refused(af.WriteError, lambda: ds.write_webdataset(tmp_path / "out"), "write_webdataset", *words)
    assert not list(tmp_path.iterdir())

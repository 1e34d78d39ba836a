"""WebDataset shards: any archive that `tarfile` writes gives the rows that its members make; a cut one gives those in front."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.formats.webdataset import webdataset
from arrowflow.testing import check_dataset
from tests.ops.tables import refused

Row = tuple[str, dict[str, bytes]]


def write_tar(path: Path, rows: list[Row], format: int = tarfile.PAX_FORMAT, *, noise: bool = False) -> Path:
    """Writes rows as members, with members between them that make no row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as archive:

        def add(name: str, data: bytes = b"", type: bytes = tarfile.REGTYPE) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.type = len(data), type
            archive.addfile(member, io.BytesIO(data))

        for key, members in rows:
            if noise:
                add("folder.d", type=tarfile.DIRTYPE)
                add("README", b"no dot, no column")
                add(".hidden", b"no key")
            for column, data in members.items():
                add(f"{key}.{column}", data)
    return path


def random_rows(draw: random.Random, count: int, start: int = 0) -> list[Row]:
    rows = []
    for number in range(start, start + count):
        folder = draw.choice(["", "a/", "with.dot/", "a/" * 60, "ü/"])
        members = {
            "jpg": draw.randbytes(draw.choice([0, 1, 511, 512, 513, 3_000])),
            "cls": b" %d\n" % number,
            "seg.png": draw.randbytes(draw.choice([0, 9])),
            "txt": "grün".encode(),
        }
        rows.append(
            (f"{folder}{number:04}", {name: members[name] for name in members if draw.random() < 0.8})
        )
    return [(key, members) for key, members in rows if members]


def expected(rows: list[Row], names: list[str]) -> list[dict[str, Any]]:
    def value(name: str, data: bytes) -> Any:
        return int(data) if name == "cls" else data.decode() if name == "txt" else data

    return [
        {
            name: key if name == "__key__" else value(name, members[name]) if name in members else None
            for name in names
        }
        for key, members in rows
    ]


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webdataset, "SPLIT_BYTES", 9_000)


def read(path: Path, **options: Any) -> af.Dataset:
    return af.read(path, format="webdataset", **options)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("packed", [False, True])
def test_rows_are_the_members_with_one_key(tmp_path: Path, format: int, packed: bool) -> None:
    draw = random.Random(format)
    first, second = random_rows(draw, 40), random_rows(draw, 25, 100)
    write_tar(tmp_path / "0.tar", first, format, noise=True)
    path = write_tar(tmp_path / "1.tar", second, format)
    if packed:
        (tmp_path / "1.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    ds = read(tmp_path)
    names = ds.schema.names
    assert set(names) == {"__key__", "jpg", "cls", "seg.png", "txt"}
    assert ds.to_table().to_pylist() == expected(first + second, names)
    assert ds.num_rows == len(first + second)
    assert ds.skip(41).take(9).to_table().to_pylist() == expected((first + second)[41:50], names)
    assert ds.select("cls").to_table().to_pylist() == expected(first + second, ["cls"])


@pytest.mark.slow
def test_contracts(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", random_rows(random.Random(1), 12))
    write_tar(tmp_path / "1.tar", random_rows(random.Random(2), 9, 50))
    check_dataset(lambda: read(tmp_path).batch(4))
    check_dataset(lambda: read(tmp_path).shuffle(8, seed=1).batch(4), epochs_differ=True)


def test_an_archive_that_is_cut_short_gives_the_rows_in_front(tmp_path: Path) -> None:
    rows = random_rows(random.Random(5), 14)
    whole = write_tar(tmp_path / "whole.tar", rows).read_bytes()
    names = read(tmp_path / "whole.tar").schema.names
    path = tmp_path / "cut" / "0.tar"
    path.parent.mkdir()
    schema = {
        name: pa.string() if name in ("__key__", "txt") else pa.int64() if name == "cls" else pa.binary()
        for name in names
    }
    ended = len(whole.rstrip(b"\0")) // 512 * 512 + 1024  # half of the end mark is enough
    for size in [*random.Random(6).sample(range(ended), 50), *range(0, ended - 512, 4 * 512)]:
        path.write_bytes(whole[:size])
        found: list[dict[str, Any]] = []
        ds = read(path, schema=schema)
        with pytest.raises(af.SourceError, match=rf"cut short.*{path}"):
            found.extend(row for batch in ds for row in batch.to_pylist())
        assert found == expected(rows, names)[: len(found)]
        kept = read(path, schema=schema, on_error="skip").to_table()
        assert kept.to_pylist() == found


def test_members_that_are_none_of_their_type(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar", [("a", {"cls": b"1"}), ("b", {"cls": b"one"}), ("c", {"txt": b"\xff"})]
    )
    refused(
        af.SchemaError,
        lambda: read(path).select("cls").to_table(),
        "the member b.cls is no int64",
        "pa.binary()",
        str(path),
    )
    refused(af.SchemaError, lambda: read(path).select("txt").to_table(), "the member c.txt is no string")
    raw = read(path, schema={"cls": pa.binary(), "absent": pa.int8()})
    assert raw.to_table().to_pylist() == [{"cls": value, "absent": None} for value in (b"1", b"one", None)]
    refused(
        af.SchemaError,
        lambda: read(path, schema={"cls": pa.list_(pa.int8())}).schema,
        "cannot be read as list",
    )


def test_archives_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"no archive" * 999)
    refused(af.SourceError, lambda: read(path).to_table(), "is no tar", str(path))
    write_tar(path, [("a", {"x": b"1"}), ("a", {"x": b"2"})])
    refused(af.SourceError, lambda: read(path).to_table(), "two members for column 'x' of the key 'a'")
    write_tar(path, [])
    refused(af.SourceError, lambda: read(path).to_table(), "no members called key.column")

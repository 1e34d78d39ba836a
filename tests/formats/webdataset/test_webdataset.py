"""WebDataset shards: any archive that `tarfile` writes gives the rows that its members make; a cut one gives those in front."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.formats.webdataset import members, webdataset
from arrowflow.testing import check_dataset
from tests.ops.tables import refused

Row = tuple[str, dict[str, bytes]]
USTAR, GNU, PAX = tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT
FILE = tarfile.REGTYPE
REAL = {"GNU.sparse.name": "real.bin"}


def write_tar(path: Path, rows: list[Row], format: int = PAX, *, noise: bool = False) -> Path:
    """Writes rows as members, with members between them that make no row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as archive:

        def add(name: str, data: bytes = b"", type: bytes = FILE) -> None:
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


@pytest.mark.parametrize(("format", "packed"), [(USTAR, False), (GNU, False), (PAX, False), (GNU, True)])
def test_rows_are_the_members_with_one_key(tmp_path: Path, format: int, packed: bool) -> None:
    draw = random.Random(format)
    first, second = random_rows(draw, 20), random_rows(draw, 15, 100)
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
    assert ds.skip(21).take(9).to_table().to_pylist() == expected((first + second)[21:30], names)
    assert ds.select("cls").to_table().to_pylist() == expected(first + second, ["cls"])


@pytest.mark.parametrize("format", [USTAR, GNU, PAX])
def test_plain_headers_say_what_tarfile_reads(tmp_path: Path, format: int) -> None:
    draw = random.Random(format)
    data = write_tar(tmp_path / "0.tar", random_rows(draw, 60), format, noise=True).read_bytes()
    plain = 0
    for at in range(0, len(data), members.BLOCK):
        block = bytearray(data[at : at + members.BLOCK])
        if draw.random() < 0.4:  # two such bytes might have the sum of those before
            block[draw.randrange(len(block))] ^= draw.choice([1, 0x20, 0x80])
        found = members._plain(bytes(block))
        if found is not None:
            member = tarfile.TarInfo.frombuf(bytes(block), "utf-8", "surrogateescape")
            assert (member.name, member.size, member.type) == (*found, FILE)
            plain += 1
    assert plain > 40


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
    for size in [*random.Random(6).sample(range(ended), 15), *range(0, ended - 512, 6 * 512)]:
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
    texts = "the member b.cls is no int64", "pa.binary()", str(path)
    refused(af.SchemaError, read(path).select("cls").to_table, *texts)
    refused(af.SchemaError, read(path).select("txt").to_table, "the member c.txt is no string")
    raw = read(path, schema={"cls": pa.binary(), "absent": pa.int8()})
    assert raw.to_table().to_pylist() == [{"cls": value, "absent": None} for value in (b"1", b"one", None)]
    ds = read(path, schema={"cls": pa.list_(pa.int8())})
    refused(af.SchemaError, ds.to_table, "cannot be read as list")


def test_archives_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"no archive" * 999)
    refused(af.SourceError, lambda: read(path).to_table(), "is no tar", str(path))
    write_tar(path, [])
    refused(af.SourceError, lambda: read(path).to_table(), "no members called key.column")


PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gz", gzip.compress),
    ("bz2", bz2.compress),
    ("bz", bz2.compress),
    ("xz", lzma.compress),
    ("zst", lambda data: bytes(pa.compress(data, "zstd", asbytes=True))),
]


def test_compressed_archives_are_known_by_their_names(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "plain.tar", [("a", {"x": b"1"}), ("b", {"x": b"2"})])
    path = tmp_path / "a.tar"
    for ending, pack in PACKED:
        packed = tmp_path / ending / f"a.T{ending}"
        packed.parent.mkdir()
        packed.write_bytes(pack(plain.read_bytes()))
        assert read(packed.parent).to_table().equals(read(plain).to_table())
        path.write_bytes(packed.read_bytes())
        words = ["the file is compressed, and its name does not say so", f"end in .tar.{ending} "]
        if ending != "bz":  # as `bz2`
            for schema in (None, {"x": pa.binary()}):
                refused(af.SourceError, read(path, schema=schema).to_table, *words)


def test_columns_are_those_of_all_rows_of_the_first_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webdataset, "SPLIT_ROWS", 100)
    table = pa.table(
        {
            "__key__": [f"{number}" for number in range(200)],
            "cls": range(200),
            "txt": [None if number < 110 else "t" for number in range(200)],
        }
    )
    af.from_arrow(table).write_webdataset(tmp_path / "one")
    assert read(tmp_path / "one").to_table().combine_chunks().equals(table)
    af.from_arrow(table).write_webdataset(tmp_path / "two", shard_rows=110)
    assert read(tmp_path / "two").schema.names == ["__key__", "cls"]
    assert read(tmp_path / "two", missing_columns="null").to_table().combine_chunks().equals(table)


def write_odd(path: Path, type: bytes, format: int, headers: dict[str, str], name: str = "c.bin") -> Path:
    """Writes the rows a and b, then an odd member, then the row d."""
    with tarfile.open(path, "w", format=format) as archive:
        for each in ("a.bin", "b.bin", name, "d.bin"):
            member = tarfile.TarInfo(each)
            if each == name:
                member.type, member.linkname, member.pax_headers = type, "l" * 120, headers
            member.size = 0 if each == name and type in (tarfile.LNKTYPE, tarfile.SYMTYPE) else 4
            archive.addfile(member, io.BytesIO(each[0].encode() * 4))
    return path


ODD: dict[str, tuple[bytes, int, dict[str, str], list[str]]] = {
    "sparse of GNU": (tarfile.GNUTYPE_SPARSE, GNU, {}, ["'c.bin'", "--sparse"]),
    "sparse 0.0": (FILE, PAX, {"GNU.sparse.size": "9", "GNU.sparse.numblocks": "1"}, ["'c.bin'", "--sparse"]),
    "sparse 0.1": (FILE, PAX, {"GNU.sparse.map": "1,4"} | REAL, ["'real.bin'", "--sparse"]),
    "sparse 1.0": (
        FILE,
        PAX,
        {"GNU.sparse.major": "1", "path": "./GNUSparseFile.1/real"} | REAL,
        ["'real.bin'", "--sparse"],
    ),
    "hard link of GNU": (tarfile.LNKTYPE, GNU, {}, ["'c.bin'", "--hard-dereference"]),
    "hard link of POSIX": (tarfile.LNKTYPE, PAX, {}, ["'c.bin'", "dereference=True"]),
}


@pytest.mark.parametrize("odd", list(ODD))
def test_members_that_are_not_read_are_faults(tmp_path: Path, odd: str) -> None:
    type, format, headers, words = ODD[odd]
    path = write_odd(tmp_path / "a.tar", type, format, headers)
    refused(af.SourceError, lambda: read(path).to_table(), *words, str(path))
    kept = read(path, on_error="skip").to_table()
    assert kept.to_pylist() == [{"__key__": "a", "bin": b"aaaa"}]


@pytest.mark.parametrize("format", [GNU, PAX])
def test_links_without_data_are_passed_over(tmp_path: Path, format: int) -> None:
    rows = [{"__key__": key, "bin": key.encode() * 4} for key in "abd"]
    for type, name in ((tarfile.SYMTYPE, "c.bin"), (tarfile.LNKTYPE, "README")):
        path = write_odd(tmp_path / "a.tar", type, format, {}, name)
        assert read(path).to_table().to_pylist() == rows


def test_a_long_name_of_a_hard_link(tmp_path: Path) -> None:
    name = "long/" * 30 + "c.bin"
    path = write_odd(tmp_path / "a.tar", tarfile.LNKTYPE, GNU, {}, name)
    refused(af.SourceError, lambda: read(path).to_table(), f"{name!r} at byte", "hard link")


def gnu_tar(*arguments: str) -> None:
    try:
        told = subprocess.run(["tar", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        told = ""
    if "GNU tar" not in told:
        pytest.skip("needs GNU tar")
    subprocess.run(["tar", *arguments], check=True)


@pytest.mark.parametrize(
    "options",
    [["--format=gnu"], *(["--format=pax", f"--sparse-version={it}"] for it in ("0.0", "0.1", "1.0"))],
)
def test_sparse_files_of_gnu_tar(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "a.bin").write_bytes(b"A")
    with (tmp_path / "b.bin").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"x")
    path, files = tmp_path / "s.tar", ["-C", str(tmp_path), "a.bin", "b.bin"]
    gnu_tar(*options, "--sparse", "-cf", str(path), *files)
    refused(af.SourceError, lambda: read(path).to_table(), "'b.bin' at byte", "--sparse")
    gnu_tar(options[0], "-cf", str(path), *files)
    assert [len(value) for value in read(path).to_table()["bin"].to_pylist()] == [1, (1 << 20) + 1]


def test_hard_links_of_gnu_tar(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"A")
    os.link(tmp_path / "a.bin", tmp_path / "b.bin")
    path, files = tmp_path / "h.tar", ["-C", str(tmp_path), "a.bin", "b.bin"]
    gnu_tar("-cf", str(path), *files)
    refused(af.SourceError, lambda: read(path).to_table(), "'b.bin' at byte", "--hard-dereference")
    gnu_tar("--hard-dereference", "-cf", str(path), *files)
    assert read(path).to_table()["bin"].to_pylist() == [b"A", b"A"]


def test_two_members_for_one_value_give_the_rows_in_front(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [(key, {"x": b"1"}) for key in ("a", "b", "b", "c")])
    refused(af.SourceError, lambda: read(path).to_table(), "two members for column 'x' of the key 'b'")
    assert read(path, on_error="skip").to_table().to_pylist() == [{"__key__": "a", "x": b"1"}]
    write_tar(path, [("a", {"x": b"1"}), ("b", {"x": b"2"}), ("c", {"__KEY__": b"3"})])
    refused(af.SourceError, lambda: read(path).to_table(), "'c.__KEY__' at byte 2048", "rename")
    assert read(path, on_error="skip").to_table().to_pylist() == [{"__key__": "a", "x": b"1"}]

"""Lines of text files, beside Python's own."""

from __future__ import annotations

import gzip
import lzma
import random
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.formats.text.lines import LinesFormat
from arrowflow.testing import check_dataset
from tests.formats.reading import open_footer, read_split

LETTERS = ["", "a", "é", "\n", "\r\n", "\r", '"', ",", "\x00", "words "]


def lines(ds: af.Dataset) -> list[str]:
    found: list[str] = ds.to_table()["text"].to_pylist()
    return found


@pytest.mark.parametrize("seed", range(12))
def test_random_text_has_the_lines_that_its_line_ends_make(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    text = "".join(draw.choices(LETTERS, k=draw.choice([0, 1, 2, 50, 500])))
    expected = text.replace("\r\n", "\n").split("\n")
    if expected[-1] == "":
        expected.pop()
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    read = af.read(path, format="text", block_bytes=draw.choice([1, 7, 100, 4096]))
    assert lines(read) == expected and read.num_rows == len(expected)
    start = draw.randrange(len(expected) + 1)
    assert lines(read.skip(start)) == expected[start:]


def test_files_of_a_folder_compressed_ones_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\n\nthree".encode())
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(b"four\nfive\n"))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"six\n\n"))
    (tmp_path / "d.txt").write_bytes(b"")
    (tmp_path / "notes.md").write_text("no text file")
    found = af.read_text(tmp_path)
    assert lines(found) == ["one", "two", "", "three", "four", "five", "six", ""]
    assert found.schema == pa.schema({"text": pa.string()})
    assert lines(af.read_text(tmp_path, filter=pl.col("text").str.starts_with("f"))) == ["four", "five"]
    check_dataset(lambda: af.read_text(tmp_path, block_bytes=5).batch(3))


def test_folders_give_columns(tmp_path: Path) -> None:
    for word in "no", "yes":
        (tmp_path / f"answer={word}").mkdir()
        (tmp_path / f"answer={word}" / "a.txt").write_text(f"I say {word}\n")
    assert af.read_text(tmp_path).to_table().to_pylist() == [
        {"text": "I say no", "answer": "no"},
        {"text": "I say yes", "answer": "yes"},
    ]


def test_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("caf\u00e9\nna\u00efve\n".encode("latin1"))
    with pytest.raises(af.SourceError, match=r"row 1: .*no UTF-8; give the encoding= of the files.*a\.txt"):
        lines(af.read_text(path))
    assert lines(af.read_text(path, encoding="latin1")) == ["café", "naïve"]
    path.write_text("wide\n", encoding="utf-16")
    with pytest.raises(af.SourceError, match="give encoding='utf-16'"):
        lines(af.read_text(path))
    assert lines(af.read_text(path, encoding="utf-16")) == ["wide"]
    with pytest.raises(af.PlanError, match="read_text: encoding is an encoding that Python knows"):
        af.read_text(path, encoding="latin-none")


def test_lines_that_are_no_text_are_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"ok\nb\xff\nfine\n\xfe\nend")
    with pytest.raises(af.SourceError, match="row 2: the line is no UTF-8"):
        lines(af.read_text(path))
    assert lines(af.read_text(path, on_error="skip")) == ["ok", "fine", "end"]
    kept = tmp_path / "bad"
    assert len(lines(af.read_text(path, on_error="quarantine", quarantine=kept, block_bytes=4))) == 3
    assert af.read_quarantine(kept).to_table()["data"].to_pylist() == [b"b\xff", b"\xfe"]
    as_bytes = af.read(path, format="text", schema={"text": pa.binary()})
    assert as_bytes.to_table()["text"].to_pylist() == [b"ok", b"b\xff", b"fine", b"\xfe", b"end"]


def test_what_a_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("1\n2\n")
    with pytest.raises(af.SchemaError, match="a line is a text or bytes, and no int32: give a type"):
        af.read(path, format="text", schema={"text": pa.int32()}).to_table()
    path.write_bytes(b"PK\x03\x04 and more\n")
    with pytest.raises(af.SourceError, match="zip archive"):
        lines(af.read_text(path))


def test_bytes_are_announced_for_each_block_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {number}\n" for number in range(1_000)))
    format = LinesFormat(block_bytes=1_000)
    store, footer = open_footer(format, path)
    assert len(footer.splits) == 9
    for split in footer.splits:
        num_bytes = read_split(format, store, footer, split, footer.schema).nbytes
        assert num_bytes <= split.num_bytes <= 2 * num_bytes


def test_of_a_compressed_file_blocks_in_front_of_a_row_are_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\nsix\nten\n"))
    format = LinesFormat(block_bytes=4)
    store, footer = open_footer(format, path)
    for start in range(4):
        batches = list(format.read(store, footer, footer.splits[0], footer.schema, start))
        assert [batch["text"].to_pylist() for batch in batches] == [["one"], ["two"], ["six"], ["ten"]][
            start:
        ]

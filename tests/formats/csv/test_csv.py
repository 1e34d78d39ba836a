"""CSV: any block size gives the rows that were written; what is malformed or does not fit is an error that says where."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.errors import ArrowflowError, BudgetError, SchemaError, SourceError
from arrowflow.formats import FORMATS
from arrowflow.formats.csv.csv import CsvFormat
from arrowflow.formats.csv.lines import CsvLines
from arrowflow.formats.text import blocks
from arrowflow.testing import assert_same_batches, batches_of, check_dataset
from tests.formats.reading import KINDS, count_fetched, on_file_system, open_footer, read_all, read_split

CSV = FORMATS["csv"]
ROWS = 40
TABLE = pa.table(
    {
        "row": pa.array(range(ROWS), pa.int64()),
        "x": [None if i % 5 == 0 else i / 4 for i in range(ROWS)],
        "text": [None if i % 7 == 0 else ['plain', 'a "quoted" one', "two\nlines", "", "a, b"][i % 5] for i in range(ROWS)],
        "yes": [i % 3 == 0 for i in range(ROWS)],
    }
)  # fmt: skip
BLOCKS = (1, 64, 1 << 20)


def as_text(table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    pacsv.write_csv(table, sink)
    return sink.getvalue()


def compress(data: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(data)
    if suffix == ".bz2":
        return bz2.compress(data)
    if suffix == ".xz":
        return lzma.compress(data)
    codec = {".zst": "zstd", ".lz4": "lz4"}.get(suffix)
    if codec is None:
        return data
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def write(folder: Path, data: bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(compress(data, path.suffix))
    return path


def rows_of(folder: Path, data: bytes, **options: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = af.read_csv(write(folder, data), **options).to_table().to_pydict()
    return found


def refused(dataset: Callable[[], af.Dataset], kind: type[Exception], text: str) -> Any:
    with pytest.raises(kind, match=text) as caught:
        dataset().to_table()
    return caught.value


# ----------------------------------------------------------------------------------------- the same rows


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".zst", ".lz4", ".xz"])
def test_any_block_size_and_file_system(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, as_text(), f"a.csv{suffix}")
    for kind, block_bytes in (
        itertools.product(KINDS, BLOCKS) if suffix in {"", ".gz"} else [("mapped", 64), ("fsspec", 1)]
    ):
        format = CsvFormat(block_bytes=block_bytes)
        assert read_all(format, path, kind=kind).equals(TABLE)
        _, footer = open_footer(format, path, kind)
        assert footer.num_rows == ROWS
        if block_bytes == 1:
            assert len(footer.splits) == (1 if suffix else ROWS), "a split is a block, or a compressed file"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_rows_after_any_row(tmp_path: Path, suffix: str) -> None:
    format = CsvFormat(block_bytes=300)
    store, footer = open_footer(format, write(tmp_path, as_text(), f"a.csv{suffix}"))
    wanted = pa.schema({"text": pa.string(), "row": pa.int64()})
    before = 0
    for split in footer.splits:
        for offset in range(split.num_rows + 1):
            found = read_split(format, store, footer, split, wanted, offset)
            expected = TABLE.slice(before + offset, split.num_rows - offset)
            assert found.equals(expected.select(["text", "row"]))
        before += split.num_rows


TEXTS = st.text(st.sampled_from("ab,;\"'\t\n\r\0é "), max_size=6)


@given(
    rows=st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(TEXTS, min_size=n, max_size=n), max_size=8)),
    delimiter=st.sampled_from(",;\t"),
    everything=st.booleans(),
    block_bytes=st.sampled_from([1, 3, 10, 50]),
    suffix=st.sampled_from(["", ".gz"]),
    cut=st.booleans(),
)
def test_what_python_writes(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[list[str]],
    delimiter: str,
    everything: bool,
    block_bytes: int,
    suffix: str,
    cut: bool,
) -> None:
    width = len(rows[0]) if rows else 1
    names = [f"column {i}" for i in range(width)]
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, delimiter=delimiter, quoting=csv.QUOTE_ALL if everything else csv.QUOTE_MINIMAL)
    writer.writerows([names, *rows])
    data = sink.getvalue().encode()
    path = write(tmp_path_factory.mktemp("csv"), data[:-2] if cut else data, f"a.csv{suffix}")
    schema = pa.schema([(name, pa.string()) for name in names])
    format = CsvFormat(delimiter=delimiter, block_bytes=block_bytes).typed(schema)
    # Python quotes the empty text that is all of a row, so that the row is not blank.
    unquoted = not everything and width > 1
    expected = [[value or (None if unquoted else "") for value in row] for row in rows]
    found = read_all(format, path)
    assert [list(row.values()) for row in found.to_pylist()] == expected


FIELDS = st.text(st.sampled_from('ab"\n\r'), max_size=5)


@given(
    st.lists(st.tuples(FIELDS, FIELDS).map(",".join), max_size=6).map(
        lambda lines: "\n".join(lines).encode()
    ),
    st.sampled_from([1, 4, 30]),
)
def test_any_text_gives_what_pyarrow_reads_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, block_bytes: int
) -> None:
    """The lines that are counted are those that pyarrow's lexer finds, wherever quotes are."""
    path = write(tmp_path_factory.mktemp("csv"), data)
    schema = pa.schema({"x": pa.string(), "y": pa.string()})
    format = CsvFormat(column_names=("x", "y"), block_bytes=block_bytes).typed(schema)
    try:
        found = read_all(format, path)
    except SourceError:
        return
    if found.num_rows == 0:
        assert not data.strip(b"\r\n")
        return
    options = pacsv.ConvertOptions(
        column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    expected = pacsv.read_csv(
        pa.BufferReader(data + b"\n"),  # without it, pyarrow takes a last empty field for a quoted one
        pacsv.ReadOptions(use_threads=False, column_names=["x", "y"]),
        pacsv.ParseOptions(newlines_in_values=True),
        options,
    )
    assert found.equals(expected.combine_chunks())


def test_windows_and_pieces_are_smaller_than_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that cross the ends of what is looked at, and what is fetched, at a time."""
    monkeypatch.setattr("arrowflow.formats.text.text.SAMPLE_BYTES", 2)
    monkeypatch.setattr("arrowflow.formats.csv.csv.SAMPLE_BYTES", 2)
    schema = TABLE.schema
    for window in (1, 5, 64):
        monkeypatch.setattr("arrowflow.formats.text.blocks._WINDOW_BYTES", window)
        monkeypatch.setattr("arrowflow.formats.text.blocks._PIECE_BYTES", 3 * window)
        for suffix in ("", ".gz"):
            path = write(tmp_path, as_text(), f"a.csv{suffix}")
            for kind in ("mapped", "fsspec"):
                assert read_all(CsvFormat(block_bytes=100).typed(schema), path, kind=kind).equals(TABLE)


# -------------------------------------------------------------------------------------------- pipelines


PIPELINES: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "rows": lambda ds: ds.filter(pl.col("row") > 1).select("text", "row").skip(2).take(20).batch(5),
    "a .shuffle and a .repeat": lambda ds: ds.shuffle(100, seed=3).repeat(2).batch(9),
}


@pytest.mark.parametrize("kind", ["local", "fsspec", pytest.param("native", marks=pytest.mark.slow)])
def test_contracts(tmp_path: Path, kind: str) -> None:
    """Three files of several blocks, one compressed and one without rows, on a file system."""
    write(tmp_path, as_text(TABLE.slice(0, 15)), "0.csv")
    write(tmp_path, as_text(TABLE.slice(0, 0)), "1.csv")
    write(tmp_path, as_text(TABLE.slice(15, 12)), "2.csv.zst")
    make = partial(af.read_csv, **on_file_system(kind, tmp_path), block_bytes=150)
    assert make().to_table().equals(TABLE.slice(0, 27))
    assert make().num_rows == make().with_columns(one=pl.lit(1)).select("one").to_table().num_rows == 27
    for budget in (1, 3):
        options = af.Options(cpu_budget=budget)
        assert_same_batches(batches_of(make(num_parallel_calls=2).with_options(options)), batches_of(make()))
    if kind == "local":
        check_dataset(lambda: PIPELINES["rows"](make()))
    pipeline = PIPELINES["a .shuffle and a .repeat"]
    check_dataset(lambda: pipeline(make()), epochs_differ=True, in_full=False)


def test_only_wanted_columns_are_converted(tmp_path: Path) -> None:
    data = b"good,bad\n1,2\n2,no number\n"
    schema = pa.schema({"good": pa.int64(), "bad": pa.int64()})
    path = write(tmp_path, data)
    assert af.read_csv(path, schema=schema, columns=["good"]).to_table().to_pydict() == {"good": [1, 2]}
    refused(lambda: af.read_csv(path, schema=schema), SchemaError, "column 'bad'")


def test_only_wanted_blocks_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, as_text())
    ds = af.read_csv(**on_file_system("fsspec", tmp_path), block_bytes=200).skip(30).take(2)
    fetched = count_fetched(monkeypatch, "fetch_ahead")
    monkeypatch.setattr("arrowflow.ops.sources.files.splits.SMALL_FILE_BYTES", 0)
    assert ds.to_table().column("row").to_pylist() == [30, 31]
    assert 0 < sum(fetched) < 500


def test_binding_looks_at_the_first_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("csv.csv", "text.text"):
        monkeypatch.setattr(f"arrowflow.formats.{module}.SAMPLE_BYTES", 64)
    monkeypatch.setattr("arrowflow.formats.text.blocks._WINDOW_BYTES", 64)
    monkeypatch.setattr("arrowflow.formats.text.blocks._PIECE_BYTES", 64)
    write(tmp_path, b"a,b\n" + b"1,2\n" * 1000)
    fetched = count_fetched(monkeypatch)
    ds = af.read_csv(**on_file_system("fsspec", tmp_path), block_bytes=100)
    assert ds.schema.names == ["a", "b"]
    assert sum(fetched) <= 256
    assert ds.num_rows == 1000
    assert sum(fetched) > 4000


# ------------------------------------------------------------------------------------------------ types


def test_types_are_those_of_the_first_file(tmp_path: Path) -> None:
    write(tmp_path, b"a,b\n1.5,x\n", "0.csv")
    write(tmp_path, b"b,a,more\n7,2,z\n,3,\n", "1.csv")
    found = af.read_csv(tmp_path).to_table()
    assert found.schema == pa.schema({"a": pa.float64(), "b": pa.string()})
    assert found.to_pydict() == {"a": [1.5, 2.0, 3.0], "b": ["x", "7", None]}
    write(tmp_path, b"a\n3\n", "2.csv")
    error = refused(lambda: af.read_csv(tmp_path), SchemaError, "column 'b' .* is missing.* pass .*schema=")
    assert error.file.endswith("2.csv")
    schema = pa.schema({"a": pa.float32(), "b": pa.string()})
    assert af.read_csv(tmp_path, schema=schema).to_table().column("b").to_pylist() == ["x", "7", None, None]


def test_a_value_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowflow.formats.csv.csv.SAMPLE_BYTES", 100)
    data = b"a,b\n" + b"1,2\n" * 400 + b"3,x\n"
    error = refused(
        lambda: af.read_csv(write(tmp_path, data)), SchemaError, "column 'b': row 401: .*int64.*'x'"
    )
    assert "take a type in schema=" in str(error) and error.operator == "read_csv"
    assert error.file.endswith("a.csv") and error.row_group == 0
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    assert rows_of(tmp_path, data, schema=schema)["b"][-1] == "x"


def test_inferred_types(tmp_path: Path) -> None:
    data = b"i,f,b,d,t,s,none\n1,1.5,true,2024-01-02,2024-01-02 03:04:05,x,\n2,nan,false,2024-01-03,,y,\n"
    types = list(map(str, af.read_csv(write(tmp_path, data)).schema.types))
    assert types == ["int64", "double", "bool", "date32[day]", "timestamp[s]", "string", "null"]


def test_types_that_csv_has_not(tmp_path: Path) -> None:
    path = write(tmp_path, b"a,b\n1,2\n")
    schema = pa.schema({"a": pa.int64(), "b": pa.list_(pa.int64())})
    refused(lambda: af.read_csv(path, schema=schema), SchemaError, "list.*cast the column")


def test_nulls_and_empty_texts(tmp_path: Path) -> None:
    data = b'a,b\n,x\n1,""\n2,\n3,NA\n'
    assert rows_of(tmp_path, data) == {"a": [None, 1, 2, 3], "b": ["x", "", None, "NA"]}
    assert rows_of(tmp_path, data, null_values=["NA", ""])["b"] == ["x", "", None, None]
    schema = pa.schema({"b": pa.string()})
    assert rows_of(tmp_path, data, null_values="NA", schema=schema)["b"] == ["x", "", "", None]


@pytest.mark.parametrize("given", [None, pa.schema({"c": pa.string(), "b": pa.bool_(), "a": pa.float32()})])
@pytest.mark.parametrize("more", [{}, {"on_error": "skip"}, {"truncate_ragged_lines": True}])
def test_empty_fields_beside_other_null_values(
    tmp_path: Path, given: pa.Schema | None, more: dict[str, Any]
) -> None:
    data = b'a,b,c\nNA,true,NA\n,,\n1,NA,""\n'
    data += b"2\n" if "truncate_ragged_lines" in more else b"no,true\n" if more else b""
    found = rows_of(tmp_path, data, null_values="NA", schema=given, **more)
    rows = 4 if "truncate_ragged_lines" in more else 3
    assert found == {
        "a": [None, None, 1, 2][:rows],
        "b": [True, None, None, None][:rows],
        "c": [None, "", "", None][:rows],
    }
    one = rows_of(tmp_path, data, null_values="NA", schema=given, columns=["b"], **more)
    assert one == {"b": found["b"]}


# -------------------------------------------------------------------------------------------- odd files

ODD: dict[str, tuple[bytes, dict[str, list[Any]]]] = {
    "byte-order mark": (b"\xef\xbb\xbfa,b\n1,2\n", {"a": [1], "b": [2]}),
    "returns and newlines": (b"a,b\r\n1,2\r\n3,4", {"a": [1, 3], "b": [2, 4]}),
    "returns alone": (b"a,b\r1,2\r3,4\r", {"a": [1, 3], "b": [2, 4]}),
    "no last newline": (b'a,b\n1,"x\ny"', {"a": [1], "b": ["x\ny"]}),
    "blank lines": (b"\n\r\na,b\n\n1,2\n\r\n\n3,4\n\n", {"a": [1, 3], "b": [2, 4]}),
    "a header only": (b"a,b\n", {"a": [], "b": []}),
    "a header only, not ended": (b"a,b", {"a": [], "b": []}),
    "a null character": (b"a,b\n1,x\0y\n", {"a": [1], "b": ["x\0y"]}),
    "quotes inside of fields": (b'a,b\n5" x,1\nq"r",2\n"z""z",3\n', {"a": ['5" x', 'q"r"', 'z"z'], "b": [1, 2, 3]}),
    "a quoted header": (b'"a\nb","c,d"\n1,2\n', {"a\nb": [1], "c,d": [2]}),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_files(tmp_path: Path, name: str) -> None:
    data, expected = ODD[name]
    for block_bytes in (1, 1 << 20):
        assert rows_of(tmp_path, data, block_bytes=block_bytes) == expected


BAD: dict[str, tuple[bytes, type[Exception], str]] = {
    "empty": (b"", SourceError, "is empty.*pass schema="),
    "blank": (b"\n\n", SourceError, "is empty.*pass schema="),
    "too few fields": (
        b"a,b\n1,2\n3\n",
        SourceError,
        "row 2: Expected 2 columns, got 1.*truncate_ragged_lines=True",
    ),
    "too many fields": (b"a,b\n1,2,3\n", SourceError, "row 1: Expected 2 columns, got 3.*delimiter="),
    "an open quote": (b'a,b\n1,"x\n2,y\n', SourceError, "never closed"),
    "text behind a quoted one": (
        b'a,b\nw,2\n"x"y,1\n',
        SourceError,
        "row 2: a quote closes a field, and text",
    ),
    "text behind a quoted one, and a quote": (
        b'a,b\n"x"y"z,1\n',
        SourceError,
        "row 1: a quote closes a field",
    ),
    "text behind a quoted name": (b'"a"x,b\n1,2\n', SourceError, "row 1: a quote closes a field"),
    "no UTF-8": (b"a,b\n1,\xff\n", SourceError, "column 'b' holds bytes that are no UTF-8"),
    "no UTF-8 in the header": (b"a,\xff\n1,2\n", SourceError, "UTF-8|utf-8"),
    "a zip archive": (b"PK\x03\x04 and more\n", SourceError, "zip archive; .*zip://"),
    "names twice": (b"a,b,a\n1,2,3\n", SchemaError, r"several called \['a'\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(tmp_path: Path, name: str) -> None:
    data, kind, text = BAD[name]
    error = refused(lambda: af.read_csv(write(tmp_path, data)), kind, text)
    assert (error.operator, error.file) == ("read_csv", str(tmp_path / "a.csv"))


def test_what_is_no_utf8_behind_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowflow.formats.csv.csv.SAMPLE_BYTES", 100)
    data = b"a\n" + b"x\n" * 600 + b"\xff\n"
    refused(
        lambda: af.read_csv(write(tmp_path, data)),
        SchemaError,
        "row 601: .*invalid UTF8.*; give the encoding",
    )
    schema = pa.schema({"a": pa.binary()})
    assert rows_of(tmp_path, data, schema=schema)["a"][-1] == b"\xff"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'a\n1\n"' + b"x\n" * 99, SourceError),
        (b'"a\n' + b"x\n" * 99, SourceError),
        (b"a\n" + b"x" * 200, BudgetError),
    ],
)
def test_a_record_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, kind: type[ArrowflowError]
) -> None:
    monkeypatch.setattr("arrowflow.formats.csv.csv.SAMPLE_BYTES", 4)
    monkeypatch.setattr("arrowflow.formats.text.blocks._WINDOW_BYTES", 4)
    monkeypatch.setattr("arrowflow.formats.text.blocks._MAX_RECORD_BYTES", 64)
    path = write(tmp_path, data)
    refused(lambda: af.read_csv(path, block_bytes=64), kind, r"record at byte \d+.* has more than 64 bytes")


STRAY = b'a,b\n1,"x, y"\n2,"3 inch\n' + b"4,x\n" * 30


@pytest.mark.parametrize("window", [4, 40, 1 << 20])
def test_a_quote_that_is_opened_by_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """The error names the byte of the first text that holds a line's end, and not that of a text behind it."""
    monkeypatch.setattr("arrowflow.formats.text.blocks._WINDOW_BYTES", window)
    path = write(tmp_path, STRAY)
    place = STRAY.index(b'"3 inch')
    text = f"opened at byte {place} and never closed"
    refused(lambda: af.read_csv(path), SourceError, text)
    refused(lambda: af.read_csv(path, schema=pa.schema({"a": pa.int64()})), SourceError, text)
    monkeypatch.setattr("arrowflow.formats.text.blocks._MAX_RECORD_BYTES", 64)
    monkeypatch.setattr("arrowflow.formats.csv.csv.SAMPLE_BYTES", 16)
    if window <= 64:
        text = (
            rf"record at byte {place - 2} \(row 2\) has more than 64 bytes.*opened at byte {place}: close it"
        )
        refused(lambda: af.read_csv(path, block_bytes=64), SourceError, text)


@pytest.mark.parametrize("escape", [None, "\\"])
@given(data=st.text('"",\n\rx\\\\#', min_size=1, max_size=40), window=st.integers(1, 12))
def test_a_scan_finds_the_quotes_that_no_block_needs_to_be_searched_for(
    data: str, window: int, escape: str | None
) -> None:
    text = np.frombuffer(data.encode(), np.uint8)

    class Held:
        def window(self, start: int, size: int) -> Any:
            return text[start : start + size]

    lines = CsvLines(",", '"', escape, "#")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_WINDOW_BYTES", window)
        try:
            blocks.cut(Held(), lines, 0, 16)
        except SourceError:  # of a quote that is never closed
            return
    assert lines.is_sound == (not lines.misplaced(lines.without_comments(text)).size)


def test_records_are_held_up_to_64_mib() -> None:
    """So much is read into memory before a quote is found to be open."""
    asked: list[int] = []

    class Endless:
        def window(self, start: int, size: int) -> Any:
            asked.append(size)
            data = np.full(size, ord("x"), np.uint8)
            data[:4] = list(b',"x\n')
            return data

    with pytest.raises(SourceError, match=r"has more than 67,108,864 bytes.* opened at byte 1: close it"):
        blocks.cut(Endless(), CsvLines(",", '"'), 0, 1 << 20)
    assert max(asked) == 64 << 20


LARGE_ROWS = {
    "a.csv": (b"a,b\n" + b"1,x\n" * 50, b"2,%b\r\n", b"3,\n" * 50),
    "quoted.csv": (b"a,b\n" + b"1,x\n" * 50, b'2,"%b"\n', b"3,\n" * 50),
    "first.csv": (b"a,b\n", b"2,%b\n", b"3,\n" * 100),
    "last.csv": (b"a,b\n" + b"1,x\n" * 100, b"2,%b", b""),
    "a.json": (b'{"a":1,"b":"x"}\n' * 50, b'{"a":2,"b":"%b"}\n', b'{"a":3,"b":""}\n' * 50),
    "last.json": (b'{"a":1,"b":"x"}\n' * 100, b'{"a":2,"b":"%b"}', b""),
}


@pytest.mark.parametrize("extra_bytes", [0, 1_234])
@pytest.mark.parametrize("name", LARGE_ROWS)
def test_a_row_larger_than_what_is_held_is_a_matter_of_the_budget(
    name: str, extra_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_MAX_RECORD_BYTES", 1 << 20)
    before, large, after = LARGE_ROWS[name]
    size = (3 << 20) + extra_bytes
    path = tmp_path / name
    path.write_bytes(before + large % (b"y" * size) + after)
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    read = partial(af.read, format=path.suffix[1:])
    if name == "first.csv":
        text = r"the record at byte 4 has more than 1,048,576 bytes.*give schema="
        refused(lambda: read(path, block_bytes="512KiB"), BudgetError, text)
    dataset = read(path, schema=schema)
    small = dataset.with_options(af.Options(ram_budget="2MiB"))
    refused(lambda: small, BudgetError, r"ram_budget=2,097,152 bytes is under")
    table = dataset.to_table()
    assert table.num_rows == 101
    assert pc.max(pc.binary_length(table["b"])).as_py() == size


def test_the_delimiter_of_a_name(tmp_path: Path) -> None:
    data = b"a,b\tc\n1,2\t3\n"
    for name in ("a.tsv", "a.TSV", "a.tsv.zst"):
        assert af.read_csv(write(tmp_path, data, name)).to_table().to_pydict() == {"a,b": ["1,2"], "c": [3]}
    for name in ("a.tsv.csv", "a.tsv-1.csv.gz"):
        assert af.read_csv(write(tmp_path, data, name)).schema.names == ["a", "b\tc"]


def test_lines_of_plain_text(tmp_path: Path) -> None:
    """As the docstring of `read_csv` and the page for users of tf.data say: all lines but empty ones."""
    found = rows_of(
        tmp_path,
        b'1,5\n\n"x" y\tz\r\nNA\n "\n12',
        column_names=["line"],
        schema=pa.schema({"line": pa.string()}),
        quote_char=None,
        delimiter="\x01",
    )
    assert found == {"line": ["1,5", '"x" y\tz', "NA", ' "', "12"]}


@pytest.mark.parametrize("numbers", [[2**64 - 1, 2**53 + 1], [-(2**63) - 1, 0], [10**39, 1]])
def test_whole_numbers_that_would_be_rounded(tmp_path: Path, numbers: list[int]) -> None:
    path = write(tmp_path, "".join(f"{each}\n" for each in ("id", "", *numbers)).encode())
    refused(lambda: af.read_csv(path), SchemaError, f"column 'id': {numbers[0]} does not fit int64.*schema=")
    texts = af.read_csv(path, schema=pa.schema({"id": pa.string()})).to_table().column("id").to_pylist()
    assert texts == [str(each) for each in numbers]
    with_name = b"id,other\n" + "".join(f"{each},x\n" for each in numbers).encode()
    refused(lambda: af.read_csv(write(tmp_path, with_name)), SchemaError, "column 'id'")


def test_numbers_that_are_no_whole_ones(tmp_path: Path) -> None:
    """A column with fractions is one, and what fits is kept."""
    data = b"mixed,fits,point,text\n1.5,9223372036854775807,1e30,99999999999999999999x\n"
    data += b"18446744073709551615,-9223372036854775808,18446744073709551615.0,y\n"
    table = af.read_csv(write(tmp_path, data)).to_table()
    assert list(map(str, table.schema.types)) == ["double", "int64", "double", "string"]
    assert table.column("fits").to_pylist() == [2**63 - 1, -(2**63)]


def test_files_without_a_byte_among_others(tmp_path: Path) -> None:
    write(tmp_path, b"a\n1\n", "0.csv")
    write(tmp_path, b"", "1.csv")
    assert af.read_csv(tmp_path).to_table().to_pydict() == {"a": [1]}
    assert af.read_csv(tmp_path / "1.csv", schema=pa.schema({"a": pa.int8()})).num_rows == 0


def test_truncated_compressed_files(tmp_path: Path) -> None:
    whole = gzip.compress(as_text())
    (tmp_path / "a.csv.gz").write_bytes(whole[: len(whole) // 2])
    error = refused(lambda: af.read_csv(tmp_path), SourceError, "cannot read it")
    assert error.file.endswith("a.csv.gz")
    (tmp_path / "a.csv.gz").write_bytes(as_text())
    refused(lambda: af.read_csv(tmp_path), SourceError, "cannot read it")
    (tmp_path / "a.csv.gz").write_bytes(whole + gzip.compress(b'9999,1,"last",true\n'))
    assert af.read_csv(tmp_path).num_rows == ROWS + 1, "members behind each other are one file"


def test_a_file_that_changes(tmp_path: Path) -> None:
    path = write(tmp_path, b"a,b\n1,2\n3,4\n")
    store, footer = open_footer(CSV, path, "read")
    path.write_bytes(b"a,b\n1,2\n\n\n4\n")
    with pytest.raises(SourceError) as caught:
        read_split(CSV, store, footer, footer.splits[0], footer.schema)
    assert caught.value.row_group == 0
    path.write_bytes(b"a,b\n1,2\n\n\n\n\n")
    with pytest.raises(SourceError, match="has changed since it was listed") as caught:
        read_split(CSV, store, footer, footer.splits[0], footer.schema)
    with pytest.raises(SourceError, match=r"expected 2 rows behind row 0.* found 1"):
        raise caught.value.__cause__ or caught.value


# ---------------------------------------------------------------------------------------------- options


def test_options(tmp_path: Path) -> None:
    assert rows_of(tmp_path, b"1;'a;b'\n2;c\n", delimiter=";", quote_char="'", column_names=["x", "y"]) == {
        "x": [1, 2],
        "y": ["a;b", "c"],
    }
    assert rows_of(tmp_path, b'a,b\n"x,1\n', quote_char=None) == {"a": ['"x'], "b": [1]}


# ----------------------------------------------------------------------------------------------- corpus


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["birdstrikes.csv", "zipcodes.csv"])
@pytest.mark.parametrize("block_bytes", ["4MiB", "10KiB"])
def test_corpus(corpus: Path, name: str, block_bytes: str) -> None:
    path = corpus / "tables" / name
    options = pacsv.ConvertOptions(null_values=[""], strings_can_be_null=True)
    expected = pacsv.read_csv(path, convert_options=options)
    ds = af.read_csv(path, block_bytes=block_bytes)
    assert ds.num_rows == expected.num_rows
    assert ds.to_table().combine_chunks().equals(expected.combine_chunks())

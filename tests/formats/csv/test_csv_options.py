"""Options of CSV that files of others need: the rows are those of a plain file, for any block size, and resume."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

import arrowflow as af
from arrowflow.errors import PlanError, SchemaError, SourceError
from arrowflow.formats.csv.lines import CsvLines
from arrowflow.testing import check_dataset
from tests.formats.csv.test_csv import refused, rows_of, write

ROWS: dict[str, list[Any]] = {"a": [1, 2, 3], "b": ["x", "# y\n#z", None]}
PLAIN = 'a,b\n1,x\n2,"# y\n#z"\n3,\n'
CASES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "comments": (
        b'# a "quote\n#\na,b\n#,\n1,x\n# "\n2,"# y\n#z"\n#\\\n3,\n#',
        {"comment_prefix": "#"},
    ),
    "comments of more letters": (b'a,b\r\n// "\r\n1,x\r\n2,"# y\n#z"\r\n3,\r\n//', {"comment_prefix": "//"}),
    "comments and escapes": (
        b"a,b\n# \\\n1,x\n2,\\# y\\\n#z\n#\\\\\n3,\n",
        {"comment_prefix": "#", "escape_char": "\\"},
    ),
    "escapes": (b"a,b\n1,\\x\n2,\\# y\\\n#z\n3,\n", {"escape_char": "\\"}),
    "escapes in quotes": (b'a,b\n1,"\\x"\n2,"# y\\\n\\#z"\n3,\n', {"escape_char": "\\"}),
    "lines in front": (b'an odd "line\n\na,b\n1,x\n2,"# y\n#z"\n3,\n', {"skip_rows": 2}),
    "lines in front that carriage returns end": (b'"\ra,b\r1,x\r2,"# y\n#z"\r3,\r', {"skip_rows": 1}),
    "no header": (b'1,x\n2,"# y\n#z"\n3,\n', {"column_names": ["a", "b"]}),
    "nulls": (b'a,b\n1,x\n2,"# y\n#z"\n3,NA\n', {"null_values": ["NA", "-"]}),
    "escaped nulls": (b'a,b\n1,x\n2,"# y\n#z"\n3,\\N\n', {"null_values": "\\N", "escape_char": "\\"}),
    "ragged lines": (b'a,b\n1,x,more\n2,"# y\n#z",,\n3\n', {"truncate_ragged_lines": True}),
    "ragged lines and nulls": (
        b"a|b\n1|x|more\n2|'# y\n#z'|'|\n'\n3",
        {"truncate_ragged_lines": True, "null_values": "-", "quote_char": "'", "delimiter": "|"},
    ),
    "two bytes a letter": (PLAIN.encode("utf-16"), {"encoding": "utf-16"}),
    "two bytes a letter, no mark": (PLAIN.encode("utf-16-be"), {"encoding": "UTF-16BE"}),
    "everything": (
        "é\n#\na;b\n1;x;é\n2;'# y\\\n#z'\n#'\n3".encode("cp1252"),
        {
            "skip_rows": 1,
            "comment_prefix": "#",
            "escape_char": "\\",
            "quote_char": "'",
            "delimiter": ";",
            "truncate_ragged_lines": True,
            "encoding": "cp1252",
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rows(tmp_path: Path, case: str) -> None:
    data, options = CASES[case]
    path = write(tmp_path, data)
    for block_bytes in (1, 7, 1 << 20):
        assert af.read_csv(path, block_bytes=block_bytes, **options).to_table().to_pydict() == ROWS
    for suffix in ("", ".gz"):
        ds = af.read_csv(write(tmp_path, data, f"a.csv{suffix}"), block_bytes=8, **options)
        for start in range(3):
            assert ds.skip(start).to_table().to_pydict() == {name: ROWS[name][start:] for name in ROWS}
    if case in {"comments", "everything"}:
        check_dataset(lambda: af.read_csv(path, block_bytes=8, **options).batch(1))


def test_a_null_word_is_a_whole_field_that_nobody_quoted(tmp_path: Path) -> None:
    path = write(tmp_path, b'a,b\n\\N,"x,\\N,y"\n"\\N",\\N\n\\NN,a\\N\n')
    found = af.read_csv(path, null_values="\\N", escape_char="\\").to_table().to_pydict()
    assert found == {"a": [None, "N", "NN"], "b": ["x,N,y", None, "aN"]}


@pytest.mark.parametrize("case", ["comments and escapes", "ragged lines", "everything"])
def test_bad_rows_are_left_out(tmp_path: Path, case: str) -> None:
    good, options = CASES[case]
    delimiter = options.get("delimiter", ",").encode()
    schema = pa.schema({"a": pa.int64(), "b": pa.string()})
    for bad in (b"\nq,x\n4,w\n", b"\nq,x,more\n4,w\n"):
        path = write(tmp_path, good.rstrip(b"\n") + bad.replace(b",", delimiter))
        found = af.read_csv(path, schema=schema, on_error="skip", **options).to_table()
        assert found.to_pydict() == {"a": [1, 2, 3, 4], "b": [*ROWS["b"], "w"]}


def test_numbers_with_commas(tmp_path: Path) -> None:
    data = b"a;b\n1,5;2\n-3;4\n1e2;5\n"
    found = rows_of(tmp_path, data, delimiter=";", decimal_point=",")
    assert found == {"a": [1.5, -3.0, 100.0], "b": [2, 4, 5]}
    schema = pa.schema({"a": pa.decimal128(9, 2), "b": pa.int64()})
    path = write(tmp_path, data.replace(b"1e2", b"1,25"))
    found = af.read_csv(path, delimiter=";", decimal_point=",", schema=schema).to_table().to_pydict()
    assert [str(each) for each in found["a"]] == ["1.50", "-3.00", "1.25"]
    path = write(tmp_path, data + b"1.5;6\n")
    kept = af.read_csv(
        path, delimiter=";", decimal_point=",", on_error="skip", schema={"a": pa.float64(), "b": pa.int64()}
    )
    assert kept.to_table().to_pydict() == {"a": [1.5, -3.0, 100.0], "b": [2, 4, 5]}


def test_headers(tmp_path: Path) -> None:
    assert rows_of(tmp_path, b"1,x\n1,\n", has_header=False) == {"column_0": [1, 1], "column_1": ["x", None]}
    path = write(tmp_path, b"1,1,2\n3,4,5\n")
    text = r"several called \['1'\]; .*column_names= names all.*has_header=False"
    refused(lambda: af.read_csv(path), SchemaError, text)
    refused(lambda: af.read_csv(path, skip_rows=3), SourceError, "empty and has no header")


@pytest.mark.parametrize(
    "encoding", ["latin-1", "cp1251", "koi8-r", "shift-jis", "gb18030", "utf-8", "utf-16", "utf-32"]
)
def test_encodings(tmp_path: Path, encoding: str) -> None:
    num_read = 0
    for letters in ("é", "ж", "漢字"):
        text = f"{letters},b\n" + f'{letters},"x\n{letters}"\n' * 20
        try:
            data = text.encode(encoding)
        except UnicodeEncodeError:
            continue
        num_read += 1
        for block_bytes in (1, 100):
            found = af.read_csv(write(tmp_path, data), encoding=encoding, block_bytes=block_bytes).to_table()
            assert found.to_pydict() == {letters: [letters] * 20, "b": [f"x\n{letters}"] * 20}
        packed = af.read_csv(write(tmp_path, data, "b.csv.gz"), encoding=encoding)
        assert packed.skip(19).to_table().to_pydict() == {letters: [letters], "b": [f"x\n{letters}"]}
    assert num_read


def test_letters_that_are_no_utf8_are_told(tmp_path: Path) -> None:
    for text, why in (
        ("é,b\n1,2\n", "header is no UTF-8; give the encoding"),
        ("a,b\né,2\n", "column 'a' holds bytes that are no UTF-8; give the encoding"),
    ):
        path = write(tmp_path, text.encode("latin-1"))
        refused(lambda: af.read_csv(path), af.ArrowflowError, why)  # noqa: B023
    path = write(tmp_path, "a\né\n".encode())
    text = "the text is no ascii, as encoding= says"
    refused(lambda: af.read_csv(path, encoding="ascii"), SourceError, text)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_wide_letters_are_told(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path, "é,b\nx,2\nlonger,3\n".encode(encoding))
    refused(lambda: af.read_csv(path), SourceError, f"give encoding='{encoding}'")
    assert af.read_csv(path, encoding=encoding).num_rows == 2


# ------------------------------------------------------------------------------------- columns without a value


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types are inferred from about 90 rows, and further ones from blocks of as many."""
    for module in ("csv.csv", "text.text"):
        monkeypatch.setattr(f"arrowflow.formats.{module}.SAMPLE_BYTES", 1_000)
    monkeypatch.setattr("arrowflow.formats.text.blocks._WINDOW_BYTES", 1_000)


@pytest.mark.usefixtures("small_sample")
def test_null_words_are_told(tmp_path: Path) -> None:
    path = write(tmp_path, b"a\n" + b"1234567\n" * 200 + b"NA\n")
    refused(lambda: af.read_csv(path), SchemaError, r"row 201.* pass null_values=\['', 'NA'\]")
    assert af.read_csv(path, null_values=["", "NA"]).skip(200).to_table().to_pydict() == {"a": [None]}


EMPTY = b"a,b\n" + b"123456789,\n" * 1_100 + b"1,7\n"
"""A column that is empty for a long time."""


@pytest.mark.usefixtures("small_sample")
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_column_that_is_empty_for_a_long_time(tmp_path: Path, suffix: str) -> None:
    found = af.read_csv(write(tmp_path, EMPTY, f"a.csv{suffix}"), block_bytes=1_000)
    assert found.schema == pa.schema({"a": pa.int64(), "b": pa.int64()})
    assert found.skip(1_099).to_table().to_pydict() == {"a": [123456789, 1], "b": [None, 7]}


def test_types_of_empty_columns_come_from_other_files(tmp_path: Path) -> None:
    write(tmp_path, b"a,b,c\n", "0.csv")
    write(tmp_path, b"c,b,a\n,,2\n", "1.csv")
    write(tmp_path, b"a,b,c\n1,x,\n", "2.csv")
    found = af.read_csv(tmp_path)
    assert found.schema == pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.null()})
    assert found.to_table().to_pydict() == {"a": [2, 1], "b": [None, "x"], "c": [None, None]}


@pytest.mark.usefixtures("small_sample")
def test_a_value_in_a_column_that_had_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowflow.formats.text.text.FURTHER_BYTES", 1)
    path = write(tmp_path, EMPTY)
    found = af.read_csv(path, block_bytes=1_000)
    assert found.schema == pa.schema({"a": pa.int64(), "b": pa.null()})
    refused(lambda: found, SchemaError, "column 'b': row 1101: .* null: invalid value '7'; .* schema=")
    kept = af.read_csv(path, on_error="skip", block_bytes=1_000).skip(1_099).to_table()
    assert kept.to_pydict() == {"a": [123456789], "b": [None]}
    found = af.read_csv(path, schema={"a": pa.int64(), "b": pa.int8()})
    assert found.skip(1_100).to_table().to_pydict() == {"a": [1], "b": [7]}


@pytest.mark.usefixtures("small_sample")
def test_a_bad_row_behind_the_sample_does_not_hide_the_types(tmp_path: Path) -> None:
    path = write(tmp_path, EMPTY + b"1,2,3\n" + b"123456789,8\n" * 1_000)
    found = af.read_csv(path, on_error="skip", block_bytes=1_000)
    assert found.schema.field("b").type == pa.int64()
    assert found.skip(1_100).take(2).to_table().to_pydict() == {"a": [1, 123456789], "b": [7, 8]}


# ------------------------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delimiter": ""}, "delimiter is one ASCII character"),
        ({"delimiter": "::"}, "delimiter is one ASCII character"),
        ({"quote_char": "\n"}, "quote_char is one ASCII character"),
        ({"delimiter": "'", "quote_char": "'"}, ".* are both"),
        ({"column_names": ["a", "a"]}, ".*one name a column"),
        ({"column_names": [1]}, ".*expected names of columns"),
        ({"null_values": 5}, ".*null_values are texts"),
        ({"block_bytes": 0}, "bytes is at least 1"),
        ({"block_bytes": "3GiB"}, ".*at most 1 GiB"),
        ({"escape_char": "\\\\"}, "escape_char is one ASCII character"),
        ({"decimal_point": None}, "decimal_point is one ASCII character"),
        ({"decimal_point": ","}, "delimiter and decimal_point are both ','"),
        ({"escape_char": '"'}, "quote_char and escape_char are both"),
        ({"comment_prefix": ""}, "comment_prefix is the start of comments"),
        ({"comment_prefix": ',"'}, "comment_prefix starts with a delimiter"),
        ({"skip_rows": -1}, "skip_rows is a number of lines"),
        ({"skip_rows": True}, "skip_rows is a number of lines"),
        ({"has_header": 0}, "has_header is True or False"),
        ({"truncate_ragged_lines": "yes"}, "truncate_ragged_lines is True or False"),
        ({"encoding": "latin-99"}, "encoding is an encoding that Python knows"),
        ({"encoding": "hex"}, "encoding is an encoding that Python knows"),
        ({"encoding": None}, "encoding is an encoding that Python knows"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=f"(read_csv|block_bytes): {text}"):
        af.read_csv("a.csv", **options)


def test_states_know_the_options(tmp_path: Path) -> None:
    path = write(tmp_path, b"a\n1\n2\n#3\n")
    with iter(af.read_csv(path).batch(1)) as iterator:
        next(iterator)
        state = iterator.state_dict()
    with (
        iter(af.read_csv(path, comment_prefix="#").batch(1)) as iterator,
        pytest.raises(af.StateError, match="comment_prefix"),
    ):
        iterator.load_state_dict(state)


@pytest.mark.slow
def test_comments_and_escapes_one_by_one() -> None:
    """Each byte is looked at alone, by the rules of the docstrings."""
    lines = CsvLines(",", '"', "\\", "#")
    for letters in itertools.product(b'a"#\\\n,', repeat=6):
        text = b"x\n" + bytes(letters) + b"\ny\n"
        try:
            ends, is_row = lines.scan(np.frombuffer(text, np.uint8), True)
        except SourceError:
            continue
        found = zip([0, *ends.tolist()], ends.tolist(), is_row.tolist(), strict=False)
        assert [text[start:stop] for start, stop, is_row in found if is_row] == lines_of(text), text


def lines_of(text: bytes) -> list[bytes]:
    lines: list[bytes] = []
    at = start = 0
    toggled, literal, is_quoted = -2, -2, False
    while at < len(text):
        byte = text[at : at + 1]
        if at == start and not is_quoted and byte == b"#":
            at = start = (text + b"\n").index(b"\n", at) + 1
        elif byte == b"\\":
            literal, at = at + 1, at + 2
        elif byte == b"\n" and not is_quoted:
            lines += [text[start : at + 1]] * (at > start)
            at = start = at + 1
        else:
            starts = at == start or (text[at - 1 : at] == b"," and literal != at - 1)
            if byte == b'"' and (is_quoted or starts or toggled == at - 1):
                toggled, is_quoted = at, not is_quoted
            at += 1
    return lines + [text[start:]] * (start < len(text))


def test_pyarrow_reads_the_same_where_it_has_the_option(tmp_path: Path) -> None:
    path = write(tmp_path, CASES["escapes"][0])
    expected = pacsv.read_csv(
        path,
        parse_options=pacsv.ParseOptions(escape_char="\\", newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(strings_can_be_null=True),
    )
    assert af.read_csv(path, escape_char="\\").to_table().equals(expected)

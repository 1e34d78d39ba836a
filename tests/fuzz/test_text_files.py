"""Odd CSV and JSON: the rows that were written, as pyarrow, Polars and DuckDB read them where they have the options."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from tests.effort import scaled
from tests.fuzz.watch import kinds

BLOCKS: Final = st.sampled_from([1, 7, 40, 1 << 20])
JUNK: Final = ("", 'a "quote', "a,b;c", "# no comment")


@dataclass(frozen=True)
class Csv:
    """A file of texts and nulls, and the options that read it."""

    rows: Sequence[Sequence[str | None]]
    delimiter: str
    line_end: str
    header: bool
    quotes_all: bool
    comments: bool
    escapes: bool
    ragged: bool
    null: str
    skip: int
    encoding: str
    ended: bool

    @property
    def names(self) -> list[str]:
        return [f"c{number}" for number in range(len(self.rows[0]))]

    @property
    def expected(self) -> list[dict[str, str | None]]:
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "delimiter": self.delimiter,
            "null_values": self.null,
            "encoding": self.encoding,
        }
        if not self.header:
            options["column_names"] = self.names
        if self.comments:
            options["comment_prefix"] = "#"
        if self.escapes:
            options["escape_char"] = "\\"
        if self.ragged:
            options["truncate_ragged_lines"] = True
        return options | {"skip_rows": self.skip}

    def field(self, text: str | None, *, alone: bool) -> str:
        if text is None:
            return self.null if self.null or not alone else self.delimiter
        if self.escapes:
            special = f'\\"\n\r#{self.delimiter}'
            text = "".join(f"\\{each}" if each in special else each for each in text)
            return f'"{text}"' if self.quotes_all else text
        is_special = any(each in text for each in f'"\n\r#{self.delimiter}') or text == self.null
        return '"' + text.replace('"', '""') + '"' if self.quotes_all or is_special else text

    def line(self, row: Sequence[str | None], number: int) -> str:
        row = list(row)
        if self.ragged and number % 3 == 1:
            while len(row) > 1 and row[-1] is None:
                row.pop()
        line = self.delimiter.join(self.field(text, alone=len(row) == 1) for text in row)
        return line + self.delimiter + '"more"' if self.ragged and number % 3 == 2 and len(row) > 1 else line

    @property
    def data(self) -> bytes:
        lines = [JUNK[number % len(JUNK)] for number in range(self.skip)]
        lines += [self.delimiter.join(self.names)] * self.header
        for number, row in enumerate(self.rows):
            if self.comments and number % 2:
                lines += ['# a "comment', "#"]
            lines.append(self.line(row, number))
        text = self.line_end.join(lines) + self.line_end * self.ended
        return text.encode(self.encoding)


TEXTS = st.text(st.sampled_from('abNA1é,;"#\n\\ '), min_size=1, max_size=6).filter(
    lambda text: text.strip() == text and text not in ("NA", "\\N")
)


@st.composite
def csv_files(draw: Any) -> Csv:
    width = draw(st.integers(1, 4))
    null = draw(st.sampled_from(["", "NA", "\\N"])) if width > 1 else "NA"
    cell = st.none() | TEXTS | TEXTS
    rows = draw(st.lists(st.lists(cell, min_size=width, max_size=width), min_size=1, max_size=7))
    return Csv(
        rows=rows,
        delimiter=draw(st.sampled_from(",;|\t")),
        line_end=draw(st.sampled_from(["\n", "\r\n"])),
        header=draw(st.booleans()),
        quotes_all=draw(st.booleans()),
        comments=draw(st.booleans()),
        escapes=draw(st.sampled_from([False, False, True])),
        ragged=draw(st.sampled_from([False, False, True])),
        null=null,
        skip=draw(st.integers(0, 2)),
        encoding=draw(st.sampled_from(["utf-8", "utf-8", "utf-16", "cp1252"])),
        ended=draw(st.booleans()),
    )


@settings(max_examples=scaled(150))
@given(case=csv_files(), block_bytes=BLOCKS, packed=st.booleans())
def test_csv(tmp_path_factory: pytest.TempPathFactory, case: Csv, block_bytes: int, packed: bool) -> None:
    path = tmp_path_factory.mktemp("csv") / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(case.data) if packed else case.data)
    schema = pa.schema(dict.fromkeys(case.names, pa.string()))
    ds = af.read_csv(path, schema=schema, block_bytes=block_bytes, **case.options)
    found = ds.to_table().to_pylist()
    assert found == case.expected, case.data
    assert ds.num_rows == len(found)
    assert ds.skip(1).to_table().to_pylist() == found[1:]
    for engine, read in (("pyarrow", csv_by_pyarrow), ("polars", csv_by_polars), ("duckdb", csv_by_duckdb)):
        rows = read(case, path)
        kinds[f"csv by {engine}" if rows is not None else f"csv beyond {engine}"] += 1
        assert rows is None or rows == found, (engine, case.data)


def csv_by_pyarrow(case: Csv, path: Path) -> list[Any] | None:
    """Returns the rows; None for options that pyarrow has not: comments, ragged lines, null words with an escape."""
    if case.comments or case.ragged or (case.escapes and case.null.startswith("\\")):
        return None
    whole = replace(case, ended=True)  # it takes an empty last field for a text where a quote stands before
    table = pacsv.read_csv(
        BytesIO(whole.data),
        pacsv.ReadOptions(
            skip_rows=case.skip, column_names=None if case.header else case.names, encoding=case.encoding
        ),
        pacsv.ParseOptions(
            delimiter=case.delimiter, escape_char="\\" if case.escapes else False, newlines_in_values=True
        ),
        pacsv.ConvertOptions(
            null_values=[case.null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            column_types=dict.fromkeys(case.names, pa.string()),
        ),
    )
    rows: list[Any] = table.to_pylist()
    return rows


def csv_by_polars(case: Csv, path: Path) -> list[Any] | None:
    """Returns the rows; None for options that Polars has not: escapes, encodings, comments after quoted line ends."""
    if case.escapes or case.encoding != "utf-8" or case.ragged or case.comments or case.skip:
        return None
    if any(text is not None and (text == case.null) for row in case.rows for text in row):
        return None
    frame = pl.read_csv(
        BytesIO(case.data),
        has_header=case.header,
        new_columns=None if case.header else case.names,
        separator=case.delimiter,
        infer_schema=False,
        null_values=case.null,
    )
    return frame.to_dicts()


def csv_by_duckdb(case: Csv, path: Path) -> list[Any] | None:
    """Returns the rows; None for options that DuckDB has not, and where it refuses, as line ends of two kinds."""
    if case.encoding != "utf-8" or case.ragged or case.escapes or case.comments or case.skip:
        return None
    columns = ", ".join(f"'{name}': 'VARCHAR'" for name in case.names)
    options = (
        f"auto_detect=false, columns={{{columns}}}, delim='{case.delimiter}', quote='\"', escape='\"', "
        f"header={case.header}, nullstr='{case.null}', allow_quoted_nulls=false, max_line_size=2000000"
    )
    with duckdb.connect() as connection:
        try:
            rows = connection.execute(f"select * from read_csv('{path}', {options})").fetchall()
        except duckdb.Error:
            return None
    return [dict(zip(case.names, row, strict=True)) for row in rows]


# ------------------------------------------------------------------------------------------------------- JSON

LETTERS = st.text(st.sampled_from('ab"\\{}[],:\né '), max_size=5)
VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "int": st.integers(-(2**53), 2**53),
    "float": st.integers(-999, 999).map(lambda value: value / 4),
    "text": LETTERS,
    "bool": st.booleans(),
    "list": st.lists(st.integers(-9, 9) | st.none(), max_size=3),
    "struct": st.fixed_dictionaries({"x": LETTERS, "y": st.lists(LETTERS, max_size=2)}),
}
TYPES: Final = {
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
    "list": pa.list_(pa.int64()),
    "struct": pa.struct({"x": pa.string(), "y": pa.list_(pa.string())}),
}


@st.composite
def objects(draw: Any) -> list[dict[str, Any]]:
    keys = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True))
    some = st.fixed_dictionaries({}, optional={key: VALUES[key] | st.none() for key in keys})
    return [draw(some) for _ in range(draw(st.integers(1, 6)))]


SHAPES: Final[dict[str, Callable[[list[Any]], str]]] = {
    "lines": lambda rows: "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n",
    "lines that are not ended": lambda rows: "\r\n\n".join(map(json.dumps, rows)),
    "array": json.dumps,
    "indented array": lambda rows: json.dumps(rows, indent=2),
    "objects over lines": lambda rows: "\n".join(json.dumps(row, indent=1) for row in rows),
}


@settings(max_examples=scaled(150))
@given(rows=objects(), shape=st.sampled_from(sorted(SHAPES)), block_bytes=BLOCKS)
def test_json(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], shape: str, block_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(SHAPES[shape](rows), encoding="utf-8")
    names = sorted({name for row in rows for name in row}) or ["int"]
    schema = pa.schema({name: TYPES[name] for name in names})
    expected = [{name: row.get(name) for name in names} for row in rows]
    ds = af.read_json(path, schema=schema, block_bytes=block_bytes)
    assert ds.to_table().to_pylist() == expected, path.read_bytes()
    assert ds.skip(1).to_table().to_pylist() == expected[1:]
    kinds[shape] += 1
    if "lines" in shape and shape != "objects over lines":
        options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        assert pajson.read_json(path, parse_options=options).select(names).to_pylist() == expected
        frame = pl.read_ndjson(path, schema=pl.Schema(pl.DataFrame(schema.empty_table()).schema))
        assert frame.to_dicts() == expected
    form = "array" if "array" in shape else "unstructured"
    by_duckdb = json_by_duckdb(path, names, form) if any(rows) else None
    assert by_duckdb is None or by_duckdb == expected


@settings(max_examples=scaled(100))
@given(rows=objects(), shape=st.sampled_from(sorted(SHAPES)), block_bytes=BLOCKS, data=st.data())
def test_json_of_mixed_kinds(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    shape: str,
    block_bytes: int,
    data: Any,
) -> None:
    """A column of texts takes each value as its JSON text."""
    path = tmp_path_factory.mktemp("json") / "a.json"
    kind = st.sampled_from(sorted(VALUES)).flatmap(lambda name: VALUES[name])
    mixed = [row | {"any": data.draw(kind)} for row in rows]
    path.write_text(SHAPES[shape](mixed), encoding="utf-8")
    ds = af.read_json(path, schema={"any": pa.string()}, block_bytes=block_bytes)
    found = ds.to_table().column("any").to_pylist()
    for text, row in zip(found, mixed, strict=True):
        value = row["any"]
        assert text == value if isinstance(value, str) else json.loads(text) == value


def json_by_duckdb(path: Path, names: Sequence[str], form: str) -> list[Any]:
    types = {
        "int": "BIGINT",
        "float": "DOUBLE",
        "text": "VARCHAR",
        "bool": "BOOLEAN",
        "list": "BIGINT[]",
        "struct": "STRUCT(x VARCHAR, y VARCHAR[])",
    }
    columns = ", ".join(f"'{name}': '{types[name]}'" for name in names)
    with duckdb.connect() as connection:
        query = f"select * from read_json('{path}', columns={{{columns}}}, format='{form}', records=true)"
        rows = connection.execute(query).fetchall()
    return [dict(zip(names, row, strict=True)) for row in rows]

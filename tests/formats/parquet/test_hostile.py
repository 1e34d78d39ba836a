"""Parquet files that are made to end the process of their reader: each is an error, which a process of its own shows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats import FORMATS
from arrowflow.formats.parquet import details
from arrowflow.formats.parquet.pages import stored_footer
from arrowflow.formats.parquet.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    fields,
    list_header,
    written_list,
    written_struct,
)
from arrowflow.formats.varints import written_number, written_varint
from tests import warm
from tests.formats.reading import open_footer

READ = """
import sys
import arrowflow as af
import pyarrow.compute as pc
for path in sys.argv[1:]:
    for read in (lambda: af.read_parquet(path).to_table(), lambda: af.read_parquet(path).filter(pc.field("x") > 1).to_table()):
        try:
            print("rows", read().num_rows, flush=True)
        except af.ArrowflowError as error:
            print(type(error).__name__, error.file == path, error, flush=True)
"""


def read_apart(*paths: Path) -> list[str]:
    """Reads files in a process of its own, each in two ways."""
    status, out, errors = warm.plain().run(READ, *map(str, paths))
    assert status == 0, errors
    return out.splitlines()


def with_footer(footer: bytes, before: bytes = b"PAR1") -> bytes:
    return before + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def element(name: str, *, children: int | None = None, kind: int | None = None) -> bytes:
    found = [] if kind is None else [(1, I32, written_number(kind))]
    found += [(3, I32, written_number(1)), (4, BINARY, written_varint(len(name)) + name.encode())]
    return written_struct(found if children is None else [*found, (5, I32, written_number(children))])


def nested(levels: int) -> bytes:
    """Returns a file without rows whose only column has so many levels."""
    schema = [element("schema", children=1), *[element("x", children=1)] * levels, element("x", kind=2)]
    footer = [
        (1, I32, written_number(1)),
        (2, LIST, written_list(STRUCT, schema)),
        (3, I64, written_number(0)),
    ]
    return with_footer(written_struct([*footer, (4, LIST, written_list(STRUCT, []))]))


def test_schemas_of_many_levels(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(nested(10_000))
    for line in read_apart(path):
        assert line.startswith("SourceError True read_parquet")
        assert "nested" in line


def test_levels_are_counted_for_readers_that_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(details, "_GOES_DOWN", True)
    path = tmp_path / "a.parquet"
    path.write_bytes(nested(501))
    with pytest.raises(af.SourceError, match="nested deeper than 500 levels"):
        _ = af.read_parquet(path).schema
    wide = pa.table({f"{number}": pa.array([{"a": [1]}]) for number in range(200)})
    pq.write_table(wide, path)
    assert af.read_parquet(path).to_table().num_rows == 1


def written(**options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [1, 2, 3], "s": ["a", "b", "c"]}), sink, row_group_size=2, **options)
    return sink.getvalue()


def in_footer(data: bytes, change: Any) -> bytes:
    """Returns a file with another footer."""
    footer = stored_footer(data)
    changed = change(footer)
    assert changed != footer
    return with_footer(changed, data[: -8 - len(footer)])


def of_another_type(footer: bytes) -> bytes:
    """Makes the statistics of sizes, which texts have, those of numbers: pyarrow's own check of them ends a process."""
    schema = next(field for field in fields(footer, 0) if field.number == 2)
    _, _, at = list_header(footer, schema.start)
    for _ in range(2):  # the root, and `x`
        at = [*fields(footer, at)][-1].end + 1
    (kind,) = (field for field in fields(footer, at) if field.number == 1)
    assert footer[kind.start] == written_number(6)[0]
    return footer[: kind.start] + written_number(1) + footer[kind.end :]


def with_encryption(footer: bytes) -> bytes:
    """Says that the footer is signed, which pyarrow believes where it writes the footer again."""
    made = [(each.number, each.kind, footer[each.start : each.end]) for each in fields(footer, 0)]
    algorithm = written_struct([(1, STRUCT, written_struct([]))])
    return written_struct([*(each for each in made if each[0] < 8), (8, STRUCT, algorithm)])


def with_rows(number: int) -> Any:
    """Changes the rows of the last row group, which has 1."""

    def change(footer: bytes) -> bytes:
        groups = next(field for field in fields(footer, 0) if field.number == 4)
        _, _, at = list_header(footer, groups.start)
        at = [*fields(footer, at)][-1].end + 1
        (rows,) = (field for field in fields(footer, at) if field.number == 3)
        return footer[: rows.start] + written_varint((number << 1) ^ (number >> 63)) + footer[rows.end :]

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (of_another_type, "INT32"),
        (with_rows(-1), "row group 1 has -1 rows"),
        (with_rows(2), "its row groups have 4 rows, and the file has 3"),
    ],
    ids=["sizes of another type", "rows below 0", "other rows"],
)
def test_footers_that_contradict_themselves(tmp_path: Path, change: Any, text: str) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(in_footer(written(), change))
    for line in read_apart(path):
        assert line.startswith("SourceError True"), line
        assert text in line


def rebuilt(data: bytes, at: int, changes: dict[int, Any]) -> bytes:
    """Returns a structure in which some fields are made anew, from where their values start."""
    return written_struct(
        (
            each.number,
            each.kind,
            changes[each.number](data, each.start) if each.number in changes else data[each.start : each.end],
        )
        for each in fields(data, at)
    )


def each_of(change: Any) -> Any:
    """Returns what makes each structure of a list anew."""

    def made(data: bytes, at: int) -> bytes:
        count, _, at = list_header(data, at)
        found = []
        for _ in range(count):
            found.append(change(data, at))
            at = [*fields(data, at)][-1].end + 1
        return written_list(STRUCT, found)

    return made


def with_bounds(size: int) -> Any:
    """Makes all bounds of all columns that many zeros."""
    bound = written_varint(size) + bytes(size)
    own = {number: lambda data, at: bound for number in (1, 2, 5, 6)}
    statistics = {12: lambda data, at: rebuilt(data, at, own)}
    chunk = {3: lambda data, at: rebuilt(data, at, statistics)}
    group = {1: each_of(lambda data, at: rebuilt(data, at, chunk))}
    return lambda footer: rebuilt(footer, 0, {4: each_of(lambda data, at: rebuilt(data, at, group))})


def test_bounds_that_are_too_short(tmp_path: Path) -> None:
    paths = [tmp_path / f"{size}.parquet" for size in (0, 7, 8)]
    for path in paths:
        path.write_bytes(in_footer(written(), with_bounds(int(path.stem))))
    *short, whole, pruned = read_apart(*paths)
    assert all(line.startswith("SourceError True read_parquet") for line in short)
    assert [whole, pruned] == ["rows 3", "rows 0"]  # by bounds of zeros no row passes


def test_sound_bounds_are_used(tmp_path: Path) -> None:
    columns = {
        "bool": pa.array([True, False]),
        "int": pa.array([1, 2], pa.int32()),
        "long": pa.array([1, 2]),
        "float": pa.array([1, 2], pa.float32()),
        "double": pa.array([1.0, 2.0]),
        "text": pa.array(["", "b"]),
        "fixed": pa.array([b"abc", b"def"], pa.binary(3)),
        "decimal": pa.array([1, 2], pa.decimal128(20, 2)),
        "half": pa.array(np.array([1, 2], np.float16)),
        "list": pa.array([["a"], []]),
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=1)
    _, footer = open_footer(FORMATS["parquet"], path)
    chunks = footer.details.chunks
    assert all(chunks.is_sound(group, leaf) for group in range(2) for leaf in range(len(columns)))


def test_short_bounds_of_one_column_leave_those_of_others(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1, 2], "y": [1, 2]}), path, row_group_size=1)
    chunks = iter(range(4))  # two columns of two row groups

    def column_y_of_the_second(data: bytes, at: int) -> bytes:
        short = {12: lambda data, at: rebuilt(data, at, {5: lambda data, at: written_varint(7) + bytes(7)})}
        return rebuilt(data, at, {3: lambda data, at: rebuilt(data, at, short)} if next(chunks) == 3 else {})

    group = {1: each_of(column_y_of_the_second)}
    change = {4: each_of(lambda data, at: rebuilt(data, at, group))}
    path.write_bytes(in_footer(path.read_bytes(), lambda footer: rebuilt(footer, 0, change)))
    _, footer = open_footer(FORMATS["parquet"], path)
    sound = [[footer.details.chunks.is_sound(group, leaf) for leaf in range(2)] for group in range(2)]
    assert sound == [[True, True], [True, False]]


def test_a_footer_that_says_it_is_signed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(in_footer(written(), with_encryption))
    assert read_apart(path)[0] == "rows 3"


def test_lists_without_end_are_no_work() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        list(fields(bytes([0x19, 0xF1]) + written_varint(1 << 60) + bytes(9), 0))

"""The quick look at a block of text finds the same good and bad rows as decoding ever smaller parts of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.formats.csv.csv import CsvFormat
from arrowflow.formats.json import rows as json_rows
from arrowflow.formats.json.json import JsonFormat
from arrowflow.formats.text.text import TextFormat
from tests.formats.reading import open_footer

pytestmark = pytest.mark.any_version

SCHEMA = pa.schema({"whole": pa.int64(), "small": pa.int8(), "part": pa.float64(), "text": pa.string()})
CSV = CsvFormat(column_names=tuple(SCHEMA.names), block_bytes=150).typed(SCHEMA)
JSON = JsonFormat(block_bytes=300).typed(SCHEMA)

NUMBERS = ["7", "-5", "12", "0", "", "3.5", "1e3", " 8", "9\t"]
ODD = ["none", "nan", "inf", "1-2", "+4", "0x1F", "1e", "1.2.3", "300", "9" * 20, '""', "é", "\udcff"]
FIELDS = st.sampled_from(NUMBERS * 4 + ODD)
CSV_LINES = st.lists(FIELDS, min_size=3, max_size=5).map(",".join) | st.just("1,2,3,4") | st.just("")

VALUES = st.sampled_from([7, 7, 7, -5, None, 3.5, "7", "none", True, [1], {"whole": 1}, '{"whole": "1"}'])
OBJECTS = st.dictionaries(st.sampled_from([*SCHEMA.names, "other"]), VALUES).map(json.dumps)
ODD_LINES = [
    "",
    " ",
    "[1]",
    "{",
    "}",
    "{}",
    "null",
    '{"whole": 1}}',
    ' {"whole": 2} ',
    '{"who',
    '{"text": "\udcff"}',
    # What pyarrow reads and Python refuses, in lines that a quick look for wrong values looks at.
    '{"other": {"whole": "7", "part": "x"}, "text": "\\ud800", "whole": 7}',
    '{"other": {"whole": "none", "small": [1], "a": "\udcff"}}',
    '{"other": [{"part": "7"}, -Inf], "whole": 7}',
    f'{{"other": {{"text": 7, "a": {"9" * 5_000}}}}}',
    '{"whole": 7, "other": "\udcff"} ',
]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("format", "lines"), [(CSV, CSV_LINES), (JSON, OBJECTS | st.sampled_from(ODD_LINES))], ids=["csv", "json"]
)
@given(data=st.data())
def test_both_find_the_same(
    tmp_path_factory: pytest.TempPathFactory, format: TextFormat, lines: Any, line_end: str, data: Any
) -> None:
    path = tmp_path_factory.mktemp("text") / f"a.{format.name}"
    drawn = data.draw(st.lists(lines, max_size=30))
    first = "{}" if format is JSON else "1,2,3,4"  # a bracket would begin an array
    path.write_bytes(line_end.join([first, *drawn]).encode(errors="surrogateescape"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(format), "quick", lambda self, block, hints: None)
        expected = sifted(format, path, set(), keep=False)
    hints: set[str] = set()
    for keep in (False, True, False, True):  # hints of earlier epochs change nothing
        assert sifted(format, path, hints, keep=keep) == expected


def sifted(
    format: TextFormat, path: Any, hints: set[str], *, keep: bool
) -> list[tuple[list[Any], list[int]]]:
    """Returns the good rows and the numbers of the bad rows of each block."""
    store, footer = open_footer(format, path, "mapped")
    found = []
    for split in footer.splits:
        for part in format.sift(store, footer, split, SCHEMA, 0, keep=keep, hints=hints):
            assert [bad.row for bad in part.bad] == (list(part.numbers) if keep else [])
            rows = [[repr(value) for value in row.values()] for row in part.batch.to_pylist()]
            found.append((rows, list(part.numbers)))
    return found


def test_empty_fields_beside_wrong_ones_stay_null(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("whole,part\n1,2.5\n,\nno,3\n4,\n5,no\n,6\n")
    read = af.read_csv(path, schema={"whole": pa.int64(), "part": pa.float64()}, on_error="skip")
    assert read.to_table().to_pydict() == {"whole": [1, None, 4, None], "part": [2.5, None, None, 6]}


def test_keys_are_found_across_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "_WINDOW_BYTES", 7)
    text = b'{"a": "x"}, {"a": 1, "b": "a"}, {"ba": "", "a": "'
    expected = [at for at in range(len(text)) if text.startswith(b'"a": "', at)]
    for size in range(len(text) + 1):
        found = json_rows._places(np.frombuffer(text[:size], np.uint8), b'"a": "').tolist()
        assert found == [at for at in expected if at + 6 <= size]

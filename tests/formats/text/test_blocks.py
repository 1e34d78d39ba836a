"""Records larger than what is held in memory: the error is true of a whole file, and `block_bytes` lets it pass."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.errors import ArrowflowError, BudgetError, SourceError
from arrowflow.formats.csv import csv
from arrowflow.formats.csv.lines import CsvLines
from arrowflow.formats.json import json
from arrowflow.formats.text import blocks
from arrowflow.storage import resolve

SCHEMA = pa.schema({"a": pa.int64(), "b": pa.string()})
LARGE = {
    "array.json": ('[{"a":1},{"a":2,"b":"%s"},{"a":3}]\n', BudgetError, "no comma and no `]` ends it", 9),
    "objects.json": ('{\n"a":1}\n{"a":2,"b":"%s"}\n', BudgetError, "no `}` closes it", 8),
    "lines.csv": ('a,b\n1,x\n2,"%s"\n3,y\n', SourceError, "quote that is opened at byte 10", 8),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_WINDOW_BYTES", 16)
    monkeypatch.setattr(blocks, "_MAX_RECORD_BYTES", 64)
    for module in (csv, json):
        monkeypatch.setattr(module, "SAMPLE_BYTES", 16)
    monkeypatch.setattr(json, "_KIND_BYTES", 8)


def large(folder: Path, name: str, size: int = 300) -> Any:
    path = folder / name
    path.write_text(LARGE[name][0] % filling(name, size))
    return partial(af.read, path, format=path.suffix[1:])


def filling(name: str, size: int) -> str:
    return ("y\n" if name == "lines.csv" else "yy") * (size // 2)


@pytest.mark.parametrize("schema", [None, SCHEMA])
@pytest.mark.parametrize("name", LARGE)
def test_a_record_of_a_whole_file_that_is_not_held(
    tmp_path: Path, name: str, schema: pa.Schema | None
) -> None:
    _, kind, lack, place = LARGE[name]
    read = large(tmp_path, name)
    with pytest.raises(ArrowflowError) as caught:
        read(schema=schema, block_bytes=80).to_table()
    assert type(caught.value) is kind
    for text in (f"the record at byte {place} (row 2) has more than 80 bytes", lack, "raise block_bytes="):
        assert text in str(caught.value)
    assert "truncated" not in str(caught.value)


@pytest.mark.parametrize("name", LARGE)
def test_block_bytes_lets_a_large_record_pass(tmp_path: Path, name: str) -> None:
    for block_bytes in (320, 4 << 20):
        table = large(tmp_path, name)(schema=SCHEMA, block_bytes=block_bytes).to_table()
        assert table["a"].to_pylist()[:2] == [1, 2]
        assert table["b"].to_pylist()[1] == filling(name, 300)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_first_record_tells_that_a_schema_does_not_help(tmp_path: Path, name: str) -> None:
    text = {"array.json": '[{"b":"%s"}]', "objects.json": '{\n"b":"%s"}\n', "lines.csv": 'b\n"%s"\n'}[name]
    path = tmp_path / name
    path.write_text(text % filling(name, 300))
    read = partial(af.read, path, format=path.suffix[1:])
    with pytest.raises(LARGE[name][1], match=r"has more than 80 bytes.*schema= alone does not help"):
        read(block_bytes=80).to_table()
    assert read(block_bytes=400).to_table().to_pydict() == {"b": [filling(name, 300)]}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", '[{"a":1},{"a":2},\n'),
        ("a.json", '[{"a":1},{"a":2,"b":"yyy'),
        ("a.json", '{\n"a":1}\n{"a":2,"b":"yyy'),
        ("a.csv", 'a,b\n1,x\n2,"yyy\n'),
    ],
)
def test_only_a_file_that_ends_in_a_record_is_truncated(tmp_path: Path, name: str, data: str) -> None:
    (tmp_path / name).write_text(data)
    with pytest.raises(SourceError, match="truncated"):
        af.read(tmp_path / name, format=name[2:], block_bytes=64).to_table()


@pytest.mark.parametrize("shape", ['[%s{"a":1}]', '{\n"a":0}%s{"a":1}'])
def test_blanks_between_records_are_no_record(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(shape % (" " * 300))
    schema = pa.schema({"a": pa.int64()})
    assert af.read_json(path, schema=schema, block_bytes=64).to_table()["a"].to_pylist()[-1] == 1


@pytest.mark.parametrize(
    "row", ['2,"%s"', '"%s",2', '2,"%s""x"', "2,%s", '2,"x",%s', '2,"%s\nx"', '2,"x","%s\nx"']
)
def test_quotes_around_texts_that_are_not_held(tmp_path: Path, row: str) -> None:
    """A line end far behind a quote is in its text: a row, or an error that names the quote."""
    path = tmp_path / "a.csv"
    for size in range(124, 134):
        text = row % ("y" * size)
        path.write_text(f"a,b\n1,x\n{text}\n3,y\n")
        store, files = resolve(path, suffixes=(".csv",), operator="read_csv")
        with blocks.opened(store, files[0]) as source:
            try:
                found = str(blocks.cut(source, CsvLines(",", '"'), 4, 64).num_rows)
            except SourceError as error:
                found = str(error)
        told = f"opened at byte {8 + text.rindex(',') + 1}: close it"
        assert found == "3" or ("\n" in text and told in found)


@pytest.mark.parametrize("row", ['2,"%s', '2,"%s\nx', '2,"x","%s'])
def test_a_quote_that_is_not_closed_behind_what_is_held(tmp_path: Path, row: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,x\n" + row % ("y" * 200))
    place = 8 + row.index("%") - 1
    for more in ("", "y" * 200):
        with path.open("a") as file:
            file.write(more)
        with pytest.raises(SourceError, match=f"opened at byte {place}(: close it| and never closed)"):
            af.read_csv(path, schema=SCHEMA, block_bytes=64).to_table()

"""Very many columns of CSV: their number is bounded, and their groups give what pyarrow gives for all of them together."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.errors import BudgetError, SourceError
from arrowflow.formats.csv import columns as csv_columns
from arrowflow.formats.csv.columns import header_fields
from arrowflow.formats.csv.lines import CsvLines
from arrowflow.formats.text.blocks import as_bytes

WIDE = 7


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes groups of two columns, and notes how many columns each call of pyarrow decodes."""
    for name in ("INFERRED_COLUMNS", "GROUP_COLUMNS"):
        monkeypatch.setattr(csv_columns, name, 2)
    asked: list[int] = []
    read = pacsv.read_csv

    def noted(*arguments: Any, **options: Any) -> pa.Table:
        table = read(*arguments, **options)
        asked.append(table.num_columns)
        return table

    monkeypatch.setattr(pacsv, "read_csv", noted)
    return asked


def wide(folder: Path, fault: str = "") -> Path:
    path = folder / "a.csv"
    names = ",".join(f"c{number}" for number in range(WIDE))
    rows = [f"{row},{row / 4},t{row},,true,{fault if row == 3 else row},'{row}" for row in range(5)]
    path.write_text("\n".join([names, *rows]) + "\n")
    return path


@pytest.mark.parametrize("options", [{}, {"null_values": ["t1"]}, {"columns": ["c6", "c0", "c4"]}])
def test_groups_of_columns_give_the_same_rows(
    tmp_path: Path, grouped: list[int], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    path = wide(tmp_path)
    found = af.read_csv(path, **options).to_table()
    assert max(grouped) == 2
    for name in ("INFERRED_COLUMNS", "GROUP_COLUMNS"):
        monkeypatch.setattr(csv_columns, name, WIDE)
    assert found.equals(af.read_csv(path, **options).to_table())


def test_bad_rows_of_groups(tmp_path: Path, grouped: list[int]) -> None:
    path = wide(tmp_path, "x")
    schema = {f"c{number}": pa.int64() if number == 5 else pa.string() for number in range(WIDE)}
    with pytest.raises(af.SchemaError, match=r"column 'c5': row 4: .*'x'"):
        af.read_csv(path, schema=schema).to_table()
    good = af.read_csv(path, schema=schema, on_error="skip").to_table()
    assert good["c5"].to_pylist() == [0, 1, 2, 4]
    with path.open("a") as file:
        file.write("1,2\n")
    assert af.read_csv(path, schema=schema, on_error="skip").to_table().equals(good)
    assert max(grouped) == 2


@pytest.mark.parametrize("options", [{}, {"has_header": False}, {"schema": pa.schema({"a": pa.string()})}])
def test_more_columns_than_a_file_may_have(
    tmp_path: Path, grouped: list[int], options: dict[str, Any]
) -> None:
    """pyarrow is not even asked for them: it takes kilobytes for each column."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,"b,\n"' + b",c" * csv_columns.MAX_COLUMNS)
    with pytest.raises(BudgetError, match=r"at most 131,072 columns, found 131,074 fields in the first row"):
        af.read_csv(path, **options).to_table()
    assert max(grouped, default=0) <= 1


def test_as_many_columns_as_a_file_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_columns, "MAX_COLUMNS", WIDE)
    assert af.read_csv(wide(tmp_path)).to_table().num_columns == WIDE
    monkeypatch.setattr(csv_columns, "MAX_COLUMNS", WIDE - 1)
    with pytest.raises(BudgetError, match="at most 6 columns, found 7"):
        af.read_csv(wide(tmp_path)).to_table()


def test_a_line_with_many_more_fields_than_the_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n1" + b",c" * 200_000)
    with pytest.raises(SourceError, match="row 1: Expected 2 columns, got 200001") as caught:
        af.read_csv(path).to_table()
    assert len(str(caught.value)) < 2000


def test_decoding_very_many_columns_announces_its_memory(tmp_path: Path) -> None:
    def of(columns: int) -> af.Dataset:
        path = tmp_path / "a.csv"
        path.write_text(",".join(map(str, range(columns))) + "\n" + "," * (columns - 1) + "\n")
        schema = {str(number): pa.string() for number in range(columns)}
        return af.read_csv(path, schema=schema).with_options(af.Options(ram_budget="16MiB"))

    assert of(4).to_table().num_columns == 4
    with pytest.raises(BudgetError, match="under the least that this pipeline needs"):
        of(5_000).to_table()


@given(
    st.lists(
        st.sampled_from(['"a"', '"b,c"', '"\n"', '"x""y"', "d", " e ", "#f", "", "g\\,h", "é"]), min_size=1
    ),
    st.sampled_from(["", "\n", "\r\n", "\r"]),
    st.sampled_from([None, "\\"]),
)
def test_the_fields_of_a_header_are_those_of_pyarrow(parts: list[str], end: str, escape: str | None) -> None:
    row = ",".join(parts)
    assume(row)
    data = (row + end).encode()
    options = pacsv.ParseOptions(escape_char=escape or False)
    expected = pacsv.read_csv(io.BytesIO((row + "\n").encode()), parse_options=options).column_names
    assert [
        each.decode() for each in header_fields(as_bytes(data), CsvLines(",", '"', escape), options)
    ] == expected

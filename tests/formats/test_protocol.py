"""`formats.format` and the registry: which files match a schema, and how a format is found."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from arrowflow import formats
from arrowflow.errors import PlanError, SchemaError
from arrowflow.formats import FORMATS, Footer, Format, capabilities, find, match, registry
from arrowflow.formats.parquet.parquet import ParquetFormat
from arrowflow.storage import File

MADE = ParquetFormat()


def footer(**types: pa.DataType) -> Footer:
    return Footer(File("/x/a.parquet", "a.parquet", 1), pa.schema(types), (), 0)


def test_match_by_name_and_type() -> None:
    expected = pa.schema([pa.field("a", pa.int32(), nullable=False, metadata={"k": "v"}), ("b", pa.string())])
    match(expected, footer(b=pa.string(), more=pa.int8(), a=pa.int32()))
    match(expected, footer(b=pa.string(), more=pa.int8(), a=pa.int16()), widen=True)
    match(expected, footer(more=pa.int8()), widen=True)


@pytest.mark.parametrize(
    ("found", "widen", "text"),
    [
        ({"a": pa.int64()}, False, r"expected int32, found int64; the first file .* pass schema= with int64"),
        ({"a": pa.int16()}, False, r"expected int32, found int16; .* pass schema= with int32"),
        ({"a": pa.uint32()}, False, r"expected int32, found uint32; .* pass schema= with int64"),
        ({"a": pa.list_(pa.int32(), 4)}, False, r"pyarrow casts no value of one to the other: read the"),
        ({"a": pa.float64()}, False, r"expected int32, found double; .* pass schema= with double"),
        (
            {"a": pa.struct({"x": pa.int8()})},
            True,
            r"pyarrow casts no value of one to the other: read the files",
        ),
        (
            {"aa": pa.int32()},
            False,
            r"column 'a' \(int32\) is missing; pass missing_columns=.*; did you mean 'aa'\?",
        ),
    ],
)
def test_mismatch_names_file_and_column(found: dict[str, pa.DataType], widen: bool, text: str) -> None:
    with pytest.raises(SchemaError, match=text) as caught:
        match(pa.schema({"a": pa.int32()}), footer(**found), widen=widen, operator="read_parquet")
    assert caught.value.file == "/x/a.parquet"
    assert caught.value.operator == "read_parquet"


def test_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, format in FORMATS.items():
        assert find(name) is format
        assert format.name == name
    offered = EntryPoints(
        [
            EntryPoint("mine", "arrowflow.formats.parquet.parquet:ParquetFormat", "arrowflow.formats"),
            EntryPoint("made", "tests.formats.test_protocol:MADE", "arrowflow.formats"),
            EntryPoint("none", "arrowflow.formats:FORMATS", "arrowflow.formats"),
            EntryPoint("gone", "no_such_package:Format", "arrowflow.formats"),
        ]
    )

    def entry_points(**_: Any) -> EntryPoints:
        return offered

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert isinstance(find("mine"), ParquetFormat)
    assert find("made") is MADE
    with pytest.raises(PlanError, match=r"none = arrowflow.formats:FORMATS gives \{.*derive from it"):
        find("none")
    with pytest.raises(
        PlanError, match=r"gone = no_such_package:Format cannot be loaded \(ModuleNotFoundError"
    ):
        find("gone")
    with pytest.raises(PlanError, match="there is no format 'parquett'; did you mean 'parquet'"):
        find("parquett")


def test_the_docs_know_all_capabilities() -> None:
    found = {
        name
        for name, value in vars(capabilities).items()
        if isinstance(value, type)
        and value.__module__ == capabilities.__name__
        and getattr(value, "_is_protocol", False)
    }
    page = (Path(__file__).parents[2] / "docs/formats.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^- `(\w+)`:", page, re.MULTILINE)) == found
    assert set(re.findall(r"`(\w+)`", Format.__doc__ or "")) >= found
    assert found <= set(formats.__all__)

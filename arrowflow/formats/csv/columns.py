"""CSV of very many columns. pyarrow takes 5 to 10 kB for each column that it decodes, however few bytes a file has.

So pyarrow decodes some columns at a time, and the number of columns has a limit.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyarrow import csv

from arrowflow.errors import BudgetError
from arrowflow.formats.csv.lines import CsvLines
from arrowflow.formats.text.blocks import as_bytes, owned
from arrowflow.formats.text.scan import Bytes

INFERRED_COLUMNS: Final = 4096
"""Columns whose types pyarrow infers at a time, with at most 40 MB."""

GROUP_COLUMNS: Final = 1 << 15
"""Columns of known types that pyarrow decodes at a time, with at most 170 MB. Smaller groups take twice the time."""

MAX_COLUMNS: Final = 1 << 17
"""The most columns of a file whose first row tells them: to read a file of so many takes 1 GB and 10 seconds."""


def header_fields(row: Bytes, lines: CsvLines, parse: csv.ParseOptions) -> list[bytes]:
    """Returns the fields of the first row of a file, read as the rows of one column, which takes little for each field.

    Raises:
        BudgetError: They are more than a file may have columns.
    """
    borders = lines.delimiters(row)
    if borders.size >= MAX_COLUMNS:
        raise BudgetError(
            f"expected at most {MAX_COLUMNS:,} columns, found {borders.size + 1:,} fields in the first row: line ends are "
            "missing, or delimiter= is not what the file uses; write so many values as rows, or as Parquet with one "
            "column of lists"
        )
    column = owned(row, b"\n")
    as_bytes(column)[borders] = ord("\n")
    parse.ignore_empty_lines = False
    read = csv.ReadOptions(use_threads=False, block_size=column.size, column_names=["name"])
    convert = csv.ConvertOptions(column_types={"name": pa.binary()})
    fields = csv.read_csv(pa.BufferReader(column), read, parse, convert).column(0)
    names: list[bytes] = fields.to_pylist()[: borders.size + 1]  # an empty line is behind the last one
    return names


def wide_bytes(columns: int) -> int:
    """Estimates the memory that decoding very many columns takes, whatever they hold; next to nothing for fewer."""
    if columns <= INFERRED_COLUMNS:
        return 0
    # So many bytes to decode a column of a type that is known, and those of a decoded column besides its values.
    return min(columns, GROUP_COLUMNS) * (5 << 10) + columns * (3 << 9)


def can_be_empty(type: pa.DataType) -> bool:
    """Whether an empty field can be a value."""
    return not (pa.types.is_primitive(type) or pa.types.is_decimal(type) or pa.types.is_null(type))


def read_block(data: pa.Buffer, names: object, parse: csv.ParseOptions, convert: object) -> pa.Table:
    """Reads lines, the last of which may have no line end, on the calling thread."""
    text = as_bytes(data)
    if text[-1] not in (ord("\r"), ord("\n")):
        data = owned(text, b"\n")
    read = csv.ReadOptions(use_threads=False, block_size=data.size, column_names=names)
    return read_columns(data, read, parse, convert)


def read_columns(
    data: pa.Buffer, read: csv.ReadOptions, parse: csv.ParseOptions, convert: csv.ConvertOptions
) -> pa.Table:
    """Reads one block: all columns, or the ones that `convert` includes."""
    types: dict[str, Any] = convert.column_types
    names = convert.include_columns or read.column_names
    size = GROUP_COLUMNS if types else INFERRED_COLUMNS
    if len(names) <= size:
        return csv.read_csv(pa.BufferReader(data), read, parse, convert)
    columns: list[pa.ChunkedArray] = []
    for start in range(0, len(names), size):
        group = names[start : start + size]
        convert.include_columns = group
        convert.column_types = {name: types[name] for name in group if name in types}
        columns += csv.read_csv(pa.BufferReader(data), read, parse, convert).columns
    return pa.Table.from_arrays(columns, names)

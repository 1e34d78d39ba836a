"""The encoding of one shard: a Parquet file by row groups, an Arrow IPC file by record batches, CSV and JSON by rows."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, Final

import polars as pl
import pyarrow as pa
from pyarrow import csv

from arrowflow.errors import PlanError, WriteError, closest, shown
from arrowflow.lazy import compute as pc
from arrowflow.lazy import parquet as pq
from arrowflow.workarounds.fixed_lists import variable_lists

PARQUET_CODECS: Final = ("brotli", "gzip", "lz4", "none", "snappy", "zstd")
IPC_CODECS: Final = ("lz4", "none", "zstd")


class Encoder:
    """One file that is being written."""

    suffix: ClassVar[str]

    def write(self, group: pa.Table) -> None:
        """Writes rows, each column in one chunk, as one row group or record batch."""
        raise NotImplementedError

    def close(self) -> None:
        """Completes the file; the sink stays open."""

    def abandon(self) -> None:
        """Closes a file that will not be completed. Raises nothing."""


class _ArrowEncoder(Encoder):
    """A file that a writer of pyarrow writes."""

    _writer: Any

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        with suppress(Exception):
            self._writer.close()


class ParquetEncoder(_ArrowEncoder):
    """A Parquet file with statistics, by which readers prune, and checksums, which `read_parquet` compares.

    Types that pyarrow would write as other values, or could not read back, are refused.
    """

    suffix: ClassVar[str] = ".parquet"

    def __init__(self, sink: Any, schema: pa.Schema, compression: str) -> None:
        for field in schema:
            if _holds(field.type, lambda type: pa.types.is_fixed_size_list(type) and type.list_size == 0):
                raise WriteError(
                    f"column {field.name!r}: {field.type} cannot be read back from Parquet; drop the column, whose "
                    "lists hold nothing, or write IPC files"
                )
        self._dates = [field.name for field in schema if _holds(field.type, pa.types.is_date64)]
        self._schema = schema
        self._writer = pq.ParquetWriter(sink, self._schema, compression=compression, write_page_checksum=True)

    def write(self, group: pa.Table) -> None:
        for name in self._dates:
            if not all(map(_keeps_dates, _leaves(group.column(name).chunks))):
                raise WriteError(
                    f"column {name!r}: values of date64 that are no whole days become others in Parquet; cast the "
                    "column to timestamp('ms')"
                )
        self._writer.write_table(group.cast(self._schema), row_group_size=max(1, group.num_rows))

    def abandon(self) -> None:
        super().abandon()
        self._writer.is_open = False  # else its `__del__` tries again


class IpcEncoder(_ArrowEncoder):
    """An Arrow IPC file; uncompressed it can be mapped into memory."""

    suffix: ClassVar[str] = ".arrow"

    def __init__(self, sink: Any, schema: pa.Schema, compression: str) -> None:
        options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        self._writer = pa.ipc.new_file(sink, schema, options=options)

    def write(self, group: pa.Table) -> None:
        for batch in group.to_batches():
            self._writer.write_batch(batch)


class CsvEncoder(_ArrowEncoder):
    """A CSV file with a header. Texts are quoted, so that an empty text is not null.

    Types and values that `read_csv` could not read back are refused.
    """

    suffix: ClassVar[str] = ".csv"

    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        _check_types(schema, "CSV", is_csv)
        self._writer = csv.CSVWriter(sink, schema)

    def write(self, group: pa.Table) -> None:
        if group.num_columns == 1 and group.column(0).null_count:
            raise WriteError(
                f"column {group.column_names[0]!r}: a null of the only column is an empty line in CSV, which is no row; "
                "add a column, fill the nulls, or write Parquet files"
            )
        self._writer.write_table(group)


class JsonEncoder(Encoder):
    """A file of JSON lines: an object for each row, with a null for each null. Polars writes them.

    Types and values that `read_json` could not read back are refused.
    """

    suffix: ClassVar[str] = ".jsonl"

    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        _check_types(schema, "JSON", _is_json)
        self._sink = sink

    def write(self, group: pa.Table) -> None:
        for name, column in zip(group.column_names, group.columns, strict=True):
            floats = [leaf for leaf in _leaves(column.chunks) if pa.types.is_floating(leaf.type)]
            if any(pc.all(pc.is_finite(leaf)).as_py() is False for leaf in floats):
                raise WriteError(
                    f"column {name!r}: JSON has no place for NaN and infinity, which would become null; make them null, or "
                    "write Parquet files"
                )
        columns = [pa.chunked_array(map(variable_lists, column.chunks)) for column in group.columns]
        lines = io.BytesIO()
        pl.DataFrame(pa.table(columns, names=group.column_names)).write_ndjson(lines)
        self._sink.write(lines.getbuffer())


def _check_types(schema: pa.Schema, format: str, has_place: Callable[[pa.DataType], bool]) -> None:
    if not len(schema):
        raise WriteError(f"{format} cannot hold rows without columns; write IPC files")
    for field in schema:
        if not has_place(field.type):
            raise WriteError(
                f"column {field.name!r}: {format} has no place for {field.type}; drop or cast the column, or write Parquet "
                "files"
            )


def is_csv(type: pa.DataType) -> bool:
    """Returns whether CSV has a text for all values of a type, from which `read_csv` makes the same value."""
    types = pa.types
    if types.is_dictionary(type):
        return bool(types.is_string(type.value_type) or types.is_large_string(type.value_type))
    tests = (types.is_boolean, types.is_integer, types.is_float32, types.is_float64, types.is_decimal128)
    texts = (types.is_string, types.is_large_string, types.is_date32, types.is_timestamp)
    return any(test(type) for test in (*tests, *texts))


def _is_json(type: pa.DataType) -> bool:
    """Returns whether JSON has a value for all values of a type, from which `read_json` makes the same value."""
    types = pa.types
    if types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type):
        return _is_json(type.value_type)
    if types.is_struct(type):
        return type.num_fields > 0 and all(_is_json(field.type) for field in type)
    return (is_csv(type) and not types.is_date(type)) or types.is_null(type)


def _leaves(arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """Yields the arrays of values inside of lists, maps, structs and extension types."""
    for array in arrays:
        if isinstance(array.type, pa.BaseExtensionType):
            yield from _leaves([array.storage])
        elif pa.types.is_map(array.type):
            yield from _leaves([array.keys, array.items])
        elif pa.types.is_struct(array.type):
            yield from _leaves(array.flatten())
        elif pa.types.is_nested(array.type):
            yield from _leaves([array.flatten()])
        else:
            yield array


def _holds(type: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Returns whether a type, or a type inside it, passes a test."""
    if isinstance(type, pa.BaseExtensionType):
        return _holds(type.storage_type, test)
    return test(type) or any(_holds(type.field(index).type, test) for index in range(type.num_fields))


def _keeps_dates(array: pa.Array) -> bool:
    """Returns whether all values of date64 in an array are whole days; other types have none."""
    is_other = not pa.types.is_date64(array.type)
    return is_other or bool(array.equals(pc.cast(array, pa.date32(), safe=False).cast(array.type)))


def check_codec(operator: str, compression: str | None, known: tuple[str, ...]) -> str:
    """Returns the name of a compression; `"none"` for None.

    Raises:
        PlanError: There is no compression of that name.
    """
    given: Any = "none" if compression is None else compression
    if not isinstance(given, str) or given.lower() not in known:
        raise PlanError(f"{operator}: compression is one of {', '.join(known)}, got {shown(compression)}")
    name = given.lower()
    if name != "none" and not pa.Codec.is_available(name):
        raise PlanError(f"{operator}: this build of pyarrow has no {name!r}; {closest(name, known)}")
    return name

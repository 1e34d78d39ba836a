"""The encoding of a WebDataset shard: a tar archive with a member for each value, called `key.column`.

`tarfile` makes the headers. They hold no time and no owner, so that equal rows make equal archives.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import pyarrow as pa

from arrowflow.errors import WriteError, shown
from arrowflow.formats.webdataset.members import BLOCK, KEY
from arrowflow.interchange.to_numpy import is_text
from arrowflow.write.encoders import Encoder

_ROWS: Final = 64
"""Rows that are Python objects at the same time: images are large."""

_KEY: Final = re.compile(r"(?!/|(?:[^\0]*/)?\.\./)(?:[^\0]*/)?[^./\0]+")
"""A name in no folder or in folders below, so that nobody who unpacks the archive writes elsewhere."""
_COLUMN: Final = re.compile(r"[^/\0]+")


class ArchiveEncoder(Encoder):
    """A tar archive of the members that `read_webdataset` makes rows of. A null has no member.

    Types, keys and names of columns that `read_webdataset` could not read back are refused.
    """

    suffix: ClassVar[str] = ".tar"

    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        if KEY not in schema.names:
            raise WriteError(
                f"a row of a WebDataset has a key, and there is no column {KEY!r}: rename one, or add numbers by "
                f".enumerate(name={KEY!r})"
            )
        for field in schema:
            if not _has_place(field.type) or (field.name == KEY and pa.types.is_floating(field.type)):
                raise WriteError(
                    f"column {field.name!r}: a member of a WebDataset has no place for {field.type}, but for bytes, texts, "
                    "numbers and booleans; encode the column by a map, or write Parquet files"
                )
            if field.name != field.name.lower():
                raise WriteError(
                    f"column {field.name!r}: readers of WebDataset take the names of columns in lower case; rename it to "
                    f"{field.name.lower()!r}"
                )
            if not _COLUMN.fullmatch(field.name):
                raise WriteError(
                    f"column {field.name!r}: a file's name cannot end like this; rename the column"
                )
        self._columns = [name for name in schema.names if name != KEY]
        self._sink = sink
        self._last: str | None = None

    def write(self, group: pa.Table) -> None:
        for start in range(0, group.num_rows, _ROWS):
            for part in self._members(group.slice(start, _ROWS)):
                self._sink.write(part)

    def _members(self, rows: pa.Table) -> Iterator[bytes]:
        keys = rows.column(KEY).cast(pa.large_string()).to_pylist()
        columns = [(name, _as_bytes(rows.column(name)).to_pylist()) for name in self._columns]
        for row, key in enumerate(keys):
            self._check(key, has_values=any(values[row] is not None for _, values in columns))
            for name, values in columns:
                value = values[row]
                if value is not None:
                    member = tarfile.TarInfo(f"{key}.{name}")
                    member.size = len(value)
                    yield member.tobuf(tarfile.GNU_FORMAT)
                    yield value
                    yield bytes(-len(value) % BLOCK)

    def _check(self, key: str | None, *, has_values: bool) -> None:
        if key is None or not _KEY.fullmatch(key):
            raise WriteError(
                f"column {KEY!r}: {shown(key)} is no key: it is a file's name without a dot, and may have folders"
            )
        if key == self._last:
            raise WriteError(
                f"column {KEY!r}: {key!r} comes twice, and would make one row; number the rows instead"
            )
        if not has_values:
            raise WriteError(
                f"the row with the key {key!r} has nulls alone, so it would have no member; leave it out"
            )
        self._last = key

    def close(self) -> None:
        self._sink.write(bytes(2 * BLOCK))


def _has_place(type: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_boolean, types.is_integer, types.is_float32, types.is_float64)
    return is_text(type) or any(test(type) for test in tests)


def _as_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return column if is_bytes else column.cast(pa.large_string()).cast(pa.large_binary())

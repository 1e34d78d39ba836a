"""The folder that keeps bad rows.

It has a folder for each operator, and in it Arrow IPC files, each of which appears whole. The name of a file follows from
the place of its rows. So a second epoch, a resumed run or another process writes the same file again, with the same rows.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from arrowflow.errors import ArrowflowError, WriteError, said, without_credentials
from arrowflow.lazy import fs as pafs
from arrowflow.storage import locate

OF_FILES: Final = pa.schema(
    {
        "data": pa.binary(),
        "_file": pa.string(),
        "_part": pa.int64(),
        "_row": pa.int64(),
        "_rows": pa.int64(),
        "_error": pa.string(),
    }
)
"""The columns of what readers leave out. `_part` is the number of the row group, batch or block, and `_row` that of the first
row in it. `data` has the bytes of the row, and null for what is left out whole, as a row group is."""

OF_FUNCTIONS: Final = pa.schema(
    {"_split": pa.int64(), "_piece": pa.int64(), "_row": pa.int64(), "_error": pa.string()}
)
"""The columns that come after those of the rows for which a function raised: the split that they came in, the number of the
piece of it that the function was given, and the row's number in that piece."""


MAX_NAME_LETTERS: Final = 120
"""Longer names of functions are cut, and get a digest: file systems allow 255 bytes, and some of encrypted disks 143."""


class BadRow(NamedTuple):
    """A bad row.

    Attributes:
        row: Its number in its part of a file, or in the piece that a function was given.
        error: The fault, with the row's place.
        data: Its bytes in a file.
    """

    row: int
    error: str
    data: bytes | None = None


class Quarantine:
    """The part of a folder, or of a URL, that keeps the bad rows of one operator. Any thread."""

    def __init__(self, folder: str, operator: str) -> None:
        self._folder = folder
        self._operator = operator

    def keep_rows(self, file: str, part: int, rows: Sequence[BadRow]) -> None:
        """Writes bad rows of one part of a file."""
        first, *_ = rows
        file = without_credentials(file)
        values = [(bad.data, file, part, bad.row, 1, bad.error) for bad in rows]
        self._write(f"{_digest(file.encode())}-{part:06d}-{first.row:09d}", _batch(values, OF_FILES))

    def keep_part(self, file: str, part: int | None, rows: int | None, error: str) -> None:
        """Writes that a part of a file was left out, or all of it."""
        file = without_credentials(file)
        values = (None, file, part, None if part is None else 0, rows, error)
        name = f"{_digest(file.encode())}-{'file' if part is None else f'{part:06d}-part'}"
        self._write(name, _batch([values], OF_FILES))

    def keep_given(self, given: pa.RecordBatch, split: int, piece: int, bad: Sequence[BadRow]) -> None:
        """Writes rows that a function was given.

        Rows of a window differ from epoch to epoch, so their digest is part of the name, too.
        """
        more = _batch([(split, piece, each.row, each.error) for each in bad], OF_FUNCTIONS)
        schema = pa.schema([*given.schema, *OF_FUNCTIONS])
        if len(set(schema.names)) < len(schema):
            raise WriteError(
                f"the rows have a column {sorted(set(given.schema.names) & set(OF_FUNCTIONS.names))} already, which a "
                "quarantine adds; rename it before"
            ).locate(operator=self._operator)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, given.schema) as writer:
            writer.write_batch(given)
        digest = _digest(sink.getvalue().to_pybytes())
        rows = pa.RecordBatch.from_arrays([*given.columns, *more.columns], schema=schema)
        self._write(f"{split:012d}-{piece:06d}-{bad[0].row:06d}-{digest}", rows)

    def _write(self, name: str, rows: pa.RecordBatch) -> None:
        filesystem, place = locate(self._folder, operator=self._operator)
        place = f"{place.rstrip('/')}/{folder_name(self._operator)}"
        try:
            filesystem.create_dir(place, recursive=True)
            if isinstance(filesystem, pafs.LocalFileSystem):
                part = Path(place, f".{name}.{os.urandom(4).hex()}.part")
                try:
                    _put(filesystem, str(part), rows)
                    part.replace(Path(place, f"{name}.arrow"))
                finally:
                    part.unlink(missing_ok=True)
            else:  # there a file is seen once it is closed
                _put(filesystem, f"{place}/{name}.arrow", rows)
        except ArrowflowError:
            raise
        except Exception as error:  # clients have errors of their own; that a row is bad is another matter
            text = f"cannot write bad rows to the folder {self._folder!r}: {said(error)}; name one that can be written"
            raise WriteError(text).locate(operator=self._operator) from error


def _batch(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch(list(map(pa.array, columns, schema.types)), schema=schema)


def _put(filesystem: Any, path: str, rows: pa.RecordBatch) -> None:
    with filesystem.open_output_stream(path) as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(rows)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def folder_name(operator: str) -> str:
    """Returns the name of the folder for the bad rows of an operator.

    Examples:
        >>> folder_name("map_rows(Lookup.__call__)-3")
        'map_rows-Lookup.__call__-3'
    """
    name, number = re.fullmatch(
        r"(.*?)(-\d+)?", re.sub(r"[^A-Za-z0-9_.]+", "-", operator).strip("-")
    ).groups()  # type: ignore[union-attr]
    if len(name) > MAX_NAME_LETTERS:
        name = f"{name[: MAX_NAME_LETTERS - 13]}-{_digest(name.encode())}"  # as long as is allowed
    return name + (number or "")


def is_of_operator(name: str, operator: str) -> bool:
    """Whether a folder has the rows of an operator, which may lack its number in the plan."""
    wanted = folder_name(operator)
    return name == wanted or re.fullmatch(re.escape(wanted) + r"-\d+", name) is not None


def operators_of(folder: str | os.PathLike[str], caller: str) -> list[str]:
    """Returns the names of the folders in a folder that hold bad rows."""
    filesystem, place = locate(folder, operator=caller)
    selector = pafs.FileSelector(place, recursive=True, allow_not_found=True)
    root = place.rstrip("/") + "/"
    paths = [
        info.path[len(root) :] if info.path.startswith(root) else info.path
        for info in filesystem.get_file_info(selector)
        if info.is_file and info.path.endswith(".arrow")
    ]
    return sorted({path.split("/")[0] for path in paths if path.count("/") == 1})

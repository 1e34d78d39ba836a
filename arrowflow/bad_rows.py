"""Bad rows: what becomes of them (`on_error`), how many there were, and the folder that keeps them.

A bad row is one that a reader cannot decode, or for which a user's function raises. Failures of storage, of memory and
of a plan are none: they always raise.

The folder has a folder for each operator, and in it Arrow IPC files, each of which appears whole. The name of a file
follows from the place of its rows. So a second epoch, a resumed run or another process writes the same file again, with
the same rows.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from arrowflow.errors import ArrowflowError, WriteError
from arrowflow.lazy import fs as pafs
from arrowflow.options import OnError, ResolvedOptions, check_on_error
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
"""The columns of what readers leave out. `_part` is the number of the row group, batch or block, `_row` that of the first
row in it, and `data` the bytes of the row; null for what is left out whole, as a row group is."""

OF_FUNCTIONS: Final = pa.schema({"_split": pa.int64(), "_row": pa.int64(), "_error": pa.string()})
"""The columns that come after those of the rows for which a function raised: the split that they came in, and the row's
number in the piece that the function was given."""


class BadRow(NamedTuple):
    """A bad row.

    Attributes:
        row: Its number in its part of a file, or in the piece that a function was given.
        error: What is wrong, with the row's place.
        data: Its bytes in a file.
    """

    row: int
    error: str
    data: bytes | None = None


class LeftOut(NamedTuple):
    """What was left out.

    Attributes:
        rows: How many rows, as far as that is known.
        parts: Row groups, record batches, blocks and files that were left out whole; of functions, their pieces.
    """

    rows: int = 0
    parts: int = 0

    def plus(self, other: LeftOut) -> LeftOut:
        """Returns the sum."""
        return LeftOut(self.rows + other.rows, self.parts + other.parts)


NO_BAD_ROWS: Final = LeftOut()


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of the bad rows of an operator. The default is what its pipeline says.

    Attributes:
        on_error: `raise`, `skip` or `quarantine`; None for what the options of the pipeline say.
        folder: The folder for bad rows.
    """

    on_error: OnError | None = None
    folder: str | None = None

    @classmethod
    def of(cls, operator: str, on_error: OnError | None, quarantine: str | os.PathLike[str] | None) -> Policy:
        """Returns the policy, with arguments as users write them."""
        return cls(on_error, check_on_error(operator, on_error, quarantine))

    def within(self, options: ResolvedOptions) -> Policy:
        """Returns the policy of an operator in a pipeline with these options."""
        return self if self.on_error is not None else Policy(options.on_error, options.quarantine)

    @property
    def leaves_out(self) -> bool:
        """Whether bad rows are left out."""
        return self.on_error in ("skip", "quarantine")

    def arguments(self) -> Mapping[str, Any]:
        """Returns what a state is compared by: nothing where bad rows raise, so that older states go on."""
        return {"on_error": "skip"} if self.leaves_out else {}

    def quarantine(self, operator: str) -> Quarantine | None:
        """Returns what keeps the bad rows of an operator; None if they are not kept."""
        return Quarantine(self.folder, operator) if self.folder is not None else None


def is_bad_data(error: BaseException) -> bool:
    """Whether an error says that rows are bad, so that they may be left out."""
    cause = error.__cause__
    return isinstance(error, ArrowflowError) and error.of_data and not isinstance(cause, MemoryError)


def first_bad(
    count: int, check: Callable[[int, int], object], error: ArrowflowError
) -> tuple[int, ArrowflowError]:
    """Returns the number of the first bad one of some rows, and what is wrong with it.

    Args:
        count: How many rows there are.
        check: Raises if one of the rows from a number on, and before another one, is bad.
        error: What it raised for all of them.
    """
    good, tried = 0, count
    while tried - good > 1:
        middle = (good + tried) // 2
        try:
            check(0, middle)
            good = middle
        except ArrowflowError as found:
            tried, error = middle, found
    return good, error


def bad_among(count: int, check: Callable[[int, int], object]) -> Iterator[tuple[int, ArrowflowError]]:
    """Yields the numbers of all bad rows, in order, and what is wrong with each; arguments as of `first_bad`."""
    parts = [(0, count)]
    while parts:
        start, stop = parts.pop()
        try:
            check(start, stop)
        except ArrowflowError as error:
            middle = (start + stop) // 2
            if middle == start:
                yield start, error
            else:
                parts += [(middle, stop), (start, middle)]


class Quarantine:
    """The part of a folder that keeps the bad rows of one operator. Any thread.

    Args:
        folder: The path or URL of the folder.
        operator: The operator, with the name of its function.
    """

    def __init__(self, folder: str, operator: str) -> None:
        self._folder = folder
        self._operator = operator

    def keep_rows(self, file: str, part: int, rows: Sequence[BadRow]) -> None:
        """Writes bad rows of one part of a file."""
        first, *_ = rows
        columns = [
            pa.array([bad.data for bad in rows], pa.binary()),
            pa.array([file] * len(rows), pa.string()),
            pa.array([part] * len(rows), pa.int64()),
            pa.array([bad.row for bad in rows], pa.int64()),
            pa.array([1] * len(rows), pa.int64()),
            pa.array([bad.error for bad in rows], pa.string()),
        ]
        name = f"{_digest(file.encode())}-{part:06d}-{first.row:09d}"
        self._write(name, pa.record_batch(columns, schema=OF_FILES))

    def keep_part(self, file: str, part: int | None, rows: int | None, error: str) -> None:
        """Writes that a part of a file was left out, or all of it."""
        values: list[Any] = [None, file, part, None if part is None else 0, rows, error]
        columns = [pa.array([value], field.type) for value, field in zip(values, OF_FILES, strict=True)]
        name = f"{_digest(file.encode())}-{'file' if part is None else f'{part:06d}-part'}"
        self._write(name, pa.record_batch(columns, schema=OF_FILES))

    def keep_given(self, given: pa.RecordBatch, split: int, bad: Sequence[BadRow]) -> None:
        """Writes rows that a function was given.

        Rows of a window differ from epoch to epoch, so their digest is part of the name, too.
        """
        more = [
            pa.array([split] * len(bad), pa.int64()),
            pa.array([each.row for each in bad], pa.int64()),
            pa.array([each.error for each in bad], pa.string()),
        ]
        schema = pa.schema([*given.schema, *OF_FUNCTIONS])
        if len(set(schema.names)) < len(schema):
            raise WriteError(
                f"the rows have a column {sorted(set(given.schema.names) & set(OF_FUNCTIONS.names))} already, which a "
                "quarantine adds; rename it before"
            ).locate(operator=self._operator)
        digest = _digest(_bytes_of(given))
        rows = pa.RecordBatch.from_arrays([*given.columns, *more], schema=schema)
        self._write(f"{split:012d}-{bad[0].row:06d}-{digest}", rows)

    def _write(self, name: str, rows: pa.RecordBatch) -> None:
        filesystem, place = locate(self._folder, operator=self._operator)
        place = f"{place.rstrip('/')}/{re.sub(r'[^A-Za-z0-9_.]+', '-', self._operator).strip('-')}"
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
        except OSError as error:
            text = f"cannot write bad rows to the folder {self._folder!r}: {error}; name one that can be written"
            raise WriteError(text).locate(operator=self._operator) from error


def _put(filesystem: Any, path: str, rows: pa.RecordBatch) -> None:
    with filesystem.open_output_stream(path) as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(rows)


def _bytes_of(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(memoryview(sink.getvalue()))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=6).hexdigest()

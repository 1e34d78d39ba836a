"""Rows into a folder for each value of some columns, as Hive, Spark and others name them: `year=2024/month=1/`.

The files do not hold these columns. Rows are dealt window by window, and the rows alone decide where a window ends. So the
bytes of all files do not depend on the batches in which the rows arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final
from urllib.parse import quote

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import WriteError, closest, shown
from arrowflow.kernels.gather import gathered
from arrowflow.ops.sources.files.partitions import NULL, leaves
from arrowflow.options import MAX_CHUNK_ROWS
from arrowflow.write.encoders import is_csv
from arrowflow.write.metadata import with_metadata
from arrowflow.write.shards import GROUP_BYTES, MAX_SHARDS, Held, Shards, ShardWriter, in_one_piece

MAX_OPEN: Final = 100
"""The most files that are open at a time: systems let a process open 256 to 1,024."""

HELD_BYTES: Final = 4 * GROUP_BYTES
"""Bytes of rows that wait for their row groups. Beyond them the longest row group is written as it is."""


class PartitionWriter:
    """Deals rows to one `ShardWriter` a folder. At most `MAX_OPEN` of these have an open file.

    Raises:
        WriteError: The columns are not there, or are all columns; a type or a value names no folder.
    """

    def __init__(self, shards: Shards, schema: pa.Schema, columns: tuple[str, ...]) -> None:
        _check(columns, schema)
        self._columns = columns
        self._kept = [name for name in schema.names if name not in columns]
        self._schema = schema
        stored = with_metadata(pa.schema([schema.field(name) for name in self._kept]), [schema])
        self._new: Callable[[str], ShardWriter] = partial(ShardWriter, shards, stored)
        self._window = Held(4 * MAX_CHUNK_ROWS, GROUP_BYTES)
        self._writers: dict[str, ShardWriter] = {}
        self._open: dict[str, ShardWriter] = {}

    @property
    def names(self) -> list[str]:
        """The shards, sorted as a listing is."""
        return sorted(name for writer in self._writers.values() for name in writer.names)

    @property
    def num_rows(self) -> int:
        """See `ShardWriter.num_rows`."""
        return sum(writer.num_rows for writer in self._writers.values())

    @property
    def num_bytes(self) -> int:
        """See `ShardWriter.num_bytes`."""
        return sum(writer.num_bytes for writer in self._writers.values())

    def open(self) -> None:
        """Does nothing: folders have files once there are rows."""

    def push(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.push`."""
        while batch.num_rows:
            batch, is_full = self._window.take(batch)
            if is_full:
                self._deal()

    def finish(self) -> None:
        """Completes all shards. Without rows there is one file, which tells the columns."""
        self._deal()
        if not self._writers:
            folder = "".join(f"{_quoted(name)}={NULL}/" for name in self._columns)
            self._writers[folder] = self._new(folder)
            self._writers[folder].open()
        for writer in self._writers.values():
            writer.finish()

    def abandon(self) -> None:
        """See `ShardWriter.abandon`."""
        for writer in self._writers.values():
            writer.abandon()

    def _deal(self) -> None:
        """Gives the rows of a window to their folders, in the order of each folder's first row."""
        if not self._window.num_rows:
            return
        for rows in in_one_piece(self._window.drain(), self._schema).to_batches():
            for folder, places in self._folders(rows):
                if folder not in self._writers:
                    if len(self._writers) == MAX_SHARDS:
                        raise WriteError(
                            f"partition_by={list(self._columns)}: expected at most {MAX_SHARDS:,} folders, and there are "
                            "more; take columns with fewer values"
                        )
                    self._writers[folder] = self._new(folder)
                self._writers[folder].push(gathered(rows.select(self._kept), places))
                self._note(folder)
        while sum(writer.held.num_bits for writer in self._writers.values()) > 8 * HELD_BYTES:
            folder = max(self._writers, key=lambda name: self._writers[name].held.num_bits)
            self._writers[folder].flush()
            self._note(folder)

    def _note(self, folder: str) -> None:
        """Completes the file that has waited for rows the longest, where too many are open."""
        self._open.pop(folder, None)
        if self._writers[folder].is_open:
            self._open[folder] = self._writers[folder]
        if len(self._open) > MAX_OPEN:
            self._open.pop(next(iter(self._open))).complete()

    def _folders(self, rows: pa.RecordBatch) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the folders of some rows, in the order of their first rows, and the places of their rows."""
        texts = {str(place): _texts(rows.column(name)) for place, name in enumerate(self._columns)}
        groups = (
            pl.DataFrame(pa.table(texts))
            .with_row_index("places")
            .group_by(list(texts), maintain_order=True)
            .agg("places")
        )
        for *values, places in groups.iter_rows():
            parts = [_part(name, value) for name, value in zip(self._columns, values, strict=True)]
            yield "".join(f"{part}/" for part in parts), np.array(places, np.int64)


def _check(columns: tuple[str, ...], schema: pa.Schema) -> None:
    for name in columns:
        if name not in schema.names:
            raise WriteError(f"partition_by: there is no column {name!r}; {closest(name, schema.names)}")
        type = schema.field(name).type
        is_other = pa.types.is_decimal(type) or pa.types.is_string_view(type)
        if not (is_other or (is_csv(type) and not pa.types.is_floating(type))):
            raise WriteError(
                f"partition_by: values of column {name!r} of type {type} name no folders, as whole "
                "numbers, texts, booleans, dates, timestamps and decimals do; cast it to one of these"
            )
        if not name or leaves(name):
            raise WriteError(f"partition_by: a folder cannot be called after column {name!r}; rename it")
    if len(columns) == len(schema):
        raise WriteError(
            "partition_by names all columns, and files without columns hold no rows; leave one of them out"
        )


def _texts(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_string())


def _part(name: str, value: str | None) -> str:
    if value is not None and (value == NULL or leaves(value)):
        raise WriteError(
            f"partition_by: the value {shown(value)} of column {name!r} would be read back as another one, or as a place "
            "outside of the folder; replace it"
        )
    return f"{_quoted(name)}={NULL if value is None else quote(value, safe='')}"


def _quoted(name: str) -> str:
    """Returns the name of a column in the name of a folder, which must not start as those that readers skip."""
    text = quote(name, safe="")
    return f"%{ord(text[0]):X}{text[1:]}" if text[0] in "._" else text

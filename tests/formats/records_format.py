"""The format to copy: files of fixed-width records, behind a header that says how many there are.

A record is an int64 `id` and a float64 `value`, in little-endian order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from arrowflow.errors import PlanError, SourceError
from arrowflow.formats import File, Footer, Format, Range, Split, Store, conform

MAGIC: Final = b"RECORDS1"
HEADER: Final = struct.Struct("<8sq")
RECORD: Final = np.dtype([("id", "<i8"), ("value", "<f8")])
SCHEMA: Final = pa.schema({"id": pa.int64(), "value": pa.float64()})


@dataclass(frozen=True, slots=True)
class RecordsFormat(Format):
    """Records, read by NumPy.

    Attributes:
        split_rows: Rows of a split, which is decoded in one call.
    """

    name: ClassVar[str] = "records"
    suffixes: ClassVar[tuple[str, ...]] = (".records",)

    split_rows: int = 65_536

    def __post_init__(self) -> None:
        if self.split_rows < 1:
            raise PlanError(f"split_rows is at least 1, got {self.split_rows}")

    def footer(self, store: Store, file: File) -> Footer:
        (header,) = store.fetch(file, [(0, HEADER.size)])
        magic, rows = HEADER.unpack(header)
        if magic != MAGIC or file.size != HEADER.size + rows * RECORD.itemsize:
            raise SourceError(f"expected {MAGIC!r} and {rows} records, found {magic!r} and {file.size} bytes")
        counts = [min(self.split_rows, rows - start) for start in range(0, rows, self.split_rows)]
        splits = tuple(Split(index, n, n * RECORD.itemsize) for index, n in enumerate(counts))
        return Footer(file, SCHEMA, splits, rows)

    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        start = HEADER.size + split.index * self.split_rows * RECORD.itemsize
        return [Range(start, start + split.num_rows * RECORD.itemsize)]

    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        (data,) = store.fetch(footer.file, self.ranges(footer, split, schema.names))
        records = np.frombuffer(data, RECORD)[offset_rows:]
        yield from conform(
            pa.record_batch([pa.array(records[name]) for name in SCHEMA.names], SCHEMA), schema
        )


def write_records(table: pa.Table, path: Path) -> None:
    records = np.empty(table.num_rows, RECORD)
    for name in SCHEMA.names:
        records[name] = table[name].to_numpy()
    path.write_bytes(HEADER.pack(MAGIC, len(records)) + records.tobytes())

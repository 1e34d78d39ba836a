"""Small good files of each format, in the encodings, compressions and types that its readers treat differently."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.formats.tfrecords import encoded, framed
from tests.ops.tables import ALL_TYPES, NUMBERS

ROWS: Final = 60
FLAT: Final = pa.table(
    {
        "row": pa.array(range(ROWS), pa.int64()),
        "x": pa.array([None if i % 5 == 0 else i / 4 for i in range(ROWS)], pa.float64()),
        "n": pa.array([i * 3 - 20 for i in range(ROWS)], pa.int32()),
        "b": pa.array([i % 3 == 0 for i in range(ROWS)], pa.bool_()),
    }
)
TEXTS: Final = pa.table({"row": FLAT["row"], "s": [f"text {i % 7}" * (i % 4) for i in range(ROWS)]})
NESTED: Final = ALL_TYPES.drop_columns(["view", "null", "duration", "vector"]).append_column(
    "vector", pa.array([[i, i + 0.5] for i in range(len(ALL_TYPES))], pa.list_(pa.float32(), 2))
)


def _parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=25, **options)
    return sink.getvalue()


def _ipc(table: pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        for batch in table.to_batches(max_chunksize=25):
            writer.write_batch(batch)
    return sink.getvalue()


CSV: Final = "row,x,s\n" + "".join(
    f'{i},{"" if i % 5 == 0 else i / 4},"a ""quoted"", {i}\n line"\n' if i % 3 else f"{i},{i}.5,plain {i}\n"
    for i in range(ROWS)
)
OBJECTS: Final = [
    {"row": i, "x": None if i % 5 == 0 else i / 4, "s": 'a "quoted" \\ text' * (i % 2), "l": [i] * (i % 3)}
    for i in range(ROWS)
]
LINES: Final = "".join(json.dumps(each) + "\n" for each in OBJECTS)
RECORDS: Final = framed(
    encoded({"row": [i], "x": [i / 2], "t": [b"bytes %d" % i], "l": [i] * (i % 3)}) for i in range(20)
)


@cache
def good_files() -> Mapping[str, Mapping[str, bytes]]:
    """Returns the good files by format, then by name."""
    return {
        "parquet": {
            "flat.parquet": _parquet(FLAT, compression="none", use_dictionary=False),
            "zstd.parquet": _parquet(FLAT, compression="zstd"),
            "snappy.parquet": _parquet(TEXTS, compression="snappy"),
            "gzip.parquet": _parquet(TEXTS, compression="gzip", use_dictionary=False),
            "nested.parquet": _parquet(NESTED, compression="none"),
            "pages2.parquet": _parquet(
                NESTED, data_page_version="2.0", data_page_size=64, write_batch_size=4
            ),
            "checksums.parquet": _parquet(TEXTS, write_page_checksum=True),
            "delta.parquet": _parquet(
                TEXTS.append_column("x", FLAT["x"]),
                use_dictionary=False,
                column_encoding={
                    "row": "DELTA_BINARY_PACKED",
                    "s": "DELTA_BYTE_ARRAY",
                    "x": "BYTE_STREAM_SPLIT",
                },
            ),
        },
        "ipc": {
            "flat.arrow": _ipc(FLAT),
            "lz4.arrow": _ipc(NESTED, "lz4"),
            "zstd.arrow": _ipc(TEXTS, "zstd"),
            "nested.arrow": _ipc(ALL_TYPES),
            "numbers.arrow": _ipc(NUMBERS),
        },
        "csv": {
            "a.csv": CSV.encode(),
            "a.csv.gz": gzip.compress(CSV.encode(), mtime=0),
            "a.csv.bz2": bz2.compress(CSV.encode()),
            "a.csv.zst": pa.compress(CSV.encode(), codec="zstd", asbytes=True),
        },
        "json": {
            "lines.json": LINES.encode(),
            "array.json": json.dumps(OBJECTS, indent=1).encode(),
            "lines.json.gz": gzip.compress(LINES.encode(), mtime=0),
        },
        "tfrecord": {
            "a.tfrecord": RECORDS,
            "a.tfrecord.gz": gzip.compress(RECORDS, mtime=0),
            "a.tfrecord.zlib": zlib.compress(RECORDS),
        },
    }

"""The second Parquet decoder: Polars, for row groups of flat numbers, which it decodes faster.

Measured on 2 cores with 2 workers: 4 M rows of 40 int32 and nullable float32, zstd, row groups of 250,000 rows decode
at 16 M rows/s here and at 9 M rows/s in Arrow C++. Polars decodes in its own pool. A pool within the CPU budget takes any
row groups. A larger one takes those that Polars decodes by one of its threads, so that each call takes one core. Its values
equal Arrow's values, or Arrow decodes instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

from arrowflow.formats.parquet.arrow_decoder import at_splits
from arrowflow.formats.protocol import Footer, Split
from arrowflow.storage import Store
from arrowflow.types import FIXED

_MIN_VALUES: Final = 2_000_000
"""Values (rows times columns) below which a row group does not repay the set-up of a query. With 2.5 M and 4.5 M
values Polars delivers 1.5 times the rows a second of Arrow, with 0.65 M values 0.9 times."""

ONE_THREAD_VALUES: Final = 1 << 24
"""Values of a row group that Polars decodes by one thread. Polars 1.35 and 2.1 give each thread at least so many. Up to this
size a call takes 1.01 to 1.06 cores. From 24 M values on it takes 1.4."""

_LARGER_POOL_FACTOR: Final = 2
"""How many times as many values repay a query where the pool is over the budget. It wakes threads that have nothing to do, and
their heaps have fresh pages. Of 5 M compressed values Arrow takes 1.0 to 1.2 times the CPU of Polars with 64 threads, and of
values that are not compressed 0.6 to 0.9 times."""

_FOOTER_SHARE: Final = 64
"""Polars parses the footer once per row group. The footer may be at most this part of the decoded bytes."""

_MIN_FILES: Final = 4
"""So many files, however small, repay a query. A file of 1,000 rows and 2 columns takes 0.1 ms. In Arrow it takes 0.15, most
of that under the interpreter lock."""

_SLOWER: Final = frozenset(("BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED"))
"""Encodings that Arrow decodes faster: 2.4 and 1.2 times as fast, where it takes 1.3 to 2 times as long for others and 20
times for booleans (`benchmarks.decoders`). To measure both in the first runs of a file was tried: memory that is
touched for the first time makes these 2 to 10 times slower, so half of the choices were wrong, and cost 0.1 s."""

_SLOWER_PART, _LOOKED_AT = 4, 32
"""Arrow decodes where one column in four has these encodings, of the first 32 columns."""

_HEADER_BYTES: Final = 32
_FIRST_PAGE: Final = 4
"""Where writers begin: after `PAR1`. Anything else there counts as a page with a checksum."""
_I32_FIELD: Final = 0x15
"""The Thrift compact header of an i32 field that follows the field before it."""

Run = Sequence[tuple[Footer, Split]]
"""Splits that follow each other, in a file or across files."""


def suits(store: Store, run: Run, names: Sequence[str], num_threads: int) -> bool:
    """Returns whether `decode` is worth a try and stays within `num_threads`, by a look at the footers alone."""
    files, (first, split) = _files(run), run[0]
    return (
        store.is_local
        and store.memory_map  # Polars maps files
        and is_allowed(num_threads)
        and (pl.thread_pool_size() <= num_threads or _suits_one_thread(run, names))
        and (len(files) >= _MIN_FILES or _repays(run, len(names)))
        and all(_is_flat(name, first.schema.field(name).type) for name in names)
        and not any(footer.details.is_signed for footer in files)
        and all(footer.schema.equals(first.schema) for footer in files[1:])
        and not _is_slower(first, split, names[:_LOOKED_AT])
    )


def _files(run: Run) -> list[Footer]:
    return list({id(footer): footer for footer, _ in run}.values())


def _repays(run: Run, num_columns: int) -> bool:
    """Whether splits are large enough for a query."""
    footer_bytes = sum(footer.details.metadata.serialized_size for footer in _files(run))
    return (
        sum(split.num_rows for _, split in run) * num_columns >= _MIN_VALUES
        and sum(split.num_bytes for _, split in run) >= footer_bytes * _FOOTER_SHARE
    )


def is_allowed(num_threads: int) -> bool:
    """Whether Polars may decode for a CPU budget; its pool's size is fixed when Polars is imported."""
    return pl.thread_pool_size() >= min(2, num_threads)  # one thread alone decodes for one core alone


def _suits_one_thread(run: Run, names: Sequence[str]) -> bool:
    """Whether one thread of a pool decodes a call, and is worth waking the others."""
    footer, split = run[0]
    values = split.num_rows * len(names)
    if len(run) > 1 or not _LARGER_POOL_FACTOR * _MIN_VALUES <= values <= ONE_THREAD_VALUES:
        return False
    chunk = footer.details.row_group(split.index).column(footer.details.columns.leaves[names[0]][0])
    return bool(chunk.compression != "UNCOMPRESSED")


def decode(store: Store, run: Run, names: Sequence[str]) -> list[list[pa.RecordBatch]] | None:
    """Returns these columns of row groups that follow each other, a batch for each; None if Arrow has to decode them.

    Arrow also decodes after a failure of Polars, so a broken file always ends in Arrow's error.
    """
    splits = [split for _, split in run]
    try:
        if any(_has_checksums(store, footer) for footer in _files(run)):
            return None
        found = at_splits(_collect(run, names).to_arrow(compat_level=pl.CompatLevel.oldest()), splits)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException, OSError):
        return None
    wanted = [run[0][0].schema.field(name).type for name in names]
    for split, batches in zip(splits, found, strict=True):
        if [batch.num_rows for batch in batches] != [split.num_rows] or batches[0].schema.types != wanted:
            return None
    return found


def _collect(run: Run, names: Sequence[str]) -> pl.DataFrame:
    footer, first = run[0]
    before = sum(other.num_rows for other in footer.splits[: first.index])
    num_rows = sum(split.num_rows for _, split in run)
    paths = [footer.file.path for footer in _files(run)]
    scan = pl.scan_parquet(paths, glob=False, hive_partitioning=False, use_statistics=False)
    return scan.select(names).slice(before, num_rows).collect()


def _is_slower(footer: Footer, split: Split, names: Sequence[str]) -> bool:
    details = footer.details
    group = details.row_group(split.index)
    encodings = (group.column(details.columns.leaves[name][0]).encodings for name in names)
    return sum(not _SLOWER.isdisjoint(each) for each in encodings) * _SLOWER_PART >= len(names)


def _is_flat(name: str, type: pa.DataType) -> bool:
    is_flat = type.id in FIXED and type not in (pa.float16(), pa.date64())
    return (is_flat or pa.types.is_decimal128(type)) and not name.startswith("^")  # a regex for Polars


def _has_checksums(store: Store, footer: Footer) -> bool:
    """Returns whether the first page of a file has a checksum, which Polars would not verify."""
    header: bytes = footer.details.first_page
    if not header:
        end = min(_FIRST_PAGE + _HEADER_BYTES, footer.file.size)
        header = store.fetch(footer.file, [(_FIRST_PAGE, end)])[0].to_pybytes()
    return has_checksum(header)


def first_page(data: pa.Buffer) -> bytes:
    """Returns the first bytes of the first page of a file whose bytes are all there."""
    found: bytes = data.slice(_FIRST_PAGE, _HEADER_BYTES).to_pybytes()
    return found


def chunk_range(column: Any) -> tuple[int, int]:
    """Returns the bytes of the file that hold a column chunk."""
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size


def has_checksum(header: bytes) -> bool:
    """Returns whether a `PageHeader` has its fourth field, `crc`; True if that is unknown.

    The three fields before `crc` are always present: type, uncompressed and compressed size (parquet.thrift).

    Examples:
        >>> has_checksum(bytes([0x15, 0, 0x15, 0x80, 1, 0x15, 0x80, 1, 0x15, 7, 0x1C]))
        True
        >>> has_checksum(bytes([0x15, 0, 0x15, 0x80, 1, 0x15, 0x80, 1, 0x2C, 0x15]))
        False
    """
    position = 0
    for _ in range(3):
        if header[position : position + 1] != bytes([_I32_FIELD]):
            return True
        position += 1
        while position < len(header) and header[position] & 0x80:
            position += 1
        position += 1
    return position >= len(header) or header[position] == _I32_FIELD

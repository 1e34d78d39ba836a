"""The first Parquet decoder: Arrow C++, for all types, on the calling thread."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from arrowflow.errors import SourceError
from arrowflow.expr import empty_batch
from arrowflow.formats.protocol import Split
from arrowflow.lazy import parquet as pq
from arrowflow.storage import File, Store

_PART_ROWS: Final = 4096

_LACKS_NULLS: Final = int(pa.__version__.split(".")[0]) < 26
_NO_NULLS: Final = (
    f"pyarrow {pa.__version__} reads no fixed-size lists with nulls from Parquet, which 26 and Polars do: upgrade pyarrow, or "
    "read the file by from_arrow(polars.scan_parquet(path))"
)


class ParquetFile(pq.ParquetFile):
    """A file whose columns are read by number. To list their names by prefix would take 9 µs a column, at each split."""

    def _build_nested_paths(self) -> dict[str, list[int]]:
        return {}


_LZO: Final = "its columns are compressed by LZO, which pyarrow cannot decompress: write the file with another codec, such as zstd"


def decode(
    store: Store, file: File, metadata: pq.FileMetaData, splits: Sequence[Split], leaves: list[int]
) -> list[list[pa.RecordBatch]]:
    """Returns the batches of each of some row groups that follow each other; at least one of each.

    Raises:
        SourceError: The columns have other lengths than the footer says.
    """
    with store.open(file) as source:
        opened = ParquetFile(source, metadata=metadata, pre_buffer=False, page_checksum_verification=True)
        try:
            table = _read(opened.reader, [split.index for split in splits], leaves)
        except OSError as error:
            if "LZO" in str(error):
                raise SourceError(_LZO) from error
            raise
    _check_lengths(table, splits)
    return [batches or [empty_batch(table.schema)] for batches in at_splits(table, splits)]


def at_splits(table: pa.Table, splits: Sequence[Split]) -> list[list[pa.RecordBatch]]:
    """Returns the batches of each split; views where the table's chunks do not cross the borders of splits."""
    firsts = accumulate((split.num_rows for split in splits), initial=0)
    parts = (table.slice(first, split.num_rows) for first, split in zip(firsts, splits, strict=False))
    return [part.combine_chunks().to_batches() for part in parts]


def _read(reader: Any, groups: list[int], indices: list[int]) -> pa.Table:
    try:
        return reader.read_row_groups(groups, column_indices=indices, use_threads=False)
    except pa.ArrowInvalid as error:
        if _LACKS_NULLS and "Expected all lists to be of size" in str(error):
            raise SourceError(_NO_NULLS) from error
        raise
    except pa.ArrowNotImplementedError:
        # Lists of texts over 2 GiB do not fit one array, but smaller batches do.
        parts = reader.iter_batches(_PART_ROWS, row_groups=groups, column_indices=indices, use_threads=False)
        return pa.Table.from_batches(parts)


def _check_lengths(table: pa.Table, splits: Sequence[Split]) -> None:
    expected = sum(split.num_rows for split in splits)
    with suppress(pa.ArrowInvalid):
        table.validate()  # all columns must have one length
        if table.num_rows == expected:
            return
    for name, column in zip(table.column_names, table.columns, strict=True):
        if len(column) != expected:
            raise SourceError(
                f"column {name!r} has {len(column)} rows where the footer says {expected}; the file is "
                "corrupt: write it anew, or leave it out"
            )

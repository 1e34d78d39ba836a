"""The row groups of a footer, checked before their columns are asked for.

pyarrow lets C++ check the metadata of a column chunk when it is asked for the chunk. Where these are corrupt, or
encrypted, that ends the process. A reader of rows goes through the same checks, and its errors are exceptions. So one
reader is opened on zeros that are as long as the file. It checks all chunks, and fails at the first page at the latest.
Measured: 100 µs a footer, and 0.5 µs a chunk.
"""

from __future__ import annotations

import mmap
from typing import Any, Final

import pyarrow as pa

from arrowflow.errors import SourceError
from arrowflow.formats.parquet.arrow_decoder import ParquetFile
from arrowflow.lazy import parquet as pq
from arrowflow.storage import File

_NO_PAGE: Final = "page header"
"""The reader's message about zeros: the metadata are fine."""


class RowGroups:
    """The row groups of one footer, by number.

    Args:
        metadata: The footer.
        file: Its file.
    """

    __slots__ = ("_file", "_is_checked", "_metadata")

    def __init__(self, metadata: pq.FileMetaData, file: File) -> None:
        self._metadata = metadata
        self._file = file
        self._is_checked = False

    def __getitem__(self, index: int) -> Any:
        """Returns pyarrow's metadata of a row group.

        Raises:
            SourceError: The metadata of a column chunk are corrupt.
        """
        if not self._is_checked:
            _check(self._metadata, self._file)
            self._is_checked = True
        return self._metadata.row_group(index)


def _check(metadata: pq.FileMetaData, file: File) -> None:
    # Memory that cannot be written counts for no limit of the system, and none of it is made before it is read.
    zeros = mmap.mmap(-1, file.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    source = pa.BufferReader(pa.py_buffer(zeros))
    groups, leaves = list(range(metadata.num_row_groups)), list(range(metadata.num_columns))
    try:
        opened = ParquetFile(source, metadata=metadata, pre_buffer=True)
        # A batch of one row: for all rows the reader would first make room.
        next(opened.reader.iter_batches(1, row_groups=groups, column_indices=leaves, use_threads=False), None)
    except (OSError, pa.ArrowException) as error:
        if _NO_PAGE not in str(error):
            text = f"its footer is corrupt: {str(error).strip()[:300]}; write it anew, or leave it out"
            raise SourceError(text).locate(file=file.path) from None

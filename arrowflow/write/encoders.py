"""How one shard is encoded: a Parquet file by row groups, an Arrow IPC file by record batches."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa

from arrowflow.errors import PlanError, closest
from arrowflow.lazy import parquet as pq

PARQUET_CODECS: Final = ("brotli", "gzip", "lz4", "none", "snappy", "zstd")
IPC_CODECS: Final = ("lz4", "none", "zstd")


class Encoder(Protocol):
    """One file that is being written."""

    suffix: ClassVar[str]

    def write(self, group: pa.Table) -> None:
        """Writes rows, each column in one chunk, as one row group or record batch."""

    def close(self) -> None:
        """Completes the file; the sink stays open."""

    def abandon(self) -> None:
        """Lets go of a file that will not be completed. Raises nothing."""


class ParquetEncoder:
    """A Parquet file with statistics, by which readers prune, and checksums, which `read_parquet` compares."""

    suffix: ClassVar[str] = ".parquet"

    def __init__(self, sink: Any, schema: pa.Schema, compression: str) -> None:
        self._writer = pq.ParquetWriter(sink, schema, compression=compression, write_page_checksum=True)

    def write(self, group: pa.Table) -> None:
        """See `Encoder.write`."""
        self._writer.write_table(group, row_group_size=max(1, group.num_rows))

    def close(self) -> None:
        """See `Encoder.close`."""
        self._writer.close()

    def abandon(self) -> None:
        """See `Encoder.abandon`."""
        with suppress(Exception):
            self._writer.close()
        self._writer.is_open = False  # else its `__del__` tries again


class IpcEncoder:
    """An Arrow IPC file; uncompressed it can be mapped into memory."""

    suffix: ClassVar[str] = ".arrow"

    def __init__(self, sink: Any, schema: pa.Schema, compression: str) -> None:
        options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        self._writer = pa.ipc.new_file(sink, schema, options=options)

    def write(self, group: pa.Table) -> None:
        """See `Encoder.write`."""
        for batch in group.to_batches():
            self._writer.write_batch(batch)

    def close(self) -> None:
        """See `Encoder.close`."""
        self._writer.close()

    def abandon(self) -> None:
        """See `Encoder.abandon`."""
        with suppress(Exception):
            self._writer.close()


def check_codec(operator: str, compression: str | None, known: tuple[str, ...]) -> str:
    """Returns the name of a compression; `"none"` for None.

    Raises:
        PlanError: There is none of that name.
    """
    given: Any = "none" if compression is None else compression
    if not isinstance(given, str) or given.lower() not in known:
        raise PlanError(f"{operator}: compression is one of {', '.join(known)}, got {compression!r}")
    name = given.lower()
    if name != "none" and not pa.Codec.is_available(name):
        raise PlanError(f"{operator}: this build of pyarrow has no {name!r}; {closest(name, known)}")
    return name

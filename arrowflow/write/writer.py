"""What `write_parquet` and `write_ipc` check and decide before the pipeline runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from arrowflow.options import MAX_CHUNK_ROWS, check_size, parse_bytes
from arrowflow.records import dataclass
from arrowflow.write.encoders import IPC_CODECS, PARQUET_CODECS, IpcEncoder, ParquetEncoder, check_codec
from arrowflow.write.shards import (
    GROUP_BYTES,
    SHARD_BYTES,
    MakeEncoder,
    Sizes,
    Written,
    explained,
    write_shards,
)
from arrowflow.write.targets import Target, target_of

ROW_GROUP_ROWS: Final = 4 * MAX_CHUNK_ROWS

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One call of a writer, with its arguments found to be good.

    Attributes:
        operator: Name of the method.
        target: Where the shards go.
        encoder: What makes one file.
        suffix: Ending of the files.
        sizes: When row groups and shards end.
    """

    operator: str
    target: Target
    encoder: MakeEncoder
    suffix: str
    sizes: Sizes

    def check(self) -> None:
        """Looks at the target, so that a pipeline need not start to find it taken.

        Raises:
            WriteError: There is something that is not to be replaced.
        """
        with explained(self.operator, self.target):
            self.target.check()

    def write(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Written:
        """Writes all rows.

        Raises:
            WriteError: The target is taken, the disk full, a type has no place in the format.
        """
        return write_shards(
            batches,
            schema,
            self.target,
            self.encoder,
            self.sizes,
            suffix=self.suffix,
            operator=self.operator,
        )


def parquet_writer(
    path: Path,
    *,
    shard_bytes: int | str | None,
    shard_rows: int | None,
    row_group_rows: int | None,
    compression: str | None,
    filesystem: Any,
    overwrite: bool,
) -> Writer:
    """Returns what writes Parquet; the arguments are those of `Dataset.write_parquet`."""
    operator, suffix = "write_parquet", ParquetEncoder.suffix
    codec = check_codec(operator, compression, PARQUET_CODECS)
    sizes = _sizes(operator, shard_bytes, shard_rows, "row_group_rows", row_group_rows, ROW_GROUP_ROWS)
    return Writer(
        operator=operator,
        target=target_of(
            path, filesystem=filesystem, suffix=suffix, overwrite=bool(overwrite), operator=operator
        ),
        encoder=lambda sink, schema: ParquetEncoder(sink, schema, codec),
        suffix=suffix,
        sizes=sizes,
    )


def ipc_writer(
    path: Path,
    *,
    shard_bytes: int | str | None,
    shard_rows: int | None,
    batch_rows: int | None,
    compression: str | None,
    filesystem: Any,
    overwrite: bool,
) -> Writer:
    """Returns what writes Arrow IPC files; the arguments are those of `Dataset.write_ipc`."""
    operator, suffix = "write_ipc", IpcEncoder.suffix
    codec = check_codec(operator, compression, IPC_CODECS)
    sizes = _sizes(operator, shard_bytes, shard_rows, "batch_rows", batch_rows, MAX_CHUNK_ROWS)
    return Writer(
        operator=operator,
        target=target_of(
            path, filesystem=filesystem, suffix=suffix, overwrite=bool(overwrite), operator=operator
        ),
        encoder=lambda sink, schema: IpcEncoder(sink, schema, codec),
        suffix=suffix,
        sizes=sizes,
    )


def _sizes(
    operator: str,
    shard_bytes: int | str | None,
    shard_rows: int | None,
    name: str,
    group_rows: int | None,
    default_rows: int,
) -> Sizes:
    """Returns the sizes that a user named; what nobody named has a limit only where it needs one."""
    if shard_bytes is None and shard_rows is None:
        shard_bytes = SHARD_BYTES
    return Sizes(
        group_rows=default_rows if group_rows is None else check_size(operator, name, group_rows),
        group_bytes=GROUP_BYTES if group_rows is None else None,
        shard_rows=None if shard_rows is None else check_size(operator, "shard_rows", shard_rows),
        shard_bytes=None if shard_bytes is None else parse_bytes(f"{operator}: shard_bytes", shard_bytes),
    )

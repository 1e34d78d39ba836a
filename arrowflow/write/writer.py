"""The checks and decisions of `write_parquet`, `write_ipc` and the other methods that write before the pipeline runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.formats import FORMATS
from arrowflow.options import MAX_CHUNK_ROWS, check_flag, check_size, parse_bytes
from arrowflow.storage import place_of, shown_paths
from arrowflow.write.archives import ArchiveEncoder
from arrowflow.write.encoders import (
    IPC_CODECS,
    PARQUET_CODECS,
    CsvEncoder,
    Encoder,
    IpcEncoder,
    JsonEncoder,
    ParquetEncoder,
    check_codec,
)
from arrowflow.write.examples import ExampleEncoder
from arrowflow.write.partitions import PartitionWriter
from arrowflow.write.shards import GROUP_BYTES, SHARD_BYTES, Shards, ShardWriter, Written, explained
from arrowflow.write.targets import target_of


class Kind(NamedTuple):
    """A kind of files.

    Attributes:
        operator: Name of the method that writes them.
        encoder: The encoder of one file.
        endings: The endings of names of files of this kind.
        codecs: Names of compressions; none if the encoder does not compress.
        rows: Name of the argument for the rows of a row group or record batch.
        default_rows: The default of that argument.
    """

    operator: str
    encoder: type[Encoder]
    endings: tuple[str, ...]
    codecs: tuple[str, ...] = ()
    rows: str = "batch_rows"
    default_rows: int = MAX_CHUNK_ROWS


PARQUET: Final = Kind(
    "write_parquet",
    ParquetEncoder,
    FORMATS["parquet"].suffixes,
    PARQUET_CODECS,
    "row_group_rows",
    4 * MAX_CHUNK_ROWS,
)
IPC: Final = Kind("write_ipc", IpcEncoder, FORMATS["ipc"].suffixes, IPC_CODECS)
CSV: Final = Kind("write_csv", CsvEncoder, FORMATS["csv"].suffixes)
TFRECORD: Final = Kind("write_tfrecord", ExampleEncoder, (ExampleEncoder.suffix,))
WEBDATASET: Final = Kind("write_webdataset", ArchiveEncoder, FORMATS["webdataset"].suffixes)
JSON: Final = Kind("write_json", JsonEncoder, FORMATS["json"].suffixes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One call of a writer, with checked arguments; the columns of `partition_by` name folders."""

    operator: str
    shards: Shards
    partition_by: tuple[str, ...] = ()

    def check(self) -> None:
        """Checks the target, so that a pipeline need not start only to find it taken.

        Raises:
            WriteError: There is content that must not be replaced.
        """
        with explained(self.operator, self.shards.target):
            self.shards.target.check()

    def write(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Written:
        """Writes all rows and makes them visible; after any error, no row is visible.

        Raises:
            WriteError: The target is taken, the disk full, a type has no place in the format.
        """
        target = self.shards.target
        with explained(self.operator, target):
            writer = (
                PartitionWriter(self.shards, schema, self.partition_by)
                if self.partition_by
                else ShardWriter(self.shards, schema)
            )
            try:
                target.begin()
                writer.open()  # before the first row is asked for: finds types that the format lacks
                for batch in batches:
                    writer.push(batch)
                writer.finish()
                files = target.publish(writer.names)
            except BaseException:
                writer.abandon()
                target.discard()
                raise
        return Written(files=files, num_rows=writer.num_rows, num_bytes=writer.num_bytes)


def writer_of(
    kind: Kind,
    path: str | os.PathLike[str],
    *,
    shard_bytes: int | str | None,
    shard_rows: int | None,
    group_rows: int | None = None,
    compression: str | None = None,
    partition_by: str | Iterable[str] | None = None,
    filesystem: Any,
    storage_options: Any = None,
    overwrite: bool,
) -> Writer:
    """Returns the writer of files of a kind; the arguments are those of `Dataset.write_parquet` and the others."""
    operator, suffix = kind.operator, kind.encoder.suffix
    encoder: Callable[..., Encoder] = kind.encoder
    if kind.codecs:
        encoder = partial(encoder, compression=check_codec(operator, compression, kind.codecs))
    _check_folder(kind, path)
    if shard_bytes is None and shard_rows is None:
        shard_bytes = SHARD_BYTES
    shards = Shards(
        encoder=encoder,
        suffix=suffix,
        group_rows=kind.default_rows if group_rows is None else check_size(operator, kind.rows, group_rows),
        # A size that the user did not name has a limit only where it needs a limit.
        group_bytes=GROUP_BYTES if group_rows is None else None,
        shard_rows=None if shard_rows is None else check_size(operator, "shard_rows", shard_rows),
        shard_bytes=None if shard_bytes is None else parse_bytes(f"{operator}: shard_bytes", shard_bytes),
        target=target_of(
            path,
            filesystem=place_of(operator, filesystem, storage_options),
            suffix=suffix,
            overwrite=check_flag(operator, "overwrite", overwrite),
            operator=operator,
        ),
    )
    return Writer(operator=operator, shards=shards, partition_by=_partition_columns(operator, partition_by))


def _partition_columns(operator: str, given: Any) -> tuple[str, ...]:
    """Returns the argument as names, or raises `PlanError`."""
    if given is None:
        return ()
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise PlanError(
            f"{operator}: partition_by is the name of a column, or different names, got {shown(given)}"
        )
    return names


def _check_folder(kind: Kind, path: object) -> None:
    """Raises `PlanError` for the name of a file: a folder of that name would look like a file to others."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(name, str) and name.lower().endswith(kind.endings):
        stem, more = name[: name.rindex(".")], ""
        if stem.lower().endswith(kind.endings):  # as out.csv.gz
            stem = stem[: stem.rindex(".")]
        elif kind in (PARQUET, IPC, CSV, JSON):
            call = f"{'write_ndjson' if kind is JSON else kind.operator}({shown_paths(name)})"
            more = f"; for one file write pl.DataFrame(ds).{call}, with all rows in memory"
        raise PlanError(
            f"{kind.operator}: it writes a folder of files, and {shown_paths(name)} is the name of a file: name a folder, "
            f"as in {kind.operator}({shown_paths(stem)}), or end the name with '/' if the folder shall have it{more}"
        )

"""Datasets of tables of lakes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from typing import Any

from arrowflow.bad_rows import BadRowPolicy
from arrowflow.dataset import Dataset
from arrowflow.errors import PlanError, shown
from arrowflow.formats import find
from arrowflow.options import AUTOTUNE, check_size, parallel_calls


def read_delta(
    table: str | PathLike[str],
    *,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    filesystem: Any = None,
    num_parallel_calls: int = AUTOTUNE,
) -> Dataset:
    """Reads one version of a Delta Lake table, row group by row group, in the order of the paths of its files.

    The package `deltalake` (extra `delta`) reads the log. Columns are those of the table; of a file that is older than a
    column the values are null. Filters and columns are pushed down as of `read_parquet`. Files are not opened where a filter
    rules them out by their partition, or by the statistics that the log has of integers, dates and times. The version is fixed when the dataset is bound. A state holds it, and goes on with the
    same version alone: give `version=` where the table grows meanwhile.

    Args:
        table: The folder of the table, or its URL.
        version: The version to read; by default the latest.
        storage_options: Arguments of the client by which `deltalake` reads the log.
        filesystem: A file system of `pyarrow.fs` or fsspec for the files. By default the paths tell it.
        num_parallel_calls: Calls that decode at the same time.

    Raises:
        SourceError: There is no such table or version, or a file is missing; when the dataset is bound or read.
        PlanError: The table needs more than reading its files, such as deletion vectors or mapped columns; says what.
        MissingPackageError: `deltalake` is not installed.

    Examples:
        >>> import arrowflow as af, deltalake, pyarrow as pa, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> deltalake.write_deltalake(folder, pa.table({"x": [1, 2, 3]}))
        >>> _ = deltalake.DeltaTable(folder).delete("x = 2")
        >>> af.read_delta(folder).to_table().to_pydict()
        {'x': [1, 3]}
        >>> af.read_delta(folder, version=0).num_rows
        3
    """
    from arrowflow.ops.sources.read_delta import ReadDelta

    return Dataset(
        ReadDelta(
            format=find("parquet"),
            paths=(),
            filesystem=filesystem,
            table=_as_table("read_delta", table),
            version=None if version is None else check_size("read_delta", "version", version, least=0),
            client=_client("read_delta", "storage_options", storage_options),
            num_parallel_calls=parallel_calls("read_delta", num_parallel_calls),
            policy=BadRowPolicy("raise"),
        )
    )


def read_iceberg(
    table: Any,
    *,
    snapshot: int | None = None,
    properties: Mapping[str, str] | None = None,
    filesystem: Any = None,
    num_parallel_calls: int = AUTOTUNE,
) -> Dataset:
    """Reads one snapshot of an Apache Iceberg table, row group by row group, in the order of the paths of its files.

    The package `pyiceberg` (extra `iceberg`) reads the metadata. Columns are those of the snapshot; of a file that is older
    than a column the values are null. Filters and columns are pushed down as of `read_parquet`. Files are not opened
    where a partition by a column itself, or the bounds in the manifests, rule them out: bounds of integers, dates, booleans and
    times. The snapshot is fixed when the dataset is bound. A state holds it, and goes on with the same snapshot alone: give
    `snapshot=` where the table grows meanwhile.

    Args:
        table: A table that `pyiceberg` loaded, the path of a `metadata.json`, or a folder with `metadata/version-hint.text`.
        snapshot: The number of the snapshot to read; by default the current one.
        properties: Arguments of the client by which `pyiceberg` reads the metadata; by default those of a table it loaded.
        filesystem: A file system of `pyarrow.fs` or fsspec for the files. By default the paths tell it.
        num_parallel_calls: Calls that decode at the same time.

    Raises:
        SourceError: There is no such table or snapshot, or a file is missing; when the dataset is bound or read.
        PlanError: The table needs more than reading its files, such as delete files or renamed columns; says what.
        MissingPackageError: `pyiceberg` is not installed.

    Examples:
        >>> import arrowflow as af
        >>> af.read_iceberg("/lake/rows/metadata/00001.metadata.json", snapshot=3)
        Dataset
          read_iceberg('/lake/rows/metadata/00001.metadata.json'; snapshot 3)
    """
    from arrowflow.ops.sources.read_iceberg import ReadIceberg

    if hasattr(table, "metadata_location") and hasattr(table, "io"):
        location, own = table.metadata_location, dict(table.io.properties)
    else:
        path = _path("read_iceberg", table)
        location, own = path if ":" in path else os.path.abspath(path), {}  # links stay
    client = _client("read_iceberg", "properties", properties)
    return Dataset(
        ReadIceberg(
            format=find("parquet"),
            paths=(),
            filesystem=filesystem,
            table=location,
            version=None if snapshot is None else check_size("read_iceberg", "snapshot", snapshot, least=0),
            client=own if client is None else client,
            num_parallel_calls=parallel_calls("read_iceberg", num_parallel_calls),
            policy=BadRowPolicy("raise"),
        )
    )


def read_lance(
    table: str | PathLike[str],
    *,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    num_parallel_calls: int = AUTOTUNE,
) -> Dataset:
    """Reads one version of a Lance dataset, 16 MiB of rows by 16 MiB of rows, in the order of a scan.

    The package `lance` (`pylance`, extra `lance`) reads the files. Rows that were deleted do not come. Columns that nothing later
    needs are not read; filters run on the rows that were read. `skip`, lanes and resume seek to any row. `shuffle()` without a
    size takes rows by their numbers, in 20 µs a row. Blobs come as bytes. The version is fixed when the dataset is bound. A state
    holds it, and goes on with the same version alone: give `version=` where the dataset grows meanwhile.

    `lance` has threads of its own, one a core; the environment variable `LANCE_CPU_THREADS` sets another number. It warns of
    forks: give a `DataLoader` with workers `multiprocessing_context="forkserver"`.

    Args:
        table: The folder of the dataset, or its URL.
        version: The version to read; by default the latest.
        storage_options: Arguments of the client by which `lance` reads.
        num_parallel_calls: Calls that read at the same time.

    Raises:
        SourceError: There is no such dataset or version, or a file is missing; when the dataset is bound or read.
        MissingPackageError: `lance` is not installed.

    Examples:
        >>> import arrowflow as af, lance, pyarrow as pa, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> written = lance.write_dataset(pa.table({"x": [1, 2, 3]}), folder, mode="overwrite")
        >>> _ = written.delete("x = 2")
        >>> af.read_lance(folder).to_table().to_pydict()
        {'x': [1, 3]}
        >>> af.read_lance(folder, version=1).num_rows
        3
    """
    from arrowflow.ops.sources.read_lance import ReadLance

    return Dataset(
        ReadLance(
            table=_as_table("read_lance", table),
            version=None if version is None else check_size("read_lance", "version", version),
            client=_client("read_lance", "storage_options", storage_options),
            num_parallel_calls=parallel_calls("read_lance", num_parallel_calls),
        )
    )


def _path(operator: str, table: object) -> str:
    path = os.fspath(table) if isinstance(table, str | PathLike) else None
    if not isinstance(path, str) or not path:
        raise PlanError(f"{operator}: expected the path or the URL of a table, got {shown(table)}")
    return path


def _as_table(operator: str, table: object) -> str:
    """Returns the folder or the URL of a table as a text; a local one as an absolute path."""
    path = _path(operator, table)
    return path if "://" in path else os.path.abspath(path)  # links stay


def _client(operator: str, argument: str, given: Any) -> dict[str, str] | None:
    """Returns the arguments of a client."""
    if given is not None and not isinstance(given, Mapping):
        raise PlanError(f"{operator}: {argument} is a mapping from names to values, got {shown(given)}")
    return None if given is None else dict(given)

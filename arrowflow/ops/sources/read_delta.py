"""`read_delta`: the rows of one version of a Delta Lake table, by the reader of Parquet.

The package `deltalake` reads the log: it tells which files are current, their schema, and the values of partitions. The rows come
by `Read`, so order, pruning, budgets, ranks and resume are those of `read_parquet`. Four decisions matter.

* **The version is fixed when the dataset is bound**, and a state holds it. A state of another version is refused.
* **Files are in the order of their paths**, whatever the log's order is.
* **The log's statistics rule files out before they are opened**, where all writers have the bounds in full: of integers, dates and
  booleans, and of times, which the log has in milliseconds. Decimals are parsed from floats; floats may be NaN; texts are cut.
* **A table that asks for more than this is refused by name**: deletion vectors that delete rows, mapped columns, and features that
  came later. Rows that were deleted never come back.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import polars as pl
import pyarrow as pa

from arrowflow.errors import ArrowflowError, PlanError, SourceError
from arrowflow.formats.types import decoded_schema
from arrowflow.lazy import compute as pc
from arrowflow.ops.sources.files.file_scan import FileStatistics, has_exact_bounds
from arrowflow.ops.sources.files.partitions import Partitions, as_stored
from arrowflow.ops.sources.files.read import TableRead
from arrowflow.ops.sources.from_memory import from_batches
from arrowflow.optional import optional
from arrowflow.plan.node import BindContext, Node
from arrowflow.storage.settings import Settings, without_secrets

_FEATURES: Final = frozenset(("deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"))
"""Features that a reader of the current files need not know, or that are looked at."""

_CUT_MICROSECONDS: Final = 1_000
"""Moments in the log are cut to milliseconds, in the unit of all moments of tables: microseconds."""

_STACK: Final = re.compile(r"\n\s+0: .*", re.DOTALL)
"""The stack trace of `deltalake`, which ends its messages."""

_BY_HAND: Final = "read it by another engine, such as `af.from_arrow(duckdb.sql(\"FROM delta_scan('…')\"))`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDelta(TableRead):
    """The rows of a version of a Delta table. See `TableRead`."""

    name: ClassVar[str] = "read_delta"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Reads the log, and then what `Read` does for the files of the version."""
        found, is_partitioned, actions = self._log()
        schema = decoded_schema(pa.schema(found.schema().to_arrow()).remove_metadata())
        paths = [_path(found.table_uri, path) for path in actions.column("path").to_pylist()]
        if not paths:
            return from_batches([], schema).bind((), context)
        order = sorted(range(len(paths)), key=paths.__getitem__)
        actions = actions.take(pl.Series(order, dtype=pl.Int64).to_arrow())
        statistics = _statistics(actions, schema)
        paths = [paths[number] for number in order]
        bound = self.of_files(context, found.version(), paths, schema)
        assert len(bound.files) == len(paths)
        partitions = _partitions(actions, schema) if is_partitioned else None
        return dataclasses.replace(bound, partitions=partitions, statistics=statistics).on()

    def _log(self) -> tuple[Any, bool, pa.Table]:
        """Returns the version, whether it has partitions, and its files, after a check that these give its rows."""
        table = self.table
        delta = optional("deltalake", user=self.name, extra="delta")
        client = dict(self.client or {}) or None
        try:
            found = delta.DeltaTable(table, version=self.version, storage_options=client)
            protocol, metadata = found.protocol(), found.metadata()
            actions = _table(found.get_add_actions(flatten=False))
        except Exception as error:
            text = _STACK.sub("", without_secrets(str(error), Settings(client or {})))
            known = [] if self.version is None else _versions(delta, table, client)
            raise _refusal(table, self.version, known, text).locate(operator=self.name, file=table) from error
        _check(table, found, protocol, metadata)
        return found, bool(metadata.partition_columns), actions


def _partitions(actions: pa.Table, schema: pa.Schema) -> Partitions | None:
    """Returns the columns that only the log has."""
    values = _fields(actions, "partition")
    if not values:
        return None
    fields = [schema.field(name) for name in values]
    arrays = [values[field.name].cast(field.type) for field in fields]
    return Partitions.of(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))


def _statistics(actions: pa.Table, schema: pa.Schema) -> FileStatistics | None:
    """Returns the statistics of files; None if the log has none."""
    if "num_records" not in actions.column_names:
        return None
    rows = actions.column("num_records").combine_chunks()
    least, greatest, nulls = (_fields(actions, name) for name in ("min", "max", "null_count"))
    columns = {
        field.name: (
            _bounds(least.get(field.name), field.type, -_CUT_MICROSECONDS, len(rows)),
            _bounds(greatest.get(field.name), field.type, _CUT_MICROSECONDS, len(rows)),
            nulls.get(field.name, pa.nulls(len(rows))),
        )
        for field in schema
        if not pa.types.is_nested(field.type)
    }
    return FileStatistics(rows, columns)


def _fields(actions: pa.Table, name: str) -> dict[str, pa.Array]:
    """Returns the fields of a column of structs, by name; null where a struct is."""
    if name not in actions.column_names:
        return {}
    structs = actions.column(name).combine_chunks()
    return {field.name: values for field, values in zip(structs.type, structs.flatten(), strict=True)}


def _bounds(values: pa.Array | None, type: pa.DataType, cut: int, count: int) -> pa.Array:
    """Returns the bounds of a column as statistics compare them, moments moved by `cut`; null where the log may have cut them."""
    if values is None or not has_exact_bounds(type):
        return pa.nulls(count)
    stored = as_stored(values.cast(type))
    return pc.add(stored, cut) if pa.types.is_timestamp(type) else stored


def _path(root: str, path: str) -> str:
    """Returns the path of a file of a table, which the log escapes; a table that was cloned names files of another one."""
    path = unquote(path)
    if "://" in path or path.startswith("/"):
        return path
    return posixpath.join(unquote(root.removeprefix("file://")) if root.startswith("file://") else root, path)


def _versions(delta: Any, table: str, client: dict[str, str] | None) -> list[int]:
    """Returns the versions that the log tells of, from the first on; none if it cannot be read."""
    try:
        return sorted(each["version"] for each in delta.DeltaTable(table, storage_options=client).history())
    except Exception:  # noqa: BLE001  # the error before it tells more
        return []


def _refusal(table: str, version: int | None, known: Sequence[int], text: str) -> ArrowflowError:
    """Returns the error for a log that `deltalake` does not read, out of its words and of the versions that there are."""
    if known and version not in known:
        return SourceError(f"there is no version {version}; there are {known[0]} to {known[-1]}")
    if "Unsupported: " in text:
        return PlanError(
            f"`deltalake` does not know what the table needs: {text}; install a newer `deltalake` if there is one, or read the "
            "table by the engine that wrote it, and give its rows to `af.from_arrow`"
        )
    if unquote(table) != table and Path(table).is_dir():
        text += "; `deltalake` cannot open folders with percent codes such as %20 in their names, so rename the folder"
    return SourceError(f"the log of the table cannot be read: {text}")


def _check(table: str, found: Any, protocol: Any, metadata: Any) -> None:
    """Raises `PlanError` if the files alone do not give the rows of the table."""
    features = set(protocol.reader_features or ())
    mapping = metadata.configuration.get("delta.columnMapping.mode", "none")
    unknown = sorted(features - _FEATURES)
    text = ""
    if mapping != "none" or "columnMapping" in features:
        text = f"its columns have other names in its files (delta.columnMapping.mode={mapping!r})"
    elif unknown:
        text = f"it needs the features {', '.join(unknown)}, which are not known here"
    elif "deletionVectors" in features and _has_deletions(found):
        text = "rows of its files are deleted by deletion vectors"
    if text:
        raise PlanError(
            f"{text}; {_BY_HAND}, or rewrite it: `OPTIMIZE` of Spark, `REORG TABLE … APPLY (PURGE)`"
        ).locate(operator=ReadDelta.name, file=table)


def _table(rows: Any) -> pa.Table:
    """Returns a stream of Arrow as a table; `pa.table` would import pandas."""
    return pa.RecordBatchReader.from_stream(rows).read_all()


def _has_deletions(found: Any) -> bool:
    try:
        return _table(found.deletion_vectors()).num_rows > 0
    except Exception:  # noqa: BLE001  # it names a vector that cannot be read
        return True

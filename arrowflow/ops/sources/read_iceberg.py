"""`read_iceberg`: the rows of one snapshot of an Apache Iceberg table, by the reader of Parquet.

The package `pyiceberg` reads the metadata: it tells which files are current, their schema, and the values of partitions. The rows
come by `Read`, so order, pruning, budgets, ranks and resume are those of `read_parquet`. Six decisions matter.

* **The snapshot is fixed when the dataset is bound**, and a state holds it. A state of another snapshot is refused.
* **Files are in the order of their paths**, whatever the order of the manifests is.
* **Columns are found by name.** Iceberg finds them by number, so a table whose names once stood for other numbers is refused.
  Columns that were added or dropped are fine.
* **The manifests' bounds rule files out before they are opened**: of integers, dates, booleans and times, and numbers of nulls.
* **Files tell the values of doubles.** Some writers round them to 32 bits in the partition of a file.
* **A table that asks for more than this is refused by name**: delete files, defaults, files of ORC and Avro.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa

from arrowflow.errors import ArrowflowError, PlanError, SourceError
from arrowflow.formats.types import decoded_schema
from arrowflow.ops.sources.files.file_scan import FileStatistics, has_exact_bounds
from arrowflow.ops.sources.files.partitions import Partitions
from arrowflow.ops.sources.files.read import TableRead
from arrowflow.ops.sources.from_memory import from_batches
from arrowflow.optional import optional
from arrowflow.plan.node import BindContext, Node
from arrowflow.storage.settings import Settings, without_secrets

_BY_HAND: Final = (
    "read it by `af.from_arrow(table.scan())`, or rewrite its files: `rewrite_data_files` of Spark"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIceberg(TableRead):
    """The rows of a snapshot of an Iceberg table, of metadata that never change. See `TableRead`."""

    name: ClassVar[str] = "read_iceberg"
    version_name: ClassVar[str] = "snapshot"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Reads the metadata, and then what `Read` does for the files of the snapshot."""
        found = _Snapshot.of(self.table, self.version, self.client or {})
        if not found.files:
            return from_batches([], found.schema).bind((), context)
        paths = [_path(file.file_path) for file in found.files]
        bound = self.of_files(context, found.number, paths, found.schema)
        partitions, statistics = found.partitions(), found.statistics()
        return dataclasses.replace(bound, partitions=partitions, statistics=statistics).on()


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The facts of one snapshot, out of the metadata.

    Attributes:
        number: Its number; None for a table without a snapshot.
        schema: The columns.
        names: The name of each column by its number in the table.
        files: The data files, as `pyiceberg` describes them, in the order of their paths.
        specs: How each file's rows are partitioned, by the number in the file.
        io: The client that opens files.
    """

    number: int | None
    schema: pa.Schema
    names: Mapping[int, str]
    files: Sequence[Any]
    specs: Mapping[int, Any]
    io: Any

    @classmethod
    def of(cls, table: str, snapshot: int | None, properties: Mapping[str, str]) -> _Snapshot:
        """Reads the metadata and the manifests.

        Raises:
            SourceError: There is no such table, or no such snapshot.
            PlanError: The table needs more than reading its current files.
        """
        tables = optional("pyiceberg.table", user=ReadIceberg.name, extra="iceberg")
        arrow = optional("pyiceberg.io.pyarrow", user=ReadIceberg.name, extra="iceberg")
        try:
            found = tables.StaticTable.from_metadata(table, dict(properties))
            metadata = found.metadata
            if snapshot is not None and metadata.snapshot_by_id(snapshot) is None:
                known = ", ".join(str(each.snapshot_id) for each in metadata.snapshots) or "none"
                raise SourceError(f"there is no snapshot {snapshot}; there are {known}")
            scan = found.scan(snapshot_id=snapshot)
            current, columns = scan.snapshot(), scan.projection()
            _check_deletes(found, current)
            tasks = sorted(scan.plan_files(), key=lambda task: _path(task.file.file_path))
            schema = arrow.schema_to_pyarrow(columns, include_field_ids=False)
            schema = decoded_schema(pa.schema([_narrow(field) for field in schema]))
        except ArrowflowError as error:
            raise error.locate(operator=ReadIceberg.name, file=table) from None
        except Exception as error:
            text = without_secrets(str(error), Settings(properties))
            text = _without_hint(Path(table)) or f"the metadata of the table cannot be read: {text}"
            raise SourceError(text).locate(operator=ReadIceberg.name, file=table) from error
        text = _unreadable(columns, metadata.schemas, [task.file for task in tasks])
        if text:
            raise PlanError(f"{text}; {_BY_HAND}").locate(operator=ReadIceberg.name, file=table)
        names = {field.field_id: field.name for field in columns.fields}
        number = None if current is None else current.snapshot_id
        return cls(number, schema, names, [task.file for task in tasks], metadata.specs(), found.io)

    def partitions(self) -> Partitions | None:
        """Returns the columns whose value each file's metadata have.

        Raises:
            PlanError: A file may lack a column that only some files are partitioned by.
        """
        held = [self._places(file) for file in self.files]
        everywhere = [number for number in held[0] if all(number in places for places in held)]
        for file, places in zip(self.files, held, strict=True):
            for number in places:
                if number not in everywhere and number not in (file.value_counts or {}):
                    raise PlanError(
                        f"the metadata do not say that the file has the column {self.names[number]!r}, which only some "
                        f"files take from their partitions; {_BY_HAND}"
                    ).locate(operator=ReadIceberg.name, file=file.file_path)
        if not everywhere:
            return None
        fields = [self.schema.field(self.names[number]) for number in everywhere]
        values = [
            [file.partition[places[number]] for file, places in zip(self.files, held, strict=True)]
            for number in everywhere
        ]
        arrays = [_column(column, field) for column, field in zip(values, fields, strict=True)]
        found = Partitions.of(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
        return dataclasses.replace(found, also_held=frozenset(found.names))

    def statistics(self) -> FileStatistics:
        """Returns what the manifests say of each file."""
        columns = {}
        for number, name in self.names.items():
            type = self.schema.field(name).type
            if pa.types.is_nested(type):
                continue
            nulls = [(file.null_value_counts or {}).get(number) for file in self.files]
            columns[name] = (
                _bounds([file.lower_bounds for file in self.files], number, type),
                _bounds([file.upper_bounds for file in self.files], number, type),
                pa.array(nulls, pa.int64()),
            )
        return FileStatistics(pa.array([file.record_count for file in self.files], pa.int64()), columns)

    def _places(self, file: Any) -> dict[int, int]:
        """Returns where the partition of a file has the values of whole columns, as exact as the file would."""
        fields = enumerate(self.specs[file.spec_id].fields)
        return {
            field.source_id: place
            for place, field in fields
            if str(field.transform) == "identity"
            and field.source_id in self.names
            # Partitions may have 32 bits of a column of 64; `pyiceberg` 0.12 writes them so.
            and not (
                pa.types.is_float64(self.schema.field(self.names[field.source_id]).type)
                and self._holds(file, field.source_id)
            )
        }

    def _holds(self, file: Any, number: int) -> bool:
        """Returns whether a file has a column; opens the file if the metadata do not tell."""
        if number in (file.value_counts or {}):
            return True
        parquet = optional("pyarrow.parquet", user=ReadIceberg.name, extra="iceberg")
        try:
            with self.io.new_input(file.file_path).open() as opened:
                return self.names[number] in parquet.read_schema(opened).names
        except Exception as error:
            text = without_secrets(str(error), Settings(self.io.properties))
            raise SourceError(f"the columns of the file cannot be read: {text}").locate(
                operator=ReadIceberg.name, file=file.file_path
            ) from error


def _without_hint(table: Path) -> str:
    """Returns what to do with a local folder that does not say which of its metadata are current, as those of catalogs."""
    known = sorted(table.glob("metadata/*.metadata.json")) if table.is_dir() else []
    if not known or (table / "metadata" / "version-hint.text").exists():
        return ""
    return f"the folder does not say which of its metadata are current; name them, such as {str(known[-1])!r}"


def _bounds(bounds: Sequence[Mapping[int, bytes] | None], number: int, type: pa.DataType) -> pa.Array:
    """Returns the bounds of a column as statistics compare them; null where a file has none, or not in full.

    They are integers of the type that the column had when the file was written: a long may have been an int of four bytes.
    """
    in_nanoseconds = pa.types.is_timestamp(type) and type.unit == "ns"  # which some writers cut
    if not has_exact_bounds(type) or in_nanoseconds:
        return pa.nulls(len(bounds))
    sizes = (4, 8) if pa.types.is_integer(type) else (max(8, type.bit_width) // 8,)
    values = [(of_file or {}).get(number) for of_file in bounds]
    numbers = [
        int.from_bytes(value, "little", signed=True) if value is not None and len(value) in sizes else None
        for value in values
    ]
    if pa.types.is_boolean(type):
        return pa.array([None if number is None else number != 0 for number in numbers], pa.bool_())
    return pa.array(numbers, pa.int64())


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Returns values of partitions, which are integers for dates and times, as a column."""
    try:
        stored = pa.int32() if pa.types.is_date32(field.type) else None
        return pa.array(values, stored).cast(field.type)
    except pa.ArrowException as error:
        text = (
            f"column {field.name!r}: its partitions have values that cannot become {field.type}; {_BY_HAND}"
        )
        raise PlanError(text).locate(operator=ReadIceberg.name) from error


def _narrow(field: pa.Field) -> pa.Field:
    """Returns a field with the types that `read_parquet` gives, whose lists and texts have offsets of 32 bits."""
    type = field.type
    if pa.types.is_large_string(type):
        type = pa.string()
    elif pa.types.is_large_binary(type):
        type = pa.binary()
    elif pa.types.is_large_list(type) or pa.types.is_list(type):
        type = pa.list_(_narrow(type.value_field))
    elif pa.types.is_struct(type):
        type = pa.struct([_narrow(part) for part in type])
    elif pa.types.is_map(type):
        type = pa.map_(_narrow(type.key_field), _narrow(type.item_field))
    return field.with_type(type)


def _path(path: str) -> str:
    """Returns the path of a file, which Iceberg does not escape."""
    for scheme in ("s3a://", "s3n://"):
        if path.startswith(scheme):
            return "s3://" + path.removeprefix(scheme)
    return path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")


def _check_deletes(table: Any, snapshot: Any) -> None:
    """Raises `PlanError` if rows of the current files are deleted by other files."""
    if snapshot is None:
        return
    for manifest in snapshot.manifests(table.io):
        if manifest.content == 1 and (manifest.existing_files_count, manifest.added_files_count) != (0, 0):
            raise PlanError(f"rows of its files are deleted by delete files; {_BY_HAND}")


def _unreadable(columns: Any, schemas: Sequence[Any], files: Sequence[Any]) -> str:
    """Returns why the names of columns, or the files, do not give the rows of the table; an empty text if they do."""
    formats = sorted({str(file.file_format.value) for file in files} - {"PARQUET"})
    if formats:
        return f"it has files of {', '.join(formats)}"
    now = dict(_numbers(columns))
    for schema in schemas:
        for number, (name, _) in _numbers(schema):
            if number in now and now[number][0] != name:
                return f"its column {now[number][0]!r} was called {name!r} before, and may be so in its files"
        then = {name: number for number, (name, _) in _numbers(schema)}
        for number, (name, field) in now.items():
            if then.get(name, number) != number:
                return f"its column {name!r} has the name of another one, which may be in its files"
            if getattr(field, "initial_default", None) is not None:
                return f"its column {name!r} has a default for files that lack it"
    return ""


def _numbers(schema: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[int, tuple[str, Any]]]:
    """Yields the number of each column and of each field within, with its path and itself."""
    parts = ("element_field", "key_field", "value_field")  # of a list or a map
    fields = getattr(schema, "fields", None) or [
        getattr(schema, part) for part in parts if hasattr(schema, part)
    ]
    for field in fields:
        path = (*before, field.name)
        yield field.field_id, (".".join(path), field)
        yield from _numbers(field.field_type, path)

"""Columns that files do not hold: values in the names of folders, as in `year=2024/month=01/a.parquet`, and provenance.

Five decisions matter.

* **Folders that were found count, folders that were named do not.** Folders are found inside a directory, and from the
  first wildcard of a glob on. A user who names a folder knows its contents, and the place of the data
  must not change their schema. For a file that was named itself all folders count, but only if hive partitions are
  asked for.
* **Types come from all folders, not from one**: int64 if all values are whole numbers, else string. A `schema=`
  overrides these types. Folders must agree on their keys.
* **Files come first.** A key that is also a column of a file is refused, whether or not `schema=` names it, since
  nobody could tell which value is right. Some writers put the keys into the files as well; then `"auto"` leaves the
  folders alone. Some formats do not list their columns (JSON, TFRecord): there the values in the first MiB that are not
  null tell.
* **Folder columns read nothing.** Chunks get these columns when they are decoded, as new memory. For predicates the
  value of a file is its minimum and maximum, so that files without a match are not even opened.
* **Provenance is more of the same.** The path of a file is a value like that of a folder. The numbers of the row group and
  of the row in it are made for each chunk.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError, PlanError, SchemaError
from arrowflow.expr.pruning import ColumnStatistics
from arrowflow.formats.capabilities import Untyped
from arrowflow.formats.protocol import Footer, Format, MayMatch, reading, without_columns
from arrowflow.formats.types import convert
from arrowflow.interchange.enums import as_enum, enum_values
from arrowflow.storage import File, Store
from arrowflow.types import is_ordered

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""The folder name that Hive, Spark and others give to rows without a value."""

_WHOLE: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_MAX_INT64: Final = (1 << 63) - 1

Folders = tuple[tuple[str, str | None], ...]
"""Keys and values of one file's folders, from the outermost on."""


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """The columns that files do not hold. Picklable.

    Attributes:
        values: One row a file, in the order of the files; one column a key of the folders, and one for the path.
        bounds: The same values as statistics compare them, without columns of types that statistics do not know.
        texts: The texts in the first file's folders, the outermost first.
        numbers: The names of the columns for the number of a row group and of a row; none without provenance.
        also_held: The names of columns that files may hold, too, with the same values.
    """

    values: pa.RecordBatch
    bounds: Mapping[str, pa.Array]
    texts: tuple[str | None, ...]
    numbers: tuple[str, ...] = ()
    also_held: frozenset[str] = frozenset()

    @classmethod
    def of(cls, values: pa.RecordBatch, texts: tuple[str | None, ...] = ()) -> Self:
        """Returns columns with these values, one row a file."""
        columns = zip(values.schema, values.columns, strict=True)
        bounds = {field.name: as_stored(array) for field, array in columns if is_ordered(field.type)}
        return cls(values, bounds, texts)

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        numbers = zip(self.numbers, (pa.int32(), pa.int64()), strict=False)
        return pa.schema([*self.values.schema, *(pa.field(name, type) for name, type in numbers)])

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [*self.values.schema.names, *self.numbers]

    def held(self, format: Format, store: Store, footer: Footer, operator: str) -> list[str]:
        """Returns the keys that are columns of a file, too, whether or not `schema=` leaves them to the folders."""
        if isinstance(format, Untyped):
            with reading(operator, footer.file):
                return format.holds(store, footer, self.names)
        return [name for name in self.names if name in footer.schema.names]

    def check(self, format: Format, store: Store, footer: Footer, operator: str) -> None:
        """Raises `SchemaError` if a file has a column that its folders name, too."""
        for name in self.held(format, store, footer, operator):
            if name in self.also_held:
                continue
            where, advice = "is made by with_provenance", "give with_provenance() other names"
            if name in self.values.schema.names[: len(self.texts)]:
                where = "in the names of its folders"
                advice = "read what the files say with partitioning=None, or write them without it"
            raise SchemaError(f"column {name!r} is in the file and {where}; {advice}").locate(
                operator=operator, file=footer.file.path
            )

    def fill(
        self,
        chunk: pa.RecordBatch,
        names: Sequence[str],
        number: int,
        group: int,
        row: int | npt.NDArray[np.int64],
    ) -> pa.RecordBatch:
        """Returns the rows of a file with the wanted columns, in this order.

        Args:
            chunk: The rows.
            names: The wanted columns.
            number: The file's number.
            group: The number of the row group.
            row: The number of the first row in it, or the numbers of all rows.
        """
        own, rows = self.schema, chunk.num_rows
        columns, fields = [], []
        for name in names:
            if name not in own.names:
                columns.append(chunk.column(name))
            elif name in self.values.schema.names:
                columns.append(pa.repeat(self.values.column(name)[number], rows))
            elif name == self.numbers[0]:
                columns.append(pa.repeat(pa.scalar(group, pa.int32()), rows))
            else:
                columns.append(
                    pa.array(np.arange(row, row + rows) if isinstance(row, int) else row, pa.int64())
                )
            fields.append((own if name in own.names else chunk.schema).field(name))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def row_bytes(self, names: Sequence[str], number: int) -> int:
        """Returns the bytes that the wanted folder columns take in each row of a file."""
        wanted = [self.values.column(name) for name in self.values.schema.names if name in names]
        own = self.schema
        fixed = sum(own.field(name).type.bit_width // 8 for name in self.numbers if name in names)
        return fixed + sum(int(column.slice(number, 1).nbytes) for column in wanted)

    def within(self, number: int, may_match: MayMatch) -> MayMatch:
        """Returns a test for a file or its splits, whose own statistics do not have the folder columns."""
        return lambda statistics, rows: may_match(
            ChainMap(self._statistics(number, rows), statistics),  # type: ignore[arg-type]  # it writes nothing
            rows,
        )

    def _statistics(self, number: int, num_rows: int) -> dict[str, ColumnStatistics]:
        values = ((name, column[number].as_py()) for name, column in self.bounds.items())
        return {
            name: ColumnStatistics(value, value, num_rows if value is None else 0) for name, value in values
        }


def discover(
    files: Sequence[File], *, partitioning: str | None, target: pa.Schema | None, operator: str
) -> Partitions | None:
    """Returns the values in the folders of files; None if there are none, or if they are not asked for.

    Args:
        partitioning: `"hive"`, `"auto"` for the same where all files were found by listing, or None.
        target: The columns to read, or None for all columns.
        operator: The operator to name in errors.

    Raises:
        SchemaError: Folders have different keys, or values that do not fit their type.
        PlanError: There are no such folders although they are asked for.

    Examples:
        >>> files = [File(f"/data/year={year}/a.parquet", "", 9, start=5) for year in (2023, 2024)]
        >>> discover(files, partitioning="auto", target=None, operator="read_parquet").values.to_pydict()
        {'year': [2023, 2024]}
    """
    if partitioning is None or (partitioning == "auto" and any(file.start is None for file in files)):
        return None
    parsed: dict[str, Folders] = {}
    folders = [_folders(file, parsed, operator) for file in files]
    if not any(parsed.values()):
        if partitioning == "auto":
            return None
        raise PlanError(
            f"{operator}: partitioning='hive', but no folder is called key=value that was found below what was "
            f"named, as for {files[0].path!r}; name the folder above them, or leave partitioning out"
        )
    _check_keys(files, folders, operator)
    columns = [
        _column(key, [found[place][1] for found in folders], files, target, operator)
        for place, (key, _) in enumerate(folders[0])
        if target is None or key in target.names
    ]
    if not columns:
        return None
    fields, arrays = zip(*columns, strict=True)
    values = pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))
    return Partitions.of(values, tuple(text for _, text in folders[0]))


def _folders(file: File, parsed: dict[str, Folders], operator: str) -> Folders:
    folder = file.path[file.start or 0 :].rpartition("/")[0]
    found = parsed.get(folder)
    if found is None:
        pairs = [part.partition("=") for part in folder.split("/")]
        found = tuple(
            (unquote(key), None if text == NULL else unquote(text))
            for key, equals, text in pairs
            if equals and key
        )
        if any(leaves(text) for pair in found for text in pair):
            raise SchemaError(
                f"the folder {folder!r} names a place outside of itself ('..'), which nobody could write below a folder "
                "again; rename it, or leave folders alone with partitioning=None"
            ).locate(operator=operator, file=file.path)
        keys = [key for key, _ in found]
        if len(set(keys)) < len(keys):
            raise SchemaError(f"the folders name one key twice: {keys}; rename one of them").locate(
                operator=operator, file=file.path
            )
        parsed[folder] = found
    return found


def leaves(text: str | None) -> bool:
    """Returns whether a key or a value names a place outside of its folder."""
    return text is not None and ".." in re.split(r"[/\\]", text)


def _check_keys(files: Sequence[File], folders: Sequence[Folders], operator: str) -> None:
    expected = [key for key, _ in folders[0]]
    for file, found in zip(files, folders, strict=True):
        if found is not folders[0] and [key for key, _ in found] != expected:
            raise SchemaError(
                f"expected folders with the keys {expected} as for {files[0].path!r}, found "
                f"{[key for key, _ in found]}; move the file, or leave folders alone with partitioning=None"
            ).locate(operator=operator, file=file.path)


def _column(
    key: str, texts: Sequence[str | None], files: Sequence[File], target: pa.Schema | None, operator: str
) -> tuple[pa.Field, pa.Array]:
    field = pa.field(key, _told_type(texts)) if target is None else target.field(key)
    try:
        return field, _typed(texts, field)
    except pa.ArrowNotImplementedError as error:
        text = (
            f"column {key!r}: names of folders cannot become {field.type}; read them as string, and cast that"
        )
        raise SchemaError(text).locate(operator=operator) from error
    except (pa.ArrowInvalid, DataError):
        for value, file in zip(texts, files, strict=True):
            try:
                _typed([value], field)
            except (pa.ArrowInvalid, DataError) as error:
                raise SchemaError(
                    f"column {key!r}: expected {enum_values(field) or field.type} as schema= says, found {value!r} in the "
                    "name of a folder; rename it, or read the column as string"
                ).locate(operator=operator, file=file.path) from error
        raise


def _typed(texts: Sequence[str | None], field: pa.Field) -> pa.Array:
    column = convert(pl.Series(texts, dtype=pl.String).to_arrow(), pa.string())
    if enum_values(field) is not None:
        return as_enum(column, field)
    return column if field.type == pa.string() else column.cast(field.type)


def _told_type(texts: Sequence[str | None]) -> pa.DataType:
    known = {text for text in texts if text is not None}
    is_whole = known and all(
        _WHOLE.fullmatch(text) and -_MAX_INT64 - 1 <= int(text) <= _MAX_INT64 for text in known
    )
    return pa.int64() if is_whole else pa.string()


def as_stored(column: pa.Array) -> pa.Array:
    """Returns dates and times as the integers that statistics compare, which needs no `datetime`, or pandas."""
    if not pa.types.is_temporal(column.type):
        return column
    return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())


def traced(
    partitions: Partitions | None,
    files: Sequence[File],
    names: tuple[str, str, str],
    target: pa.Schema | None,
) -> Partitions:
    """Returns the columns that files do not hold, and provenance: the path, the row group and the row, under these names.

    Raises:
        PlanError: The columns that a user asks files for have such a name.
    """
    known = [] if partitions is None else partitions.names
    if twice := sorted(set(names) & {*known, *(() if target is None else target.names)}):
        raise PlanError(f"with_provenance: there are columns {twice} already; give it other names")
    path, *numbers = names
    paths = pa.array([file.path for file in files], pa.string())
    if partitions is None:
        return Partitions(pa.record_batch({path: paths}), {path: paths}, (), tuple(numbers))
    values = partitions.values.append_column(path, paths)
    return replace(
        partitions, values=values, bounds={**partitions.bounds, path: paths}, numbers=tuple(numbers)
    )


def merged(schema: pa.Schema, partitions: Partitions | None) -> pa.Schema:
    """Returns the columns of a file, then those that it does not hold."""
    if partitions is None:
        return schema
    return pa.schema([*schema, *(field for field in partitions.schema if field.name not in schema.names)])


def without(schema: pa.Schema, partitions: Partitions | None) -> pa.Schema:
    """Returns the columns that files have to give."""
    return schema if partitions is None else without_columns(schema, partitions.names)


def described(partitions: Partitions | None) -> Mapping[str, Any]:
    """Returns the identity of a set of folders, besides the relative paths of files, as JSON values."""
    if partitions is None:
        return {}
    return {
        "partitions": [[field.name, str(field.type)] for field in partitions.schema],
        "folders": list(partitions.texts),
    }

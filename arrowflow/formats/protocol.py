"""The interface of every file format: `Format`, its footers and splits, and the check of schemas.

`docs/formats.md` says how to write a format.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import ArrowflowError, SchemaError, SourceError, closest, repeated
from arrowflow.expr.pruning import ColumnStatistics
from arrowflow.formats.casting import casts, has_same_values
from arrowflow.formats.types import common, common_cast, widens
from arrowflow.interchange.enums import other_values
from arrowflow.storage import File, Range, Store, remote_change, storage_failure

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a file that one call decodes: rows that follow each other, all or some of the file.

    A format chooses its splits: row groups of Parquet, record batches of IPC, blocks of lines, runs of records. States name
    them by number. So the splits of a file are the same ones in every version of the format, or follow from its options,
    which states hold.

    Attributes:
        index: Its number in the file, whatever splits are pruned before it.
        num_rows: Its rows.
        num_bytes: Bytes of all its columns once decoded, estimated.
    """

    index: int
    num_rows: int
    num_bytes: int


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Footer:
    """The description of a file by the file itself. Picklable.

    Attributes:
        file: The file.
        schema: Its columns as `read` yields them: decoded types, everything nullable; of metadata, the values of enums.
        splits: Its splits, in file order.
        num_rows: Rows of all splits.
        repeated: Names that several of its columns have; these columns are not in the schema.
        stored: Its columns as it has them, with all metadata, for those who write them anew; None where it has none.
        details: The format's own data; nobody else looks inside.
    """

    file: File
    schema: pa.Schema
    splits: tuple[Split, ...]
    num_rows: int
    details: Any = field(default=None, repr=False)
    stored: pa.Schema | None = field(default=None, repr=False)
    repeated: tuple[str, ...] = ()


def split_borders(starts: Ints, stops: Ints, *, max_count: int, max_bytes: int) -> list[int]:
    """Returns the number of the first one of each split, and how many there are in all.

    A split ends before the one that goes beyond either limit, but has at least one.

    Args:
        starts: The first byte of each, not falling.
        stops: The byte after each, not falling.
        max_count: The most of a split.
        max_bytes: The most bytes from the first byte of a split to its last.

    Examples:
        >>> stops = np.array([3, 5, 14])
        >>> split_borders(stops - [3, 2, 9], stops, max_count=64, max_bytes=5)
        [0, 2, 3]
    """
    borders, at = [0], 0
    while at < len(stops):
        fits = int(np.searchsorted(stops, starts[at] + max_bytes, side="right"))
        at = max(at + 1, min(fits, at + max_count))
        borders.append(at)
    return borders


MayMatch = Callable[[Mapping[str, ColumnStatistics], int], bool]
"""A predicate over (statistics by column, number of rows). It is False only if provably no row matches. A column that
is not in the mapping may hold any value."""


@runtime_checkable
class Format(Protocol):
    """A file format. A subclass has a `name`, its `suffixes`, a `footer` and a `read`; all other methods have defaults.

    A format is a frozen dataclass, so that its copies are equal. Its fields are its options. Users give options to
    `arrowflow.read` by name, and `__post_init__` raises `PlanError` for bad values. A dataclass field that is declared
    with `field(compare=False)` is not an option: users cannot give it, and states and caches ignore it.

    The executor calls all methods from any worker, for many files and splits at the same time. A format raises
    `SourceError("text")` with nothing but the text: the caller adds the operator, the file and the split. Any other
    exception of `footer`, `ranges` and `read` becomes such a `SourceError`. Errors of this library keep their class.

    The executor decodes a split by one call of `read`. If the file is not local, the executor first calls `ranges` and
    fetches these bytes, without a core. The `store` of `read` then holds these bytes and no others, so that `read`
    waits for nothing. A format always reads through `store.open(footer.file)` or `store.fetch(footer.file, …)`, and
    need not know whether the file is local.

    Capabilities are further protocols: `InPlaceFormat`, `Untyped`, `Unsure`, `RunFormat`, `PiecesFormat`,
    `PooledFormat`, `SiftingFormat`, `StoredDecimals`, `StructFields` and `OwnArguments`. A format has a capability if it has the methods; it need not derive from the class.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The word in `arrowflow.read(…, format=…)`; only formats of this package have a function `read_<name>`."""

    @property
    @abstractmethod
    def suffixes(self) -> tuple[str, ...]:
        """Endings, in lower case, of the files that a directory gives to this format."""

    @property
    def part(self) -> str:
        """The word for a split in messages."""
        return "row group"

    @property
    def renaming(self) -> str:
        """The way to give names of their own to columns that share one, in messages."""
        return "from_arrow(table.rename_columns([…])) names all columns of a table of pyarrow by their places"

    @abstractmethod
    def footer(self, store: Store, file: File) -> Footer:
        """Reads the file's description of itself, with ranged reads only. Called once per file and epoch.

        Raises:
            SourceError: The file is missing, truncated, corrupt, encrypted or of another format.
        """

    def footer_bytes(self, file: File) -> int:
        """Returns the bytes that `footer` holds at a time, besides what it returns: of a file that it reads through."""
        return 0

    @abstractmethod
    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Decodes a split on the calling thread, without the GIL, and yields its rows from `offset_rows` on.

        Yields one batch, of no rows if need be. It yields several batches where Arrow cannot hold all rows in one
        (texts of a column end at 2 GiB), or where one batch would take more than `column_bytes` tells. The reader of a batch may
        write its memory, so no later call reads that memory. Values lie at multiples of their size.
        `arrowflow.formats.conform` makes batches of the wanted columns and types from a decoded batch. Between two
        batches nothing stays open, except resources that the batches themselves hold.

        Args:
            store: The storage to read: the local file system, a `Fetched` with the bytes of `ranges`, or a `Mapped`
                file (see `InPlaceFormat`). A reader may open the path by itself only if `store.is_local`. A reader may
                use threads of its own only if not `store.is_python`.
            footer: The file.
            split: One of its splits.
            schema: Columns and exact types of the batches. A column that the file lacks is null. The schema may
                have no column: then batches have rows, but no columns.
            offset_rows: Rows of the split to leave out: fewer than the split has.

        Raises:
            SourceError: The split cannot be decoded, or does not match the footer.
        """

    def column_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """Estimates the decoded bytes of some columns. Called under the executor's lock: no I/O, cheap.

        By default each column has an equal share of `split.num_bytes`.
        """
        return split.num_bytes * len(columns) // max(1, len(footer.schema))

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """Estimates the memory that decoding takes besides its result. Called as `column_bytes`.

        Scratch is new memory that is free again once the batch is made: decompressed bytes, parsed values, a column
        before its cast. Scratch is 0 if the batch is a view of the bytes that were read. The default is
        `split.num_bytes`, as for a copy of all stored values.
        """
        return split.num_bytes

    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        """Returns the byte ranges that `read` needs for these columns; in any order, and they may overlap.

        Called once a split, and only for files that are not local. No I/O, cheap. The ranges of a corrupt footer need
        no check: a fetch refuses ranges outside of the file. The default is the whole file.
        """
        return [Range(0, footer.file.size)]

    def prune(self, footer: Footer, split: Split, may_match: MayMatch) -> bool:
        """Returns whether the split provably holds no match, so that it is not read. No I/O. The default is False."""
        return False


def match(
    expected: pa.Schema,
    footer: Footer,
    *,
    widen: bool = False,
    may_lack: bool = False,
    operator: str | None = None,
) -> None:
    """Checks that `Format.read` can yield `expected` from a file.

    Columns are compared by name and type, enums by their values too. The width of offsets, the order of columns, their
    nullability and other metadata, and further columns of the file, do not matter.

    Args:
        expected: Columns to read.
        footer: The file.
        widen: Whether a column may be absent (it is then null), or of a type whose values can be cast to `expected`: a
            user's own `schema=` allows this. `conform` finds values that lose something.
        may_lack: Whether a column may be absent all the same.
        operator: The operator to name in errors.

    Raises:
        SchemaError: A column is missing or of another type, or an enum has other values.
    """
    same = expected.equals(footer.schema, check_metadata=True)
    if not same and (text := _misfit(expected, footer, widen=widen, may_lack=may_lack)) is not None:
        raise SchemaError(text).locate(operator=operator, file=footer.file.path)


def _misfit(expected: pa.Schema, footer: Footer, *, widen: bool, may_lack: bool) -> str | None:
    if not widen and (text := other_values(expected, footer.schema)):
        return f"{text}; {_FIRST_SETS}; schema= with one type for this column takes the values of all"
    found = dict(zip(footer.schema.names, footer.schema.types, strict=True))
    for name, type in zip(expected.names, expected.types, strict=True):
        if name in footer.repeated:
            return _several([name])
        if name not in found:
            if not (widen or may_lack):
                return (
                    f"column {name!r} ({type}) is missing; pass missing_columns='null' to fill it with null, or schema= with "
                    f"all columns; {closest(name, footer.schema.names)}"
                )
        elif not has_same_values(found[name], type) and not (
            widen and (widens(found[name], type) or casts(found[name], type))
        ):
            advice = _OTHERWISE if widen else _advice(type, found[name])
            return f"column {name!r}: expected {type}, found {found[name]}; {advice}"
    return None


_FIRST_SETS = "the first file in sorted order sets the schema"
_OTHERWISE = (
    "pyarrow casts no value of one to the other: read the files of each type by a dataset of their own"
)


def _advice(first: pa.DataType, other: pa.DataType) -> str:
    if (wider := common(first, other)) is not None:
        return f"{_FIRST_SETS}, pass schema= with {wider} for this column to widen all files to one"
    if (cast := common_cast(first, other)) is None:
        return f"{_FIRST_SETS}, and {_OTHERWISE}"
    return f"{_FIRST_SETS}, pass schema= with {cast} for this column, which takes all values that {cast} holds without loss"


def prune(format: Format, footer: Footer, split: Split, may_match: MayMatch, wanted: pa.Schema) -> bool:
    """Returns whether a split provably holds no match, where columns are read as their types in `wanted`."""
    return format.prune(
        footer, split, lambda found, rows: may_match(_Uncast(found, footer.schema, wanted), rows)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Uncast(Mapping[str, ColumnStatistics]):
    """Statistics without the columns that the read casts; widened columns stay.

    A cast may change the order of values, as from numbers to texts.
    """

    statistics: Mapping[str, ColumnStatistics]
    stored: pa.Schema
    wanted: pa.Schema

    def __getitem__(self, name: str) -> ColumnStatistics:
        stored, wanted = (schema.get_field_index(name) for schema in (self.stored, self.wanted))
        if stored >= 0 and wanted >= 0:
            types = self.stored.field(stored).type, self.wanted.field(wanted).type
            if types[0] != types[1] and not widens(*types) and not has_same_values(*types):
                raise KeyError(name)
        return self.statistics[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.statistics if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def check_names(names: Sequence[str]) -> None:
    """Raises `SchemaError` if a name occurs twice: columns are addressed by name, so names have to differ."""
    twice = repeated(names)
    if twice:
        raise SchemaError(f"{_several(twice)}; rename them")


def check_repeated(format: Format, footer: Footer, operator: str, picks: Sequence[str] | None = None) -> None:
    """Raises `SchemaError` if several columns of a file have a name that is read; without `picks` all are."""
    twice = [name for name in footer.repeated if picks is None or name in picks]
    if twice:
        text = f"{_several(twice)}; columns= picks others, and {format.renaming}"
        raise SchemaError(text).locate(operator=operator, file=footer.file.path)


def without_columns(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Returns a schema without some columns."""
    return pa.schema([each for each in schema if each.name not in names]) if names else schema


def _several(names: Sequence[str]) -> str:
    return f"expected columns of different names, found several called {list(names)}"


@contextmanager
def reading(
    operator: str, file: File, row_group: int | None = None, part: str = "row group"
) -> Iterator[None]:
    """Turns every error of a reader inside into a `SourceError` that says where the error happened."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ArrowflowError) and not (
            isinstance(error, SourceError | SchemaError) and file.is_changed
        ):
            error.locate(operator=operator, file=file.path, row_group=row_group, part=part)
            raise
        failure = storage_failure(error, file)
        found = SourceError(failure or _fault(error, file))
        # Errors of the system have a number, those of Arrow none.
        is_of_system = isinstance(error, OSError) and error.errno is not None
        is_of_system = is_of_system or isinstance(error, FileNotFoundError | MemoryError)
        found.of_data = failure is None and not (is_of_system or file.is_changed)
        raise found.locate(operator=operator, file=file.path, row_group=row_group, part=part) from error


def _fault(error: Exception, file: File) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file was removed after it was listed; list the files again"
    change = file.change
    if change is not None:
        return _changed(change)
    return (
        f"cannot read it: {type(error).__name__}: {str(error).strip()[:500]}; it is truncated, corrupt or of a kind "
        "that this format does not read: write it anew, or leave it out"
    )


def footer_of(operator: str, format: Format, store: Store, file: File) -> Footer:
    """Returns the footer of a file; raises as `reading` does, or says that the file has changed."""
    try:
        with reading(operator, file):
            footer = format.footer(store, file)
            check_unchanged(file)
            return footer
    except SourceError:
        change = None
        if not store.is_local:
            with suppress(Exception):  # where the store does not answer, the first error tells more
                change = store.requests.persist(partial(remote_change, store, file, {}))
        raise_change(change, file, operator)
        raise


def check_unchanged(file: File, operator: str | None = None) -> None:
    """Raises `SourceError` if a local file is no longer as it was listed.

    Called after each read of a file, before its rows go on: so no rows of a new version come among those of an old one.
    """
    raise_change(file.change, file, operator)


def raise_change(change: str | None, file: File, operator: str | None = None) -> None:
    """Raises `SourceError` for the change of a file, if there is one."""
    if change is not None:
        error = SourceError(_changed(change))
        error.of_data = False
        raise error.locate(operator=operator, file=file.path)


def _changed(change: str) -> str:
    return (
        f"the file has changed since it was listed: {change}; iterate anew, which lists the files again, or write new "
        "versions under new names"
    )

"""What every file format offers: `Format`, the footers and splits it finds, and the check of schemas.

`README.md` of this folder says how to add a format.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from arrowflow.errors import ArrowflowError, SchemaError, SourceError, closest, repeated
from arrowflow.expr.pruning import ColumnStatistics
from arrowflow.formats.types import widens
from arrowflow.storage import File, Range, Store


@dataclass(frozen=True, slots=True)
class Split:
    """One row group of a Parquet file, one record batch of an IPC file, or one block of a text file.

    Attributes:
        index: Its number in the file, whatever is pruned before it.
        num_rows: Its rows.
        num_bytes: Bytes of all its columns once decoded, estimated.
    """

    index: int
    num_rows: int
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """What a file says about itself. Picklable.

    Attributes:
        file: The file.
        schema: Its columns as `read` yields them: decoded types, everything nullable, no metadata.
        splits: Its row groups or record batches, in file order.
        num_rows: Rows of all splits.
        details: The format's own; nobody else looks inside.
    """

    file: File
    schema: pa.Schema
    splits: tuple[Split, ...]
    num_rows: int
    details: Any = field(default=None, repr=False)


MayMatch = Callable[[Mapping[str, ColumnStatistics], int], bool]
"""A predicate over (statistics by column, number of rows) that is False only where provably no row matches. A
column that is not in the mapping may hold anything."""


@runtime_checkable
class Format(Protocol):
    """A file format. A subclass has a `name`, its `suffixes`, a `footer` and a `read`; the rest has defaults.

    A format is a frozen dataclass, so that its copies are equal. Its fields are its options: users give them to
    `arrowflow.read` by name, and `__post_init__` raises `PlanError` for bad values. A field with `compare=False` is no
    option.

    All methods are called from any worker, for many files and splits at the same time. Any exception of `footer`,
    `ranges` and `read` becomes a `SourceError` that names the file and the split. Errors of this library keep their
    class.

    A split of a local file is decoded from the file: `read` alone, in one call. Of any other file the bytes that
    `ranges` names are fetched first, in a call of its own that takes no core; `read` then finds these bytes, and no
    others, in its `store`, and waits for nothing. So a format reads through `store.open(footer.file)` or
    `store.fetch(footer.file, …)` and need not know which of the two it is.

    The classes after this one are capabilities. A format has one if it has its methods.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The word in `read_<name>`, in `arrowflow.read(…, format=…)` and in messages."""

    @property
    @abstractmethod
    def suffixes(self) -> tuple[str, ...]:
        """Endings, in lower case, of the files that are taken from a directory."""

    @abstractmethod
    def footer(self, store: Store, file: File) -> Footer:
        """Reads what the file says about itself, with ranged reads only. Called once per file and epoch.

        Raises:
            SourceError: The file is missing, truncated, corrupt, encrypted or of another format.
        """

    @abstractmethod
    def read(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Decodes a split on the calling thread, without the GIL, and yields its rows from `offset_rows` on.

        Yields at least one batch, of no rows if need be, and more than one only where one would be too large.
        `arrowflow.formats.conform` makes such batches of a decoded one. Nothing stays open between
        two batches that the batches themselves do not hold.

        Args:
            store: Where to read: the local file system, or a `Fetched` with the bytes of `ranges`. Only where
                `store.is_local` may a reader open the path by itself, and only where not `store.is_python` may it
                read on threads of its own.
            footer: The file.
            split: One of its splits.
            schema: Columns and exact types of what to yield. A column that the file lacks is null. There may be none:
                then batches have rows, but no columns.
            offset_rows: Rows of the split to leave out: fewer than it has.

        Raises:
            SourceError: The split cannot be decoded, or is not what the footer says.
        """

    def column_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """Estimates the decoded bytes of some columns. Called under the executor's lock: no I/O, cheap.

        By default each column has an equal share of `split.num_bytes`.
        """
        return split.num_bytes * len(columns) // max(1, len(footer.schema))

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """Estimates what decoding them takes on top while it runs. Called as `column_bytes`.

        By default `split.num_bytes`, as for a copy of all that is stored.
        """
        return split.num_bytes

    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        """Returns the bytes of the file that `read` needs for these columns; in any order, and they may overlap.

        Called once a split, and only for files that are not local. No I/O, cheap. What a corrupt footer says need
        not be checked: ranges outside of the file are refused when they are to be fetched. By default the whole file.
        """
        return [(0, footer.file.size)]

    def prune(self, footer: Footer, split: Split, may_match: MayMatch) -> bool:
        """Returns whether the split provably holds no match, so that it need not be read. No I/O. By default it may."""
        return False


@runtime_checkable
class StoredDecimals(Protocol):
    """A capability of a `Format` whose files may store decimals as integers."""

    def with_stored(self, columns: frozenset[str]) -> Format:
        """Returns the format whose `read` may yield these decimals as the int64 that the file stores.

        Called for columns that only arithmetic reads, when a kernel is made.
        """


@runtime_checkable
class PooledFormat(Protocol):
    """A capability of a `Format` that may decode in another pool of threads than Arrow's."""

    def with_threads(self, num_threads: int) -> Format:
        """Returns the format that uses no pool with more threads than these, which are the CPU budget.

        Called when a kernel is made.
        """

    def engine(self, store: Store) -> str:
        """Returns whose pools may decode files of a store, as `KernelSpec.engine` has it. No I/O."""


@runtime_checkable
class Unsure(Protocol):
    """A capability of a `Format` whose footers do not always say what columns take once they are decoded."""

    def unsure(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[str]:
        """Returns the columns that may take more than `Format.column_bytes`, which then is the least. No I/O.

        Called once a split, from any worker. Until such a column has been decoded once, one split is read at a time.
        """

    def announced_bytes(self, store: Store, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """Returns the bytes of these columns that the split itself announces. Called right before `read`; may do I/O.

        Raises:
            SourceError: The split cannot be read.
        """


@runtime_checkable
class InPlaceFormat(Format, Protocol):
    """A capability: files can be mapped and their rows gathered where they lie. A global `shuffle` needs it."""

    def is_mapped(self, store: Store, footer: Footer) -> bool:
        """Returns whether what `read` yields are views of the mapped file. No I/O."""

    def only_maps(self, store: Store, footer: Footer, columns: Sequence[str]) -> bool:
        """Returns whether `read` looks at no value of these columns: all it does is to make views. No I/O."""

    def check_in_place(self, store: Store, footer: Footer) -> None:
        """Raises `PlanError` if the rows of this file cannot be gathered in place. No I/O."""

    def read_in_place(
        self, mapped: pa.Buffer, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
    ) -> Iterator[tuple[pa.RecordBatch, tuple[pa.Buffer, ...]]]:
        """Yields what `Format.read` does as views of the mapped file, and the buffers that are no views.

        Called once a split and epoch, for files that passed `check_in_place`.

        Raises:
            SourceError: The split is not what the footer says.
        """


@runtime_checkable
class Untyped(Protocol):
    """A capability of a `Format` whose files do not say their types."""

    def typed(self, schema: pa.Schema) -> Format:
        """Returns the format that reads the columns of all files as these types. Called when a plan is bound.

        Raises:
            SchemaError: It cannot read one of the types.
        """

    def glance(self, store: Store, file: File) -> Footer:
        """Returns a footer of the first splits or rows alone, with all columns. Called when a plan is bound.

        Raises:
            SourceError: As of `Format.footer`.
        """

    def holds(self, store: Store, footer: Footer, names: Sequence[str]) -> list[str]:
        """Returns which of these columns a file has, whatever types the format reads: as its first MiB tells.

        Called for files in folders that name columns, once a file and epoch; these must not be in both.
        """


@runtime_checkable
class OwnArguments(Protocol):
    """A capability of a `Format` whose rows depend on other things than its options."""

    def arguments(self) -> Mapping[str, Any]:
        """Returns these things as JSON values. A state is compared by them, and without this by the options."""


def match(expected: pa.Schema, footer: Footer, *, widen: bool = False, operator: str | None = None) -> None:
    """Checks that `Format.read` can yield `expected` from a file.

    Columns are compared by name and type. Their order, nullability and metadata, and further columns of the
    file, do not matter.

    Args:
        expected: Columns to read.
        footer: The file.
        widen: Whether a column may be absent (it is then null) or of a type whose values `expected` can all
            hold: what a user's own `schema=` allows.
        operator: The operator to name in errors.

    Raises:
        SchemaError: A column is missing or of another type.
    """
    found = dict(zip(footer.schema.names, footer.schema.types, strict=True))
    for name, type in zip(expected.names, expected.types, strict=True):
        if name not in found:
            if widen:
                continue
            text = (
                f"column {name!r} ({type}) is missing; {closest(name, footer.schema.names)} "
                "Pass schema= to fill it with null"
            )
            raise SchemaError(text).locate(operator=operator, file=footer.file.path)
        if found[name] != type and not (widen and widens(found[name], type)):
            text = f"column {name!r}: expected {type}, found {found[name]}; " + (
                "schema= only widens, so cast it after reading"
                if widen
                else "the first file in sorted order sets the schema, pass schema= to widen all files to one"
            )
            raise SchemaError(text).locate(operator=operator, file=footer.file.path)


def check_names(names: Sequence[str]) -> None:
    """Raises `SchemaError` if a name occurs twice, which columns that are addressed by name cannot."""
    twice = repeated(names)
    if twice:
        raise SchemaError(f"expected columns of different names, found several called {twice}; rename them")


@contextmanager
def reading(operator: str, file: File, row_group: int | None = None) -> Iterator[None]:
    """Turns whatever a reader raises inside into a `SourceError` that says where it happened."""
    try:
        yield
    except FileNotFoundError as error:
        text = "the file was removed after it was listed; list the files again"
        raise SourceError(text).locate(operator=operator, file=file.path, row_group=row_group) from error
    except Exception as error:
        if isinstance(error, ArrowflowError) and not (
            isinstance(error, SourceError | SchemaError) and file.is_changed
        ):
            error.locate(operator=operator, file=file.path, row_group=row_group)
            raise
        text = (
            "the file has changed since it was listed: it was replaced or is still being written; iterate anew, which "
            "lists the files again"
            if file.is_changed
            else f"cannot read it: {type(error).__name__}: {str(error).strip()[:500]}; it is truncated, corrupt or "
            "uses a feature that pyarrow does not read: write it anew, or leave it out"
        )
        raise SourceError(text).locate(operator=operator, file=file.path, row_group=row_group) from error


def footer_of(operator: str, format: Format, store: Store, file: File) -> Footer:
    """Returns the footer of a file; raises as `reading` does."""
    with reading(operator, file):
        return format.footer(store, file)

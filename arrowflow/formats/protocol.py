"""What every file format offers: `Format`, the footers and splits it finds, and the check of schemas.

To add a format copy `ipc.py`: a class with these methods, and one line in `FORMATS`; in a package of its own, the
entry point `arrowflow.formats` instead.
"""

from __future__ import annotations

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


class Format(Protocol):
    """A file format. All methods are called from any worker, for many files and splits at the same time.

    A split of a local file is decoded from the file: `read` alone, in one call. Of any other file the bytes that
    `ranges` names are fetched first, in a call of its own that takes no core; `read` then finds these bytes, and no
    others, in its `store`, and waits for nothing. So a format reads through `store.open(footer.file)` or
    `store.fetch(footer.file, …)` and need not know which of the two it is. One that cannot tell what it will read
    names the whole file, `[(0, footer.file.size)]`.
    """

    @property
    def name(self) -> str:
        """The word in `read_<name>`, in `FORMATS` and in messages."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings, in lower case, of the files that are taken from a directory."""

    def footer(self, store: Store, file: File) -> Footer:
        """Reads what the file says about itself, with ranged reads only. Called once per file and epoch.

        Raises:
            SourceError: The file is missing, truncated, corrupt, encrypted or of another format.
        """

    def column_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """Estimates the decoded bytes of some columns. Called under the executor's lock: no I/O, cheap."""

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """Estimates what decoding them takes on top while it runs. Called as `column_bytes`."""

    def ranges(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[Range]:
        """Returns the bytes of the file that `read` needs for these columns; in any order, and they may overlap.

        Called once a split, and only for files that are not local. No I/O, cheap. What a corrupt footer says need
        not be checked: ranges outside of the file are refused when they are to be fetched.
        """

    def prune(self, footer: Footer, split: Split, may_match: MayMatch) -> bool:
        """Returns whether the split provably holds no match, so that it need not be read. No I/O."""

    def read(
        self,
        store: Store,
        footer: Footer,
        split: Split,
        schema: pa.Schema,
        offset_rows: int = 0,
        stored: frozenset[str] = frozenset(),
        num_threads: int = 1,
    ) -> Iterator[pa.RecordBatch]:
        """Decodes a split on the calling thread, without the GIL, and yields its rows from `offset_rows` on.

        Yields at least one batch, of no rows if need be, and more than one only where offsets of texts or
        lists would overflow. Columns are those of `schema`, with exactly its types, null where the file lacks
        them; decimals among the columns named in `stored` may come as the int64 that they are stored as. Nothing
        stays open between two batches that the batches themselves do not hold.

        Args:
            store: Where to read: the local file system, or a `Fetched` with the bytes of `ranges`. Only where
                `store.is_local` may a reader open the path by itself, and only where not `store.is_python` may it
                read on threads of its own.
            footer: The file.
            split: One of its splits.
            schema: What to yield.
            offset_rows: Rows of the split to leave out.
            stored: Names of decimals that may come as integers.
            num_threads: The CPU budget: another pool that has more threads must not be used.

        Raises:
            SourceError: The split cannot be decoded, or is not what the footer says.
        """


@runtime_checkable
class Unsure(Protocol):
    """What a `Format` offers besides, whose footers do not always say what columns take once they are decoded."""

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
    """A format whose files can be mapped and their rows gathered where they lie: what a global `shuffle` needs."""

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
    """What a `Format` offers besides, whose files do not say their types, or which has options."""

    def typed(self, schema: pa.Schema) -> Format:
        """Returns the format that reads the columns of all files as these types. Called when a plan is bound.

        Raises:
            SchemaError: It cannot read one of the types.
        """

    def glance(self, store: Store, file: File) -> Footer:
        """Returns a footer of the first splits alone, with the whole schema. Called when a plan is bound.

        Raises:
            SourceError: As of `Format.footer`.
        """

    def holds(self, store: Store, footer: Footer, names: Sequence[str]) -> list[str]:
        """Returns which of these columns a file has, whatever types the format reads: as its first MiB tells.

        Called for files in folders that name columns, once a file and epoch; these must not be in both.
        """

    def arguments(self) -> Mapping[str, Any]:
        """Returns the options, as JSON values; a state is compared by them."""


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

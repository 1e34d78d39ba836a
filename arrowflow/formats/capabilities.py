"""Capabilities: protocols that a `Format` may have besides. A format has one if it has the methods."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from arrowflow.bad_rows import BadRow
from arrowflow.errors import SchemaError, SourceError
from arrowflow.formats.protocol import Footer, Format, Split, check_unchanged, footer_of, reading
from arrowflow.formats.types import width_bits
from arrowflow.formats.unknown import is_unknown, with_known
from arrowflow.storage import File, Store

_FILES_LOOKED_AT: Final = 16
"""Files after the first one that are looked at for columns without a value in it."""


@runtime_checkable
class StoredDecimals(Protocol):
    """A capability of a `Format` whose files may store decimals as integers."""

    def with_stored(self, columns: frozenset[str]) -> Format:
        """Returns the format whose `read` may yield these decimals as the int64 that the file stores.

        Called when a kernel is made, for columns that only arithmetic reads.
        """


@runtime_checkable
class StructFields(Protocol):
    """A capability of a `Format` that reads some fields of a struct without the others."""

    def with_struct_fields(self, fields: Mapping[str, frozenset[str]]) -> Format:
        """Returns the format that reads, of the structs that are named, only these fields. The order stays."""


def with_fields_only(schema: pa.Schema, fields: Mapping[str, frozenset[str]]) -> pa.Schema:
    """Returns a schema whose structs have only these fields, if they are named.

    Examples:
        >>> schema = pa.schema({"s": pa.struct({"a": pa.int8(), "b": pa.int8()}), "x": pa.int8()})
        >>> print(with_fields_only(schema, {"s": frozenset("b")}).field("s").type)
        struct<b: int8>
    """
    found = list(schema) if fields else []
    for place, field in enumerate(found):
        if (wanted := fields.get(field.name)) is not None:
            found[place] = field.with_type(pa.struct([part for part in field.type if part.name in wanted]))
    return pa.schema(found) if fields else schema


@runtime_checkable
class RunFormat(Protocol):
    """A capability of a `Format` that decodes splits which follow each other faster together than one by one."""

    def read_run(
        self, store: Store, run: Sequence[tuple[Footer, Split]], schema: pa.Schema
    ) -> list[pa.RecordBatch] | None:
        """Decodes splits of local files, and returns a batch for each, as `Format.read` does; None if it cannot.

        After None, and after any error, the splits are read one by one.

        Args:
            store: Where the files lie.
            run: Splits that follow each other: in a file, or the last of one file and the first of another.
            schema: The columns to read.
        """


@runtime_checkable
class PiecesFormat(Protocol):
    """A capability of a `Format` that decodes rows in the middle of a split without decoding those before them.

    Splits of local files that are too large for one call are read in such pieces.
    """

    def is_cut(self, footer: Footer, split: Split, columns: Sequence[str]) -> bool:
        """Returns whether a split may be cut, as far as its footer tells. No I/O, cheap."""

    def cuts(
        self, store: Store, footer: Footer, split: Split, columns: Sequence[str], rows: int
    ) -> Sequence[int] | None:
        """Returns the rows, of all rows of a split, at which it is best cut into pieces of about `rows`; None if nowhere.

        Called once a split and epoch, from any worker. May do I/O.
        """

    def read_rows(
        self, store: Store, footer: Footer, split: Split, schema: pa.Schema, start: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        """Decodes the rows from `start` to `stop` of a split that has `cuts`; as `Format.read` else."""


class Sifted(NamedTuple):
    """Rows of a split that follow each other, good and bad ones.

    Attributes:
        batch: The good rows.
        first: The number of the first row, good or bad, in the split.
        rows: How many rows they are, good and bad.
        numbers: The numbers of the bad rows in the split, in order.
        bad: The bad rows, in order, if they are kept.
    """

    batch: pa.RecordBatch
    first: int
    rows: int
    numbers: Sequence[int] = ()
    bad: tuple[BadRow, ...] = ()


class Hints(dict[pa.Schema, set[str]]):
    """The knowledge of a `SiftingFormat` about the bad rows of a source, by the columns that are read: they decide what is bad.

    In later splits and epochs of the same process it finds bad rows sooner with it. Any thread adds to the sets.
    """

    def __reduce__(self) -> tuple[type[Hints], tuple[()]]:
        return Hints, ()  # a copy could meet a set to which a thread adds


@runtime_checkable
class SiftingFormat(Protocol):
    """A capability of a `Format` that tells the good rows of a split from the bad ones. Others leave out whole splits."""

    def sift(
        self,
        store: Store,
        footer: Footer,
        split: Split,
        schema: pa.Schema,
        offset_rows: int,
        *,
        keep: bool,
        hints: set[str],
    ) -> Iterator[Sifted]:
        """Decodes a split as `Format.read` does, without its bad rows.

        The set of bad rows follows from the file and the columns alone. The parts that it yields do, too, so that each is
        kept under one name. The first may begin before `offset_rows`.

        Args:
            offset_rows: Rows of the split, good and bad, that need not be read.
            keep: Whether bad rows are kept, so that their bytes and what is wrong with them are of use.
            hints: Texts that the format keeps for later splits of the same columns, such as the names of columns with bad
                values. They save time, and never change which rows are good. Any thread.

        Raises:
            SourceError: Nothing more of the split can be decoded.
        """


@runtime_checkable
class PooledFormat(Protocol):
    """A capability of a `Format` that may decode in a pool of threads other than Arrow's."""

    def with_threads(self, num_threads: int) -> Format:
        """Returns the format for a CPU budget of `num_threads`. Called when a kernel is made.

        A call uses a pool that has no more threads, or one of the threads of a larger pool.
        """

    def engine(self, store: Store) -> str:
        """Returns the engines whose pools may decode files of a store, as in `KernelSpec.engine`. No I/O."""


@runtime_checkable
class Unsure(Format, Protocol):
    """A capability of a `Format` whose footers do not always tell the decoded size of columns."""

    def unsure(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[str]:
        """Returns the columns that may take more than `Format.column_bytes`, which is then a lower bound. No I/O.

        Called once a split, from any worker. One split is read at a time until such a column has been decoded once.
        """

    def announced_bytes(self, store: Store, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """Returns the bytes of these columns that the split itself announces, by default no more than `column_bytes`.

        Called right before `read`; may do I/O.

        Raises:
            SourceError: The split cannot be read.
        """
        return self.column_bytes(footer, split, columns)


Bits = Mapping[str, int | None]
"""Of each column, the bits of a value, or None where they depend on the value."""


def bits_of(schema: pa.Schema) -> Bits:
    """Returns the bits of each column.

    Examples:
        >>> bits_of(pa.schema({"x": pa.int8(), "text": pa.string()}))
        {'x': 9, 'text': None}
    """
    return {field.name: width_bits(field.type) for field in schema}


def least_bytes(bits: Bits, num_rows: int) -> int:
    """Returns the bytes that rows take at least."""
    # A value without a fixed width has an offset, and may be null.
    return num_rows * sum(33 if each is None else each for each in bits.values()) // 8


class WidthsFormat(Unsure):
    """A format that is `Unsure` of columns without a fixed width. The details of its footers have the attribute `bits`."""

    def column_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        """See `Format.column_bytes`: exact for columns of fixed width, a lower bound for others."""
        bits: Bits = footer.details.bits
        return sum(
            least_bytes({name: bits.get(name, 64)}, split.num_rows) + 1  # null fills an absent column
            for name in columns
        )

    def unsure(self, footer: Footer, split: Split, columns: Sequence[str]) -> list[str]:
        """See `Unsure.unsure`: all columns without a fixed width."""
        return [name for name in columns if footer.details.bits.get(name, 64) is None]


@runtime_checkable
class InPlaceFormat(Format, Protocol):
    """A capability: files can be mapped, and their rows gathered in place. A global `shuffle` needs this capability.

    For files that passed `check_in_place` the `store` of `read` is then a `Mapped`: what `read` makes views of, is not copied.
    """

    def is_mapped(self, store: Store, footer: Footer) -> bool:
        """Returns whether `read` yields views of the mapped file. No I/O. The default is False."""
        return False

    def only_maps(self, store: Store, footer: Footer, columns: Sequence[str]) -> bool:
        """Returns whether `read` only makes views and looks at no value of these columns. The default is False."""
        return False

    def check_in_place(self, store: Store, footer: Footer) -> None:
        """Raises `PlanError` if the rows of this file cannot be gathered in place. No I/O."""


@runtime_checkable
class Untyped(Format, Protocol):
    """A capability of a `Format` whose files do not say their types."""

    def typed(self, schema: pa.Schema, *, is_inferred: bool = False) -> Format:
        """Returns the format that reads the columns of all files as these types. Called when a plan is bound.

        Args:
            schema: The types.
            is_inferred: Whether they are those of a sample, and not a user's own.

        Raises:
            SchemaError: The format cannot read one of the types.
        """

    @abstractmethod
    def footer(self, store: Store, file: File, *, is_sample: bool = False) -> Footer:
        """See `Format.footer`. When a plan is bound, a sample will do: the first splits or rows alone, with all columns."""

    def holds(self, store: Store, footer: Footer, names: Sequence[str]) -> list[str]:
        """Returns the `names` that are columns of a file, whatever types the format reads, as its first MiB tells.

        Called once a file and epoch, for files in folders that name columns; a column must not be in both.
        """


@runtime_checkable
class OwnArguments(Protocol):
    """A capability of a `Format` whose rows depend on more than its options."""

    def arguments(self) -> Mapping[str, Any]:
        """Returns the further dependencies as JSON values. States are compared by them, or else by the options."""


def first_footer(operator: str, format: Format, store: Store, files: Sequence[File]) -> Footer:
    """Returns the footer of the first file, whose types all files are read by.

    Where files do not say their types, and no row of the first file tells that of a column, a few other files may tell it.

    Raises:
        SourceError: The first file cannot be read.
    """
    if not isinstance(format, Untyped):
        return footer_of(operator, format, store, files[0])
    with reading(operator, files[0]):
        first = format.footer(store, files[0], is_sample=True)
        check_unchanged(files[0])
    schema = first.schema
    for file in files[1 : 1 + _FILES_LOOKED_AT]:
        if not any(map(is_unknown, schema.types)):
            break
        with suppress(SourceError, SchemaError), reading(operator, file):  # its reader tells of bad rows
            schema = with_known(schema, format.footer(store, file, is_sample=True).schema)
    return replace(first, schema=schema)


def all_columns(
    operator: str, format: Format, store: Store, first: Footer, files: Sequence[File]
) -> pa.Schema:
    """Returns the columns of all files, each with the type of the first file that has it.

    Raises:
        SourceError: A file cannot be read.
    """

    def columns(file: File) -> pa.Schema:
        return first_footer(operator, format, store, [file]).schema

    found = [first.schema, *store.together([partial(columns, file) for file in files[1:]])]
    fields = {field.name: field for schema in reversed(found) for field in schema}
    names = dict.fromkeys(name for schema in found for name in schema.names)
    return pa.schema([fields[name] for name in names])

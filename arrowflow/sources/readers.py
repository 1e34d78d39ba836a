"""Readers: datasets that start with files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from os import PathLike
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

import polars as pl
import pyarrow as pa

from arrowflow.bad_rows import BadRowPolicy
from arrowflow.dataset import Dataset, plans_of
from arrowflow.errors import PlanError, shown
from arrowflow.formats import FORMATS, Format, configured, find, known_names, reader_of
from arrowflow.observe.guessed_names import OF_LIBRARY
from arrowflow.ops.columns.column_program import as_given, chosen_columns
from arrowflow.ops.columns.select import Select
from arrowflow.ops.sources.files.read import Read
from arrowflow.ops.sources.from_memory import given_schema
from arrowflow.options import AUTOTUNE, OnError, check_choice, check_flag, parallel_calls, with_arguments
from arrowflow.storage import lake_of, place_of

if TYPE_CHECKING:
    import pyarrow.compute as pc

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
Partitioning = Literal["auto", "hive"] | None
MissingColumns = Literal["error", "null"]


def read(
    paths: Paths,
    *,
    format: str | Format | None = None,
    columns: Sequence[str | pl.Expr] | pl.Expr | None = None,
    filter: pl.Expr | pc.Expression | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    schema: pa.Schema | Mapping[str, Any] | None = None,
    partitioning: Partitioning = "auto",
    missing_columns: MissingColumns = "error",
    num_parallel_calls: int = AUTOTUNE,
    memory_map: bool | None = None,
    on_error: OnError | None = None,
    quarantine: str | PathLike[str] | None = None,
    **options: Any,
) -> Dataset:
    r"""Reads files of any format, split by split, in the order of `paths`.

    `read(paths, format="csv", delimiter=";")` is `read_csv(paths, delimiter=";")`. Packages offer formats of their own by
    the entry point `arrowflow.formats`; `docs/formats.md` says how to write one.

    Args:
        paths: A path, a glob, a directory, a URL that `pyarrow.fs` or fsspec knows, or a list of them. Of a directory
            the files with the format's suffixes are read. A list keeps its order; the files of a directory or a glob
            are sorted.
        format: `"parquet"`, `"ipc"`, `"orc"`, `"avro"`, `"csv"`, `"json"`, `"text"`, `"tfrecord"`, `"webdataset"`, a name that an installed package offers, or a
            `Format`. Without it the error says how files with this ending are read.
        columns: Names of the columns to keep, or selectors of Polars; the same as `.select(columns)`.
        filter: The rows to keep; the same as `.filter(filter)`, before `columns` are selected.
        filesystem: A file system of `pyarrow.fs` or fsspec, instead of telling by the paths.
        storage_options: Arguments of the client that the paths need; `docs/storage.md` has examples.
        schema: Columns and types of all files; null where a file lacks a column.
        partitioning: Whether folders called `key=value` give columns, as in `read_parquet`.
        missing_columns: Whether files may lack columns of others, as in `read_parquet`.
        num_parallel_calls: Splits decoded at the same time.
        memory_map: Whether local files are mapped into memory, as in `read_parquet`.
        on_error: The treatment of bad rows, as in `read_parquet`, and as in `read_csv` for formats that tell single rows.
        quarantine: The folder for them, as in `read_parquet`.
        **options: The options of the format.

    Raises:
        SourceError: A path is missing, a glob empty, a file unreadable; when the dataset is bound or read.
        SchemaError: A file lacks a column or has another type.
        PlanError: There is no such format, the format has no such option, or an option makes no sense.

    Examples:
        >>> import arrowflow as af, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.csv").write_text("x;name\n1;one\n2;two\n")
        >>> af.read(folder, format="csv", delimiter=";").to_table().to_pydict()
        {'x': [1, 2], 'name': ['one', 'two']}
    """
    found = _format_of(format, paths)
    operator = reader_of(found)
    if isinstance(columns, list | tuple) and not columns:
        raise PlanError(
            f"{operator}: columns names at least one column, got {shown(columns)}; leave it out to read all columns, "
            "or take num_rows to count rows"
        )
    chosen = None if columns is None else as_given(chosen_columns(operator, (columns,)))
    dataset = Dataset(
        Read(
            format=configured(found, options),
            paths=taken(paths),
            filesystem=place_of(operator, filesystem, storage_options),
            partitioning=check_choice(operator, "partitioning", partitioning, ("auto", "hive", None)),
            missing_columns=check_choice(operator, "missing_columns", missing_columns, ("error", "null")),
            target=given_schema(operator, schema),
            num_parallel_calls=parallel_calls(operator, num_parallel_calls),
            memory_map=None if memory_map is None else check_flag(operator, "memory_map", memory_map),
            policy=BadRowPolicy.of(operator, on_error, quarantine),
            picks=None if chosen is None else tuple(one for one in chosen if isinstance(one, str)),
        )
    )
    if filter is not None:
        dataset = dataset.filter(filter)
    if chosen is not None:
        (plan,) = plans_of(operator, [dataset])
        dataset = Dataset(Select.named_by(operator, plan, chosen))
    return dataset


def taken(paths: Any) -> Any:
    """Returns paths that can be looked at again: those of an iterator as a list."""
    is_file = hasattr(paths, "read")  # which is told when the plan is bound
    return list(paths) if isinstance(paths, Iterator) and not is_file else paths


def _format_of(format: object, paths: Any) -> Format:
    """Returns the format that a user gave, or raises `PlanError` with the way to read such files."""
    if isinstance(format, Format):
        return format
    if isinstance(format, str):
        try:
            return find(format)
        except PlanError as error:
            raise PlanError(f"read: {error}{_other_way(format)}") from error.__cause__
    if format is not None:
        raise PlanError(f"read: format is a name, or an arrowflow.formats.Format, got {shown(format)}")
    given = paths[0] if isinstance(paths, Sequence) and not isinstance(paths, str) and paths else paths
    file = str(given).lower()
    own = [
        f"; write `af.read_{name}(path)`"
        for name, known in FORMATS.items()
        if file.endswith((f".{name}", *filter(None, known.suffixes)))
    ]
    lake = lake_of(str(given))
    way = f"; write `{lake[1]}`" if lake else _other_way(PurePath(file).suffix.removeprefix("."))
    raise PlanError(
        f"read: format= names the format of the files, one of {', '.join(known_names())}{own[0] if own else way}"
    )


def _other_way(format: str) -> str:
    code = f"`af.read_{format}(…)`" if format in _TABLES else OF_LIBRARY.get(f"read_{format}")
    return "" if code is None else f"; write {code}"


_TABLES: Final = ("delta", "iceberg", "lance")


class ReadArguments(TypedDict, total=False):
    """The arguments that all readers have; their usual values are those of `read`."""

    columns: Sequence[str | pl.Expr] | pl.Expr | None
    filter: pl.Expr | pc.Expression | None
    filesystem: Any
    storage_options: Mapping[str, Any] | None
    schema: pa.Schema | Mapping[str, Any] | None
    partitioning: Partitioning
    missing_columns: MissingColumns
    num_parallel_calls: int
    on_error: OnError | None
    quarantine: str | PathLike[str] | None


class MappedArguments(ReadArguments, total=False):
    """The arguments of `read_parquet` and `read_ipc`."""

    memory_map: bool | None


class TextArguments(ReadArguments, total=False):
    """The arguments of `read_json`."""

    block_bytes: int | str


class LineArguments(TypedDict, total=False):
    """The arguments of `read_text`."""

    filter: pl.Expr | pc.Expression | None
    filesystem: Any
    storage_options: Mapping[str, Any] | None
    partitioning: Partitioning
    num_parallel_calls: int
    encoding: str
    block_bytes: int | str
    on_error: OnError | None
    quarantine: str | PathLike[str] | None


class CsvArguments(TextArguments, total=False):
    """The arguments of `read_csv`."""

    delimiter: str | None
    quote_char: str | None
    escape_char: str | None
    comment_prefix: str | None
    skip_rows: int
    has_header: bool
    column_names: Sequence[str] | None
    null_values: str | Sequence[str]
    decimal_point: str
    truncate_ragged_lines: bool
    encoding: str


def usual(kind: type, format: str) -> dict[str, Any]:
    """Returns the values of arguments that are not given: those of `read`, and those of the format."""
    shared = signature(read).parameters
    names: Iterable[str] = kind.__annotations__
    return {
        name: shared[name].default if name in shared else getattr(FORMATS[format], name) for name in names
    }


@with_arguments(MappedArguments, usual(MappedArguments, "parquet"))
def read_parquet(paths: Paths, **arguments: Unpack[MappedArguments]) -> Dataset:
    """Reads Parquet files, row group by row group, in the order of `paths`.

    The first file decides the schema. Columns of other files are matched by name, and further columns are ignored.
    Row groups that provably hold no match of a later filter are not read. Columns that nothing later needs are not
    read.

    Memory: a few calls, each up to 32 MiB of decoded rows, or less where `ram_budget` is small. One call reads several
    small files or row groups. A large row group of local files is read in pieces, by its pages. Row groups with lists,
    structs or texts of unknown size are read whole. None of this changes a chunk or its order.

    Folders called `key=value` give a column each, after the columns of the files. Its type is int64 if all values are
    whole numbers, else string, unless `schema=` names one. `__HIVE_DEFAULT_PARTITION__` is null. Folders that a
    filter rules out are not read.

    Args:
        paths: A path, a glob, a directory, a URL that `pyarrow.fs` or fsspec knows, or a list of them. In directories
            links to folders are followed, and no folder is read twice. Names that start with `.` or `_` are left out,
            and so is everything that is no file.
        columns: Names of the columns to keep, or selectors of Polars; the same as `.select(columns)`.
        filter: The rows to keep; the same as `.filter(filter)`, before `columns` are selected.
        filesystem: A file system of `pyarrow.fs` or fsspec. By default the paths tell it.
        storage_options: Arguments of the client that the paths need; `docs/storage.md` has examples.
        schema: Columns and types of all files, and of folders: a schema of pyarrow or Polars, or a mapping from
            columns to types. Columns that a file lacks are null. Columns of other types are cast; a value that would
            lose something is an error that names file, row group and row.
        partitioning: `"hive"` makes columns of folders; None makes none. `"auto"`, the default, makes columns where
            files are found in a directory or by a glob, unless the first file has these columns itself. Where folders
            make columns, a file that has such a column itself is an error. Folders count from the named directory on,
            or from the first wildcard. For a file that is named itself all folders count, with `"hive"`.
        missing_columns: `"null"` fills columns that a file lacks with null, and takes the columns of all files: the
            footer of each is read before the first row. `"error"`, the default, is an error for a file that lacks a
            column of the first one, and leaves further columns out.
        num_parallel_calls: Calls that decode at the same time. Default: `af.AUTOTUNE`.
        memory_map: Whether local files are mapped into memory. The system ends a process (SIGBUS) that reads a mapped
            file after another process made it shorter, and rows of uncompressed IPC files change with the file. False
            reads the files instead, which costs a copy, and leaves out the decoder of Polars. By default files are
            mapped, but not on network file systems (NFS, FUSE, Lustre).
        on_error: The treatment of row groups that cannot be decoded, or do not fit `schema`. `"raise"` ends the run, `"skip"`
            leaves them out, `"quarantine"` also writes place and error to a folder; so for files, but the first, without a
            readable footer. `docs/operators.md` says more. By default `Options.on_error` decides. Failures of storage,
            and files of other columns, always raise.
        quarantine: The folder, or its URL, for `on_error="quarantine"`; `af.read_quarantine` reads it.

    Raises:
        SourceError: A path is missing, a glob is empty, or a file is unreadable; when the dataset is bound or read. Or
            a file was replaced, written again or removed before its last row was read. Of files that are not local,
            those with several row groups are looked at, after each of them.
        SchemaError: A file lacks a column or has another type. Or a folder has other keys, or a value that does not
            fit. The message names both sides.
        DataError: A value loses something as its type in `schema`, such as 0.5 as int64; in `next()`.

    Examples:
        >>> import arrowflow as af, pathlib, polars as pl, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for year in (2023, 2024):
        ...     (folder / f"year={year}").mkdir()
        ...     pl.DataFrame({"x": [1, 2, 3]}).write_parquet(folder / f"year={year}" / "a.parquet")
        >>> af.read_parquet(folder, filter=(pl.col("x") > 1) & (pl.col("year") == 2024)).to_table().to_pydict()
        {'x': [2, 3], 'year': [2024, 2024]}
    """
    return read(paths, format="parquet", **arguments)


@with_arguments(MappedArguments, usual(MappedArguments, "ipc"))
def read_ipc(paths: Paths, **arguments: Unpack[MappedArguments]) -> Dataset:
    """Reads Arrow IPC files (Feather version 2) and streams, record batch by record batch, in the order of `paths`.

    Uncompressed local files are mapped into memory and not copied. Streams are walked once from batch to batch, and
    copied. Arguments and errors are those of `read_parquet`.

    Examples:
        >>> import arrowflow as af, pathlib, polars as pl, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> pl.DataFrame({"x": [1, 2, 3]}).write_ipc(folder / "a.arrow")
        >>> af.read_ipc(folder / "*.arrow").num_rows
        3
    """
    return read(paths, format="ipc", **arguments)


@with_arguments(ReadArguments, usual(ReadArguments, "orc"))
def read_orc(paths: Paths, **arguments: Unpack[ReadArguments]) -> Dataset:
    """Reads ORC files, stripe by stripe, in the order of `paths`.

    The footer tells the rows of each stripe, so `skip`, `take`, `num_rows` and resume seek. Columns that nothing later
    needs are not decoded. Stripes are read whole, and no filter rules one out. Arguments and errors are those of
    `read_parquet`. A file that is cut short is an error. Read only files that you trust: on changed bytes pyarrow's
    decoder may end the process (seen in pyarrow 22 and 26).

    Examples:
        >>> import arrowflow as af, pathlib, pyarrow as pa, pyarrow.orc, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> pyarrow.orc.write_table(pa.table({"x": [1, 2, 3], "y": [4, 5, 6]}), folder / "a.orc")
        >>> af.read_orc(folder, columns="x").to_table().to_pydict()
        {'x': [1, 2, 3]}
    """
    return read(paths, format="orc", **arguments)


@with_arguments(CsvArguments, usual(CsvArguments, "csv"))
def read_csv(paths: Paths, **arguments: Unpack[CsvArguments]) -> Dataset:
    r"""Reads CSV files, block by block, in the order of `paths`.

    Names come from each file's header, types from the first MiB of the first file, as `pyarrow.csv` tells them. The
    types are whole numbers, fractions, booleans, dates, times, else text. Whole numbers that exceed int64 are
    refused, since fractions would round them. A column may have no value in the first MiB. Then the next 31 MiB are
    looked through, and the next files; if it has none there, its type is null. A later value that does not fit is
    an error that says where. `schema=` gives the types instead, and then a file may lack columns. Files that end in
    `.gz`, `.bz2`, `.zst` or `.lz4` are decompressed.

    Lines without a byte are no rows, not even an empty text or a null of the only column. To read lines of plain
    text, without the empty lines, give `column_names=["line"]`, `schema=pa.schema({"line": pa.string()})`,
    `quote_char=None` and `delimiter="\x01"`.

    Each file is scanned for line ends before its first row, at 1 to 2 GB/s, or 0.4 GB/s where everything is quoted.
    The scan makes `skip`, `take`, `num_rows` and resume exact. It fetches a file that is not local a second time.
    Resume seeks to the block. In a compressed file, resume decompresses the delivered rows again. Memory: a block per
    call; of compressed files that are not local also the stored bytes.

    Args:
        paths: A path, a glob, a directory, a URL that `pyarrow.fs` or fsspec knows, or a list of them.
        columns: Names of the columns to keep, or selectors of Polars; the same as `.select(columns)`. Others are not decoded.
        filter: The rows to keep; the same as `.filter(filter)`, before `columns` are selected.
        filesystem: A file system of `pyarrow.fs` or fsspec. By default the paths tell it.
        storage_options: Arguments of the client that the paths need; `docs/storage.md` has examples.
        schema: Columns and types of all files; null where a file lacks a column.
        partitioning: Whether folders called `key=value` give columns, as in `read_parquet`.
        missing_columns: Whether files may lack columns of others, as in `read_parquet`.
        delimiter: The character between fields. Default: a comma, or a tab in files that end in `.tsv` (and `.gz` and
            so on).
        quote_char: The character around texts that hold it, delimiters or line ends; inside of them it is doubled.
            None means no quoting. Default: `"`.
        escape_char: The character in front of one that stands for itself, as `\\` in files of MySQL and Hive. Default: none.
        comment_prefix: The start of lines that are comments, such as `"#"`. Default: none.
        skip_rows: Lines in front of the header, or of the first row, that are left out; quotes mean nothing in them.
            Default: 0.
        has_header: Whether the first row names the columns, as by default; else they are `column_0`, `column_1` and
            so on, as of Polars.
        column_names: Names of the columns of files that have no header.
        null_values: Texts that stand for null where they are not quoted, in text columns, too. `""` quoted is an
            empty text. Default: `""`. With others, as `"NA"`, an empty field of a text column is an empty text, and
            null in other columns; `["", "NA"]` makes it null in all.
        decimal_point: The character before the fraction of a number, by default a point; where it is a comma,
            `delimiter` is another one.
        truncate_ragged_lines: Whether lines with too few fields are filled with null, and those with too many are
            cut. Default: False.
        encoding: The encoding of the files, such as `"cp1252"` or `"utf-16"`. Default: UTF-8. Files in others than
            UTF-8 are read from the start on, as compressed ones.
        num_parallel_calls: Blocks decoded at the same time. Default: `af.AUTOTUNE`.
        block_bytes: Bytes of a block, which `shuffle` draws from. Default: 4 MiB. The size changes no value and no type.
        on_error: The treatment of rows with a value of another type than their column, or too many or too few values, as in
            `read_parquet`, but row by row. `"raise"` delivers the rows before it.
        quarantine: The folder, or its URL, for `on_error="quarantine"`; `af.read_quarantine` reads it.

    Raises:
        SourceError: A path is missing, a glob is empty, or a file is malformed; when the dataset is bound or read. A
            record over 64 MiB, or over `block_bytes` if that is more, counts as malformed: mostly nothing closes a quote.
        SchemaError: A value has another type than its column, or a file lacks a column.
        BudgetError: A file has more than 131,072 columns.
        PlanError: An option makes no sense.

    Examples:
        >>> import arrowflow as af, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.csv").write_text("x,name\n1,one\n2,\n")
        >>> af.read_csv(folder).to_table().to_pydict()
        {'x': [1, 2], 'name': ['one', None]}
    """
    return read(paths, format="csv", **arguments)


@with_arguments(TextArguments, usual(TextArguments, "json"))
def read_json(paths: Paths, **arguments: Unpack[TextArguments]) -> Dataset:
    r"""Reads JSON files, block by block, in the order of `paths`: an object a line, objects over several lines, or one array of objects.

    The objects in the first MiB of the first file decide columns and types, lists and structs among them. Values that
    are null or empty there are looked for as by `read_csv`. Texts stay texts, also where they look like times. A key
    that an object lacks is null. A key that is no column is ignored, also one that first comes behind that MiB. A value
    that does not fit is an error that says where.

    `schema=` gives columns and types instead. It is needed where the first file has objects without a key, or whole
    numbers that exceed int64. Where it says `pa.string()`, a value of any kind comes as its JSON text. That also helps
    where keys are values, such as numbers of users: so many columns are a `BudgetError`. A key that folders give,
    too, is looked for in the first MiB of each file. It is refused as in `read_parquet` if it has a value there.

    Compressed files, the scan, resume, memory, arguments and errors are those of `read_csv`. Lines are scanned at 3
    GB/s, arrays at 0.3 GB/s.

    Examples:
        >>> import arrowflow as af, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.jsonl").write_text('{"x": 1, "tags": ["a", "b"]}\n{"x": 2}\n')
        >>> af.read_json(folder).to_table().to_pydict()
        {'x': [1, 2], 'tags': [['a', 'b'], None]}
    """
    return read(paths, format="json", **arguments)


@with_arguments(LineArguments, usual(LineArguments, "text"))
def read_text(paths: Paths, **arguments: Unpack[LineArguments]) -> Dataset:
    r"""Reads text files, block by block, in the order of `paths`: a line is a row, in one column `text`.

    A line is all between two line ends, `\n` or `\r\n`; an empty line is a row. Lines are scanned at 3 GB/s and cut at
    1 GB/s a core. Compressed files (`.gz`, `.bz2`, `.zst`, `.lz4`, `.xz`), the scan, resume and memory are as for
    `read_csv`. `af.read(paths, format="text", schema={"text": pa.binary()})` gives the bytes of lines unchecked.

    Args:
        paths: A path, a glob, a directory (of which the files that end in `.txt` are read, compressed ones too), a URL
            that `pyarrow.fs` or fsspec knows, or a list of them.
        filter: The rows to keep; the same as `.filter(filter)`.
        filesystem: A file system of `pyarrow.fs` or fsspec. By default the paths tell it.
        storage_options: Arguments of the client that the paths need; `docs/storage.md` has examples.
        partitioning: Whether folders called `key=value` give columns, as in `read_parquet`.
        num_parallel_calls: Blocks decoded at the same time.
        encoding: An encoding that Python knows. A file that is not UTF-8 is one split, as a compressed one.
        block_bytes: Bytes of a block.
        on_error: The treatment of lines that are no text in this encoding, as in `read_csv`.
        quarantine: The folder for them, as in `read_csv`.

    Raises:
        SourceError: A path is missing, a glob is empty, or a line is no UTF-8; names the line.
        PlanError: An option makes no sense.

    Examples:
        >>> import arrowflow as af, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
        >>> _ = path.write_text("to be\nor not\n")
        >>> af.read_text(path).to_table().to_pydict()
        {'text': ['to be', 'or not']}
    """
    return read(paths, format="text", **arguments)

"""Where datasets start: files, Arrow data, arrays, generators, numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import pyarrow as pa

from arrowflow.dataset import Dataset, _names, _schema, parallel_calls
from arrowflow.errors import PlanError, shown
from arrowflow.interchange.from_numpy import batch_from_arrays
from arrowflow.ops.sources import from_arrow as arrow
from arrowflow.ops.sources.from_generator import FromGenerator
from arrowflow.ops.sources.from_memory import from_batches
from arrowflow.ops.sources.list_files import ListFiles
from arrowflow.ops.sources.range import Range
from arrowflow.ops.sources.read import Read, configured
from arrowflow.options import AUTOTUNE, parse_bytes

if TYPE_CHECKING:
    import pyarrow.compute as pc

MAX_INT64 = (1 << 63) - 1

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
Partitioning = Literal["auto", "hive"] | None


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: pl.Expr | pc.Expression | None = None,
    filesystem: Any = None,
    schema: pa.Schema | None = None,
    partitioning: Partitioning = "auto",
    num_parallel_calls: int = AUTOTUNE,
) -> Dataset:
    """Reads Parquet files, row group by row group, in sorted order of their paths.

    The schema is the first file's; columns are matched by name, further ones ignored. Row groups that provably hold
    no match of a filter above are not read, nor are columns that nothing above needs.

    Folders called `key=value` give a column each, behind those of the files: int64 if all values are whole numbers, else
    string, or what `schema=` says; `__HIVE_DEFAULT_PARTITION__` is null. Folders that a filter rules out are not read.

    Args:
        paths: A path, a glob, a directory, a URL that `pyarrow.fs` or fsspec knows, or a list of them. In directories
            links to folders are followed, and no folder is read twice; names that start with `.` or `_`, and what is no
            file, are left out.
        columns: Names of the columns to keep; the same as `.select(columns)`.
        filter: The rows to keep; the same as `.filter(filter)`, before `columns` are selected.
        filesystem: A file system of `pyarrow.fs` or fsspec, instead of telling by the paths.
        schema: Widens all files to it, and fills columns that a file lacks with null. Names all columns, those of
            folders too.
        partitioning: `"hive"` for columns of folders; `"auto"` for the same where the files are found below a
            directory or by a glob and do not have these columns themselves, as the first file tells; None for none. A
            file with a column that folders give, too, is an error then. Folders count from the directory on that is
            named, or from the first wildcard; for a file that is named itself all of them do, with `"hive"`.
        num_parallel_calls: Row groups decoded at the same time.

    Raises:
        SourceError: A path is missing, a glob empty, a file unreadable; when the dataset is bound or read.
        SchemaError: A file lacks a column or has another type, a folder other keys or a value that does not fit;
            names both.

    Example:
        >>> import arrowflow as af, pathlib, polars as pl, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for year in (2023, 2024):
        ...     (folder / f"year={year}").mkdir()
        ...     pl.DataFrame({"x": [1, 2, 3]}).write_parquet(folder / f"year={year}" / "a.parquet")
        >>> af.read_parquet(folder, filter=(pl.col("x") > 1) & (pl.col("year") == 2024)).to_table().to_pydict()
        {'x': [2, 3], 'year': [2024, 2024]}
    """
    return _read("parquet", paths, columns, filter, filesystem, schema, partitioning, num_parallel_calls)


def read_ipc(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: pl.Expr | pc.Expression | None = None,
    filesystem: Any = None,
    schema: pa.Schema | None = None,
    partitioning: Partitioning = "auto",
    num_parallel_calls: int = AUTOTUNE,
) -> Dataset:
    """Reads Arrow IPC files (Feather version 2), record batch by record batch, in sorted order of their paths.

    Uncompressed local files are mapped into memory and not copied. Arguments and errors are those of `read_parquet`.

    Example:
        >>> import arrowflow as af, pathlib, polars as pl, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> pl.DataFrame({"x": [1, 2, 3]}).write_ipc(folder / "a.arrow")
        >>> af.read_ipc(folder / "*.arrow").num_rows
        3
    """
    return _read("ipc", paths, columns, filter, filesystem, schema, partitioning, num_parallel_calls)


def read_csv(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: pl.Expr | pc.Expression | None = None,
    filesystem: Any = None,
    schema: pa.Schema | None = None,
    partitioning: Partitioning = "auto",
    delimiter: str | None = None,
    quote_char: str | None = '"',
    column_names: Sequence[str] | None = None,
    null_values: str | Sequence[str] = "",
    num_parallel_calls: int = AUTOTUNE,
    block_bytes: int | str = "4MiB",
) -> Dataset:
    r"""Reads CSV files, block by block, in sorted order of their paths.

    Names come from each file's header, types from the first MiB of the first file: whole numbers, fractions, booleans,
    dates, times, else text, as `pyarrow.csv` tells them; but whole numbers that exceed int64 are refused, since as
    fractions they would be rounded. A later value that does not fit is an error that says where; `schema=` gives the
    types instead, and then a file may lack columns. Files that end in `.gz`, `.bz2`, `.zst` or `.lz4` are decompressed.

    Lines without a byte are no rows, also where they could be an empty text or a null of the only column. Lines of plain
    text are read, without the empty ones, by `column_names=["line"], schema=pa.schema({"line": pa.string()}),
    quote_char=None, delimiter="\x01"`.

    Each file is scanned for line ends before its first row, at 1 to 2 GB/s, 0.4 GB/s where everything is quoted; that
    makes `skip`, `take`, `num_rows` and resume exact. One that is not local is fetched twice for it. Resume seeks to the
    block; of a compressed file it decompresses what was delivered again. Memory: a block a call, and of compressed files
    that are not local their stored bytes.

    Args:
        paths: A path, a glob, a directory, a URL that `pyarrow.fs` or fsspec knows, or a list of them.
        columns: Names of the columns to keep; the same as `.select(columns)`. Others are not decoded.
        filter: The rows to keep; the same as `.filter(filter)`, before `columns` are selected.
        filesystem: A file system of `pyarrow.fs` or fsspec, instead of telling by the paths.
        schema: Columns and types of all files; null where a file lacks a column.
        partitioning: Whether folders called `key=value` give columns, as in `read_parquet`.
        delimiter: Between fields; a comma, or a tab in files that end in `.tsv` (and `.gz` and so on), unless given.
        quote_char: Around texts that hold it, delimiters or line ends, and doubled in them. None for no quoting.
        column_names: Names of the columns of files that have no header.
        null_values: What stands for null where it is not quoted, in texts, too: `""` quoted is an empty text.
        num_parallel_calls: Blocks decoded at the same time.
        block_bytes: Bytes of a block, which `shuffle` draws from. Changes no value and no type.

    Raises:
        SourceError: A path is missing, a glob empty, a file malformed, a record over 64 MiB, as behind a quote that
            nothing closes; when the dataset is bound or read.
        SchemaError: A value has another type than its column, or a file lacks a column.
        PlanError: An option makes no sense.

    Example:
        >>> import arrowflow as af, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.csv").write_text("x,name\n1,one\n2,\n")
        >>> af.read_csv(folder).to_table().to_pydict()
        {'x': [1, 2], 'name': ['one', None]}
    """
    settings = configured(
        "csv",
        delimiter=delimiter,
        quote_char=quote_char,
        column_names=None if column_names is None else _names("read_csv", (column_names,)),
        null_values=tuple(null_values) if isinstance(null_values, list | tuple) else (null_values,),
        block_bytes=parse_bytes("block_bytes", block_bytes),
    )
    return _read(
        "csv", paths, columns, filter, filesystem, schema, partitioning, num_parallel_calls, settings
    )


def read_json(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: pl.Expr | pc.Expression | None = None,
    filesystem: Any = None,
    schema: pa.Schema | None = None,
    partitioning: Partitioning = "auto",
    num_parallel_calls: int = AUTOTUNE,
    block_bytes: int | str = "4MiB",
) -> Dataset:
    r"""Reads JSON files, block by block, in sorted order of their paths: an object a line, or one array of objects.

    Columns and types are those of the objects in the first MiB of the first file, lists and structs among them; texts
    stay texts, also where they look like times. A key that an object lacks is null, one that is no column is ignored,
    a value that does not fit is an error that says where; `schema=` gives columns and types instead, and has to where
    the first file has objects without a key, or whole numbers that exceed int64. A key that folders give, too, is
    looked for in the first MiB of each file, and refused as in `read_parquet` if it has a value. Compressed files,
    the scan, resume, memory, arguments and errors are those of `read_csv`; lines are scanned at 3 GB/s, arrays at 0.3.

    Example:
        >>> import arrowflow as af, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.jsonl").write_text('{"x": 1, "tags": ["a", "b"]}\n{"x": 2}\n')
        >>> af.read_json(folder).to_table().to_pydict()
        {'x': [1, 2], 'tags': [['a', 'b'], None]}
    """
    settings = configured("json", block_bytes=parse_bytes("block_bytes", block_bytes))
    return _read(
        "json", paths, columns, filter, filesystem, schema, partitioning, num_parallel_calls, settings
    )


def read_tfrecord(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: pl.Expr | pc.Expression | None = None,
    filesystem: Any = None,
    schema: pa.Schema | None = None,
    partitioning: Partitioning = "auto",
    raw: bool = False,
    compression: str | None = None,
    num_parallel_calls: int = AUTOTUNE,
) -> Dataset:
    """Reads TFRecord files of `tf.train.Example`, block by block, in sorted order of their paths.

    Each feature becomes a column: `int64_list` gives int64, `float_list` float32, `bytes_list` binary. Where a feature
    has other than one value in any of the first records of the first file (1 MiB or 1,000 of them) its column is one of
    lists. A feature that a record lacks is null, one that is no column is ignored, one that does not fit its column is
    an error that says where. `schema=` gives the columns instead: whole numbers of any width, bool, float64, string,
    `pa.list_(…)` of any number of values, `pa.list_(…, n)` of exactly *n*.

    CRCs are checked. What a record means is what the package `protobuf` makes of it (extra `tfrecord`); TensorFlow is
    not needed. A `tf.train.SequenceExample` is refused, but comes whole with `raw=True`. Each file is walked once, from header to header, before its first row, 0.25 µs a record, so that `skip`,
    `take`, `num_rows` and resume are exact; what is not local is fetched for that, and compressed files are inflated,
    once more than for the rows. Resume seeks to the block; of a compressed file it inflates what was delivered again.
    Memory: a call takes a MiB of records, or up to 4 where they are large, and nine times as much to decode them, with
    nine bytes for each cell; where there are many columns a block has fewer rows. Of compressed files that are not local
    it also takes the stored bytes.

    Args:
        paths: A path, a glob, a directory (of which all files are read), a URL that `pyarrow.fs` or fsspec knows, or a
            list of them.
        columns: Names of the columns to keep; the same as `.select(columns)`. Others are not decoded.
        filter: The rows to keep; the same as `.filter(filter)`, before `columns` are selected.
        filesystem: A file system of `pyarrow.fs` or fsspec, instead of telling by the paths.
        schema: Columns and types of all files.
        partitioning: Whether folders called `key=value` give columns, as in `read_parquet`.
        raw: Whether records come as they are, in one column `record` of binary, to be decoded by `map`.
        compression: `"none"`, `"gzip"` or `"zlib"`; None tells by the first bytes of each file.
        num_parallel_calls: Blocks decoded at the same time.

    Raises:
        SourceError: A path is missing, a glob empty; a file is truncated or corrupt, a record no `tf.train.Example`:
            behind the rows in front of it, but for the records that tell the schema, which are read when the dataset is
            bound. Names the record.
        SchemaError: A feature has another kind or another number of values than its column; names record and feature.
        DataError: A value does not fit its column's type.
        PlanError: An option makes no sense, or a package is missing.

    Example:
        >>> import arrowflow as af, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.tfrecord"
        >>> stored = "0e00000000000000c5e5693f0a0c0a0a0a017812051a030a010798993925"  # by tf.io.TFRecordWriter
        >>> _ = path.write_bytes(bytes.fromhex(stored))
        >>> af.read_tfrecord(path).to_table().to_pydict()
        {'x': [7]}
    """
    if raw and schema is not None:
        raise PlanError(
            "read_tfrecord: records come as one column with raw=True, so there is no schema= to give"
        )
    settings = configured("tfrecord", raw=raw, compression=compression)
    return _read(
        "tfrecord", paths, columns, filter, filesystem, schema, partitioning, num_parallel_calls, settings
    )


def _read(
    format: str,
    paths: Paths,
    columns: Sequence[str] | None,
    filter: Any,
    filesystem: Any,
    schema: pa.Schema | None,
    partitioning: Partitioning,
    num_parallel_calls: int,
    settings: Any = None,
) -> Dataset:
    operator = f"read_{format}"
    dataset = Dataset(
        Read(
            format=format,
            settings=settings,
            paths=paths,
            filesystem=filesystem,
            partitioning=_partitioning(operator, partitioning),
            target=_schema(operator, schema),
            num_parallel_calls=parallel_calls(operator, num_parallel_calls),
        )
    )
    if filter is not None:
        dataset = dataset.filter(filter)
    if columns is not None:
        dataset = dataset.select(*_names(operator, (columns,)))
    return dataset


def _partitioning(operator: str, partitioning: Any) -> str | None:
    if partitioning not in ("auto", "hive", None):
        raise PlanError(f"{operator}: partitioning is 'auto', 'hive' or None, got {shown(partitioning)}")
    return None if partitioning is None else str(partitioning)


def list_files(paths: Paths, *, filesystem: Any = None) -> Dataset:
    """Lists files: their paths as text in the column `path`, in sorted order; nothing of them is read.

    Local files come as absolute paths, those of a URL as URLs, so that each can be read by itself, as by
    `interleave` or `map`. Files are listed when the dataset is bound, and those on local
    disks anew for each run and question. For another order use `shuffle`.

    Args:
        paths: A path, a glob, a directory, a URL that `pyarrow.fs` or fsspec knows, or a list of them. A directory
            gives all files in it and in its folders, but no names that start with `.` or `_`.
        filesystem: A file system of `pyarrow.fs` or fsspec, instead of telling by the paths. What is listed then
            are paths in it, to be read with the same `filesystem`.

    Raises:
        SourceError: A path is missing, a glob or a directory empty; when the dataset is bound.
        PlanError: `paths` are no paths, or lie in different file systems; when the dataset is bound.

    Example:
        >>> import arrowflow as af, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in "b.parquet", "a.parquet", "notes.txt":
        ...     _ = (folder / name).write_bytes(b"...")
        >>> table = af.list_files(folder / "*.parquet").to_table()
        >>> [pathlib.Path(path).name for path in table.column("path").to_pylist()]
        ['a.parquet', 'b.parquet']
    """
    return Dataset(ListFiles(paths=paths, filesystem=filesystem))


def from_arrow(source: Any) -> Dataset:
    """Reads data that others hold or stream as Arrow, without a copy.

    Args:
        source: A `pyarrow.Table`, a record batch or a list of them, anything with `__arrow_c_array__`, a Polars frame or
            a `datasets.Dataset`, whose rows are found by their number; a `pyarrow.dataset.Dataset` or a scanner, a
            Polars lazy frame, a `datasets.IterableDataset`, a `ray.data.Dataset`, or anything with `__arrow_c_stream__`
            (a DuckDB relation, another dataset), asked anew in each epoch and again for a resumed one, so they have to
            keep their order; or a `pyarrow.RecordBatchReader`, which gives one epoch and no state.

    Raises:
        PlanError: It is none of these.
        SourceError: It gave no stream, as if it can be read once, or broke off; when the dataset is bound or read.
        FunctionError: Another library failed while it made the rows; in `next()`, in order.

    Example:
        >>> import arrowflow as af, polars as pl
        >>> af.from_arrow(pl.DataFrame({"x": [1, 2]})).to_table().to_pydict()
        {'x': [1, 2]}
    """
    return Dataset(arrow.from_arrow(source))


def from_numpy(arrays: Mapping[str, Any]) -> Dataset:
    """Reads arrays of one length, without a copy where NumPy and Arrow agree on the layout.

    Args:
        arrays: Columns by name. `(B, n)` arrays become tensor columns, `datetime64` dates or timestamps; NaT and
            masked values become null. They are read where they lie, in each epoch: leave them as they are.

    Raises:
        PlanError: `arrays` is no mapping.
        SchemaError: Lengths differ, or an array has no Arrow type.

    Example:
        >>> import arrowflow as af, numpy as np
        >>> af.from_numpy({"x": np.zeros((4, 2)), "y": np.arange(4)}).num_rows
        4
    """
    given: Any = arrays
    if not isinstance(given, Mapping) or not given:
        raise PlanError(f"from_numpy: expected a mapping from names to arrays, got {type(arrays).__name__}")
    batch = batch_from_arrays(arrays)
    return Dataset(from_batches([batch], batch.schema))


def from_generator(fn: Callable[[], Iterable[Any]], schema: pa.Schema | None = None) -> Dataset:
    """Reads what a generator function yields; it is called once an epoch.

    Args:
        fn: Called without arguments; yields record batches, data frames, dicts of arrays (columns: one image is
            `image[None]`) or dicts of scalars (one row). It may refill one array: what it could write again is copied
            before it goes on. Arrays of NumPy that nobody else refers to are not.
        schema: Of what it yields, where arrays are taken as in `map`. Without it the first element tells, and `Dataset.schema` is unknown.

    Raises:
        PlanError: `fn` is not callable.
        FunctionError: `fn` raised, or yielded something else; in `next()`, in order.

    Example:
        >>> import arrowflow as af
        >>> def rows():
        ...     for number in (0, 1, 2):
        ...         yield {"x": number, "name": str(number)}
        >>> af.from_generator(rows).to_table().to_pydict()
        {'x': [0, 1, 2], 'name': ['0', '1', '2']}
    """
    if not callable(fn):
        raise PlanError(f"from_generator: expected a function that returns an iterator, got {shown(fn)}")
    return Dataset(FromGenerator(fn=fn, types=_schema("from_generator", schema)))


def range(start: int, stop: int | None = None, step: int = 1) -> Dataset:
    """Counts: the numbers of Python's `range` as int64 in the column `id`.

    Example:
        >>> import arrowflow as af
        >>> af.range(1, 10, 3).to_table().to_pydict()
        {'id': [1, 4, 7]}
    """
    first, last = (0, start) if stop is None else (start, stop)
    for name, value in {"start": first, "stop": last, "step": step}.items():
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise PlanError(f"range: {name} is a whole number, got {shown(value)}")
    if step == 0:
        raise PlanError("range: step is not 0")
    if not all(-MAX_INT64 - 1 <= value <= MAX_INT64 for value in (first, last, step, (last - first) // step)):
        raise PlanError(f"range: numbers are int64, got start={first}, stop={last}, step={step}")
    return Dataset(Range(start=int(first), stop=int(last), step=int(step)))

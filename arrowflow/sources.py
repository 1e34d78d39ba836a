"""Where datasets start: files, Arrow data, arrays, generators, numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from arrowflow.dataset import Dataset, _names, _schema, parallel_calls
from arrowflow.errors import PlanError
from arrowflow.interchange.from_numpy import batch_from_arrays
from arrowflow.ops.from_arrow import from_arrow as arrow_node
from arrowflow.ops.from_arrow import from_batches
from arrowflow.ops.from_generator import FromGenerator
from arrowflow.ops.list_files import ListFiles
from arrowflow.ops.range import Range
from arrowflow.ops.read import Read
from arrowflow.options import AUTOTUNE

if TYPE_CHECKING:
    import pyarrow.compute as pc

MAX_INT64 = (1 << 63) - 1

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: pl.Expr | pc.Expression | None = None,
    filesystem: Any = None,
    schema: pa.Schema | None = None,
    num_parallel_calls: int = AUTOTUNE,
) -> Dataset:
    """Reads Parquet files, row group by row group, in sorted order of their paths.

    The schema is the first file's; columns are matched by name, further ones ignored. Row groups that provably hold
    no match of a filter above are not read, nor are columns that nothing above needs.

    Args:
        paths: A path, a glob, a directory, a URL that `pyarrow.fs` or fsspec knows, or a list of them.
        columns: Names of the columns to keep; the same as `.select(columns)`.
        filter: The rows to keep; the same as `.filter(filter)`, before `columns` are selected.
        filesystem: A file system of `pyarrow.fs` or fsspec, instead of telling by the paths.
        schema: Widens all files to it, and fills columns that a file lacks with null.
        num_parallel_calls: Row groups decoded at the same time.

    Raises:
        SourceError: A path is missing, a glob empty, a file unreadable; when the dataset is bound or read.
        SchemaError: A file lacks a column or has another type; names both.

    Example:
        >>> import arrowflow as af, pathlib, polars as pl, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> pl.DataFrame({"x": [1, 2, 3]}).write_parquet(folder / "a.parquet")
        >>> af.read_parquet(folder, filter=pl.col("x") > 1).to_table().to_pydict()
        {'x': [2, 3]}
    """
    return _read("parquet", paths, columns, filter, filesystem, schema, num_parallel_calls)


def read_ipc(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: pl.Expr | pc.Expression | None = None,
    filesystem: Any = None,
    schema: pa.Schema | None = None,
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
    return _read("ipc", paths, columns, filter, filesystem, schema, num_parallel_calls)


def _read(
    format: str,
    paths: Paths,
    columns: Sequence[str] | None,
    filter: Any,
    filesystem: Any,
    schema: pa.Schema | None,
    num_parallel_calls: int,
) -> Dataset:
    operator = f"read_{format}"
    dataset = Dataset(
        Read(
            format=format,
            paths=paths,
            filesystem=filesystem,
            target=_schema(operator, schema),
            num_parallel_calls=parallel_calls(operator, num_parallel_calls),
        )
    )
    if filter is not None:
        dataset = dataset.filter(filter)
    if columns is not None:
        dataset = dataset.select(*_names(operator, (columns,)))
    return dataset


def list_files(paths: Paths, *, filesystem: Any = None) -> Dataset:
    """Lists files: their paths as text in the column `path`, in sorted order; nothing of them is read.

    Local files come as absolute paths, those of a URL as URLs, so that each can be read by itself, as by
    `interleave` or `map`. Files are listed once, when the dataset is bound. For another order use `shuffle`.

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
        source: A `pyarrow.Table`, a record batch or a list of them; a `pyarrow.dataset.Dataset`; anything with
            `__arrow_c_stream__` (a Polars frame, a DuckDB relation, another dataset), asked anew in each epoch; or a
            `pyarrow.RecordBatchReader`, which gives one epoch and no state.

    Raises:
        PlanError: It is none of these.

    Example:
        >>> import arrowflow as af, polars as pl
        >>> af.from_arrow(pl.DataFrame({"x": [1, 2]})).to_table().to_pydict()
        {'x': [1, 2]}
    """
    return Dataset(arrow_node(source))


def from_numpy(arrays: Mapping[str, Any]) -> Dataset:
    """Reads arrays of one length, without a copy where NumPy and Arrow agree on the layout.

    Args:
        arrays: Columns by name. `(B, n)` arrays become tensor columns, `datetime64` dates or timestamps; NaT and
            masked values become null.

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
        fn: Called without arguments; yields record batches, data frames, dicts of arrays (columns) or dicts of
            scalars (one row).
        schema: Of what it yields. Without it the first element tells, and `Dataset.schema` is unknown.

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
        raise PlanError(f"from_generator: expected a function that returns an iterator, got {fn!r}")
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
            raise PlanError(f"range: {name} is a whole number, got {value!r}")
    if step == 0:
        raise PlanError("range: step is not 0")
    if not all(-MAX_INT64 - 1 <= value <= MAX_INT64 for value in (first, last, step, (last - first) // step)):
        raise PlanError(f"range: numbers are int64, got start={first}, stop={last}, step={step}")
    return Dataset(Range(start=int(first), stop=int(last), step=int(step)))

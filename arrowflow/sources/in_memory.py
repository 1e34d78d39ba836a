"""Sources of data that is in memory, or made: Arrow data, arrays, generators, numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import pyarrow as pa

from arrowflow.dataset import Dataset
from arrowflow.errors import PlanError, shown
from arrowflow.interchange.from_columns import batch_from_arrays
from arrowflow.ops.sources import from_arrow as arrow
from arrowflow.ops.sources.from_generator import FromGenerator
from arrowflow.ops.sources.from_memory import from_batches, given_schema
from arrowflow.ops.sources.range import Range
from arrowflow.options import whole_number

MAX_INT64 = (1 << 63) - 1


def from_arrow(source: Any) -> Dataset:
    """Reads data that other libraries hold or stream as Arrow, without a copy.

    Args:
        source: Some sources hold rows that are found by their number. These are a `pyarrow.Table`, a record batch or
            a list of them, a Polars frame, a `datasets.Dataset`, and anything with `__arrow_c_array__`. Other sources
            are asked anew in each epoch, and again for a resumed epoch, so they have to keep their order. These are a
            `pyarrow.dataset.Dataset` or a scanner, a Polars lazy frame, a `datasets.IterableDataset`, or a
            `ray.data.Dataset`, a `deltalake.DeltaTable`, a scan of `pyiceberg`. Anything with `__arrow_c_stream__` counts
            too: a DuckDB relation, another dataset. A `pyarrow.RecordBatchReader`, and a cursor of a database with
            `fetch_record_batch()` as those of ADBC, give one epoch and no state.

    Raises:
        PlanError: `source` is none of these.
        SourceError: `source` gave no stream, as a source does that can be read only once, or broke off; when the
            dataset is bound or read. Or a table or a cursor gave no data when it was asked here.
        FunctionError: Another library failed while it made the rows; in `next()`, in order.

    Examples:
        >>> import arrowflow as af, polars as pl
        >>> af.from_arrow(pl.DataFrame({"x": [1, 2]})).to_table().to_pydict()
        {'x': [1, 2]}
    """
    return Dataset(arrow.from_arrow(source))


def from_numpy(arrays: Mapping[str, Any]) -> Dataset:
    """Reads arrays of one length, without a copy where NumPy and Arrow agree on the layout.

    Args:
        arrays: Columns by name. `(B, n)` arrays become tensor columns, `datetime64` dates or timestamps. NaT and
            masked values become null. Each epoch reads the arrays where they lie: do not change them.

    Raises:
        PlanError: `arrays` is no mapping.
        SchemaError: Lengths differ, or an array has no Arrow type.

    Examples:
        >>> import arrowflow as af, numpy as np
        >>> af.from_numpy({"x": np.zeros((4, 2)), "y": np.arange(4)}).num_rows
        4
    """
    given: Any = arrays
    if not isinstance(given, Mapping) or not given:
        raise PlanError(f"from_numpy: expected a mapping from names to arrays, got {type(arrays).__name__}")
    batch = batch_from_arrays(arrays)
    return Dataset(from_batches([batch], batch.schema))


def from_generator(
    fn: Callable[[], Iterable[Any]],
    schema: pa.Schema | Mapping[str, Any] | None = None,
    *,
    elements: Literal["rows", "batches"] = "rows",
) -> Dataset:
    """Reads the elements that a generator function yields; the function is called once an epoch.

    An element is one row: a dict of Python values, bytes and arrays, or with `schema=` a tuple. A list is one value, of
    a list column. A record batch, a table or a data frame is a batch of rows.

    Put `batch(n)` after it: rows that are there are converted together then, and none waits for another one. Without
    `batch` each row is a batch of its own, as a function in `map` sees it. Order: as yielded. Memory: groups of rows of
    64 KiB. Resume: runs `fn` again and drops the delivered elements.

    Args:
        fn: Called without arguments. Worker threads call it and go on with it, not always the same one: connections
            that belong to a thread have to be told, as with `sqlite3.connect(path, check_same_thread=False)`. `fn` may
            refill one array: memory that `fn` could write again is copied before `fn` goes on.
        schema: Schema of the rows, to whose types values are converted. A value that would lose something is an error:
            a fraction as an integer, the time of a day as its date; only floats are rounded to shorter floats. Without
            `schema` the first element decides, so it has no None and no empty list, and `Dataset.schema` is unknown. A
            list, or an array of one dimension, is then a list of any length; an image of
            shape `(H, W, C)` is a nested `fixed_size_list`.
        elements: With "batches" a dict is a batch: arrays of one length by column, as in `map`. Arrays of NumPy that
            nobody else refers to are not copied.

    Raises:
        PlanError: `fn` is not callable, or `elements` is something else.
        FunctionError: `fn` raised, or yielded something else; in `next()`, in order.
        SchemaError: A row has other columns than the first one, or a value that does not fit its type; the same.

    Examples:
        >>> import arrowflow as af
        >>> def rows():
        ...     for number in (0, 1, 2):
        ...         yield {"x": number, "tokens": [number] * (number + 1)}
        >>> af.from_generator(rows).to_table().to_pydict()
        {'x': [0, 1, 2], 'tokens': [[0], [1, 1], [2, 2, 2]]}
    """
    return Dataset(FromGenerator.of(fn, given_schema("from_generator", schema), elements))


def range(start: int, stop: int | None = None, step: int = 1) -> Dataset:
    """Counts: the numbers of Python's `range` as int64 in the column `id`.

    Examples:
        >>> import arrowflow as af
        >>> af.range(1, 10, 3).to_table().to_pydict()
        {'id': [1, 4, 7]}
    """
    first, last = (0, start) if stop is None else (start, stop)
    for name, value in {"start": first, "stop": last, "step": step}.items():
        if whole_number(value) is None:
            raise PlanError(f"range: {name} is a whole number, got {shown(value)}")
    if step == 0:
        raise PlanError("range: step is not 0")
    if not all(-MAX_INT64 - 1 <= value <= MAX_INT64 for value in (first, last, step, (last - first) // step)):
        raise PlanError(f"range: numbers are int64, got start={first}, stop={last}, step={step}")
    return Dataset(Range(start=int(first), stop=int(last), step=int(step)))

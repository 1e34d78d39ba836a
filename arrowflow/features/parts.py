"""The counts of one batch as rows of Arrow: batches are counted at the same time, and added in their order.

There is a row for each 65,536 rows of the batch. The words of a vocabulary are counted for the batch as a whole, and stand in
the first row. To merge the words of several counts takes as long as to count them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError
from arrowflow.features.distinct import Counts, Distinct, value_counts
from arrowflow.features.fit import Column, Columns
from arrowflow.features.moments import Moments
from arrowflow.features.quantiles import BLOCK_ROWS, Quantiles

_TYPES: Final = {np.dtype(np.float64): pa.float64(), np.dtype(np.uint64): pa.uint64()}


def part_schema(columns: Columns, schema: pa.Schema) -> pa.Schema:
    """Returns the lists of a part, for batches with a schema."""
    types: list[pa.DataType] = []
    for name, column in columns.items():
        type = schema.field(name).type
        types += [pa.float64()] * (1 if column.quantiles is None else 3)
        if column.counts is not None:
            types += [type if pa.types.is_integer(type) else pa.string(), pa.int64()]
        if column.distinct is not None:
            types.append(pa.uint64())
    return pa.schema([(str(place), pa.list_(type)) for place, type in enumerate(types)])


def batch_rows(columns: Columns) -> int:
    """Returns how many rows are counted in a call; a vocabulary's words are merged once a call."""
    return 4 * BLOCK_ROWS if any(column.counts is not None for column in columns.values()) else BLOCK_ROWS


def part_of(batch: pa.RecordBatch, *, columns: Columns) -> pa.RecordBatch:
    """Returns what there is to count in a batch; `columns` say what is asked for. Any thread calls it."""
    schema = part_schema(columns, batch.schema)
    rows = []
    for start in range(0, batch.num_rows, BLOCK_ROWS):
        lists = [
            each
            for name, column in columns.items()
            for each in _lists(name, column, batch.column(name), start)
        ]
        rows.append(pa.RecordBatch.from_arrays(lists, schema=schema))
    return pa.concat_batches(rows)


def _lists(name: str, asked: Column, values: pa.Array, start: int) -> Iterator[pa.Array]:
    column = asked.without_rows()
    try:
        column.add(values.slice(start, BLOCK_ROWS))
    except pl.exceptions.PolarsError as error:
        raise DataError(f"fit: the values of {name!r} cannot be counted: {error}") from error
    of = column.moments
    yield _list(_array(np.array([of.count, of.missing, of.mean, of.squares, of.least, of.greatest])))
    if column.quantiles is not None:
        yield _list(_array(column.quantiles.rest))
        yield _list(_array(column.quantiles.levels.get(0, np.empty(0))))
    if column.counts is not None:
        found, counts = value_counts(values if start == 0 else values.slice(0, 0))
        yield _list(found if pa.types.is_integer(found.type) else found.cast(pa.string()))
        yield _list(counts)
    if column.distinct is not None:
        yield _list(_array(column.distinct.least))


def _array(values: npt.NDArray[np.float64] | npt.NDArray[np.uint64]) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(_TYPES[values.dtype], len(values), buffers)


def _list(values: pa.Array) -> pa.Array:
    ends = pa.py_buffer(np.array([0, len(values)], np.int32))
    return pa.Array.from_buffers(pa.list_(values.type), 1, [None, ends], children=[values])


def add_part(columns: Columns, part: pa.RecordBatch) -> int:
    """Adds what `part_of` counted in a batch, and returns how many rows the batch had."""
    rows = 0
    for row in range(part.num_rows):
        lists = (pl.Series(each[row].values) for each in part.columns)
        found = Column()
        for name, column in columns.items():
            count, missing, *figures = next(lists).to_list()
            found = Column(Moments(int(count), int(missing), *figures))
            if column.quantiles is not None:
                rest, block = next(lists).to_numpy(), next(lists).to_numpy()
                found.quantiles = Quantiles(rest, {0: block} if len(block) else {})
            if column.counts is not None:
                frame = pl.DataFrame({"value": next(lists), "count": next(lists)})
                found.counts = Counts(name, pending=[] if row else [frame])
            if column.distinct is not None:
                found.distinct = Distinct(next(lists).to_numpy())
            column.merge(found)
        rows += found.moments.count + found.moments.missing
    return rows

"""Windows of chunks in a new order, in one pass: wide values are written to their places without joining chunks first.

Measured on windows of 262,144 rows of 52 and of 104 bytes: 10.6 ms a window, against 14.1 ms for joining and taking.
Taking is faster for columns of up to 32 bytes a row: Arrow copies most of these widths as numbers.

Long texts and bytes, such as images, are copied once too. An array of Arrow's views refers to the values of all chunks
in the new order, and its cast copies them. A view takes 16 bytes. A window of 262,144 values of 64 bytes takes 22 ms, and
13 ms by joining and taking. 65,536 values of 256 bytes take 4.3 and 4.9 ms, 5,000 of 20 kB 12.5 and 18.5 ms. Without
the join, such a window never lies in memory a third time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.interchange.handed_over import unlocked
from arrowflow.kernels.gather import OfSchema, gathered
from arrowflow.kernels.held import join
from arrowflow.ops.order.spans import addresses_of, array_of, width_of
from arrowflow.recycler import Recycler
from arrowflow.types import VIEWS

MIN_WIDTH: Final = 33
MIN_LENGTH: Final = 256
"""Bytes that a text has on average in a column that is copied by views."""
_MAX_INLINE: Final = 12
"""A view has a value of up to this many bytes in itself, and refers to longer ones."""
_MAX_OFFSET: Final = (1 << 31) - 1


def reordered(
    chunks: Sequence[pa.RecordBatch], order: npt.NDArray[Any], recycler: Recycler
) -> pa.RecordBatch:
    """Returns the rows of all chunks in the order of the numbers in `order`, uint32 or int64, each of them once.

    Raises:
        pyarrow.ArrowInvalid: Texts or lists of all chunks take more than 2 GiB a column.

    Examples:
        >>> chunks = [pa.record_batch({"x": [1, 2]}), pa.record_batch({"x": [3]})]
        >>> reordered(chunks, np.array([2, 0, 1]), Recycler(1 << 30)).to_pydict()
        {'x': [3, 1, 2]}
    """
    schema = chunks[0].schema
    columns: dict[str, pa.Array] = {}
    for name, index in _texts(schema).items():
        long = _by_views([chunk.column(index) for chunk in chunks], order)
        if long is not None:
            columns[name] = long
    # The address of a chunk without rows means nothing.
    widths = _wide(schema) if all(chunk.num_rows for chunk in chunks) else {}
    wide = {
        name: addresses
        for name, index in widths.items()
        if (addresses := addresses_of(chunks, index)) is not None
    }
    if not wide and not columns:
        return gathered(join(list(chunks)), order)
    rest = [name for name in schema.names if name not in wide and name not in columns]
    if rest:
        taken = gathered(join([chunk.select(rest) for chunk in chunks]), order)
        columns.update(zip(rest, taken.columns, strict=True))
    numbers = order.astype(np.int64, copy=False)
    places = np.empty(len(order), np.int64)
    places[numbers] = np.arange(len(order))
    counts = [chunk.num_rows for chunk in chunks]
    for name, addresses in wide.items():
        columns[name] = _scattered(schema.field(name).type, addresses, counts, places, recycler)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


@OfSchema
def _wide(schema: pa.Schema) -> Mapping[str, int]:
    """Returns the columns with wide values, and their places."""
    widths = [width_of(type) or 0 for type in schema.types]
    return {schema.field(index).name: index for index, width in enumerate(widths) if width >= MIN_WIDTH}


@OfSchema
def _texts(schema: pa.Schema) -> Mapping[str, int]:
    """Returns the columns of texts and bytes, and their places."""
    return {field.name: index for index, field in enumerate(schema) if field.type.id in VIEWS}


def _by_views(arrays: Sequence[pa.Array], order: npt.NDArray[Any]) -> pa.Array | None:
    """Returns the values in their order by one copy; None where values are short or null, or views cannot refer to them."""
    type = arrays[0].type
    view_type, offset_type = VIEWS[type.id]
    # Length, first bytes (which the cast does not read), buffer, offset.
    views = np.zeros((len(order), 4), np.int32)
    buffers: list[pa.Buffer] = []
    start = total = 0
    for array in filter(len, arrays):
        _, offsets_buffer, values = array.buffers()
        if array.null_count or values is None or values.size > _MAX_OFFSET:
            return None
        offsets = np.frombuffer(offsets_buffer, offset_type)[array.offset : array.offset + len(array) + 1]
        num_bytes = int(offsets[-1] - offsets[0])
        if num_bytes < MIN_LENGTH * len(array):
            return None
        part = views[start : start + len(array)]
        part[:, 0] = offsets[1:] - offsets[:-1]
        part[:, 2] = len(buffers)
        part[:, 3] = offsets[:-1]
        buffers.append(values)
        start, total = start + len(array), total + num_bytes
    if not buffers or total > _MAX_OFFSET or views[:, 0].min() <= _MAX_INLINE:
        return None
    ordered = pa.py_buffer(views[order])
    return pa.Array.from_buffers(view_type, len(order), [None, ordered, *buffers], null_count=0).cast(type)


def _scattered(
    type: pa.DataType,
    addresses: Sequence[int],
    counts: Sequence[int],
    places: npt.NDArray[np.int64],
    recycler: Recycler,
) -> pa.Array:
    width = width_of(type)
    assert width is not None
    buffer = recycler.allocate(len(places) * width)
    out = np.frombuffer(buffer, f"V{width}")
    start = 0
    for address, count in zip(addresses, counts, strict=True):
        values = np.frombuffer(pa.foreign_buffer(address, count * width), out.dtype)
        # Unlocked: `put` only reads, but would copy an array that must not be written. "raise" checks all places first.
        np.put(out, places[start : start + count], unlocked(values), mode="clip")
        start += count
    return array_of(type, len(places), buffer)

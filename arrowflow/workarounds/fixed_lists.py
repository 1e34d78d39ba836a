"""Lists of fixed size, as Polars 1.35 writes them to JSON: behind a null one it writes nulls, or the values of another list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from arrowflow.lazy import compute as pc


def variable_lists(array: Any) -> Any:
    """Returns an array with lists of variable size in place of those of fixed size, also within lists and structs.

    Examples:
        >>> array = pa.array([None, [1, 2]], pa.list_(pa.int64(), 2))
        >>> variable_lists(array).type, variable_lists(array).to_pylist()
        (LargeListType(large_list<item: int64>), [None, [1, 2]])
    """
    type = array.type
    if not _has_fixed_lists(type):
        return array
    if pa.types.is_struct(type):
        children = [variable_lists(child) for child in array.flatten()]
        names = [field.name for field in type]
        return pa.StructArray.from_arrays(children, names=names, mask=array.is_null())
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))
    values = variable_lists(array.flatten())  # without what lies beneath nulls
    return pa.LargeListArray.from_arrays(offsets, values, mask=array.is_null())


def _has_fixed_lists(type: pa.DataType) -> bool:
    inner = (type.field(index).type for index in range(type.num_fields))
    return pa.types.is_fixed_size_list(type) or any(map(_has_fixed_lists, inner))

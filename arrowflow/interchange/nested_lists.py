"""Arrays of several dimensions as nested lists, also inside of lists and dicts.

Arrow reads an array of one dimension as a list, and no array of more. Here one level of lists after the other is taken
off: the arrays of a level are joined to one array, so that no Python object is made for a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from arrowflow.types import is_list

Values: TypeAlias = Sequence[Any] | np.ndarray[Any, Any]
"""Values of rows; an array of several dimensions holds arrays."""
Make: TypeAlias = Callable[[Values, pa.DataType | None], pa.Array]
"""Makes a column of the values in lists, or in the fields of dicts."""

_DEEP = frozenset((list, tuple, dict, np.ndarray))
_MAX_OFFSET = np.iinfo(np.int32).max


def holds_shaped(value: Any) -> bool:
    """Returns whether a value is or holds an array of several dimensions.

    Examples:
        >>> holds_shaped([1, np.zeros(3)]), holds_shaped([{"a": [np.zeros((3, 2))]}])
        (False, True)
    """
    if isinstance(value, np.ndarray):
        return value.ndim > 1
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return not _DEEP.isdisjoint(map(type, value)) and any(map(holds_shaped, value))


def nested_lists(values: Values, type: pa.DataType | None, make: Make) -> pa.Array:
    """Returns values, some of which are or hold arrays of several dimensions, as a column.

    Args:
        values: Arrays, lists, dicts and None; or one array of several dimensions, which holds the values.
        type: The type of the column. Without it arrays are lists of their shape, and lists have any length.
        make: Makes a column of the values one level deeper.

    Raises:
        ValueError: Lists are longer or shorter than their type says, or arrays without a type differ in shape.
    """
    is_array = isinstance(values, np.ndarray)
    present = values if is_array else [value for value in values if value is not None]
    may_be_struct = type is None or pa.types.is_struct(type)
    if not is_array and may_be_struct and all(isinstance(value, dict) for value in present):
        return _structs(values, present, type, make)
    is_array = is_array or all(isinstance(value, np.ndarray) for value in present)
    if type is None:
        if is_array and values is not present and len({value.shape for value in present}) > 1:
            raise ValueError("arrays of several shapes")
        child = make(_joined(present), None)
        # Also without a row an array tells how many values each has: no box in any image.
        width = present.shape[1] if isinstance(present, np.ndarray) else len(present[0]) if is_array else -1
        type = pa.list_(child.type, width)
    elif is_list(type):
        child = make(_joined(present), type.value_type)
    else:
        return make([_listed(value) for value in values], type)
    if pa.types.is_fixed_size_list(type):
        return _fixed(values, present, type, child)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(_lengths(values), out=offsets[1:])
    if pa.types.is_list(type):
        if offsets[-1] > _MAX_OFFSET:
            raise OverflowError("lists of more than two billion values")
        offsets = offsets.astype(np.int32)
    return pa.Array.from_buffers(
        type, len(values), [_validity(values, present), pa.py_buffer(offsets)], children=[child]
    )


def _lengths(values: Values) -> np.ndarray[Any, Any]:
    if isinstance(values, np.ndarray):  # an object for each of its arrays would take most of the time
        return np.full(len(values), values.shape[1])
    return np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))


def _fixed(values: Values, present: Values, type: pa.DataType, child: pa.Array) -> pa.Array:
    others = np.setdiff1d(_lengths(present), type.list_size)
    if others.size:
        raise ValueError(f"{others[0]} values, expected {type.list_size}")
    column = pa.Array.from_buffers(type, len(present), [None], children=[child])
    if len(present) == len(values):
        return column
    numbers = itertools.count()
    return column.take(pa.array([None if value is None else next(numbers) for value in values], pa.int64()))


def _structs(values: Values, present: Values, type: pa.DataType | None, make: Make) -> pa.Array:
    names = [field.name for field in type.fields] if type is not None else list(present[0])
    for value in present:
        if value.keys() - set(names) or (type is None and len(value) < len(names)):
            raise ValueError(f"a dict with the keys {list(value)}, expected {names}")
    children = []
    for name in names:
        inner = [None if value is None else value.get(name) for value in values]
        children.append(make(inner, None if type is None else type.field(name).type))
    if type is None:
        type = pa.struct([(name, child.type) for name, child in zip(names, children, strict=True)])
    return pa.Array.from_buffers(type, len(values), [_validity(values, present)], children=children)


def _joined(values: Values) -> Values:
    """Returns what lists and arrays hold, one after the other."""
    if isinstance(values, np.ndarray):
        return values.reshape(values.shape[0] * values.shape[1], *values.shape[2:])
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) == len(values) and len({(value.shape[1:], value.dtype) for value in arrays}) == 1:
        return np.concatenate(arrays)
    return list(itertools.chain.from_iterable(values))


def _validity(values: Values, present: Values) -> pa.Buffer | None:
    if len(present) == len(values):
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))


def _listed(value: Any) -> Any:
    """Returns a value with lists in place of arrays."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    return [_listed(each) for each in value] if isinstance(value, list | tuple) else value

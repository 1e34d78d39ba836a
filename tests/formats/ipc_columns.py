"""Shared by the tests of IPC files: an array of every type that Arrow can write, and batches of any types."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.ops.tables import ALL_TYPES

ROWS = ALL_TYPES.num_rows


def _every(make: Any, type: pa.DataType) -> pa.Array:
    return pa.array([None if row % 4 == 1 else make(row) for row in range(ROWS)], type)


def _nested_dictionary() -> pa.Array:
    """A dictionary of lists of dictionaries: two dictionaries, of which one needs the other."""
    inner = pa.array([["x", "y"], ["y"], []], pa.list_(pa.dictionary(pa.int8(), pa.string())))
    return pa.DictionaryArray.from_arrays(pa.array([row % 3 for row in range(ROWS)], pa.int8()), inner)


def _tensors() -> pa.Array:
    storage = pa.array([[row, 1, 2, 3] for row in range(ROWS)], pa.list_(pa.float32(), 4))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2, 2]), storage)


def _dictionary(values: list[str]) -> pa.Array:
    return pa.array(values, pa.dictionary(pa.int16(), pa.string()))


_CODES = pa.array([row % 2 for row in range(ROWS)], pa.int8())
_RUNS = pa.array([3, ROWS], pa.int32())

COLUMNS: dict[str, pa.Array] = {
    **{name: ALL_TYPES.column(name).combine_chunks() for name in ALL_TYPES.column_names},
    "bool": _every(lambda row: row % 3 == 0, pa.bool_()),
    "uint8": _every(int, pa.uint8()),
    "time32": _every(int, pa.time32("ms")),
    "interval": _every(lambda row: (row, 1, 2), pa.month_day_nano_interval()),
    "decimal256": _every(lambda row: decimal.Decimal(row), pa.decimal256(50, 2)),
    "binary_view": _every(lambda row: b"a longer one than fits inside " * row, pa.binary_view()),
    "list_view": _every(lambda row: [row] * (row % 3), pa.list_view(pa.int64())),
    "large_list_view": _every(lambda row: ["x"] * (row % 3), pa.large_list_view(pa.string())),
    "runs": pa.RunEndEncodedArray.from_arrays(_RUNS, pa.array(["x", None])),
    "runs_of_codes": pa.RunEndEncodedArray.from_arrays(_RUNS, _dictionary(["p", "q"])),
    "dense": pa.UnionArray.from_dense(
        _CODES,
        pa.array([row // 2 for row in range(ROWS)], pa.int32()),
        [pa.array(range(6)), _dictionary([*"abcdef"])],
    ),
    "sparse": pa.UnionArray.from_sparse(
        _CODES, [pa.array(range(ROWS)), pa.array([str(row) for row in range(ROWS)])]
    ),
    "nested_dictionary": _nested_dictionary(),
    "codes_in_struct": pa.StructArray.from_arrays([_dictionary([*"abcdefghijk"])], ["code"]),
    "codes_in_map": _every(
        lambda row: [("k", "v")] * (row % 2), pa.map_(pa.string(), pa.dictionary(pa.int8(), pa.string()))
    ),
    "tensors": _tensors(),
    "no_width": _every(lambda _: b"", pa.binary(0)),
    "empty_struct": pa.array([{}] * ROWS, pa.struct([])),
    "empty_lists": _every(lambda _: [], pa.list_(pa.int32(), 0)),
}
"""An array of each kind of type, with nulls where there can be."""

CODE_BENEATH_A_NULL = pa.record_batch(
    {"column 0": pa.array([None], pa.struct([("0", pa.dictionary(pa.int8(), pa.string()))]))}
)
"""One row whose code lies outside of its dictionary, which has no entries."""

_LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.string(): st.text(max_size=20),
    pa.large_binary(): st.binary(max_size=20),
    pa.string_view(): st.text(max_size=20),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(dt.date(1900, 1, 1)),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["", "a", "bc"]),
}


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(pa.list_view),
        inner.map(lambda type: pa.list_(type, 2)),
        inner.map(lambda type: pa.map_(pa.string(), type)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda types: pa.struct([(str(i), t) for i, t in enumerate(types)])
        ),
    )


TYPES = st.recursive(st.sampled_from(list(_LEAVES)), _nested, max_leaves=4)


def _values(type: pa.DataType) -> st.SearchStrategy[Any]:
    leaf = _LEAVES.get(type)
    if leaf is not None:
        own = leaf
    elif pa.types.is_struct(type):
        own = st.fixed_dictionaries({field.name: _values(field.type) for field in type.fields})
    elif pa.types.is_map(type):
        own = st.lists(st.tuples(st.text(max_size=3), _values(type.item_type)), max_size=3)
    elif pa.types.is_fixed_size_list(type):
        own = st.lists(_values(type.value_type), min_size=type.list_size, max_size=type.list_size)
    else:
        own = st.lists(_values(type.value_type), max_size=3)
    return st.none() | own


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Draws a batch of any columns, which may be a slice of a larger one."""
    types = draw(st.lists(TYPES, min_size=1, max_size=3))
    rows = draw(st.integers(0, 20))
    columns = [pa.array(draw(st.lists(_values(type), min_size=rows, max_size=rows)), type) for type in types]
    batch = pa.RecordBatch.from_arrays(columns, names=[f"column {index}" for index in range(len(types))])
    start = draw(st.integers(0, rows))
    return batch.slice(start, draw(st.integers(0, rows - start)))

"""Digests of Arrow data: equal for equal values, however they lie in memory; different for others."""

from __future__ import annotations

import gc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrowflow.caching.fingerprint import arrays
from arrowflow.caching.fingerprint.arrays import array_digest, batch_digest
from tests.effort import scaled
from tests.ops.tables import ALL_TYPES

pytestmark = pytest.mark.any_version

WHOLE = ALL_TYPES.combine_chunks().to_batches()[0]
RARE = pa.record_batch(
    {
        "bool": pa.array([True, None, False] * 5),
        "large": pa.array(["a", None, "ccc"] * 5, pa.large_string()),
        "binary_view": pa.array([b"a", None, b"more than twelve bytes"] * 5, pa.binary_view()),
        "list_view": pa.array([[1], None, [2, 3]] * 5, pa.list_view(pa.int8())),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([4, 9, 15], pa.int32()), pa.array([1, None, 3])),
        "nested": pa.array([[[1, 2]], None, [None]] * 5, pa.list_(pa.list_(pa.int8(), 2), 1)),
        "empty": pa.array([b"", None, b""] * 5, pa.binary(0)),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int8(), (2,)), pa.array([[1, 2]] * 15, pa.list_(pa.int8(), 2))
        ),
    }
)


COLUMNS = {name: batch.column(name) for batch in (WHOLE, RARE) for name in batch.schema.names}
NAMES = list(COLUMNS)
WHOLLY = ("list_view", "runs")
"""Those of which a slice is not told from what else has its values."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WHOLLY])
def test_a_slice_is_its_values(name: str) -> None:
    column = COLUMNS[name]
    for start in range(len(column) + 1):
        for rows in (0, 1, 3, len(column)):
            part = column.slice(start, rows)
            copy = pa.concat_arrays([part]) if len(part) else pa.array([], column.type)
            copy = pa.array(part.to_pylist(), column.type) if _from_python(column.type) else copy
            assert array_digest(part) == array_digest(copy)


def _from_python(type: pa.DataType) -> bool:
    return not isinstance(type, pa.BaseExtensionType | pa.DictionaryType) and not pa.types.is_float16(type)


@pytest.mark.parametrize("name", NAMES)
def test_slices_with_other_values_differ(name: str) -> None:
    column = COLUMNS[name]
    starts = range(len(column))
    slices = [column.slice(start, rows) for start in starts for rows in range(1, len(column) - start + 1)]
    digests: dict[str, set[bytes]] = {}
    for part in slices:
        digests.setdefault(repr(part.to_pylist()), set()).add(array_digest(part))
    assert len(set().union(*digests.values())) >= len(digests), "others have the same digest"
    assert name in WHOLLY or all(len(found) == 1 for found in digests.values())


def test_what_lies_under_nulls_does_not_count() -> None:
    valid = pa.py_buffer(bytes([0b101]))
    for values in ([1, 2, 3], [1, 9, 3]):
        buffer = pa.py_buffer(np.array(values, np.int32))
        made = pa.Array.from_buffers(pa.int32(), 3, [valid, buffer])
        assert array_digest(made) == array_digest(pa.array([1, None, 3], pa.int32()))
    texts = pa.Array.from_buffers(
        pa.string(), 3, [valid, pa.py_buffer(np.array([0, 1, 3, 4], np.int32)), pa.py_buffer(b"axxc")]
    )
    assert array_digest(texts) == array_digest(pa.array(["a", None, "c"]))
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()),
        pa.array([1, 8, 8, 2], pa.int8()),
        mask=pa.array([False, True, False]),
    )
    assert array_digest(lists) == array_digest(pa.array([[1], None, [2]], pa.list_(pa.int8())))
    structs = pa.StructArray.from_arrays(
        [pa.array([1, 8, 2], pa.int8())], names=["a"], mask=pa.array([False, True, False])
    )
    expected = pa.array([{"a": 1}, None, {"a": 2}], pa.struct([("a", pa.int8())]))
    assert array_digest(structs) == array_digest(expected)


def test_null_is_not_zero_and_types_count() -> None:
    made = [
        pa.array([0]),
        pa.array([None], pa.int64()),
        pa.array([0], pa.int32()),
        pa.array([0, 0]),
        pa.nulls(1),
    ]
    made += [pa.array([0], pa.timestamp("us")), pa.array([0], pa.timestamp("us", "UTC")), pa.array([0.0])]
    made += [pa.array([-0.0]), pa.array([[]], pa.list_(pa.int64())), pa.array([""]), pa.array([b""])]
    assert len(set(map(array_digest, made))) == len(made)


@settings(max_examples=scaled(100))
@given(
    st.lists(st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3), max_size=6),
    st.lists(st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3), max_size=6),
)
def test_two_lists_of_texts(one: list[list[str | None] | None], other: list[list[str | None] | None]) -> None:
    type = pa.list_(pa.string())
    digests = [array_digest(pa.array(values, type)) for values in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)


def test_names_and_metadata_of_a_batch_count() -> None:
    batch = pa.record_batch({"a": [1]})
    others = [batch, batch.rename_columns(["b"]), batch.replace_schema_metadata({"k": "v"})]
    assert len(set(map(batch_digest, others))) == 3


def test_a_batch_is_read_once_and_forgotten_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"a": list(range(1_000))})
    digest = batch_digest(batch)
    with monkeypatch.context() as patched:
        patched.setattr(arrays, "write_values", None)
        assert batch_digest(batch) == digest
    key = id(batch)
    assert key in arrays._known
    del batch
    gc.collect()
    assert key not in arrays._known

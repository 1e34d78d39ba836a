"""NumPy export: values, addresses, who may write where, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.errors import DataError, SchemaError
from arrowflow.loaders.numpy import NumpyExport
from tests.effort import scaled
from tests.loaders.frameworks import address

FLAT = {
    **{kind: str(kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind: str(kind) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.date64(): "datetime64[ms]",
    pa.time32("s"): "int32",
    pa.time32("ms"): "int32",
    pa.time64("us"): "int64",
    pa.time64("ns"): "int64",
    **{pa.timestamp(unit): f"datetime64[{unit}]" for unit in ("s", "ms", "us", "ns")},
    **{pa.duration(unit): f"timedelta64[{unit}]" for unit in ("s", "ms", "us", "ns")},
    pa.timestamp("us", "Europe/Berlin"): "datetime64[us]",
}
COPIED = {pa.bool_(): "bool", pa.date32(): "datetime64[D]"}
PLACES = st.tuples(st.integers(0, 40), st.integers(0, 40))


def values(kind: Any, num_values: int, seed: int = 0) -> pa.Array:
    """Random bits as an array of `kind` in memory of its own."""
    num_bytes = (num_values * kind.bit_width + 7) // 8
    buffer = pa.allocate_buffer(num_bytes)
    np.frombuffer(buffer, np.uint8)[:] = np.random.default_rng(seed).integers(0, 128, num_bytes)
    return pa.Array.from_buffers(kind, num_values, [None, buffer])


def batch_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def export(batch: pa.RecordBatch, *, owned: bool = True) -> dict[str, Any]:
    return NumpyExport(batch.schema, owned=owned)(batch)


@pytest.mark.parametrize("kind", FLAT, ids=str)
@settings(max_examples=scaled(10))
@given(place=PLACES)
@example(place=(3, 21))
def test_flat_columns_are_views(kind: Any, place: tuple[int, int]) -> None:
    start, num_rows = place
    column = values(kind, 80)
    found = export(batch_of(x=column).slice(start, num_rows))["x"]
    whole = np.frombuffer(column.buffers()[1], FLAT[kind], 80)
    assert found.dtype == FLAT[kind]
    assert found.tobytes() == whole[start : start + num_rows].tobytes()
    assert address(found) == column.buffers()[1].address + start * found.itemsize
    assert found.flags.writeable


@pytest.mark.parametrize("kind", COPIED, ids=str)
@settings(max_examples=scaled(25))
@given(place=PLACES)
@example(place=(3, 21))
def test_booleans_and_days_are_copied_and_writable(kind: Any, place: tuple[int, int]) -> None:
    column = values(kind, 80).slice(*place)
    found = export(batch_of(x=column), owned=False)["x"]
    assert found.dtype == COPIED[kind]
    assert found.flags.writeable
    plain = column if kind == pa.bool_() else column.cast(pa.int32())
    assert found.astype(np.int64).tolist() == [int(value) for value in plain.to_pylist()]


@settings(max_examples=scaled(60))
@given(
    kind=st.sampled_from([pa.int16(), pa.float64(), pa.bool_(), pa.date32(), pa.duration("s"), pa.binary(3)]),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    place=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    inner=st.integers(0, 5),
)
def test_fixed_size_lists_nest_at_any_offset(
    kind: Any, sizes: list[int], place: tuple[int, int], inner: int
) -> None:
    column = values(kind, 24 * int(np.prod(sizes)) + inner).slice(inner)
    flat = export(batch_of(x=column))["x"]
    for size in reversed(sizes):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    start, num_rows = place
    found = export(batch_of(x=column).slice(start, num_rows))["x"]
    whole = flat.reshape(24, *sizes, *flat.shape[1:])
    assert found.shape == (num_rows, *whole.shape[1:])
    assert np.array_equal(found, whole[start : start + num_rows])
    if kind not in COPIED and num_rows:
        assert address(found) == address(whole[start:])


def test_lists_of_size_zero() -> None:
    column = pa.FixedSizeListArray.from_buffers(
        pa.list_(pa.int8(), 0), 3, [None], children=[values(pa.int8(), 0)]
    )
    assert export(batch_of(x=column))["x"].shape == (3, 0)


@pytest.mark.parametrize("permutation", [None, [0, 1, 2], [2, 0, 1], [1, 0, 2]])
def test_tensors_have_their_logical_shape(permutation: list[int] | None) -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 3, 4), permutation=permutation)
    storage = pa.FixedSizeListArray.from_arrays(values(pa.float32(), 7 * 24), 24)
    column = pa.ExtensionArray.from_storage(kind, storage)
    found = export(batch_of(x=column).slice(2, 4))["x"]
    physical = np.frombuffer(storage.values.buffers()[1], np.float32).reshape(7, 2, 3, 4)
    for place, value in np.ndenumerate(found):
        logical, axes = place[1:], permutation or [0, 1, 2]
        assert value == physical[place[0] + 2][tuple(logical[axes.index(axis)] for axis in range(3))]
    if permutation != [2, 0, 1]:  # where pyarrow up to 26 gives overlapping strides
        assert np.array_equal(found, column.to_numpy_ndarray()[2:6])
    assert address(found) == storage.values.buffers()[1].address + 2 * 24 * 4
    assert NumpyExport(batch_of(x=column).schema, owned=True).columns[0].row_shape == found.shape[1:]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.bool_(), pa.list_(pa.int32(), 2), pa.list_(pa.int32())], ids=str
)
def test_lists_of_one_length_become_boxes(kind: Any, large: bool) -> None:
    """Without a copy: which batches have rows of one length, only their offsets tell."""
    rows: list[Any] = [[1, 0, 1], [0, 1, 1], [1, 1, 0]]
    if kind not in FLAT and kind != pa.bool_():
        rows = [[[x, x + 1] for x in row] for row in rows]
    elif kind == pa.bool_():
        rows = [[x == 1 for x in row] for row in rows]
    column = pa.array([[], *rows], pa.large_list(kind) if large else pa.list_(kind))
    found = export(batch_of(x=column).slice(1))["x"]
    assert found.tolist() == rows
    if kind == pa.int32():
        assert address(found) == column.values.buffers()[1].address
    with pytest.raises(DataError, match=r"'x' has lists of 0 to 3 values .* padded_batch"):
        export(batch_of(x=column))


def test_lists_without_rows_have_no_length() -> None:
    column = pa.array([[1, 2], [3]], pa.list_(pa.int32()))
    exporter = NumpyExport(batch_of(x=column).schema, owned=False)
    assert exporter(batch_of(x=column.slice(2)))["x"].shape == (0, 0)
    assert exporter.explain() == ["x: list<item: int32> -> int32[n]: zero-copy, read-only"]


REFUSED = {
    pa.decimal128(12, 2): "cast",
    pa.list_(pa.struct({"a": pa.int8()})): "to_polars",
    pa.large_list(pa.decimal128(5)): 'dtypes={"price": "float64"}',
    pa.struct({"a": pa.int8()}): "struct.field",
    pa.map_(pa.string(), pa.int8()): "map",
    pa.null(): "drop",
    pa.string_view(): "cast",
    pa.month_day_nano_interval(): "map",
    pa.list_(pa.decimal128(5), 2): "dtypes=",
    pa.uuid(): "map",
    pa.fixed_shape_tensor(pa.decimal128(3), (2,)): "dtypes=",
}


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_types_without_arrays_are_refused_at_once(kind: Any) -> None:
    with pytest.raises(SchemaError, match="'price'") as caught:
        NumpyExport(pa.schema({"fine": pa.int8(), "price": kind}), owned=True)
    assert str(kind) in str(caught.value)
    assert REFUSED[kind] in str(caught.value)


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.binary()], ids=str)
@pytest.mark.parametrize(
    "lists", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)], ids=["list", "large", "fixed"]
)
def test_lists_of_texts_are_arrays_of_objects(lists: Any, text: Any) -> None:
    values = [["a", "bb"], ["", "dd"], ["e", "f"]]
    column = pa.array([["x", "y"], *values], pa.list_(pa.string())).cast(lists(text)).slice(1)
    expected = (
        np.array(values, object)
        if text != pa.binary()
        else np.array([[b"a", b"bb"], [b"", b"dd"], [b"e", b"f"]], object)
    )
    found = export(batch_of(x=column))["x"]
    assert found.dtype == object and found.shape == (3, 2)
    assert (found == expected).all()
    assert af.from_numpy({"x": found}).to_table()["x"].to_pylist() == expected.tolist()
    assert NumpyExport(batch_of(x=column).schema, owned=True).explain()[0].endswith("dtype: Python objects")


def test_texts_of_lists_of_lists_and_of_batches() -> None:
    column = pa.array([[["a"], ["b"]], [["c"], ["d"]], [["e"], ["f"]]], pa.list_(pa.list_(pa.string()), 2))
    ds = af.from_arrow(pa.table({"x": column})).batch(2)
    assert [batch["x"].tolist() for batch in ds.to_numpy()] == [
        [[["a"], ["b"]], [["c"], ["d"]]],
        [[["e"], ["f"]]],
    ]
    with pytest.raises(DataError, match="lists of 1 to 2 values in one batch"):
        export(batch_of(x=pa.array([["a"], ["b", "c"]])))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"lists": "padded", "null": "mask"}, [["a", ""], ["", ""], ["", "c"]]),
        ({"lists": "padded", "null": "?"}, [["a", "?"], ["", ""], ["", "c"]]),
        (
            {"lists": "padded", "null": "?", "dtypes": {"x": np.dtypes.StringDType()}},
            [["a", "?"], ["", ""], ["", "c"]],
        ),
    ],
    ids=str,
)
def test_lists_of_texts_are_padded_with_empty_texts(given: dict[str, Any], expected: list[list[str]]) -> None:
    column = pa.array([["a", None], [], ["", "c"]])
    batch = next(iter(af.from_arrow(pa.table({"x": column})).batch(3).to_numpy(**given)))
    assert batch["x"].tolist() == expected
    if given["null"] == "mask":
        assert batch["x_mask"].tolist() == [[True, False], [False, False], [True, True]]


def test_lists_of_texts_stay_ragged() -> None:
    column = pa.array([["a"], [], ["b", "c"]])
    batch = next(iter(af.from_arrow(pa.table({"x": column})).batch(3).to_numpy(lists="ragged")))
    assert batch["x"].values.tolist() == ["a", "b", "c"]
    assert batch["x"].offsets.tolist() == [0, 1, 1, 3]


@pytest.mark.parametrize("kind", [pa.int8(), pa.float32(), pa.string()], ids=str)
@pytest.mark.parametrize(
    "given", [{}, {"null": "mask"}, {"lists": "ragged"}, {"lists": "ragged", "null": "mask"}], ids=str
)
def test_a_null_list_is_told_what_helps(kind: Any, given: dict[str, Any]) -> None:
    column = pa.array([None, ["1"], ["2"]], pa.list_(pa.string())).cast(pa.list_(kind))
    ds = af.from_arrow(pa.table({"x": column})).batch(3)
    with pytest.raises(DataError, match="1 null among 3 lists, and a null has no length") as caught:
        next(iter(ds.to_numpy(**given)))
    assert 'filter(pl.col("x").is_not_null()), or ask the loader for lists="padded" and null="mask"' in str(
        caught.value
    )
    assert next(iter(ds.to_numpy(lists="padded", null="mask")))["x_mask"].tolist() == [
        [False],
        [True],
        [True],
    ]
    filtered = af.from_arrow(pa.table({"x": column})).filter(pl.col("x").is_not_null()).batch(3)
    assert len(next(iter(filtered.to_numpy(lists=given.get("lists", "dense"))))) == 1
    with pytest.raises(DataError) as told:
        af.from_arrow(pa.table({"x": column})).map(lambda columns: columns, format="numpy").to_table()
    assert "ask the loader" not in str(told.value)


NULLS = {
    "flat": pa.array([1, None, 3, None]),
    "bits": pa.array([True, None, False, None]),
    "text": pa.array(["a", None, "b", None]),
    "list": pa.array([[1, 2], None, [3, 4], None], pa.list_(pa.int8(), 2)),
    "inside": pa.array([[1, 2], [None, 5], [3, 4], [6, None]], pa.list_(pa.int8(), 2)),
    "deep": pa.array([[[1]], [[None]], [[3]], [[None]]], pa.list_(pa.list_(pa.int8(), 1), 1)),
}


@pytest.mark.parametrize("name", NULLS)
def test_nulls_are_counted_and_refused(name: str) -> None:
    batch = batch_of(x=values(pa.int8(), 4), **{name: NULLS[name]})
    with pytest.raises(DataError, match=rf"'{name}' has 2 nulls.*fill_null"):
        export(batch)
    slicer = NumpyExport(batch.schema, owned=True).chunk(batch)
    ways: list[Callable[[int, int], Any]] = [
        slicer,
        lambda start, stop: export(batch.slice(start, stop - start)),
    ]
    for cut in ways:
        assert len(cut(0, 1)[name]) == len(cut(2, 3)[name]) == 1
        with pytest.raises(DataError, match="has 1 null"):
            cut(1, 3)


KINDS = [*FLAT, *COPIED, pa.string(), pa.binary(), pa.list_(pa.int32(), 3), pa.binary(5)]


@pytest.mark.parametrize("num_rows", [0, 3])
@pytest.mark.parametrize("owned", [False, True])
def test_empty_batches(num_rows: int, owned: bool) -> None:
    """Sliced to nothing, and never filled."""
    columns = {str(kind): pa.nulls(num_rows, kind) for kind in KINDS}
    for name, array in export(batch_of(**columns).slice(num_rows), owned=owned).items():
        assert len(array) == 0, name


def test_what_is_shared_is_read_only() -> None:
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int8(), (2, 2), permutation=[1, 0]),
        pa.FixedSizeListArray.from_arrays(values(pa.int8(), 16), 4),
    )
    batch = batch_of(a=values(pa.int8(), 4), b=tensor.storage, c=tensor, d=values(pa.binary(2), 4))
    for name, array in export(batch, owned=False).items():
        assert not array.flags.writeable, name
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("owned", [False, True])
def test_immutable_memory_is_read_only(owned: bool) -> None:
    column = pa.Array.from_buffers(pa.int8(), 4, [None, pa.py_buffer(b"abcd")])
    assert not export(batch_of(x=column), owned=owned)["x"].flags.writeable


def test_columns_that_alias_are_read_only() -> None:
    one, two, three = (values(pa.int32(), 8, seed) for seed in range(3))
    lists = pa.FixedSizeListArray.from_arrays(two, 2).slice(0, 4)
    found = export(
        batch_of(a=one.slice(0, 4), b=three.slice(2, 4), c=one.slice(4), d=lists, e=two.slice(1, 4))
    )
    assert {name for name, array in found.items() if array.flags.writeable} == {"b"}


def test_buffers_within_a_buffer_alias_it() -> None:
    outer = np.zeros(64, np.int8)
    parts = [pa.py_buffer(memory) for memory in (outer, outer[8:16], outer[48:56])]
    columns = [pa.Array.from_buffers(pa.int8(), 8, [None, part]) for part in parts]
    found = export(batch_of(b=columns[1], a=columns[0], c=columns[2]))
    assert not any(array.flags.writeable for array in found.values())
    apart = export(batch_of(b=columns[1], c=columns[2]))
    assert all(array.flags.writeable for array in apart.values())


def test_arrays_keep_the_memory_alive() -> None:
    before = pa.total_allocated_bytes()
    array = export(batch_of(x=values(pa.int64(), 100_000, seed=5)))["x"]
    assert pa.total_allocated_bytes() >= before + 800_000
    del array
    assert pa.total_allocated_bytes() < before + 800_000


@settings(max_examples=scaled(30))
@given(cuts=st.lists(st.integers(0, 60), max_size=6), owned=st.booleans())
def test_slices_of_a_chunk_equal_batches(cuts: list[int], owned: bool) -> None:
    columns = {str(kind): values(kind, 60) for kind in [*FLAT, *COPIED, pa.binary(5)]}
    columns["list"] = pa.FixedSizeListArray.from_arrays(values(pa.int16(), 180), 3)
    columns["text"] = pa.array([str(i) for i in range(60)])
    batch = batch_of(**columns)
    exporter = NumpyExport(batch.schema, owned=owned)
    slicer = exporter.chunk(batch)
    edges = [0, *sorted(cuts), 60]
    for start, stop in itertools.pairwise(edges):
        cut, whole = slicer(start, stop), exporter(batch.slice(start, stop - start))
        assert list(cut) == list(whole) == batch.schema.names
        for name, array in whole.items():
            assert cut[name].tobytes() == array.tobytes() or array.dtype == object
            assert cut[name].tolist() == array.tolist() or array.dtype.kind == "f"
            assert len(array) == 0 or cut[name].flags.writeable == array.flags.writeable


@pytest.mark.parametrize("sliced", [False, True])
def test_writing_into_an_owned_batch_changes_no_other(sliced: bool) -> None:
    kinds = [pa.int8(), pa.int64(), pa.float32(), pa.bool_(), pa.date32(), pa.binary(4)]
    batch = batch_of(**{str(kind): values(kind, 64, seed) for seed, kind in enumerate(kinds)})
    exporter = NumpyExport(batch.schema, owned=True)
    slicer = exporter.chunk(batch)
    batches = [slicer(i, i + 8) if sliced else exporter(batch.slice(i, 8)) for i in range(0, 64, 8)]
    before = [{name: array.copy() for name, array in arrays.items()} for arrays in batches]
    for array in batches[3].values():
        array.view(np.uint8)[:] = 1
    for i, (arrays, copies) in enumerate(zip(batches, before, strict=True)):
        for name, array in arrays.items():
            assert np.array_equal(array, copies[name]) == (i != 3), (i, name)


def test_explain_names_what_is_copied() -> None:
    schema = pa.schema(
        {"x": pa.float32(), "v": pa.list_(pa.bool_(), 3), "day": pa.date32(), "s": pa.string()}
    )
    assert NumpyExport(schema, owned=False).explain() == [
        "x: float -> float32: zero-copy, read-only",
        "v: fixed_size_list<item: bool>[3] -> bool[3]: copied: bit-packed in Arrow",
        "day: date32[day] -> datetime64[D]: copied: dtype: days are 32 bits in Arrow, 64 in NumPy",
        "s: string -> object: copied: dtype: Python objects",
    ]
    assert "writable" in NumpyExport(schema, owned=True).explain()[0]

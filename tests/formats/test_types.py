"""`formats.types`: what is decoded to what, what widens, and that conversion keeps every value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from arrowflow.errors import DataError
from arrowflow.formats.types import (
    check_texts,
    conform,
    convert,
    decoded_schema,
    decoded_type,
    leaf_types,
    widens,
    width_bits,
)

TEXTS = pa.array(["a", None, "longer than twelve bytes", "a"])
VIEWS = TEXTS.cast(pa.string_view())
CODES = TEXTS.dictionary_encode()
OFFSETS = pa.array([0, 1, 4], pa.int32())


def nested(values: pa.Array) -> list[pa.Array]:
    pair = pa.StructArray.from_arrays([values, values], names=["a", "b"])
    return [
        pa.ListArray.from_arrays(OFFSETS, values),
        pa.LargeListArray.from_arrays(OFFSETS.cast(pa.int64()), values),
        pa.FixedSizeListArray.from_arrays(values, 2),
        pair,
        pa.ListArray.from_arrays(OFFSETS, pair),
        pa.MapArray.from_arrays(OFFSETS, pa.array([1, 2, 3, 4]), values),
    ]


@pytest.mark.parametrize("values", [VIEWS, CODES, VIEWS.cast(pa.binary_view())], ids=lambda v: str(v.type))
def test_nested_columns_decode_like_plain_ones(values: pa.Array) -> None:
    plain = TEXTS.cast(decoded_type(values.type))
    for encoded, expected in zip(nested(values), nested(plain), strict=True):
        assert decoded_type(encoded.type) == expected.type
        for part in (encoded, encoded.slice(1), encoded.slice(0, 0)):
            found = convert(part, expected.type)
            found.validate(full=True)
            assert found.to_pylist() == part.to_pylist()


def test_other_encodings() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", "y"]))
    lists = pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), pa.array([[1, 2], [3]]))
    for array, type in (
        (runs, pa.string()),
        (lists, pa.list_(pa.int64())),
    ):
        assert decoded_type(array.type) == type
        [found] = conform(pa.RecordBatch.from_arrays([array], names=["a"]), pa.schema({"a": type}))
        found.validate(full=True)
        assert found.column(0).to_pylist() == array.to_pylist()


def test_list_views() -> None:
    lists = [[], None, [1, 2], [None], [3]]
    for view, plain in ((pa.list_view, pa.list_), (pa.large_list_view, pa.large_list)):
        array = pa.array(lists, view(pa.int32()))
        assert decoded_type(array.type) == plain(pa.int32())
        slices = [array.slice(*borders) for borders in ((0,), (1,), (2, 2), (0, 0))]
        for part in (*slices, array.take(pa.array([4, 2, 1]))):
            found = convert(part, plain(pa.int32()))
            found.validate(full=True)
            assert found.to_pylist() == part.to_pylist()
    texts = pa.array([["a"], ["b", None]], pa.list_view(pa.string_view()))
    assert convert(texts, pa.list_(pa.string())).to_pylist() == texts.to_pylist()
    inside = pa.StructArray.from_arrays([texts], names=["a"])
    with pytest.raises(pa.ArrowNotImplementedError, match="list_view inside of another type"):
        convert(inside, decoded_type(inside.type))


def test_schema_forgets_nullability_and_metadata() -> None:
    inner = pa.struct([pa.field("x", pa.int8(), nullable=False)])
    schema = pa.schema([pa.field("a", inner, nullable=False, metadata={"k": "v"})], metadata={"k": "v"})
    found = decoded_schema(schema)
    assert found.equals(pa.schema({"a": pa.struct({"x": pa.int8()})}), check_metadata=True)


WIDENS = [
    (pa.null(), pa.list_(pa.int8())),
    (pa.int8(), pa.int64()),
    (pa.uint8(), pa.int16()),
    (pa.uint32(), pa.uint64()),
    (pa.int16(), pa.float32()),
    (pa.uint32(), pa.float64()),
    (pa.int8(), pa.float16()),
    (pa.float16(), pa.float32()),
    (pa.float32(), pa.float64()),
    (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
    (pa.decimal128(10, 2), pa.decimal128(12, 2)),
    (pa.decimal128(10, 2), pa.decimal256(40, 4)),
    (pa.timestamp("s"), pa.timestamp("us")),
    (pa.timestamp("s", "UTC"), pa.timestamp("ns", "UTC")),
    (pa.time32("s"), pa.time64("ns")),
    (pa.duration("s"), pa.duration("ms")),
    (pa.list_(pa.int8()), pa.large_list(pa.int16())),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 2)),
    (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.int16()})),
]
NARROWS = [
    (pa.int64(), pa.int32()),
    (pa.int8(), pa.uint8()),
    (pa.uint64(), pa.int64()),
    (pa.int64(), pa.float64()),
    (pa.int32(), pa.float32()),
    (pa.float64(), pa.float32()),
    (pa.float32(), pa.int64()),
    (pa.decimal128(10, 2), pa.decimal128(11, 4)),
    (pa.decimal128(10, 2), pa.decimal128(9, 2)),
    (pa.timestamp("us"), pa.timestamp("ms")),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us"), pa.duration("us")),
    (pa.string(), pa.binary()),
    (pa.string(), pa.int8()),
    (pa.int8(), pa.string()),
    (pa.large_list(pa.int8()), pa.list_(pa.int8())),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8())),
    (pa.struct({"a": pa.int8()}), pa.struct({"b": pa.int8()})),
    (pa.struct({"a": pa.int8()}), pa.struct({"a": pa.int8(), "b": pa.int8()})),
    (pa.bool_(), pa.int8()),
]


def test_what_widens() -> None:
    assert [pair for pair in WIDENS if not widens(*pair)] == []
    assert [pair for pair in NARROWS if widens(*pair)] == []
    for found, wanted in WIDENS:
        assert convert(pa.nulls(3, found), wanted).equals(pa.nulls(3, wanted))


def test_extreme_integers_fit_the_float_they_widen_to() -> None:
    for bits, floats in ((8, pa.float16()), (16, pa.float32()), (32, pa.float64())):
        signed = pa.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1], getattr(pa, f"int{bits}")())
        assert widens(signed.type, floats)
        assert [int(value) for value in convert(signed, floats).to_pylist()] == signed.to_pylist()


def test_conform_orders_fills_and_keeps() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", "y"]})
    schema = pa.schema({"b": pa.string(), "new": pa.list_(pa.int8()), "a": pa.float64()})
    [found] = conform(batch.cast(pa.schema({"a": pa.int32(), "b": pa.string()})), schema)
    assert found.to_pydict() == {"b": ["x", "y"], "new": [None, None], "a": [1.0, 2.0]}
    assert found.schema == schema
    [same] = conform(batch, batch.schema)
    assert same is batch
    [empty] = conform(batch, pa.schema([]))
    assert (empty.num_rows, empty.num_columns) == (2, 0)


def big(kind: str) -> pa.Array:
    """600 rows of 4 MB each, stored once: 2.4 GB decoded."""
    value = pa.array(["x" * 4_000_000])
    if kind == "dictionary":
        zeros = np.zeros(600, np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(zeros), value)
    if kind == "list":
        return pa.ListArray.from_arrays(pa.array(np.arange(601, dtype=np.int32)), big("dictionary"))
    view = value.cast(pa.string_view())
    data = view.buffers()
    return pa.Array.from_buffers(
        pa.string_view(), 600, [None, pa.py_buffer(bytes(data[1])[:16] * 600), data[2]]
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dictionary", "view", "list"])
def test_first_part_where_offsets_would_overflow(kind: str) -> None:
    array = big(kind)
    schema = pa.schema({"a": decoded_type(array.type)})
    part = next(conform(pa.RecordBatch.from_arrays([array], names=["a"]), schema))
    assert part.num_rows == 300


@pytest.mark.parametrize("values", [VIEWS, CODES], ids=lambda v: str(v.type))
def test_rows_are_halved_until_they_fit(values: pa.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arrowflow.formats.types._MAX_OFFSET", 150)
    for array in (values, *nested(values)):
        schema = pa.schema({"a": decoded_type(array.type)})
        array = pa.concat_arrays([array] * 9)
        parts = list(conform(pa.RecordBatch.from_arrays([array], names=["a"]), schema))
        assert len(parts) > 1
        assert pa.Table.from_batches(parts).column(0).to_pylist() == array.to_pylist()


def test_what_cannot_be_cut_raises() -> None:
    with pytest.raises(DataError, match=r"column 'a': 1152921504606846976 \(int64\) in row 0 cannot be int8"):
        list(conform(pa.RecordBatch.from_pydict({"a": [2**60]}), pa.schema({"a": pa.int8()})))
    one = big("dictionary").slice(0, 1)
    row = pa.ListArray.from_arrays(pa.array([0, 600], pa.int32()), big("dictionary"))
    assert next(conform(pa.RecordBatch.from_arrays([one], names=["a"]), pa.schema({"a": pa.string()})))
    with pytest.raises(pa.ArrowCapacityError, match="need offsets over 2 GiB"):
        list(conform(pa.RecordBatch.from_arrays([row], names=["a"]), pa.schema({"a": pa.list_(pa.string())})))


def test_check_texts() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    check_texts(pa.RecordBatch.from_arrays([pa.array([1]), TEXTS.slice(0, 1)], names=["a", "b"]))
    for column in (broken, pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), broken)):
        with pytest.raises(pa.ArrowInvalid, match=r"UTF8|UTF-8"):
            check_texts(pa.RecordBatch.from_arrays([column], names=["a"]))


def test_widths_and_leaves() -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    for type, bits in (
        (pa.bool_(), 2),
        (pa.int32(), 33),
        (pa.decimal128(5, 2), 129),
        (pa.binary(5), 41),
        (pa.list_(pa.int8(), 4), 37),
        (pa.struct({"a": pa.int8(), "b": pa.int16()}), 27),
        (tensor, 199),
        (pa.null(), 0),
        (pa.string(), None),
        (pa.list_(pa.int8()), None),
        (pa.list_(pa.string(), 4), None),
        (pa.struct({"a": pa.string()}), None),
        (pa.dictionary(pa.int8(), pa.string()), None),
    ):
        assert width_bits(type) == bits, type
    assert leaf_types(tensor) == [pa.float32()]
    assert leaf_types(pa.struct({"a": pa.int8(), "b": pa.list_(pa.string())})) == [pa.int8(), pa.string()]

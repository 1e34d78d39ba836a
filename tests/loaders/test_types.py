"""What each type becomes in each framework, with and without what users ask for: dtypes, nulls, lists."""

from __future__ import annotations

import datetime
import decimal
import importlib.util
import itertools
import json
import math
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.interchange.to_numpy import Ragged
from arrowflow.loaders.export_request import ExportRequest
from arrowflow.loaders.numpy import NumpyExport
from tests.effort import scaled
from tests.loaders.frameworks import ARRAYS, dtype_of, installed, load, plain

array_loaders = pytest.mark.parametrize("name", installed(ARRAYS))
DAY = datetime.date(1970, 1, 3)
TIME = datetime.datetime(1970, 1, 1, 0, 0, 5)
TENSOR = pa.fixed_shape_tensor(pa.int32(), (2, 3), permutation=[1, 0])


def column(kind: Any, values: list[Any]) -> pa.Array:
    if isinstance(kind, pa.FixedShapeTensorType):
        storage = pa.array(
            [None if value is None else np.ravel(value).tolist() for value in values], kind.storage_type
        )
        return pa.ExtensionArray.from_storage(kind, storage)
    return pa.array(values, kind)


def dataset(kind: Any, values: list[Any], *, chunked: bool = False) -> af.Dataset:
    """Returns a dataset of a column `x`; chunked, its rows lie at an offset in two batches."""
    if not chunked:
        return af.from_arrow(pa.table({"x": column(kind, values)}))
    whole = pa.RecordBatch.from_arrays([column(kind, [*values[:1], *values])], names=["x"])
    return af.from_arrow(pa.Table.from_batches([whole.slice(1, 1), whole.slice(2)]))


def first(data: af.Dataset, name: str, **asked: Any) -> Any:
    """Returns column `x` of the first batch."""
    return next(iter(load(data, name, **asked)))["x"]


def exported(name: str, kind: Any, values: list[Any], **asked: Any) -> dict[str, Any]:
    """Returns what a loader makes of a batch with a column `x`, without a run. The batch lies at an offset in another."""
    batch = pa.RecordBatch.from_arrays([column(kind, [*values[:1], *values])], names=["x"])
    hand_over = load(af.from_arrow(batch), name, **asked)._hand_over
    export = hand_over.make_export(batch.schema, owned=False, request=hand_over.request)
    found: dict[str, Any] = export(batch.slice(len(values[:1])))
    return found


NUMBERS: dict[Any, tuple[list[Any], str]] = {
    **{
        getattr(pa, kind)(): ([1, 2, 100], kind)
        for kind in ("int8", "int16", "int32", "uint8", "uint16", "uint32")
    },
    pa.int64(): ([1, -2, 3], "int64"),
    pa.uint64(): ([1, 2, 3], "uint64"),
    pa.float16(): ([0.5, 2.0, -1.0], "float16"),
    pa.float32(): ([0.5, 2.0, -1.0], "float32"),
    pa.float64(): ([0.5, 2.0, -1.0], "float64"),
    pa.bool_(): ([True, False, True], "bool"),
    pa.time32("ms"): ([datetime.time(0, 0, 1)] * 3, "int32"),
    pa.list_(pa.float32(), 2): ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "float32"),
    pa.list_(pa.bool_(), 2): ([[True, False], [False, False], [True, True]], "bool"),
    pa.list_(pa.int16()): ([[1, 2], [3, 4], [5, 6]], "int16"),
    pa.binary(2): ([b"ab", b"cd", b"ef"], "uint8"),
}
NARROWED = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


@pytest.mark.parametrize("chunked", [False, True])
@array_loaders
def test_numbers_have_their_dtype_everywhere(name: str, *, chunked: bool) -> None:
    columns = {str(kind): pa.array([*values[:1], *values], kind) for kind, (values, _) in NUMBERS.items()}
    whole = pa.RecordBatch.from_pydict(columns)
    parts = [whole.slice(1, 1), whole.slice(2)] if chunked else [whole.slice(1)]
    batch = next(iter(load(af.from_arrow(pa.Table.from_batches(parts)).batch(3), name)))
    for kind, (values, dtype) in NUMBERS.items():
        found = batch[str(kind)]
        assert dtype_of(found) == (NARROWED.get(dtype, dtype) if name == "to_jax" else dtype)
        expected = [1000] * 3 if kind == pa.time32("ms") else values
        expected = [list(value) for value in values] if kind == pa.binary(2) else expected
        assert plain(found) == expected, kind


@array_loaders
def test_tensors_have_their_logical_shape(name: str) -> None:
    stored = np.arange(24).reshape(4, 2, 3)
    found = first(dataset(TENSOR, list(stored)).batch(4), name)
    assert tuple(found.shape) == (4, 3, 2)
    assert plain(found) == stored.transpose(0, 2, 1).tolist()
    floats = first(dataset(TENSOR, list(stored)).batch(4), name, dtypes={"x": "float32"})
    assert plain(floats) == plain(found)
    assert dtype_of(floats) == "float32"


TIMES: dict[Any, tuple[Any, int, str]] = {
    pa.date32(): (DAY, 2, "datetime64[D]"),
    pa.date64(): (DAY, 2 * 86_400_000, "datetime64[ms]"),
    pa.timestamp("s"): (TIME, 5, "datetime64[s]"),
    pa.timestamp("ns", "UTC"): (TIME, 5_000_000_000, "datetime64[ns]"),
    pa.duration("ms"): (datetime.timedelta(seconds=5), 5000, "timedelta64[ms]"),
}


@pytest.mark.parametrize("kind", TIMES, ids=str)
@array_loaders
def test_times_keep_their_unit_or_become_counts_of_it(name: str, kind: Any) -> None:
    value, count, dtype = TIMES[kind]
    data = dataset(kind, [value])
    if name == "to_numpy":
        assert dtype_of(first(data, name)) == dtype
    else:
        with pytest.raises(af.SchemaError, match=r"'x' has type .*dtypes=\{\"x\": \"int64\"\}"):
            first(data, name)
    if name == "to_jax" and count >= 1 << 31:
        with pytest.raises(af.DataError, match="int32 cannot hold"):
            first(data, name, dtypes={"x": "int64"})
    else:
        assert plain(first(data, name, dtypes={"x": "int64"})) == [count]
    with pytest.raises(af.SchemaError, match="'x'"):
        first(data, name, dtypes={"x": "float32"})


@array_loaders
def test_decimals_become_floats_on_request(name: str) -> None:
    values = [decimal.Decimal("1.25"), None, decimal.Decimal("-3.50")]
    data = dataset(pa.decimal128(12, 2), values)
    with pytest.raises(af.SchemaError, match=r"'x' has type decimal128.*dtypes=\{\"x\": \"float64\"\}"):
        first(data, name)
    found = first(data, name, dtypes={"x": "float32"}, null=0)
    assert dtype_of(found) == "float32"
    assert plain(found) == [1.25, 0, -3.5]
    masked = plain(next(iter(load(data, name, dtypes={"x": "float64"}, null="mask"))))
    assert masked == {"x": [1.25, 0, -3.5], "x_mask": [True, False, True]}
    with pytest.raises(af.SchemaError, match="decimal"):
        first(data, name, dtypes={"x": "int64"})


@pytest.mark.parametrize("by", ["cast", "expression"])
@array_loaders
def test_enums_become_codes_and_the_schema_says_what_they_mean(name: str, by: str) -> None:
    values = ["low", "high", "mid"]
    enum = pl.Enum(["low", "mid", "high"])
    data = dataset(pa.string(), values)
    data = data.cast({"x": enum}) if by == "cast" else data.with_columns(pl.col("x").cast(enum))
    for each in (
        data,
        data.batch(3),
        data.shuffle(2, seed=1).rename({"x": "y"}),
        data.filter(pl.col("x") == "low"),
    ):
        field = each.schema.field("y" if "y" in each.schema.names else "x")
        assert json.loads(field.metadata[b"enum_values"]) == ["low", "mid", "high"]
    found = first(data.batch(3), name)
    assert plain(found) == [0, 2, 1]
    assert dtype_of(found) == "uint8"
    assert plain(first(data.batch(3), name, dtypes={"x": "int32"})) == [0, 2, 1]


def test_enums_of_other_values_are_not_mixed() -> None:
    one, other = (
        dataset(pa.string(), ["a"]).cast({"x": pl.Enum(values)}) for values in (["a", "b"], ["b", "a"])
    )
    with pytest.raises(af.PlanError, match="the enum 'x' of dataset 1 has other values"):
        _ = one.concatenate(other).schema
    assert one.concatenate(one.filter(pl.col("x") == "b")).num_rows is None


def test_enums_of_one_type_keep_their_own_values() -> None:
    """Types are equal whatever the values are, and what was compiled for one is not for the other."""
    for values in (["a", "b"], ["b", "a"]):
        data = dataset(pa.string(), ["a"]).cast({"x": pl.Enum(values)}).batch(2).with_columns(y=pl.lit(1))
        assert json.loads(data.schema.field("x").metadata[b"enum_values"]) == values
        assert json.loads(data.to_table().schema.field("x").metadata[b"enum_values"]) == values


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
@array_loaders
def test_texts_are_objects_or_refused(name: str, kind: Any) -> None:
    texts = ["a", "żó", ""] if "string" in str(kind) else [b"a", b"\xff", b""]
    if name != "to_numpy":
        with pytest.raises(af.SchemaError, match=r"'x' has type .*into numbers.*pl\.Enum.*map"):
            exported(name, kind, texts)
        return
    found = exported(name, kind, texts)["x"]
    assert (found.dtype, found.tolist()) == (object, texts)
    with pytest.raises(af.SchemaError, match="StringDType"):
        exported(name, kind, texts, dtypes={"x": "float32"})
    if "string" in str(kind):
        found = first(dataset(kind, texts).batch(3), name, dtypes={"x": np.dtypes.StringDType()})
        assert found.dtype == np.dtypes.StringDType()
        assert found.tolist() == texts


REFUSED = [
    pa.struct({"a": pa.int8()}),
    pa.list_(pa.struct({"a": pa.int8()})),
    pa.map_(pa.string(), pa.int8()),
]


@array_loaders
def test_what_has_no_array_is_refused(name: str) -> None:
    asked: list[dict[str, Any]] = [{}, {"null": 0}, {"lists": "padded"}, {"dtypes": {"x": "float32"}}]
    for kind, each in itertools.product(REFUSED, asked):
        with pytest.raises(af.SchemaError, match=r"'x' has type"):
            exported(name, kind, [None], **each)


# ---------------------------------------------------------------- dtypes

CONVERSIONS = [
    (pa.int32(), [1, 2], "float32", [1.0, 2.0]),
    (pa.int64(), [1, -2], "int8", [1, -2]),
    (pa.float64(), [0.5, math.inf], "float32", [0.5, math.inf]),
    (pa.int64(), [1, 2**62], "float32", [1.0, 2.0**62]),
    (pa.int32(), [-65504, 65504], "float16", [-65504.0, 65504.0]),
    (pa.float32(), [0.5, 1.0], "bfloat16", [0.5, 1.0]),
    (pa.int32(), [1, 2], "bfloat16", [1.0, 2.0]),
    (pa.bool_(), [True, False], "float32", [1.0, 0.0]),
    (pa.bool_(), [True, False], "int8", [1, 0]),
    (pa.list_(pa.uint8(), 2), [[1, 2], [3, 4]], "float16", [[1.0, 2.0], [3.0, 4.0]]),
    (pa.list_(pa.uint8()), [[1, 2], [3, 4]], "int16", [[1, 2], [3, 4]]),
    (pa.uint8(), [1, 2], "uint16", [1, 2]),
]


@array_loaders
def test_dtypes_are_converted(name: str) -> None:
    in_numpy = importlib.util.find_spec("ml_dtypes") is not None
    has_bfloat16 = name == "to_torch" or (name != "to_dlpack" and in_numpy)
    cases = [case for case in CONVERSIONS if has_bfloat16 or case[2] != "bfloat16"]
    table = pa.table({str(at): pa.array(values, kind) for at, (kind, values, _, _) in enumerate(cases)})
    loader = load(
        af.from_arrow(table).batch(2),
        name,
        dtypes={str(at): dtype for at, (_, _, dtype, _) in enumerate(cases)},
    )
    batch, lines = next(iter(loader)), loader.explain(copies=True).splitlines()
    for at, (_, _, dtype, expected) in enumerate(cases):
        assert dtype_of(batch[str(at)]) == dtype
        assert plain(batch[str(at)]) == expected
        assert "copied: dtype" in lines[at]
    if name == "to_dlpack":
        error, told = (af.SchemaError, "DLPack cannot hold") if in_numpy else (af.PlanError, "ml_dtypes")
        with pytest.raises(error, match=told):
            exported(name, pa.int32(), [1], dtypes={"x": "bfloat16"})


def test_dtypes_may_be_named_as_their_framework_does() -> None:
    data = dataset(pa.int64(), [1, 2])
    assert first(data, "to_numpy", dtypes={"x": np.float32}).dtype == np.float32
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert first(data, "to_torch", dtypes={"x": torch.bfloat16}).dtype == torch.bfloat16
    assert first(data, "to_torch", dtypes={"x": torch.int16}).dtype == torch.int16
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    assert first(data, "to_jax", dtypes={"x": jnp.bfloat16}).dtype == jnp.bfloat16


@pytest.mark.parametrize("name", installed(("to_numpy", "to_torch", "to_jax")))
def test_binaries_of_a_width_are_read_as_any_dtype_of_it(name: str) -> None:
    """As bfloat16 is stored, for which Arrow has no type."""
    bits = (np.array([0.5, -2.0], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    data = dataset(pa.binary(2), [value.tobytes() for value in bits])
    if name != "to_torch":
        pytest.importorskip("ml_dtypes", reason="ml_dtypes, which has bfloat16 for NumPy, is not installed")
    loader = load(data, name, dtypes={"x": "bfloat16"})
    assert plain(next(iter(loader))["x"]) == [0.5, -2.0]
    assert "dtype" not in loader.explain(copies=True)


@array_loaders
def test_what_would_lose_something_is_refused(name: str) -> None:
    for kind, dtype in (
        (pa.float32(), "int32"),
        (pa.int32(), "bool"),
        (pa.timestamp("us"), "float64"),
        (pa.binary(3), "float32"),
    ):
        with pytest.raises(af.SchemaError, match=rf"{name}: column 'x' .*cast"):
            iter(load(dataset(kind, []), name, dtypes={"x": dtype}))


@pytest.mark.parametrize("dtype", [">f4", "longdouble"])
@array_loaders
def test_dtypes_that_only_numpy_has(name: str, dtype: str) -> None:
    if name == "to_numpy":
        assert exported(name, pa.int8(), [1, 2], dtypes={"x": dtype})["x"].tolist() == [1, 2]
        return
    with pytest.raises(af.SchemaError, match=r"name another dtype|cannot become"):
        exported(name, pa.int8(), [1, 2], dtypes={"x": dtype})


@array_loaders
def test_a_value_that_does_not_fit_is_an_error_of_its_batch(name: str) -> None:
    batches = iter(load(dataset(pa.int64(), [1, 2, 300, 4]).batch(2), name, dtypes={"x": "int8"}))
    assert plain(next(batches)["x"]) == [1, 2]
    with pytest.raises(af.DataError, match=r"'x' has the value 300, which int8 cannot hold"):
        next(batches)
    # What lies under a null is no value.
    hidden = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([1, 300]))])
    data = af.from_arrow(pa.table({"x": hidden}))
    assert plain(first(data, name, dtypes={"x": "int8"}, null=7)) == [1, 7]


EDGES: dict[str, list[Any]] = {
    "float16": [65504.0, -65504.0],
    "float32": [3.4028234663852886e38, -3.4028234663852886e38, 65520.0],
    "float64": [1.7976931348623157e308, -3.4028236e38, 3.4e38, 65519.0],
} | {
    f"{sign}int{bits}": [0, 1, 1 << bits - 1, (1 << bits) - 1]
    if sign
    else [-(1 << bits - 1), -1, (1 << bits - 1) - 1]
    for bits in (8, 16, 32, 64)
    for sign in ("", "u")
}
MOST = {"float16": 65519.99, "float32": 3.402823567797336e38, "float64": math.inf, "bfloat16": 3.3961775e38}
"""The largest numbers that are rounded to no infinity, or less by little."""


@pytest.mark.parametrize("source", EDGES)
@pytest.mark.parametrize("name", installed(("to_numpy", "to_torch", "to_jax")))
def test_each_pair_of_numbers_at_their_edges(name: str, source: str) -> None:
    kind, with_bfloat16 = getattr(pa, source)(), name == "to_torch" or importlib.util.find_spec("ml_dtypes")
    for target in (*EDGES, *(["bfloat16"] if with_bfloat16 else [])):
        if "float" in source and "int" in target:
            with pytest.raises(af.SchemaError, match="cast"):
                exported(name, kind, [1.0], dtypes={"x": target})
            continue
        own = target.replace("64", "32") if name == "to_jax" else target  # JAX has no 64 bits
        least, most = (min(EDGES[own]), max(EDGES[own])) if "int" in own else (-MOST[own], MOST[own])
        digits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}.get(own, 64)
        for value in EDGES[source]:
            if least <= value <= most:
                (found,) = plain(exported(name, kind, [value], dtypes={"x": target})["x"])
                assert abs(found - value) <= abs(value) / 2**digits
            else:
                with pytest.raises(af.DataError, match=r"'x' has the value .*, which \w+ cannot hold"):
                    exported(name, kind, [value], dtypes={"x": target})


def test_dates_in_finer_units_do_not_wrap_around() -> None:
    days = [datetime.date(2000, 1, 1), datetime.date(3000, 1, 1)]
    data = dataset(pa.date32(), [*days, None])
    found = first(data, "to_numpy", dtypes={"x": "datetime64[s]"}, null="nan")
    assert found[:2].astype("datetime64[D]").tolist() == days
    with pytest.raises(af.DataError, match=r"3000-01-01, which datetime64\[ns\] cannot hold"):
        first(data, "to_numpy", dtypes={"x": "datetime64[ns]"}, null="nan")
    long = dataset(pa.duration("s"), [2**40])
    with pytest.raises(af.DataError, match="cannot hold"):
        first(long, "to_numpy", dtypes={"x": "timedelta64[ns]"})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float16(), 1e6),
        (pa.float32(), 1e39),
        (pa.float64(), 10**400),
        (pa.timestamp("ns"), datetime.date(3000, 1, 1)),
        (pa.timestamp("s"), datetime.datetime(2000, 1, 1, microsecond=5)),
        (pa.duration("ns"), datetime.timedelta(days=10**6)),
    ],
    ids=str,
)
def test_what_is_put_for_nulls_has_to_fit(kind: Any, value: Any) -> None:
    with pytest.raises(af.SchemaError, match="is no value of"):
        first(dataset(kind, [None]), "to_numpy", null={"x": value})


def test_decimals_that_are_too_large_for_a_float() -> None:
    data = dataset(pa.decimal128(38, 0), [decimal.Decimal(10) ** 37])
    assert plain(first(data, "to_numpy", dtypes={"x": "float32"})) == pytest.approx([1e37])
    with pytest.raises(af.DataError, match="float16 cannot hold"):
        first(data, "to_numpy", dtypes={"x": "float16"})


# ---------------------------------------------------------------- nulls

NAN = float("nan")


def same(found: Any, expected: Any) -> bool:
    return bool(np.array_equal(np.asarray(found, float), np.asarray(expected, float), equal_nan=True))


FILLED: dict[Any, tuple[list[Any], Any, list[Any], list[Any]]] = {
    # kind: values, fill, filled, nan (or empty where there is none)
    pa.float32(): ([1.0, None], 5, [1.0, 5.0], [1.0, NAN]),
    pa.float16(): ([1.0, None], 0.5, [1.0, 0.5], [1.0, NAN]),
    pa.int32(): ([1, None], -1, [1, -1], [1.0, NAN]),
    pa.uint8(): ([1, None], 255, [1, 255], [1.0, NAN]),
    pa.bool_(): ([True, None], True, [True, True], []),
    pa.list_(pa.float32(), 2): ([[1.0, None], None], 9, [[1.0, 9.0], [9.0, 9.0]], [[1.0, NAN], [NAN, NAN]]),
    pa.fixed_shape_tensor(pa.float32(), (2,)): (
        [[1.0, 2.0], None],
        9,
        [[1.0, 2.0], [9.0, 9.0]],
        [[1.0, 2.0], [NAN, NAN]],
    ),
    pa.list_(pa.int8()): ([[1, None], [3, 4]], 9, [[1, 9], [3, 4]], [[1.0, NAN], [3.0, 4.0]]),
}


@pytest.mark.parametrize("kind", FILLED, ids=str)
@array_loaders
def test_nulls_become_values(name: str, kind: Any) -> None:
    values, fill, filled, nan = FILLED[kind]
    for null in (fill, {"x": fill}):
        assert plain(exported(name, kind, values, null=null)["x"]) == filled
    if nan:
        assert same(plain(exported(name, kind, values, null="nan")["x"]), nan)
    else:
        with pytest.raises(af.SchemaError, match="no NaN"):
            exported(name, kind, values, null={"x": "nan"})
    for data in (dataset(kind, values), dataset(kind, values, chunked=True)):
        batch = plain(next(iter(load(data.batch(2), name, null="mask"))))
        assert list(batch) == ["x", "x_mask"]
        there = np.asarray(batch["x_mask"])
        assert there.tolist() == present(values)
        assert np.asarray(batch["x"])[~there].tolist() == [0] * int((~there).sum())
    with pytest.raises(af.DataError, match=r"'x' has \d null"):
        exported(name, kind, values)


def present(values: Any) -> Any:
    if not any(isinstance(value, list) for value in values):
        return [value is not None for value in values]
    return [[False, False] if value is None else [part is not None for part in value] for value in values]


@array_loaders
def test_types_depend_on_the_schema_and_not_on_nulls(name: str) -> None:
    data = af.from_arrow(pa.table({"a": pa.array([1, 2], pa.int32()), "b": pa.array([3, 4], pa.int32())}))
    assert list(next(iter(load(data, name, null="mask")))) == ["a", "a_mask", "b", "b_mask"]
    assert list(next(iter(load(data, name, null={"b": "mask"})))) == ["a", "b", "b_mask"]
    found = next(iter(load(data, name, null={"a": "nan"})))
    assert dtype_of(found["a"]) == ("float32" if name == "to_jax" else "float64")
    assert dtype_of(found["b"]) == "int32"


def test_columns_that_cannot_have_nulls_stay_as_they_are() -> None:
    schema = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.int32(), nullable=False)])
    for null, dtype in (("mask", "int32"), ("nan", "float64")):
        export = NumpyExport(schema, owned=False, request=ExportRequest(null=null))
        found = {column.name: str(column.dtype) for column in export.columns}
        assert found == {"a": dtype, "b": "int32"} | ({"a_mask": "bool"} if null == "mask" else {})


@array_loaders
def test_a_value_for_all_columns_goes_where_it_can(name: str) -> None:
    table = pa.table({"x": pa.array([1.5, None]), "n": pa.array([1, None]), "b": pa.array([True, None])})
    found = plain(next(iter(load(af.from_arrow(table).fill_null({"b": False}), name, null=-1))))
    assert found == {"x": [1.5, -1.0], "n": [1, -1], "b": [True, False]}
    with pytest.raises(af.DataError, match="'b' has 1 null"):
        list(load(af.from_arrow(table), name, null=-1))
    with pytest.raises(af.SchemaError, match=r"'b' has type bool, and -1 is no value of bool"):
        list(load(af.from_arrow(table), name, null={"b": -1}))
    with pytest.raises(af.PlanError, match="no column can hold 'x'"):
        list(load(af.from_arrow(table), name, null="x"))


@array_loaders
def test_masks_do_not_take_the_name_of_a_column(name: str) -> None:
    table = pa.table({"x": [1, None], "x_mask": [1, 2]})
    with pytest.raises(af.PlanError, match="'x_mask'"):
        list(load(af.from_arrow(table), name, null={"x": "mask"}))


def test_nulls_of_what_only_numpy_has() -> None:
    data = dataset(pa.date32(), [DAY, None])
    assert str(first(data, "to_numpy", null="nan").tolist()) == f"[{DAY!r}, None]"
    assert first(data, "to_numpy", null=DAY).tolist() == [DAY, DAY]
    texts = dataset(pa.string(), ["a", None])
    assert first(texts, "to_numpy", null="?").tolist() == ["a", "?"]
    batch = next(iter(texts.to_numpy(null="mask")))
    assert batch["x"].tolist() == ["a", ""]
    assert batch["x_mask"].tolist() == [True, False]
    with pytest.raises(af.SchemaError, match=r"no NaN as object; .* null=\{'x': ''\}"):
        first(texts, "to_numpy", null={"x": "nan"})
    strings = first(texts, "to_numpy", null="", dtypes={"x": np.dtypes.StringDType()})
    assert strings.tolist() == ["a", ""]


@array_loaders
def test_columns_of_nothing_but_nulls(name: str) -> None:
    for kind in (pa.int32(), pa.list_(pa.float32(), 2), pa.bool_()):
        found = plain(exported(name, kind, [None, None], null="mask"))
        assert not np.any(found["x"]) and not np.any(found["x_mask"])


def test_without_nulls_nothing_is_copied() -> None:
    data = af.range(10).batch(5)
    for null in ("mask", 7):
        loader = data.to_numpy(null=null)
        batch = next(iter(loader))["id"]
        assert batch.base is not None
        assert loader.explain(copies=True).splitlines()[0].endswith("unless there are nulls")


# ---------------------------------------------------------------- lists

LISTS = [[1, 2], [], [3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("chunked", "kind"), [(False, pa.list_), (True, pa.large_list)], ids=["list", "large"]
)
@array_loaders
def test_ragged_and_padded_lists(name: str, *, chunked: bool, kind: Any) -> None:
    data = dataset(kind(pa.int32()), LISTS, chunked=chunked).batch(3)
    ragged = [plain(batch["x"]) for batch in load(data, name, lists="ragged")]
    assert ragged == [[[1, 2, 3], [0, 2, 2, 3]], [[4, 5, 6], [0, 3]]]
    padded = [plain(batch["x"]) for batch in load(data, name, lists="padded")]
    assert padded == [[[1, 2], [0, 0], [3, 0]], [[4, 5, 6]]]
    with pytest.raises(af.DataError, match=r"'x' has lists of 0 to 2 .*padded_batch.*padded.*ragged"):
        list(load(data, name))
    for lists in ("ragged", "padded"):
        found = exported(name, kind(pa.int64()), LISTS, lists=lists, dtypes={"x": "float32"})["x"]
        assert dtype_of(found.values if isinstance(found, Ragged) else found) == "float32"


@array_loaders
def test_lists_of_boxes_keep_their_inner_shape(name: str) -> None:
    boxes, rows = pa.list_(pa.list_(pa.int8(), 2)), [[[1, 2]], [[3, 4], [5, 6]]]
    assert plain(exported(name, boxes, rows, lists="ragged")["x"])[0] == [[1, 2], [3, 4], [5, 6]]
    assert plain(exported(name, boxes, rows, lists="padded")["x"]) == [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]
    for lists in ("ragged", "padded"):
        with pytest.raises(af.SchemaError, match="only the outermost"):
            exported(name, pa.list_(pa.list_(pa.int8())), [[[1]], [[2], [3]]], lists=lists)


@array_loaders
def test_nulls_and_lists_together(name: str) -> None:
    floats, rows = pa.list_(pa.float32()), [[1.0, None], [3.0]]
    padded = plain(exported(name, floats, rows, lists="padded", null="mask"))
    assert padded == {"x": [[1.0, 0.0], [3.0, 0.0]], "x_mask": [[True, False], [True, False]]}
    ragged = plain(exported(name, floats, rows, lists="ragged", null=-1))
    assert ragged["x"] == [[1.0, -1.0, 3.0], [0, 2, 3]]
    whole, missing = pa.list_(pa.int8()), [[1], None, [2, 3]]
    assert plain(exported(name, whole, missing, lists="padded", null=9)["x"]) == [[1, 0], [9, 9], [2, 3]]
    fixed = exported(name, pa.list_(pa.int8(), 2), [[1, 4], None, [2, 3]], lists="padded", null=9)
    assert plain(fixed["x"]) == [[1, 4], [9, 9], [2, 3]]
    for lists in ("ragged", "dense"):
        with pytest.raises(af.DataError, match="'x' has 1 null"):
            exported(name, whole, missing, lists=lists, null=9)
    for lists in ("ragged", "padded"):
        with pytest.raises(af.DataError, match="null"):
            exported(name, floats, rows, lists=lists)


@settings(max_examples=scaled(40))
@given(
    rows=st.lists(st.lists(st.one_of(st.none(), st.integers(0, 99)), max_size=4), min_size=1, max_size=9),
    offset=st.integers(0, 3),
    size=st.integers(1, 4),
)
def test_any_lists_padded_and_ragged(rows: list[list[int | None]], offset: int, size: int) -> None:
    array = pa.array([[7, 8]] * offset + rows, pa.list_(pa.int16())).slice(offset)
    data = af.from_arrow(pa.RecordBatch.from_arrays([array], names=["x"])).batch(size)
    padded = list(data.to_numpy(lists="padded", null="mask"))
    ragged = list(data.to_numpy(lists="ragged", null=100))
    cut = [rows[start : start + size] for start in range(0, len(rows), size)]
    for part, box, lists in zip(cut, padded, ragged, strict=True):
        longest = max(map(len, part))
        assert box["x"].tolist() == [
            [value or 0 for value in row] + [0] * (longest - len(row)) for row in part
        ]
        assert box["x_mask"].tolist() == [
            [value is not None for value in row] + [False] * (longest - len(row)) for row in part
        ]
        values, offsets = lists["x"]
        assert [values[start:stop].tolist() for start, stop in itertools.pairwise(offsets)] == [
            [100 if value is None else value for value in row] for row in part
        ]


@pytest.mark.parametrize("asked", [{}, {"null": "mask"}, {"lists": "ragged"}, {"lists": "padded"}], ids=str)
@array_loaders
def test_batches_without_rows(name: str, asked: dict[str, Any]) -> None:
    """Never delivered, but exports take them."""
    for kind in (*NUMBERS, TENSOR):
        found = exported(name, kind, [], **asked)["x"]
        if not getattr(found, "is_nested", False):
            shape = found.offsets.shape if isinstance(found, Ragged) else found.shape
            assert shape[0] == int(isinstance(found, Ragged)), kind

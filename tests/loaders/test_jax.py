"""JAX: memory that nobody writes and that is aligned is taken as it is; global arrays; dtypes that JAX has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.errors import ArrowflowError, MissingPackageError
from arrowflow.interchange.to_numpy import Ragged
from arrowflow.loaders.export_request import ExportRequest
from arrowflow.loaders.jax import JaxExport

jax = pytest.importorskip("jax", reason="JAX is not installed")


def aligned(num_bytes: int, *, shift: int = 0) -> pa.Buffer:
    """Zeros at an address that is `shift` more than a multiple of what JAX wants."""
    whole = np.zeros(num_bytes + 2 * JaxExport.alignment, np.uint8)
    start = -whole.ctypes.data % JaxExport.alignment + shift
    return pa.py_buffer(whole[start : start + num_bytes])


def batch(*, shift: int = 0) -> pa.RecordBatch:
    values = pa.Array.from_buffers(pa.float32(), 64, [None, aligned(256, shift=shift)])
    return pa.RecordBatch.from_arrays([pa.FixedSizeListArray.from_arrays(values, 16)], names=["x"])


def address(array: Any) -> int:
    return int(array.unsafe_buffer_pointer())


def source(rows: pa.RecordBatch) -> int:
    return int(rows.column(0).values.buffers()[1].address)


def test_aligned_memory_of_a_batch_is_taken_as_it_is() -> None:
    rows = batch()
    export = JaxExport(rows.schema, owned=True)
    assert address(export(rows)["x"]) == source(rows)
    assert address(export.chunk(rows)(1, 3)["x"]) == source(rows) + 64


def test_memory_that_is_not_aligned_is_copied() -> None:
    rows = batch(shift=4)
    found = JaxExport(rows.schema, owned=True)(rows)["x"]
    assert address(found) != source(rows)


@pytest.mark.parametrize("sliced", [False, True])
def test_what_others_may_write_is_copied(*, sliced: bool) -> None:
    rows = batch()
    export = JaxExport(rows.schema, owned=False)
    found = (export.chunk(rows)(0, 4) if sliced else export(rows))["x"]
    np.frombuffer(rows.column(0).values.buffers()[1], np.float32)[:] = 7
    assert not np.asarray(found).any()


def test_columns_that_alias_may_both_be_donated() -> None:
    rows = batch()
    rows = pa.RecordBatch.from_arrays([rows.column(0)] * 2, names=["a", "b"])
    found = JaxExport(rows.schema, owned=True)(rows)
    assert address(found["a"]) != address(found["b"])


def test_strictness_refuses_what_is_misaligned() -> None:
    numbers = np.zeros(32, np.float32)
    data = af.from_numpy({"x": numbers}).shuffle(32, seed=0)
    batches = list(data.batch(16).to_jax(strict_zero_copy=True))
    assert [len(each["x"]) for each in batches] == [16, 16]
    with pytest.raises(af.DataError, match=r"to_jax: column 'x' would be copied \(misaligned"):
        list(data.batch(3).to_jax(strict_zero_copy=True))


def test_tensors_with_permuted_axes_are_copied_and_explain_says_so() -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 8), permutation=[1, 0])
    rows = pa.RecordBatch.from_arrays(
        [pa.ExtensionArray.from_storage(kind, batch().column(0).cast(kind.storage_type))], names=["x"]
    )
    export = JaxExport(rows.schema, owned=True)
    assert export(rows)["x"].shape == (4, 8, 2)
    assert "copied: misaligned: the axes" in export.explain()[0]
    with pytest.raises(af.SchemaError, match="the axes"):
        JaxExport(rows.schema, owned=True, request=ExportRequest(strict_zero_copy=True))


def test_dtypes_of_64_bits_become_32_and_explain_says_so() -> None:
    table = pa.table({"i": [1, 2], "f": [0.5, 1.0], "h": pa.array([1, 2], pa.int16())})
    loader = af.from_arrow(table).to_jax()
    found = next(iter(loader))
    assert {name: str(array.dtype) for name, array in found.items()} == {
        "i": "int32",
        "f": "float32",
        "h": "int16",
    }
    lines = loader.explain(copies=True).splitlines()
    assert lines[0] == "i: int64 -> int32: copied: dtype"
    assert "copied: shared" in lines[2]
    with pytest.raises(af.DataError, match=r"'x' has the value 4294967296, which int32 cannot hold"):
        list(af.from_arrow(pa.table({"x": [1 << 32]})).to_jax())


def test_ragged_lists_are_pytrees() -> None:
    data = af.from_arrow(pa.table({"x": pa.array([[1, 2], [3]], pa.list_(pa.int32()))}))
    found = next(iter(data.to_jax(lists="ragged")))["x"]
    assert isinstance(found, Ragged)
    total = jax.jit(lambda lists: lists.values.sum() + lists.offsets[-1])(found)
    assert int(total) == 9


def test_bad_shardings_are_refused_at_once() -> None:
    with pytest.raises(af.PlanError, match=r"to_jax: sharding is a jax\.sharding"):
        af.range(3).to_jax(sharding="data")
    with pytest.raises(af.PlanError, match="ragged"):
        af.range(3).to_jax(sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]), lists="ragged")


def test_missing_jax_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'arrowflow\[jax\]'") as caught:
        JaxExport(pa.schema({"x": pa.int8()}), owned=True)
    assert isinstance(caught.value, ImportError | ArrowflowError)


def run(code: str, **environment: str) -> None:
    """Runs code in a process of its own, since JAX is told of devices and widths before it is imported."""
    root = Path(af.__file__).parent.parent
    subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        check=True,
        env={"PYTHONPATH": str(root), "PATH": "", "JAX_PLATFORMS": "cpu", **environment},
    )


@pytest.mark.slow
def test_global_arrays_over_several_devices() -> None:
    code = """
import arrowflow as af, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
assert len(jax.devices()) == 4
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
data = af.range(40).map(lambda b: {"x": np.stack([b["id"]] * 3, 1).astype("f4"), "y": b["id"]}, format="numpy")
loader = data.batch(16).to_jax(sharding=sharding, collate=lambda b: (b["x"], b["y"]))
batches = iter(loader)
x, y = next(batches)
assert x.sharding == sharding and x.shape == (16, 3) and y.shape == (16,)
assert [shard.data.shape for shard in x.addressable_shards] == [(4, 3)] * 4
assert float(jax.jit(lambda x, y: x.sum() + y.sum())(x, y)) == 4 * sum(range(16))
next(batches)
x, y = next(batches)
assert np.asarray(y).tolist() == list(range(32, 40))
try:
    list(data.batch(14).to_jax(sharding=sharding))
except af.DataError as error:
    assert "drop_remainder" in str(error) and error.operator == "to_jax", error
else:
    raise AssertionError("14 rows on 4 devices")
other = NamedSharding(sharding.mesh, P())
x = next(iter(data.batch(14).to_jax(sharding=other)))["x"]
assert [shard.data.shape for shard in x.addressable_shards] == [(14, 3)] * 4
"""
    run(code, XLA_FLAGS="--xla_force_host_platform_device_count=4")


@pytest.mark.slow
def test_with_x64_dtypes_stay_what_they_are() -> None:
    code = """
import arrowflow as af, pyarrow as pa
loader = af.from_arrow(pa.table({"i": [1 << 40], "f": [0.5]})).shuffle(2).to_jax()
found = next(iter(loader))
assert str(found["i"].dtype) == "int64" and int(found["i"][0]) == 1 << 40
assert str(found["f"].dtype) == "float64"
assert "dtype" not in loader.explain(copies=True)
"""
    run(code, JAX_ENABLE_X64="1")

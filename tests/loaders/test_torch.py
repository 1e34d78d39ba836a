"""PyTorch export: views of what a batch owns, copies of what is shared, no warnings."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.errors import ArrowflowError, MissingPackageError, SchemaError
from arrowflow.loaders.torch import TorchExport
from tests.loaders.frameworks import address, memory

KINDS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
]


class FakeTorch:
    """Stands in for PyTorch, so that the rules on sharing are tested without it, too."""

    @staticmethod
    def from_numpy(array: Any) -> Any:
        assert array.flags.writeable
        return array


@pytest.fixture(params=["fake", "real"])
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "real":
        return pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setitem(sys.modules, "torch", FakeTorch)
    return FakeTorch


def batch(num_rows: int = 16) -> pa.RecordBatch:
    columns = {}
    for kind in KINDS:
        buffer = pa.allocate_buffer(num_rows * 4 * max(kind.bit_width // 8, 1))
        np.frombuffer(buffer, np.uint8)[:] = np.arange(buffer.size) % 100
        columns[str(kind)] = pa.Array.from_buffers(kind, num_rows, [None, buffer])
        flat = pa.Array.from_buffers(kind, num_rows * 4, [None, pa.py_buffer(bytearray(bytes(buffer)))])
        columns[f"{kind}[4]"] = pa.FixedSizeListArray.from_arrays(flat, 4)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


@pytest.mark.parametrize("sliced", [False, True])
def test_owned_columns_are_views(torch: Any, sliced: bool) -> None:
    rows = batch()
    exporter = TorchExport(rows.schema, owned=True)
    tensors = exporter.chunk(rows)(4, 12) if sliced else exporter(rows.slice(4, 8))
    assert list(tensors) == rows.schema.names
    for name, tensor in tensors.items():
        column = rows.column(name)
        assert np.asarray(tensor).tolist() == column.to_pylist()[4:12]
        item_bytes = np.asarray(tensor)[0].nbytes
        in_place = address(tensor) == column.buffers()[-1].address + 4 * item_bytes
        assert in_place != name.startswith("bool"), name


@pytest.mark.parametrize("sliced", [False, True])
def test_writing_into_tensors_of_shared_memory_changes_nothing(torch: Any, sliced: bool) -> None:
    rows = batch()
    before = memory(rows)
    exporter = TorchExport(rows.schema, owned=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensors = exporter.chunk(rows)(4, 12) if sliced else exporter(rows)
    for tensor in tensors.values():
        tensor[...] = 1
    assert memory(rows) == before


@pytest.mark.parametrize(
    "kind", [pa.date32(), pa.date64(), pa.timestamp("us", "UTC"), pa.duration("s")], ids=str
)
def test_times_are_refused(kind: Any) -> None:
    with pytest.raises(SchemaError, match=r"'when' has type .* a PyTorch tensor cannot hold; .*cast"):
        TorchExport(pa.schema({"when": kind}), owned=True)


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (
            pa.array([0, 1]).cast(pa.timestamp("us")),
            r'take its units in a loader with dtypes={"when": "int64"}',
        ),
        (
            pa.array([0, 1], pa.int32()).cast(pa.date32()),
            r'take its days in a loader with dtypes={"when": "int64"}',
        ),
        (
            pa.array([0, 1], pa.int8()).cast(pa.decimal128(5, 2)),
            r'take its values in a loader with dtypes={"when": "float64"}',
        ),
    ],
    ids=["timestamp", "date", "decimal"],
)
@pytest.mark.parametrize("fixed", [False, True])
def test_lists_of_times_are_refused_with_the_way(torch: Any, values: Any, advice: str, fixed: bool) -> None:
    lists = (
        pa.FixedSizeListArray.from_arrays(values, 2) if fixed else pa.ListArray.from_arrays([0, 2], values)
    )
    rows = pa.table({"when": lists})
    with pytest.raises(SchemaError, match=re.escape(f"tensor cannot hold; {advice}")):
        af.from_arrow(rows).to_torch().peek()
    dtype = advice.rsplit('"', 2)[1]
    batch = af.from_arrow(rows).to_torch(dtypes={"when": dtype}).peek()
    assert batch["when"].tolist() == [[0, 1]]


def test_explain(torch: Any) -> None:
    schema = pa.schema({"x": pa.int8(), "b": pa.bool_()})
    shared, bits = TorchExport(schema, owned=False).explain()
    assert shared == "x: int8 -> int8: copied: shared: PyTorch has no read-only tensors"
    assert bits == "b: bool -> bool: copied: bit-packed in Arrow"
    assert "zero-copy" in TorchExport(schema, owned=True).explain()[0]


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'arrowflow\[torch\]'") as caught:
        TorchExport(pa.schema({"x": pa.int8()}), owned=True)
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, ArrowflowError)

"""DLPack export: any consumer reads it, and none writes into what is shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from arrowflow.errors import SchemaError
from arrowflow.loaders.dlpack import DlpackExport
from tests.loaders.frameworks import address, memory

KINDS = [
    pa.int8(),
    pa.uint16(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.binary(3),
]


def batch(num_rows: int = 16) -> pa.RecordBatch:
    columns = []
    for kind in [*KINDS, pa.int32()]:
        buffer = pa.allocate_buffer(num_rows * 4 * max(kind.bit_width // 8, 1))
        np.frombuffer(buffer, np.uint8)[:] = np.arange(buffer.size) % 100
        num_values = num_rows * 4 if kind == pa.int32() else num_rows
        columns.append(pa.Array.from_buffers(kind, num_values, [None, buffer]))
    tensor = pa.fixed_shape_tensor(pa.int32(), (2, 2), permutation=[1, 0])
    columns[-1] = pa.ExtensionArray.from_storage(tensor, pa.FixedSizeListArray.from_arrays(columns[-1], 4))
    return pa.RecordBatch.from_arrays(columns, names=[str(column.type) for column in columns])


@pytest.mark.parametrize("sliced", [False, True])
def test_owned_columns_are_read_in_place(sliced: bool) -> None:
    rows = batch()
    exporter = DlpackExport(rows.schema, owned=True)
    columns = exporter.chunk(rows)(4, 12) if sliced else exporter(rows.slice(4, 8))
    for name, column in columns.items():
        assert column.__dlpack_device__() == (1, 0)
        array = np.from_dlpack(column)
        assert np.array_equal(array, column)
        assert array.flags.writeable
        if name != "bool":
            assert address(array) > rows.column(name).buffers()[-1].address


@pytest.mark.parametrize("sliced", [False, True])
def test_shared_columns_are_copied(sliced: bool) -> None:
    rows = batch()
    before = memory(rows)
    exporter = DlpackExport(rows.schema, owned=False)
    columns = exporter.chunk(rows)(4, 12) if sliced else exporter(rows.slice(4, 8))
    for column in columns.values():
        np.from_dlpack(column)[...] = 1
    assert memory(rows) == before


def test_capsules_have_the_version_that_the_consumer_speaks() -> None:
    """Whatever pyarrow speaks: its own capsules have versions, and a flag for read-only, from 26 on."""
    column = DlpackExport(batch().schema, owned=True)(batch())["float"]
    assert '"dltensor_versioned"' in repr(column.__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(column.__dlpack__())


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.string(), pa.duration("s")], ids=str)
def test_types_unknown_to_dlpack_are_refused(kind: Any) -> None:
    with pytest.raises(SchemaError, match=r"'when' has type .* DLPack cannot hold; .*(cast|map)"):
        DlpackExport(pa.schema({"when": kind}), owned=True)


def test_explain() -> None:
    schema = pa.schema({"x": pa.int8()})
    assert "copied: shared" in DlpackExport(schema, owned=False).explain()[0]
    assert "zero-copy unless" in DlpackExport(schema, owned=True).explain()[0]


def test_torch_reads_in_place_and_never_writes_into_shared_memory() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rows = batch()
    owned = DlpackExport(rows.schema, owned=True)(rows)
    for name, column in owned.items():
        assert torch.from_dlpack(column).data_ptr() == address(column), name
    before = memory(rows)
    for column in DlpackExport(rows.schema, owned=False)(rows).values():
        torch.from_dlpack(column)[...] = 1
    assert memory(rows) == before

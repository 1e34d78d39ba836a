"""Tensor columns of other libraries: extension types with a `shape` over lists."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.interchange.tensors import tensor_schema, tensor_table
from tests.ops.tables import refused

pytestmark = pytest.mark.any_version


class Foreign(pa.ExtensionType):
    """As `datasets` and Ray Data have them."""

    def __init__(self, storage: pa.DataType, shape: Any) -> None:
        self.shape = shape
        super().__init__(storage, "tests.foreign")

    def __arrow_ext_serialize__(self) -> bytes:
        return repr(self.shape).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, text: bytes) -> Foreign:
        return cls(storage, ast.literal_eval(text.decode()))


def table(type: Foreign, values: list[Any]) -> pa.Table:
    column = pa.ExtensionArray.from_storage(type, pa.array(values, type.storage_type))
    return pa.table({"x": range(len(values)), "m": column})


VALUES = np.arange(18, dtype=np.float32).reshape(3, 2, 3)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(
    ("storage", "values"),
    [
        (pa.list_(pa.list_(pa.float32())), VALUES.tolist()),
        (pa.large_list(pa.float32()), VALUES.reshape(3, 6).tolist()),
    ],
    ids=["nested", "flat"],
)
def test_lists_become_tensors(storage: pa.DataType, values: list[Any], start: int) -> None:
    given = table(Foreign(storage, (2, 3)), values).slice(start)
    found = tensor_table(given)
    found.validate(full=True)
    assert found.schema == tensor_schema(given.schema)
    assert found.schema.field("m").type == pa.fixed_shape_tensor(pa.float32(), [2, 3])
    (batch,) = af.from_arrow(found).batch(3).to_numpy()
    assert np.array_equal(batch["m"], VALUES[start:])


@pytest.mark.parametrize("shape", [None, (), (None, 3), (0, 3), "23"], ids=str)
def test_what_has_no_shape_stays(shape: Any) -> None:
    given = table(Foreign(pa.list_(pa.float32()), shape), [[1.0, 2.0, 3.0]])
    assert tensor_table(given).schema == given.schema


@pytest.mark.parametrize("values", [[None, [1.0] * 6], [[1.0] * 5]], ids=["null", "short"])
def test_what_is_no_whole_tensor_is_refused(values: list[Any]) -> None:
    given = table(Foreign(pa.list_(pa.float32()), (2, 3)), values)
    refused(af.DataError, lambda: tensor_table(given), "'m'", "(2, 3)", "nulls")

"""`TorchExport`: record batches as dicts of PyTorch tensors on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from arrowflow.interchange.dtypes import check_bfloat16, dtype_named
from arrowflow.interchange.to_numpy import ColumnExport, NumpyArray, Ragged
from arrowflow.loaders.export_request import PLAIN, ExportRequest, by_column
from arrowflow.loaders.numpy import Arrays, ArraysExport
from arrowflow.optional import optional

BFLOAT16: Final = "bfloat16"
"""The dtype that NumPy lacks: tensors of it are made from arrays of other dtypes."""


def torch_dtype(value: Any) -> Any:
    """Returns a dtype of PyTorch or NumPy, or a name, as a dtype of NumPy; or `BFLOAT16`. Does not import PyTorch.

    Raises:
        PlanError: `value` names no dtype.

    Examples:
        >>> torch_dtype("float32"), torch_dtype("bfloat16")
        (dtype('float32'), 'bfloat16')
    """
    if type(value).__module__ == "torch":
        value = str(value).removeprefix("torch.")
    names = (value, getattr(value, "name", ""), getattr(value, "__name__", ""))
    if any(isinstance(name, str) and name == BFLOAT16 for name in names):
        return BFLOAT16
    return dtype_named(value)


class TorchExport(ArraysExport):
    """Turns record batches of one schema into dicts of PyTorch tensors.

    A tensor is a view of Arrow's memory and keeps it alive if the batch alone owns that memory. PyTorch has no
    read-only tensors. So shared memory is copied, and writing into a tensor never reaches anything else. Booleans are
    unpacked, enums become codes, and ragged lists become jagged nested tensors. Dates and times need an integer dtype,
    decimals a float dtype. Strings have no tensor.
    """

    framework: ClassVar[str] = "a PyTorch tensor"
    shared: ClassVar[str] = "shared: PyTorch has no read-only tensors"

    def __init__(self, schema: Any, *, owned: bool, request: ExportRequest = PLAIN) -> None:
        request = by_column(request, schema, np.dtype(np.float32) if request.dtype == BFLOAT16 else None)
        # Whether a column holds the bits of bfloat16, in binaries of two bytes. An unknown one is refused later.
        self._bfloats = {
            field.name: field.type == pa.binary(2)
            for field in schema
            if request.dtypes.get(field.name) == BFLOAT16
        }
        carried = {name: np.dtype(np.uint16 if bits else np.float32) for name, bits in self._bfloats.items()}
        request = replace(request, dtypes={**request.dtypes, **carried})
        super().__init__(schema, owned=owned, request=request)
        self._torch = optional("torch", user="to_torch", extra="torch")
        self._from_numpy: Callable[[NumpyArray], Any] = self._torch.from_numpy
        # Whether tensors are views of arrays, where these are of memory that a batch owns.
        self._is_plain = not (self._bfloats or request.lists == "ragged")

    def chunk(self, batch: Any) -> Callable[[int, int], dict[str, Any]]:
        arrays = self._whole(batch.columns) if self._is_plain and not self._by_slice else None
        if arrays is not None and all(array.flags.behaved for array in arrays.values()):
            # Each slice is a tensor of its own. Views of one tensor would count each other's changes for autograd.
            from_numpy, items = self._from_numpy, tuple(arrays.items())
            return lambda start, stop: {name: from_numpy(array[start:stop]) for name, array in items}
        return super().chunk(batch)

    def _copied(self, column: ColumnExport) -> str:
        return super()._copied(column) if self._bfloats.get(column.name, True) else "dtype: bfloat16"

    def _made(self, arrays: Arrays) -> dict[str, Any]:
        make = self._put if self._is_plain else self._tensor
        return {name: make(name, array) for name, array in arrays.items()}

    def _tensor(self, name: str, array: Any) -> Any:
        if isinstance(array, Ragged):
            offsets = self._put(name, array.offsets.astype(np.int64))
            values = self._tensor(name, array.values)
            return self._torch.nested.nested_tensor_from_jagged(values, offsets=offsets)
        if not self._bfloats.get(name, True):
            check_bfloat16(name, array)
        tensor = self._put(name, array)
        if name not in self._bfloats:
            return tensor
        return tensor.view(self._torch.bfloat16) if self._bfloats[name] else self._rounded(tensor)

    def _rounded(self, tensor: Any) -> Any:
        return tensor.to(self._torch.bfloat16)

    def _put(self, name: str, array: NumpyArray) -> Any:
        return self._from_numpy(self._own(name, array))

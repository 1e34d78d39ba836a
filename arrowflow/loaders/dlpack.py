"""`DlpackExport`: record batches as dicts of objects that speak DLPack."""

from __future__ import annotations

from typing import Any

from arrowflow.errors import DataError, SchemaError
from arrowflow.interchange.to_numpy import NumpyArray
from arrowflow.loaders.export_request import PLAIN, ExportRequest
from arrowflow.loaders.numpy import ALIASED, Arrays, ArraysExport, copy_refusal, map_arrays

_KINDS = "biufc"
SHARED = "shared: not every consumer of DLPack honours read-only"


class DlpackExport(ArraysExport):
    """Turns record batches of one schema into dicts of objects for `from_dlpack` of any framework.

    The objects are NumPy arrays, whatever the version of pyarrow. Unlike the DLPack export of pyarrow, that of NumPy
    knows booleans, tensors and, in versioned capsules, the read-only flag. Not every consumer honours that flag:
    `torch.from_dlpack` makes a writable tensor of a read-only array. So memory that a batch does not own is copied,
    unless the consumer is known never to write (`copy_shared=False`; NumPy honours the flag, JAX never writes).

    Examples:
        >>> import numpy as np
        >>> import pyarrow as pa
        >>> batch = pa.RecordBatch.from_pydict({"x": [1, 2]}, pa.schema({"x": pa.int64()}))
        >>> np.from_dlpack(DlpackExport(batch.schema, owned=True)(batch)["x"])
        array([1, 2])
    """

    __slots__ = ("_copy_shared",)

    def __init__(
        self, schema: Any, *, owned: bool, request: ExportRequest = PLAIN, copy_shared: bool = True
    ) -> None:
        super().__init__(schema, _KINDS, "DLPack", owned=owned, request=request)
        self._copy_shared = copy_shared
        if self._strict and copy_shared and not owned:
            for column in self._arrays.columns:
                raise SchemaError(copy_refusal(column.name, SHARED))

    def explain(self) -> list[str]:
        if self._owned or not self._copy_shared:
            return self._arrays.explain()
        return self._arrays.describe(f"copied: {SHARED}")

    def _made(self, arrays: Arrays) -> Arrays:
        return map_arrays(arrays, self._own) if self._copy_shared else arrays

    def _own(self, name: str, array: NumpyArray) -> NumpyArray:
        if array.flags.writeable:
            return array
        if self._strict:
            raise DataError(copy_refusal(name, ALIASED))
        return array.copy()

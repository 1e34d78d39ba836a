"""`DlpackExport`: record batches as dicts of objects that speak DLPack."""

from __future__ import annotations

from typing import Any

from arrowflow.interchange.to_numpy import NumpyArray
from arrowflow.loaders.numpy import NumpyExport, Slicer

_KINDS = "biufc"


class DlpackExport:
    """Turns record batches of one schema into dicts of objects for `from_dlpack` of any framework.

    The objects are NumPy arrays: unlike pyarrow's own, their DLPack export knows booleans, tensors and, in
    versioned capsules, the read-only flag. Not every consumer honours that flag: `torch.from_dlpack` makes a
    writable tensor of a read-only array. So what a batch does not own is copied, unless the consumer is known
    to keep its hands off (`copy_shared=False`; NumPy honours the flag, JAX never writes).

    Example:
        >>> import numpy as np
        >>> import pyarrow as pa
        >>> batch = pa.RecordBatch.from_pydict({"x": [1, 2]}, pa.schema({"x": pa.int64()}))
        >>> np.from_dlpack(DlpackExport(batch.schema, owned=True)(batch)["x"])
        array([1, 2])
    """

    __slots__ = ("_arrays", "_copy_shared", "_owned")

    def __init__(self, schema: Any, *, owned: bool, copy_shared: bool = True) -> None:
        """Decides on every column of `schema`; see `NumpyExport` for `owned`.

        Raises:
            SchemaError: A column has a type that DLPack does not know; the message names a way out.
        """
        self._arrays = NumpyExport(schema, owned=owned)
        self._arrays.require(_KINDS, "DLPack")
        self._copy_shared = copy_shared
        self._owned = owned

    def __call__(self, batch: Any) -> dict[str, NumpyArray]:
        """Returns the exported columns of a batch; raises `DataError` for nulls."""
        return self._separated(self._arrays(batch))

    def chunk(self, batch: Any) -> Slicer:
        """Converts a large batch once; copies, where there are any, are made slice by slice."""
        slicer = self._arrays.chunk(batch)
        return lambda start, stop: self._separated(slicer(start, stop))

    def explain(self) -> list[str]:
        """Returns one line per column: zero-copy, or why not."""
        if self._owned or not self._copy_shared:
            return self._arrays.explain()
        return self._arrays.describe("copied: shared, and not every consumer of DLPack honours read-only")

    def _separated(self, arrays: dict[str, NumpyArray]) -> dict[str, NumpyArray]:
        if not self._copy_shared:
            return arrays
        return {name: array if array.flags.writeable else array.copy() for name, array in arrays.items()}

"""`DlpackExport`: record batches as dicts of objects that speak DLPack."""

from __future__ import annotations

from typing import ClassVar

from arrowflow.loaders.numpy import ArraysExport


class DlpackExport(ArraysExport):
    """Turns record batches of one schema into dicts of objects for `from_dlpack` of any framework.

    The objects are NumPy arrays, whatever the version of pyarrow. Unlike the DLPack export of pyarrow, that of NumPy
    knows booleans, tensors and, in versioned capsules, the read-only flag. Not every consumer honours that flag:
    `torch.from_dlpack` makes a writable tensor of a read-only array. So memory that a batch does not own is copied.

    Examples:
        >>> import numpy as np
        >>> import pyarrow as pa
        >>> batch = pa.RecordBatch.from_pydict({"x": [1, 2]}, pa.schema({"x": pa.int64()}))
        >>> np.from_dlpack(DlpackExport(batch.schema, owned=True)(batch)["x"])
        array([1, 2])
    """

    framework: ClassVar[str] = "DLPack"
    shared: ClassVar[str] = "shared: not every consumer of DLPack honours read-only"

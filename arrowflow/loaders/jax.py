"""`JaxExport`: record batches as dicts of JAX arrays.

JAX arrays never change, so an array may only use memory that nobody writes: the memory of a batch that owns it. On the
CPU JAX uses such memory without a copy if it is aligned to 64 bytes, and copies it otherwise. Dtypes are JAX's dtypes.
Without `jax_enable_x64` 64-bit dtypes become 32-bit, and a whole number that does not fit is an error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from arrowflow.errors import DataError
from arrowflow.interchange.to_numpy import ColumnExport, NumpyArray
from arrowflow.loaders.export_request import PLAIN, ExportRequest, by_column, requested_exports
from arrowflow.loaders.numpy import Arrays, ArraysExport, map_arrays
from arrowflow.optional import optional


class JaxExport(ArraysExport):
    """Turns record batches of one schema into dicts of JAX arrays; ragged lists into pairs of values and offsets.

    Each call begins the transfer to the device and does not wait for its end.
    """

    framework: ClassVar[str] = "a JAX array"
    kinds: ClassVar[str] = "biufcV"  # V is bfloat16
    shared: ClassVar[str] = "shared: JAX takes arrays as constant, and others may write to this memory"
    alignment: ClassVar[int] = 64

    def __init__(
        self, schema: Any, *, owned: bool, request: ExportRequest = PLAIN, sharding: Any = None
    ) -> None:
        """Decides on every column; `sharding` places the parts of global arrays."""
        jax = self._jax = optional("jax", user="to_jax", extra="jax")
        self._sharding = sharding
        platform = jax.default_backend() if sharding is None else next(iter(sharding.device_set)).platform
        self._on_cpu = platform == "cpu"
        request = by_column(request, schema)
        dtypes = dict(request.dtypes)
        for _, column in requested_exports(schema, request):
            dtype = column.dtype
            if dtype.kind in "iufc" and (own := jax.dtypes.canonicalize_dtype(dtype)) != dtype:
                dtypes[column.name] = own
        super().__init__(schema, owned=owned, request=replace(request, dtypes=dtypes))

    def _fate(self, column: ColumnExport) -> str:
        return super()._fate(column) if self._on_cpu else "zero-copy on the host, copied to the device"

    def _copied(self, column: ColumnExport) -> str:
        order = list(getattr(column.type, "permutation", None) or ())
        if self._on_cpu and self._owned and order != sorted(order):
            return "misaligned: the axes of the tensor lie in another order"
        return super()._copied(column) if self._on_cpu else ""

    def _made(self, arrays: Arrays) -> Arrays:
        if self._on_cpu:
            arrays = super()._made(arrays)
        if self._sharding is None:
            put = self._jax.device_put(arrays)
            return {name: put[name] for name in arrays}  # JAX sorts names
        return map_arrays(arrays, self._placed)

    def _placed(self, name: str, array: NumpyArray) -> Any:
        try:
            return self._jax.make_array_from_process_local_data(self._sharding, array)
        except ValueError as error:
            raise DataError(
                f"column {name!r}: an array of shape {array.shape} cannot be laid out as {self._sharding}: {error}; "
                "batches whose rows the devices can share come from batch(n, drop_remainder=True)"
            ) from error

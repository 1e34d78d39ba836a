"""`TorchExport`: record batches as dicts of PyTorch tensors on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from arrowflow.errors import ArrowflowError
from arrowflow.interchange.to_numpy import NumpyArray
from arrowflow.loaders.numpy import NumpyExport

_KINDS = "biuf"


class MissingTorchError(ArrowflowError, ImportError):
    """PyTorch is not installed."""


class TorchExport:
    """Turns record batches of one schema into dicts of PyTorch tensors.

    A tensor is a view of Arrow's memory and keeps it alive if the batch alone owns that memory. PyTorch has
    no read-only tensors: what is shared is copied, so that writing into a tensor never reaches anything else.
    Booleans are unpacked; dates, times, strings and decimals have no tensor.

    Example:
        >>> import pyarrow as pa
        >>> batch = pa.RecordBatch.from_pydict({"x": [1.5, 2.0]})
        >>> TorchExport(batch.schema, owned=True)(batch)["x"]  # doctest: +SKIP
        tensor([1.5000, 2.0000], dtype=torch.float64)
    """

    __slots__ = ("_arrays", "_from_numpy", "_owned")

    def __init__(self, schema: Any, *, owned: bool) -> None:
        """Decides on every column of `schema`; see `NumpyExport` for `owned`.

        Raises:
            MissingTorchError: PyTorch is not installed.
            SchemaError: A column has a type that no tensor has; the message names a way out.
        """
        self._arrays = NumpyExport(schema, owned=owned)
        self._arrays.require(_KINDS, "a PyTorch tensor")
        self._from_numpy: Callable[[NumpyArray], Any] = _torch().from_numpy
        self._owned = owned

    def __call__(self, batch: Any) -> dict[str, Any]:
        """Returns the tensors of a batch; raises `DataError` for nulls."""
        return self._tensors(self._arrays(batch))

    def chunk(self, batch: Any) -> Callable[[int, int], dict[str, Any]]:
        """Converts a large batch once; copies, where there are any, are made slice by slice."""
        slicer = self._arrays.chunk(batch)
        return lambda start, stop: self._tensors(slicer(start, stop))

    def explain(self) -> list[str]:
        """Returns one line per column: zero-copy, or why not."""
        if self._owned:
            return self._arrays.describe("zero-copy unless a second column has the buffer")
        return self._arrays.describe("copied: shared, and PyTorch has no read-only tensors")

    def _tensors(self, arrays: dict[str, NumpyArray]) -> dict[str, Any]:
        from_numpy = self._from_numpy
        return {
            name: from_numpy(array if array.flags.writeable else array.copy())
            for name, array in arrays.items()
        }


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingTorchError(
            "to_torch needs PyTorch, which is not installed: pip install arrowflow[torch]"
        ) from error

"""Tensors outside of Arrow's memory: in page-locked memory, on a CUDA device, or on Apple's (`mps`).

Page-locked memory is PyTorch's. PyTorch's caching host allocator keeps blocks by size. It gives a block out again only
when all transfers from the block are over, a user's own transfers included.

A batch for a device takes two steps, one batch apart:

1. It is *made*. The consumer's thread copies each column into page-locked memory. From there the device copies it, on a
   stream of its own, while it computes. An event marks the end.
2. It is *delivered*. The consumer's stream waits for the event, but its thread does not. The tensors are marked as used
   by that stream: their freed memory goes to no later transfer while kernels may still read it.

Apple's device shares its memory with the CPU: nothing is page-locked, and a batch is copied when it is wanted.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from arrowflow.errors import PlanError, SchemaError, shown
from arrowflow.interchange.to_numpy import ColumnExport, NumpyArray
from arrowflow.loaders.export_request import ExportRequest
from arrowflow.loaders.numpy import Arrays
from arrowflow.loaders.torch import TorchExport
from arrowflow.optional import optional
from arrowflow.options import check_flag


def device_named(operator: str, device: Any, *, pin_memory: bool, strict_zero_copy: bool) -> str | None:
    """Returns the name of the device that was asked for, CUDA's or `mps`; None for the CPU.

    Raises:
        PlanError: `device` names no device, or an absent device; or pinned memory is impossible here.
        MissingPackageError: The user asks for a CUDA device or pinned memory, and PyTorch is not installed.
    """
    pin_memory = check_flag(operator, "pin_memory", pin_memory)
    if device is None and not pin_memory:
        return None
    torch = optional("torch", user=operator, extra="torch")
    expected = f"{operator}: device is 'cpu', 'mps' or 'cuda' or one like 'cuda:1', got {shown(device)}"
    try:
        found = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise PlanError(f"{expected}: {error}") from error
    if found.type not in {"cpu", "cuda", "mps"}:
        raise PlanError(f"{expected}; a collate moves batches elsewhere")
    if found.type == "cpu" and not pin_memory:
        return None
    if strict_zero_copy:
        raise PlanError(f"{operator}: strict_zero_copy=True contradicts pin_memory= and device=, which copy")
    if found.type == "mps":
        if pin_memory:
            raise PlanError(
                f"{operator}: pin_memory=True is for CUDA; leave it out with device='mps', which shares the CPU's memory"
            )
        if not torch.backends.mps.is_available():
            raise PlanError(
                f"{operator}: device='mps' needs Metal on a Mac, which PyTorch does not find here; scripts for several kinds "
                "of machines ask torch.backends.mps.is_available()"
            )
        return str(found)
    if not torch.cuda.is_available():
        raise PlanError(
            f"{operator}: page-locked memory and device={str(found)!r} need CUDA, which PyTorch does not find here; "
            "scripts for both kinds of machines ask torch.cuda.is_available()"
        )
    if (found.index or 0) >= torch.cuda.device_count():
        raise PlanError(
            f"{operator}: device={str(found)!r}, but there are {torch.cuda.device_count()} CUDA devices"
        )
    return None if found.type == "cpu" else str(found)


class PinnedExport(TorchExport):
    """Turns record batches of one schema into dicts of tensors in page-locked memory."""

    def __init__(self, schema: Any, *, owned: bool, request: ExportRequest) -> None:
        # `owned` does not matter: the memory is only read.
        super().__init__(schema, owned=False, request=request)
        self._is_plain = False

    def _copied(self, column: ColumnExport) -> str:
        return "to page-locked memory"

    def _put(self, name: str, array: NumpyArray) -> Any:
        tensor = self._locked(array.shape, getattr(self._torch, array.dtype.name))
        np.copyto(tensor.numpy(), array)
        return tensor

    def _rounded(self, tensor: Any) -> Any:
        return self._locked(tensor.shape, self._torch.bfloat16).copy_(tensor)

    def _locked(self, shape: Any, dtype: Any) -> Any:
        # The device has to be named, since users may set another default.
        return self._torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)


class CudaExport(PinnedExport):
    """Begins to transfer record batches of one schema to a CUDA device, and makes functions that deliver the tensors."""

    def __init__(self, schema: Any, *, owned: bool, request: ExportRequest, device: str) -> None:
        """Decides on every column. A name of a device without a number means the current one."""
        super().__init__(schema, owned=owned, request=request)
        self._cuda = self._torch.cuda
        self._device = device if ":" in device else f"{device}:{self._cuda.current_device()}"
        self._stream = _copy_stream(self._device)

    def _copied(self, column: ColumnExport) -> str:
        return f"{super()._copied(column)}, and from there to {self._device}"

    def _made(self, arrays: Arrays) -> Any:
        with self._cuda.stream(self._stream):
            return functools.partial(self._delivered, super()._made(arrays), self._stream.record_event())

    def _delivered(self, tensors: dict[str, Any], copied: Any) -> dict[str, Any]:
        """Lets the consumer's stream wait for the event `copied`. Before, no other stream may use the tensors."""
        stream = self._cuda.current_stream(self._device)
        stream.wait_event(copied)
        for tensor in tensors.values():
            for part in (tensor.values(), tensor.offsets()) if tensor.is_nested else (tensor,):
                part.record_stream(stream)
        return tensors

    def _put(self, name: str, array: NumpyArray) -> Any:
        return super()._put(name, array).to(self._device, non_blocking=True)

    def _rounded(self, tensor: Any) -> Any:
        return TorchExport._rounded(self, tensor)  # by the device


class MpsExport(TorchExport):
    """Turns record batches of one schema into dicts of tensors on Apple's device."""

    def __init__(self, schema: Any, *, owned: bool, request: ExportRequest, device: str) -> None:
        super().__init__(schema, owned=owned, request=request)
        self._is_plain, self._device = False, device
        for column in self.columns:
            if column.dtype in (np.float64, np.complex128):
                raise SchemaError(
                    f"column {column.name!r} makes an array of {column.dtype}, which device='mps' lacks; take "
                    'dtypes="float32", or cast it before'
                )

    def _copied(self, column: ColumnExport) -> str:
        return f"to {self._device}"

    def _put(self, name: str, array: NumpyArray) -> Any:
        # The copy is over when `to` returns, so nothing refers to Arrow's memory any more.
        return super()._put(name, array).to(self._device)


@functools.cache
def _copy_stream(device: str) -> Any:
    # One stream for good: PyTorch keeps freed memory by stream, so a new stream each epoch would keep more and more
    # memory.
    return optional("torch", user="to_torch", extra="torch").cuda.Stream(device)

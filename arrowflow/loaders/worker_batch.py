"""`WorkerBatch`: a batch on its way from a worker of a `DataLoader` to the process that asked for it.

PyTorch makes a file of shared memory for each tensor, whose fresh pages cost as much as decoding a batch does. Here all
tensors of a batch lie in one arena (`arrowflow.arenas`), which the worker writes again once nobody reads it any more. No
message goes back to a worker, so the first byte of an arena tells its state:

* The worker sets it to `LENT` and copies a batch into the arena. From then on it only looks at that byte.
* The consumer's tensors are views of the arena. When the last of them is gone, and the next batch of that worker comes,
  the consumer sets the byte to `FREE`.

An arena whose batch never arrives stays lent. So does one whose batch a forked child of the consumer may still read.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import traceback
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, Final

import numpy as np

from arrowflow.arenas import Inbox, Outbox, Parcel
from arrowflow.delivery import EpochCounter, PassStart

ALIGNMENT: Final = 64
"""Bytes. Views of any dtype and the widest vector instructions may begin there."""
LENT: Final = 0
FREE: Final = 1

Worker = tuple[int, int]
"""Its process, and what tells it from an earlier process of the same number."""
Span = tuple[str, tuple[int, ...], int]
"""Name of a tensor's dtype, its shape, and where it begins in an arena. Values of own types take long to pickle."""


class WorkerBatch(dict[str, Any]):
    """A dict whose tensors go to another process in one arena. It arrives there as a plain dict."""


class CountedBatch:
    """The second batch of a pass. It counts the epoch when it arrives in the process that asked for it.

    A worker makes batches before anybody asks for them. So it cannot tell itself whether its pass is more than a look.
    """

    def __init__(self, batch: Any, counter: EpochCounter, begun: PassStart) -> None:
        self._arriving = batch, counter, begun._replace(position=None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _counted, self._arriving


def _counted(batch: Any, counter: EpochCounter, begun: PassStart) -> Any:
    """Counts the epoch, unless PyTorch receives the batch only to throw it away.

    Where persistent workers begin a pass (`_reset`), batches that they made for the pass before are received first.
    """
    callers = (frame for frame, _ in traceback.walk_stack(sys._getframe()))
    names = ((frame.f_code.co_name, frame.f_globals.get("__name__", "")) for frame in callers)
    if not any(name == "_reset" and module.startswith("torch") for name, module in names):
        counter.count(begun, elsewhere=True)
    return batch


def _reduced(batch: WorkerBatch) -> tuple[Any, ...]:
    """Copies the tensors of a batch into an arena. PyTorch calls this in the one thread that sends batches."""
    import torch

    spans: dict[str, Span] = {}
    end = ALIGNMENT
    for name, value in batch.items():
        if _fits(torch, value):
            spans[name] = str(value.dtype).removeprefix("torch."), tuple(value.shape), end
            end += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
    if not spans:
        return dict, (dict(batch),)
    worker, outbox = _outbox(os.getpid())
    outbox.take_back_marked(FREE)
    try:
        arena, parcel, descriptor = outbox.lend(end)
    except OSError:
        # The error would only be printed, and the batch be lost. PyTorch may still find the memory.
        return dict, (dict(batch),)
    try:
        arena.bytes[0] = LENT
        for name, span in spans.items():
            _view(torch, arena.bytes, span).copy_(batch[name])
        file = None if descriptor is None else DupFd(descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return _arrived, ({**batch, **dict.fromkeys(spans)}, spans, worker, tuple(parcel), file)


ForkingPickler.register(WorkerBatch, _reduced)


@functools.cache
def _outbox(process: int) -> tuple[Worker, Outbox]:
    """Returns the arenas of this process. A fork has none yet."""
    return (process, int.from_bytes(os.urandom(6))), Outbox()


def _fits(torch: Any, value: Any) -> bool:
    """Whether a value is a tensor like an array, of memory that it shares with no other process."""
    return (
        type(value) is torch.Tensor
        and value.is_cpu
        and value.layout is torch.strided
        and value.nbytes > 0
        and not (value.is_nested or value.is_quantized or value.requires_grad)
        and not value.untyped_storage().is_shared()
    )


def _view(torch: Any, memory: Any, span: Span) -> Any:
    dtype, shape, start = span
    if hasattr(np, dtype):  # by way of NumPy it takes 1.1 µs, else 2.5 µs
        return torch.from_numpy(np.ndarray(shape, dtype, memory, start))
    found = torch.frombuffer(memory, dtype=getattr(torch, dtype), count=math.prod(shape), offset=start)
    return found.view(shape)


_inboxes: dict[Worker, Inbox] = {}


def _arrived(
    values: dict[str, Any], spans: dict[str, Span], worker: Worker, parcel: tuple[Any, ...], file: Any
) -> dict[str, Any]:
    """Returns the batch that a worker sent."""
    import torch

    if (inbox := _inboxes.get(worker)) is None:
        for other in [other for other in _inboxes if not _is_running(other[0])]:
            _inboxes.pop(other, None)
        inbox = _inboxes[worker] = Inbox()
    for number in inbox.returned():
        inbox.mark(number, FREE)
    memory = inbox.lease(Parcel(*parcel), None if file is None else file.detach())
    return {
        name: _view(torch, memory, spans[name]) if name in spans else value for name, value in values.items()
    }


def _keep_for_child() -> None:
    for inbox in list(_inboxes.values()):
        inbox.keep()


os.register_at_fork(before=_keep_for_child)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True

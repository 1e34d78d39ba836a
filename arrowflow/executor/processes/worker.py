"""The program of a worker process: it makes kernels of the functions that it is sent, and makes one call at a time.

The main thread does all of the work and there is no other thread. So functions find the process as they would find a
script's. It makes the instances of classes, and closes them when their run is over or the process ends. The process waits in `poll` for the next request and nowhere else. It ends

- when the channel is closed, or nothing was asked for as long as the parent said;
- at once when the parent ends, however that came about. The parent has the only other end of the lifeline, which the
  operating system's kernel then signals. The signal's default action ends the process also in the middle of a call.

Ctrl-C is the parent's business: a worker process has a process group of its own, and ignores it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import logging
import os
import select
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from arrowflow.arenas import Inbox, Outbox, Parcel
from arrowflow.errors import WorkerError, said
from arrowflow.executor.limits import MAX_KNOWN
from arrowflow.executor.processes import wire
from arrowflow.kernels.instances import OneEach
from arrowflow.kernels.items import Outcome
from arrowflow.kernels.kinds import StatelessKernel

logger = logging.getLogger("arrowflow")


def main(channel: int, lifeline: int, idle_seconds: float) -> None:
    """Serves the parent until there is nothing left to do. The descriptors are inherited."""
    for descriptor in (channel, lifeline):
        os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.stderr is not None:
        faulthandler.enable()
    _end_with(lifeline)
    gc.freeze()  # what was imported stays: looking for garbage at the end of each run is cheap then
    connection = socket.socket(fileno=channel)
    # A process that a user function forks must not keep the parent from noticing that this process has ended.
    os.register_at_fork(after_in_child=connection.close)
    server = _Server(connection)
    with contextlib.suppress(EOFError, ConnectionError):
        wire.send(connection, wire.Started())
        server.serve(idle_seconds)
    server.close()
    _flush()
    # A worker has nothing to finalize that is not gone, and what a function left behind shall not hold it up.
    os._exit(0)


def _end_with(lifeline: int) -> None:
    """Makes the end of the parent the end of this process, whatever it is in the middle of."""
    if sys.platform == "linux":
        signal.signal(signal.SIGIO, signal.SIG_DFL)
    else:  # where the default is to ignore it
        signal.signal(signal.SIGIO, lambda *_: os._exit(1))
    # In a sandbox that has no such signals the end is noticed after the call.
    with contextlib.suppress(OSError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    ended = select.poll()
    ended.register(lifeline, 0)
    if ended.poll(0):  # before there could be a signal
        os._exit(1)


class _Operator:
    """One operator of one run: what makes its kernels, what they keep, and the kernel of the latest epoch."""

    def __init__(self, packed: wire.Packed) -> None:
        self._packed, self._around = packed
        self._make: Callable[[Any], StatelessKernel] | None = None
        self._kept: dict[Any, Any] = {}
        self._kernel: tuple[int, StatelessKernel] | None = None
        self.lender = OneEach()

    def kernel(self, epoch: int) -> StatelessKernel:
        """Returns the kernel of an epoch, in its surroundings."""
        path, folder, environment = self._around
        if sys.path != list(path):
            sys.path[:] = path
        os.chdir(folder)
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        if self._make is None:
            try:
                self._make, self._packed = wire.unpack(self._packed), b""
            except Exception as error:
                raise WorkerError(
                    f"a worker process cannot load the function: {said(error)}; what it refers to has "
                    "to be importable there, by the same sys.path"
                ) from error
        if self._kernel is None or self._kernel[0] != epoch:
            # The part of `kernels.context.Context` that kernels of worker processes may ask for.
            context = SimpleNamespace(epoch=epoch, run_storage=self._kept, instances=self.lender.instances)
            self._kernel = (epoch, self._make(context))
        return self._kernel[1]


class _Server:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._known: OrderedDict[wire.Key, _Operator] = OrderedDict()
        self._inbox, self._outbox = Inbox(), Outbox()
        self._failed: list[str] = []

    def serve(self, idle_seconds: float) -> None:
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        while waiting.poll(idle_seconds * 1e3):
            self._answer(*wire.receive(self._channel))

    def close(self) -> None:
        """Closes the instances of runs that go on without this process."""
        for operator in self._known.values():
            self._failed += operator.lender.close()
        for text in self._failed:
            logger.warning("%s", text)

    def _answer(self, request: Any, descriptor: int | None) -> None:
        if isinstance(request, wire.Forget):
            for key in [key for key in self._known if key[0] in request.runs]:
                self._failed += self._known.pop(key).lender.close()
            self._inbox.clear()
            self._outbox.clear()
            _flush()
            wire.send(self._channel, wire.Forgotten(tuple(self._failed)))
            self._failed.clear()
            gc.collect()
            return
        self._outbox.take_back(request.returned)
        try:
            parcel, made, outcome = self._call(request, descriptor)
        except BaseException as error:
            failed = wire.pack_error(error)
            del error
            _flush()
            wire.send(self._channel, wire.Failed(failed, self._inbox.returned()))
        else:
            _flush()
            wire.send(self._channel, wire.Made(parcel, self._inbox.returned(), outcome), made)

    def _call(self, request: wire.Call, descriptor: int | None) -> tuple[Parcel, int | None, bytes | None]:
        """Returns where the result lies. With its frame the chunk is gone, unless the function keeps it."""
        operator = self._operator(request)
        chunk = wire.read_batch(self._inbox, request.parcel, descriptor)
        result: Any = operator.kernel(request.epoch).apply(chunk, request.origin)
        outcome = wire.pack_outcome(result) if isinstance(result, Outcome) else None
        batch: pa.RecordBatch = result.chunk if isinstance(result, Outcome) else result
        return *wire.write_batch(self._outbox, batch), outcome

    def _operator(self, request: wire.Call) -> _Operator:
        """Returns the operator of a call. Nothing can fail here: it is counted whatever becomes of the call."""
        if request.packed is not None:
            self._known[request.key] = _Operator(request.packed)
            if len(self._known) > MAX_KNOWN:
                self._failed += self._known.popitem(last=False)[1].lender.close()
        self._known.move_to_end(request.key)
        return self._known[request.key]


def _flush() -> None:
    """Lets what a function printed be seen, and in the order of its calls."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()

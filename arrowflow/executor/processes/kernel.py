"""Kernels that run in worker processes, as the stages of a run see them. `pool` has the explanation."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque

import pyarrow as pa

from arrowflow.clock import Clock
from arrowflow.errors import ClosedError
from arrowflow.executor.limits import MAX_KNOWN
from arrowflow.executor.processes import pool
from arrowflow.executor.processes.wire import Key, Packed, pack
from arrowflow.kernels.items import Origin, Payload
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec


class RunProcesses:
    """The worker processes of one run, and the functions that the run sends them.

    Nobody waits while holding one of its two locks, but for a function that is being packed, which happens once.

    Args:
        clock: Says when processes were used.
        close_seconds: How long a process may take to close its instances.

    Attributes:
        failed: The errors of instances that could not be closed.
    """

    def __init__(self, clock: Clock, close_seconds: float) -> None:
        self.run = pool.begin()
        self.clock = clock
        self.failed: deque[str] = deque()
        self._close_seconds = close_seconds
        # A process that is killed is in a call of this run, and not idle already.
        self._lock = threading.Lock()
        self._busy: dict[pool.Child, str] = {}
        self._stops = self._killed = False
        self._numbers = itertools.count()
        self._packing = threading.Lock()
        self._packed: OrderedDict[int, tuple[KernelSpec, Key, Packed]] = OrderedDict()
        self._starts = threading.local()

    def starting_seconds(self) -> float:
        """Returns how long this thread has waited for processes to start since it last asked."""
        seconds: float = getattr(self._starts, "seconds", 0.0)
        self._starts.seconds = 0.0
        return seconds

    def packed(self, spec: KernelSpec) -> tuple[Key, Packed]:
        """Returns an operator's key, and what makes its kernels: as it is at the operator's first call in the run.

        Those of sub-plans come and go, so only the latest are remembered.
        """
        with self._packing:
            found = self._packed.get(id(spec))
            if found is None:
                packed = Packed(pack(spec.make), pool.surroundings())
                found = self._packed[id(spec)] = (spec, (self.run, next(self._numbers)), packed)
                if len(self._packed) > MAX_KNOWN:
                    self._packed.popitem(last=False)
            return found[1:]

    def call(self, spec: KernelSpec, epoch: int, chunk: pa.RecordBatch, origin: Origin) -> Payload:
        """Calls a kernel in a worker process. Any thread; waits without a lock."""
        key, packed = self.packed(spec)
        began = self.clock.now()
        child = pool.take(key, packed, began)
        try:
            with self._lock:
                self._busy[child] = spec.operator
                if self._killed:
                    raise ClosedError("the iterator was closed")
            if not child.has_started:
                child.await_start(origin)
                self._starts.seconds = self.clock.now() - began
                with self._lock:  # whoever stops them sees that it has started, or is seen here
                    if self._stops:
                        raise ClosedError("the iterator was closed")
            return child.call(key, packed, epoch, origin, chunk)
        finally:
            with self._lock:
                self._busy.pop(child, None)
            self.failed.extend(pool.give_back(child, self.clock.now(), self._close_seconds))

    def stop_starting(self) -> None:
        """Ends the processes that have not started: no function runs there, so that nobody has to wait for it."""
        self._stops = True
        if not self._busy:
            return
        with self._lock:
            for child in self._busy:
                if not child.has_started:
                    child.kill()

    def kill(self) -> list[str]:
        """Ends the processes that are in a call, and lets no further call begin; returns the operators."""
        # A call is noted before it looks at this, so it is seen here, or sees that it must not begin. Where there is
        # none, no lock is taken: an interrupt of this thread might leave it locked, and then `close` is called again.
        self._killed = True
        if not self._busy:
            return []
        with self._lock:
            operators = list(self._busy.values())
            for child in self._busy:
                child.kill()
        return operators

    def leave(self, seconds: float) -> None:
        """Lets all processes go of what belongs to the run, those in a call as soon as it is over.

        They may take so many seconds to close their instances.
        """
        self.failed.extend(pool.end(self.run, self.clock.now, seconds))
        if self._packed:
            self._packed.clear()
            pool.collect(self.clock.now())


class RemoteKernel(StatelessKernel):
    """The kernel of one stream, applied in worker processes."""

    def __init__(self, processes: RunProcesses, spec: KernelSpec, epoch: int) -> None:
        self._processes = processes
        self._spec = spec
        self._epoch = epoch

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> Payload:
        """Returns the kernel's result for a chunk, in memory that belongs to the result alone."""
        return self._processes.call(self._spec, self._epoch, chunk, origin)

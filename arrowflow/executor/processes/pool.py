"""Worker processes, for functions that hold the interpreter lock: who owns them, how they end, and who may wait where.

**Ownership.** Worker processes belong to this process and not to a run. A call takes an idle worker, or starts a worker
where none is idle, and gives it back. So there are never more workers than calls at the same time, and live runs share
them. To start a worker takes 0.3 s, and 0.4 s of a core: a new interpreter imports this library. A run pays for that
only if no worker is warm; a warm worker takes 3 ms. At the end of a run each worker forgets the run's functions and all
shared memory, and closes the functions' instances. A worker in a call does so when the call is over. The thread that ends the run
waits for that, `close_timeout` at most. A worker that was not used for `IDLE_SECONDS` is not used again and ends by itself
a little later. Its remains here (two sockets, an exit code) are collected by the next call, the next end of a run, or at
exit. Before each call a worker gets the `sys.path`, working directory and environment that this process had at the
operator's first call in the run.

**Starting.** A worker is `sys.executable` with a line of code, through `subprocess` and with two inherited sockets. It
neither imports nor runs the user's program again. So scripts need no `if __name__ == "__main__"`, and daemonic
processes may have workers. `DEFAULTS` are set in the workers' environment where this process has no values of its own.

**Waiting.** The thread of a call waits in `recv`, with no lock held, until the answer is there or the process is gone.
However the process ends, the operating system's kernel closes its socket. The end of a run waits likewise, for instances
to be closed. Only `close` waits, too: for the end of a process that has been told to end. After a second that process is
killed.

**Stopping.** A run that is closed kills the processes that have not said yet that they have started: no function runs there.
It waits for its calls in other processes as for its calls in threads. After `close_timeout` the processes of these calls are killed (`RunProcesses.kill`). Each worker has a *lifeline*, a socket that serves
nothing else. When this process ends, by whatever means, the operating system's kernel signals the lifelines, and the
signal ends each worker in the middle of anything. A forked child of this process closes its copies of all sockets:
workers belong to the process that started them.

**Failure.** An exception of a function comes back as it is. A process that ends before its call does is a
`WorkerError` of that call alone, and so in the order of the rows. The process is never used again; nothing is tried
twice.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from arrowflow.arenas import Inbox, Outbox
from arrowflow.errors import WorkerError
from arrowflow.executor.limits import ENDING_SECONDS, IDLE_SECONDS, LINGER_SECONDS, MAX_KNOWN
from arrowflow.executor.processes import wire
from arrowflow.kernels.items import Origin, Payload

DEFAULTS = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "PYTHONHASHSEED": "0"}
"""Of the environment: a call takes one core, and what follows from hashes of strings is the same in all workers."""
_MAIN = (
    "import sys; sys.path[:] = sys.argv[4:]; from arrowflow.executor.processes.worker import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))"
)

_idle: deque[Child] = deque()  # the one used last at the right; each step on it is one atomic one
_numbers = itertools.count()
_runs: set[int] = set()  # those that are not over; each step on it is an atomic one, too
_all: weakref.WeakSet[Child] = weakref.WeakSet()


def surroundings() -> wire.Surroundings:
    """Returns what functions of this process find around them."""
    try:
        folder = str(Path.cwd())
    except FileNotFoundError as error:
        raise WorkerError(
            "worker processes work in the folder that this process does, and that was removed; change to another one"
        ) from error
    return wire.Surroundings(tuple(map(str, sys.path)), folder, {**DEFAULTS, **os.environ})


class Child:
    """A worker process, as its parent sees it. Used by one call at a time.

    Attributes:
        since: When it was last used, by the clock of the run that did.
        known: The operators that it keeps ready.
        has_started: Whether it said so.
    """

    def __init__(self, around: wire.Surroundings) -> None:
        self.since = 0.0
        self.known: OrderedDict[wire.Key, None] = OrderedDict()
        self.has_started = self._answered = self._killed = False
        self._outbox, self._inbox = Outbox(), Inbox()
        self._channel, theirs = socket.socketpair()
        self._lifeline, end = socket.socketpair()
        self._sockets = (self._channel, self._lifeline, theirs, end)
        _all.add(self)  # a fork from now on closes what it copies
        try:
            self._process = _started((theirs.fileno(), end.fileno()), around)
        except OSError as error:
            self._disconnect()
            raise WorkerError(f"a worker process cannot be started: {error}") from error
        finally:
            theirs.close()
            end.close()

    def await_start(self, origin: Origin) -> None:
        """Waits until it has started, for a call with this origin; raises `WorkerError` if it ended."""
        try:
            wire.receive(self._channel)
        except (EOFError, OSError) as error:
            raise self._failed(origin) from _cause(error)
        self.has_started = self._answered = True

    def call(
        self, key: wire.Key, packed: wire.Packed, epoch: int, origin: Origin, chunk: pa.RecordBatch
    ) -> Payload:
        """Waits for the kernel there, and returns its result for a chunk.

        Raises:
            WorkerError: The process ended.
            BaseException: The exception that the kernel raised.
        """
        parcel, descriptor = wire.write_batch(self._outbox, chunk)
        self._answered = False
        known = key in self.known
        request = wire.Call(key, None if known else packed, epoch, origin, parcel, self._inbox.returned())
        # Counted as the process does, which drops the operator that was not used for longest.
        self.known[key] = None
        self.known.move_to_end(key)
        if len(self.known) > MAX_KNOWN:
            self.known.popitem(last=False)
        try:
            wire.send(self._channel, request, descriptor)
            answer, descriptor = wire.receive(self._channel)
        except (EOFError, OSError) as error:
            raise self._failed(origin) from _cause(error)
        self._outbox.take_back(answer.returned)
        if isinstance(answer, wire.Failed):
            self._answered = True
            raise wire.unpack_error(answer.error)
        batch = wire.read_batch(self._inbox, answer.parcel, descriptor)
        self._answered = True
        return batch if answer.outcome is None else wire.unpack_outcome(answer.outcome, batch)

    @property
    def waits(self) -> bool:
        """Whether it waits for a request, as far as can be told.

        Not in the middle of a call, nor after one that was not answered, nor when it was killed while it was idle.
        """
        if self._killed or not self._answered:
            return False
        try:
            self._channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False  # the end of the stream: it says nothing that was not asked for

    def runs(self) -> set[int]:
        """Returns the runs whose operators it keeps ready."""
        return {run for run, _ in list(self.known)}

    def forget(self, runs: set[int]) -> None:
        """Tells the process, which is idle, to let go of what belongs to these runs. Waits for nothing."""
        for key in [key for key in self.known if key[0] in runs]:
            del self.known[key]
        self._outbox.clear()
        self._inbox.clear()
        self._answered = False
        try:
            wire.send(self._channel, wire.Forget(tuple(runs)))
        except OSError:  # it has ended, which `forgotten` notices, too
            pass

    def forgotten(self, seconds: float) -> tuple[str, ...]:
        """Waits until it has done that, and returns what is wrong with instances that could not be closed."""
        answers = select.poll()
        answers.register(self._channel, select.POLLIN)
        try:
            if not answers.poll(max(0.0, seconds) * 1e3):
                return ("a worker process did not close the instances of a class in time, and was killed",)
            answer, _ = wire.receive(self._channel)
        except (EOFError, OSError):  # it has ended
            return ()
        self._answered = True
        failed: tuple[str, ...] = answer.failed
        return failed

    def kill(self) -> None:
        """Ends the process at once; whoever waits for its answer is told, and gives it back. Any thread."""
        self._killed = True
        self._process.kill()
        try:
            self._channel.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def release(self) -> None:
        """Tells the process to end, if it is idle; waits for nothing."""
        self._channel.close()

    def close(self) -> None:
        """Ends the process, waits for that, and closes all there is."""
        self.release()
        if not self._answered:
            self._process.kill()
        self._wait()
        self._disconnect()

    def _wait(self) -> int:
        try:
            return self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _failed(self, origin: Origin) -> WorkerError:
        """Returns the error of a call whose process has ended."""
        code = self._wait()
        how = f"ended with exit code {code}"
        if code < 0:
            names = {each.value: each.name for each in signal.Signals}
            hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
            how = f"was ended by signal {-code} ({names.get(-code, 'unknown')}{hint})"
        return WorkerError(
            f"a worker process {how} in the call for split {origin.split}, piece {origin.piece}"
        )

    def _disconnect(self) -> None:
        for each in self._sockets:
            each.close()


def _cause(error: Exception) -> Exception | None:
    """Returns an error, unless it only says that the other side is gone."""
    return None if isinstance(error, EOFError | ConnectionError) else error


def _started(descriptors: tuple[int, int], around: wire.Surroundings) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise FileNotFoundError("sys.executable does not say where Python is")
    idle_seconds = IDLE_SECONDS + LINGER_SECONDS
    flags = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    flags += [f"-W{option}" for option in sys.warnoptions]
    return subprocess.Popen(
        [sys.executable, *flags, "-c", _MAIN, *map(str, (*descriptors, idle_seconds)), *around.path],
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        cwd=around.folder,
        env=around.environment,
        process_group=0,  # Ctrl-C is for this process
    )


# ---------------------------------------------------------------------------------- idle ones


def begin() -> int:
    """Returns the number of a new run, whose operators the processes keep ready until its `end`."""
    run = next(_numbers)
    _runs.add(run)
    return run


def take(key: wire.Key, packed: wire.Packed, now: float) -> Child:
    """Returns an idle process, one that knows the operator rather than others, or starts one. Any thread."""
    collect(now)
    latest = list(_idle)[::-1]
    for child in sorted(latest, key=lambda child: key not in child.known):
        if not _taken(child):
            continue
        if child.waits:
            return child
        child.close()
    return Child(packed.around)


def give_back(child: Child, now: float, seconds: float) -> list[str]:
    """Makes a process idle, or ends it if its last call was not answered. Any thread.

    If a run has ended meanwhile, the process may take so many seconds to close the run's instances. Returns the errors of
    those that could not be closed.
    """
    failed: list[str] = []
    while child.waits:
        child.since = now
        _idle.append(child)
        # A run that ends from now on finds the process among the idle ones. One that ended before now did not.
        ended = child.runs() - _runs
        if not ended or not _taken(child):
            return failed
        child.forget(ended)
        failed += child.forgotten(seconds)
    child.close()
    return failed


def collect(now: float) -> None:
    """Ends what was idle for too long; it does so by itself, and is waited for here."""
    for child in list(_idle):
        if now - child.since > IDLE_SECONDS and _taken(child):
            child.close()


def end(run: int, now: Callable[[], float], seconds: float) -> list[str]:
    """Lets the idle processes go of what belongs to a run, and each other one as soon as it is given back.

    They may take so many seconds to close the run's instances, all at the same time. Returns the errors of those that could
    not be closed.
    """
    _runs.discard(run)
    failed: list[str] = []
    children = [child for child in list(_idle) if run in child.runs() and _taken(child)]
    deadline = now() + seconds
    for child in children:
        child.forget(child.runs() - _runs)
    for child in children:
        try:
            failed += child.forgotten(deadline - now())
        finally:
            failed += give_back(child, child.since, seconds)
    return failed


def dismiss() -> None:
    """Ends all idle processes, at once rather than one after the other."""
    children = [child for child in list(_idle) if _taken(child)]
    for child in children:
        child.release()
    for child in children:
        child.close()


def _taken(child: Child) -> bool:
    """Whether an idle process is the caller's now; else another thread was faster."""
    try:
        _idle.remove(child)
    except ValueError:
        return False
    return True


def _leave_to_parent() -> None:
    _idle.clear()
    for child in list(_all):
        child._disconnect()
        if hasattr(child, "_process"):  # else the fork came while it was started
            child._process.returncode = 0  # it is not this process's to wait for
    _all.clear()


os.register_at_fork(after_in_child=_leave_to_parent)

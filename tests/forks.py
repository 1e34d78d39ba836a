"""Processes that work together, one a rank: forks of one that has imported what they need, and has one thread."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable


def fork(work: Callable[[], object]) -> int:
    """Starts a process that works and ends; returns its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001  # the process that waits sees the status, and its test the text
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def together(size: int, work: Callable[[int], object]) -> None:
    """Runs the work of all ranks, in an environment as `torchrun` sets it; where one fails, all end."""
    processes = {fork(functools.partial(_as_rank, rank, size, work)) for rank in range(size)}
    try:
        while processes:
            process, status = os.wait()
            processes.discard(process)
            if status:
                raise SystemExit(f"a rank ended with {os.waitstatus_to_exitcode(status)}")
    finally:
        end(processes)


def _as_rank(rank: int, size: int, work: Callable[[int], object]) -> None:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(number) for name, number in numbers.items()})
    work(rank)


def end(processes: set[int]) -> None:
    """Kills processes, and waits for their end."""
    for process in processes:
        os.kill(process, signal.SIGKILL)
    for process in processes:
        os.waitpid(process, 0)

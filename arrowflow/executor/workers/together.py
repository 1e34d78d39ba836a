"""Calls that wait, made beside each other; and `Planning`, the services of the planning of a run.

The threads end with the calls that they are for: nobody but the caller waits for them, and it does. The thread of `lasting`
stays.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from arrowflow.clock import WallClock

T = TypeVar("T")

logger: Final = logging.getLogger("arrowflow")
_NEVER: Final = threading.Event()


def together(calls: Sequence[Callable[[], T]], max_threads: int) -> list[T]:
    """Makes calls on the calling thread and on others beside it; returns the results, in order.

    Raises:
        Exception: The first error, in the order of the calls. Calls that have not begun by then are left out.
    """
    results: list[Any] = [None] * len(calls)
    errors: dict[int, BaseException] = {}
    left = deque(range(len(calls)))

    def work() -> None:
        while True:
            try:
                number = left.popleft()
            except IndexError:
                return
            try:
                results[number] = calls[number]()
            except BaseException as error:
                errors[number] = error
                left.clear()  # all before it have begun, so the first error is known

    helpers = _started(work, min(len(calls), max_threads) - 1)
    try:
        work()
    finally:
        left.clear()
        for helper in helpers:
            helper.join()
    if errors:
        raise errors[min(errors)]
    return results


def hedged(
    call: Callable[[], T], seconds: float, told: Callable[[], None], slow: list[threading.Thread]
) -> T:
    """Makes a call, and once more beside it if it takes longer; returns the first result.

    Args:
        call: Must be safe to be made twice at the same time.
        seconds: The time after which it is made once more.
        told: Called when that happens.
        slow: Is given the threads of both calls then, of which the slower one still runs.

    Raises:
        Exception: The exception of the call; if it was made twice, and both fail, the second failure.
    """
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def attempt() -> None:
        try:
            done.put((call(), None))
        except BaseException as error:
            done.put((None, error))

    threads = _started(attempt, 1)
    if not threads:
        return call()
    try:
        result, error = done.get(timeout=seconds)
    except queue.Empty:
        told()
        threads += _started(attempt, 1)
        slow += threads
        result, error = done.get()
        if error is not None and len(threads) > 1:
            result, error = done.get()
    if error is not None:
        raise error
    return cast(T, result)


def lasting(call: Callable[[], T]) -> T:
    """Makes a call on a thread that stays as long as this process, and returns its result.

    Linux can end a process together with the thread that started it (`PR_SET_PDEATHSIG`), and threads of a run are short-lived.

    Raises:
        Exception: The exception of the call.
    """
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            done.put((call(), None))
        except BaseException as error:
            done.put((None, error))
        else:
            _NEVER.wait()

    threading.Thread(target=work, name="lasting", daemon=True).start()
    result, error = done.get()
    if error is not None:
        raise error
    return cast(T, result)


def _started(work: Callable[[], None], count: int) -> list[threading.Thread]:
    """Returns so many threads, or as many as can be started."""
    name = threading.current_thread().name if count > 0 else ""
    helpers = []
    for number in range(count):
        helper = threading.Thread(target=work, name=f"arrowflow-beside-{name}-{number}", daemon=True)
        try:
            helper.start()
        except RuntimeError:
            break
        helpers.append(helper)
    return helpers


class Planning:
    """The services of `Context` that reads need, while a run is planned on a user's thread.

    Args:
        max_calls: The most calls at the same time.
    """

    now = staticmethod(WallClock.now)

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls

    def wait(self, seconds: float) -> bool:
        """Waits; an interrupt ends it."""
        _NEVER.wait(seconds)
        return True

    def retried(self, why: str) -> None:
        """Logs the failure."""
        logger.info("a read was tried again while a run was planned: %s", why)

    def together(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Makes calls beside each other."""
        return together(calls, self._max_calls)

    def hedged(self, call: Callable[[], T], seconds: float) -> T:
        """Makes the call: planning reads little."""
        return call()

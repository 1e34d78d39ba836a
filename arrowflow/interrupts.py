"""Finds interrupts: exceptions of signal handlers, which are nobody's errors and come out as they are.

A handler runs between any two steps of the main thread: in the middle of a kernel, a user function, an export. There
the library makes its own errors of whatever is raised, and handlers' exceptions are among it.

The traceback tells them apart. Python calls a handler with the number of the signal and the frame that Python goes
back to. No other function is called with its own caller's frame behind a number. So the way in which a handler is made
does not matter, nor whether the handler is still installed, nor which function that it calls raises.
`KeyboardInterrupt` needs no trace: Python's own handler leaves none.

Python itself loses an interrupt in one place. `threading.Condition.wait`, by which a thread starts and an `Event`
waits, takes its lock again at its end. An interrupt right there leaves the lock free, and the `with` around the wait raises
`RuntimeError` as it releases the lock. The interrupt is the context of that error.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Final

_PACKAGE: Final = __name__.partition(".")[0] + "."


def interruption(error: BaseException) -> BaseException | None:
    """Returns what interrupted the thread, if an error is that, or was made of that; else None."""
    if isinstance(error, KeyboardInterrupt):
        return error
    seen: set[int] = set()  # users may close the chain to a ring
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if _is_by_handler(cause):
            return cause
        seen.add(id(cause))
        if _has_lost_its_lock(cause):
            cause = cause.__context__
            if isinstance(cause, KeyboardInterrupt):
                return cause
        else:
            cause = cause.__cause__
    return None


def _has_lost_its_lock(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(
        frame.f_code.co_qualname == "Condition.__exit__" and frame.f_globals.get("__name__") == "threading"
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _is_by_handler(error: BaseException) -> bool:
    trace = error.__traceback__
    # To look at a frame's variables makes it keep them. The first one may be running: it is that of whoever caught the
    # error. Those of the library are cleared on the way, for what they hold.
    while trace is not None and (trace := trace.tb_next) is not None:
        if not is_own(trace.tb_frame) and _is_of_handler(trace.tb_frame):
            return True
    return False


def is_own(frame: FrameType) -> bool:
    """Whether code of the library runs in a frame."""
    return bool(frame.f_globals.get("__name__", "").startswith(_PACKAGE))


def _is_of_handler(frame: FrameType) -> bool:
    code, back = frame.f_code, frame.f_back
    takes_any = code.co_flags & inspect.CO_VARARGS
    if back is None or (code.co_argcount < 2 and not takes_any):
        return False
    values = frame.f_locals
    given = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if takes_any:
        given += values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
    return any(after is back and isinstance(number, int) for number, after in pairwise(given))


def raise_interruption(error: BaseException) -> None:
    """Raises what interrupted the thread as it was, where an error is what others made of it."""
    interrupted = interruption(error)
    if interrupted is None or interrupted is error:
        return
    context = interrupted.__context__
    try:
        raise interrupted
    finally:
        interrupted.__context__ = context
        del interrupted, error  # the traceback leads to this frame


@contextmanager
def interruptions() -> Iterator[None]:
    """A block that raises what interrupted the thread as it was, whatever error was made of it inside."""
    try:
        yield
    except BaseException as error:
        raise_interruption(error)
        raise

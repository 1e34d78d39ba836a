"""Exceptions of kernels: turned into the error that the consumer gets (rule 8), or logged where nobody asks any more."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

import pyarrow as pa

from arrowflow.errors import ArrowflowError, DataError, said
from arrowflow.executor.workers.worker import Runner, RunThread
from arrowflow.interrupts import interruption

logger = logging.getLogger("arrowflow")


def is_interrupt(error: BaseException) -> bool:
    """Whether it is the consumer who was interrupted, in the middle of a call that it ran itself."""
    return not isinstance(threading.current_thread(), RunThread) and interruption(error) is not None


def located(error: BaseException, operator: str) -> ArrowflowError:
    """Returns an error as the consumer gets to see it: of the library's own types, and with its operator.

    Its traceback begins with the kernel: the frames here would hold tickets for as long as somebody keeps the error.
    An interrupt of the consumer is none of the kernel's, and raised again.
    """
    if is_interrupt(error):
        try:
            raise error
        finally:
            del error  # whose traceback leads to this frame
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(__package__):
        try:
            trace.tb_frame.clear()
        except RuntimeError:  # it is the caller's, and still running
            pass
        trace = trace.tb_next
    if isinstance(error, ArrowflowError):
        return error.with_traceback(trace).locate(operator=operator)
    kind = DataError if isinstance(error, pa.ArrowInvalid) else ArrowflowError
    typed = kind(f"{said(error)}").locate(operator=operator)
    typed.__cause__ = error.with_traceback(trace or error.__traceback__)
    return typed


def cause_of(error: BaseException) -> BaseException | None:
    """Returns the cause of what `located` makes of an error, to raise it from."""
    return error.__cause__ if isinstance(error, ArrowflowError) else error


class Abandoned(deque[tuple[tuple[str, ...], Any]]):
    """Remembers iterators of kernels that nobody will ask any more under the engine's lock, and closes them without it.

    Their `finally` is user code, and may block or raise.
    """

    def add(self, operators: tuple[str, ...], iterator: Any) -> None:
        """Remembers an iterator of these operators, if there is one."""
        if iterator is not None and hasattr(iterator, "close"):
            self.append((operators, iterator))

    def close(self, me: Runner) -> None:
        """Closes what was remembered. Called without the lock."""
        while True:
            try:
                me.closing, iterator = self.popleft()
            except IndexError as error:
                if is_interrupt(error):
                    raise
                return
            try:
                iterator.close()
            except BaseException as error:
                if is_interrupt(error):
                    raise
                logger.warning(
                    "%s raised while it was closed before its end: %s", "+".join(me.closing), said(error)
                )
            me.closing = ()

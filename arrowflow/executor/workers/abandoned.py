"""`Abandoned`: iterators of kernels that nobody will ask any more. Closing one may run user code."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from arrowflow.errors import said
from arrowflow.executor.failure import is_interrupt
from arrowflow.executor.workers.worker import Runner

logger = logging.getLogger("arrowflow")


class Abandoned(deque[tuple[tuple[str, ...], Any]]):
    """Remembers iterators under the engine's lock, and closes them without it: a `finally` may block or raise."""

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

"""Counts cases, ends one that hangs, and keeps the last one for whoever looks at a crash."""

from __future__ import annotations

import faulthandler
import functools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

CASE_SECONDS: Final = 600
"""Wall time: a machine that does other work gives a case a tenth of its cores, and a slow case is no hung one."""
LAST_CASE: Final = "ARROWFLOW_FUZZ_CASE"
"""Environment variable: the file in which each case is written down before it runs."""

kinds: Final[Counter[str]] = Counter()
"""How many cases of each kind the test has run, where a fuzzer tells kinds apart."""


class Watch:
    """Wraps the body of a fuzzer.

    Attributes:
        cases: How many cases have run, up to the first one that failed; the rest are Hypothesis shrinking it.
    """

    def __init__(self, stderr: int) -> None:
        self.cases = 0
        self._failed = False
        self._stderr = stderr

    def over(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `body`, watched: a case that takes too long dumps the stacks of all threads and ends the run."""

        @functools.wraps(body)
        def watched(*args: Any, **kwargs: Any) -> None:
            self.cases += not self._failed
            faulthandler.dump_traceback_later(CASE_SECONDS, exit=True, file=self._stderr)
            remember(kwargs)
            try:
                body(*args, **kwargs)
            except Exception:
                self._failed = True
                raise
            finally:
                faulthandler.cancel_dump_traceback_later()

        return watched


def remember(case: object) -> None:
    """Writes a case down, for when the process does not survive it."""
    path = os.environ.get(LAST_CASE)
    if path is not None:
        Path(path).write_text(repr(case), "utf-8")

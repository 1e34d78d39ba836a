"""Interrupts at each point where a signal could hit."""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

CHECKED = ("CALL", "RESUME", "JUMP_BACKWARD")
"""Where CPython looks whether a signal arrived: after calls, at the beginning of functions, at the end of loops."""


INTERRUPTED = ("arrowflow.executor", "arrowflow.run", "arrowflow.iterator", "arrowflow.delivery")


class Interrupter:
    """Interrupts at the n-th point where a signal could hit the consumer's thread in code of a run."""

    def __init__(self, at: int, interrupt: Callable[[], None]) -> None:
        self.at = at
        self.interrupt = interrupt
        self.points = 0
        self.where = ""
        self.checked: set[int] = set()  # ids of frames: to hold them would keep their run alive

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(INTERRUPTED) or frame.f_code.co_name == "__del__":
            return None  # Python ignores what finalizers raise
        if event == "call":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            self._opcode(frame)
        elif event in ("return", "exception"):  # behind a call that raised, CPython does not look
            self.checked.discard(id(frame))
        return self

    def _opcode(self, frame: FrameType) -> None:
        if id(frame) in self.checked:
            self.checked.discard(id(frame))
            self.points += 1
            if self.points == self.at:
                sys.settrace(None)
                self.where = f"{frame.f_code.co_qualname} line {frame.f_lineno}"
                self.interrupt()
        opcode = frame.f_code.co_code[frame.f_lasti]
        if dis.opname[opcode].startswith(CHECKED):
            self.checked.add(id(frame))


def ctrl_c() -> None:
    raise KeyboardInterrupt


class Preempted(RuntimeError, IndexError, ValueError, OSError):
    """What a handler of a signal raises: of a kind that much code looks for in what it calls."""


INTERRUPTS = (ctrl_c, partial(signal.raise_signal, signal.SIGUSR1))
"""Each is a `KeyboardInterrupt`, or with the fixture `preempted` a `Preempted`."""


@contextmanager
def interrupted(at: int, interrupt: Callable[[], None] = ctrl_c) -> Iterator[Interrupter]:
    """Interrupts the code of a run within at the n-th point; the error goes on."""
    interrupter = Interrupter(at, interrupt)
    previous = sys.gettrace()
    sys.settrace(interrupter)
    try:
        yield interrupter
    finally:
        sys.settrace(previous)

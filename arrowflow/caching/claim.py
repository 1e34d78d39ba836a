"""Locks of the operating system: who holds one does what others would do again. They die with their process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_held: set[str] = set()
"""Locks that this process holds."""


class Claim:
    """The lock of an entry, held until `release` or until nobody refers to it any more."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor: int | None = descriptor
        self._path = path
        _held.add(path)

    def release(self) -> None:
        """Gives the lock back. A child that was forked meanwhile has the descriptor too, so closing is not enough."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _held.discard(self._path)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()


def claim(path: Path) -> Claim | None:
    """Takes a lock, or returns None where somebody holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between opening and locking the folder may have been removed, and another one made in its place.
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise FileNotFoundError(path)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return Claim(descriptor, str(path))


def held_here(path: Path) -> bool:
    """Whether this very process holds a lock."""
    return str(path) in _held

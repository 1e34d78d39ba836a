"""Locks of the operating system, which die with their process. The holder works, and no other process repeats it."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path

from arrowflow.lazy import locks

_held: set[str] = set()
"""Locks that this process holds."""


_live: weakref.WeakSet[Claim] = weakref.WeakSet()


class Claim:
    """The lock of an entry, held until `release`, or until nobody refers to the claim any more."""

    __slots__ = ("__weakref__", "_descriptor", "_path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor: int | None = descriptor
        self._path = path
        _held.add(path)
        _live.add(self)

    def release(self) -> None:
        """Gives the lock back. A forked child may have the descriptor too, so closing the descriptor is not enough."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _held.discard(self._path)
            locks.unlock_descriptor(descriptor)
            os.close(descriptor)

    def __del__(self) -> None:
        # When the interpreter ends nothing can be imported any more, and the lock goes with the process.
        if not sys.is_finalizing():
            self.release()


def _forget_in_child() -> None:
    """Makes a forked child give up its part in its parent's locks: else the locks would outlive the parent."""
    for one in list(_live):
        descriptor, one._descriptor = one._descriptor, None
        if descriptor is not None:
            os.close(descriptor)  # not unlocked: the lock is the parent's
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def lock(path: Path, *, create: bool = True) -> int | None:
    """Opens a file and locks it, until the descriptor is closed; None if another holder has the lock.

    Raises:
        FileNotFoundError: The file does not exist, or was removed.
        OSError: The file cannot be opened; a symbolic link never is.
    """
    made = os.O_CREAT if create else 0
    descriptor = os.open(path, os.O_RDWR | made | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        if not locks.lock_descriptor(descriptor, blocking=False):
            os.close(descriptor)
            return None
        # Between opening and locking somebody may have removed the folder, and made another in its place.
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise FileNotFoundError(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def claim(path: Path) -> Claim | None:
    """Takes a lock, or returns None if another holder has it."""
    descriptor = lock(path)
    return None if descriptor is None else Claim(descriptor, str(path))


def held_here(path: Path) -> bool:
    """Whether this very process holds a lock."""
    return str(path) in _held

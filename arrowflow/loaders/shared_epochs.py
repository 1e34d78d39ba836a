"""`SharedEpochs`: one count of epochs for all processes that have a copy of a dataset.

PyTorch starts workers anew for each epoch, or keeps them, and tells the main process nothing of either. The workers of
one pass have one thing in common: the seed that PyTorch draws for the pass. So they count together, in a small file.
The first worker of a pass takes the next epoch in the pass's name, and the others find the epoch there. Every kind of
child process finds a file by its path. A process locks the file for a moment when it reads the count.
"""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from arrowflow.lazy import locks

_POLL_SECONDS: Final = 0.001
"""Between two tries to take the lock, which others have for some 50 µs."""

MAX_PASSES: Final = 64
"""The most passes that are remembered: more than ever run at the same time."""


class SharedEpochs:
    """Counts epochs in a file, which goes with the object that made it. Copies of the object use the same file.

    Attributes:
        name: Name of the pass over the data that is about to begin. All processes that share the pass use the same
            name. None if one process has the pass to itself.

    Example:
        >>> epochs = SharedEpochs(3)
        >>> epochs.name = "a pass"
        >>> epochs.take(), epochs.take(), epochs.next
        (3, 3, 4)
    """

    def __init__(self, first: int = 0, path: str | None = None) -> None:
        self.name: str | None = None
        self._first = first
        if path is None:
            descriptor, path = tempfile.mkstemp(prefix="arrowflow-epochs-")
            os.close(descriptor)
            weakref.finalize(self, _remove, path, os.getpid())
        self._path = path

    def __reduce__(self) -> tuple[type[SharedEpochs], tuple[int, str]]:
        return SharedEpochs, (self._first, self._path)

    @property
    def next(self) -> int:
        """The epoch that the next pass runs. After an assignment, a pass with an earlier pass's name is a new pass."""
        with self._known() as known:
            return int(known["next"])

    @next.setter
    def next(self, epoch: int) -> None:
        with self._known() as known:
            known["next"] = epoch
            if self.name is None:
                known["taken"].clear()

    def take(self) -> int:
        """Returns the epoch of the pass: the next epoch, if this process is the first to ask."""
        with self._known() as known:
            taken: dict[str, int] = known["taken"]
            if self.name is not None and self.name in taken:
                return taken[self.name]
            epoch = int(known["next"])
            known["next"] = epoch + 1
            if self.name is not None:
                taken[self.name] = epoch
                while len(taken) > MAX_PASSES:
                    del taken[next(iter(taken))]
            return epoch

    @contextmanager
    def _known(self) -> Iterator[dict[str, Any]]:
        """Yields the content of the file, to be changed while no other process sees it."""
        with os.fdopen(self._open(), "r+", encoding="utf-8") as file:
            # Until the file is closed, which is after it is written.
            locks.lock_descriptor(file.fileno(), poll_interval=_POLL_SECONDS)
            text = file.read()
            known = json.loads(text) if text else {"next": self._first, "taken": {}}
            yield known
            file.seek(0)
            file.truncate()
            file.write(json.dumps(known))

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR)
        except FileNotFoundError:  # the original object is gone, and the count with it
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            weakref.finalize(self, _remove, self._path, os.getpid())
            return descriptor


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)

"""`SharedEpochs`: one count of epochs for all processes that have a copy of a dataset.

PyTorch starts workers anew for each pass over the data, or keeps them, and tells the main process nothing of either. So
the place where the next pass begins is in a small file. Every kind of child process finds a file by its path.
"""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any, Final

from arrowflow.delivery import EpochCounter, PassStart
from arrowflow.plan.position import listed, settled, tupled

_PREFIX: Final = "arrowflow-epochs-"


class SharedEpochs(EpochCounter):
    """Counts epochs in a file, which goes with the object that made it. Copies of the object use the same file.

    A copy that comes back to the process of the original is the original itself. So a batch that tells of its epoch, see
    `worker_batch`, also tells the dataset from which the count began.

    Examples:
        >>> import pickle
        >>> epochs = SharedEpochs(PassStart(3))
        >>> copy = pickle.loads(pickle.dumps(epochs))
        >>> copy.count(copy.begins)
        >>> epochs.begins.epoch
        4
    """

    def __init__(
        self, begins: PassStart, dataset: EpochCounter | None = None, path: Path | None = None
    ) -> None:
        self.dataset = dataset
        self._known = begins
        self._path = path or Path(tempfile.gettempdir(), f"{_PREFIX}{os.urandom(16).hex()}")
        if path is None:
            self.begins = begins

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, (self._path, self.begins)

    @property
    def begins(self) -> PassStart:
        """The place where the next pass begins."""
        try:
            epoch, position, *rest = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:  # the original is gone, and the file with it
            return self._known
        self._known = PassStart(epoch, tupled(position), *rest)
        return self._known

    @begins.setter
    def begins(self, place: PassStart) -> None:
        self._known = place
        if not self._path.exists():
            _originals[self._path] = self
            weakref.finalize(self, _remove, self._path, os.getpid())
        # A file takes the place of the other in one step: no process ever reads a part of a place.
        descriptor, path = tempfile.mkstemp(prefix=_PREFIX, dir=self._path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(place._replace(position=listed(settled(place.position))), file)
        Path(path).replace(self._path)


_originals: weakref.WeakValueDictionary[Path, SharedEpochs] = weakref.WeakValueDictionary()


def _shared(path: Path, begins: PassStart) -> SharedEpochs:
    """Returns the original, if it lives in this process; else a copy."""
    return _originals.get(path) or SharedEpochs(begins, path=path)


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        path.unlink(missing_ok=True)

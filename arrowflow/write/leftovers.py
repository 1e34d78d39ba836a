"""Hidden names beside a local target: new data of a writer, the data that it replaces, and data to delete.

* `.writing-K-T` and `.writing-K-T.lock`: the shards of a live writer, and its lock. The lock exists before the folder
  and goes after it, and dies with its process. So a lock that can be taken belongs to a dead writer. On file systems
  without locks these names stay.
* `.replaced-K-T`: a whole dataset that gave up its name, until the next dataset takes the name. A writer that finds the
  name free gives it back.
* `.removed-K-T`: a dataset that is being deleted, and never a whole dataset again.

K stands for the name of the target; T makes the name unique.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from arrowflow.caching.store.claim import Claim, claim, lock

WRITING: Final = ".writing-"
REPLACED: Final = ".replaced-"
REMOVED: Final = ".removed-"
LOCK: Final = ".lock"

MAX_TRIES: Final = 8
"""The most tries to make a lock, since others may take a new lock for a dead writer's before it is locked."""

_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_TOKEN: Final = r"[0-9a-f]{16}-[0-9a-f]{16}"


def new_name(target: Path) -> str:
    """Returns the end of a hidden name that belongs to one writer of a target alone."""
    return f"{_key(target)}-{os.urandom(8).hex()}"


def _key(target: Path) -> str:
    return hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()


def begin(target: Path) -> tuple[Path, Claim | None]:
    """Makes the hidden folder of a writer, and locks it; None if the file system has no locks."""
    for _ in range(MAX_TRIES):
        staging = target.with_name(WRITING + new_name(target))
        try:
            held = claim(lock_of(staging))
            if held is None:
                continue
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            held = None
        try:
            staging.mkdir()
        except BaseException:
            end(staging, held)
            raise
        return staging, held
    raise FileNotFoundError(errno.ENOENT, "no lock can be kept in the folder", str(target.parent))


def lock_of(staging: Path) -> Path:
    """Returns the lock of a hidden folder."""
    return staging.with_name(staging.name + LOCK)


def end(staging: Path, held: Claim | None) -> None:
    """Removes the hidden folder of a writer, if it still exists, and its lock. Raises nothing."""
    shutil.rmtree(staging, ignore_errors=True)
    with suppress(OSError):
        lock_of(staging).unlink(missing_ok=True)
    if held is not None:
        held.release()


def remove(replaced: Path) -> None:
    """Removes a replaced dataset, so that at no time a part of it looks whole. Raises nothing."""
    doomed = replaced.with_name(REMOVED + replaced.name.removeprefix(REPLACED))
    try:
        replaced.rename(doomed)
    except OSError:
        shutil.rmtree(replaced, ignore_errors=True)
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(target: Path, is_replaceable: Callable[[Path], bool]) -> None:
    """Removes the remains of dead writers beside a target, and gives a lost name back. Raises nothing.

    A dataset is deleted only if it `is_replaceable`.
    """
    names = []
    with suppress(OSError), os.scandir(target.parent) as found:
        names = [each.name for each in found if each.name.startswith(".")]
    for name in names:
        path = target.with_name(name)
        if re.fullmatch(f"{re.escape(REMOVED)}{_TOKEN}", name):
            shutil.rmtree(path, ignore_errors=True)
        elif re.fullmatch(f"{re.escape(WRITING)}{_TOKEN}{re.escape(LOCK)}", name):
            _sweep_dead(path)
    replaced = [target.with_name(name) for name in names if name.startswith(f"{REPLACED}{_key(target)}-")]
    for path in sorted(replaced, key=_age):
        with suppress(OSError):
            path.rename(target)  # succeeds only if there is nothing, or an empty folder
            continue
        with suppress(OSError):
            if is_replaceable(path):
                remove(path)


def _sweep_dead(path: Path) -> None:
    """Removes a lock that nobody holds, and its folder; the folder first, so that the lock names all remains."""
    with suppress(OSError):
        descriptor = lock(path, create=False)
        if descriptor is not None:
            try:
                shutil.rmtree(path.with_name(path.name.removesuffix(LOCK)), ignore_errors=True)
                path.unlink()
            finally:
                os.close(descriptor)


def _age(path: Path) -> int:
    """Sorts the dataset first that lost its name last."""
    try:
        return -path.stat().st_ctime_ns
    except OSError:
        return 0

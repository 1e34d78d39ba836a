"""Upkeep of cache folders: listing their entries, and removing some of them beside running pipelines.

* **Nobody sees half an entry.** Its folder is renamed first, and then emptied. A mapped chunk keeps its pages.
* **Nobody's work is removed.** The process that computes an entry holds its lock, and the entry then stays. An entry
  that is still being made has no lock yet, and stays for a minute.
* **Nothing else is removed.** Only files with a cache's names are removed, one by one. No symbolic link is followed,
  and a folder with other files left in it gets its name back.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from arrowflow.caching.store.chunk import Name
from arrowflow.caching.store.claim import lock
from arrowflow.caching.store.files import TEMPORARY
from arrowflow.caching.store.folder import ABOUT, FILLING, LOCK, NEW, REMOVED, USED, listing_of
from arrowflow.errors import PlanError, SourceError, WriteError, said, shown
from arrowflow.options import parse_bytes
from arrowflow.storage import UNFINISHED, local_path, shown_paths

GRACE: Final = timedelta(minutes=1)
"""The time for which an entry without a lock may be in the making: two system calls lie between folder and lock."""

MAX_TRIES: Final = 8
"""The most tries to empty a folder, while other processes that know its old name make locks in it."""

_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
"""The units of ages, as Polars names them."""
_AGE: Final = re.compile(r"(\d+(\.\d+)?[smhdw])+")

_IN_STORES: Final = (
    "; stores keep no time of the last use, and nobody knows who reads there: list and remove what lies below the address of a "
    "cache with the tools of the store, or let a rule of the bucket end it after some days"
)

_ENTRY: Final = re.compile(r"[0-9a-f]{32}(-[a-z0-9]+)?")
_LEFTOVER: Final = re.compile(
    rf"({re.escape(REMOVED)}|{re.escape(NEW)}|{_ENTRY.pattern}{re.escape(FILLING)})[0-9a-f]+"
)

Files = Mapping[str, os.stat_result]
"""The files of a folder, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """The cache of one plan over certain data, in a folder of `cache(path)`.

    Attributes:
        path: Its folder.
        fingerprint: The identity of plan and data; the name of the folder.
        num_chunks: Files with rows.
        num_rows: Rows in these files.
        bytes: Size of its files, without files that caches did not make.
        complete: Whether it has all rows of an epoch.
        created: The time when it was begun, in UTC.
        last_used: The time when it was begun, or when a pipeline last read it to its end, in UTC.
        plan: The operators before the cache, one a line; empty if that cannot be read.
        problem: The fault in the description of the entry, or None; the rows are not checked.
    """

    path: str
    fingerprint: str
    num_chunks: int
    num_rows: int
    bytes: int
    complete: bool
    created: datetime
    last_used: datetime
    plan: str
    problem: str | None = None


def cache_info(path: str | os.PathLike[str]) -> list[CacheEntry]:
    """Returns the entries in the folder of `cache(path)`, the least recently used entry first.

    The function looks at names and descriptions alone, so it is quick, and may run beside pipelines. It ignores all
    other files in the folder, and the unfinished output of inputs that cannot be repeated. A link to the folder of an
    entry is an entry, as it is for pipelines. A folder that does not exist has no entries.

    Raises:
        PlanError: `path` is no path of a local folder.
        SourceError: The folder cannot be listed, or is a file.

    Examples:
        >>> import arrowflow as af
        >>> for entry in af.cache_info("cache"):
        ...     print(entry.fingerprint, entry.bytes, entry.complete, entry.last_used)
    """
    return _entries(local_folder("cache_info", path, if_remote=_IN_STORES), links=True)


def cache_clear(
    path: str | os.PathLike[str],
    *,
    older_than: timedelta | float | str | None = None,
    max_bytes: int | str | None = None,
) -> list[CacheEntry]:
    """Removes entries from the folder of `cache(path)` and returns the removed entries.

    The call is safe beside running pipelines. An entry that is being computed stays. A pipeline that reads removed
    chunks reads on in them, and computes the chunks that it has not yet reached. Remains of killed processes are
    removed, too. Files that caches did not make are never removed, nor is anything behind a link.

    Args:
        path: The folder.
        older_than: Removes entries that were last used longer ago than this: a `timedelta`, seconds, or a text like `"7d"`,
            with the units `w`, `d`, `h`, `m` and `s`.
        max_bytes: Removes the least recently used entries until the rest takes at most this size, a number or a
            text like `"10GiB"`. Entries that stay because they are being computed count.

    Without `older_than` and `max_bytes` all entries are removed. With both, an entry that matches either is removed.

    Raises:
        PlanError: An argument has a wrong type or value.
        SourceError: The folder cannot be listed, or is a file.
        WriteError: A file cannot be removed; all others have been.

    Examples:
        >>> import arrowflow as af
        >>> af.cache_clear("cache", older_than="7d", max_bytes="100GiB")
        []
    """
    root = local_folder("cache_clear", path, if_remote=_IN_STORES)
    age = _age(older_than)
    most = None if max_bytes is None else parse_bytes("cache_clear: max_bytes", max_bytes)
    now = datetime.now(UTC)
    entries = _entries(root, links=False)
    left = sum(entry.bytes for entry in entries)
    removed = []
    failed: list[WriteError] = []
    for entry in entries:
        is_old = age is not None and now - entry.last_used > age
        is_much = most is not None and left > most
        if (is_old or is_much or (age is None and most is None)) and _remove(Path(entry.path), failed):
            removed.append(entry)
            left -= entry.bytes
    _remove_leftovers(root, now, failed)
    if failed:
        raise failed[0]
    return removed


# ------------------------------------------------------------------------------------------- looking


def local_folder(operator: str, path: str | os.PathLike[str], *, if_remote: str = "") -> Path:
    """Returns the absolute path of a local folder, which need not exist.

    Raises:
        PlanError: `path` is no path, or a remote address; then `if_remote` is the end of the text.
    """
    given: Any = os.fspath(path) if isinstance(path, os.PathLike) else path
    is_text = isinstance(given, str) and given != ""
    if not is_text or "://" in given:
        more = if_remote if is_text else ""
        raise PlanError(f"{operator}: expected the path of a local folder, got {shown_paths(path)}{more}")
    return Path(local_path(given, operator))


def _age(older_than: timedelta | float | str | None) -> timedelta | None:
    given: Any = older_than
    if isinstance(given, timedelta):
        given = given.total_seconds()
    elif isinstance(given, str) and _AGE.fullmatch(given):
        given = sum(
            float(number) * _UNIT_SECONDS[unit] for number, unit in re.findall(r"([\d.]+)(\D)", given)
        )
    if older_than is None:
        return None
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 <= given < math.inf:
        raise PlanError(
            "cache_clear: older_than is a timedelta, seconds or a text like '7d' or '1d12h', and not negative, got "
            + shown(older_than)
        )
    return timedelta(seconds=min(given, timedelta.max.total_seconds() // 2))


def _entries(root: Path, *, links: bool) -> list[CacheEntry]:
    folders = [folder for folder in _folders(root, links=links) if _ENTRY.fullmatch(folder.name)]
    return sorted(filter(None, map(_look, folders)), key=lambda entry: (entry.last_used, entry.fingerprint))


def _folders(root: Path, *, links: bool = False) -> list[Path]:
    """Returns the folders in a folder, and links to folders only if asked for."""
    try:
        with os.scandir(root) as found:
            return [root / each.name for each in found if each.is_dir(follow_symlinks=links)]
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise SourceError("expected a folder of cached entries, found a file").locate(
            file=str(root)
        ) from error
    except OSError as error:
        raise SourceError(f"the folder cannot be listed ({error})").locate(file=str(root)) from error


def _files(folder: Path) -> Files:
    """Returns the files of a folder, less files that vanish meanwhile; empty if it cannot be listed."""
    found = {}
    with suppress(OSError), os.scandir(folder) as listed:
        for each in listed:
            with suppress(OSError):
                found[each.name] = each.stat(follow_symlinks=False)
    return found


def _look(folder: Path) -> CacheEntry | None:
    """Returns the entry in a folder; None if the folder is no entry, or vanishes meanwhile."""
    files = _files(folder)
    listing = listing_of(files)
    if ABOUT not in files and not listing.names:
        return None
    about, problem = _about(folder)
    if about is None:
        return None
    plan = about.get("plan", "")
    newest = max(found.st_mtime for found in files.values())
    return CacheEntry(
        path=str(folder),
        fingerprint=folder.name,
        num_chunks=len(listing.names),
        num_rows=sum(name.num_rows for name in listing.names.values()),
        bytes=sum(found.st_size for name, found in files.items() if _is_ours(name)),
        complete=listing.num_rows is not None,
        created=_created(about, files[ABOUT].st_mtime if ABOUT in files else newest),
        last_used=_time(files[USED].st_mtime if USED in files else newest),
        plan="\n".join(map(str, plan)) if isinstance(plan, list) else str(plan),
        problem=problem,
    )


def _about(folder: Path) -> tuple[Mapping[str, Any] | None, str | None]:
    """Returns the description of an entry, and its fault; None if the folder has vanished."""
    path = folder / ABOUT
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a reader of a pipe may wait for ever
            return {}, f"{ABOUT} is no file"
        about = json.loads(path.read_bytes())
    except FileNotFoundError:
        return ({}, f"{ABOUT} is missing") if folder.is_dir() else (None, None)
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"{ABOUT} cannot be read ({said(error)})"
    return (about, None) if isinstance(about, dict) else ({}, f"{ABOUT} holds no description")


def _created(about: Mapping[str, Any], otherwise: float) -> datetime:
    given = about.get("created")
    try:
        if isinstance(given, str):
            found = datetime.fromisoformat(given)
            return found.astimezone(UTC) if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return _time(otherwise if given is None else float(given))
    except (ValueError, TypeError, OverflowError, OSError):
        return _time(otherwise)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _is_ours(name: str) -> bool:
    """Whether a file of an entry has a name that caches give."""
    return (
        name in {ABOUT, LOCK, UNFINISHED, USED} or name.startswith(TEMPORARY) or Name.parse(name) is not None
    )


# ------------------------------------------------------------------------------------------- removing


@contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Holds the lock of a folder; False if another process does. `FileNotFoundError` if the folder is gone.

    Nobody makes a lock in a folder that is being emptied: with a new lock file the folder could not be removed.
    """
    descriptor = lock(folder / LOCK, create=not folder.name.startswith(REMOVED))
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _remove(folder: Path, failed: list[WriteError]) -> bool:
    """Removes an entry or the remains of one. False if another process uses or has removed it, or on failure."""
    try:
        if folder.name.startswith(REMOVED) and LOCK not in _files(folder):
            _remove_whole(folder)  # the lock file goes last, so nobody else is at work
            return True
        with _lock(folder) as is_held:
            if not is_held:
                return False
            doomed = folder.with_name(f"{REMOVED}{os.urandom(8).hex()}")
            folder.rename(doomed)
            if not _remove_whole(doomed):
                with suppress(OSError):
                    doomed.rename(folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        problem = WriteError(
            f"the cached entry cannot be removed ({error}); see what is there, and remove it by hand"
        )
        problem.locate(file=str(folder))
        failed.append(problem)
        return False
    return True


def _remove_whole(folder: Path) -> bool:
    """Removes the files that caches make and then the folder; False if other files are left in it."""
    for _ in range(MAX_TRIES):
        for name in sorted(_removable(_files(folder)), key=lambda name: name == LOCK):
            (folder / name).unlink(missing_ok=True)
        try:
            folder.rmdir()
        except FileNotFoundError:
            break
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            files = _files(folder)
            if len(_removable(files)) < len(files):
                return False
        else:
            break
    return True


def _removable(files: Files) -> list[str]:
    return [name for name, found in files.items() if _is_ours(name) and not stat.S_ISDIR(found.st_mode)]


def _remove_leftovers(root: Path, now: datetime, failed: list[WriteError]) -> None:
    for folder in _folders(root):
        if _ENTRY.fullmatch(folder.name):
            _remove_temporary(folder, now)
            files = _files(folder)
            # Without a description and rows the folder is no entry, but the remains of a removal.
            if files and files.keys() <= {LOCK, UNFINISHED, USED} and _is_past(folder, now):
                _remove(folder, failed)
        elif _LEFTOVER.fullmatch(folder.name):
            files = _files(folder)
            has_lock = LOCK in files or folder.name.startswith(REMOVED)
            if all(map(_is_ours, files)) and (has_lock or _is_past(folder, now)):
                _remove(folder, failed)


def _remove_temporary(folder: Path, now: datetime) -> None:
    """Removes half-written chunks, unless somebody may still be writing them."""
    paths = [folder / name for name in _files(folder) if name.startswith(TEMPORARY)]
    paths = [path for path in paths if _is_past(path, now)]
    with suppress(OSError):
        if paths:
            with _lock(folder) as is_held:
                for path in paths if is_held else ():
                    path.unlink()


def _is_past(path: Path, now: datetime) -> bool:
    """Whether nobody has changed a file or folder lately."""
    try:
        return now - _time(path.lstat().st_mtime) > GRACE
    except OSError:
        return False

"""Files that are not local: whether one is still the one that was read first, and why a read of it failed.

A store is asked for its size and its etag or time, before the first read of a file and after each one. Etags tell all
rewrites, times those of another second.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, MutableMapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from arrowflow.errors import ArrowflowError, said
from arrowflow.lazy import fs as pafs
from arrowflow.storage.clients import forget_listings, fsspec_client
from arrowflow.storage.requests import is_by_name, time_limit
from arrowflow.storage.retries import REQUEST_SECONDS, ShortRead, is_of_client, status_of
from arrowflow.storage.store import NO_RANGES, File, Store, undelivered

_NAMES = ("etag", "md5hash", "sha", "mtime", "last_modified", "lastmodified", "updated", "modified", "modify")
"""Names of etag and time in fsspec's file systems, in lower case; the first that a file has counts. Then `created`."""

_OF_SHORTER_FILES: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
_NO_SUCH: Final = re.compile(r"AWS Error (?:NO_SUCH_KEY|RESOURCE_NOT_FOUND)")
"""Answers to a request for bytes that a file has no more, and the words of pyarrow's client where it tells no status."""

_SECOND: Final = 10**9

_NATIVE: Final = re.compile(
    r"AWS Error|google::cloud|GCS|Azure|HDFS|\bcurl|HTTP|Couldn't resolve|[Tt]imed? ?out"
)
"""Words of `pyarrow.fs`, whose errors have no class of their own."""


def told_stamp(info: Mapping[str, Any]) -> str | None:
    """Returns the etag or the time that a file system of fsspec tells of a file; None if it tells neither.

    Examples:
        >>> told_stamp({"name": "a", "size": 3, "ETag": '"5d41"', "LastModified": "2026-01-01"})
        'etag "5d41"'
    """
    told = {str(key).lower(): value for key, value in info.items()}
    return next((f"{name} {told[name]}" for name in (*_NAMES, "created") if told.get(name)), None)


def listed_stamp(store: Store, file: File) -> str | None:
    """Returns the etag or time of a file as the listing told it, or as its client does now; None if neither is known."""
    client = fsspec_client(store.filesystem)
    if client is None:
        return None if file.mtime_ns is None else str(file.mtime_ns)
    try:
        return told_stamp(client.info(file.path))
    except Exception:  # noqa: BLE001  (its reader will report what is wrong)
        return None


def note_version(store: Store, file: File, known: MutableMapping[str, str | None]) -> None:
    """Notes the version of a file that `store` has met: that of an open handle, or of a client of fsspec as it tells it now.

    Called before the first read of a run, so that all its reads have to be of this version. Where nothing is noted, the
    handle counts that the first read opens.
    """
    if file.path in known:
        return
    handle = store.requests.handles.get(file.path)
    if handle is not None:
        stamp = stamp_of_handle(handle)
    else:
        stamp = listed_stamp(store, file) if store.is_python else None
    if stamp is not None:
        known[file.path] = stamp


def remote_change(
    store: Store, file: File, known: MutableMapping[str, str | None], seconds: float
) -> str | None:
    """Asks a store, by one request, how a file differs from its listing and from earlier answers; None if it does not.

    After a change the next run lists the files again, by a client that has forgotten what it knew.

    Args:
        known: The stamps of the first answers, by path; this one is added where there is none. Many threads may share it.
        seconds: The time that the answer may take, where its client can be told.

    Raises:
        Exception: The client's own error if it gets no answer.
    """
    change = _change(store, file, known, seconds)
    if change is not None:
        _list_again(store, file)
    return change


def change_behind(
    error: BaseException, store: Store, file: File, known: MutableMapping[str, str | None]
) -> str | None:
    """Returns how a file has changed, if a read failed as reads of a shorter or removed file do; None if not, or if nobody knows.

    Called after a failed read. It asks the store once: where the store does not answer, the first error tells more. A client
    that says by itself that there is no such file is not asked. Clients of fsspec say so of other answers of a server, too.
    """
    if store.is_local:
        return None
    if isinstance(error, FileNotFoundError) and not (error.__cause__ and is_of_client(error.__cause__)):
        _list_again(store, file)
        return None
    is_told = isinstance(error, ShortRead | FileNotFoundError) or _NO_SUCH.search(str(error))
    if not is_told and status_of(error) not in _OF_SHORTER_FILES:
        return None
    try:
        return remote_change(store, file, known, REQUEST_SECONDS)
    except Exception:  # noqa: BLE001  (whatever the client raises, it does not tell of a change)
        return None


def storage_failure(error: BaseException, file: File) -> str | None:
    """Returns the message for an error that comes from the storage of a file; None if the file itself is at fault.

    Examples:
        >>> file = File("https://host/a.csv", "a.csv", 9)
        >>> storage_failure(TimeoutError("no answer"), file).split(";")[0]
        'the storage did not deliver it: TimeoutError: no answer'
        >>> storage_failure(ValueError("bad digit"), file) is None
        True
    """
    if file.is_local or isinstance(error, ArrowflowError):
        return None
    if isinstance(error, FileNotFoundError):  # of fsspec also if the server gave any other answer
        cause = error.__cause__
        if cause is None or getattr(cause, "status", None) in (404, 410):
            return None
        error = cause
    if "support range requests" in str(error):
        return NO_RANGES
    is_named = isinstance(error, OSError) and (error.errno is not None or _NATIVE.search(str(error)))
    is_known = isinstance(error, TimeoutError | ConnectionError | PermissionError)
    if is_named or is_known or is_of_client(error):
        return undelivered(said(error))
    return None


def _list_again(store: Store, file: File) -> None:
    """Lets the next run list the files again, by a client that has forgotten what it knew."""
    forget_listings(store.filesystem)
    store.requests.changed.add(file.path)


def _change(store: Store, file: File, known: MutableMapping[str, str | None], seconds: float) -> str | None:
    try:
        size, stamp = _told(store, file, seconds)
    except FileNotFoundError:
        return "it was removed"
    if size not in (None, file.size):
        return f"it had {file.size:,} bytes, and has {size:,}"
    handle = store.requests.handles.get(file.path)
    if handle is not None and _is_later(handle, file):
        return "it was written again, with the same size"
    if handle is not None and (first := stamp_of_handle(handle)) is not None:
        known.setdefault(file.path, first)  # it was opened before the first read
    elif file.mtime_ns is not None and not store.is_python:
        known.setdefault(file.path, str(file.mtime_ns))
    if stamp != known.setdefault(file.path, stamp):
        return "it was written again, with the same size"
    return None


def _told(store: Store, file: File, seconds: float) -> tuple[int | None, str | None]:
    client = fsspec_client(store.filesystem)
    if client is not None:
        # Clients that keep listings would answer from them.
        fresh = {"refresh": True} if "refresh" in inspect.signature(client.info).parameters else {}
        info = client.info(file.path, **fresh, **time_limit(client, seconds))
        return info.get("size"), told_stamp(info)
    if is_by_name(store.filesystem):  # one request tells both with a handle
        with store.filesystem.open_input_file(file.path) as handle:
            if (stamp := stamp_of_handle(handle)) is not None:
                return handle.size(), stamp
    info = store.filesystem.get_file_info(file.path)
    if info.type == pafs.FileType.NotFound:
        raise FileNotFoundError(file.path)
    found, listed = info.mtime_ns, file.mtime_ns
    if found is not None and listed is not None and abs(found - listed) <= _SECOND:
        found = listed  # which may have the fractions of a second that other answers lack
    return info.size, None if found is None else str(found)


def stamp_of_handle(handle: Any) -> str | None:
    """Returns the etag or time that came with an open object; None if its client tells neither."""
    metadata = handle.metadata() or {}
    return told_stamp({name: bytes(value).decode(errors="replace") for name, value in metadata.items()})


def _is_later(handle: Any, file: File) -> bool:
    """Whether a file was written again after its listing and before it was opened: a plan may know the older one's footer."""
    told = (handle.metadata() or {}).get("Last-Modified")
    if told is None or file.mtime_ns is None:
        return False
    try:
        seconds = datetime.fromisoformat(bytes(told).decode()).timestamp()
    except ValueError:
        return False
    return abs(seconds - file.mtime_ns / _SECOND) > 1

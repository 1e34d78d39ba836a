"""Failures of storage, which a reader would take for faults of the file that it reads."""

from __future__ import annotations

import re
from typing import Final

from arrowflow.errors import ArrowflowError, said
from arrowflow.storage.retries import is_of_client
from arrowflow.storage.store import NO_RANGES, File, undelivered

_NATIVE: Final = re.compile(
    r"AWS Error|google::cloud|GCS|Azure|HDFS|\bcurl|HTTP|Couldn't resolve|[Tt]imed? ?out"
)
"""Words of `pyarrow.fs`, whose errors have no class of their own."""

_GONE: Final = (404, 410)


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
        if cause is None or getattr(cause, "status", None) in _GONE:
            return None
        error = cause
    if "support range requests" in str(error):
        return NO_RANGES
    is_named = isinstance(error, OSError) and (error.errno is not None or _NATIVE.search(str(error)))
    is_known = isinstance(error, TimeoutError | ConnectionError | PermissionError)
    if is_named or is_known or is_of_client(error):
        return undelivered(said(error))
    return None

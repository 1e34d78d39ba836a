"""The places of files: lists of files in a known order, and access to files on any file system.

Nothing here knows a format, a thread or a pipeline.
"""

from arrowflow.storage.addresses import lists_anew, locate, resolve
from arrowflow.storage.contents import Contents
from arrowflow.storage.failures import storage_failure
from arrowflow.storage.links import below, is_link
from arrowflow.storage.local import NO_ROOM, UNFINISHED, flush, local_path
from arrowflow.storage.store import Fetched, File, Range, Store, coalesce
from arrowflow.storage.versions import remote_change, told_stamp

__all__ = [
    "NO_ROOM",
    "UNFINISHED",
    "Contents",
    "Fetched",
    "File",
    "Range",
    "Store",
    "below",
    "coalesce",
    "flush",
    "is_link",
    "lists_anew",
    "local_path",
    "locate",
    "remote_change",
    "resolve",
    "storage_failure",
    "told_stamp",
]

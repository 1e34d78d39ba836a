"""The places of files: lists of files in a known order, and access to files on any file system.

Nothing here knows a format, a thread or a pipeline.
"""

from arrowflow.storage.addresses import is_chained, lists_anew, locate, resolve
from arrowflow.storage.clients import CONNECTIONS, forget_listings
from arrowflow.storage.contents import Contents
from arrowflow.storage.listing import below, is_link, lake_of
from arrowflow.storage.local import NO_ROOM, UNFINISHED, flush, local_path
from arrowflow.storage.objects import Objects
from arrowflow.storage.requests import Requests
from arrowflow.storage.retries import Services, about_credentials, is_of_client
from arrowflow.storage.settings import Settings, place_of, shown_paths, without_secrets, wrong_settings
from arrowflow.storage.store import Fetched, File, Mapped, Range, Store, coalesce
from arrowflow.storage.versions import change_behind, note_version, remote_change, storage_failure, told_stamp

__all__ = [
    "CONNECTIONS",
    "NO_ROOM",
    "UNFINISHED",
    "Contents",
    "Fetched",
    "File",
    "Mapped",
    "Objects",
    "Range",
    "Requests",
    "Services",
    "Settings",
    "Store",
    "about_credentials",
    "below",
    "change_behind",
    "coalesce",
    "flush",
    "forget_listings",
    "is_chained",
    "is_link",
    "is_of_client",
    "lake_of",
    "lists_anew",
    "local_path",
    "locate",
    "note_version",
    "place_of",
    "remote_change",
    "resolve",
    "shown_paths",
    "storage_failure",
    "told_stamp",
    "without_secrets",
    "wrong_settings",
]

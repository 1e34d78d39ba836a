"""`cached`: the node of the cache that a user asked for."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from arrowflow.caching.store.upkeep import local_folder
from arrowflow.errors import PlanError
from arrowflow.ops.cache.cache import Cache
from arrowflow.ops.cache.disk_cache import DiskCache
from arrowflow.ops.cache.shared_cache import SharedCache, is_address
from arrowflow.options import check_choice
from arrowflow.plan.node import Node
from arrowflow.storage import place_of


def cached(
    below: Node,
    path: str | PathLike[str] | None,
    *,
    key: str | None,
    compression: str | None,
    spill: str | PathLike[str] | None,
    on_full: str,
    verify: str,
    storage_options: Mapping[str, Any] | None,
) -> Cache | DiskCache:
    """Returns the node for this folder, this address, or for memory, with arguments as users write them."""
    check_choice("cache", "compression", compression, (None, "lz4", "zstd"))
    check_choice("cache", "on_full", on_full, ("error", "bypass"))
    check_choice("cache", "verify", verify, ("first", "never"))
    if key is not None and not isinstance(key, str):
        raise PlanError(f"cache: key is a string, got {type(key).__name__}")
    kept: dict[str, Any] = {"key": key, "compression": compression, "on_full": on_full, "verify": verify}
    if path is None:
        usual = {"on_full": "error", "verify": "first"}
        for name, value in (kept | {"storage_options": storage_options}).items():
            # Only strings are compared: an array for storage_options has no truth value.
            if value is not None and (name not in usual or value != usual[name]):
                raise PlanError(
                    f"cache: {name}= is for a cache in a folder; name it, as in cache('folder', {name}=…)"
                )
        folder = None if spill is None else str(local_folder("cache: spill", spill))
        return Cache(inputs=(below,), spill=folder)
    if spill is not None:
        raise PlanError("cache: with a path all rows lie in that folder, and none spill; leave out spill=")
    settings = place_of(DiskCache.name, None, storage_options)
    if is_address(path):
        if on_full != "error":
            raise PlanError("cache: on_full= is for a disk that has no room, and a store has; leave it out")
        return SharedCache(inputs=(below,), path=str(path), settings=settings, **kept)
    return DiskCache(inputs=(below,), path=str(local_folder(DiskCache.name, path)), **kept)

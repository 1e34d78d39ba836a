"""`cached`: the node of the cache that a user asked for."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from arrowflow.caching.store.spill import spill_folder
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
    if path is None:
        given = {
            "key": key,
            "compression": compression,
            "on_full": None if on_full == "error" else on_full,
            "verify": None if verify == "first" else verify,
            "storage_options": storage_options,
        }
        for name, value in given.items():
            if value is not None:
                raise PlanError(
                    f"cache: {name}= is for a cache in a folder; name it, as in cache('folder', {name}=…)"
                )
        return Cache(inputs=(below,), spill=spill_folder(spill))
    if spill is not None:
        raise PlanError("cache: with a path all rows lie in that folder, and none spill; leave out spill=")
    settings = place_of(DiskCache.name, None, storage_options)
    if is_address(path):
        if on_full != "error":
            raise PlanError("cache: on_full= is for a disk that has no room, and a store has; leave it out")
        return SharedCache(
            inputs=(below,),
            path=str(path),
            settings=settings,
            key=key,
            compression=compression,
            on_full=on_full,
            verify=verify,
        )
    return DiskCache(
        inputs=(below,),
        path=str(local_folder(DiskCache.name, path)),
        key=key,
        compression=compression,
        on_full=on_full,
        verify=verify,
    )

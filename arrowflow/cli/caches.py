"""`arrowflow cache ls`, `cache info` and `cache clear`: the entries in a folder of `cache(path)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from arrowflow.caching.store.upkeep import CacheEntry, cache_clear, cache_info
from arrowflow.cli.output import size, write_json, write_table, write_text
from arrowflow.errors import PlanError, SourceError, counted


def run(
    action: str,
    path: str,
    *,
    fingerprint: str = "",
    older_than: str | None = None,
    max_bytes: str | None = None,
    as_json: bool,
) -> bool:
    """Shows or removes entries; finds damaged descriptions."""
    if not Path(path).exists():
        raise SourceError(f"cache: there is no folder {path!r}; give the one that cache(path) names")
    if action == "clear":
        entries = cache_clear(path, older_than=older_than, max_bytes=max_bytes)
    else:
        entries = [entry for entry in cache_info(path) if entry.fingerprint.startswith(fingerprint)]
        if fingerprint and not entries:
            raise PlanError(f"cache info: no entry in {path} has a name that begins with {fingerprint!r}")
    if as_json:
        write_json([dataclasses.asdict(entry) for entry in entries])
    elif not entries and action != "clear":
        write_text(f"no finished entries in {path}")
    elif action == "info":
        for entry in entries:
            _describe(entry)
    else:
        _list(entries, "removed" if action == "clear" else "there are")
    return any(entry.problem for entry in entries) and action != "clear"


def _list(entries: Sequence[CacheEntry], verb: str) -> None:
    if entries:
        header = ("fingerprint", "rows", "size", "complete", "last used", "plan")
        write_table(header, [_cells(entry) for entry in entries], numbers=("rows", "size"))
    total = sum(entry.bytes for entry in entries)
    write_text(f"{verb}: {'1 entry' if len(entries) == 1 else f'{len(entries):,} entries'}, {size(total)}")


def _cells(entry: CacheEntry) -> tuple[str, ...]:
    return (
        entry.fingerprint[:12],
        f"{entry.num_rows:,}",
        size(entry.bytes),
        "yes" if entry.complete else "no",
        f"{entry.last_used:%Y-%m-%d %H:%M} UTC",
        entry.problem or entry.plan.partition("\n")[0],
    )


def _describe(entry: CacheEntry) -> None:
    write_text(
        entry.path,
        f"  {counted(entry.num_rows, 'row')} in {counted(entry.num_chunks, 'chunk')}, {size(entry.bytes)}"
        + ("" if entry.complete else "; not all rows of an epoch"),
        f"  made {entry.created:%Y-%m-%d %H:%M} UTC, last used {entry.last_used:%Y-%m-%d %H:%M} UTC",
        *(f"  {line}" for line in entry.plan.splitlines()),
        *([f"  damaged: {entry.problem}"] if entry.problem else []),
    )

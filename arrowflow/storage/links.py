"""Symbolic links to folders are followed, but no folder is listed twice: a link to a parent folder does no harm."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from arrowflow.lazy import fs as pafs


def root_of(filesystem: Any) -> str | None:
    """Returns the place of a file system on this machine, as the start of its paths; None if it is not local."""
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        root = root_of(filesystem.base_fs)
        return None if root is None else posixpath.join(root, filesystem.base_path)
    return "" if isinstance(filesystem, pafs.LocalFileSystem) else None


def is_link(filesystem: Any, path: str) -> bool:
    """Returns whether a path is that of a symbolic link of this machine."""
    root = root_of(filesystem)
    return root is not None and Path(root + path).is_symlink()


def below(filesystem: Any, base: str, *, hidden: bool = True) -> list[Any]:
    """Returns the infos of everything inside a folder, also behind links, but each real folder once.

    If several paths lead to one folder, the path with the fewest links lists it; of several such paths, the first.

    Args:
        filesystem: The file system.
        base: The folder, which need not exist.
        hidden: Whether to look into folders whose names start with `.` or `_`.
    """
    root = root_of(filesystem)
    if root is None:
        return listed_in(filesystem, base, recursive=True)
    found: list[Any] = []
    seen: set[str] = set()
    pending = {base: os.path.realpath(root + base)}
    while pending:
        links: dict[str, str] = {}
        folders = sorted(pending.items(), reverse=True)
        while folders:
            path, real = folders.pop()
            if real in seen:
                continue
            seen.add(real)
            for info in listed_in(filesystem, path):
                found.append(info)
                if info.size is not None or info.type != pafs.FileType.Directory:
                    continue
                if not hidden and info.base_name.startswith((".", "_")):
                    continue
                if Path(root + info.path).is_symlink():
                    links[info.path] = os.path.realpath(root + info.path)
                else:
                    folders.append((info.path, posixpath.join(real, info.base_name)))
        pending = links
    return found


def once(filesystem: Any, infos: Iterable[Any]) -> list[Any]:
    """Returns files; a file that several paths reach through links of folders is returned once, as by `below`."""
    root = root_of(filesystem)
    if root is None:
        return list(infos)
    folders: dict[str, tuple[str, int]] = {}
    found: dict[tuple[str, str], tuple[int, str, Any]] = {}
    for info in infos:
        real, links = _real(root, posixpath.dirname(info.path), folders)
        key, mine = (real, info.base_name), (links, info.path, info)
        if key not in found or mine[:2] < found[key][:2]:
            found[key] = mine
    return [info for _, _, info in found.values()]


def _real(root: str, path: str, known: dict[str, tuple[str, int]]) -> tuple[str, int]:
    """Returns the real place of a folder, and the number of links to it; looks at each folder at most once."""
    if path not in known:
        above, name = posixpath.split(path)
        real, links = _real(root, above, known) if above != path else (os.path.realpath(root + path), 0)
        is_link = Path(root + path).is_symlink()
        real = os.path.realpath(root + path) if is_link else posixpath.join(real, name)
        known[path] = real, links + is_link
    return known[path]


def listed_in(filesystem: Any, base: str, *, recursive: bool = False) -> list[Any]:
    """Returns the infos of a folder's content; the folder need not exist."""
    selector = pafs.FileSelector(base, allow_not_found=True, recursive=recursive)
    try:
        return list(filesystem.get_file_info(selector))
    except FileNotFoundError:  # Arrow found a folder that another writer renamed before its listing
        return []

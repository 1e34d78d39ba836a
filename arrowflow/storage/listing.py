"""The files that paths, folders and globs mean, in a known order.

Names that start with `.` or `_` are left out. Symbolic links to folders are followed, but no folder is listed twice: a link
to a parent folder does no harm.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from arrowflow.errors import PlanError, SourceError, closest, without_credentials
from arrowflow.lazy import fs as pafs
from arrowflow.storage.local import UNFINISHED
from arrowflow.storage.store import File

_PATH: Final = attrgetter("path")
_MAGIC: Final = re.compile(r"[*?\[]")

_LAKES: Final = {
    "_delta_log": ("Delta Lake", 'af.read_delta("…")'),
    ".hoodie": (
        "Apache Hudi",
        'af.from_arrow(pyarrow.Table.from_batches(hudi.HudiTable("…").read_snapshot()))',
    ),
    "_versions": ("Lance", 'af.read_lance("…")'),
    "metadata": ("Apache Iceberg", 'af.read_iceberg(catalog.load_table("…"))'),
}
"""Folders in which a table says which of its files are current: the format of the table, and its reader."""
_ICEBERG: Final = ".metadata.json"


def lake_of(folder: str) -> tuple[str, str] | None:
    """Returns the lake, if a local folder is a table of Delta Lake, Hudi, Lance or Iceberg, and the call that reads it."""

    def has(log: str) -> bool:
        place = Path(folder, log)
        return place.is_dir() and (log != "metadata" or any(place.glob("*" + _ICEBERG)))

    return next((lake for log, lake in _LAKES.items() if has(log)), None)


def as_files(filesystem: Any, listed: list[tuple[Any, int | None]]) -> tuple[File, ...]:
    """Returns listed infos as files."""
    paths = [info.path for info, _ in listed]
    root = posixpath.commonpath({path.rpartition("/")[0] for path in paths})
    # `relpath` takes 12 µs a file: with 1,000 files that alone would double the time to the first batch.
    start = len(root) + 1 if root and root != "/" else 0
    is_local = isinstance(filesystem, pafs.LocalFileSystem)
    return tuple(
        _file(filesystem, info, path[start:].lstrip("/"), found, is_local=is_local)
        for path, (info, found) in zip(paths, listed, strict=True)
    )


def _file(filesystem: Any, info: Any, relative: str, start: int | None, *, is_local: bool) -> File:
    """Returns a file; a local one with size, time and inode of one moment, so that they belong together."""
    if not is_local:
        relative = without_credentials(relative)
    else:
        with suppress(OSError):  # it is gone again, which its reader will say
            found = os.stat(info.path)  # noqa: PTH116  (1 µs a file; `Path.stat` takes twice as long)
            return File(info.path, relative, found.st_size, start, found.st_mtime_ns, True, found.st_ino)
    return File(info.path, relative, _size(filesystem, info), start, info.mtime_ns, is_local=is_local)


def _size(filesystem: Any, info: Any) -> int:
    if info.size is not None:
        return int(info.size)
    with filesystem.open_input_file(info.path) as source:  # HTTP servers list no sizes
        return int(source.size())


def list_paths(
    filesystem: Any, paths: list[str], suffixes: tuple[str, ...], operator: str
) -> list[tuple[Any, int | None]]:
    """Returns the info of each file, and the index in its path at which the part found by listing begins.

    The paths keep their order; the files of a folder or a glob are sorted.
    """
    found: list[tuple[Any, int | None]] = []
    for path, info in zip(paths, filesystem.get_file_info(paths), strict=True):
        # A directory has no size. To ask for the size is 20 times as fast as to ask for the type.
        if info.size is not None or info.type in (pafs.FileType.File, pafs.FileType.Unknown):
            # To open a pipe, socket or device of this machine may mean to wait for ever.
            if info.size is None and info.type == pafs.FileType.Unknown and root_of(filesystem) is not None:
                raise PlanError(
                    "expected a file, found a pipe, socket or device, which can be read but once; copy what comes from it "
                    "into a file, or read it in a from_generator"
                ).locate(operator=operator, file=info.path)
            found.append((info, None))
        elif info.type == pafs.FileType.Directory:
            start = len(path.rstrip("/"))
            _check_parents(filesystem, path, suffixes)
            inside = _directory(filesystem, path, suffixes, operator)
            found += [(each, start) for each in sorted(inside, key=_PATH)]
        elif _MAGIC.search(path):  # only now: a file may be called `a[1].parquet`
            start = len(split_pattern(path)[0].rstrip("/"))
            inside = _glob(filesystem, path, suffixes, operator)
            found += [(each, start) for each in sorted(inside, key=_PATH)]
        else:
            raise SourceError(_missing(filesystem, path)).locate(operator=operator, file=path)
    return found


def _directory(filesystem: Any, path: str, suffixes: tuple[str, ...], operator: str) -> list[Any]:
    depth = len(path.rstrip("/")) + 1
    listed = [
        info
        for info in _checked(below(filesystem, path, hidden=False), path, suffixes)
        if (info.size is not None or info.is_file) and not _is_hidden(info.path[depth:])
    ]
    found = [info for info in listed if info.path.lower().endswith(suffixes)]
    if not found:
        others = f"; it has {len(listed)} other files, a glob such as '*' takes them" if listed else ""
        kinds = " or ".join(filter(None, suffixes))
        text = f"the directory has no {kinds} files{others}" if kinds else "the directory has no files"
        raise SourceError(text).locate(operator=operator, file=path)
    return found


def _glob(filesystem: Any, pattern: str, suffixes: tuple[str, ...], operator: str) -> list[Any]:
    base, rest = split_pattern(pattern)
    found: dict[str, Any] = {}  # by path: `**` may reach a file in several ways
    _check_parents(filesystem, base, suffixes)
    for info in _expand(filesystem, base, rest.strip("/").split("/"), suffixes):
        if info.type == pafs.FileType.File:
            found[info.path] = info
        elif info.type == pafs.FileType.Directory and not rest.endswith("**"):
            found |= {each.path: each for each in _directory(filesystem, info.path, suffixes, operator)}
    if not found:
        raise SourceError("the glob matches no file; check it, and the folder that it starts in").locate(
            operator=operator, file=pattern
        )
    return once(filesystem, found.values())


def _expand(filesystem: Any, base: str, pattern: list[str], suffixes: tuple[str, ...]) -> Iterator[Any]:
    """Matches one segment of a glob after the other, so that only folders which match are listed."""
    if pattern[0] == "**":
        depth = len(base.rstrip("/")) + 1
        hidden = any(segment.startswith((".", "_")) for segment in pattern)
        for info in _checked(below(filesystem, base, hidden=hidden), base, suffixes):
            if _matches(info.path[depth:].split("/"), pattern):
                yield info
        return
    infos = listed_in(filesystem, base)
    for info in infos:
        if info.base_name == "metadata" and info.type == pafs.FileType.Directory:
            _checked(listed_in(filesystem, info.path), base, suffixes)
    for info in _checked(infos, base, suffixes):
        if not _matches_name(posixpath.basename(info.path), pattern[0]):
            continue
        if len(pattern) == 1:
            yield info
        elif info.type == pafs.FileType.Directory:
            yield from _expand(filesystem, info.path, pattern[1:], suffixes)


def _matches(parts: list[str], pattern: list[str]) -> bool:
    if not pattern or not parts:
        return not parts and all(segment == "**" for segment in pattern)
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (not _is_hidden(parts[0]) and _matches(parts[1:], pattern))
    return _matches_name(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _matches_name(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) and (not _is_hidden(name) or pattern[0] == name[0])


def _checked(infos: list[Any], base: str, suffixes: tuple[str, ...]) -> list[Any]:
    """Returns the content of a folder.

    An unfinished writer's folder is refused, since its content may be partial. So is a table of a lake, whose files may
    hold rows that were deleted since, unless any file is wanted, whatever it holds.
    """
    depth = len(base.rstrip("/")) + 1
    for info in infos:
        is_marker = info.path.endswith(UNFINISHED) and info.base_name == UNFINISHED
        if is_marker and not _is_hidden(posixpath.dirname(info.path[depth:])):
            raise SourceError(
                f"the folder holds a part of a dataset: {UNFINISHED} says that a writer is still moving its files "
                "there, or was interrupted; wait, or write the dataset again with overwrite=True"
            ).locate(file=info.path)
        if "" not in suffixes:
            _check_lake(info, depth)
    return infos


def _check_lake(info: Any, depth: int) -> None:
    """Raises `PlanError` if a file or folder tells that the folder around it is a table of a lake."""
    if info.base_name in _LAKES and info.base_name != "metadata":
        log = info.path
    elif (
        info.path.endswith(_ICEBERG)
        and posixpath.basename(posixpath.dirname(info.path[depth:])) == "metadata"
    ):
        log = posixpath.dirname(info.path)
    else:
        return
    table, name = posixpath.split(log)
    if _is_hidden(table[depth:]):
        return
    lake, reader = _LAKES[name]
    raise PlanError(
        f"{table!r} is a table of {lake}: {name!r} tells which of its files are current, and the others hold rows that "
        f"were deleted or replaced; read it with {reader}, or name single files in a list"
    ).locate(file=log)


def _check_parents(filesystem: Any, path: str, suffixes: tuple[str, ...]) -> None:
    """Checks the folders around `key=value` folders, and around `data`.

    They may be parts of a table of a lake, or of a dataset that a writer is moving to its place.
    """
    table = given = path.rstrip("/")
    found: list[Any] = []
    markers: list[str] = []
    while "=" in posixpath.basename(table):
        table = posixpath.dirname(table)
        markers.append(posixpath.join(table, UNFINISHED))
    is_data = posixpath.basename(table) == "data"
    table = posixpath.dirname(table) if is_data else table
    if table in (given, ""):
        return
    with suppress(OSError):  # who may read the files need not have the right to look there
        found = listed_in(filesystem, posixpath.join(table, "metadata")) if is_data else []
        logs = [posixpath.join(table, name) for name in _LAKES if name != "metadata"]
        wanted = [pafs.FileType.Directory] * len(logs) + [pafs.FileType.File] * len(markers)
        infos = filesystem.get_file_info([*logs, *markers])
        found += [info for info, type in zip(infos, wanted, strict=True) if info.type == type]
    _checked(found, table, suffixes)


def split_pattern(path: str) -> tuple[str, str]:
    """Returns the folders of a path before the first wildcard, and the rest from there."""
    match = _MAGIC.search(path)
    if match is None:
        return path, ""
    cut = path.rfind("/", 0, match.start())
    return path[: max(cut, 1)] if cut >= 0 else "", path[cut + 1 :]


def _is_hidden(relative: str) -> bool:
    rooted = "/" + relative
    return "/." in rooted or "/_" in rooted


def _missing(filesystem: Any, path: str) -> str:
    if is_link(filesystem, path):
        return "it is a link that leads nowhere, or back to itself; mend the link, or name the file itself"
    names = [posixpath.basename(info.path) for info in listed_in(filesystem, posixpath.dirname(path))]
    hint = closest(posixpath.basename(path), names) if names else "its folder is missing or empty"
    return f"there is no such file or directory; {hint.replace('known columns', 'the folder has')}"


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

    If several paths lead to one folder, the path with the fewest links lists it; of several such paths, the first. The folder
    need not exist. Unless `hidden`, folders whose names start with `.` or `_` are not looked into.
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

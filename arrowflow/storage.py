"""Where files are: listing them in a known order, and opening them on any file system.

`resolve` turns what a user wrote (paths, globs, directories, URLs) into one `Store` and its sorted files.
Nothing here knows a format, a thread or a pipeline. It is longer than other modules because listing, fetching
and the file that serves fetched ranges share no type with anything but each other.
"""

from __future__ import annotations

import errno
import fnmatch
import importlib
import io
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from arrowflow.errors import ArrowflowError, PlanError, SourceError, closest, shown
from arrowflow.lazy import fs as pafs
from arrowflow.links import below, is_link, once, root_of
from arrowflow.records import dataclass

HOLE_BYTES: Final = 1 << 20
"""Bytes between two ranges that are fetched along rather than asked for apart: a round trip's worth."""

MAX_RANGE_BYTES: Final = 64 << 20
"""Most bytes that ranges are merged to, so that a file system which fetches ranges at once can do so."""

UNFINISHED: Final = "_UNFINISHED"
"""Name of the file that a writer keeps in a folder for as long as what lies there is not a whole dataset."""

NO_ROOM: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full to this user",
    errno.EFBIG: "a file may not be that large (see `ulimit -f`, and what the file system takes)",
}
"""Errors of the operating system that say that a file cannot grow, and what each of them means."""

Range = tuple[int, int]
"""Bytes of a file, from the first to before the second."""

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")
_MAGIC: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class File:
    """One file of a source.

    Attributes:
        path: Full path within its file system.
        relative: Path below the folder that all files of the source have in common; the part of the path that
            stays when the data move, which is what a state digests.
        size: Bytes.
        start: Where in `path` that begins which was found by listing folders, behind the directory that was named or
            in front of the first wildcard; None of a file that was named itself.
        mtime_ns: When it was last changed, in nanoseconds since 1970, as its listing says; None if that says nothing.
        is_local: Whether it lies on this machine's own file system.
    """

    path: str
    relative: str
    size: int
    start: int | None = field(default=None, compare=False)
    mtime_ns: int | None = field(default=None, compare=False)
    is_local: bool = field(default=False, compare=False)

    @property
    def is_changed(self) -> bool:
        """Whether it has another size or time than when it was listed, or is gone; asked of local files alone."""
        if not self.is_local:
            return False
        try:
            found = Path(self.path).stat()
        except OSError:
            return True
        return found.st_size != self.size or self.mtime_ns not in (None, found.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Store:
    """A file system as the readers see it. Picklable, and safe to use from many threads at the same time.

    Attributes:
        filesystem: The `pyarrow.fs.FileSystem` that the paths belong to.
        memory_map: Whether local files are mapped. A mapped file that another process shortens while it is
            read kills the process (SIGBUS); False reads them instead.
    """

    filesystem: Any
    memory_map: bool = True

    @property
    def is_local(self) -> bool:
        """Whether the files lie on this machine's own file system."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    @property
    def is_python(self) -> bool:
        """Whether the file system is written in Python (fsspec): Arrow's own threads must not enter it."""
        return isinstance(self.filesystem, pafs.PyFileSystem)

    def open(self, file: File) -> pa.NativeFile:
        """Opens a file for random access; the caller closes it."""
        if self.is_local and self.memory_map and file.size > 0:
            return pa.memory_map(file.path)
        if self.is_python and _shares_files(self.filesystem):
            return pa.BufferReader(self.filesystem.handler.fs.cat_file(file.path))
        return self.filesystem.open_input_file(file.path)

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """What it holds in memory: nothing, unless it is a `Fetched`."""
        return ()

    def fetch_ahead(self, file: File, ranges: Iterable[Range]) -> Fetched:
        """Fetches byte ranges with few requests and returns a store that serves reads of them from memory.

        Raises:
            SourceError: A range does not lie within the file.
        """
        merged = coalesce(ranges)
        for start, end in merged:
            if start < 0 or end > file.size:
                raise SourceError(
                    f"bytes {start} to {end} lie outside of the file of {file.size}; the file is corrupt"
                ).locate(file=file.path)
        buffers = self.fetch(file, merged)
        return Fetched(self.filesystem, file=file, held=dict(zip(merged, buffers, strict=True)))

    def fetch(self, file: File, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """Returns the bytes of each range; fsspec file systems may fetch them at the same time."""
        if not ranges:
            return []
        if self.is_python and isinstance(self.filesystem.handler, pafs.FSSpecHandler):
            starts, ends = zip(*ranges, strict=True)
            found = self.filesystem.handler.fs.cat_ranges(
                [file.path] * len(ranges), list(starts), list(ends), on_error="raise"
            )
            buffers = [pa.py_buffer(data) for data in found]
        else:
            with self.filesystem.open_input_file(file.path) as source:
                buffers = [_read_at(source, start, end) for start, end in ranges]
        for (start, end), buffer in zip(ranges, buffers, strict=True):
            if buffer.size != end - start:
                raise SourceError(
                    f"expected {end - start} bytes at offset {start}, got {buffer.size}: the file is "
                    "truncated or changed while it was read"
                ).locate(file=file.path)
        return buffers


@dataclass(frozen=True, slots=True, eq=False)
class Fetched(Store):
    """Some bytes of one file, held in memory: whoever reads them through it waits for nothing.

    Attributes:
        file: The file.
        held: The bytes of each range.

    Example:
        >>> file = File("bucket/a.parquet", "a.parquet", 100)
        >>> held = Fetched(None, file=file, held={(90, 100): pa.py_buffer(b"0123456789")})
        >>> held.fetch(file, [(92, 95)])[0].to_pybytes()
        b'234'
    """

    file: File = field(kw_only=True)
    held: Mapping[Range, pa.Buffer] = field(kw_only=True, repr=False)

    @property
    def is_local(self) -> bool:
        """Never: there is no path that somebody else could open."""
        return False

    @property
    def is_python(self) -> bool:
        """Always: what `open` returns is written in Python, too."""
        return True

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        """All that it holds."""
        return tuple(self.held.values())

    def open(self, file: File) -> pa.NativeFile:
        """Opens the file; only the bytes that are held can be read."""
        whole = self.held.get((0, file.size))
        return pa.PythonFile(_FetchedFile(self), "r") if whole is None else pa.BufferReader(whole)

    def fetch(self, file: File, ranges: Sequence[Range]) -> list[pa.Buffer]:
        """Returns the bytes of each range, without a copy.

        Raises:
            SourceError: A range is not held.
        """
        return [self._slice(start, end) for start, end in ranges]

    def _slice(self, start: int, end: int) -> pa.Buffer:
        for (low, high), buffer in self.held.items():
            if low <= start and end <= high:
                return buffer.slice(start - low, end - start)
        raise SourceError(
            f"bytes {start} to {end} are no part of the {len(self.held)} ranges that were fetched; the file is "
            "corrupt, or its format's `ranges` leaves them out"
        ).locate(file=self.file.path)


def coalesce(ranges: Iterable[Range], *, hole_bytes: int = HOLE_BYTES) -> list[Range]:
    """Merges byte ranges that overlap or lie at most `hole_bytes` apart.

    Example:
        >>> coalesce([(100, 200), (0, 50), (200, 300), (90_000_000, 90_000_001)])
        [(0, 300), (90000000, 90000001)]
    """
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1] + hole_bytes and end - merged[-1][0] <= MAX_RANGE_BYTES:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def resolve(
    paths: object, *, filesystem: Any = None, suffixes: tuple[str, ...], operator: str
) -> tuple[Store, tuple[File, ...]]:
    """Lists the files that `paths` mean, sorted by path, whatever order they were named in.

    Args:
        paths: One path, URL, glob (`*`, `?`, `[a-z]`, `**`) or directory, or a sequence of them. In a URL `?`
            starts the query and is no wildcard. In directories, and where wildcards meet them, names that
            start with `.` or `_` are left out, and so are pipes, sockets, devices and links that lead nowhere. Links
            to folders are followed, but no folder is listed twice, and no file comes twice from one of the paths.
        filesystem: A `pyarrow.fs` or fsspec file system, to which all paths then belong.
        suffixes: Endings of the files that are taken from directories.
        operator: The operator to name in errors.

    Raises:
        SourceError: A path is missing, a glob or a directory is empty, a file system cannot be reached.
        PlanError: `paths` is no path, or one of a pipe, socket or device; or they belong to different file systems.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in "b.parquet", "a.parquet", "_SUCCESS":
        ...     _ = (folder / name).write_bytes(b"...")
        >>> store, files = resolve(folder, suffixes=(".parquet",), operator="read_parquet")
        >>> [file.relative for file in files]
        ['a.parquet', 'b.parquet']
    """
    wanted = _as_texts(paths, operator)
    opener = _Opener(filesystem, operator)
    try:
        located = [opener.locate(text) for text in wanted]
        listed = _list(opener.filesystem, located, suffixes, operator)
    except ArrowflowError as error:
        error.locate(operator=operator)
        raise
    except Exception as error:
        text = f"cannot list {_shorten(wanted)}: {error}; check the address, the credentials and the network"
        raise SourceError(text).locate(operator=operator) from error
    return Store(opener.filesystem), _as_files(opener.filesystem, listed)


def lists_anew(
    paths: object, files: tuple[File, ...], *, filesystem: Any, suffixes: tuple[str, ...], operator: str
) -> bool:
    """Returns whether paths mean other files by now, or one of the files has changed; asked of local files alone."""
    if not all(file.is_local for file in files):
        return False
    try:
        _, found = resolve(paths, filesystem=filesystem, suffixes=suffixes, operator=operator)
    except ArrowflowError:
        return True  # which binding will say
    return found != files or [file.mtime_ns for file in found] != [file.mtime_ns for file in files]


def locate(path: object, *, filesystem: Any = None, operator: str) -> tuple[Any, str]:
    """Returns the `pyarrow.fs` file system that a path or URL belongs to, and the path in it; nothing need be there.

    Raises:
        SourceError: The file system cannot be reached.
        PlanError: `path` is not one path.

    Example:
        >>> locate("/data/out", operator="write_parquet")[1]
        '/data/out'
    """
    if not isinstance(path, (str, os.PathLike)):
        raise PlanError(f"{operator}: expected one path or URL, got {shown(path)}")
    (text,) = _as_texts(path, operator)
    opener = _Opener(filesystem, operator)
    try:
        place = opener.locate(text)
    except ArrowflowError:
        raise
    except Exception as error:
        reason = f"cannot reach {text!r}: {error}; check the address, the credentials and the network"
        raise SourceError(reason).locate(operator=operator) from error
    return opener.filesystem, place


def local_path(text: str, operator: str) -> str:
    """Returns the absolute path of a local file or folder; `~` is the home of the user, as in a shell.

    Raises:
        PlanError: No file can have such a name; or the working directory, or the home, is not known.
    """
    try:
        if b"\0" in text.encode():
            raise ValueError("names of files have no null bytes")
        return os.path.abspath(Path(text).expanduser() if text == "~" or text.startswith("~/") else text)
    except (OSError, ValueError, RuntimeError) as error:
        raise PlanError(f"{operator}: {text!r} is no path of a file ({error}); name another one") from error


def flush(path: str | os.PathLike[str]) -> None:
    """Waits until a local file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Opener:
    """Finds the file system of each path; all paths of a source must have the same one."""

    def __init__(self, filesystem: Any, operator: str) -> None:
        self.given = filesystem is not None
        self.filesystem: Any = _as_arrow(filesystem, operator) if self.given else None
        self.operator = operator
        self.first = ""
        self._local = pafs.LocalFileSystem()

    def locate(self, text: str) -> str:
        """Returns the path within the file system, keeping wildcards."""
        if self.given:
            return self._strip(text)
        if not _URL.match(text):
            if self.filesystem is not self._local:
                self._same(self._local, text)
            return local_path(text, self.operator).replace(os.sep, "/")
        url, mark, query = text.partition("?")
        base, pattern = _split_pattern(url)
        filesystem, path = _from_url(base + mark + query, self.operator)
        self._same(filesystem, text)
        return posixpath.join(path, unquote(pattern)) if pattern else path

    def _strip(self, text: str) -> str:
        if isinstance(self.filesystem, pafs.PyFileSystem) and isinstance(
            self.filesystem.handler, pafs.FSSpecHandler
        ):
            return str(self.filesystem.handler.fs._strip_protocol(text))
        if _URL.match(text):
            parts = urlsplit(text)
            text = unquote(parts.netloc + parts.path)
        if isinstance(self.filesystem, pafs.LocalFileSystem):
            return local_path(text, self.operator).replace(os.sep, "/")
        return text

    def _same(self, filesystem: Any, text: str) -> None:
        if self.filesystem is None:
            self.filesystem, self.first = filesystem, text
        elif self.filesystem != filesystem:
            raise PlanError(
                f"{self.operator}: all paths of one source belong to one file system, but {self.first!r} and "
                f"{text!r} do not; read them as two sources and concatenate these"
            )


def _from_url(url: str, operator: str) -> tuple[Any, str]:
    try:
        filesystem, path = pafs.FileSystem.from_uri(url)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if isinstance(error, pa.ArrowInvalid) and "Unrecognized filesystem type" not in str(error):
            raise
        filesystem, path = _import_fsspec(url, operator).url_to_fs(url)
        return _as_arrow(filesystem, operator), path
    return filesystem, path


def _import_fsspec(url: str, operator: str) -> Any:
    try:
        return importlib.import_module("fsspec.core")
    except ImportError as error:
        scheme = url.partition(":")[0]
        text = (
            f"pyarrow does not know {scheme!r} URLs and fsspec is not installed; pip install fsspec, or pass "
        )
        raise SourceError(text + "filesystem=").locate(operator=operator, file=url) from error


def _as_arrow(filesystem: Any, operator: str) -> Any:
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem
    if not hasattr(filesystem, "cat_ranges"):
        raise PlanError(
            f"{operator}: filesystem is a pyarrow.fs.FileSystem or an fsspec file system, "
            f"got {type(filesystem).__name__}"
        )
    protocols = filesystem.protocol
    if "file" in ((protocols,) if isinstance(protocols, str) else protocols):
        return pafs.LocalFileSystem()
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))


def _as_texts(paths: object, operator: str) -> list[str]:
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if isinstance(paths, Mapping):
        raise PlanError(
            f"expected a path or several, got the row {dict(paths)!r}; name its column, as in "
            'lambda row: af.read_parquet(row["path"])'
        ).locate(operator=operator)
    texts: list[str] = []
    for path in paths if isinstance(paths, Iterable) and not isinstance(paths, bytes) else [paths]:
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        if not isinstance(text, str) or not text:
            raise PlanError(
                f"{operator}: expected a path, glob, directory or URL, or several of them, got {shown(path)}"
            )
        texts.append(text)
    if not texts:
        raise SourceError("no paths given; name at least one file").locate(operator=operator)
    return texts


def _as_files(filesystem: Any, listed: list[tuple[Any, int | None]]) -> tuple[File, ...]:
    listed = sorted(listed, key=lambda each: each[0].path)
    paths = [info.path for info, _ in listed]
    root = posixpath.commonpath({path.rpartition("/")[0] for path in paths})
    # Not `relpath`, which takes 12 µs a file: with 1,000 files that alone would double the time to the first batch.
    start = len(root) + 1 if root and root != "/" else 0
    is_local = isinstance(filesystem, pafs.LocalFileSystem)
    return tuple(
        File(path, path[start:].lstrip("/"), _size(filesystem, info), found, info.mtime_ns, is_local)
        for path, (info, found) in zip(paths, listed, strict=True)
    )


def _size(filesystem: Any, info: Any) -> int:
    if info.size is not None:
        return int(info.size)
    with filesystem.open_input_file(info.path) as source:  # HTTP servers list no sizes
        return int(source.size())


def _list(
    filesystem: Any, paths: list[str], suffixes: tuple[str, ...], operator: str
) -> list[tuple[Any, int | None]]:
    """Returns what there is to know of each file, and where in its path that begins which was found."""
    found: list[tuple[Any, int | None]] = []
    for path, info in zip(paths, filesystem.get_file_info(paths), strict=True):
        # A directory has no size, and asking for that is 20 times as fast as for the type.
        if info.size is not None or info.type in (pafs.FileType.File, pafs.FileType.Unknown):
            _check_regular(filesystem, info, operator)
            found.append((info, None))
        elif info.type == pafs.FileType.Directory:
            start = len(path.rstrip("/"))
            found += [(each, start) for each in _directory(filesystem, path, suffixes, operator)]
        elif _MAGIC.search(path):  # only now: a file may be called `a[1].parquet`
            start = len(_split_pattern(path)[0].rstrip("/"))
            found += [(each, start) for each in _glob(filesystem, path, suffixes, operator)]
        else:
            raise SourceError(_missing(filesystem, path)).locate(operator=operator, file=path)
    return found


def _check_regular(filesystem: Any, info: Any, operator: str) -> None:
    """Raises `PlanError` for a pipe, socket or device of this machine, which to open may mean to wait for ever."""
    if info.size is None and info.type == pafs.FileType.Unknown and root_of(filesystem) is not None:
        raise PlanError(
            "expected a file, found a pipe, socket or device, which can be read but once; copy what comes from it into "
            "a file, or read it in a from_generator"
        ).locate(operator=operator, file=info.path)


def _directory(filesystem: Any, path: str, suffixes: tuple[str, ...], operator: str) -> list[Any]:
    depth = len(path.rstrip("/")) + 1
    listed = [
        info
        for info in _checked(below(filesystem, path, hidden=False), path)
        if (info.size is not None or info.is_file) and not _is_hidden(info.path[depth:])
    ]
    found = [info for info in listed if info.path.lower().endswith(suffixes)]
    if not found:
        others = f"; it has {len(listed)} other files, a glob such as '*' takes them" if listed else ""
        text = f"the directory has no {' or '.join(suffixes)} files{others}"
        raise SourceError(text).locate(operator=operator, file=path)
    return found


def _glob(filesystem: Any, pattern: str, suffixes: tuple[str, ...], operator: str) -> list[Any]:
    base, rest = _split_pattern(pattern)
    found: dict[str, Any] = {}  # by path: `**` may come to a file by several ways
    for info in _expand(filesystem, base, rest.strip("/").split("/")):
        if info.type == pafs.FileType.File:
            found[info.path] = info
        elif info.type == pafs.FileType.Directory and not rest.endswith("**"):
            found |= {each.path: each for each in _directory(filesystem, info.path, suffixes, operator)}
    if not found:
        raise SourceError("the glob matches no file; check it, and the folder that it starts in").locate(
            operator=operator, file=pattern
        )
    return once(filesystem, found.values())


def _expand(filesystem: Any, base: str, pattern: list[str]) -> Iterator[Any]:
    """Matches one segment of a glob after the other, so that only folders which match are listed."""
    if pattern[0] == "**":
        depth = len(base.rstrip("/")) + 1
        hidden = any(segment.startswith((".", "_")) for segment in pattern)
        for info in _checked(below(filesystem, base, hidden=hidden), base):
            if _matches(info.path[depth:].split("/"), pattern):
                yield info
        return
    selector = pafs.FileSelector(base, allow_not_found=True)
    for info in _checked(filesystem.get_file_info(selector), base):
        if not _matches_name(posixpath.basename(info.path), pattern[0]):
            continue
        if len(pattern) == 1:
            yield info
        elif info.type == pafs.FileType.Directory:
            yield from _expand(filesystem, info.path, pattern[1:])


def _matches(parts: list[str], pattern: list[str]) -> bool:
    if not pattern or not parts:
        return not parts and all(segment == "**" for segment in pattern)
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (not _is_hidden(parts[0]) and _matches(parts[1:], pattern))
    return _matches_name(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _matches_name(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) and (not _is_hidden(name) or pattern[0] == name[0])


def _checked(infos: list[Any], base: str) -> list[Any]:
    """Returns what a folder holds; one in which a writer has not finished is refused, since that may be a part."""
    depth = len(base.rstrip("/")) + 1
    for info in infos:
        is_marker = info.path.endswith(UNFINISHED) and info.base_name == UNFINISHED
        if is_marker and not _is_hidden(posixpath.dirname(info.path[depth:])):
            raise SourceError(
                f"the folder holds a part of a dataset: {UNFINISHED} says that a writer is still moving its files "
                "there, or was interrupted; wait, or write the dataset again with overwrite=True"
            ).locate(file=info.path)
    return infos


def _split_pattern(path: str) -> tuple[str, str]:
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
    selector = pafs.FileSelector(posixpath.dirname(path), allow_not_found=True)
    names = [posixpath.basename(info.path) for info in filesystem.get_file_info(selector)]
    hint = closest(posixpath.basename(path), names) if names else "its folder is missing or empty"
    return f"there is no such file or directory; {hint.replace('known columns', 'the folder has')}"


def _shorten(texts: Sequence[str]) -> str:
    return ", ".join(map(repr, texts[:3])) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")


def _shares_files(filesystem: Any) -> bool:
    """Whether all who open a file get one object, with one place to read from: `memory://` of fsspec."""
    handler = filesystem.handler
    return (
        isinstance(handler, pafs.FSSpecHandler)
        and type(handler.fs).__module__ == "fsspec.implementations.memory"
    )


def _read_at(source: Any, start: int, end: int) -> pa.Buffer:
    source.seek(start)
    return source.read_buffer(end - start)


class _FetchedFile:
    """A read-only file whose fetched bytes are served from memory; what `pa.PythonFile` needs of a file."""

    def __init__(self, source: Fetched) -> None:
        self._source = source
        self._position = 0
        self.closed = False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.file.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> pa.Buffer:
        start, size_bytes = self._position, self._source.file.size
        end = size_bytes if size < 0 else min(start + size, size_bytes)
        self._position = max(start, end)
        if end <= start:
            return pa.py_buffer(b"")
        return self._source.fetch(self._source.file, [(start, end)])[0]

    def close(self) -> None:
        self.closed = True

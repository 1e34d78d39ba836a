"""Turns a user's paths, globs, directories and URLs into one `Store` and its files, in order."""

from __future__ import annotations

import importlib
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from arrowflow.errors import ArrowflowError, PlanError, SourceError, shown, some
from arrowflow.lazy import fs as pafs
from arrowflow.storage import clients
from arrowflow.storage.listing import as_files, list_paths, split_pattern
from arrowflow.storage.local import local_path, on_network
from arrowflow.storage.requests import Requests
from arrowflow.storage.retries import about_credentials
from arrowflow.storage.settings import Settings, failed
from arrowflow.storage.store import File, Store

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")
_CHAIN: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)(://.*)?::")


def resolve(
    paths: object,
    *,
    filesystem: Any = None,
    suffixes: tuple[str, ...],
    operator: str,
    requests: Requests | None = None,
) -> tuple[Store, tuple[File, ...]]:
    """Lists the files that `paths` mean: in the order of `paths`, those of a directory or a glob sorted.

    Args:
        paths: One path, URL, glob (`*`, `?`, `[a-z]`, `**`) or directory, or a sequence of them. In a URL `?`
            starts the query and is no wildcard. Directories and wildcards leave out names that start with `.` or `_`.
            They also leave out pipes, sockets, devices and broken links. Links to folders are followed, but no folder
            is listed twice, and no file comes twice from one of the paths.
        filesystem: A `pyarrow.fs` or fsspec file system, to which all paths then belong; or `Settings` for the client.
        suffixes: Endings of the files that are taken from directories.
        operator: The operator to name in errors.
        requests: The way to ask for bytes; without it nothing is tried again.

    Raises:
        SourceError: A path is missing, a glob or a directory is empty, a file system cannot be reached.
        PlanError: `paths` is no path, or is a pipe, socket or device; or paths belong to different file systems.

    Examples:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in "b.parquet", "a.parquet", "_SUCCESS":
        ...     _ = (folder / name).write_bytes(b"...")
        >>> store, files = resolve(folder, suffixes=(".parquet",), operator="read_parquet")
        >>> [file.relative for file in files]
        ['a.parquet', 'b.parquet']
    """
    wanted = _as_texts(paths, operator)
    opener, requests = _Opener(filesystem, operator), requests or Requests()
    try:
        located = [opener.locate(text) for text in wanted]
        is_own = requests.tries_again and not opener.given
        filesystem = clients.for_reads(opener.filesystem) if is_own else opener.filesystem
        listed = requests.persist(lambda _: list_paths(filesystem, located, suffixes, operator))
    except ArrowflowError as error:
        error.locate(operator=operator)
        raise
    except Exception as error:
        raise opener.failed(f"cannot list {some(wanted)}", wanted[0], error) from error
    files = as_files(filesystem, listed)
    is_network = files[0].is_local and on_network(file.path for file in files)
    if is_network:  # a file in use may change its number there
        files = tuple(replace(file, inode=None) for file in files)
    connections = clients.connections_of(filesystem, is_own=is_own)
    return Store(filesystem, not is_network, is_network, connections, requests), files


def lists_anew(
    paths: object,
    files: tuple[File, ...],
    *,
    store: Store | None,
    filesystem: Any,
    suffixes: tuple[str, ...],
    operator: str,
) -> bool:
    """Returns whether paths now mean other files, or a file has changed.

    Only local files are looked at. Of files in a store a run has to have met a change: to ask takes requests.
    """
    if not all(file.is_local for file in files):
        return store is not None and bool(store.requests.changed)
    try:
        _, found = resolve(paths, filesystem=filesystem, suffixes=suffixes, operator=operator)
    except ArrowflowError:
        return True  # binding will raise this error
    return found != files or [file.mtime_ns for file in found] != [file.mtime_ns for file in files]


def locate(path: object, *, filesystem: Any = None, operator: str) -> tuple[Any, str]:
    """Returns the `pyarrow.fs` file system that a path or URL belongs to, and the path in it; nothing need be there.

    Raises:
        SourceError: The file system cannot be reached.
        PlanError: `path` is not one path.

    Examples:
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
        raise opener.failed(f"cannot reach {text!r}", text, error) from error
    return opener.filesystem, place


class _Opener:
    """Finds the file system of each path; all paths of a source must have the same one."""

    def __init__(self, filesystem: Any, operator: str) -> None:
        self.settings = filesystem if isinstance(filesystem, Settings) else None
        self.given = filesystem is not None and self.settings is None
        self.filesystem: Any = _as_arrow(filesystem, operator) if self.given else None
        self.operator = operator
        self.first = ""
        self._local = pafs.LocalFileSystem()

    def locate(self, text: str) -> str:
        """Returns the path within the file system, keeping wildcards."""
        if self.given:
            return self._strip(text)
        if is_chained(text):
            filesystem, path = self._by_fsspec(text)
            self._same(filesystem, text)
            return path
        if not _URL.match(text):
            if self.filesystem is not self._local:
                self._same(self._local, text)
            return local_path(text, self.operator).replace(os.sep, "/")
        url, mark, query = text.partition("?")
        base, pattern = split_pattern(url)
        filesystem, path = self._from_url(base + mark + query)
        self._same(filesystem, text)
        return posixpath.join(path, unquote(pattern)) if pattern else path

    def failed(self, what: str, address: str, error: Exception) -> ArrowflowError:
        """Returns the error of a storage that failed: of a wrong name in `storage_options`, or of what the client said."""
        text = f"{what}: {about_credentials(str(error))}; check the address, the credentials and the network"
        return failed(SourceError, text, address, self.settings, error).locate(operator=self.operator)

    def _strip(self, text: str) -> str:
        client = clients.fsspec_client(self.filesystem)
        if client is not None:
            return str(client._strip_protocol(text))
        if _URL.match(text):
            parts = urlsplit(text)
            text = unquote(parts.netloc + parts.path)
        if isinstance(self.filesystem, pafs.LocalFileSystem):
            return local_path(text, self.operator).replace(os.sep, "/")
        return text

    def _from_url(self, url: str) -> tuple[Any, str]:
        scheme = url.partition(":")[0]
        if self.settings is not None and self.settings.options:
            return clients.open_with(url, self.settings.options, self.operator) or self._by_fsspec(url)
        if scheme == "hf":  # pyarrow takes fsspec's client, too, and does not name the package
            return self._by_fsspec(url)
        try:
            return clients.open_url(url)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if isinstance(error, pa.ArrowInvalid) and "Unrecognized filesystem type" not in str(error):
                raise
            return self._by_fsspec(url)

    def _by_fsspec(self, url: str) -> tuple[Any, str]:
        options = {} if self.settings is None else self.settings.options
        filesystem, path = clients.open_by_fsspec(url, options, self.operator)
        return _as_arrow(filesystem, self.operator), path

    def _same(self, filesystem: Any, text: str) -> None:
        if self.filesystem is None:
            self.filesystem, self.first = filesystem, text
        elif self.filesystem != filesystem:
            raise PlanError(
                f"{self.operator}: all paths of one source belong to one file system, but {self.first!r} and "
                f"{text!r} do not; read them as two sources and concatenate these"
            )


def is_chained(text: str) -> bool:
    """Whether an address is a chain of fsspec: an archive or a cache, `::`, and the address of what is in it.

    Examples:
        >>> is_chained("zip://*.csv::https://host/a.zip"), is_chained("simplecache::s3://b/a.csv"), is_chained("a::b")
        (True, True, False)
    """
    found = _CHAIN.match(text)
    if found is None or found[2] is not None:
        return found is not None
    try:
        known = importlib.import_module("fsspec").available_protocols()
    except ImportError:
        return "://" in text
    return found[1] in known


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
    if hasattr(paths, "read"):
        raise PlanError(
            f"{operator}: expected a path or several, got the open file {shown(paths)}: give its path"
        )
    if isinstance(paths, Set):  # which has no order of its own
        paths = sorted(paths, key=str)
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

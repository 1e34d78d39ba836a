"""The targets of shards: a half-written dataset never looks whole.

* **On the local file system** shards are written into a hidden folder beside the target. Each shard is flushed to the
  disk, and the folder takes the target's name in one step. A listing of the target shows nothing, the old content, or
  all of the new. With `overwrite` the old folder is renamed away right before: between these two steps there is no
  target. If another writer has then taken the name, its dataset is replaced, too: the last writer to finish is seen.
* **Elsewhere** (object stores) no step moves a folder. Shards are written below a hidden prefix of the target. When
  all shards exist, a marker named `_UNFINISHED` is put, the old shards are deleted, and the new shards are moved to
  their names. The removal of the marker makes them visible. Until then `read_parquet` and its kind refuse the target;
  other readers do not know the marker. Two writers to one target at the same time are not told apart there.

A killed process leaves a folder that readers skip (`.writing-…`, `_writing-…`), or the marker. At worst, between the
two renames of an overwrite, it also leaves the old dataset under the name `.replaced-…`. The next writer of a local
folder clears this up: `leftovers.py`.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

import pyarrow as pa

from arrowflow.caching.store.claim import Claim
from arrowflow.errors import ArrowflowError, WriteError, counted
from arrowflow.lazy import fs as pafs
from arrowflow.storage import (
    UNFINISHED,
    Settings,
    about_credentials,
    below,
    flush,
    forget_listings,
    is_link,
    is_of_client,
    locate,
    without_secrets,
    wrong_settings,
)
from arrowflow.write import leftovers

logger = logging.getLogger("arrowflow")

_KEPT_BY_WRITERS: Final = re.compile(r"(^|/)(_[^/]*|\.[^/]*\.crc|\.DS_Store)$")
"""Names of files that other writers and file managers put beside shards, and that are deleted with the shards."""


class Target(Protocol):
    """A folder to write. Used by one thread."""

    @property
    def path(self) -> str:
        """The name of the folder in errors."""

    def failed(self, error: Exception) -> ArrowflowError | None:
        """Returns the error to tell in place of one that is not of this library; None if it is not of the file system."""

    def check(self) -> None:
        """Checks the existing content, and makes nothing.

        Raises:
            WriteError: There is content that must not be replaced, or the folder cannot be written.
        """

    def begin(self) -> None:
        """Checks again, and makes the hidden place for shards.

        Raises:
            WriteError: As for `check`.
        """

    def open(self, name: str) -> Any:
        """Opens a new shard for writing; the caller closes it. The name may begin with folders."""

    def seal(self, name: str) -> None:
        """Called once a shard is complete and closed."""

    def publish(self, names: Sequence[str]) -> tuple[str, ...]:
        """Makes all shards visible at once, and returns their paths."""

    def discard(self) -> None:
        """Removes hidden shards that are not published. Called at most once, after any error. Raises nothing."""


def target_of(
    path: str | os.PathLike[str], *, filesystem: Any, suffix: str, overwrite: bool, operator: str
) -> Target:
    """Returns the target of a path or URL; makes nothing yet.

    Raises:
        PlanError: `path` is no path.
        SourceError: The file system cannot be reached.
    """
    found, place = locate(path, filesystem=filesystem, operator=operator)
    if isinstance(found, pafs.LocalFileSystem):
        return LocalFolder(place, suffix=suffix, overwrite=overwrite)
    place_of_options = filesystem if isinstance(filesystem, Settings) else None
    address = os.fspath(path)
    return RemoteFolder(
        found, place, suffix=suffix, overwrite=overwrite, address=address, settings=place_of_options
    )


class LocalFolder(Target):
    """A folder of this machine's file system."""

    def __init__(self, path: str, *, suffix: str, overwrite: bool) -> None:
        self._path = Path(os.path.realpath(path))  # unlike `resolve`, it does not fail on links in a circle
        self._suffix = suffix
        self._overwrite = overwrite
        self._staging: Path | None = None
        self._claim: Claim | None = None
        self._replaced: list[Path] = []
        self._filesystem = pafs.LocalFileSystem()

    @property
    def path(self) -> str:
        return str(self._path)

    def failed(self, error: Exception) -> ArrowflowError | None:
        is_known = isinstance(error, OSError | pa.ArrowException)
        return _not_written(_said(error), self.path) if is_known else None

    def check(self) -> None:
        if os.path.ismount(self._path):
            raise WriteError(
                "a file system is mounted there, whose root no folder can replace; name a folder below it"
            ).locate(file=self.path)
        check_free(self._filesystem, self.path, self._suffix, overwrite=self._overwrite)

    def begin(self) -> None:
        self.prepare()
        self._staging, self._claim = leftovers.begin(self._path)

    def prepare(self) -> None:
        """Checks as `check` does, and clears up what dead writers have left beside the target."""
        self.check()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        leftovers.sweep(self._path, self._is_replaceable)
        self.check()

    def open(self, name: str) -> Any:
        file = self._hidden / name
        file.parent.mkdir(parents=True, exist_ok=True)
        return self._filesystem.open_output_stream(str(file), compression=None)

    def seal(self, name: str) -> None:
        # A name must never exist before its content is on the disk.
        flush(self._hidden / name)

    def publish(self, names: Sequence[str]) -> tuple[str, ...]:
        for folder in sorted(_folders(names), reverse=True):  # those inside come first
            flush(self._hidden / folder)
        self.take(self._hidden)
        leftovers.end(self._hidden, self._claim)
        return tuple(str(self._path / name) for name in names)

    def take(self, folder: Path) -> None:
        """Gives a folder beside the target, whose content is on the disk, the target's name.

        Of several overwriting writers each takes the name, and the last one keeps it. After an error `discard` gives
        it back.

        Raises:
            WriteError: There is content that must not be replaced.
        """
        while True:
            if self._overwrite:
                self._take_away()
            try:
                folder.rename(self._path)
                break
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
                if not self._overwrite:
                    raise WriteError("somebody else has written there meanwhile; nothing was changed").locate(
                        file=self.path
                    ) from error
                # Another writer was faster, and has finished: its content is replaced, too.
        with suppress(OSError):  # the dataset is visible and whole in any case
            flush(self._path.parent)
        for replaced in self._replaced:
            leftovers.remove(replaced)

    def discard(self) -> None:
        """Removes the shards; renamed content comes back, unless other content has its place."""
        for replaced in reversed(self._replaced):
            with suppress(OSError):
                replaced.rename(self._path)
                continue
            if self._is_replaceable(replaced):
                leftovers.remove(replaced)
            else:
                logger.warning("%s: what was there lies in %r now", self._path, str(replaced))
        if self._staging is not None:
            leftovers.end(self._staging, self._claim)

    @property
    def _hidden(self) -> Path:
        assert self._staging is not None
        return self._staging

    def _take_away(self) -> None:
        """Renames existing content away, and then checks it: under its new name nobody can add to it."""
        replaced = self._path.with_name(leftovers.REPLACED + leftovers.new_name(self._path))
        self._replaced.append(replaced)
        try:
            self._path.rename(replaced)
        except FileNotFoundError:
            self._replaced.pop()
            return
        self._check_shards(replaced)

    def _check_shards(self, folder: Path) -> None:
        path = str(folder)
        _check_shards(self._filesystem, below(self._filesystem, path), path, self._suffix, named=self.path)

    def _is_replaceable(self, folder: Path) -> bool:
        try:
            self._check_shards(folder)
        except (OSError, pa.ArrowException):
            return False
        return True


class RemoteFolder(Target):
    """A folder of another file system."""

    def __init__(
        self,
        filesystem: Any,
        path: str,
        *,
        suffix: str,
        overwrite: bool,
        address: str,
        settings: Settings | None,
    ) -> None:
        self._filesystem = filesystem
        self._address, self._settings = address, settings
        self._is_reached = False
        self._path = filesystem.normalize_path(path).rstrip("/")
        self._suffix = suffix
        self._overwrite = overwrite
        self._staging = f"{self._path}/_writing-{os.urandom(8).hex()}"
        self._marker = f"{self._path}/{UNFINISHED}"
        self._names: list[str] = []
        self._is_marked = self._has_deleted = self._is_published = False

    @property
    def path(self) -> str:
        return self._path

    def failed(self, error: Exception) -> ArrowflowError | None:
        if (wrong := wrong_settings(self._address, self._settings, error)) is not None:
            return wrong
        is_known = isinstance(error, OSError | pa.ArrowException) or is_of_client(error)
        if self._is_reached and not is_known:
            return None
        text = about_credentials(_said(error))
        if not self._is_reached:  # any error is one of the client
            text = f"{text}; check the address, the credentials, storage_options= and the network"
        return _not_written(without_secrets(text, self._settings), self._path)

    def check(self) -> None:
        forget_listings(self._filesystem)
        check_free(self._filesystem, self._path, self._suffix, overwrite=self._overwrite)

    def begin(self) -> None:
        self.check()
        self._filesystem.create_dir(self._staging, recursive=True)

    def open(self, name: str) -> Any:
        folder, inside, _ = name.rpartition("/")
        if inside:
            self._filesystem.create_dir(f"{self._staging}/{folder}", recursive=True)
        opened = self._filesystem.open_output_stream(f"{self._staging}/{name}", compression=None)
        self._is_reached = True
        return opened

    def seal(self, name: str) -> None:
        """Does nothing: a store has an object once the object is closed, and not before."""

    def publish(self, names: Sequence[str]) -> tuple[str, ...]:
        filesystem = self._filesystem
        forget_listings(filesystem)
        check_free(filesystem, self._path, self._suffix, overwrite=self._overwrite, but=self._staging)
        self._is_marked = True
        with filesystem.open_output_stream(self._marker) as marker:
            marker.write(b"A writer is moving files here, or was interrupted while it did.\n")
        listed = _listed(filesystem, self._path, but=self._staging)
        for path in [info.path for info in listed if info.is_file and info.base_name != UNFINISHED]:
            self._has_deleted = True
            filesystem.delete_file(path)
        for folder in sorted(_folders(names) - {""}):
            filesystem.create_dir(f"{self._path}/{folder}", recursive=True)
        for name in names:
            self._names.append(name)
            filesystem.move(f"{self._staging}/{name}", f"{self._path}/{name}")
        with suppress(FileNotFoundError):  # stores without folders lose the prefix with its last object
            filesystem.delete_dir(self._staging)
        filesystem.delete_file(self._marker)
        self._is_published = True
        return tuple(f"{self._path}/{name}" for name in names)

    def discard(self) -> None:
        """Removes the shards; the marker stays if the remaining content may not be whole."""
        if self._is_published:
            return
        moved = [f"{self._path}/{name}" for name in self._names]
        for path in moved:
            with suppress(Exception):
                self._filesystem.delete_file(path)
        with suppress(Exception):
            self._filesystem.delete_dir(self._staging)
        if self._is_marked and not self._has_deleted and not self._any_left(moved):
            with suppress(Exception):
                self._filesystem.delete_file(self._marker)

    def _any_left(self, paths: list[str]) -> bool:
        try:
            return any(info.is_file for info in self._filesystem.get_file_info(paths))
        except Exception:  # noqa: BLE001  (whatever a file system of others raises: it cannot tell)
            return True


def _not_written(text: str, path: str) -> ArrowflowError:
    return WriteError(f"cannot write: {text}; nothing of it is visible").locate(file=path)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:500]}"


def check_free(filesystem: Any, path: str, suffix: str, *, overwrite: bool, but: str = "") -> None:
    """Raises `WriteError` if existing content forbids to write a dataset; a folder `but` inside does not count.

    With `overwrite` files with this suffix may be replaced.
    """
    (info,) = filesystem.get_file_info([path])
    if info.type in (pafs.FileType.File, pafs.FileType.Unknown):
        raise WriteError(
            "there is a file of that name, where a folder of shards is to be made; remove it, or choose another path"
        ).locate(file=path)
    listed = _listed(filesystem, path, but=but)
    if listed and not overwrite:
        count = sum(info.is_file for info in listed)
        raise WriteError(
            f"expected a path that is free, found a folder of {counted(count, 'file')}; pass overwrite=True to "
            f"replace {'it' if count == 1 else 'them'}, or choose another path"
        ).locate(file=path)
    _check_shards(filesystem, listed, path, suffix)


def _check_shards(
    filesystem: Any, listed: list[Any], path: str, suffix: str, *, named: str | None = None
) -> None:
    """Raises `WriteError` if there are files besides shards in what a folder holds; errors may call it `named`."""
    found = [info.path[len(path) :] for info in listed if info.is_file or is_link(filesystem, info.path)]
    foreign = [each for each in found if not each.endswith(suffix) and not _KEPT_BY_WRITERS.search(each)]
    if foreign:
        place = path if named is None else named
        raise WriteError(
            f"overwrite=True replaces folders of {suffix} files alone, and there is {place + foreign[0]!r}; remove "
            "it yourself, or choose another path"
        ).locate(file=place)


def _folders(names: Sequence[str]) -> set[str]:
    """Returns the folders of files, those around them, and `""` for the target itself."""
    return {str(folder).lstrip(".") for name in names for folder in PurePosixPath(name).parents}


def _listed(filesystem: Any, path: str, *, but: str) -> list[Any]:
    infos = below(filesystem, path)
    return [info for info in infos if not but or not f"{info.path}/".startswith(f"{but}/")]

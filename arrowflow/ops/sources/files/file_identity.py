"""The identity of files and of their versions: file system, path, size, and time or etag."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Final

import pyarrow as pa

from arrowflow.errors import SourceError, without_credentials
from arrowflow.formats.capabilities import Untyped
from arrowflow.formats.protocol import Footer, Format
from arrowflow.kernels.context import Context
from arrowflow.lazy import fs as pafs
from arrowflow.plan.change import Change
from arrowflow.plan.node import Unknown
from arrowflow.storage import File, Store, told_stamp
from arrowflow.storage.clients import fsspec_client

_ENDPOINTS: Final = (
    *("endpoint_url", "endpoint_override", "region", "host", "port", "account_name", "base_url"),
    *("url", "fo", "fs", "path", "target_protocol", "target_options", "remote_protocol"),
    *("remote_options", "org", "repo", "sha", "ref"),
)
"""Settings of file systems that decide whose files a path means. Credentials do not decide that."""

_NO_STAMP: Final = "has neither a time nor an etag in its file system, so nothing tells when it changes"


def files_identity(store: Store, files: Sequence[File]) -> dict[str, Any]:
    """Returns the identity of files. Asks file systems only for facts that their listings left out.

    Examples:
        >>> found = files_identity(Store(pafs.LocalFileSystem()), [File("/a/b.csv", "b.csv", 9, mtime_ns=5)])
        >>> found["files"]
        (['/a/b.csv'], [9], [5])
    """
    paths = [file.path if file.is_local else without_credentials(file.path) for file in files]
    stamps = [_stamp(store, file) for file in files]
    found: dict[str, Any] = {"file_system": system_identity(store.filesystem)}
    found["files"] = (paths, [file.size for file in files], stamps)
    archive = _archive_of(store)
    if archive is not None:
        found["archive"] = _archive_stamp(archive)
    silent = [path for path, stamp in zip(paths, stamps, strict=True) if stamp is None]
    if silent:
        found["stamps"] = Unknown(f"the file {silent[0]!r}", _NO_STAMP)
    return found


def files_added(now: Mapping[str, Any], then: Mapping[str, Any]) -> Change | None:
    """Returns the change of a source that has more files after those of a state; None where there are no more."""
    old, files = then.get("files"), now["files"]
    if not isinstance(old, int) or not 0 < old < files:
        return None
    return Change(
        arguments={**now, "files": old, "sources": now["sources"][:old]},
        effect=f"has {files - old:,} new files after its {old:,} old ones, and the rest of the epoch has their rows too",
        repeats=False,
    )


def _stamp(store: Store, file: File) -> int | str | None:
    client = fsspec_client(store.filesystem) if file.mtime_ns is None else None
    return file.mtime_ns if client is None else told_stamp(_info(client, file.path))


def _info(filesystem: Any, path: str) -> Mapping[str, Any]:
    try:
        return dict(filesystem.info(path))
    except Exception as error:
        raise SourceError(f"cannot ask whether the file has changed: {error}").locate(file=path) from error


def _archive_of(store: Store) -> Any:
    """Returns the file, opened by fsspec, of an archive that is the file system; None where it is no archive."""
    inner = getattr(getattr(store.filesystem, "handler", None), "fs", None)
    while inner is not None and not hasattr(inner, "fo"):
        inner = getattr(inner, "fs", None)  # a folder in an archive
    return None if inner is None else getattr(inner, "of", inner.fo)


def _archive_stamp(archive: Any) -> Any:
    """Returns the identity of an archive, which changes with its contents."""
    if not hasattr(archive, "fs") or not hasattr(archive, "path"):
        return Unknown(
            "the archive", "is an open file, which nothing tells from others", instead="pass its path"
        )
    info = _info(archive.fs, archive.path)
    stamp = told_stamp(info)
    if stamp is None:
        return Unknown(f"the archive {archive.path!r}", _NO_STAMP)
    return (_fsspec_identity(archive.fs), archive.path, info.get("size"), stamp)


def system_identity(filesystem: Any) -> tuple[Any, ...]:
    """Returns the identity of a file system: it differs where the same paths mean other files.

    Examples:
        >>> system_identity(pafs.LocalFileSystem())
        ('local',)
    """
    if isinstance(filesystem, pafs.SubTreeFileSystem):
        return ("subtree", filesystem.base_path, *system_identity(filesystem.base_fs))
    if isinstance(filesystem, pafs.LocalFileSystem):
        return ("local",)
    if isinstance(filesystem, pafs.PyFileSystem):
        return _fsspec_identity(getattr(filesystem.handler, "fs", filesystem.handler))
    arguments = filesystem.__reduce__()[1]
    settings = next((each for each in arguments if isinstance(each, dict)), {})
    return (str(filesystem.type_name), *_settings_identity(settings))


def _fsspec_identity(filesystem: Any) -> tuple[Any, ...]:
    kind = type(filesystem)
    given = getattr(filesystem, "storage_args", ())
    names = list(inspect.signature(kind.__init__).parameters)[1:] if given else []
    settings = {**dict(zip(names, given, strict=False)), **getattr(filesystem, "storage_options", {})}
    more = settings.get("client_kwargs") or {}
    return (f"{kind.__module__}.{kind.__qualname__}", *_settings_identity({**settings, **more}))


def _settings_identity(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((name, _told_setting(settings[name])) for name in _ENDPOINTS if settings.get(name))


def _told_setting(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _settings_identity(value)
    if hasattr(value, "storage_options"):
        return _fsspec_identity(value)
    if isinstance(value, str | PathLike | int):
        return without_credentials(str(value))
    return type(value).__qualname__  # an open file: see `_archive_stamp`


def dataset_identity(dataset: Any) -> dict[str, Any]:
    """Returns the identity of a `pyarrow.dataset.Dataset`: its files, and how they are read."""
    module = sys.modules["pyarrow.dataset"]
    found: dict[str, Any] = {
        "kind": type(dataset).__name__,
        "schema": dataset.schema,
        "scan": getattr(dataset, "_scan_options", None),
    }
    if isinstance(dataset, module.UnionDataset):
        children = [dataset_identity(child) for child in dataset.children]
        # Each entry is checked alone, since only that finds an unknown one.
        named = {
            f"{number} {key}": value for number, child in enumerate(children) for key, value in child.items()
        }
        return {**found, **named}
    if not isinstance(dataset, module.FileSystemDataset):
        what = f"a dataset of type {type(dataset).__name__}"
        return {**found, "stamps": Unknown(what, "has no files to be known by", instead="pass it as a table")}
    store = Store(dataset.filesystem)
    unfiltered = dataset.replace_schema(dataset.schema)
    unfiltered._scan_options = {}  # pyarrow shows no fragments of a dataset with a filter
    infos = dataset.filesystem.get_file_info(dataset.files)
    files = [File(info.path, info.path, info.size or 0, mtime_ns=info.mtime_ns) for info in infos]
    parts = [
        (each.path, str(each.partition_expression), _row_groups(each)) for each in unfiltered.get_fragments()
    ]
    return {**found, **files_identity(store, files), "format": dataset.format, "fragments": parts}


def _row_groups(fragment: Any) -> list[int] | None:
    """Returns the row groups of a Parquet file's fragment, for which Arrow reads the footer, once."""
    try:
        groups = getattr(fragment, "row_groups", None)
    except (pa.ArrowException, OSError):  # the reader of the file will report it
        return None
    return None if groups is None else [group.id for group in groups]


def knows_footer(first: Footer | None, format: Format, store: Store) -> bool:
    """Returns whether the footer that a plan was bound by still holds: it is whole, and its file has not changed.

    A local file is looked at. Of others the fetches of their splits tell a change, where a listing gave the time.
    """
    if first is None or isinstance(format, Untyped):
        return False
    if store.is_local:
        return not first.file.is_changed
    return not store.is_python and first.file.mtime_ns is not None


def versions_in_run(files: tuple[File, ...], context: Context) -> dict[str, str | None]:
    """Returns the etags or times of files as a run first met them, which all kernels of the run share."""
    found: dict[str, str | None] = context.run_storage.setdefault((versions_in_run, id(files)), {})
    return found

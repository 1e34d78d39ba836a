"""The clients that this library makes, and how many connections a client has."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa

from arrowflow.errors import MissingPackageError
from arrowflow.lazy import fs as pafs

CONNECTIONS: Final = 128
"""Connections of a client that this library makes: for 64 calls that read footers, and 64 that read data. Connections are
made when they are needed."""

LEAST_CONNECTIONS_OF_S3: Final = 25
"""Connections of pyarrow's S3 client, if Arrow has no more I/O threads at the time when the client is made."""

CONNECTIONS_OF_S3FS: Final = 10

_NAMES_OF_S3FS: Final = {
    "access_key": "key",
    "secret_key": "secret",
    "session_token": "token",
    "anonymous": "anon",
    "endpoint_override": "endpoint_url",
}

_TAR: Final = re.compile(r"\.t(?:ar\.)?(gz|bz2?|xz)$")
_CODECS_OF_TAR: Final = {"gz": "gzip", "bz": "bz2", "bz2": "bz2", "xz": "xz"}
"""Ends of the names of tar archives, and fsspec's names of the codecs."""

GCS_SECONDS: Final = 5
"""Seconds for which the client of Google's storage tries each request again. By default it looks for credentials for more
than a minute."""


def open_url(url: str) -> tuple[Any, str]:
    """Returns pyarrow's client for a URL, and the path in it; raises as `pyarrow.fs.FileSystem.from_uri` does."""
    parts = urlsplit(url)
    if parts.scheme in {"gs", "gcs"} and "retry_limit_seconds" not in dict(parse_qsl(parts.query)):
        url += f"{'&' if parts.query else '?'}retry_limit_seconds={GCS_SECONDS}"
    filesystem, path = pafs.FileSystem.from_uri(url)
    return filesystem, str(path)


def open_with(url: str, options: Mapping[str, Any]) -> tuple[Any, str] | None:
    """Returns pyarrow's client for a URL with these arguments, and the path in it; None if it has no such client."""
    parts = urlsplit(url)
    query: dict[str, Any] = dict(parse_qsl(parts.query))
    place = unquote(parts.netloc.rpartition("@")[2] + parts.path)
    try:
        if parts.scheme == "file":
            return pafs.FileSystem.from_uri(url)
        if parts.scheme == "s3":
            settings = {"region": None, **query, **options}
            made = pafs.S3FileSystem(**settings)  # which asks no network, unlike the region of a bucket
            if settings["region"] is None and "endpoint_override" not in settings:
                with suppress(OSError):
                    region = pafs.resolve_s3_region(place.partition("/")[0])
                    made = pafs.S3FileSystem(**{**settings, "region": region})
            return made, place
        if parts.scheme in {"gs", "gcs"}:
            return pafs.GcsFileSystem(
                **{"retry_time_limit": timedelta(seconds=GCS_SECONDS), **options}
            ), place
        if parts.scheme == "hdfs":
            return pafs.HadoopFileSystem(parts.hostname or "default", parts.port or 0, **options), parts.path
    except (TypeError, AttributeError):  # it has no such argument, or this pyarrow no such client
        return None
    return None


def open_by_fsspec(url: str, options: Mapping[str, Any], operator: str) -> tuple[Any, str]:
    """Returns the client of fsspec for a URL, which may be a chain such as `zip://a.csv::s3://…`, and the path in it.

    Raises:
        MissingPackageError: The client needs a package that is not installed.
    """
    schemes = [each.partition("://")[0] for each in url.split("::")]
    settings = {name: dict(each) if isinstance(each, dict) else each for name, each in options.items()}
    for number, scheme in enumerate(schemes):
        if scheme in {"s3", "s3a"}:
            own = settings if number == 0 else settings.setdefault(scheme, {})
            own["config_kwargs"] = {"max_pool_connections": CONNECTIONS, **(own.get("config_kwargs") or {})}
        elif scheme == "tar" and (codec := _codec_of_tar(url.split("::")[number + 1 :])) is not None:
            settings.setdefault(scheme, {}).setdefault(
                "compression", codec
            )  # fsspec takes it by this name alone
    try:
        return cast("tuple[Any, str]", importlib.import_module("fsspec.core").url_to_fs(url, **settings))
    except ImportError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        package = (getattr(cause, "name", None) or "fsspec").partition(".")[0]
        raise MissingPackageError(
            f"{'::'.join(f'{scheme}://' for scheme in schemes)} needs the package {package}, which cannot be imported "
            f"({str(error) or cause}): pip install {package}, or pass filesystem="
        ).locate(operator=operator) from error


def _codec_of_tar(links: Sequence[str]) -> str | None:
    """Returns the codec of a tar archive by the end of its name: fsspec knows the long endings alone, and of copies none."""
    name = next((link for link in links if "://" in link), links[-1] if links else "")
    found = _TAR.search(name.partition("?")[0].lower())
    return None if found is None else _CODECS_OF_TAR[found[1]]


def unknown_names(address: str, options: Mapping[str, Any], error: BaseException) -> str | None:
    """Returns which names of settings the client of an address does not know, and those that it knows.

    None if an error does not come from such a name.
    """
    if "unexpected keyword argument" not in str(error):
        return None
    scheme = address.partition("://")[0].rpartition("::")[2]
    try:
        client = importlib.import_module("fsspec").get_filesystem_class(scheme)
    except (ImportError, ValueError):
        return None
    arguments = [
        each for kind in client.__mro__ for each in inspect.signature(kind.__init__).parameters.values()
    ]
    known = {each.name for each in arguments if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    known -= {"self", "fs", "asynchronous", "loop"}
    if scheme in {"s3", "s3a"}:
        known |= {*_NAMES_OF_S3FS, "scheme", "region"}
    wrong = [name for name in options if name not in known]
    if not wrong:
        return None
    return (
        f"storage_options has {', '.join(map(repr, wrong))}, which the client of {scheme}:// does not know; its names are "
        f"{', '.join(sorted(known))}"
    )


def as_s3fs(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments of pyarrow's client of S3 as those of s3fs, and all other arguments as they are.

    Examples:
        >>> as_s3fs({"access_key": "AKIA", "endpoint_override": "host:9000", "scheme": "http", "region": "eu"})
        {'key': 'AKIA', 'endpoint_url': 'http://host:9000', 'client_kwargs': {'region_name': 'eu'}}
    """
    given = dict(options)
    scheme, region = given.pop("scheme", "https"), given.pop("region", None)
    made = {_NAMES_OF_S3FS.get(name, name): value for name, value in given.items()}
    endpoint = made.get("endpoint_url")
    if isinstance(endpoint, str) and "://" not in endpoint:
        made["endpoint_url"] = f"{scheme}://{endpoint}"
    if region is not None:
        made["client_kwargs"] = {"region_name": region, **(made.get("client_kwargs") or {})}
    return made


def for_reads(filesystem: Any) -> Any:
    """Returns the client of a URL for reads that this library tries again: with connections for all of its calls.

    A client of S3 that tries again by itself waits for up to a second first, and nobody can count that.
    """
    if filesystem.type_name != "s3":
        return filesystem
    (settings,) = filesystem.__reduce__()[1]
    # A client has as many connections as Arrow has I/O threads at the moment when it is made.
    threads = pa.io_thread_count()
    pa.set_io_thread_count(max(threads, CONNECTIONS))
    try:
        return pafs.S3FileSystem(**settings, retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1))
    finally:
        pa.set_io_thread_count(threads)


def connections_of(filesystem: Any, *, is_own: bool) -> int | None:
    """Returns the most connections that a client opens; None if there is no such number, or nobody knows.

    Args:
        filesystem: The `pyarrow.fs.FileSystem`.
        is_own: Whether `for_reads` made it.

    Examples:
        >>> connections_of(pafs.LocalFileSystem(), is_own=True) is None
        True
    """
    if filesystem.type_name == "s3":
        return CONNECTIONS if is_own else max(pa.io_thread_count(), LEAST_CONNECTIONS_OF_S3)
    client = fsspec_client(filesystem)
    if type(client).__module__.partition(".")[0] == "s3fs":
        found = client.config_kwargs.get("max_pool_connections", CONNECTIONS_OF_S3FS)
        return found if isinstance(found, int) else None
    return None


def forget_listings(filesystem: Any) -> None:
    """Makes a client of fsspec forget the listings that it keeps, in which files of other writers are missing."""
    client = fsspec_client(filesystem)
    if client is not None:
        client.invalidate_cache()


def fsspec_client(filesystem: Any) -> Any:
    """Returns the file system of fsspec behind one of pyarrow, or None."""
    handler = getattr(filesystem, "handler", None)
    return handler.fs if isinstance(handler, pafs.FSSpecHandler) else None

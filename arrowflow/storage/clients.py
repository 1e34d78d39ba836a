"""The clients that this library makes, and how many connections a client has."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa

from arrowflow.errors import MissingPackageError, PlanError, closest
from arrowflow.lazy import fs as pafs
from arrowflow.storage.retries import CLIENTS, causes

CONNECTIONS: Final = 128
"""Connections of a client that this library makes: for 64 calls that read footers, and 64 that read data. Connections are
made when they are needed."""

_NAMES_OF_S3FS: Final = {
    "access_key": "key",
    "secret_key": "secret",
    "session_token": "token",
    "anonymous": "anon",
    "endpoint_override": "endpoint_url",
}

_TEXTS_OF_S3FS: Final = ("key", "secret", "token", "endpoint_url", "region", "region_name")
"""Arguments of s3fs that are texts. botocore says of other values neither the name nor the type."""

_UNKNOWN: Final = re.compile(
    r"(?:([\w.]+)\(\) )?got (?:an )?unexpected keyword argument '(\w+)'", re.IGNORECASE
)
"""The words of Python and of botocore for an argument that a function does not have: the function, and the argument."""

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


def open_with(url: str, options: Mapping[str, Any], operator: str) -> tuple[Any, str] | None:
    """Returns pyarrow's client for a URL with these arguments, and the path in it; None if it has no such client.

    Raises:
        PlanError: An argument has a value that its client does not take.
    """
    parts = urlsplit(url)
    query: dict[str, Any] = dict(parse_qsl(parts.query))
    path = unquote(parts.netloc.rpartition("@")[2] + parts.path)
    if parts.scheme == "file":
        return pafs.FileSystem.from_uri(url)
    if parts.scheme == "s3":
        settings = {"region": None, **query, **options}
        made = _made("S3FileSystem", settings, options, operator, {"region": None})  # asks no network
        if made is not None and settings["region"] is None and "endpoint_override" not in settings:
            with suppress(OSError):
                region = pafs.resolve_s3_region(path.partition("/")[0])
                made = pafs.S3FileSystem(**{**settings, "region": region})
    elif parts.scheme in {"gs", "gcs"}:
        settings = {"retry_time_limit": timedelta(seconds=GCS_SECONDS), **options}
        made = _made("GcsFileSystem", settings, options, operator, {"anonymous": True})
    elif parts.scheme == "hdfs":
        path = parts.path
        settings = {"host": parts.hostname or "default", "port": parts.port or 0, **options}
        made = _made("HadoopFileSystem", settings, options, operator, None)
    else:
        return None
    return None if made is None else (made, path)


def _made(
    kind: str,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    operator: str,
    alone: Mapping[str, Any] | None,
) -> Any:
    """Returns a client of `pyarrow.fs`; None if it has no such argument, or this pyarrow no such client.

    Beside the arguments `alone` each of the user's `options` can be tried by itself, without a network; none if it is None.
    """
    make: Callable[..., Any] | None = getattr(pafs, kind, None)
    if make is None:
        return None
    try:
        return make(**settings)
    except (TypeError, AttributeError, KeyError) as error:
        if isinstance(error, TypeError) and _UNKNOWN.search(str(error)):
            return None
        name, refusal = _refused(make, {} if alone is None else options, alone or {}) or (None, error)
        place = "storage_options" if name is None else f"storage_options[{name!r}]"
        got = "" if name is None else f", got {type(options[name]).__name__}"
        expected = (
            "expected a string"
            if "expected bytes" in str(refusal)
            else f"expected a value that pyarrow.fs.{kind} takes ({refusal})"
        )
        raise PlanError(f"{operator}: {place}: {expected}{got}; give one, or leave it out") from error


def _refused(
    make: Callable[..., Any], options: Mapping[str, Any], alone: Mapping[str, Any]
) -> tuple[str, Exception] | None:
    """Returns the first argument that a client refuses by itself, and its error."""
    for name, value in options.items():
        try:
            make(**{**alone, name: value})
        except ValueError:  # such as one key without the other
            continue
        except Exception as error:  # noqa: BLE001  (whatever it raises, it refuses the value)
            return name, error
    return None


def open_by_fsspec(url: str, options: Mapping[str, Any], operator: str) -> tuple[Any, str]:
    """Returns the client of fsspec for a URL, which may be a chain such as `zip://a.csv::s3://…`, and the path in it.

    For S3 the options may also be those of pyarrow's client.

    Raises:
        MissingPackageError: The client needs a package that is not installed.
        PlanError: An option has a value of a wrong type.
    """
    schemes = [each.partition("://")[0] for each in url.split("::")]
    settings = {name: dict(each) if isinstance(each, dict) else each for name, each in options.items()}
    for number, scheme in enumerate(schemes):
        given = settings if number == 0 else settings.get(scheme, {})
        place = "storage_options" if number == 0 else f"storage_options[{scheme!r}]"
        _check_types(given, place, operator, is_s3=scheme in {"s3", "s3a"})
        if scheme in {"s3", "s3a"}:
            own = as_s3fs(given)
            own["config_kwargs"] = {"max_pool_connections": CONNECTIONS, **(own.get("config_kwargs") or {})}
            settings = own if number == 0 else {**settings, scheme: own}
        elif scheme == "tar" and (codec := _codec_of_tar(url.split("::")[number + 1 :])) is not None:
            settings.setdefault(scheme, {}).setdefault(
                "compression", codec
            )  # fsspec takes it by this name alone
    try:
        return cast("tuple[Any, str]", importlib.import_module("fsspec.core").url_to_fs(url, **settings))
    except ImportError as error:
        *_, cause = causes(error)
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


def _check_types(options: Any, place: str, operator: str, *, is_s3: bool) -> None:
    """Raises `PlanError` for options whose types clients tell in no words of a user."""
    wanted = [(place, options, "mapping from names to values")] if not isinstance(options, Mapping) else []
    for name, value in options.items() if isinstance(options, Mapping) else ():
        if value is None:
            continue
        if name.endswith("_kwargs") and not isinstance(value, Mapping):
            wanted.append((f"{place}[{name!r}]", value, "mapping from names to values"))
        if is_s3 and _NAMES_OF_S3FS.get(name, name) in _TEXTS_OF_S3FS and not isinstance(value, str):
            wanted.append((f"{place}[{name!r}]", value, "string"))
        if is_s3 and name == "client_kwargs":
            _check_types(value, f"{place}[{name!r}]", operator, is_s3=True)
    for where, value, kind in wanted:
        raise PlanError(
            f"{operator}: {where}: expected a {kind}, got {type(value).__name__}; give one, or leave it out"
        )


def unknown_names(address: str, options: Mapping[str, Any], error: BaseException) -> str | None:
    """Returns which names of settings the client of an address does not know, and those that it knows.

    Called for each error of a client, whose first request finds such a name. None if an error does not come from one.
    """
    said = next((found for each in causes(error) if (found := _UNKNOWN.search(str(each)))), None)
    place = None if said is None else _place_of(said[2], options)
    if said is None or place is None:
        return None
    call, name = said.groups()
    schemes = [each.partition("://")[0] for each in address.split("::")]
    scheme = place[0] if place and place[0] in schemes[1:] else schemes[0]
    known = _names_of_call(call)
    given, who = options, f"the client of {scheme}://"
    for each in place:
        given = given[each]
    if place in ((), (scheme,)):
        known |= _names_of_client(scheme)
    elif call is not None:
        who = call
    elif place[-1] == "config_kwargs" and "botocore.config" in sys.modules:
        known |= set(sys.modules["botocore.config"].Config.OPTION_DEFAULTS)
    others = [each for each in given if each != name and each not in known] if known else []
    where = "storage_options" + "".join(f"[{each!r}]" for each in place)
    hint = f"{closest(name, known)} " if known else ""
    text = f"{where} has {', '.join(map(repr, [name, *others]))}, which {who} does not know; "
    if not known:
        return f"{text}leave it out"
    hint = f"{hint}Its" if hint.startswith("did you mean") else "its"
    return f"{text}{hint} names are {', '.join(sorted(known))}"


def _place_of(name: str, options: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Returns the names of the mappings around an option; None if there is no such option."""
    if name in options:
        return ()
    for outer, inner in options.items():
        found = _place_of(name, inner) if isinstance(inner, Mapping) else None
        if found is not None:
            return (outer, *found)
    return None


def _names_of_client(scheme: str) -> set[str]:
    """Returns the arguments of the client of fsspec for a scheme, and for S3 those of pyarrow's."""
    try:
        client = importlib.import_module("fsspec").get_filesystem_class(scheme)
    except (ImportError, ValueError):
        return set()
    known = {name for kind in client.__mro__ for name in _arguments_of(kind.__init__)}
    return known | {*_NAMES_OF_S3FS, "scheme", "region"} if scheme in {"s3", "s3a"} else known


def _names_of_call(call: str | None) -> set[str]:
    """Returns the arguments of a function of a client's package, by its name in an error; none if it is not found."""
    if call is None:
        return set()
    for name, module in list(sys.modules.items()):
        found: Any = module if CLIENTS.match(name) else None
        for part in call.split("."):
            found = None if found is None else getattr(found, part, None)
        if callable(found):
            return set(_arguments_of(found))
    return set()


def _arguments_of(function: Any) -> Iterable[str]:
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    # These the library gives, or the client itself.
    given = ("self", "fs", "asynchronous", "loop", "method", "str_or_url")
    return [each.name for each in found if each.kind in named and each.name not in given]


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

    `is_own` tells whether `for_reads` made the client.

    Examples:
        >>> connections_of(pafs.LocalFileSystem(), is_own=True) is None
        True
    """
    if filesystem.type_name == "s3":
        # pyarrow's client has as many as Arrow has I/O threads when it is made, and at least 25.
        return CONNECTIONS if is_own else max(pa.io_thread_count(), 25)
    client = fsspec_client(filesystem)
    if type(client).__module__.partition(".")[0] == "s3fs":
        found = client.config_kwargs.get("max_pool_connections", 10)
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

"""The failures of a storage that may pass, and the times at which a failed read is tried again.

A wait doubles from one try to the next, and is drawn at random, so that readers which failed together do not come back
together. Nothing here is a part of the data: retries change neither a value nor an order.
"""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar, cast

from arrowflow.clock import WallClock
from arrowflow.errors import ArrowflowError, SourceError
from arrowflow.options import RETRIES, RETRY_DEADLINE_SECONDS

T = TypeVar("T")

FIRST_PAUSE_SECONDS: Final = 0.1
LAST_PAUSE_SECONDS: Final = 10.0
"""The longest wait before the first retry, and before any other."""

REQUEST_SECONDS: Final = 30.0
"""The time that a request may take. A read of a client of fsspec may take longer while other reads of its store go on."""

SHORT_RETRIES: Final = 3
"""Retries of a read that got fewer bytes than it asked for. If all get fewer, the file itself is shorter."""

RATE: Final = 20.0
BURST: Final = 100
"""Retries a second of a whole store, and how many may come at once. A store that is down is asked no more often."""

CUT_SHORT: Final = "cut short"

_PASSING_STATUS: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_LASTING_STATUS: Final = (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)

_PASSING_ERRNO: Final = re.compile(
    r"EAGAIN|EWOULDBLOCK|EBUSY|EREMOTEIO|EIO|ECONN\w+|EPIPE|ETIMEDOUT|ENETDOWN|ENETUNREACH|EHOSTUNREACH"
)
"""Names of errors of the system. s3fs makes EBUSY of 503, and EREMOTEIO of 500."""

_REFUSED: Final = re.compile(
    r"ACCESS_DENIED|SIGNATURE_DOES_NOT_MATCH|INVALID_ACCESS_KEY|PERMISSION_DENIED|[Cc]redential|access token|[Ff]orbidden"
)
"""Words of a refusal, which another try would meet again."""

_EXPIRED: Final = re.compile(
    r"ExpiredToken|RequestExpired|[Tt]oken (?:has |is )?expired|[Cc]redentials? (?:has|have) expired"
)
"""The names that S3, Google's storage and Azure have for credentials whose time is over."""
_SILENT: Final = re.compile(r"\[Errno 22\] Bad Request$")
"""The text of s3fs for an HTTP 400 without a reason."""
_STATUS: Final = re.compile(r"HTTP status (?:code )?(\d{3})")
_TEXTS: Final = {
    "time-out": r"curlCode: 28|[Tt]imed? ?out|REQUEST_TIMEOUT|DEADLINE_EXCEEDED",
    "lost connection": r"NETWORK_CONNECTION|[Cc]onnection (?:was )?(?:reset|closed|refused|aborted)",
    "HTTP 503": r"SLOW_DOWN|SERVICE_UNAVAILABLE|THROTTLING|UNAVAILABLE|[Rr]educe your request rate",
    "HTTP 500": r"INTERNAL_FAILURE|INTERNAL_ERROR",
    CUT_SHORT: r"XML_ERROR_PARSING",  # of a listing
}
"""Words of `pyarrow.fs`, whose errors have no class of their own."""

_LOST: Final = re.compile(
    r"Connect|Disconnect|Timeout|Payload|Incomplete|Streaming|Protocol|ServiceRe|Unavailable"
)
"""Parts of the names of exceptions by which client libraries say that a connection failed."""

CLIENTS: Final = re.compile(
    r"(?:adlfs|aiobotocore|aiohttp|aiohttp_retry|asyncio|azure|botocore|fsspec|gcsfs|google|http|httpx|huggingface_hub"
    r"|paramiko|requests|s3fs|socket|ssl|urllib|urllib3)(?:\.|$)"
)
"""Packages whose exceptions are about storage or the network, as the starts of the names of their modules."""


def is_of_client(error: BaseException) -> bool:
    """Whether an exception has a class of a client's package."""
    return CLIENTS.match(type(error).__module__) is not None


class ShortRead(SourceError):
    """A read got fewer bytes than it asked for."""

    of_data = False


def passing(error: BaseException) -> str | None:
    """Returns what failed, in a word or two, if another try may help; None if it would fail in the same way.

    Examples:
        >>> passing(ConnectionResetError("reset by peer")), passing(PermissionError("no")), passing(ValueError("bad"))
        ('lost connection', None, None)
        >>> passing(OSError("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response body."))
        'HTTP 503'
    """
    if isinstance(error, ShortRead):
        return CUT_SHORT
    chain = list(causes(error))
    if any(isinstance(each, ArrowflowError | PermissionError) for each in chain):
        return None
    status = status_of(error)
    if status is not None:
        is_passing = status in _PASSING_STATUS or (status >= 500 and status not in _LASTING_STATUS)
        return f"HTTP {status}" if is_passing else None
    if isinstance(chain[-1], FileNotFoundError):
        return None
    return next((word for each in chain if (word := _word_of(each)) is not None), None)


def about_credentials(text: str) -> str:
    """Returns the text of a client's error, and what it says of credentials.

    Answers to `HEAD` have no body with a reason, and of expired credentials their status is 400.

    Examples:
        >>> about_credentials("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation: No response body.")[-48:]
        '(the credentials may have expired, or are wrong)'
        >>> about_credentials("Unable to parse ExceptionName: ExpiredToken Message: The provided token has expired.")[-44:]
        '(the credentials have expired: get new ones)'
    """
    if _EXPIRED.search(text):
        return f"{text} (the credentials have expired: get new ones)"
    found = _STATUS.search(text)
    is_silent = found is not None and found[1] == "400" and "AWS Error UNKNOWN" in text
    is_silent = is_silent or _SILENT.search(text) is not None
    return f"{text} (the credentials may have expired, or are wrong)" if is_silent else text


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status that an exception, or a cause of it, tells; None if none does."""
    return next((found for each in causes(error) if (found := _status_of(each)) is not None), None)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception, the cause of it, and so on."""
    found: BaseException | None = error
    for _ in range(8):
        if found is not None:
            yield found
            found = found.__cause__


def _status_of(error: BaseException) -> int | None:
    """Returns the HTTP status that an exception of a client tells in one of the usual ways."""
    for place in (error, getattr(error, "response", None)):
        if isinstance(place, dict):
            told: list[Any] = [place.get("ResponseMetadata", {}).get("HTTPStatusCode")]
        else:
            # The `code` of aiohttp is also of errors that no server sent.
            is_aiohttp = type(place).__module__.startswith("aiohttp")
            names = ("status",) if is_aiohttp else ("status", "status_code", "code")
            told = [getattr(place, name, None) for name in names]
        found = next((each for each in told if isinstance(each, int) and 400 <= each < 600), None)
        if found is not None:
            return found
    text = _STATUS.search(str(error)) if isinstance(error, OSError) else None
    return None if text is None else int(text[1])


def _word_of(error: BaseException) -> str | None:
    text = str(error)
    if _REFUSED.search(text):
        return None
    if isinstance(error, TimeoutError):
        return "time-out"
    if isinstance(error, ConnectionError):
        return "lost connection"
    if isinstance(error, OSError):
        if _PASSING_ERRNO.fullmatch(errno.errorcode.get(error.errno or 0, "")):
            return "busy or unreachable"
        word = next((word for word, pattern in _TEXTS.items() if re.search(pattern, text)), None)
        if word is not None:
            return word
    names = [each.__name__ for each in type(error).__mro__ if CLIENTS.match(each.__module__)]
    return "lost connection" if any(map(_LOST.search, names)) else None


class Services(Protocol):
    """The questions of a read to the code that runs it: a run, or its planning. Any thread; no lock held."""

    def now(self) -> float:
        """Returns the time in seconds, by the clock of the run."""

    def wait(self, seconds: float) -> bool:
        """Waits at most so long; returns whether to go on: the run may be closed meanwhile."""

    def retried(self, why: str) -> None:
        """Is told what failed, once for each retry."""

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Makes calls beside each other; returns their results in order, or raises the first error."""

    def hedged(self, call: Callable[[], Any], seconds: float) -> Any:
        """Makes a call, and once more beside it if it takes longer; returns what comes first."""


class Alone(Services):
    """Services where nobody runs anything: calls come one after the other, and nothing is tried again."""

    now = staticmethod(WallClock.now)

    def wait(self, seconds: float) -> bool:
        return False

    def retried(self, why: str) -> None:
        pass

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return [call() for call in calls]

    def hedged(self, call: Callable[[], Any], seconds: float) -> Any:
        return call()


class Bucket:
    """The tokens for retries of one store. A race between threads may give one token twice, which is no harm."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = float("-inf")

    def delay(self, now: float) -> float:
        """Takes a token, and returns the seconds until it is there."""
        at = max(self._next, now - BURST / RATE)
        self._next = at + 1 / RATE
        return max(0.0, at - now)

    def __reduce__(self) -> tuple[type[Bucket], tuple[()]]:
        return Bucket, ()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long reads of one store are tried again.

    Attributes:
        retries: The most retries of a read.
        deadline_seconds: The most seconds that a read may take with all its retries.
        hedge_seconds: Seconds after which a request is made a second time beside the first one; None for never.
        bucket: The tokens of the store.
    """

    retries: int = RETRIES
    deadline_seconds: float = RETRY_DEADLINE_SECONDS
    hedge_seconds: float | None = None
    bucket: Bucket = field(default_factory=Bucket, compare=False, repr=False)

    def persist(self, request: Callable[[float], T], services: Services) -> T:
        """Makes a request until it succeeds, or no other try may help or is allowed; then raises what it raised last.

        Args:
            request: Is given the seconds that it may take. Its waiting for others on the line, beyond these
                seconds, is no part of the deadline.
            services: Where it waits, and who is told.
        """
        spent, failures = 0.0, 0
        while True:
            limit = min(REQUEST_SECONDS, max(self.deadline_seconds - spent, FIRST_PAUSE_SECONDS))
            began = services.now()
            try:
                if self.hedge_seconds is None:
                    return request(limit)
                return cast(T, services.hedged(partial(request, limit), self.hedge_seconds))
            except Exception as error:
                why = passing(error)
                failures += 1
                if why is None or failures > (
                    min(SHORT_RETRIES, self.retries) if why == CUT_SHORT else self.retries
                ):
                    raise
                now = services.now()
                longest = min(FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1), LAST_PAUSE_SECONDS)
                pause = max(self.bucket.delay(now), random.uniform(longest / 2, longest))
                spent += min(now - began, limit) + pause
                if spent >= self.deadline_seconds or not services.wait(pause):
                    raise
            services.retried(why)

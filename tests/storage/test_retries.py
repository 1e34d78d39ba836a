"""Which failures may pass, and when a read is tried again."""

from __future__ import annotations

import errno
import pickle
from typing import Any

import pytest

from arrowflow.errors import SchemaError, SourceError
from arrowflow.storage.retries import (
    BURST,
    LAST_PAUSE_SECONDS,
    RATE,
    REQUEST_SECONDS,
    SHORT_RETRIES,
    Alone,
    Bucket,
    Patience,
    ShortRead,
    passing,
)
from tests.storage.services import Services

pytestmark = pytest.mark.any_version


class Answers:
    """A request with given answers, of which the last one comes for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.limits: list[float] = []

    def __call__(self, seconds: float) -> Any:
        answer = self.answers[min(len(self.limits), len(self.answers) - 1)]
        self.limits.append(seconds)
        if isinstance(answer, Exception):
            raise answer
        return answer


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("as aiohttp says it")
        self.status = status


class BotoError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("as botocore says it")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


ARROW = "AWS Error {} during GetObject operation: {}"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TimeoutError("no answer"), "time-out"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "lost connection"),
        (OSError(errno.EBUSY, "Slow down"), "busy or unreachable"),
        (HttpError(503), "HTTP 503"),
        (HttpError(429), "HTTP 429"),
        (BotoError(500), "HTTP 500"),
        (caused(FileNotFoundError("http://host/a"), HttpError(502)), "HTTP 502"),
        (
            OSError(ARROW.format("NETWORK_CONNECTION", "curlCode: 56, Failure when receiving data")),
            "lost connection",
        ),
        (OSError(ARROW.format("NETWORK_CONNECTION", "curlCode: 28, Timeout was reached")), "time-out"),
        (OSError(ARROW.format("SLOW_DOWN", "Please reduce your request rate.")), "HTTP 503"),
        (OSError(ARROW.format("UNKNOWN (HTTP status 503)", "No response body.")), "HTTP 503"),
        (OSError(ARROW.format("INTERNAL_FAILURE", "Failed to flush response stream")), "HTTP 500"),
        (OSError("google::cloud::Status(UNAVAILABLE: Retry policy exhausted)"), "HTTP 503"),
        (ShortRead("expected 9 bytes"), "cut short"),
        (
            OSError(
                "AWS Error UNKNOWN (HTTP status -1) during ListObjectsV2 operation: XML_ERROR_PARSING_ELEMENT"
            ),
            "cut short",
        ),
        (HttpError(404), None),
        (HttpError(403), None),
        (BotoError(416), None),
        (HttpError(501), None),
        (PermissionError("Forbidden"), None),
        (FileNotFoundError("gone"), None),
        (caused(FileNotFoundError("gone"), BotoError(404)), None),
        (OSError(ARROW.format("ACCESS_DENIED", "Access Denied")), None),
        (OSError("google::cloud::Status(UNAVAILABLE: Could not create a OAuth2 access token)"), None),
        (OSError(errno.ENOSPC, "No space left on device"), None),
        (ValueError("bad digit"), None),
        (SourceError("the file is corrupt"), None),
        (SchemaError("column 'a' is missing"), None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_may_pass(error: Exception, why: str | None) -> None:
    assert passing(error) == why


@pytest.mark.parametrize("module", ["aiohttp.client_exceptions", "botocore.exceptions"])
def test_clients_say_that_connections_failed(module: str) -> None:
    errors = pytest.importorskip(module)
    if module.startswith("aiohttp"):
        assert passing(errors.ClientPayloadError("Response payload is not completed")) == "lost connection"
        assert passing(errors.ServerDisconnectedError()) == "lost connection"
        assert passing(errors.InvalidURL("x")) is None
    else:
        assert passing(errors.EndpointConnectionError(endpoint_url="http://host")) == "lost connection"
        assert passing(errors.NoCredentialsError()) is None


def test_a_request_is_made_until_it_succeeds() -> None:
    hand = Services()
    request = Answers(TimeoutError(), ConnectionResetError(), b"data")
    assert Patience().persist(request, hand) == b"data"
    assert hand.told == ["time-out", "lost connection"]
    first, second = hand.pauses
    assert 0.05 <= first <= 0.1 <= second <= 0.2
    assert request.limits == [REQUEST_SECONDS] * 3


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_so_many_retries(retries: int) -> None:
    hand, error = Services(), TimeoutError("the last one")
    request = Answers(*[TimeoutError()] * retries, error)
    with pytest.raises(TimeoutError) as caught:
        Patience(retries).persist(request, hand)
    assert caught.value is error
    assert len(request.limits) == retries + 1
    assert hand.told == ["time-out"] * retries


@pytest.mark.parametrize("error", [PermissionError("403"), FileNotFoundError("404"), SourceError("bad data")])
def test_what_another_try_would_meet_again_raises_at_once(error: Exception) -> None:
    hand, request = Services(), Answers(error)
    with pytest.raises(type(error)):
        Patience().persist(request, hand)
    assert (len(request.limits), hand.pauses) == (1, [])


def test_the_deadline_counts_all_tries() -> None:
    hand, request = Services(), Answers(TimeoutError())
    with pytest.raises(TimeoutError):
        Patience(retries=1000, deadline_seconds=60).persist(request, hand)
    assert 40 < hand.time <= 60
    assert all(pause <= LAST_PAUSE_SECONDS for pause in hand.pauses)
    assert request.limits[0] == REQUEST_SECONDS > request.limits[-1], "what is left of the deadline"


def test_what_a_slow_line_takes_is_no_part_of_the_deadline() -> None:
    """A request that waited for others for ten minutes may fail, and is made again."""
    hand, answers = Services(), Answers(ConnectionResetError(), b"data")

    def slow(limit: float) -> object:
        hand.time += 600
        return answers(limit)

    assert Patience(deadline_seconds=60).persist(slow, hand) == b"data"
    assert hand.told == ["lost connection"]


@pytest.mark.parametrize("retries", [0, 1, 20])
def test_a_file_that_is_shorter_is_not_asked_for_long(retries: int) -> None:
    hand, request = Services(), Answers(ShortRead("expected 9 bytes, got 5"))
    with pytest.raises(ShortRead):
        Patience(retries).persist(request, hand)
    assert hand.told == ["cut short"] * min(retries, SHORT_RETRIES)


def test_a_run_that_ends_ends_the_wait() -> None:
    hand, request = Services(goes_on=False), Answers(TimeoutError())
    with pytest.raises(TimeoutError):
        Patience().persist(request, hand)
    assert len(request.limits) == len(hand.pauses) == 1


def test_nothing_is_tried_again_where_nobody_can_wait() -> None:
    request = Answers(TimeoutError(), b"data")
    with pytest.raises(TimeoutError):
        Patience().persist(request, Alone())


def test_a_store_that_is_down_is_asked_so_often_and_no_more() -> None:
    """Whatever number of reads fail, all retries of a store share its tokens."""
    hand, seconds = Services(), 30.0
    patience = Patience(retries=10**6, deadline_seconds=seconds)
    tries = 0
    for _ in range(100):
        hand.time, request = 0.0, Answers(TimeoutError())
        with pytest.raises(TimeoutError):
            patience.persist(request, hand)
        tries += len(hand.told)
        hand.told.clear()
    assert tries <= BURST + seconds * RATE


def test_tokens_come_back() -> None:
    bucket = Bucket()
    assert max(bucket.delay(0.0) for _ in range(BURST)) == 0.0
    assert 0.0 < bucket.delay(0.0) + bucket.delay(0.0) <= 2 / RATE
    assert bucket.delay(100.0) == 0.0


def test_requests_are_hedged_only_if_asked_for() -> None:
    for hedge_seconds, told in ((None, []), (0.5, ["hedged after 0.5 s"])):
        hand = Services()
        assert Patience(hedge_seconds=hedge_seconds).persist(Answers(b"data"), hand) == b"data"
        assert hand.told == told


def test_patience_pickles() -> None:
    patience = Patience(3, 5.0)
    assert pickle.loads(pickle.dumps(patience)) == patience

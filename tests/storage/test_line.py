"""A request that hangs is told from a slow line, on an event loop whose clock goes on when nothing else is to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Iterator
from typing import Any

import pytest

from arrowflow.storage.requests import LOOK_SECONDS, Line
from arrowflow.storage.retries import REQUEST_SECONDS

pytestmark = pytest.mark.any_version

MEGABYTE = 1 << 20


class Selector(selectors.SelectSelector):
    """Does not wait, and says so."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._at = Selector()
        super().__init__(self._at)

    def time(self) -> float:
        return self._at.now


class Client:
    """A client whose requests share a line of so many bytes a second: all that begin together end together.

    Those of the file "hangs" never end, and take no part of it. Those of the file "fails" raise at their end.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.on_their_way = 0

    async def _cat_ranges(
        self, paths: list[str], starts: list[int], ends: list[int], *, on_error: str
    ) -> list[bytes]:
        assert on_error == "raise"
        if paths == ["hangs"]:
            await asyncio.Future()
        self.on_their_way += ends[0] - starts[0]
        await asyncio.sleep(0)  # the others begin
        await asyncio.sleep(self.on_their_way / self.rate)
        self.on_their_way = 0
        if paths == ["fails"]:
            raise ConnectionResetError
        return [b"some bytes"]


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def asked(
    loop: Loop, line: Line, client: Client, *paths: str, num_bytes: int = MEGABYTE
) -> list[tuple[object, float]]:
    """Asks for bytes of each file at the same time; returns what came, or the type of the error, and when."""

    async def one(path: str) -> tuple[object, float]:
        try:
            (found,) = await line.cat_ranges(client, path, 0, num_bytes, REQUEST_SECONDS)
            return found, loop.time()
        except (TimeoutError, ConnectionResetError) as error:
            return type(error), loop.time()

    async def all_of_them() -> list[tuple[object, float]]:
        return list(await asyncio.gather(*map(one, paths)))

    return loop.run_until_complete(all_of_them())


def test_requests_that_share_a_slow_line_are_not_cut(loop: Loop) -> None:
    """One takes 10 s alone, and a hundred at a time take 1,000 s, in which none ends."""
    line, client = Line(), Client(MEGABYTE / 10)
    for _ in range(20):
        asked(loop, line, client, "a")
    assert asked(loop, line, client, *["a"] * 100) == [(b"some bytes", 1_200)] * 100


def test_a_line_is_taken_for_slow_at_first(loop: Loop) -> None:
    """32 MiB, which a run asks for at first."""
    found = asked(loop, Line(), Client(MEGABYTE), *["hangs"] * 32)
    # Those that are cut are no longer on their way.
    assert found[0] == (TimeoutError, REQUEST_SECONDS + 2 * 32)
    assert all(what is TimeoutError for what, _ in found)


def test_a_line_that_turns_out_fast_cuts_sooner(loop: Loop) -> None:
    found = asked(loop, Line(), Client(100 * MEGABYTE), "hangs", *["a"] * 100)
    assert found[1:] == [(b"some bytes", 1)] * 100
    assert found[0][0] is TimeoutError
    assert REQUEST_SECONDS < found[0][1] < REQUEST_SECONDS + LOOK_SECONDS


def test_small_requests_tell_nothing_of_the_line(loop: Loop) -> None:
    """The delay takes most of their time."""
    line = Line()
    for _ in range(100):
        asked(loop, line, Client(100.0), "a", num_bytes=100)
    began = loop.time()
    assert asked(loop, line, Client(1.0), "hangs") == [(TimeoutError, began + REQUEST_SECONDS + 2)]
    began = loop.time()
    assert asked(loop, line, Client(1.0), "hangs", num_bytes=100) == [(TimeoutError, began + REQUEST_SECONDS)]


@pytest.mark.parametrize("path", ["fails", "hangs"])
def test_what_fails_or_hangs_makes_no_line_slower(loop: Loop, path: str) -> None:
    line = Line()
    for _ in range(3):
        asked(loop, line, Client(MEGABYTE / 10), path)
    began = loop.time()
    assert asked(loop, line, Client(MEGABYTE), "hangs") == [(TimeoutError, began + REQUEST_SECONDS + 2)]


def test_a_pause_of_the_consumer_makes_no_line_slower(loop: Loop) -> None:
    line, client = Line(), Client(MEGABYTE)
    asked(loop, line, client, "a")
    loop.run_until_complete(asyncio.sleep(1e6))
    began = loop.time()
    assert asked(loop, line, client, "hangs") == [(TimeoutError, began + REQUEST_SECONDS + 2)]


def test_one_that_is_cut_ends(loop: Loop) -> None:
    line = Line()
    asked(loop, line, Client(1.0), "hangs")
    assert not asyncio.all_tasks(loop)
    assert line._on_their_way == 0

"""A request that hangs is told from a slow line, on an event loop whose clock goes on when nothing else is to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Iterator
from typing import Any

import pytest

from arrowflow.storage.line import Line
from arrowflow.storage.retries import REQUEST_SECONDS

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


def asked(loop: Loop, line: Line, client: Client, *paths: str) -> list[tuple[object, float]]:
    """Asks for a megabyte of each file at the same time; returns what came, or the type of the error, and when."""

    async def one(path: str) -> tuple[object, float]:
        try:
            (found,) = await line.cat_ranges(client, path, 0, MEGABYTE, REQUEST_SECONDS)
            return found, loop.time()
        except (TimeoutError, ConnectionResetError) as error:
            return type(error), loop.time()

    async def all_of_them() -> list[tuple[object, float]]:
        return list(await asyncio.gather(*map(one, paths)))

    return loop.run_until_complete(all_of_them())


def test_requests_that_share_a_slow_line_are_not_cut(loop: Loop) -> None:
    """One takes 10 s alone, and a hundred at a time take 1,000 s, in which none ends."""
    line, client = Line(), Client(MEGABYTE / 10)
    asked(loop, line, client, "a")
    assert asked(loop, line, client, *["a"] * 100) == [(b"some bytes", 1_010)] * 100


def test_where_nothing_ever_came_a_request_hangs_after_its_seconds(loop: Loop) -> None:
    assert asked(loop, Line(), Client(MEGABYTE), *["hangs"] * 3) == [(TimeoutError, REQUEST_SECONDS)] * 3


def test_what_fails_is_nothing_that_came(loop: Loop) -> None:
    line = Line()
    asked(loop, line, Client(MEGABYTE / 10), "fails")
    assert asked(loop, line, Client(MEGABYTE / 10), "hangs") == [(TimeoutError, 10 + REQUEST_SECONDS)]


def test_one_that_hangs_may_take_twice_the_time_that_the_line_needs(loop: Loop) -> None:
    line, client = Line(), Client(MEGABYTE)
    asked(loop, line, client, *["a"] * 20)
    found = asked(loop, line, client, "hangs", "a", "a")
    assert found == [(TimeoutError, 20 + REQUEST_SECONDS + 2), (b"some bytes", 22), (b"some bytes", 22)]


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

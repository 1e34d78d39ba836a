"""A proxy in front of an HTTP server: it counts requests, and delays, refuses, cuts and resets them by a plan."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Self

Fault = Literal["busy", "unavailable", "error", "reset", "lost", "cut", "short", "hang", "expired"]

_BLOCK_BYTES: Final = 1 << 18
_STATUS: Final = {
    "busy": "429 Too Many Requests",
    "unavailable": "503 Slow Down",
    "error": "500 Internal Server Error",
    "expired": "400 Bad Request",
}
_BODY: Final = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{}</Code><Message>{}</Message><RequestId>1</RequestId></Error>'
_BUSY: Final = _BODY.format("SlowDown", "Please reduce your request rate.").encode()
_EXPIRED: Final = _BODY.format("ExpiredToken", "The provided token has expired.").encode()


@dataclass(frozen=True, slots=True)
class Request:
    """One request that came.

    Attributes:
        method: `GET`, `HEAD`, `PUT`, …
        target: Path and query.
        range: The value of the header `Range`, such as `bytes=0-99`; empty without one.
        number: Its place among all requests, from 0.
        attempt: How often the same request came before.
    """

    method: str
    target: str
    range: str
    number: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Fate:
    """Says what happens to a request.

    Attributes:
        fault: `busy` answers 429, `unavailable` 503, `error` 500, `expired` 400 as S3 does to expired credentials. `reset` breaks the connection before an answer,
            `lost` does so once the server has done what it was asked for, `cut` ends it in the middle of the body, `short`
            announces and sends half of the body, `hang` never answers. None forwards the request and its answer.
        delay_seconds: The time before anything is answered.
    """

    fault: Fault | None = None
    delay_seconds: float = 0.0


Plan = Callable[[Request], Fate]


def sound(request: Request) -> Fate:
    return Fate()


@dataclass(frozen=True, slots=True)
class Seeded:
    """A plan by chance, the same for a seed however requests overlap.

    Attributes:
        seed: Another one gives faults to other requests.
        delay_seconds: The delay of each request.
        shares: The share of each fault among all requests.
        methods: The methods that may fail.

    Example:
        >>> plan = Seeded(7, shares={"unavailable": 0.01, "cut": 0.005})
        >>> plan(Request("GET", "/bucket/a", "", 0, 0))
        Fate(fault=None, delay_seconds=0.0)
    """

    seed: int
    delay_seconds: float = 0.0
    shares: dict[Fault, float] = field(default_factory=dict)
    methods: tuple[str, ...] = ("GET", "HEAD")

    def __call__(self, request: Request) -> Fate:
        """Draws the fate of a request by its text and by how often it came."""
        key = f"{self.seed} {request.method} {request.target} {request.range} {request.attempt}"
        drawn = random.Random(key).random()
        if request.method in self.methods:
            for fault, share in self.shares.items():
                if drawn < share:
                    return Fate(fault, self.delay_seconds)
                drawn -= share
        return Fate(None, self.delay_seconds)


class Proxy:
    """Forwards HTTP requests from a port on loopback to a server; use it as a context manager.

    Attributes:
        plan: What happens to each request; may be set at any time.
        requests: The requests so far, in the order in which they came.
        faults: How often each fault was made.
        max_in_flight: The most requests that waited for an answer at the same time.
    """

    def __init__(self, backend: tuple[str, int], plan: Plan = sound) -> None:
        self.plan = plan
        self.requests: list[Request] = []
        self.faults: Counter[str] = Counter()
        self.max_in_flight = 0
        self.port = 0
        self._backend = backend
        self._in_flight = 0
        self._attempts: Counter[tuple[str, str, str]] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="proxy of a test", daemon=True)
        self._started = threading.Event()
        self._stopped: asyncio.Event | None = None
        self._hanging = asyncio.Event()
        self._talks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        """Breaks all connections and ends the thread."""
        assert self._stopped is not None
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._loop.close()

    def let_go(self) -> None:
        """Breaks the connections of all requests that hang."""
        self._loop.call_soon_threadsafe(lambda: self._hanging.set())

    def forget(self) -> None:
        self.requests, self.faults, self.max_in_flight = [], Counter(), 0
        self._attempts = Counter()

    def count(self, method: str = "", part: str = "") -> int:
        """Returns how many requests of a method came; only those whose target has `part`."""
        return sum(1 for each in self.requests if each.method.startswith(method) and part in each.target)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())

    async def _listen(self) -> None:
        self._stopped = asyncio.Event()
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=_BLOCK_BYTES, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stopped.wait()
        server.close()
        await asyncio.sleep(0)  # who has just come enters `_talks` in this turn of the loop
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await asyncio.sleep(0)  # sockets of aborted connections are closed in the next turn

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        try:
            while await self._answered(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client is gone, or the test is over
        finally:
            self._talks.discard(talk)
            writer.transport.abort()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; returns whether the connection lives on."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, headers = _parsed(head)
        method, target = first.split(" ")[:2]
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = self._noted(method, target, headers.get("range", ""))
        self._in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self._in_flight)
        try:
            fate = self.plan(request)
            if fate.delay_seconds:
                await asyncio.sleep(fate.delay_seconds)
            if fate.fault is not None:
                self.faults[fate.fault] += 1
            return await self._met(fate, request, _forwarded(head), body, writer)
        finally:
            self._in_flight -= 1

    def _noted(self, method: str, target: str, range_: str) -> Request:
        key = (method, target, range_)
        request = Request(*key, len(self.requests), self._attempts[key])
        self._attempts[key] += 1
        self.requests.append(request)
        return request

    async def _met(
        self, fate: Fate, request: Request, head: bytes, body: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        fault = fate.fault
        if fault == "hang":
            await self._hanging.wait()
            return False
        if fault == "reset":
            _reset(writer)
            return False
        if fault in _STATUS:
            body = _EXPIRED if fault == "expired" else _BUSY
            sent = b"" if request.method == "HEAD" else body
            writer.write(
                f"HTTP/1.1 {_STATUS[fault]}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + sent
            )
            await writer.drain()
            return True
        return await self._forward(fault, request, head + body, writer)

    async def _forward(
        self, fault: str | None, request: Request, data: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        """Passes a request on, and its answer back: all of it, or half of its body."""
        source, sink = await asyncio.open_connection(*self._backend, limit=_BLOCK_BYTES)
        try:
            sink.write(data)
            await sink.drain()
            first, headers = _parsed(await source.readuntil(b"\r\n\r\n"))
            if fault == "lost":
                _reset(writer)
                return False
            status = first.split(" ", 1)[1]
            size = int(headers["content-length"]) if "content-length" in headers else None
            has_body = request.method != "HEAD" and status[:3] not in {"204", "304"}
            if size is not None and has_body and fault in {"cut", "short"}:
                wanted = size // 2
                headers["content-length"] = str(size if fault == "cut" else wanted)
            else:
                wanted = -1 if size is None else size
            headers.pop("connection", None)
            ends = (has_body and size is None) or fault == "cut"
            if ends:
                headers["connection"] = "close"
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1"))
            if has_body:
                await _copy(source, writer, wanted)
            await writer.drain()
            return not ends
        finally:
            sink.transport.abort()


async def _copy(source: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
    """Copies so many bytes, or all if the number is negative."""
    while size:
        block = await source.read(_BLOCK_BYTES if size < 0 else min(size, _BLOCK_BYTES))
        if not block:
            break
        size -= len(block) if size > 0 else 0
        writer.write(block)
        await writer.drain()


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


def _forwarded(head: bytes) -> bytes:
    """Returns the head of a request for a connection of its own."""
    lines = [
        line
        for line in head.rstrip(b"\r\n").split(b"\r\n")
        if not line.lower().startswith((b"connection:", b"expect:"))
    ]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


def _reset(writer: asyncio.StreamWriter) -> None:
    """Breaks a connection so that the other side reads ECONNRESET."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

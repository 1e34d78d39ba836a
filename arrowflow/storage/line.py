"""`Line`: tells a request that hangs from one that has to wait for others. For the asynchronous clients of fsspec.

Requests that share a line may all take minutes, and end at the same time. So each may take twice the time that the line needs
for all bytes on their way, as fast as it was so far, and then some seconds more. Small requests, of which the delay takes most,
tell nothing of the line.
"""

from __future__ import annotations

from typing import Any, Final

LARGE_BYTES: Final = 1 << 20
"""Requests of so many bytes count."""

FIRST_BYTES, FIRST_SECONDS = 4 << 20, 4.0
"""The rate of a line before it is measured: 1 MiB a second."""

LOOK_SECONDS: Final = 5.0
"""A request that waits looks so often how fast the line is by now."""


class Line:
    """The line to a store. Only the thread of the clients' event loop changes it."""

    __slots__ = ("_came", "_on_their_way", "_seconds", "_since")

    def __init__(self) -> None:
        self._came, self._seconds = FIRST_BYTES, FIRST_SECONDS
        self._on_their_way = 0
        self._since = 0.0  # when the first of what is on its way was asked for, or the latest came

    async def cat_ranges(self, client: Any, path: str, start: int, end: int, seconds: float) -> list[bytes]:
        """Returns a range as the client's `cat_ranges` does; raises `TimeoutError` if the request hangs."""
        import asyncio  # 30 ms; fsspec has imported it by now

        now = asyncio.get_running_loop().time
        began, size = now(), end - start if end - start >= LARGE_BYTES else 0
        if not self._on_their_way:
            self._since = began
        self._on_their_way += size
        request = asyncio.ensure_future(client._cat_ranges([path], [start], [end], on_error="raise"))
        try:
            while (left := began + seconds + 2 * self._needed() - now()) > 0:
                done, _ = await asyncio.wait([request], timeout=min(left, LOOK_SECONDS))
                if done:
                    found: list[bytes] = request.result()
                    if size:
                        self._came += size
                        self._seconds += now() - self._since
                    return found
            raise TimeoutError
        finally:
            request.cancel()
            if size:
                self._on_their_way -= size
                self._since = now()

    def _needed(self) -> float:
        """Returns the seconds that the line needs for what is on its way."""
        return self._on_their_way * self._seconds / self._came

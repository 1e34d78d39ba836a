"""`Line`: tells a request that hangs from one that has to wait for others. For the asynchronous clients of fsspec.

Requests that share a line may all take minutes, and end at the same time. So each may take twice the time that the line needs
for all bytes on their way, as fast as it was so far, and then some seconds more.
"""

from __future__ import annotations

from typing import Any


class Line:
    """The line to a store. Only the thread of the clients' event loop changes it."""

    __slots__ = ("_came", "_on_their_way", "_seconds", "_since")

    def __init__(self) -> None:
        self._came = self._on_their_way = 0
        self._seconds = 0.0  # in which these bytes came
        self._since = 0.0  # when the first of what is on its way was asked for, or the latest came

    async def cat_ranges(self, client: Any, path: str, start: int, end: int, seconds: float) -> list[bytes]:
        """Returns a range as the client's `cat_ranges` does; raises `TimeoutError` if the request hangs."""
        import asyncio  # 30 ms; fsspec has imported it by now

        now = asyncio.get_running_loop().time
        began = now()
        if not self._on_their_way:
            self._since = began
        self._on_their_way += end - start
        request = asyncio.ensure_future(client._cat_ranges([path], [start], [end], on_error="raise"))
        try:
            while (left := began + seconds + 2 * self._needed() - now()) > 0:
                if (await asyncio.wait([request], timeout=left))[0]:
                    found: list[bytes] = request.result()
                    self._came += end - start
                    self._seconds += now() - self._since
                    self._since = now()
                    return found
            raise TimeoutError
        finally:
            request.cancel()
            self._on_their_way -= end - start

    def _needed(self) -> float:
        """Returns the seconds that the line needs for what is on its way, 0 until something came."""
        return self._on_their_way * self._seconds / self._came if self._came else 0.0

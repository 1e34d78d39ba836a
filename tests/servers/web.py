"""A web server for the files of a folder, with and without parts of files (range requests)."""

from __future__ import annotations

import functools
import http.server
import io
import re
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Self


class WebServer:
    """Serves a folder on a port of loopback; use it as a context manager.

    Attributes:
        address: Host and port.
    """

    def __init__(self, folder: Path, *, ranges: bool = True) -> None:
        handler = functools.partial(_WithRanges if ranges else _Handler, directory=str(folder))
        self._server = _Server(("127.0.0.1", 0), handler)
        serve = functools.partial(self._server.serve_forever, poll_interval=0.01)
        self._thread = threading.Thread(target=serve, name="web server of a test", daemon=True)
        self.address: tuple[str, int] = ("127.0.0.1", self._server.server_address[1])

    @property
    def url(self) -> str:
        """The address of the folder."""
        return f"http://127.0.0.1:{self.address[1]}"

    def __enter__(self) -> Self:
        """Starts to serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops, and ends the thread."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024

    def handle_error(self, *_: Any) -> None:
        """Says nothing: a client that breaks off is what some tests are about."""


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Sends whole files, whatever part the client asks for."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm: ClassVar[bool] = True

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


class _WithRanges(_Handler):
    """Sends parts of files where the client asks for them."""

    def send_head(self) -> Any:
        path = Path(self.translate_path(self.path))
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked is None or not path.is_file():
            return super().send_head()
        size = path.stat().st_size
        first, last = asked.groups()
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last) + 1, size) if first and last else size
        if start >= end:
            self.send_error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            return None
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        return io.BytesIO(data)

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

"""A fast server that reads like S3, for measurements: objects are files of a folder, and each request has a delay.

moto answers some 200 requests a second, which would be what a benchmark measures. `python -m tests.servers.objects FOLDER
DELAY_SECONDS [SHARE OF EACH FAULT]` serves until its input ends, in a process of its own.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.servers.proxy import Plan, Proxy, Request, Seeded, sound

_LISTING = '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><KeyCount>{count}</KeyCount><IsTruncated>{more}</IsTruncated>{parts}</ListBucketResult>'
_ROW = (
    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;{etag}&quot;</ETag>"
    "<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


class ObjectServer(Proxy):
    """Answers `GET`, `HEAD` and listings of one bucket, `bucket`, by itself; the folder is one of the bucket.

    Args:
        folder: The files of the bucket.
        plan: What happens to each request.
    """

    def __init__(self, folder: Path, plan: Plan = sound) -> None:
        super().__init__(("", 0), plan)
        paths = (path for path in folder.rglob("*") if path.is_file())
        self._objects = {path.relative_to(folder.parent).as_posix(): path.read_bytes() for path in paths}
        self._keys = sorted(self._objects)

    async def _forward(
        self, fault: str | None, request: Request, data: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        url = urlsplit(request.target)
        key = unquote(url.path).removeprefix("/bucket").strip("/")
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        status, headers, body = "200 OK", {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, memoryview(b"")
        if "list-type" in query:
            body = memoryview(self._listing(query).encode())
        elif key not in self._objects:
            status = "404 Not Found"
        else:
            body = memoryview(self._objects[key])
            headers["ETag"] = f'"{len(body)}"'
            if request.range:
                first, _, last = request.range.removeprefix("bytes=").partition("-")
                start, end = int(first), min(int(last) + 1, len(body))
                status, headers["Content-Range"] = (
                    "206 Partial Content",
                    f"bytes {start}-{end - 1}/{len(body)}",
                )
                body = body[start:end]
        size = len(body) // 2 if fault == "short" else len(body)
        lines = "".join(
            f"{name}: {value}\r\n" for name, value in (headers | {"Content-Length": str(size)}).items()
        )
        writer.write(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode())
        if request.method != "HEAD":
            writer.write(body[: len(body) // 2] if fault in {"short", "cut"} else body)
        await writer.drain()
        return fault != "cut"

    def _listing(self, query: dict[str, str]) -> str:
        prefix, most = query.get("prefix", ""), int(query.get("max-keys", 1000))
        start = int(query.get("continuation-token", 0))
        found = [key for key in self._keys if key.startswith(prefix)]
        parts = [
            _ROW.format(key=escape(key), etag=len(self._objects[key]), size=len(self._objects[key]))
            for key in found[start : start + most]
        ]
        count, more = len(parts), start + most < len(found)
        if more:
            parts.append(f"<NextContinuationToken>{start + most}</NextContinuationToken>")
        return _LISTING.format(count=count, more=str(more).lower(), parts="".join(parts))


def main(folder: str, delay_seconds: str, *shares: str) -> None:
    """Serves a folder, and prints the port; `shares` are texts as `cut=0.005`."""
    faults = dict(each.split("=") for each in shares)
    plan = Seeded(1, float(delay_seconds), {name: float(share) for name, share in faults.items()})  # type: ignore[misc]
    with ObjectServer(Path(folder), plan) as server:
        print(server.port, flush=True)  # noqa: T201  (the parent process reads it)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

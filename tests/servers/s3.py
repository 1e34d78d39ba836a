"""An S3 server: moto's, in a process of its own, whose end is that of the process that started it."""

from __future__ import annotations

import subprocess
import sys
import uuid
from importlib.util import find_spec
from typing import Any, Final, Self

from pyarrow import fs as pafs

MISSING: Final = [name for name in ("moto", "flask", "flask_cors") if find_spec(name) is None]
"""The packages that the server lacks here."""

KEY, SECRET = "testing", "secret of a test"


class S3Server:
    """Runs on a port of loopback; use it as a context manager.

    Attributes:
        address: Host and port.
    """

    def __init__(self) -> None:
        self.address: tuple[str, int] = ("127.0.0.1", 0)
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.servers.s3"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = ("127.0.0.1", int(self._process.stdout.readline()))
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def bucket(self) -> str:
        """Makes a bucket with a name of its own, and returns the name."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.native(allow_bucket_creation=True).create_dir(name)
        return name

    def native(self, url: str | None = None, **options: Any) -> pafs.S3FileSystem:
        """Returns pyarrow's client; `url` is that of a proxy in front of the server.

        It waits for milliseconds between its tries; by its usual strategy it waits for seconds. And it waits for
        answers as long as a busy machine may need: by default it asks again after 1 and 3 seconds.
        """
        options = {"connect_timeout": 60, "request_timeout": 60, **options}
        return pafs.S3FileSystem(
            retry_strategy=pafs.AwsDefaultS3RetryStrategy(max_attempts=3),
            access_key=KEY,
            secret_key=SECRET,
            region="us-east-1",
            endpoint_override=url or self.url,
            **options,
        )

    def storage_options(self, url: str | None = None) -> dict[str, Any]:
        """Returns the arguments that `s3fs.S3FileSystem` needs to connect."""
        return {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": url or self.url}}

    def impatient(self, url: str | None = None, connections: int = 64) -> Any:
        """Returns a client of s3fs that tries nothing again, so that a test sees who does."""
        import s3fs

        options, config = (
            self.storage_options(url),
            {"retries": {"max_attempts": 0}, "max_pool_connections": connections},
        )
        client = s3fs.S3FileSystem(**options, config_kwargs=config, skip_instance_cache=True)
        client.retries = 1
        return client


def _serve() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)  # noqa: T201  (the parent process reads it)
    sys.stdin.read()  # ends when the parent does


if __name__ == "__main__":
    _serve()

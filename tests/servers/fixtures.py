"""Fixtures: servers on loopback, started where a test first asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.proxy import Proxy
from tests.servers.s3 import MISSING, S3Server
from tests.servers.web import WebServer


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server; each test makes a bucket of its own in it."""
    if MISSING:
        pytest.skip(f"moto's S3 server needs the packages {', '.join(MISSING)}")
    with S3Server() as server:
        yield server


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[Proxy]:
    """A proxy in front of the S3 server, which leaves all alone until a test sets its `plan`."""
    with Proxy(s3_server.address) as proxy:
        yield proxy


@pytest.fixture
def web_server(tmp_path: Path) -> Iterator[WebServer]:
    """A web server for `tmp_path`, which sends parts of files."""
    with WebServer(tmp_path) as server:
        yield server


@pytest.fixture
def web_server_without_ranges(tmp_path: Path) -> Iterator[WebServer]:
    """A web server for `tmp_path`, which sends files whole."""
    with WebServer(tmp_path, ranges=False) as server:
        yield server


@pytest.fixture
def web_proxy(web_server: WebServer) -> Iterator[Proxy]:
    """A proxy in front of `web_server`, which leaves all alone until a test sets its `plan`."""
    with Proxy(web_server.address) as proxy:
        yield proxy

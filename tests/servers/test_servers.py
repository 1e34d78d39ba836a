"""The servers themselves: what they send, and what the proxy does to it."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers.proxy import Fate, Fault, Proxy, Request, Seeded
from tests.servers.s3 import S3Server
from tests.servers.web import WebServer

pytestmark = pytest.mark.any_version

DATA = bytes(range(256)) * 64


def got(url: str, range_: str = "") -> bytes:
    request = urllib.request.Request(url, headers={"Range": range_} if range_ else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return bytes(answer.read())


def test_a_web_server_sends_ranges(tmp_path: Path, web_server: WebServer) -> None:
    (tmp_path / "a").write_bytes(DATA)
    url = f"{web_server.url}/a"
    assert got(url) == DATA
    assert got(url, "bytes=10-19") == DATA[10:20]
    assert got(url, "bytes=-5") == DATA[-5:]
    assert got(url, "bytes=16000-") == DATA[16000:]


def test_a_web_server_without_ranges_sends_all(tmp_path: Path, web_server_without_ranges: WebServer) -> None:
    (tmp_path / "a").write_bytes(DATA)
    assert got(f"{web_server_without_ranges.url}/a", "bytes=10-19") == DATA


def test_the_proxy_forwards_and_counts(tmp_path: Path, web_proxy: Proxy) -> None:
    (tmp_path / "a").write_bytes(DATA)
    url = f"{web_proxy.url}/a"
    assert got(url) == DATA
    assert got(url, "bytes=0-9") == got(url, "bytes=0-9") == DATA[:10]
    assert web_proxy.requests == [
        Request("GET", "/a", "", 0, 0),
        Request("GET", "/a", "bytes=0-9", 1, 0),
        Request("GET", "/a", "bytes=0-9", 2, 1),
    ]
    assert (web_proxy.count("GET", "a"), web_proxy.count("HEAD")) == (3, 0)


@pytest.mark.parametrize(("fault", "status"), [("busy", 429), ("unavailable", 503), ("error", 500)])
def test_the_proxy_refuses(web_proxy: Proxy, fault: Fault, status: int) -> None:
    web_proxy.plan = lambda _: Fate(fault)
    with pytest.raises(urllib.error.HTTPError) as caught:
        got(f"{web_proxy.url}/a")
    with caught.value as error:
        assert error.code == status
    assert web_proxy.faults == {fault: 1}


def test_the_proxy_breaks_connections(tmp_path: Path, web_proxy: Proxy) -> None:
    (tmp_path / "a").write_bytes(DATA)
    web_proxy.plan = lambda _: Fate("reset")
    with pytest.raises(ConnectionResetError):
        got(f"{web_proxy.url}/a")
    web_proxy.plan = lambda _: Fate("cut")
    with pytest.raises(http.client.IncompleteRead) as caught:
        got(f"{web_proxy.url}/a")
    assert caught.value.partial == DATA[: len(DATA) // 2]
    web_proxy.plan = lambda _: Fate("short")
    assert got(f"{web_proxy.url}/a") == DATA[: len(DATA) // 2]


def test_the_proxy_hangs_until_it_stops(web_proxy: Proxy) -> None:
    web_proxy.plan = lambda _: Fate("hang")
    request = urllib.request.Request(f"{web_proxy.url}/a")
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(request, timeout=0.1)


def test_a_seeded_plan_is_by_request_and_attempt() -> None:
    plan = Seeded(1, shares={"unavailable": 0.2, "cut": 0.1})
    requests = [
        Request("GET", f"/{number}", "", number, attempt) for number in range(500) for attempt in (0, 1)
    ]
    fates = [plan(each) for each in requests]
    assert fates == [Seeded(1, shares={"unavailable": 0.2, "cut": 0.1})(each) for each in requests]
    assert fates[0::2] != fates[1::2]
    faults = [each.fault for each in fates]
    assert 150 < faults.count("unavailable") < 250 < faults.count("unavailable") + faults.count("cut") < 350


def test_pyarrow_reads_through_the_proxy(s3_server: S3Server, s3_proxy: Proxy) -> None:
    table = pa.table({"x": list(range(1000))})
    path = f"{s3_server.bucket()}/a.parquet"
    pq.write_table(table, path, filesystem=s3_server.native())
    assert pq.read_table(path, filesystem=s3_server.native(s3_proxy.url)).equals(table)
    assert s3_proxy.count("GET") > 0
    assert s3_proxy.max_in_flight > 0


def test_s3fs_reads_through_the_proxy(s3_server: S3Server, s3_proxy: Proxy) -> None:
    s3fs = pytest.importorskip("s3fs")
    path = f"{s3_server.bucket()}/a"
    with s3_server.native().open_output_stream(path) as sink:
        sink.write(DATA)
    client = s3fs.S3FileSystem(**s3_server.storage_options(s3_proxy.url), skip_instance_cache=True)
    assert client.cat_file(path, start=10, end=20) == DATA[10:20]
    assert s3_proxy.count("GET") == 1

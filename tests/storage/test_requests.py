"""How bytes are asked for: few requests, in parts beside each other, in place; and what a server can do to them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from arrowflow.errors import SourceError
from arrowflow.executor import Planning
from arrowflow.storage import File, Requests, Store, clients, requests
from arrowflow.storage.clients import CONNECTIONS, connections_of, for_reads, open_url
from arrowflow.storage.retries import Patience
from tests.servers.proxy import Fate, Fault, Proxy, Request
from tests.servers.s3 import S3Server
from tests.servers.web import WebServer

pytestmark = pytest.mark.any_version

DATA = bytes(number % 251 for number in range(100_000))


class Counting(Planning):
    """Services that count, and never wait for long."""

    def __init__(self) -> None:
        super().__init__(max_calls=8)
        self.told: list[str] = []
        self.batches: list[int] = []

    def wait(self, seconds: float) -> bool:
        return True

    def retried(self, why: str) -> None:
        self.told.append(why)

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        self.batches.append(len(calls))
        return super().together(calls)


def stored(server: S3Server) -> str:
    path = f"{server.bucket()}/a"
    with server.native().open_output_stream(path) as sink:
        sink.write(DATA)
    return path


def opened(filesystem: Any, path: str, patience: Patience | None = None) -> tuple[Store, File, Counting]:
    services = Counting()
    if not isinstance(filesystem, pafs.FileSystem):
        filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
    store = Store(filesystem, requests=Requests(patience or Patience(), services))
    return store, File(path, path, len(DATA)), services


@pytest.fixture(params=["native", "s3fs", "http"])
def remote(
    request: pytest.FixtureRequest, s3_server: S3Server, web_server: WebServer, tmp_path: Path
) -> tuple[Proxy, Store, File, Counting]:
    """A file behind a proxy, by three clients."""
    if request.param == "http":
        pytest.importorskip("aiohttp")
        (tmp_path / "a").write_bytes(DATA)
        proxy = request.getfixturevalue("web_proxy")
        import fsspec

        client = fsspec.filesystem("http", skip_instance_cache=True)
        return proxy, *opened(client, f"{proxy.url}/a")
    proxy = request.getfixturevalue("s3_proxy")
    if request.param == "native":
        return proxy, *opened(s3_server.native(proxy.url), stored(s3_server))
    pytest.importorskip("s3fs")
    return proxy, *opened(s3_server.impatient(proxy.url), stored(s3_server))


Remote = tuple[Proxy, Store, File, Counting]


def test_ranges_are_what_the_file_has(remote: Remote) -> None:
    proxy, store, file, services = remote
    proxy.forget()
    ranges = [(0, 3), (99_990, 100_000), (5, 70_000), (7, 8)]
    assert [bytes(each) for each in store.fetch(file, ranges)] == [DATA[start:end] for start, end in ranges]
    assert bytes(store.tail(file, 100)) == DATA[-100:]
    assert proxy.count("GET") == 5
    assert services.batches == [4]


def test_long_ranges_come_in_parts(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PART_BYTES", 30_000)
    proxy, store, file, services = remote
    proxy.forget()
    first, second = store.fetch(file, [(10, 99_999), (0, 30_000)])
    assert (bytes(first), bytes(second)) == (DATA[10:99_999], DATA[:30_000])
    assert proxy.count("GET") == 5
    assert max(services.batches) >= 4


@pytest.mark.parametrize("fault", ["busy", "unavailable", "error", "reset", "cut", "short"])
def test_each_fault_is_survived(remote: Remote, fault: Fault) -> None:
    proxy, store, file, services = remote
    store.fetch(file, [(0, 1)])
    services.told.clear()

    def twice(request: Request) -> Fate:
        return Fate(fault if request.range and request.attempt < 2 else None)

    proxy.plan = twice
    assert [bytes(each) for each in store.fetch(file, [(100, 200), (50_000, 90_000)])] == [
        DATA[100:200],
        DATA[50_000:90_000],
    ]
    assert proxy.faults[fault] == 4
    assert len(services.told) <= 4, "the client may have retried first"


@pytest.mark.parametrize("fault", ["short", "unavailable"])
def test_retries_are_counted_by_what_failed(s3_server: S3Server, s3_proxy: Proxy, fault: Fault) -> None:
    store, file, services = opened(s3_server.native(s3_proxy.url), stored(s3_server))
    s3_proxy.plan = lambda request: Fate(fault if request.range and request.attempt < 1 else None)
    assert bytes(store.fetch(file, [(10, 30)])[0]) == DATA[10:30]
    assert services.told == ["cut short" if fault == "short" else "HTTP 500"]


def test_a_request_that_hangs_is_cut(s3_server: S3Server, s3_proxy: Proxy) -> None:
    s3fs = pytest.importorskip("s3fs")
    client = s3fs.S3FileSystem(**s3_server.storage_options(s3_proxy.url), skip_instance_cache=True)
    store, file, _ = opened(client, stored(s3_server), Patience(retries=1, deadline_seconds=0.5))
    client.info(file.path)
    s3_proxy.plan = lambda request: Fate("hang" if request.range and request.attempt < 1 else None)
    with pytest.raises(SourceError, match="did not deliver it: FSTimeoutError"):
        store.fetch(file, [(0, 10)])
    assert bytes(store.fetch(file, [(0, 10)])[0]) == DATA[:10]


@pytest.mark.parametrize("status", ["403", "404"])
def test_refusals_raise_at_once(remote: Remote, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, store, file, services = remote
    monkeypatch.setattr("tests.servers.proxy._STATUS", {"busy": f"{status} Refused"})
    proxy.forget()
    proxy.plan = lambda request: Fate("busy")
    with pytest.raises((SourceError, FileNotFoundError)):
        store.fetch(file, [(0, 10)])
    assert (len(proxy.requests), services.told) == (1, [])


def test_an_open_file_is_kept_for_the_next_read(s3_server: S3Server, s3_proxy: Proxy) -> None:
    store, file, _ = opened(s3_server.native(s3_proxy.url), stored(s3_server))
    for start in range(5):
        store.fetch(file, [(start, start + 1)])
    assert s3_proxy.count("HEAD") == 1
    first_tries = [each.range for each in s3_proxy.requests if each.method == "GET" and not each.attempt]
    assert len(first_tries) == 5, "on a busy machine the client asks again by itself"


def test_parts_are_read_by_one_open_file(
    s3_server: S3Server, s3_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PART_BYTES", 10_000)
    store, file, services = opened(s3_server.native(s3_proxy.url), stored(s3_server))
    store.fetch(file, [(0, 1)])
    assert bytes(store.fetch(file, [(0, len(DATA))])[0]) == DATA
    assert services.batches == [10]
    assert s3_proxy.count("HEAD") == 1


def test_files_of_other_systems_are_closed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    below = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    store, file, _ = opened(below, "a")
    assert bytes(store.fetch(file, [(5, 9)])[0]) == DATA[5:9]
    assert store.requests.handles == {}


def test_a_file_that_is_read_from_its_start_takes_few_requests(s3_server: S3Server, s3_proxy: Proxy) -> None:
    """As a compressed one does: Arrow asks for 64 KiB at a time."""
    store, file, _ = opened(s3_server.native(s3_proxy.url), stored(s3_server))
    with store.open(file) as source:
        assert b"".join(iter(lambda: source.read(1000), b"")) == DATA
        source.seek(-10, 2)
        assert source.read() == DATA[-10:]
    assert s3_proxy.count("GET") == 1


def test_bytes_that_are_like_the_mark_are_no_short_read(tmp_path: Path) -> None:
    """A mark that stays where it was tells that the client got less than it said."""
    every = bytes(range(256))
    (tmp_path / "a").write_bytes(every)
    ranges = [(start, end) for end in range(1, 257) for start in (0, end - 1)]
    found = Requests().fetch(pafs.LocalFileSystem(), str(tmp_path / "a"), ranges)
    assert [each.to_pybytes() for each in found] == [every[start:end] for start, end in ranges]


class ShortStream:
    """Says that it filled the memory, the last bytes of which it left as they were."""

    def __init__(self, missing: int) -> None:
        self._missing = missing

    def readinto(self, memory: memoryview) -> int:
        memory[: -self._missing] = bytes(len(memory) - self._missing)
        return len(memory)


@pytest.mark.parametrize(("size", "missing"), [(1, 1), (4, 1), (4, 4), (30, 1), (30, 7), (30, 8), (30, 30)])
def test_a_client_that_says_more_than_it_read_is_found_out(
    size: int, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = SimpleNamespace(get_stream=lambda start, size: ShortStream(missing))
    monkeypatch.setattr(Requests, "_handle", lambda *_: nullcontext(handle))
    with pytest.raises(SourceError, match=f"expected {size} bytes at offset 7, got {size - 1}:"):
        Requests().fetch(pafs.LocalFileSystem(), "a", [(7, 7 + size)])


def test_a_file_that_ends_within_a_range_is_a_short_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA[:50])
    fetch = Requests().fetch
    whole, nothing = fetch(pafs.LocalFileSystem(), str(tmp_path / "a"), [(10, 50), (50, 50)])
    assert whole.to_pybytes() == DATA[10:50]
    assert nothing.size == 0
    for end, found in ((51, 40), (90, 40)):
        with pytest.raises(SourceError, match=f"expected {end - 10} bytes at offset 10, got {found}:"):
            fetch(pafs.LocalFileSystem(), str(tmp_path / "a"), [(10, end)])


def test_requests_pickle_without_their_run() -> None:
    found = pickle.loads(pickle.dumps(Requests(Patience(3, 4.0), Counting())))
    assert (found.patience, found.handles) == (Patience(3, 4.0), {})


# ------------------------------------------------------------------------------------- clients


def test_a_client_that_this_library_makes_has_connections_for_all_calls(
    s3_server: S3Server, s3_proxy: Proxy
) -> None:
    threads = pa.io_thread_count()
    host = s3_proxy.url.removeprefix("http://")
    opened_by_url, path = open_url(
        f"s3://key:secret@bucket/a?region=us-east-1&scheme=http&endpoint_override={host}"
    )
    assert (path, pa.io_thread_count()) == ("bucket/a", threads)
    filesystem = for_reads(opened_by_url)
    assert filesystem == opened_by_url
    own, users = connections_of(filesystem, is_own=True), connections_of(s3_server.native(), is_own=False)
    assert own == CONNECTIONS
    assert users is not None
    assert users < own


def test_connections_of_s3fs() -> None:
    s3fs = pytest.importorskip("s3fs")
    for given, found in (({}, 10), ({"max_pool_connections": 77}, 77)):
        client = s3fs.S3FileSystem(anon=True, config_kwargs=given, skip_instance_cache=True)
        assert connections_of(pafs.PyFileSystem(pafs.FSSpecHandler(client)), is_own=False) == found


@pytest.mark.parametrize("query", ["", "?retry_limit_seconds=77"])
def test_google_is_not_asked_for_long(query: str) -> None:
    try:
        filesystem, path = open_url(f"gs://bucket/a{query}")
    except pa.ArrowNotImplementedError:
        pytest.skip("pyarrow has no client for Google's storage here")
    assert path == "bucket/a"
    (settings,) = filesystem.__reduce__()[1]
    assert settings["retry_time_limit"].total_seconds() == (77 if query else clients.GCS_SECONDS)

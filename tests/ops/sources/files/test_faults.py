"""Pipelines over a network that fails: every row comes once, in order; what cannot pass is an error, and soon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.errors import SourceError
from arrowflow.testing import assert_same_batches, batches_of
from tests.servers.proxy import Fate, Fault, Proxy, Request, Seeded
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.any_version

FILES, ROWS = 24, 40
FAULTS: tuple[Fault, ...] = ("unavailable", "busy", "error", "reset", "cut", "short")


def table(number: int) -> pa.Table:
    first = number * ROWS
    return pa.table(
        {"row": range(first, first + ROWS), "text": [f"text {row}" for row in range(first, first + ROWS)]}
    )


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    """The name of a bucket with small files, and with one of many row groups, in each format."""
    name, client = s3_server.bucket(), s3_server.native()
    for number in range(FILES):
        pq.write_table(table(number), f"{name}/small/{number:02}.parquet", filesystem=client)
    whole = pa.concat_tables([table(number) for number in range(FILES)])
    pq.write_table(
        whole, f"{name}/large/a.parquet", filesystem=client, row_group_size=ROWS, compression="none"
    )
    with (
        client.open_output_stream(f"{name}/ipc/a.arrow") as sink,
        pyarrow.ipc.new_file(sink, whole.schema) as writer,
    ):
        writer.write_table(whole, max_chunksize=ROWS)
    with client.open_output_stream(f"{name}/csv/a.csv") as sink:
        sink.write(whole.to_pandas().to_csv(index=False).encode())
    return name


READERS: dict[str, Callable[..., af.Dataset]] = {
    "small": af.read_parquet,
    "large": af.read_parquet,
    "ipc": af.read_ipc,
    "csv": af.read_csv,
}


def s3fs_client(server: S3Server, proxy: Proxy) -> Any:
    pytest.importorskip("s3fs")
    return server.impatient(proxy.url)


@pytest.fixture
def small(s3_server: S3Server, s3_proxy: Proxy, bucket: str) -> af.Dataset:
    """The small files, through the proxy."""
    return af.read_parquet(f"{bucket}/small", filesystem=s3_server.native(s3_proxy.url))


@pytest.fixture
def small_by_s3fs(s3_server: S3Server, s3_proxy: Proxy, bucket: str) -> af.Dataset:
    return af.read_parquet(f"{bucket}/small", filesystem=s3fs_client(s3_server, s3_proxy))


def failing(fault: Fault, when: Callable[[Request], object]) -> Callable[[Request], Fate]:
    """Some requests fail."""
    return lambda request: Fate(fault if when(request) else None)


def first_get(request: Request) -> bool:
    return request.method == "GET" and request.attempt < 1


@pytest.fixture
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tests are small; so all but footers of some comes by requests of its own."""
    monkeypatch.setattr("arrowflow.ops.sources.files.splits.SMALL_FILE_BYTES", 0)
    monkeypatch.setattr("arrowflow.storage.store.HOLE_BYTES", 0)


def each_fails_once(request: Request) -> Fate:
    """The first try of each read of bytes fails, in one way after the other."""
    return Fate(FAULTS[request.number % len(FAULTS)] if request.range and not request.attempt else None)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["native", "s3fs"])
@pytest.mark.parametrize("part", READERS)
@pytest.mark.usefixtures("nothing_is_small")
def test_every_row_comes_once_and_in_order(
    s3_server: S3Server, s3_proxy: Proxy, bucket: str, part: str, client: str
) -> None:
    through = s3_server.native(s3_proxy.url) if client == "native" else s3fs_client(s3_server, s3_proxy)
    path = f"{bucket}/{part}"
    sound = READERS[part](path, filesystem=s3_server.native())
    s3_proxy.plan = each_fails_once
    broken = READERS[part](path, filesystem=through)
    assert_same_batches(batches_of(broken.batch(64)), batches_of(sound.batch(64)))
    assert sum(s3_proxy.faults.values()) >= 2


def test_small_files_take_two_requests_each(s3_proxy: Proxy, small: af.Dataset) -> None:
    with iter(small) as iterator:
        s3_proxy.forget()
        assert sum(batch.num_rows for batch in iterator) == FILES * ROWS
        assert s3_proxy.count(part="/small/") <= 2 * FILES
        stages = iterator.stats().stages
    assert next(stage.bytes for stage in stages if stage.phase == "open") > 0, "the files' bytes are charged"


@pytest.mark.usefixtures("nothing_is_small")
def test_the_footer_that_planning_read_is_not_read_again(
    s3_server: S3Server, s3_proxy: Proxy, bucket: str
) -> None:
    ds = af.read_parquet(f"{bucket}/large", filesystem=s3_server.native(s3_proxy.url))
    for _ in range(2):
        with iter(ds) as iterator:
            s3_proxy.forget()
            assert sum(batch.num_rows for batch in iterator) == FILES * ROWS
        ranges = {each.range for each in s3_proxy.requests if each.method == "GET"}
        assert len(ranges) == FILES, "one for each row group"


def test_retries_are_counted_and_shown(s3_proxy: Proxy, small: af.Dataset) -> None:
    with iter(small) as iterator:
        s3_proxy.forget()
        s3_proxy.plan = failing("short", first_get)
        assert sum(batch.num_rows for batch in iterator) == FILES * ROWS
        assert iterator.stats().retries == {"cut short": s3_proxy.faults["short"]}
        assert f"reads tried again: {s3_proxy.faults['short']} (" in iterator.explain()
    s3_proxy.plan = lambda request: Fate()
    with iter(small) as iterator:
        assert sum(batch.num_rows for batch in iterator) == FILES * ROWS
        assert iterator.stats().retries == {}
        assert "reads tried again" not in iterator.explain()


def test_after_an_error_a_new_iterator_goes_on_from_the_last_state(
    s3_proxy: Proxy, small_by_s3fs: af.Dataset
) -> None:
    ds = small_by_s3fs.batch(30).with_options(af.Options(retries=0))
    s3_proxy.plan = failing(
        "busy", lambda request: request.method == "GET" and "/10.parquet" in request.target
    )
    iterator, rows, states = iter(ds), [], []

    def consume() -> None:
        for batch in iterator:
            rows.extend(batch["row"].to_pylist())
            states.append(iterator.state_dict())

    with pytest.raises(SourceError, match="the storage did not deliver it") as caught:
        consume()
    assert caught.value.file is not None
    assert caught.value.file.endswith("10.parquet")
    assert rows == list(range(390)), "all whole batches before the file come first"
    s3_proxy.plan = lambda request: Fate()
    again = iter(ds)
    again.load_state_dict(states[-1])
    rows += [row for batch in again for row in batch["row"].to_pylist()]
    assert rows == list(range(FILES * ROWS))


def test_a_store_that_is_down_is_an_error_within_the_deadline(
    s3_proxy: Proxy, small_by_s3fs: af.Dataset
) -> None:
    with iter(small_by_s3fs.with_options(af.Options(retry_deadline_seconds=0.3))) as iterator:
        s3_proxy.plan = lambda request: Fate("hang")
        with pytest.raises(SourceError, match="did not deliver it: FSTimeoutError"):
            list(iterator)


def test_closing_does_not_wait_for_the_next_try(
    s3_proxy: Proxy, small_by_s3fs: af.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arrowflow.storage.retries.FIRST_PAUSE_SECONDS", 1e6)
    monkeypatch.setattr("arrowflow.storage.retries.LAST_PAUSE_SECONDS", 1e6)
    with iter(small_by_s3fs.with_options(af.Options(retry_deadline_seconds=1e9))) as iterator:
        s3_proxy.plan = failing("busy", lambda request: "/00." not in request.target)
        assert next(iterator).num_rows == ROWS


@pytest.mark.parametrize("client", ["native", "s3fs"])
def test_a_straggler_is_overtaken_where_that_is_asked_for(
    s3_server: S3Server, s3_proxy: Proxy, bucket: str, client: str
) -> None:
    """The first try of each read hangs; by itself it takes seconds until a time-out, also at the end of the run."""
    through = s3_server.native(s3_proxy.url) if client == "native" else s3fs_client(s3_server, s3_proxy)
    ds = af.read_parquet([f"{bucket}/small/0{number}.parquet" for number in range(3)], filesystem=through)
    with iter(ds.with_options(af.Options(hedge_seconds=0.05, retries=0))) as iterator:
        s3_proxy.plan = failing("hang", lambda request: request.range and not request.attempt)
        rows = [row for _ in range(3) for row in next(iterator)["row"].to_pylist()]
        s3_proxy.let_go()
        assert next(iterator, None) is None
        assert rows == list(range(3 * ROWS))
        retries = (
            iterator.stats().retries
        )  # planning read the first file's footer; on a busy machine others are late, too
        assert retries.keys() == {"slow"} and retries["slow"] >= 2


@pytest.mark.parametrize("status", ["403", "404"])
def test_what_is_refused_raises_at_once(
    s3_proxy: Proxy, small: af.Dataset, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.servers.proxy._STATUS", {"busy": f"{status} Refused"})
    with iter(small) as iterator:
        s3_proxy.plan = failing("busy", lambda request: "/05." in request.target)
        with pytest.raises(SourceError, match=r"05\.parquet"):
            list(iterator)
        assert iterator.stats().retries == {}
    assert len([each for each in s3_proxy.requests if "/05." in each.target]) <= 2


def test_footers_are_counted_beside_each_other(s3_proxy: Proxy, small: af.Dataset) -> None:
    s3_proxy.plan = Seeded(0, delay_seconds=0.01)
    assert small.num_rows == FILES * ROWS
    assert s3_proxy.max_in_flight > FILES // 2


def test_an_error_of_a_footer_is_the_first_one(s3_proxy: Proxy, small_by_s3fs: af.Dataset) -> None:
    ds = small_by_s3fs.with_options(af.Options(retries=0))
    assert ds.schema.names == ["row", "text"]
    s3_proxy.plan = failing("busy", lambda request: request.range and "/00." not in request.target)
    with pytest.raises(SourceError, match=r"01\.parquet"):
        _ = ds.num_rows


def test_listing_is_tried_again(s3_server: S3Server, s3_proxy: Proxy, bucket: str) -> None:
    s3_proxy.plan = failing("short", lambda request: "list-type" in request.target and request.attempt < 1)
    ds = af.list_files(f"{bucket}/small", filesystem=s3_server.native(s3_proxy.url))
    assert ds.num_rows == FILES
    assert s3_proxy.faults["short"] > 0


def test_the_connections_of_a_users_client_are_named(
    s3_server: S3Server, s3_proxy: Proxy, bucket: str
) -> None:
    pytest.importorskip("s3fs")
    ds = af.read_parquet(f"{bucket}/small", filesystem=s3_server.impatient(s3_proxy.url, connections=10))
    assert "your client opens at most 10 connections" in ds.explain()
    host = s3_proxy.url.removeprefix("http://")
    url = f"s3://testing:secret@{bucket}/small?region=us-east-1&scheme=http&endpoint_override={host}"
    assert "your client" not in af.read_parquet(url).explain()


def test_web_servers_too(web_proxy: Proxy, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    pq.write_table(table(0), tmp_path / "a.parquet")
    web_proxy.plan = failing("unavailable", first_get)
    ds = af.read_parquet(f"{web_proxy.url}/a.parquet")
    assert ds.to_table().equals(table(0))
    assert web_proxy.faults["unavailable"] > 0

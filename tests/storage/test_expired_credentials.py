"""Credentials of S3 whose time is over: each error names them, at a listing, in mid-epoch, and where something is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from tests.servers.proxy import Fate, Proxy, Request
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.any_version

ROWS = 200_000


@pytest.fixture(params=["native", "s3fs"])
def client(request: pytest.FixtureRequest, s3_server: S3Server, s3_proxy: Proxy) -> Any:
    if request.param == "native":
        return s3_server.native(s3_proxy.url)
    pytest.importorskip("s3fs")
    return s3_server.impatient(s3_proxy.url)


def stored(server: S3Server) -> str:
    path = f"{server.bucket()}/a.parquet"
    table = pa.table({"x": pa.array(range(ROWS), pa.int64())})
    pq.write_table(table, path, row_group_size=ROWS // 4, compression="none", filesystem=server.native())
    return path


def expired(*methods: str) -> Callable[[Request], Fate]:
    return lambda request: Fate("expired" if request.method in methods else None)


@pytest.mark.parametrize("what", ["the file", "the folder", "a glob"])
def test_at_a_listing(s3_server: S3Server, s3_proxy: Proxy, client: Any, what: str) -> None:
    path = stored(s3_server)
    address = {"the file": path, "the folder": path.partition("/")[0], "a glob": path.replace("a.", "*.")}[
        what
    ]
    s3_proxy.plan = expired("GET", "HEAD")
    with pytest.raises(af.SourceError, match=r"credentials (may )?have expired"):
        af.read_parquet(address, filesystem=client).to_table()


def test_in_mid_epoch(s3_server: S3Server, s3_proxy: Proxy, client: Any) -> None:
    """The first error says it, and does so soon: another try would meet the same answer."""
    ds = af.read_parquet(stored(s3_server), filesystem=client, num_parallel_calls=1).batch(1000)
    with iter(ds.with_options(af.Options(cpu_budget=1, autotune=False, ram_budget="2MiB"))) as batches:
        next(batches)
        s3_proxy.plan = expired("GET", "HEAD")
        s3_proxy.forget()
        with pytest.raises(af.SourceError, match=r"credentials (may )?have expired.*a\.parquet"):
            for _ in batches:
                pass
    assert s3_proxy.faults["expired"] <= 4


def test_where_a_cache_is_filled(s3_server: S3Server, s3_proxy: Proxy) -> None:
    pytest.importorskip("s3fs")
    address = f"s3://{s3_server.bucket()}/cache"
    ds = af.range(10).cache(address, storage_options=s3_server.storage_options(s3_proxy.url))
    s3_proxy.plan = expired("PUT", "POST")
    with pytest.raises(af.ArrowflowError, match=r"credentials (may )?have expired"):
        ds.to_table()


@pytest.mark.parametrize("moment", ["before", "while"])
def test_where_shards_are_written(s3_server: S3Server, s3_proxy: Proxy, client: Any, moment: str) -> None:
    place = f"{s3_server.bucket()}/out"
    s3_proxy.plan = expired(*(("GET", "HEAD") if moment == "before" else ("PUT", "POST")))
    with pytest.raises(af.WriteError, match=r"write_parquet: .*credentials (may )?have expired.*out"):
        af.range(10).write_parquet(place, filesystem=client)

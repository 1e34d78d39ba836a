"""The clients that addresses lead to, without a network; and Google's without credentials."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from arrowflow.storage.clients import GCS_SECONDS, as_s3fs, open_with
from tests.servers.proxy import Fate, Proxy

pytestmark = pytest.mark.any_version

LIMIT_SECONDS = 15

GCS_ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"anonymous": True},
    {"access_token": "token", "credential_token_expiration": datetime(2040, 1, 1, tzinfo=UTC)},
    {"target_service_account": "name@project.iam.gserviceaccount.com"},
    {"default_bucket_location": "EU"},
    {"scheme": "http", "endpoint_override": "localhost:4443"},
    {"project_id": "project"},
    {"retry_time_limit": timedelta(seconds=2)},
    {"default_metadata": {"Cache-Control": "no-store"}},
]


@pytest.mark.parametrize("options", GCS_ARGUMENTS, ids=lambda options: ", ".join(options) or "none")
@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_arguments_of_pyarrows_client_of_google(scheme: str, options: dict[str, Any]) -> None:
    found = open_with(f"{scheme}://bucket/a b/%C3%BC.parquet", options, "read_csv")
    assert found is not None
    made, path = found
    assert path == "bucket/a b/ü.parquet"
    expected = pafs.GcsFileSystem(**{"retry_time_limit": timedelta(seconds=GCS_SECONDS), **options})
    assert isinstance(made, pafs.GcsFileSystem) and made == expected
    assert made.__reduce__()[1] == expected.__reduce__()[1]


@pytest.mark.parametrize("options", [{}, {"user": "me"}, {"replication": 2}, {"kerb_ticket": "/tmp/ticket"}])
def test_arguments_of_pyarrows_client_of_hdfs(options: dict[str, Any]) -> None:
    """It takes them, and then finds no Hadoop here, or no host of this name."""
    with pytest.raises(OSError, match=r"HDFS|hdfs|libjvm|JVM"):
        open_with("hdfs://host.invalid:8020/folder", options, "read_csv")


@pytest.mark.parametrize("url", ["s3://bucket/a", "gs://bucket/a", "hdfs://host/a", "https://host/a"])
def test_arguments_that_no_client_of_pyarrow_takes_are_left_to_fsspec(url: str) -> None:
    assert open_with(url, {"an_argument_of_another_client": 1}, "read_csv") is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"key": "a", "secret": "b", "anon": True}, {"key": "a", "secret": "b", "anon": True}),
        (
            {"access_key": "a", "secret_key": "b", "session_token": "c"},
            {"key": "a", "secret": "b", "token": "c"},
        ),
        ({"anonymous": True}, {"anon": True}),
        ({"endpoint_override": "host:9000"}, {"endpoint_url": "https://host:9000"}),
        ({"endpoint_override": "http://host", "scheme": "https"}, {"endpoint_url": "http://host"}),
        (
            {"region": "eu", "client_kwargs": {"verify": False}},
            {"client_kwargs": {"region_name": "eu", "verify": False}},
        ),
    ],
)
def test_arguments_of_pyarrows_client_of_s3_as_those_of_s3fs(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert as_s3fs(given) == expected


PROGRAM = """
import time
import arrowflow as af
from arrowflow.storage import clients

clients.GCS_SECONDS = 1
began = time.monotonic()
try:
    af.read_parquet("gs://bucket/a.parquet").schema
except af.SourceError as error:
    print(time.monotonic() - began, error)
"""


@pytest.mark.slow
def test_google_without_credentials_says_so_soon(tmp_path: Path) -> None:
    """The client asks for an account of this machine, and is told to come back later, for ever.

    It does so for one request, and for another one after it. The test makes each of them shorter.
    """
    with Proxy(("", 0), lambda request: Fate("unavailable")) as proxy:
        host = f"127.0.0.1:{proxy.port}"
        # Nothing that knows of credentials: no home, and no other variables.
        environment = {"GCE_METADATA_HOST": host, "GCE_METADATA_ROOT": host, "HOME": str(tmp_path)}
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
        paths = {"PYTHONPATH": ":".join(each for each in sys.path if each)}
        ran = subprocess.run(
            command, env=environment | paths, capture_output=True, text=True, timeout=60, check=True
        )
        assert proxy.count("GET", "/computeMetadata/") > 0
    seconds, _, text = ran.stdout.partition(" ")
    assert float(seconds) + 2 * (GCS_SECONDS - 1) < LIMIT_SECONDS
    assert "access token" in text and "check the address, the credentials" in text

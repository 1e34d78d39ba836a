"""Writers to object stores: s3fs and pyarrow's own client against a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import arrowflow as af
from tests.ops.tables import ids, refused
from tests.servers.s3 import S3Server
from tests.test_write import FORMATS, read, write

CLIENTS = ["s3fs", "native"]


def client_of(server: S3Server, name: str) -> Any:
    if name == "native":
        return server.native()
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    return s3fs.S3FileSystem(**server.storage_options(), skip_instance_cache=True)


def keys(server: S3Server, bucket: str) -> list[str]:
    """Returns what is in a bucket, told by a client that keeps no listings."""
    infos = server.native().get_file_info(pafs.FileSelector(bucket, recursive=True))
    return sorted(info.path for info in infos if info.is_file)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("format", FORMATS)
def test_shards_in_s3(s3_server: S3Server, name: str, format: str) -> None:
    client, bucket = client_of(s3_server, name), s3_server.bucket()
    place = f"{bucket}/data/out"
    written = write(format, af.range(9), place, shard_rows=4, filesystem=client)
    assert keys(s3_server, bucket) == list(written.files), "no marker, no hidden prefix"
    assert ids(read(format, place, filesystem=client)) == list(range(9))
    refused(af.WriteError, lambda: write(format, af.range(2), place, filesystem=client), "overwrite=True")
    written = write(format, af.range(3), place, filesystem=client, overwrite=True)
    assert keys(s3_server, bucket) == list(written.files)
    assert ids(read(format, place, filesystem=client)) == [0, 1, 2]


@pytest.mark.parametrize("name", CLIENTS)
def test_an_error_in_the_pipeline_leaves_nothing_in_s3(s3_server: S3Server, name: str) -> None:
    client, bucket = client_of(s3_server, name), s3_server.bucket()
    place = f"{bucket}/out"

    def rows() -> Iterator[dict[str, int]]:
        yield from ({"id": number} for number in range(7))
        raise ValueError("row 7")

    failing = af.from_generator(rows, {"id": pa.int64()})
    with pytest.raises(af.FunctionError, match="row 7"):
        failing.write_parquet(place, shard_rows=2, filesystem=client)
    assert keys(s3_server, bucket) == []
    af.range(3).write_parquet(place, filesystem=client)
    with pytest.raises(af.FunctionError, match="row 7"):
        failing.write_parquet(place, shard_rows=2, filesystem=client, overwrite=True)
    assert ids(af.read_parquet(place, filesystem=client)) == [0, 1, 2]


def test_a_client_of_s3fs_sees_what_others_wrote_meanwhile(s3_server: S3Server) -> None:
    client, bucket = client_of(s3_server, "s3fs"), s3_server.bucket()
    assert client.find(f"{bucket}/out") == client.ls(bucket) == []  # which the client remembers
    af.range(3).write_parquet(f"{bucket}/out", filesystem=s3_server.native())
    refused(
        af.WriteError, lambda: af.range(2).write_parquet(f"{bucket}/out", filesystem=client), "overwrite=True"
    )


def test_nothing_half_written_is_visible_in_s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = client_of(s3_server, "s3fs"), client_of(s3_server, "native")
    place = f"{s3_server.bucket()}/out"
    seen: list[list[int] | None] = []

    def look() -> None:
        try:
            seen.append(ids(af.read_parquet(place, filesystem=other)))
        except af.SourceError:
            seen.append(None)

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*args: Any, **kwargs: Any) -> Any:
            look()
            result = call(*args, **kwargs)
            look()
            return result

        return watch

    for step in ("mv", "rm"):
        monkeypatch.setattr(client, step, watched(getattr(client, step)))
    af.range(5).write_parquet(place, shard_rows=2, filesystem=client)
    look()
    assert seen[0] is None
    assert seen[-1] == list(range(5))
    assert all(found in (None, list(range(5))) for found in seen)

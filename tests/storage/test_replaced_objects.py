"""Objects of S3 that are replaced while they are read, or between a state and its resume: no row of the new one comes."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.storage import contents, versions
from tests.fuzz.test_objects import Bucket, Layout, client_of
from tests.ops.tables import refused
from tests.servers.proxy import Fate, Proxy, Request
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.any_version

ROWS, GROUPS = 1_600_000, 8


@pytest.fixture(params=["native", "s3fs"])
def filesystem(request: pytest.FixtureRequest, s3_server: S3Server) -> Any:
    if request.param == "native":
        return s3_server.native()
    pytest.importorskip("s3fs")
    return s3_server.impatient()


def content(first: int, rows: int = ROWS) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"x": pa.array(range(first, first + rows), pa.int64())})
    pq.write_table(
        table,
        sink,
        row_group_size=ROWS // GROUPS,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
    )
    return sink.getvalue()


def put(server: S3Server, path: str, data: bytes) -> str:
    with server.native().open_output_stream(path) as sink:
        sink.write(data)
    return path


def reads(path: str, filesystem: Any) -> af.Dataset:
    """Reads one row group after the other, so that most of them are read after a test has replaced the object."""
    ds = af.read_parquet(path, filesystem=filesystem, num_parallel_calls=1).batch(ROWS // GROUPS)
    return ds.with_options(af.Options(cpu_budget=1, autotune=False))


def take_rest(iterator: Any, found: list[int]) -> None:
    for batch in iterator:
        found += batch["x"].to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ROWS, 2 * ROWS])
def test_an_object_that_is_replaced_in_an_epoch(s3_server: S3Server, filesystem: Any, rows: int) -> None:
    path = put(s3_server, f"{s3_server.bucket()}/a.parquet", content(0))
    found: list[int] = []
    change = "the file has changed since it was listed"
    with iter(reads(path, filesystem)) as iterator:
        found += next(iterator)["x"].to_pylist()
        put(s3_server, path, content(10_000_000, rows))
        with pytest.raises(af.SourceError, match=change):
            take_rest(iterator, found)
    assert found == list(range(len(found)))


@pytest.mark.parametrize("rows", [0, 10, None])
def test_an_object_that_becomes_shorter_in_an_epoch(
    s3_server: S3Server, filesystem: Any, rows: int | None
) -> None:
    """No row group of the old object lies in the new one, or there is none. The next epoch lists the files again."""
    path = put(s3_server, f"{s3_server.bucket()}/a.parquet", content(0))
    ds = reads(path, filesystem)
    with iter(ds) as iterator:
        next(iterator)
        if rows is None:
            s3_server.native().delete_file(path)
        else:
            put(s3_server, path, content(0, rows) if rows else b"")
        told = "was removed" if rows is None else "has changed since it was listed: it had"
        with pytest.raises(af.SourceError, match=rf"{told}.*a\.parquet"):
            take_rest(iterator, [])
    if rows:
        assert ds.num_rows == rows
    elif rows is None:
        refused(af.SourceError, ds.to_table, "there is no such file")


@pytest.mark.parametrize("rows", [500, pytest.param(2000, marks=pytest.mark.slow)])
def test_files_are_listed_again_after_a_change(s3_server: S3Server, filesystem: Any, rows: int) -> None:
    """As the error says: the next epoch of the same dataset, or of its loader, has the rows of the new object."""
    bucket = s3_server.bucket()
    for name in "ab":
        put(s3_server, f"{bucket}/{name}.parquet", content(0, 1000))
    ds = af.read_parquet(bucket, filesystem=filesystem)
    loader = ds.batch(100).to_numpy()
    assert take(loader) == ds.to_table().num_rows == 2000
    put(s3_server, f"{bucket}/b.parquet", content(0, rows))
    refused(af.SourceError, ds.to_table, "the file has changed", "iterate anew")
    assert ds.to_table().num_rows == ds.num_rows == 1000 + rows
    with pytest.raises(af.SourceError, match="iterate anew"):
        take(loader)
    assert take(loader) == take(loader) == 1000 + rows


def take(loader: Any) -> int:
    return sum(len(batch["x"]) for batch in loader)


def test_files_are_not_listed_again_without_a_change(s3_server: S3Server, s3_proxy: Proxy) -> None:
    bucket = s3_server.bucket()
    put(s3_server, f"{bucket}/a.parquet", content(0, 1000))
    ds = af.read_parquet(bucket, filesystem=s3_server.native(s3_proxy.url))
    _ = ds.schema
    lists: list[str] = []

    def plan(request: Request) -> Fate:
        lists.extend([request.target] if "list-type" in request.target else [])
        return Fate()

    s3_proxy.plan = plan
    for _ in range(3):
        assert ds.to_table().num_rows == 1000
    assert not lists


@pytest.mark.parametrize("moment", range(6))
@pytest.mark.parametrize("kind", ["native", "s3fs"])
def test_an_object_of_one_row_group(s3_server: S3Server, s3_proxy: Proxy, kind: str, moment: int) -> None:
    """It is replaced before a request, whichever it is, by one of the same size, whose pages lie elsewhere."""
    one, four = Layout(20_000, 1), Layout(20_000, 4)
    bucket = Bucket(s3_server, [one])
    found: list[int] = []

    s3_proxy.plan = bucket.replaces(0, four, moment)
    ds = af.read_parquet(bucket.folder, filesystem=client_of(kind, s3_server, s3_proxy)).batch(1000)
    error = ""
    try:
        take_rest(ds, found)
    except af.SourceError as raised:
        error = str(raised)
    assert not error or "the file has changed since it was listed" in error
    bucket.check(found, ended=not error)


@pytest.mark.parametrize(("before", "after"), [(1000, 0), (ROWS // 4, ROWS // 8)], ids=["small", "large"])
def test_an_object_that_changes_before_its_footer_is_read(
    s3_server: S3Server, filesystem: Any, before: int, after: int
) -> None:
    bucket = s3_server.bucket()
    first, second = (put(s3_server, f"{bucket}/{name}.parquet", content(0, before)) for name in "ab")
    ds = af.read_parquet([first, second], filesystem=filesystem)
    _ = ds.schema
    put(s3_server, second, content(0, after) if after else b"")
    refused(af.SourceError, ds.to_table, "the file has changed since it was listed", "b.parquet")


@pytest.mark.slow
def test_an_object_that_is_replaced_between_a_state_and_its_resume(
    s3_server: S3Server, filesystem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(s3_server, f"{s3_server.bucket()}/a.parquet", content(0))
    with iter(reads(path, filesystem)) as iterator:
        next(iterator)
        state = json.loads(json.dumps(iterator.state_dict()))
    with iter(reads(path, filesystem)) as iterator:
        iterator.load_state_dict(state)
        assert next(iterator)["x"][0].as_py() == ROWS // GROUPS
    if not hasattr(filesystem, "info"):
        _tell_another_second(monkeypatch)
    put(s3_server, path, content(10_000_000))
    if hasattr(filesystem, "invalidate_cache"):
        filesystem.invalidate_cache()
    with iter(reads(path, filesystem)) as iterator:
        refused(af.StateError, lambda: iterator.load_state_dict(state), "a.parquet", "it was written again")


def _tell_another_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets listings tell another second: those of pyarrow have no etags, and those of S3 no fractions."""
    stamp = versions.listed_stamp
    monkeypatch.setattr(contents, "listed_stamp", lambda *place: f"{stamp(*place)} later")

"""`cache("s3://…")`: as `cache(path)`, for all processes that reach a store; of several writers the first put wins."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.caching.store import shared_entry
from arrowflow.caching.store.chunk import Chunk, Name
from arrowflow.storage import Objects
from arrowflow.testing import assert_same_batches, batches_of
from tests.ops.cache.cases import SMALL, Log
from tests.ops.tables import ids, refused, rows_of
from tests.servers.proxy import Fate, Fault, Proxy, Request
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.any_version

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


@pytest.fixture
def root() -> str:
    """The address of a cache that no other test has, in the memory of this process."""
    return f"memory://{uuid.uuid4().hex}/cache"


def objects(root: str) -> dict[str, bytes]:
    """Returns what lies below the address of a cache in memory."""
    place = root.removeprefix("memory:/") + "/"
    return {name: data.getvalue() for name, data in _store().items() if name.startswith(place)}


def chunks_of(root: str) -> list[str]:
    return sorted(name for name in objects(root) if Name.parse(name.rpartition("/")[2]) is not None)


def _store() -> dict[str, Any]:
    found: dict[str, Any] = fsspec.filesystem("memory").store
    return found


def put(name: str, data: bytes) -> None:
    fsspec.filesystem("memory").pipe_file(name, data)


def remove(*names: str) -> None:
    for name in names:
        fsspec.filesystem("memory").rm_file(name)


def test_a_state_finds_its_chunk_among_many(root: str) -> None:
    ds = af.range(1_000).with_options(SMALL).map(lambda batch: batch).cache(root, key="k").batch(7)
    expected = batches_of(ds)
    assert len(chunks_of(root)) > 3
    iterator = iter(ds)
    for _ in range(100):
        next(iterator)
    again = iter(ds)
    again.load_state_dict(iterator.state_dict())
    assert_same_batches(list(again), expected[100:])


# ---------------------------------------------------------------------------------------------- several runs


def rerun(root: str, runs: Iterator[int], *, both: threading.Barrier | None = None) -> af.Dataset:
    """Returns a dataset whose rows say which run of its generator they are of; two runs meet at a barrier."""

    def rows() -> Iterator[pa.RecordBatch]:
        run = next(runs)
        for number in range(4):
            if number == 1 and both is not None:
                both.wait(timeout=30)
            yield pa.record_batch({"run": pa.array([run] * 50)})

    return af.from_generator(rows).cache(root, key="runs")


def test_of_an_input_that_cannot_be_repeated_the_first_complete_pass_wins(root: str) -> None:
    runs = itertools.count()
    both = threading.Barrier(2)
    with iter(rerun(root, runs, both=both)) as first, iter(rerun(root, runs, both=both)) as second:
        passes = [next(run)["run"].to_pylist() for run in (first, second)]
        for run, rows in zip((first, second), passes, strict=True):
            rows += [row for batch in run for row in batch["run"].to_pylist()]
    assert passes == [[0] * 200, [1] * 200], "rows of two runs never meet"
    whole = rows_of(rerun(root, runs), "run")
    assert whole in passes
    assert len({name.rpartition("/")[0] for name in chunks_of(root)}) == 1, (
        "the other pass took its chunks away"
    )


def test_rows_of_two_runs_never_meet_where_a_chunk_is_lost(root: str) -> None:
    runs = itertools.count()
    assert {*rows_of(rerun(root, runs), "run")} == {0}
    for run in (1, 2):
        (whole,) = (data.decode() for name, data in objects(root).items() if name.endswith("/whole"))
        remove([name for name in chunks_of(root) if whole in name][1])
        assert rows_of(rerun(root, runs), "run") == [run] * 200
        assert rows_of(rerun(root, runs), "run") == [run] * 200, "and that is the entry now"


def test_a_run_goes_on_behind_the_chunks_of_another(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_entry, "LIST_SECONDS", 0.0)
    monkeypatch.setattr(shared_entry, "LIST_SHARE", 0)
    is_over, computed = threading.Event(), []

    def waits(batch: pa.RecordBatch) -> pa.RecordBatch:
        row = batch["id"][0].as_py()
        computed.append(row)
        assert row < 30 or is_over.wait(timeout=30)
        return batch

    def made(function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> af.Dataset:
        ds = af.range(3_000).with_options(SMALL).map(function, num_parallel_calls=1)
        return ds.cache(root, key="k").batch(20)

    with iter(made(waits)) as late:
        rows = next(late)["id"].to_pylist()
        assert ids(made(lambda batch: batch)) == list(range(3_000))
        is_over.set()
        rows += [row for batch in late for row in batch["id"].to_pylist()]
    assert rows == list(range(3_000))
    assert len(computed) < 500, "most rows are those of the other run"


def test_lanes_have_entries_of_their_own(root: str) -> None:
    def rows(ds: af.Dataset) -> list[list[int]]:
        both = [ds.batch(8).split_by_rank(rank, 2, lanes=4) for rank in range(2)]
        return [[row for batch in each for row in batch["id"].to_pylist()] for each in both]

    expected = rows(af.range(64))
    for _ in range(2):
        assert rows(af.range(64).cache(root)) == expected
    assert len({name.rpartition("/")[0] for name in chunks_of(root)}) == 4


def test_fetched_chunks_count(root: str) -> None:
    budget = af.Options(ram_budget=1 << 20, max_chunk_rows=1 << 12)
    ds = af.range(1 << 19).with_options(budget).cache(root)
    for _ in range(2):
        with iter(ds) as iterator:
            assert sum(batch.num_rows for batch in iterator) == 1 << 19
            stats = iterator.stats()
        assert 1 << 16 < stats.ledger_peak_bytes <= 2 << 20


def test_footers_of_any_size_and_number(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_entry, "TAIL_BYTES", 100)
    monkeypatch.setattr(shared_entry, "HEADS_AT_ONCE", 3)
    monkeypatch.setattr(shared_entry, "MAX_HEADS", 2)
    for _ in range(2):
        assert ids(complete(root)) == list(range(200))


# ---------------------------------------------------------------------------------------------- damage


def complete(root: str, **arguments: Any) -> af.Dataset:
    ds = af.range(200).with_options(af.Options(max_chunk_rows=40)).map(lambda batch: batch)
    return ds.cache(root, key="k", **arguments)


def test_a_damaged_footer_is_computed_again(root: str, caplog: pytest.LogCaptureFixture) -> None:
    assert ids(complete(root)) == list(range(200))
    name = chunks_of(root)[2]
    good = objects(root)[name]
    for bad in (good[:100], good[:-40], good[:-10] + b"\xff" * 10, b""):
        remove(name)
        put(name, bad)
        caplog.clear()
        assert ids(complete(root)) == list(range(200))
        assert "its rows are computed again" in caplog.text
        assert objects(root)[name] == good, "and put in its place"


def test_a_damaged_row_is_an_error_once(root: str) -> None:
    ds = complete(root)
    assert ids(ds) == list(range(200))
    name = chunks_of(root)[2]
    good = objects(root)[name]
    bad = good.replace((90).to_bytes(8, "little"), (91).to_bytes(8, "little"))
    put(name, bad)
    iterator = iter(complete(root))
    seen: list[int] = []
    states = [iterator.state_dict()]

    def read_on() -> None:
        for batch in iterator:
            seen.extend(batch["id"].to_pylist())
            states.append(iterator.state_dict())

    with pytest.raises(af.SourceError, match=r"checksum.*iterate again, from the last state"):
        read_on()
    again = iter(complete(root))
    again.load_state_dict(states[-1])
    assert seen + [row for batch in again for row in batch["id"].to_pylist()] == list(range(200))
    assert ids(complete(root)) == list(range(200))
    put(name, bad)
    assert ids(complete(root, verify="never")) == [*range(90), 91, *range(91, 200)], "nobody asked"


def test_a_damaged_chunk_that_nobody_may_remove(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(objects: Objects, name: str) -> None:
        raise af.WriteError("read only")

    assert ids(complete(root)) == list(range(200))
    monkeypatch.setattr(Objects, "remove", refuse)
    put(chunks_of(root)[2], b"damaged")
    for _ in range(2):
        assert ids(complete(root)) == list(range(200))


def test_damaged_rows_that_nobody_may_remove(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(objects: Objects, name: str) -> None:
        raise af.WriteError("read only")

    assert ids(complete(root)) == list(range(200))
    name = chunks_of(root)[2]
    put(name, objects(root)[name].replace((90).to_bytes(8, "little"), (91).to_bytes(8, "little")))
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "remove", refuse)
        refused(
            af.SourceError, lambda: complete(root).to_table(), "cannot be removed from here: remove it", name
        )
    remove(name)
    assert ids(complete(root)) == list(range(200))


def test_a_chunk_that_is_removed_before_its_rows_are_fetched(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(chunk: shared_entry.FarChunk) -> Chunk:
        if chunk.name.first_row == 80:
            remove(*(name for name in chunks_of(root) if "/000000000000080-" in name))
        return load(chunk)

    assert ids(complete(root)) == list(range(200))
    load = shared_entry.FarChunk.load
    monkeypatch.setattr(shared_entry.FarChunk, "load", late)
    refused(
        af.SourceError, lambda: complete(root).to_table(), "removed while it was read", "from the last state"
    )
    monkeypatch.setattr(shared_entry.FarChunk, "load", load)
    assert ids(complete(root)) == list(range(200))


def test_chunks_that_are_removed_behind_a_listing(root: str) -> None:
    assert ids(complete(root)) == list(range(200))
    ds = complete(root)  # which is planned when all chunks are there
    for kept in (slice(0), slice(1), slice(3), slice(2, 3), slice(0)):
        assert ids(ds) == list(range(200))
        names = chunks_of(root)
        remove(*({*names} - {*names[kept]}))
    assert ids(ds) == list(range(200))
    assert "complete, 200 rows" in complete(root).explain()


def test_a_whole_pass_that_is_removed_behind_a_listing(root: str) -> None:
    runs = itertools.count()
    assert {*rows_of(rerun(root, runs), "run")} == {0}
    ds = rerun(root, runs)
    assert {*rows_of(ds, "run")} == {0}
    remove(*objects(root))
    assert rows_of(ds, "run") == rows_of(ds, "run") == [1] * 200


def test_the_mark_of_a_whole_pass_that_goes_while_it_is_read(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a pass that has lost a chunk makes way."""
    runs = itertools.count()
    assert {*rows_of(rerun(root, runs), "run")} == {0}
    read = Objects.read

    def late(found: Objects, name: str, size: int) -> pa.Buffer:
        remove(*(each for each in objects(root) if each.endswith("/whole")))
        return read(found, name, size)

    monkeypatch.setattr(Objects, "read", late)
    assert rows_of(rerun(root, runs), "run") == [1] * 200


def test_the_mark_of_a_whole_pass_that_somebody_changed(root: str) -> None:
    runs = itertools.count()
    rerun(root, runs).to_table()
    (mark,) = (name for name in objects(root) if name.endswith("/whole"))
    put(mark, b"../../elsewhere")
    refused(
        af.SourceError, lambda: rerun(root, runs).to_table(), "cached pass", "remove the object", "/whole"
    )
    remove(mark)
    for _ in range(2):
        assert rows_of(rerun(root, runs), "run") == [1] * 200


# ---------------------------------------------------------------------------------------------- what is refused


def test_addresses_that_are_no_place_for_a_cache(tmp_path: Path) -> None:
    ds = af.range(3)
    refused(
        af.PlanError, lambda: ds.cache("https://host/cache").to_table(), "HTTPFileSystem", "s3fs", "folder"
    )
    refused(af.MissingPackageError, lambda: ds.cache("oss://bucket/cache").to_table(), "oss://", "ossfs")
    for given in ("simplecache::s3://bucket/cache", "zip://a::b.zip", "file:///tmp/cache"):
        refused(af.PlanError, lambda given=given: ds.cache(given), "address of an object store")  # type: ignore[misc]
    refused(af.SourceError, lambda: ds.cache("nosuch://x").to_table(), "nosuch")
    refused(af.PlanError, lambda: ds.cache(storage_options={}), "storage_options= is for a cache in a folder")
    refused(af.PlanError, lambda: ds.cache("memory://x/c", on_full="bypass"), "on_full", "no room")
    assert ids(ds.cache(tmp_path / "local", storage_options={"key": "x"})) == [0, 1, 2], (
        "as readers, it ignores them"
    )


def test_random_access_takes_a_copy(root: str, tmp_path: Path) -> None:
    ds = af.range(100).cache(root)
    refused(af.PlanError, lambda: ds.shuffle().to_table(), "another machine", 'cache("folder")')
    assert sorted(ids(ds.cache(tmp_path / "copy").shuffle(seed=1))) == list(range(100))
    assert sorted(ids(ds.shuffle(10, seed=1))) == list(range(100))


def test_secrets_stay_in_the_arguments(root: str) -> None:
    ds = af.range(3).cache("s3://me:s3cr3t@bucket/cache", storage_options={"secret": "s3cr3t"})
    assert "s3cr3t" not in repr(ds)
    mine = af.range(3).cache(root, storage_options={"skip_instance_cache": True})
    assert ids(pickle.loads(pickle.dumps(mine))) == [0, 1, 2]
    text = mine.explain()
    assert "fetches all columns" in mine.to_numpy().explain(copies=True)
    assert f"cache({root!r})" in text and f"in {root}/" in text and "compute the same rows" in text


# ---------------------------------------------------------------------------------------------- S3


def in_s3(server: S3Server, bucket: str, url: str | None = None) -> dict[str, Any]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    options = {**server.storage_options(url), "skip_instance_cache": True}
    return {"path": f"s3://{bucket}/cache", "storage_options": options}


def keys(server: S3Server, bucket: str) -> list[str]:
    found: list[str] = server.impatient().find(bucket)
    return found


@pytest.mark.slow
def test_an_entry_in_s3(s3_server: S3Server, s3_proxy: Proxy) -> None:
    bucket = s3_server.bucket()
    place = in_s3(s3_server, bucket, s3_proxy.url)
    ds = (
        af.range(200)
        .with_options(af.Options(max_chunk_rows=40))
        .map(lambda batch: batch)
        .cache(key="k", **place)
    )
    first = batches_of(ds)
    told = [line for line in ds.explain().splitlines() if "compute the same rows" in line]
    assert told and all(f"s3://{bucket}/cache/" in line for line in told)
    s3_proxy.forget()
    assert_same_batches(batches_of(ds), first)
    assert s3_proxy.count("PUT") == 0, "a complete entry can be read by who cannot write"
    # The arguments of pyarrow's client, which readers take for the same address, are those of s3fs.
    host = s3_server.url.removeprefix("http://")
    options = {"access_key": "testing", "secret_key": "secret of a test", "region": "us-east-1"}
    again = af.range(200).with_options(af.Options(max_chunk_rows=40)).map(lambda batch: batch)
    native = again.cache(
        place["path"], key="k", storage_options={**options, "endpoint_override": host, "scheme": "http"}
    )
    assert_same_batches(batches_of(native), first)
    assert len({key.split("/")[2] for key in keys(s3_server, bucket)}) == 1, "one entry"


@pytest.mark.slow
def test_an_entry_in_s3_through_faults(s3_server: S3Server, s3_proxy: Proxy) -> None:
    """Also where a put succeeds and its answer is lost: the next try finds the object, as if of another writer."""
    faults: Iterator[Fault | None] = itertools.cycle(("lost", None, "unavailable", None, "reset"))
    s3_proxy.plan = lambda request: Fate(None if request.attempt else next(faults))
    ds = af.range(60).with_options(af.Options(max_chunk_rows=10, retries=20)).map(lambda batch: batch)
    ds = ds.cache(key="k", **in_s3(s3_server, s3_server.bucket(), s3_proxy.url))
    for method in ("PUT", "GET"):
        s3_proxy.forget()
        assert ids(ds) == list(range(60))
        assert {*s3_proxy.faults} == {"lost", "unavailable", "reset"}
        assert s3_proxy.count(method) > 5
    assert s3_proxy.count("PUT") == 0


class Careless(Proxy):
    """A store that does not know the condition, and overwrites."""

    async def _met(
        self, fate: Fate, request: Request, head: bytes, body: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"if-none-match")]
        return await super()._met(fate, request, b"\r\n".join(lines), body, writer)


class Refusing(Proxy):
    """A store that knows that it does not know the condition."""

    async def _met(
        self, fate: Fate, request: Request, head: bytes, body: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        if b"if-none-match" not in head.lower():
            return await super()._met(fate, request, head, body, writer)
        text = b"<Error><Code>NotImplemented</Code><Message>A header you provided implies functionality</Message></Error>"
        writer.write(b"HTTP/1.1 501 Not Implemented\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        await writer.drain()
        return True


@pytest.mark.parametrize("kind", [Careless, Refusing])
def test_a_store_without_conditions_is_told_before_a_row_is_computed(
    s3_server: S3Server, kind: type[Proxy], tmp_path: Path
) -> None:
    log = Log(tmp_path / "log")
    with kind(s3_server.address) as proxy:
        place = in_s3(s3_server, s3_server.bucket(), proxy.url)
        ds = af.range(9).map(log).cache(**place)
        refused(af.WriteError, lambda: next(iter(ds)), "If-None-Match", "path of a folder", "s3://")
    assert log.rows == []


def test_a_store_that_cannot_be_reached_or_written(s3_server: S3Server) -> None:
    place = in_s3(s3_server, "bucket-that-is-missing")
    refused(
        af.SourceError,
        lambda: af.range(3).cache(**place).to_table(),
        "bucket-that-is-missing",
        "cannot be listed",
    )
    place["storage_options"]["client_kwargs"] = {"nosuch": 1}
    refused(
        af.PlanError,
        lambda: af.range(3).cache(**place).to_table(),
        "storage_options['client_kwargs'] has 'nosuch'",
        "region_name",
    )


PROGRAM = """
import os, sys
import arrowflow as af

bucket, url, pause = sys.argv[1:]
options = {"key": "testing", "secret": "secret of a test", "client_kwargs": {"endpoint_url": url}}

def slow(batch):
    os.write(1, b".")
    if pause == "held" and batch["id"][0].as_py() >= 150:
        sys.stdin.read(1)
    return batch

ds = af.range(300).with_options(af.Options(max_chunk_rows=10)).map(slow, num_parallel_calls=1)
ds = ds.cache(f"s3://{bucket}/cache", key="program", storage_options=options)
sys.stdin.read(1)
for batch in ds:
    for row in batch["id"].to_pylist():
        os.write(2, b"%d\\n" % row)
"""


def program(server: S3Server, bucket: str, pause: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, bucket, server.url, pause]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def same_here(server: S3Server, bucket: str) -> list[int]:
    """Reads the rows of the program in this process, and returns those that were computed for it."""
    computed: list[int] = []

    def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
        computed.extend(batch["id"].to_pylist())
        return batch

    ds = af.range(300).with_options(af.Options(max_chunk_rows=10)).map(noted, num_parallel_calls=1)
    assert ids(ds.cache(key="program", **in_s3(server, bucket))) == list(range(300))
    return computed


@pytest.mark.slow
def test_two_processes_that_fill_one_entry_at_once(s3_server: S3Server) -> None:
    in_s3(s3_server, "")
    bucket = s3_server.bucket()
    both = [program(s3_server, bucket) for _ in range(2)]
    for each in both:
        assert each.stdin is not None
        each.stdin.write(b"x")
        each.stdin.flush()
    for each in both:
        _, seen = each.communicate(timeout=60)
        assert [int(row) for row in seen.split()] == list(range(300))
    assert same_here(s3_server, bucket) == [], "all of it is there"


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_what_it_delivered(s3_server: S3Server) -> None:
    in_s3(s3_server, "")
    bucket = s3_server.bucket()
    killed = program(s3_server, bucket, "held")
    assert killed.stdin is not None and killed.stderr is not None
    killed.stdin.write(b"x")
    killed.stdin.flush()
    seen = [int(killed.stderr.readline()) for _ in range(100)]
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert seen == list(range(100))
    # Puts that were on their way leave gaps. A run reads ahead where it fills one, and may compute rows twice, but not these.
    assert min(same_here(s3_server, bucket)) >= 100, "the first hundred rows are not computed again"

"""Objects of S3 that are replaced at any moment: all rows of an object are of one version, or an error says that it changed."""

from __future__ import annotations

import io
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowflow as af
from tests.effort import scaled
from tests.fuzz.watch import kinds
from tests.servers.proxy import Fate, Plan, Proxy, Request
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.any_version

OBJECT, VERSION = 10**8, 10**7
MOST_ROWS: Final = 20_000
SPARE_BYTES: Final = 8_000
"""Bytes for the headers and footers of all layouts: objects with as many rows are equally long."""


@dataclass(frozen=True, slots=True)
class Layout:
    """An object: small ones come with their footers, and those of one row group are fetched by one request more."""

    rows: int
    groups: int

    def content(self, number: int, version: int) -> bytes:
        """Returns the bytes; a value tells object, version and row."""
        first = number * OBJECT + version * VERSION
        table = pa.table({"x": pa.array(range(first, first + self.rows), pa.int64())})
        sink = io.BytesIO()
        groups = -(-self.rows // self.groups)
        pq.write_table(
            table,
            sink,
            row_group_size=groups,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )
        data = sink.getvalue()
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        return data[:footer] + b"\0" * (self.rows * 8 + SPARE_BYTES - len(data)) + data[footer:]


LAYOUTS = st.builds(Layout, st.sampled_from([1000, MOST_ROWS, MOST_ROWS]), st.sampled_from([1, 1, 2, 4]))


class Bucket:
    """A bucket of the server; `objects` are what its objects hold."""

    def __init__(self, server: S3Server, layouts: list[Layout]) -> None:
        self._client = server.native()
        self.name = server.bucket()
        self.objects: dict[int, dict[int, Layout]] = defaultdict(dict)
        for number, layout in enumerate(layouts):
            self.put(number, layout)

    @property
    def folder(self) -> str:
        return f"{self.name}/data"

    def path(self, number: int) -> str:
        return f"{self.folder}/{number}.parquet"

    def put(self, number: int, layout: Layout) -> None:
        """Writes an object, or its next version."""
        version = len(self.objects[number])
        self.objects[number][version] = layout
        with self._client.open_output_stream(self.path(number)) as sink:
            sink.write(layout.content(number, version))

    def replaces(self, number: int, layout: Layout, moment: int) -> Plan:
        """Returns what replaces an object before a request of objects, by its number: listings do not count."""
        requests = itertools.count()

        def plan(request: Request) -> Fate:
            if ".parquet" in request.target and next(requests) == moment:
                self.put(number, layout)
            return Fate()

        return plan

    def check(self, rows: list[int], *, ended: bool) -> None:
        """Checks that the rows of each object are of one version; that they are all of them, too, if the run has ended."""
        for number, layouts in self.objects.items():
            own = [row % OBJECT for row in rows if row // OBJECT == number]
            versions = {row // VERSION for row in own}
            assert len(versions) == 1 or (not versions and not ended), (
                f"object {number} in versions {versions}"
            )
            found = [row % VERSION for row in own]
            whole = range(layouts[versions.pop()].rows) if versions else range(0)
            assert found == list(whole) if ended else found == list(whole)[: len(found)]


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with Proxy(s3_server.address) as proxy:
        yield proxy


def client_of(kind: str, server: S3Server, proxy: Proxy) -> Any:
    if kind == "native":
        return server.native(proxy.url)
    pytest.importorskip("s3fs")
    return server.impatient(proxy.url)


@settings(max_examples=scaled(12), database=None, deadline=None)
@given(
    kind=st.sampled_from(["native", "s3fs"]),
    layouts=st.lists(LAYOUTS, min_size=1, max_size=2),
    victim=st.integers(0, 1),
    replacement=st.none() | LAYOUTS,
    moment=st.integers(0, 25),
    by_folder=st.booleans(),
    calls=st.sampled_from([af.AUTOTUNE, 1]),
)
def test_rows_are_of_one_version(
    s3_server: S3Server,
    proxy: Proxy,
    kind: str,
    layouts: list[Layout],
    victim: int,
    replacement: Layout | None,
    moment: int,
    by_folder: bool,
    calls: int,
) -> None:
    """An object is replaced before a request of the run; None stands for a version of its own layout."""
    bucket = Bucket(s3_server, layouts)
    victim %= len(layouts)

    paths: Any = bucket.folder if by_folder else [bucket.path(number) for number in range(len(layouts))]
    proxy.plan = bucket.replaces(victim, replacement or layouts[victim], moment)
    filesystem = client_of(kind, s3_server, proxy)
    rows: list[int] = []
    error = ""
    try:
        for batch in af.read_parquet(paths, filesystem=filesystem, num_parallel_calls=calls).batch(1000):
            rows += batch["x"].to_pylist()
    except af.SourceError as raised:
        error = str(raised)
    kinds[
        "changed" if error else "replaced in time" if len(bucket.objects[victim]) > 1 else "not replaced"
    ] += 1
    assert not error or "changed" in error
    bucket.check(rows, ended=not error)


@settings(max_examples=scaled(6), database=None, deadline=None)
@given(
    layouts=st.lists(LAYOUTS, min_size=1, max_size=2),
    victim=st.integers(0, 1) | st.none(),
    replacement=LAYOUTS,
    batches=st.integers(1, 20),
)
def test_a_state_knows_the_version(
    s3_server: S3Server,
    proxy: Proxy,
    layouts: list[Layout],
    victim: int | None,
    replacement: Layout,
    batches: int,
) -> None:
    """By s3fs, which tells etags: listings of pyarrow have whole seconds."""
    bucket = Bucket(s3_server, layouts)
    proxy.plan = lambda request: Fate()
    filesystem = client_of("s3fs", s3_server, proxy)
    ds = af.read_parquet(bucket.folder, filesystem=filesystem).batch(1000)
    rows: list[int] = []
    with iter(ds) as iterator:
        for _ in range(batches):
            if (batch := next(iterator, None)) is None:
                rows.clear()  # the state is the start of the next epoch
                break
            rows += batch["x"].to_pylist()
        state = json.loads(json.dumps(iterator.state_dict()))
    if victim is not None:
        bucket.put(victim % len(layouts), replacement)
        filesystem.invalidate_cache()
    with iter(af.read_parquet(bucket.folder, filesystem=filesystem).batch(1000)) as iterator:
        if victim is not None:
            with pytest.raises(af.StateError):
                iterator.load_state_dict(state)
        else:
            iterator.load_state_dict(state)
            for batch in iterator:
                rows += batch["x"].to_pylist()
            bucket.check(rows, ended=True)
    kinds["resumed" if victim is None else "refused"] += 1

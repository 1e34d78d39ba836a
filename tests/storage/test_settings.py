"""`storage_options=`, and addresses that only fsspec knows: chains, archives, caches, drivers that are missing."""

from __future__ import annotations

import pickle
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.storage import CONNECTIONS, Settings, locate, place_of, resolve
from arrowflow.storage.settings import without_secrets
from tests.ops.tables import ids, refused
from tests.servers.s3 import KEY, SECRET, S3Server
from tests.servers.web import WebServer

pytestmark = pytest.mark.any_version


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    """An archive with two files of three rows in the folder `in`."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(2):
            pq.write_table(pa.table({"id": range(3 * number, 3 * number + 3)}), tmp_path / "part")
            archive.write(tmp_path / "part", f"in/{number}.parquet")
    return tmp_path / "a.zip"


@pytest.fixture
def memory() -> Iterator[Any]:
    client = fsspec.filesystem("memory")
    for number in range(2):
        with client.open(f"/chained/{number}.parquet", "wb") as file:
            pq.write_table(pa.table({"id": range(3 * number, 3 * number + 3)}), file)
    yield client
    client.rm("/chained", recursive=True)


def native_options(server: S3Server) -> dict[str, Any]:
    return {"access_key": KEY, "secret_key": SECRET, "region": "us-east-1", "endpoint_override": server.url}


@pytest.mark.parametrize("kind", ["s3fs", "native"])
def test_options_of_s3(s3_server: S3Server, kind: str) -> None:
    if kind == "s3fs":
        pytest.importorskip("s3fs", reason="s3fs is not installed")
    options = s3_server.storage_options() if kind == "s3fs" else native_options(s3_server)
    place = f"s3://{s3_server.bucket()}/out"
    af.range(5).write_parquet(place, storage_options=options, shard_rows=3)
    af.range(2).write_ipc(f"{place}-ipc", storage_options=options)
    assert ids(af.read_ipc(f"{place}-ipc", storage_options=options)) == [0, 1]
    ds = af.read_parquet(f"{place}/*.parquet", storage_options=options)
    assert ids(ds) == ids(pickle.loads(pickle.dumps(ds))) == list(range(5))
    store, _ = resolve(place, filesystem=Settings(options), suffixes=(".parquet",), operator="read")
    assert store.is_python == (kind == "s3fs")
    if kind == "s3fs":
        assert store.connections == CONNECTIONS
    listed = af.list_files(place, storage_options=options).to_table().column("path").to_pylist()
    assert listed == [f"{place}/part-0000{number}.parquet" for number in range(2)]
    again = af.list_files(place, storage_options=options).interleave(
        lambda row: af.read_parquet(row["path"], storage_options=options), cycle_length=1
    )
    assert ids(again) == list(range(5))


def test_connections_that_a_user_names_stay(s3_server: S3Server) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    options = {**s3_server.storage_options(), "config_kwargs": {"max_pool_connections": 7}}
    client, _ = locate("s3://bucket/a", filesystem=Settings(options), operator="read")
    assert client.handler.fs.config_kwargs == {"max_pool_connections": 7}
    chained = {"s3": s3_server.storage_options()}
    client, _ = locate("simplecache::s3://bucket/a", filesystem=Settings(chained), operator="read")
    assert client.handler.fs.fs.config_kwargs == {"max_pool_connections": CONNECTIONS}
    assert "config_kwargs" not in chained["s3"], "what the user gave is left alone"


def test_credentials_are_in_pickles_alone(s3_server: S3Server) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    options = s3_server.storage_options()
    place = f"s3://{s3_server.bucket()}/out"
    af.range(5).write_parquet(place, storage_options=options)
    ds = af.read_parquet(place, storage_options=options)
    iterator = iter(ds)
    next(iterator)
    told = [repr(ds), str(iterator.state_dict()), ds.explain(), iterator.explain(), str(iterator.stats())]
    iterator.close()
    for bad in (
        af.read_parquet(f"{place}/none", storage_options=options),
        af.read_parquet(place, storage_options={**options, "bad": SECRET}),
        af.read_parquet(f"unknown://{KEY}:{SECRET}@bucket/x"),
    ):
        told.append(repr(bad))
        with pytest.raises(af.ArrowflowError) as caught:
            bad.to_table()
        told.append(str(caught.value))
    assert not [text for text in told if SECRET in text]
    assert SECRET.encode() in pickle.dumps(ds)


def test_signatures_of_urls_are_nowhere(tmp_path: Path, web_server: WebServer) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    for name in ("a", "broken"):
        pq.write_table(pa.table({"id": range(9)}), tmp_path / f"{name}.parquet", row_group_size=3)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1" + bytes(99) + b"PAR1")
    made = [af.read_parquet(f"{web_server.url}/a.parquet?v=1&sig={sig}") for sig in ("c0ffee", "decade")]
    told, states = [], []
    for ds in made:
        with iter(ds) as iterator:
            next(iterator)
            states.append(iterator.state_dict())
            told += [repr(ds), ds.explain(), iterator.explain(), str(iterator.stats())]
    for name in ("broken", "none"):
        with pytest.raises(af.SourceError) as caught:
            af.read_parquet(f"{web_server.url}/{name}.parquet?sig=c0ffee").to_table()
        assert name in str(caught.value)
        told.append(str(caught.value))
    assert not [text for text in (*told, str(states)) if "c0ffee" in text]
    with iter(made[1]) as iterator:
        iterator.load_state_dict(states[0])  # signatures last for hours, and a state for longer
        assert [row for batch in iterator for row in batch["id"].to_pylist()] == list(range(3, 9))


def test_options_decide_no_fingerprint(tmp_path: Path) -> None:
    af.range(3).write_parquet(tmp_path / "a")
    made = [
        af.read_parquet(tmp_path / "a", storage_options=options).cache(tmp_path / "cache")
        for options in ({"key": "one"}, {"key": "two"})
    ]
    assert [ids(ds) for ds in made] == [[0, 1, 2]] * 2
    assert len(af.cache_info(tmp_path / "cache")) == 1


def test_arguments() -> None:
    wrong: tuple[Any, ...] = (3, ["key"], {1: "a"})
    for options in wrong:
        refused(af.PlanError, partial(af.read_csv, "a.csv", storage_options=options), "read_csv", "mapping")
    given = {"key": "a secret"}
    calls: tuple[Callable[[], object], ...] = (
        lambda: af.read_parquet("a", filesystem=fsspec.filesystem("memory"), storage_options=given),
        lambda: af.list_files("a", filesystem=fsspec.filesystem("memory"), storage_options=given),
        lambda: af.range(3).write_parquet("a", filesystem=fsspec.filesystem("memory"), storage_options=given),
    )
    for call in calls:
        refused(af.PlanError, call, "give one of both")
    assert place_of("read", None, None) is None
    assert repr(Settings(given)) == "Settings(key=…)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://a:b/c@bucket/x", "s3://…@bucket/x"),
        ("hdfs://user@host/x", "hdfs://user@host/x"),
        ("https://h/a?X-Amz-Signature=abc&v=1", "https://h/a?X-Amz-Signature=…&v=1"),
        ("/data/a:b@c", "/data/a:b@c"),
        ("s3://key:s@e@bucket/x@y", "s3://…@bucket/x@y"),
        ("https://token@h/a", "https://…@h/a"),
        ("https://h/a?v=1;sig=abc&auth=x", "https://h/a?v=1;sig=…&auth=…"),
    ],
)
def test_urls_without_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize("scheme", ["simplecache", "filecache"])
def test_caches_of_fsspec(memory: Any, tmp_path: Path, scheme: str) -> None:
    options = {scheme: {"cache_storage": str(tmp_path / "kept")}}
    url = f"{scheme}::memory://chained/*.parquet"
    assert ids(af.read_parquet(url, storage_options=options)) == list(range(6))
    assert list((tmp_path / "kept").iterdir())
    listed = af.list_files(url, storage_options=options).to_table().column("path").to_pylist()
    assert listed == [f"{scheme}::memory://chained/{number}.parquet" for number in range(2)]
    assert ids(af.read_parquet(listed, storage_options=options)) == list(range(6))


def test_a_cache_in_front_of_a_web_server(tmp_path: Path, web_server: WebServer) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    pq.write_table(pa.table({"id": range(9)}), tmp_path / "a.parquet")
    options = {"cache_storage": str(tmp_path / "kept")}
    url = f"simplecache::{web_server.url}/a.parquet"
    assert ids(af.read_parquet(url, storage_options=options)) == list(range(9))
    (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    assert [path.stat().st_size for path in (tmp_path / "kept").iterdir()] == [
        (tmp_path / "b.parquet").stat().st_size
    ]


@pytest.mark.parametrize("inside", ["in/*.parquet", "in", "in/0.parquet"])
@pytest.mark.parametrize("start", ["file://", ""])
def test_members_of_an_archive(zipped: Path, inside: str, start: str) -> None:
    url = f"zip://{inside}::{start}{zipped}"
    rows = list(range(3 if inside.endswith("0.parquet") else 6))
    assert ids(af.read_parquet(url)) == rows
    listed = af.list_files(url).to_table().column("path").to_pylist()
    assert listed[0] == f"zip://in/0.parquet::{start}{zipped}"
    assert ids(af.read_parquet(listed)) == rows


def test_archives_in_the_home_of_the_user(
    tmp_path: Path, zipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ids(af.read_parquet("zip://in/0.parquet::~/a.zip")) == [0, 1, 2]


def test_colons_in_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    af.range(3).write_parquet("a::b")
    assert ids(af.read_parquet("a::b")) == [0, 1, 2]


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("hf://datasets/someone/something/*.parquet", "huggingface_hub", "huggingface_hub"),
        ("simplecache::hf://datasets/someone/something/a.parquet", "huggingface_hub", "huggingface_hub"),
        ("https://localhost/a.parquet", "aiohttp", "aiohttp"),
        ("memory://a.parquet", "fsspec.core", "fsspec"),
    ],
)
def test_missing_drivers_name_their_package(
    url: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("fsspec.implementations.http")]:
        monkeypatch.delitem(sys.modules, name)
    for scheme in ("hf", "https"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    refused(af.MissingPackageError, lambda: af.read_parquet(url).schema, f"pip install {package}")


@pytest.mark.parametrize("secret", [("user", "s3cret-key"), ["s3cret-key"], b"s3cret-key"])
def test_secrets_in_lists_and_bytes(secret: Any) -> None:
    settings = Settings({"client_kwargs": {"auth": secret}})
    assert without_secrets("the server said s3cret-key", settings) == "the server said …"


def test_words_of_a_path_are_no_secrets() -> None:
    settings = Settings({"key": "test", "secret": "testtest", "token": "abc/def+123="})
    text = "s3://test-bucket/latest/testtests and 'testtest', token=abc/def+123=;"
    assert without_secrets(text, settings) == "s3://test-bucket/latest/testtests and '…', token=…;"


KEYS: dict[str, Any] = {"key": "a-key-of-s3", "secret": "a-secret-of-s3"}


def users(address: str, options: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """A reader, a cache and all writers of an address."""
    ds = af.range(3).map(lambda row: {"id": row["id"], "__key__": str(row["id"]), "txt": "a"})
    kinds = ("parquet", "ipc", "csv", "json", "tfrecord", "webdataset")
    writers = {kind: getattr(ds, f"write_{kind}") for kind in kinds}
    return {
        "read": lambda: af.read_parquet(f"{address}.parquet", storage_options=options).schema,
        "cache": lambda: af.range(3).cache(address, storage_options=options).to_table(),
        **{kind: partial(write, address, storage_options=options) for kind, write in writers.items()},
    }


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"access_kye": 1},
            [
                "storage_options has 'access_kye', which the client of s3:// does not know",
                "access_key",
                "endpoint_url",
            ],
        ),
        (
            {"client_kwarg": {}, **KEYS},
            [
                "storage_options has 'client_kwarg', which the client of s3:// does not know",
                "access_key",
                "endpoint_url",
            ],
        ),
        ({"keyy": 1}, ["storage_options has 'keyy'", "did you mean 'key'?", "access_key, anon"]),
        ({"region": "eu", "anonn": True}, ["storage_options has 'anonn'", "did you mean 'anon'"]),
        ({"region": 5}, ["storage_options['region']", "expected a string, got int"]),
        ({"region": 5, "anon": True}, ["storage_options['region']", "expected a string, got int"]),
        ({"endpoint_url": 5}, ["storage_options['endpoint_url']", "expected a string, got int"]),
        ({"client_kwargs": "x"}, ["storage_options['client_kwargs']", "expected a mapping", "got str"]),
        (
            {**KEYS, "client_kwargs": {"endpointt": 1}},
            [
                "storage_options['client_kwargs'] has 'endpointt'",
                "did you mean 'endpoint_url'?",
                "region_name",
            ],
        ),
        (
            {**KEYS, "client_kwargs": {"region_name": 5}},
            ["storage_options['client_kwargs']['region_name']", "expected a string, got int"],
        ),
        (
            {**KEYS, "config_kwargs": {"read_timeou": 1}},
            [
                "storage_options['config_kwargs'] has 'read_timeou'",
                "did you mean 'read_timeout'",
                "signature_version",
            ],
        ),
    ],
    ids=lambda each: ", ".join(each) if isinstance(each, dict) else "",
)
def test_wrong_settings_of_readers_writers_and_caches(options: dict[str, Any], told: list[str]) -> None:
    pytest.importorskip("s3fs")
    calls = users("s3://bucket/x", options)
    for name in calls if "keyy" in options else ("read", "cache", "parquet"):
        refused(af.PlanError, calls[name], *told)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"heders": {}}, ["storage_options has 'heders'", "did you mean 'headers'", "client_kwargs"]),
        (
            {"client_kwargs": {"heders": {}}},
            ["storage_options['client_kwargs'] has 'heders'", "did you mean 'headers'", "cookies"],
        ),
    ],
)
def test_wrong_settings_of_web_servers(options: dict[str, Any], told: list[str]) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    for name, call in users("http://localhost:9/x", options).items():
        if name != "cache":  # web servers have none
            refused(af.PlanError, call, *told)


def test_wrong_settings_of_a_link_in_a_chain() -> None:
    pytest.importorskip("s3fs")
    wrong = users("simplecache::s3://bucket/x", {"s3": {"anonn": True}})
    told = [
        "storage_options['s3'] has 'anonn', which the client of s3:// does not know",
        "did you mean 'anon'",
    ]
    refused(af.PlanError, wrong["read"], *told)
    refused(af.PlanError, wrong["parquet"], *told)
    for options in ({"s3": 5}, {"s3": {"client_kwargs": 5}}):
        refused(
            af.PlanError, users("simplecache::s3://b/x", options)["read"], "expected a mapping", "got int"
        )


def test_settings_of_both_clients_of_s3_for_a_reader(s3_server: S3Server) -> None:
    pytest.importorskip("s3fs")
    options = {**native_options(s3_server), "default_block_size": 8 << 20}
    place = f"s3://{s3_server.bucket()}/out"
    af.range(3).write_parquet(place, storage_options=options)
    assert ids(af.read_parquet(place, storage_options=options)) == [0, 1, 2]


def test_credentials_that_a_writer_lacks() -> None:
    """The client says it with an error of its own."""
    pytest.importorskip("s3fs")
    call = partial(af.range(3).write_parquet, "s3://bucket/x", storage_options={"key": "a-key-of-s3"})
    refused(
        af.WriteError, call, "write_parquet", "PartialCredentialsError", "check the address, the credentials"
    )


def test_a_value_that_a_client_refuses_where_it_writes(s3_server: S3Server) -> None:
    pytest.importorskip("s3fs")
    options = {**s3_server.storage_options(), "default_block_size": 9}
    call = partial(af.range(3).write_parquet, f"s3://{s3_server.bucket()}/x", storage_options=options)
    refused(af.WriteError, call, "Block size must be >=5MB", "storage_options=")


ENDINGS = ("tar", "tar.gz", "tgz", "tar.bz2", "tbz2", "TBZ", "tar.xz", "txz")


@pytest.mark.parametrize(
    ("ending", "link"),
    [*((ending, "") for ending in ENDINGS), ("tgz", "simplecache::file://"), ("TBZ", "zip://")],
)
def test_archives_of_tar_by_the_end_of_their_names(ending: str, link: str, tmp_path: Path) -> None:
    path, mode = tmp_path / f"s.{ending}", {"g": "w:gz", "b": "w:bz2", "x": "w:xz"}
    codec = next((mode[each] for each in mode if each in ending.lower()), "w")
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    with tarfile.open(path, codec) as archive:  # type: ignore[call-overload]
        archive.add(tmp_path / "a.csv", "a.csv")
    if link == "zip://":
        with zipfile.ZipFile(tmp_path / "b.zip", "w") as outer:
            outer.write(path, path.name)
        address = f"tar://a.csv::zip://{path.name}::{tmp_path / 'b.zip'}"
    else:
        address = f"tar://a.csv::{link}{path}"
    assert af.read_csv(address).to_table().to_pydict() == {"x": [1, 2]}

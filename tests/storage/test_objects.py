"""`Objects`: the first put of a name wins, and a store that cannot say so is told apart."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

import arrowflow as af
from arrowflow.storage import Objects, Requests, Settings
from arrowflow.storage.retries import Patience
from tests.ops.tables import refused
from tests.servers.proxy import Fate, Proxy, Request
from tests.servers.s3 import S3Server
from tests.storage.services import Services

pytestmark = pytest.mark.any_version

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


def in_memory() -> Objects:
    return Objects.at(f"memory://{uuid.uuid4().hex}/a/", None, operator="cache", requests=Requests())


def in_s3(server: S3Server, url: str) -> Objects:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    settings = Settings({**server.storage_options(url), "skip_instance_cache": True})
    return Objects.at(f"s3://{server.bucket()}/a", settings, operator="cache", requests=Requests())


def check(objects: Objects) -> None:
    assert objects.sizes("folder") == {}
    assert objects.put("folder/name", b"first")
    assert not objects.put("folder/name", b"second")
    assert objects.put("folder/below/other", b"")
    assert objects.sizes("folder") == {"name": 5}, "what lies in it itself"
    assert objects.read("folder/name", 5).to_pybytes() == b"first"
    objects.check("folder/check", b"{}")
    objects.check("folder/check", b"{}")
    for _ in range(2):
        objects.remove("folder/check")
    assert objects.put("folder/check", b"again")


def test_in_memory() -> None:
    check(in_memory())


def test_in_s3(s3_server: S3Server) -> None:
    check(in_s3(s3_server, s3_server.url))


def test_a_listing_in_memory_while_another_thread_puts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client fails then; it lists anew."""

    def find(client: Any, *args: Any, **kwargs: Any) -> Any:
        if not services.told:
            held = {"a": 1}
            for _ in held:
                held["b"] = 2
        return whole(client, *args, **kwargs)

    services = Services()
    objects = in_memory().served_by(services)
    memory = type(fsspec.filesystem("memory"))
    whole = memory.find
    assert objects.put("folder/name", b"data")
    monkeypatch.setattr(memory, "find", find)
    assert objects.sizes("folder") == {"name": 4}
    assert services.told == ["lost connection"]


@pytest.mark.parametrize(
    ("address", "package", "options"),
    [
        ("gs://bucket/cache", "gcsfs", {"token": "anon"}),
        ("az://container/cache", "adlfs", {"account_name": "name", "anon": True}),
        ("abfs://container@name.dfs.core.windows.net/cache", "adlfs", {"anon": True}),
    ],
)
def test_clients_that_know_the_condition(address: str, package: str, options: dict[str, Any]) -> None:
    """Nobody asks the network for anything before a run does."""
    pytest.importorskip(package, reason=f"{package} is not installed")
    objects = Objects.at(address, Settings(options), operator="cache", requests=Requests())
    assert objects.address == address and objects.root in {"bucket/cache", "container/cache"}


class Answering(Proxy):
    """Answers the first puts by itself."""

    answers: list[tuple[str, str]]

    async def _met(
        self, fate: Fate, request: Request, head: bytes, body: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        if request.method != "PUT" or not self.answers:
            return await super()._met(fate, request, head, body, writer)
        status, code = self.answers.pop(0)
        text = f"<Error><Code>{code}</Code><Message>as told</Message></Error>"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        await writer.drain()
        return True


def test_answers_that_other_stores_give(s3_server: S3Server) -> None:
    with Answering(s3_server.address) as proxy:
        proxy.answers = []
        services = Services()
        objects = in_s3(s3_server, proxy.url).served_by(services)
        proxy.answers = [("412 Precondition Failed", "PreconditionFailed")]
        assert not objects.put("a", b"x"), "without the name of the condition, which only Amazon tells"
        proxy.answers = [("409 Conflict", "ConditionalRequestConflict")] * 2
        assert objects.put("a", b"x"), "another writer gave up"
        assert len(services.told) == 2
        proxy.answers = [("403 Forbidden", "AccessDenied")] * 9
        refused(
            af.WriteError, lambda: objects.put("b", b"x"), "cannot be written", "storage_options=", "s3://"
        )


def test_what_changes_the_store_is_not_hedged() -> None:
    """A second removal might come after the next put, and remove what that made."""
    address = f"memory://{uuid.uuid4().hex}/a/"
    requests = Requests(Patience(hedge_seconds=0.1))
    services = Services()
    objects = Objects.at(address, None, operator="cache", requests=requests).served_by(services)
    objects.check("folder/name", b"data")
    objects.remove("folder/name")
    assert objects.put("folder/name", b"data")
    assert services.told == []
    assert objects.read("folder/name", 4).to_pybytes() == b"data"
    assert objects.sizes("folder") == {"name": 4}
    assert services.told == ["hedged after 0.1 s"] * 2, "reads and listings are"


class Old(type(fsspec.filesystem("memory"))):  # type: ignore[misc]
    """A client from before the condition."""

    protocol = "oldmemory"

    def pipe_file(self, path: str, value: bytes) -> None:
        super().pipe_file(path, value)


def test_a_client_without_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("oldmemory", Old, clobber=True)
    objects = Objects.at("oldmemory://x/a", None, operator="cache", requests=Requests())
    refused(af.WriteError, lambda: objects.check("a", b""), "If-None-Match", "newer client", "mode")

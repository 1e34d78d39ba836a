"""`Objects`: files of an object store that are written whole, and once each: of several writers of a name the first wins.

A put with a condition (`If-None-Match: *` of S3 and Azure, `ifGenerationMatch=0` of Google) creates an object, or is refused
if there is one. Nothing half-written is ever visible. pyarrow's clients have no such put, so fsspec's are used.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar, cast
from urllib.parse import parse_qsl

import pyarrow as pa

from arrowflow.errors import ArrowflowError, PlanError, SourceError, WriteError, said
from arrowflow.lazy import fs as pafs
from arrowflow.storage.clients import connections_of, open_by_fsspec
from arrowflow.storage.requests import Requests, time_limit
from arrowflow.storage.retries import Services, about_credentials, status_of
from arrowflow.storage.settings import Settings, failed, without_secrets
from arrowflow.storage.store import File, Store

T = TypeVar("T")

_CLIENTS: Final = ("s3fs.", "gcsfs.", "adlfs.", "fsspec.implementations.memory.")
"""Starts of modules whose clients put an object by one request if there is none. That of fsspec itself asks first, and then writes."""


@dataclass(frozen=True, slots=True, repr=False)
class Objects:
    """The objects below one prefix of a store. Picklable; many threads may use it at the same time.

    Attributes:
        address: The address of the prefix, without secrets.
        root: The prefix, in the store.
        store: The store, for reads.
        settings: The arguments of its client.
    """

    address: str
    root: str
    store: Store
    settings: Settings | None

    @classmethod
    def at(cls, url: str, settings: Settings | None, *, operator: str, requests: Requests) -> Objects:
        """Opens the store of an address; asks it nothing.

        Raises:
            PlanError: The client of this address has no conditional put.
            MissingPackageError: The client needs a package that is not installed.
            SourceError: The client cannot be made.
        """
        address, _, query = url.partition("?")
        options = {**dict(parse_qsl(query)), **({} if settings is None else settings.options)}
        try:
            client, root = open_by_fsspec(address, options, operator)
        except ArrowflowError:
            raise
        except Exception as error:
            text = f"cannot reach {address!r}: {said(error)}; check the address and storage_options="
            failure = failed(SourceError, text, address, settings, error)
            raise failure.locate(operator=operator) from error
        shown = without_secrets(address, settings).rstrip("/")
        if not any(f"{each.__module__}.".startswith(_CLIENTS) for each in type(client).__mro__):
            raise PlanError(
                f"{operator}: {shown!r} is opened by {type(client).__name__}, which cannot put an object only where there is "
                "none, as writers need that share a place; name an address of s3:// (s3fs), gs:// (gcsfs) or az:// (adlfs), "
                "or the path of a folder"
            )
        filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(client))
        connections = connections_of(filesystem, is_own=False)
        store = Store(filesystem, memory_map=False, connections=connections, requests=requests)
        return cls(shown, root.rstrip("/"), store, settings)

    def served_by(self, services: Services) -> Objects:
        """Returns the same for a run."""
        requests = self.store.requests.served_by(services)
        return replace(self, store=replace(self.store, requests=requests))

    @property
    def services(self) -> Services:
        """Those of the run."""
        return self.store.requests.services

    @property
    def _client(self) -> Any:
        return self.store.filesystem.handler.fs

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns name and size of each object of a folder; nothing if there is none.

        Raises:
            SourceError: The store does not answer, or refuses.
        """
        path = f"{self.root}/{folder}"
        with self._told("cannot be listed", SourceError):
            found = self.store.requests.persist(partial(_found, self._client, path))
        return {
            posixpath.basename(each): int(info["size"])
            for each, info in found.items()
            if posixpath.dirname(each) == path
        }

    def file(self, name: str, size: int) -> File:
        """Returns an object as `store` reads it."""
        return File(f"{self.root}/{name}", name, size)

    def read(self, name: str, size: int) -> pa.Buffer:
        """Returns the bytes of an object; raises as `Store.fetch` does."""
        return self.store.fetch(self.file(name, size), [(0, size)])[0]

    def put(self, name: str, data: bytes) -> bool:
        """Writes an object if there is none of this name. Returns False if there is one, also if another try wrote it.

        Raises:
            WriteError: The store does not answer, refuses, or has no conditions.
        """
        with self._told("cannot be written", WriteError, has_condition=True):
            return self._persist(partial(_put, self._client, f"{self.root}/{name}", data))

    def check(self, name: str, data: bytes) -> None:
        """Writes an object if there is none of this name, and finds out whether the store refuses to write it twice.

        Raises:
            WriteError: The store cannot be written, or overwrites the object.
        """
        if self.put(name, data) and self.put(name, data):
            raise WriteError(
                f"the store of {self.address!r} overwrites an object that was to be put only if there was none "
                f"(If-None-Match); {_WITHOUT}"
            )

    def remove(self, name: str) -> None:
        """Removes an object, which may be gone already.

        Raises:
            WriteError: The store does not answer, or refuses.
        """
        client, path = self._client, f"{self.root}/{name}"
        with self._told("cannot be changed", WriteError), suppress(FileNotFoundError):
            self._persist(lambda seconds: client.rm_file(path, **time_limit(client, seconds)))

    def _persist(self, change: Callable[[float], T]) -> T:
        """Makes a change until it succeeds. It is never made twice at once: the slower one would meet what came after."""
        requests = self.store.requests
        return replace(requests.patience, hedge_seconds=None).persist(change, requests.services)

    @contextmanager
    def _told(self, what: str, kind: type[ArrowflowError], *, has_condition: bool = False) -> Iterator[None]:
        try:
            yield
        except ArrowflowError:
            raise
        except Exception as error:
            text = f"{self.address!r} {what}: {about_credentials(said(error))}; check the address, the credentials, storage_options= and the network"
            # In place of the condition's status: the client does not know the argument that asks for it.
            is_of_arguments = isinstance(error, TypeError) or type(error).__name__ == "ParamValidationError"
            if has_condition and (is_of_arguments or status_of(error) == HTTPStatus.NOT_IMPLEMENTED):
                text = (
                    f"the store of {self.address!r}, or this release of its client, cannot put an object only if there "
                    f"is none (If-None-Match): {said(error)}; {_WITHOUT}"
                )
            raise failed(kind, text, self.address, self.settings, error) from error


_WITHOUT: Final = (
    "install a newer client, name another store, or the path of a folder on a disk or a mounted file system"
)


def _found(client: Any, path: str, seconds: float) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", client.find(path, detail=True, **time_limit(client, seconds)))
    except RuntimeError as error:
        # In memory:// another thread has put an object.
        if "changed size during iteration" in str(error):
            raise ConnectionAbortedError(said(error)) from None
        raise


def _put(client: Any, path: str, data: bytes, seconds: float) -> bool:
    # 8 MiB may take as long to put as any other request may take.
    limit = time_limit(client, seconds * max(1.0, len(data) / (8 << 20)))
    try:
        client.pipe_file(path, data, mode="create", **limit)
    except FileExistsError:
        return False
    except Exception as error:
        status = status_of(error)
        if status == HTTPStatus.PRECONDITION_FAILED:
            return False
        if status == HTTPStatus.CONFLICT:  # another writer is at the same object; who wins is not known yet
            raise ConnectionAbortedError(said(error)) from None
        raise
    return True

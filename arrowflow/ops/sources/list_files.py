"""`list_files`: the paths of files in one column, `path`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, ClassVar, Final, NamedTuple, Self
from urllib.parse import quote, unquote, urlsplit

import polars as pl
import pyarrow as pa

from arrowflow.errors import SourceError
from arrowflow.kernels.items import Made, Origin, Task
from arrowflow.kernels.kinds import SourceKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.lazy import fs as pafs
from arrowflow.ops.sources.dealt import DealtSource
from arrowflow.ops.sources.files.file_identity import files_identity
from arrowflow.options import MAX_CHUNK_ROWS, ResolvedOptions
from arrowflow.plan.file_source import FileSource
from arrowflow.plan.node import BindContext, Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits
from arrowflow.storage import File, Requests, Settings, Store, is_chained, lists_anew, resolve, shown_paths
from arrowflow.types import convert

SCHEMA = pa.schema([pa.field("path", pa.string())])

ANY_SUFFIX: Final = ("",)
"""Every name ends with this suffix: directories give all their files."""

PATH_BYTES: Final = 128
"""Bytes of a path with its offset while a chunk is made: a guess, for the ledger."""

_URL: Final = re.compile(r"(?P<root>[A-Za-z][A-Za-z0-9+.\-]+://[^/?]*)[^?]*(?P<query>\?.*)?", re.DOTALL)
_UNQUOTED: Final = "/=+,:;@&!$'()~"
"""Characters that pyarrow takes literally in the path of a URL, without the `*` that would start a glob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFiles(DealtSource, FileSource):
    """The paths of files as text in the column `path`, listed when the node is bound.

    Row order: as the paths are given; those of a directory or a glob are sorted. Memory: one chunk of at most 65,536 paths a call, and the listing. Deterministic. Resume:
    seeks to the split. A split is 65,536 paths.

    Attributes:
        paths: The paths that the user named.
        filesystem: Where to look, or None to tell by the paths.
        store: Bound: the file system.
        files: Bound: the files, in order.
        names: Bound: the text that is yielded for each file.
    """

    name: ClassVar[str] = "list_files"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, names_files=True, new_memory=True)
    suffixes: ClassVar[tuple[str, ...]] = ANY_SUFFIX

    paths: Any = field(hash=False)
    filesystem: Any = field(default=None, hash=False)
    store: Store | None = field(default=None, compare=False, repr=False)
    files: tuple[File, ...] = field(default=(), compare=False, repr=False)
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def arguments(self) -> Mapping[str, Any]:
        """Returns, once bound, a digest of the files by relative path and size."""
        sources = [[file.relative, file.size] for file in self.files]
        return {"files": len(sources), "sources": sources}

    def identity(self) -> dict[str, Any]:
        """Returns the yielded names, and the identity of the files, which changes with their contents."""
        assert self.store is not None
        return {"names": self.names, **files_identity(self.store, self.files)}

    def describe(self) -> str:
        return f"{self.name}({f'{len(self.files):,} files' if self.bound else shown_paths(self.paths)})"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        store, files = resolve(
            self.paths,
            filesystem=self.filesystem,
            suffixes=self.suffixes,
            operator=self.name,
            requests=Requests.of(context.options, context.services),
        )
        names = tuple(file.path for file in files)
        if (self.filesystem is None or isinstance(self.filesystem, Settings)) and not store.is_local:
            roots = roots_of(self.paths, store)
            names = tuple(as_url(path, roots) for path in names)
        return dataclasses.replace(self, store=store, files=files, names=names).on()

    @property
    def in_memory(self) -> bool:
        """Binding lists the files."""
        return False

    @property
    def is_current(self) -> bool:
        return not lists_anew(
            self.paths,
            self.files,
            store=self.store,
            filesystem=self.filesystem,
            suffixes=self.suffixes,
            operator=self.name,
        )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return SCHEMA

    def count_rows(self, inputs: Sequence[Count]) -> int:
        return len(self.files)

    def part(self, first: int, before: int) -> Self:
        return dataclasses.replace(self, files=self.files[first:before], names=self.names[first:before])

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        return KernelSpec(
            "source",
            lambda context: ListFilesKernel(self.of_epoch(context.epoch).names),
            position=Shape(tuple[int]),
            engine="polars",
        )


class ListFilesKernel(SourceKernel):
    """One task per split; the position is (paths before the next one,)."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def tasks(self, position: Position) -> Iterator[Task]:
        first = 0 if position is None else position[0]
        for start in range(first, len(self._names), MAX_CHUNK_ROWS):
            rows = min(MAX_CHUNK_ROWS, len(self._names) - start)
            yield Task(start, Origin(start // MAX_CHUNK_ROWS), rows * PATH_BYTES)

    def read(self, task: Task) -> Iterator[Made]:
        names = self._names[task.payload : task.payload + MAX_CHUNK_ROWS]
        column = convert(pl.Series(names, dtype=pl.String).to_arrow(), SCHEMA.field(0).type)
        yield Made(pa.RecordBatch.from_arrays([column], schema=SCHEMA), (task.payload + len(names),))


class Root(NamedTuple):
    """The start of the URLs of one server or bucket, and of the paths of its file system.

    Attributes:
        path: Start of the paths, without a slash after it.
        url: Start of the URLs, without a slash after it.
        query: End of the URLs.
        quoted: Whether the URLs escape characters that the paths have literally.
    """

    path: str
    url: str
    query: str
    quoted: bool


def roots_of(given: Any, store: Store) -> list[Root]:
    """Returns the starts of the URLs that a user named, in the order in which the user named them."""
    texts = [fspath(each) for each in ([given] if isinstance(given, str | PathLike) else given)]
    chained = [text for text in texts if is_chained(text)]
    if chained:
        return [root for text in dict.fromkeys(chained) for root in _roots_of_chain(text, store)]
    found = [match for text in texts if (match := _URL.fullmatch(text))]
    starts = dict.fromkeys((match["root"], match["query"] or "") for match in found)
    if store.is_python:
        # fsspec decodes nothing, and leaves a query in the path.
        strip = store.filesystem.handler.fs._strip_protocol
        return [Root(strip(url + "/").rstrip("/"), url, "", quoted=False) for url, _ in starts]
    return [Root(_root_path(url, query, store), url, query, quoted=True) for url, query in starts]


def _root_path(url: str, query: str, store: Store) -> str:
    if store.filesystem.type_name in {"s3", "gcs"}:  # where a client made of the URL might ask the network
        return unquote(urlsplit(url).netloc.rpartition("@")[2])
    return str(pafs.FileSystem.from_uri(f"{url}/{query}")[1]).rstrip("/")


def _roots_of_chain(text: str, store: Store) -> list[Root]:
    head, _, rest = text.partition("::")
    if "://" in head:  # an archive, whose members the paths name
        return [Root("", head.partition("//")[0] + "/", f"::{rest}", quoted=False)]
    inner = _URL.match(rest)
    if inner is None:
        return [Root("", f"{head}::file://", "", quoted=False)]
    strip = store.filesystem.handler.fs._strip_protocol
    return [Root(strip(inner["root"] + "/").rstrip("/"), f"{head}::{inner['root']}", "", quoted=False)]


def as_url(path: str, roots: Sequence[Root]) -> str:
    """Returns the URL that leads to the file system of a path, and to the path in this file system.

    Raises:
        SourceError: The path lies under no root.

    Examples:
        >>> as_url("bucket/a b.parquet", [Root("bucket", "s3://bucket", "?region=x", quoted=True)])
        's3://bucket/a%20b.parquet?region=x'
    """
    for root in roots:
        if not root.path or f"{path}/".startswith(f"{root.path}/"):
            rest = path[len(root.path) :].lstrip("/")
            return f"{root.url}/{quote(rest, safe=_UNQUOTED) if root.quoted else rest}{root.query}"
    raise SourceError(
        "the file has no URL that follows from those given; pass filesystem=, and take the paths as that names them"
    ).locate(operator=ListFiles.name, file=path)

"""Shared by the tests of formats: tables as files, and whole files read through a format on every kind of file system."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from arrowflow.formats import Footer, Format, Split
from arrowflow.formats.protocol import footer_of, reading
from arrowflow.storage import Store, resolve

KINDS = ("mapped", "read", "subtree", "fsspec")


def write_table(
    path: Path, table: pa.Table, *, rows: int | None = None, compression: str | None = None
) -> Path:
    """Writes a Parquet file where the name says so, and otherwise Arrow IPC; a row group or batch has so many rows."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows, compression=compression or "snappy")
        return path
    options = pa.ipc.IpcWriteOptions(compression=compression, unify_dictionaries=True)
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def open_footer(format: Format, path: Path, kind: str = "mapped") -> tuple[Store, Footer]:
    filesystem: Any = None
    where: Any = path
    if kind == "subtree":
        filesystem, where = pafs.SubTreeFileSystem(str(path.parent), pafs.LocalFileSystem()), path.name
    elif kind == "fsspec":
        filesystem = fsspec.filesystem("memory")
        filesystem.pipe(f"/arrowflow/{path.name}", path.read_bytes())
        where = f"/arrowflow/{path.name}"
    store, files = resolve(where, filesystem=filesystem, suffixes=format.suffixes, operator="read")
    if kind == "read":
        store = dataclasses.replace(store, memory_map=False)
    return store, footer_of(f"read_{format.name}", format, store, files[0])


def opened(format: Format, store: Store, footer: Footer, split: Split, names: list[str]) -> Store:
    """Returns what a split is decoded from: the local file, or the bytes that the format wants fetched."""
    if store.is_local:
        return store
    with reading(f"read_{format.name}", footer.file, split.index):
        return store.fetch_ahead(footer.file, format.ranges(footer, split, names))


def read_split(
    format: Format, store: Store, footer: Footer, split: Split, schema: pa.Schema, offset_rows: int = 0
) -> pa.Table:
    source = opened(format, store, footer, split, schema.names)
    with reading(f"read_{format.name}", footer.file, split.index):
        batches = list(format.read(source, footer, split, schema, offset_rows))
    assert batches
    for batch in batches:
        assert batch.schema.equals(schema, check_metadata=True)
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema)


def read_all(
    format: Format, path: Path, *, kind: str = "mapped", schema: pa.Schema | None = None
) -> pa.Table:
    store, footer = open_footer(format, path, kind)
    wanted = footer.schema if schema is None else schema
    parts = [read_split(format, store, footer, split, wanted) for split in footer.splits]
    assert [part.num_rows for part in parts] == [split.num_rows for split in footer.splits]
    assert sum(part.num_rows for part in parts) == footer.num_rows
    return pa.concat_tables([wanted.empty_table(), *parts])


def count_fetched(monkeypatch: pytest.MonkeyPatch, method: str = "fetch") -> list[int]:
    """Returns a list in which each range that a store fetches from now on leaves its size."""
    fetched: list[int] = []
    original = getattr(Store, method)

    def counting(self: Store, file: Any, ranges: Any) -> Any:
        fetched.extend(end - start for start, end in ranges)
        return original(self, file, ranges)

    monkeypatch.setattr(Store, method, counting)
    return fetched


def on_file_system(kind: str, folder: Path) -> dict[str, Any]:
    """Returns the first two arguments of a reader: a pattern of all files of a folder, and their file system."""
    if kind == "local":
        return {"paths": f"{folder}/*"}
    if kind == "native":
        return {"paths": "*", "filesystem": pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())}
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe_file(f"/{folder.name}/{path.name}", path.read_bytes())
    return {"paths": f"/{folder.name}/*", "filesystem": memory}

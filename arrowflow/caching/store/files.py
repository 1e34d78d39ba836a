"""The files of chunks in a local folder: written under another name first, and mapped to be read.

A chunk's name comes into being by a rename, when the bytes are on the disk.

**Reading.** A file is mapped, and its descriptor closed: thousands of chunks can be open. Uncompressed columns are views
of the map, aligned to 64 bytes. A mapping outlives the removal of its file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from arrowflow.caching.store.chunk import Chunk, ChunkError, Draft, Name, chunk_in
from arrowflow.caching.store.folder import UNWRITABLE
from arrowflow.errors import ArrowflowError, CacheFullError, SourceError, WriteError
from arrowflow.storage import NO_ROOM

TEMPORARY: Final = ".tmp-"
"""The start of the names of chunks that are being written, or whose writer was killed."""

_counter: Final = itertools.count()


# ---------------------------------------------------------------------------------------------------- writing


def write_chunk(folder: Path, draft: Draft) -> Name:
    """Writes a chunk to the folder of an entry, and returns its name.

    After the return the chunk is on the disk, whatever happens to process and power.

    Raises:
        CacheFullError: The disk, or the user's share of it, has no room, or nothing can be written there. Nothing of the
            chunk is left there.
        WriteError: The file cannot be written, or pyarrow cannot write these batches to one file.
        SchemaError: A record batch has other columns than the schema.
    """
    try:
        return _commit(folder, lambda descriptor: draft.encode(partial(os.writev, descriptor)))
    except OSError as error:
        raise _failure(error, folder, draft.num_bytes) from error


def _commit(folder: Path, fill: Callable[[int], Name]) -> Name:
    """Fills a new file and gives it its name. An error before the naming leaves nothing behind."""
    # Once all chunks are seen another thread may rename the folder. So the folder is opened for its flush before that.
    names = os.open(folder, os.O_RDONLY)
    try:
        temporary, descriptor = _create(folder)
        try:
            try:
                name = fill(descriptor)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.rename(folder / name.render())
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        os.fsync(names)
    finally:
        os.close(names)
    return name


def _create(folder: Path) -> tuple[Path, int]:
    """Opens a new file. A file of another process with this number, in a container or in the past, stays untouched."""
    while True:
        path = folder / f"{TEMPORARY}{os.getpid()}-{next(_counter)}"
        with contextlib.suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _failure(error: OSError, folder: Path, num_bytes: int) -> ArrowflowError:
    failure: ArrowflowError
    if error.errno in UNWRITABLE:
        failure = CacheFullError(
            f"a chunk cannot be written, since {UNWRITABLE[error.errno]} ({error}); name another folder, or let the pipeline "
            'go on without: cache(path, on_full="bypass")'
        )
    elif error.errno in NO_ROOM:
        try:
            found = os.statvfs(folder)
            free = f"{found.f_bavail * found.f_frsize:,} bytes are free"
        except OSError:
            free = "nobody knows how many are free"
        failure = CacheFullError(
            f"{NO_ROOM[error.errno]}: the next chunk has {num_bytes:,} bytes, and {free}; make room, remove entries with "
            'af.cache_clear(path, max_bytes=...), or let the pipeline go on without: cache(path, on_full="bypass")'
        )
    else:
        failure = WriteError(
            f"a chunk cannot be written: {error}; name a folder that can be, or cache in memory with cache()"
        )
    return failure.locate(operator="cache", file=str(folder))


# ---------------------------------------------------------------------------------------------------- reading


def open_chunk(folder: Path, name: Name, *, fingerprint: str, verify: bool) -> Chunk:
    """Maps a chunk and checks that it matches its name.

    Args:
        folder: The folder of the entry.
        name: The chunk.
        fingerprint: The fingerprint of the plan.
        verify: Whether to compare the checksum, for which the whole file is read.

    Raises:
        ChunkError: The file is not that chunk.
        FileNotFoundError: There is no such file.
        SourceError: The file cannot be read.
    """
    path = folder / name.render()
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # one look: another process may move the folder, and back
            raise ChunkError("expected a chunk of a cache, found what is no file")
        # Closing frees the descriptor. The map stays as long as a buffer of the map.
        with pa.memory_map(str(path)) as source:
            mapped = source.read_buffer()
        return chunk_in(mapped, name, fingerprint, verify=verify)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SourceError(f"a chunk of a cache cannot be mapped: {error}").locate(file=str(path)) from error
    except ChunkError as error:
        error.locate(file=str(path))
        raise

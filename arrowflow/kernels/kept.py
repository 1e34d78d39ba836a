"""`Kept`: what later epochs take from memory, as kernels and the executor share it. `KeptChunks`: the chunks of a source.

A source of files and the column operators in the same call make a chunk from the bytes of one split alone. So that
chunk is the same in every epoch, whatever the order. Decisions:

* **Where.** The prepared plan owns one `KeptChunks` for each of its sources. All runs of it share that object: those of
  one loader after another, of one dataset, the streams of a `repeat`, and lanes. A plan is prepared anew where a file has
  on a local disk has changed. So chunks never outlive the files that they were made of, and they go with the plan. A worker
  of a cluster has objects of its own, for all its lanes.
* **Key.** A chunk's key is its split and the rows of the split, and of a file that is not local its etag or time. An epoch
  that finds chunks asks the store for it, by one request a file, before it looks for them. What is found is not fetched.
  Its position is no part of the key: positions depend on the order of an epoch, so the reader computes them anew. Nothing
  else of a chunk depends on the epoch. A split in which a lane begins or ends has no key: in most epochs that is at another
  row.
* **What.** The part of the plan that runs in the call of the reader, see `KernelSpec.repeats`. Functions of users never do.
* **Which.** The first that fit stay, as epochs come around to each split equally often. The last ones go first.
* **When.** A single epoch shall cost nothing, and kept memory is not used again. So the first epoch keeps chunks only if
  those of the whole source are foreseen to take `FIRST_BYTES`: a part of a large table gains little. It copies none. It
  keeps them as they are, if what one call made pins hardly more than its rows, and nobody else may write its memory.
  When a split is decoded for the second time, chunks are kept while there is room, and other ones are copied. If a user
  asks for a size, that holds the first time, too.
* **Copies.** A plan whose batches are the source's own memory delivers copies of kept chunks, so its consumer may write them. A
  copy of local files pays where decoding took `DEAR_SECONDS` a byte or more, unless a user asks for a size: out of
  copies an epoch of `stream` takes an eighth of the CPU, one of `wide` a ninth, and one of forty columns of plain floats
  all but the same. The epoch that makes the copies takes 1.1 to 1.2 times. A private map in place of a copy would cost its
  consumer a page fault for each page, which took as long as the copy, and three times as long where it writes.
* **Images.** Where `decode_image` after the source keeps pixels, see `KeptImages`, chunks of local files are kept only if they
  took `DEAR_SECONDS` a byte, whatever a user asks for. So bytes that are soon read again leave the pixels the room.
* **Bytes.** The executor counts kept chunks in the ledger, apart from what is used: see `executor.keeping`.
"""

from __future__ import annotations

import functools
import mmap
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.workarounds.slices import concatenable
from arrowflow.workarounds.streams import stream_bytes, write_stream

PINNED_SHARE: Final = 1.25
"""Chunks are kept as they are if their buffers take no more than this, for each byte of their rows."""

FIRST_BYTES: Final = 256 << 20
"""Most bytes that the first epoch keeps. To get 1 GiB of new memory takes 0.1 s. It takes 2 s in some virtual machines, which
get each page from their host at its first use."""

DEAR_SECONDS: Final = 1e-9
"""Time of a call, a decoded byte, from which on copies pay: several times that of a copy. On two cores `stream` takes 5 to
15 ns, `wide` 3, floats with zstd 1.8, and plain floats 0.7."""

MAPPED_BYTES: Final = 1 << 20
"""Bytes of copies from which on they have a map of their own. A process may have some 65,000 maps."""

PADDING: Final = 64
"""An addition to `PINNED_SHARE` for each buffer: that of eight flags takes a byte."""

Key = tuple[int, int, int, str]
"""A split, the first row of it, the row that follows, and the version of its file; "" of local files."""

NO_ROWS: Final = pa.RecordBatch.from_arrays([], names=[])


class KeptGroup:
    """The results of one call that are kept together, since results of one call may share buffers.

    Attributes:
        chunks: The results, by key.
        buffers: Bytes of their buffers, by address.
        num_bytes: All of these.
    """

    __slots__ = ("buffers", "chunks", "num_bytes")

    def __init__(self, chunks: Mapping[Any, Any], buffers: Mapping[int, int]) -> None:
        self.chunks = chunks
        self.buffers = buffers
        self.num_bytes = sum(buffers.values())


class KeptChunk(NamedTuple):
    """A kept chunk.

    Attributes:
        chunk: The rows.
        buffers: Bytes of its buffers, by address.
    """

    chunk: pa.RecordBatch
    buffers: Mapping[int, int]


class Kept(ABC):
    """Results of one kernel that later epochs take from memory: the base of `KeptChunks` and `KeptImages`.

    `executor.keeping` makes all changes under its lock; any thread looks results up.

    Args:
        asked_bytes: The most bytes to keep, as a user says; None for half of a run's budget.

    Attributes:
        chunks: The results by key.
        groups: The groups, in the order in which they came.
        num_bytes: Their bytes.
        most_bytes: The most bytes that it takes, since others had to go, or did not fit; None before that.
        ledgers: Weak references to the ledgers of the runs that count the groups; replaced as a whole.
        is_gone: Whether its plan is gone. Then it keeps nothing.
    """

    __slots__ = (
        "__weakref__",
        "asked_bytes",
        "chunks",
        "groups",
        "is_gone",
        "ledgers",
        "most_bytes",
        "num_bytes",
    )

    what: ClassVar[str]
    """The word for the results in what users read."""

    def __init__(self, asked_bytes: int | None = None) -> None:
        self.asked_bytes = asked_bytes
        self.most_bytes: int | None = None
        self.chunks: dict[Any, Any] = {}
        self.groups: dict[KeptGroup, None] = {}
        self.num_bytes = 0
        self.ledgers: tuple[Any, ...] = ()
        self.is_gone = False

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process begins without results."""
        return type(self), (self.asked_bytes,)

    def clear(self) -> None:
        """Lets go of all results: the plan is gone. New objects take the place of those that a thread may read.

        The garbage collector may finalize a plan before its run, whose workers still add groups. So `executor.keeping.add`
        looks at `is_gone` after it has added some: either `clear` finds them, or `add` finds the flag.
        """
        self.is_gone = True
        self.chunks, self.groups, self.num_bytes = {}, {}, 0

    def has_room(self, num_bytes: int) -> bool:
        """Whether so many bytes more stay within its own limit."""
        if self.is_gone:
            return False
        return self.most_bytes is None or self.num_bytes + num_bytes <= self.most_bytes

    @property
    @abstractmethod
    def total_bytes(self) -> int:
        """The bytes of all results that were made so far, kept or not."""

    def facts(self) -> tuple[str, ...]:
        """Returns how much is kept, for people."""
        if not self.total_bytes:
            return (f"keeps {self.what} for later epochs, if there is room",)
        return (f"keeps {self.num_bytes:,} of {self.total_bytes:,} bytes for later epochs",)


class KeptChunks(Kept):
    """The kept chunks of one source.

    Args:
        asked_bytes: As in `Kept`.
        copies: Whether consumers may write the memory of chunks, so that kept ones are copied on their way in and out.
        source_rows: About how many rows all splits have; 0 if nobody knows.
        is_local: Whether what is not kept has to be decoded only, and not fetched.
        only_dear: Whether images that are decoded of them are kept, too, so that chunks which are soon read leave them the room.

    Attributes:
        sizes: The bytes of the rows of every chunk that was made so far, by key.
    """

    __slots__ = ("copies", "is_local", "only_dear", "sizes", "source_rows")

    what = "chunks"
    chunks: dict[Key, KeptChunk]

    def __init__(
        self,
        asked_bytes: int | None = None,
        *,
        copies: bool = False,
        source_rows: int = 0,
        is_local: bool = True,
        only_dear: bool = False,
    ) -> None:
        super().__init__(asked_bytes)
        self.is_local = is_local
        self.only_dear = only_dear
        self.copies = copies
        self.source_rows = source_rows
        self.sizes: dict[Key, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        arguments: dict[str, Any] = {
            "copies": self.copies,
            "source_rows": self.source_rows,
            "is_local": self.is_local,
            "only_dear": self.only_dear,
        }
        return functools.partial(KeptChunks, **arguments), (self.asked_bytes,)

    def clear(self) -> None:
        super().clear()
        self.sizes = {}

    @property
    def total_bytes(self) -> int:
        sizes, chunks = self.sizes.copy(), self.chunks
        return self.num_bytes + sum(size for key, size in sizes.items() if key not in chunks)

    def take(self, kept: KeptChunk) -> pa.RecordBatch:
        """Returns the rows of a kept chunk for one consumer. Any thread."""
        return copied(kept.chunk) if self.copies else kept.chunk

    def group(self, made: Iterable[tuple[Key, Any, Mapping[int, int]]], seconds: float) -> KeptGroup | None:
        """Returns what to keep of the chunks that one call made; None for nothing.

        Any thread, without a lock: this may copy.

        Args:
            made: The chunks, each with its key and buffers.
            seconds: The time that the call took. Some formats decode in threads of other libraries, whose CPU time no
                thread can tell.
        """
        sizes = self.sizes
        found = [(key, chunk, buffers) for key, chunk, buffers in made if isinstance(chunk, pa.RecordBatch)]
        if not found:
            return None
        num_bytes = sum(chunk.nbytes for _, chunk, _ in found if chunk.num_rows)
        is_cheap = self.is_local and seconds < DEAR_SECONDS * num_bytes
        if is_cheap and self.only_dear:
            return None
        again = self.asked_bytes is not None or all(key in sizes for key, _, _ in found)
        found = [
            (key, chunk, buffers) if chunk.num_rows else (key, NO_ROWS, {}) for key, chunk, buffers in found
        ]
        own = {key: chunk.nbytes for key, chunk, _ in found}
        sizes.update(own)
        if not self.has_room(num_bytes) or (self.copies and is_cheap and self.asked_bytes is None):
            return None
        pinned = {address: size for _, _, buffers in found for address, size in buffers.items()}
        whole = _whole_sizes(chunk for _, chunk, _ in found)
        copies = self.copies or sum(whole.values()) > PINNED_SHARE * num_bytes + PADDING * len(pinned)
        if not again and (copies or not self._fits_first_epoch(own, num_bytes)):
            return None
        if copies:
            try:
                stored = _stored([chunk for _, chunk, _ in found])
            except (pa.ArrowException, OSError, MemoryError):  # types nested too deep, or no memory
                return None
            found = [(key, *copy) for (key, _, _), copy in zip(found, stored, strict=True)]
            pinned = {address: size for _, _, buffers in found for address, size in buffers.items()}
        return KeptGroup({key: KeptChunk(chunk, buffers) for key, chunk, buffers in found}, pinned)

    def _fits_first_epoch(self, keys: Collection[Key], num_bytes: int) -> bool:
        """Whether chunks of these splits fit, and those of all splits are foreseen to."""
        rows = sum(stop - start for _, start, stop, _ in keys)
        foreseen = num_bytes * self.source_rows // max(rows, 1)
        return max(foreseen, self.num_bytes + num_bytes) <= FIRST_BYTES


def _whole_sizes(chunks: Iterable[pa.RecordBatch]) -> dict[int, int]:
    """Returns the bytes that the buffers of chunks are parts of, by address: fetched bytes of an IPC file are not copied."""
    found = {}
    for chunk in chunks:
        for column in chunk.columns:
            for buffer in column.buffers():
                while buffer is not None and buffer.parent is not None:
                    buffer = buffer.parent
                if buffer is not None:
                    found[buffer.address] = buffer.size
    return found


def sizes_of(chunk: pa.RecordBatch) -> dict[int, int]:
    """Returns the bytes of the buffers that a chunk keeps alive, by address: 6 µs for 6 columns."""
    found = [buffer for column in chunk.columns for buffer in column.buffers()]
    return {buffer.address: size for buffer in found if buffer is not None and (size := buffer.size)}


def _stored(chunks: Sequence[pa.RecordBatch]) -> list[tuple[pa.RecordBatch, Mapping[int, int]]]:
    """Returns copies of chunks, and the bytes of their buffers by address.

    Memory for `MAPPED_BYTES` and more comes from the system, and goes back to it with the last of them. Arrow's pool would
    keep it, and for memory that it did not have before mimalloc takes up to four times as long.

    Raises:
        ArrowException: Arrow IPC has no such types.
        OSError, MemoryError: There is no memory.
    """
    streams = [stream_bytes(chunk) for chunk in chunks]
    if sum(streams) < MAPPED_BYTES:
        return [(copy, sizes_of(copy)) for copy in map(copied, chunks)]
    rest = new_map(sum(streams))
    spare = -sum(streams) % mmap.PAGESIZE
    copies: list[tuple[pa.RecordBatch, Mapping[int, int]]] = []
    for chunk, num_bytes in zip(chunks, streams, strict=True):
        own, rest = pa.py_buffer(rest[:num_bytes]), rest[num_bytes:]
        write_stream(chunk, pa.FixedSizeBufferWriter(own))
        with pa.ipc.open_stream(own, options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
            copy = reader.read_next_batch()
        if not copy.schema.equals(chunk.schema):
            copy, num_bytes = copied(chunk), 0
        buffers = sizes_of(copy)
        # Bytes between the buffers, and behind the last chunk, count as one more, where the stream begins.
        beside = max(0, num_bytes - sum(buffers.values())) + spare
        copies.append((copy, buffers | {own.address: beside}))
        spare = 0
    return copies


def new_map(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Returns so many bytes of memory from the system, and those up to the end of their last page."""
    memory = mmap.mmap(
        -1, num_bytes + -num_bytes % mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    return np.frombuffer(memory, np.uint8)


def copied(chunk: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a chunk in memory of its own, which has its rows alone.

    Examples:
        >>> chunk = pa.record_batch({"x": [1, 2, 3]})
        >>> one = copied(chunk.slice(1, 1))
        >>> one.to_pydict(), one["x"].buffers()[1].size
        ({'x': [2]}, 8)
    """
    if not chunk.num_columns:
        return chunk
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays([concatenable(column)]) for column in chunk.columns], schema=chunk.schema
    )

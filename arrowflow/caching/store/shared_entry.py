"""`SharedEntry`: the entry of one cached plan in an object store, as one run sees it.

The objects below a prefix are its chunks, and their listing is its manifest, as in a local folder. A chunk is put whole,
and only where there is none of its name, so nothing half-written is ever visible, and no object ever changes.

**Two writers.** There is no lock: a lock of a process that died would need clocks to be told from others. Processes that fill
an entry at the same time both compute. Their rows are equal, since the plan before a cache is deterministic. Of equal chunks
the first put wins. Chunks of the same rows with other borders lie beside each other, and one way through them is read. Each
process looks now and then for chunks of others, and goes on behind them.

**Inputs that are not repeatable** are put under a prefix of their own. One conditional put, of the object `whole`, then says
which prefix is the entry: chunks of two runs never meet, and the first complete pass wins.

**Upkeep.** Nothing is removed but chunks that are damaged, and those of a pass that came second. The prefix of the cache, or
of an entry in it, can be removed by any tool: a pipeline that misses a chunk computes its rows.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import Final

from arrowflow.caching.store.chunk import Chunk, ChunkError, Draft, Head, Name, chunk_in, read_head
from arrowflow.caching.store.folder import ABOUT, FILLING, NOTHING, Listing, listing_of
from arrowflow.caching.store.stored import CachedPlan, StoredChunks
from arrowflow.errors import ArrowflowError, SourceError
from arrowflow.storage import Fetched, Objects, Services

WHOLE: Final = "whole"
"""Name of the object that says where the chunks of a whole pass are."""

HEADS_AT_ONCE: Final = 64
MAX_HEADS: Final = 1024
"""Footers that are fetched beside each other, and that are held."""

TAIL_BYTES: Final = 64 << 10
"""The bytes of the first request for a footer."""

TRAILER_BYTES: Final = 10
"""The end of an Arrow file: the size of its footer in four bytes, and six that are always the same."""

LIST_SECONDS: Final = 1.0
LIST_SHARE: Final = 20
"""A run that fills an entry lists it after a second at the least, and for one part in this many of its time."""


class Free:
    """The claim on an entry that nobody can lock."""


@dataclass(slots=True, eq=False)
class FarChunk(Head):
    """A chunk in a store, of which only the footer was fetched.

    Attributes:
        num_bytes: The size of its object.
        entry: The entry that fetches it.
    """

    num_bytes: int
    entry: SharedEntry

    def load(self) -> Chunk:
        """Fetches the whole chunk, and checks it.

        Raises:
            SourceError: It is gone, or damaged; or the store does not answer.
        """
        return self.entry.load(self.name, self.num_bytes)


class SharedEntry(StoredChunks[FarChunk]):
    """The chunks of one cached plan in an object store.

    Args:
        objects: The prefix of the cache.
        plan: The plan.
        folder: The folder of the chunks, if not the entry's own.
    """

    def __init__(self, objects: Objects, plan: CachedPlan, folder: str | None = None) -> None:
        super().__init__(plan)
        place = plan.fingerprint if folder is None else folder
        self.folder = f"{objects.address}/{place}"
        self._place = place  # the prefix of its chunks; of an input that is not repeatable, of the pass that is the entry
        self._objects = objects
        self._sizes: dict[Name, int] = {}
        self._listed = self._took = float("-inf")  # when the last listing began, and how long it took

    def served_by(self, services: Services) -> SharedEntry:
        """Returns the same for a run, which waits and counts for itself."""
        served = SharedEntry(self._objects.served_by(services), self._plan)
        served._place, served._listing, served._sizes = self._place, self._listing, self._sizes
        return served

    # ------------------------------------------------------------------ looking

    def refresh(self) -> Listing:
        """Lists the chunks that exist now; those of a complete entry only once."""
        return self._listing if self._listing.num_rows is not None else super().refresh()

    def follow(self, *, is_claimed: bool) -> None:
        """Looks for chunks of other writers, if it has not lately."""
        now = self._objects.services.now()
        if now - self._listed >= max(LIST_SECONDS, LIST_SHARE * self._took):
            self.refresh()

    def _list(self) -> Listing:
        services = self._objects.services
        began = services.now()
        if not self.repeatable:
            whole = self._whole()
            if whole is None:
                return NOTHING
            self._place = whole
        files = self._objects.sizes(self._place)
        named = ((Name.parse(file), size) for file, size in files.items())
        # In place, and never less: another thread may go by its own listing, and by the one before.
        self._sizes.update({name: size for name, size in named if name is not None})
        self._listed, self._took = began, services.now() - began
        return listing_of(files, self._damaged)

    def _whole(self) -> str | None:
        """Returns the folder of the pass that is the entry, for an input that is not repeatable."""
        size = self._objects.sizes(self.fingerprint).get(WHOLE)
        if size is None:
            return None
        try:
            data = self._objects.read(f"{self.fingerprint}/{WHOLE}", size)
        except FileNotFoundError:  # another pass takes its place, or the entry was removed
            return None
        folder = data.to_pybytes().decode("ascii", "replace")
        if not re.fullmatch(re.escape(self.fingerprint + FILLING) + "[0-9a-f]+", folder):
            raise SourceError(
                "expected the name of a cached pass, found something else; remove the object"
            ).locate(operator="cache", file=f"{self._objects.address}/{self.fingerprint}/{WHOLE}")
        return folder

    def _open(self, name: Name, *, verify: bool) -> FarChunk:
        """Fetches the footer of a chunk, and those of the next ones beside it: each takes a round trip."""
        wanted = [name]
        while len(wanted) < HEADS_AT_ONCE and wanted[-1].num_rows:
            following = self._listing.names.get(wanted[-1].first_row + wanted[-1].num_rows)
            if following is None or following in self._chunks:
                break
            wanted.append(following)
        first, *others = self._objects.services.together([partial(self._head, each) for each in wanted])
        if len(self._chunks) + len(others) > MAX_HEADS:
            self._chunks = {}
        self._chunks.update((each.name, each) for each in others if isinstance(each, FarChunk))
        if isinstance(first, FarChunk):
            return first
        raise first

    def _head(self, name: Name) -> FarChunk | ChunkError | FileNotFoundError:
        size = self._sizes[name]
        store, file = self._objects.store, self._objects.file(self._path(name), size)
        try:
            if size < TRAILER_BYTES:
                raise ChunkError(f"expected a chunk of a cache, found {size} bytes")
            tail = store.tail(file, TAIL_BYTES)
            told = int.from_bytes(tail.slice(tail.size - TRAILER_BYTES, 4).to_pybytes(), "little")
            needed = min(size, told + 2 * TRAILER_BYTES)
            if needed > tail.size:
                tail = store.tail(file, needed)
            held = Fetched(store.filesystem, file=file, held={(size - tail.size, size): tail})
            _, head = read_head(held.open(file), name, self.fingerprint)
        except ChunkError as error:
            error.locate(file=f"{self._objects.address}/{self._path(name)}")
            return error
        except FileNotFoundError as error:
            return error
        return FarChunk(head.name, head.schema, head.before, head.links, size, self)

    def load(self, name: Name, size: int) -> Chunk:
        """Fetches a whole chunk; raises as `FarChunk.load` does."""
        path = self._path(name)
        try:
            data = self._objects.read(path, size)
            return chunk_in(data, name, self.fingerprint, verify=self._plan.verify)
        except FileNotFoundError as error:
            raise SourceError(
                "a chunk of a cache was removed while it was read; iterate again, from the last state: its rows are "
                "computed"
            ).locate(operator="cache", file=f"{self._objects.address}/{path}") from error
        except ChunkError as error:
            done = "it was removed:" if self._removed(name) else "it cannot be removed from here: remove it,"
            raise SourceError(
                f"{error.args[0]}; {done} iterate again, from the last state, and its rows are computed"
            ).locate(operator="cache", file=f"{self._objects.address}/{path}") from error

    def _path(self, name: Name) -> str:
        return f"{self._place}/{name.render()}"

    def _discard(self, name: Name) -> None:
        self._damaged.add(name)
        self._removed(name)

    def _removed(self, name: Name) -> bool:
        """Removes a chunk, and returns whether it may: others own the store, too."""
        try:
            self._objects.remove(self._path(name))
        except ArrowflowError:
            return False
        return True

    # ------------------------------------------------------------------ writing

    def claim(self) -> Free:
        """Makes the entry if need be, and finds out whether its store has conditional puts.

        Raises:
            WriteError: The store cannot be written, or has none.
        """
        about = json.dumps(dict(self._plan.about), indent=1).encode()
        self._objects.check(f"{self.fingerprint}/{ABOUT}", about)
        return Free()

    def filling(self) -> SharedEntry:
        """Returns an entry under a prefix of its own, for an input that is not repeatable."""
        return SharedEntry(self._objects, *self._plan.filling())

    def _write(self, draft: Draft) -> Name:
        pieces: list[memoryview] = []

        def keep(given: list[memoryview]) -> int:
            pieces.extend(given)
            return sum(piece.nbytes for piece in given)

        name = draft.encode(keep)
        self._objects.put(self._path(name), b"".join(pieces))  # another process may have been faster
        self._damaged.discard(name)
        return name

    def finish(self) -> None:
        """Makes a complete pass the entry, unless another process was faster; then the chunks of this one go."""
        is_filling = self.repeatable and self._place != self.fingerprint
        if not is_filling or self.refresh().num_rows is None:
            return
        mark = f"{self.fingerprint}/{WHOLE}"
        if self._objects.put(mark, self._place.encode()):
            return
        whole = self._whole()
        if whole == self._place:
            return
        if whole is not None and listing_of(self._objects.sizes(whole)).num_rows is not None:
            for name in self._sizes:
                self._discard(name)
        else:  # a pass that has lost a chunk makes way
            self._objects.remove(mark)
            self._objects.put(mark, self._place.encode())

    def touch(self) -> None:
        """Does nothing: stores keep no time of the last use."""

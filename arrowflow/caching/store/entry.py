"""`Entry`: the folder of one cached plan, as one process sees it.

The listing of the folder is its manifest. A chunk's name has its rows, its checksum, and whether it is the last chunk.
The name appears by a rename, when the chunk is whole and on the disk. So any listing, also after a power cut, shows
whole chunks alone. The entry is complete when chunks follow each other from row 0 to a last chunk. No index and no
counter has to be kept consistent.

**Who computes.** The holder of the entry's lock computes. The lock is the operating system's and dies with its process.
The lock only keeps two processes from doing the same work. Chunks are right whoever writes them, since the plan before
a cache is deterministic. So a process that has waited for too long may compute without the lock.

**Inputs that are not repeatable** (generators, one-shot streams) are written into a folder of their own. This folder
gets the entry's name when it is complete: chunks of two runs never meet.

Any thread may use an entry: each attribute is replaced as a whole, and never changed. The thread that takes the one
`_turn` finishes the entry. A thread that finds it taken goes on, since its rows come with the other thread's chunk.
Another process may finish its own entry at the same moment, so a folder that was renamed away is looked at again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import weakref
from collections import deque
from pathlib import Path

from arrowflow.caching.store.chunk import Chunk, ChunkError, Draft, Name
from arrowflow.caching.store.claim import Claim, claim, held_here
from arrowflow.caching.store.files import open_chunk, write_chunk
from arrowflow.caching.store.folder import (
    ABOUT,
    FILLING,
    LOCK,
    MAX_TRIES,
    UNWRITABLE,
    USED,
    Listing,
    listed,
    make_folder,
    take_name,
)
from arrowflow.caching.store.stored import CachedPlan, StoredChunks
from arrowflow.errors import CacheFullError, WriteError
from arrowflow.storage import NO_ROOM, UNFINISHED, flush


class Entry(StoredChunks[Chunk]):
    """The chunks of one cached plan in a local folder.

    Args:
        root: The folder of the cache.
        plan: The plan.
        folder: The folder of the chunks, if not the entry's own folder.
    """

    def __init__(self, root: Path, plan: CachedPlan, folder: Path | None = None) -> None:
        super().__init__(plan)
        self.root = root
        self.folder = root / plan.fingerprint if folder is None else folder
        self._own_lock: Claim | None = None
        self._turn = deque([True])

    # ------------------------------------------------------------------ looking

    def _list(self) -> Listing:
        return listed(self.folder, self._damaged)

    def _open(self, name: Name, *, verify: bool) -> Chunk:
        return open_chunk(self.folder, name, fingerprint=self.fingerprint, verify=verify)

    def _discard(self, name: Name) -> None:
        try:
            (self.folder / name.render()).unlink()
        except OSError:  # not our folder to write, or no file: it stays
            self._damaged.add(name)

    def _missing(self, name: Name) -> None:
        # A file that is gone may come again.
        if (self.folder / name.render()).is_symlink():  # a link to nothing is found for ever
            self._damaged.add(name)

    def follow(self, *, is_claimed: bool) -> None:
        """Looks for chunks of another process, if this one computes without the lock."""
        if not is_claimed:
            self.refresh()

    # ------------------------------------------------------------------ writing

    @property
    def lock_path(self) -> Path:
        """The lock file of the process that computes."""
        return self.folder / LOCK if self.repeatable else self.root / f".{self.fingerprint}.{LOCK}"

    @property
    def is_held_here(self) -> bool:
        """Whether this very process holds the lock."""
        return held_here(self.lock_path)

    @property
    def progress(self) -> object:
        """A value that changes whenever the computing process has made progress."""
        if self.repeatable:
            return super().progress
        pattern = f"{self.fingerprint}{FILLING}*"
        return sorted(len(listed(folder).names) for folder in self.root.glob(pattern))

    def claim(self) -> Claim | None:
        """Takes the lock, and makes the folder if need be; None if another holder has the lock.

        Raises:
            CacheFullError: There is no room for the folder, or nothing can be written there.
            WriteError: The folder cannot be written, for another reason.
        """
        try:
            for _ in range(MAX_TRIES):
                with contextlib.suppress(FileNotFoundError, FileExistsError):  # cleared, or made, meanwhile
                    return self._claim()
            return self._claim()
        except OSError as error:
            reason = (NO_ROOM | UNWRITABLE).get(error.errno or 0)
            if reason is not None:
                advice = "name another folder" if error.errno in UNWRITABLE else "make room"
                text = f"the cache in {str(self.root)!r} cannot begin, since {reason} ({error}); {advice}, "
                raise CacheFullError(text + 'or go on without: cache(path, on_full="bypass")') from error
            raise WriteError(
                f"the cache folder {str(self.root)!r} cannot be written: {error}; name a folder that can, or cache in "
                "memory with cache()"
            ) from error

    def _claim(self) -> Claim | None:
        if self.repeatable and not (self.folder / ABOUT).exists():
            make_folder(self.root, self.folder, self._plan.about)
        elif not self.repeatable:
            self.root.mkdir(parents=True, exist_ok=True)
        taken = claim(self.lock_path)
        if taken is not None and self.repeatable and self.refresh().num_rows is None:
            (self.folder / UNFINISHED).touch()
        return taken

    def filling(self) -> Entry:
        """Returns an entry in a folder of its own, for an input that is not repeatable."""
        plan, name = self._plan.filling()
        folder = self.root / name
        entry = Entry(self.root, plan, folder)
        # With its lock held, nobody takes the folder for a leftover.
        entry._own_lock = entry.claim()
        # Nobody else can use the folder, unless it is whole and was renamed.
        weakref.finalize(entry, _remove, folder, os.getpid())
        return entry

    def _write(self, draft: Draft) -> Name:
        name = self._written(draft)
        self._damaged.discard(name)
        # Without the mark, another process was faster: the entry is complete, and needs no other chunk.
        if not (self.folder / UNFINISHED).exists():
            self._remove_others()
        return name

    def _written(self, draft: Draft) -> Name:
        for _ in range(MAX_TRIES):
            if not self.folder.is_dir():  # cleared meanwhile
                self.claim()
            try:
                return write_chunk(self.folder, draft)
            except WriteError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return write_chunk(self.folder, draft)

    def open(self, name: Name) -> Chunk:
        """Maps a chunk that was just committed.

        Raises:
            WriteError: The chunk was removed in the meantime.
        """
        try:
            try:
                chunk = self._open(name, verify=False)
            except FileNotFoundError:  # another thread has renamed it meanwhile
                final = self.root / self.fingerprint
                chunk = open_chunk(final, name, fingerprint=self.fingerprint, verify=False)
        except (OSError, ChunkError) as error:
            raise WriteError(
                f"the cache in {str(self.root)!r} lost a chunk that was just written ({error}); was the folder removed? "
                "Run the pipeline again"
            ) from error
        return self._chunks.setdefault(name, chunk)

    def finish(self) -> None:
        """Turns an entry into its final form, once all its chunks exist."""
        while self._turn and self.refresh().num_rows is not None:
            with contextlib.suppress(IndexError):  # another thread takes it, too
                self._turn.pop()
                try:
                    if self._remove_others():
                        self._take_looks()
                        return
                finally:
                    self._turn.append(True)

    def _take_looks(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.folder / UNFINISHED).unlink()
        self._remove_others()  # again: a chunk that was written meanwhile saw the mark
        final = self.root / self.fingerprint
        if self.folder != final and take_name(self.folder, final):
            self.folder = final
        with contextlib.suppress(FileNotFoundError):  # cleared meanwhile, with the folder of the cache
            flush(self.root)

    def _remove_others(self) -> bool:
        """Removes chunks whose rows others hold: two processes may cut the same rows differently.

        Returns whether the entry is complete; if not, removes nothing.
        """
        listing = self.refresh()
        if listing.num_rows is None:
            return False
        chain = {name.render() for name in listing.chain}
        with contextlib.suppress(FileNotFoundError):  # cleared meanwhile
            for path in list(self.folder.iterdir()):
                if Name.parse(path.name) is not None and path.name not in chain:
                    with contextlib.suppress(OSError):
                        path.unlink()
        return True

    def touch(self) -> None:
        """Notes that the entry is in use."""
        with contextlib.suppress(OSError):
            os.utime(self.folder / USED)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a child that was forked
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------------------------------- one per process

_entries: weakref.WeakValueDictionary[tuple[Path, CachedPlan], Entry] = weakref.WeakValueDictionary()


def entry(root: str, plan: CachedPlan) -> Entry:
    """Returns the entry of this process: pipelines share the chunks that one of them has mapped and checked."""
    path = Path(os.path.realpath(root))  # unlike `resolve`, it does not fail on links in a circle
    return _entries.setdefault((path, plan), Entry(path, plan))

"""Digests of the contents of files: they tell a copy of a file from other data of the same size.

Three parts of each local file are read: the first, the middle and the last bytes. These hold a file's footer or header, and
some of its values. All of a large file would take as long as an epoch. Of files that are not local, etags or times stand for
their contents, as a listing told them.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

from arrowflow.errors import some
from arrowflow.storage.store import File, Store
from arrowflow.storage.versions import listed_stamp

_PART_BYTES: Final = 4096
_MAX_GROUPS: Final = 256
"""Digests that are kept: few enough for a state, many enough to name the file that changed where files are few."""

_GROUP_DIGITS: Final = 4


class Contents(NamedTuple):
    """Digests of the contents of some files, in their order.

    Attributes:
        whole: The digest of all files, 16 hexadecimal digits.
        groups: A short digest of each group of files that follow each other; the groups have the same size.
        place: Of files that are not local their folder: a copy elsewhere has other times.
    """

    whole: str
    groups: str
    place: str = ""

    @classmethod
    def of(cls, store: Store, files: Sequence[File]) -> Contents | None:
        """Reads some bytes of each file; takes about 20 µs a local file.

        Returns: The digests; None if a file has changed, is not local, or is one of many on another machine.

        Examples:
            >>> import pathlib, tempfile
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "a"
            >>> _ = path.write_bytes(b"abc")
            >>> from pyarrow import fs
            >>> Contents.of(Store(fs.LocalFileSystem()), [File(str(path), "a", 3, is_local=True)])
            Contents(whole='cc21bae75980e5fc', groups='79de', place='')
        """
        if not store.is_local:
            return cls._of_stamps(store, files)
        if store.is_network and len(files) > 256:
            return None  # each takes milliseconds there
        try:
            samples = [_sample(file) for file in files]
        except OSError:
            return None
        return None if any(file.is_changed for file in files) else cls._of(samples)

    @classmethod
    def _of_stamps(cls, store: Store, files: Sequence[File]) -> Contents | None:
        if store.is_python and len(files) > 64:
            return None  # each may take a request, once a run
        calls = [partial(listed_stamp, store, file) for file in files]
        stamps = store.together(calls) if store.is_python else [call() for call in calls]
        known = [stamp.encode() for stamp in stamps if stamp is not None]
        place = hashlib.blake2b(posixpath.dirname(files[0].path).encode(), digest_size=8).hexdigest()
        return cls._of(known)._replace(place=place) if len(known) == len(files) else None

    @classmethod
    def _of(cls, samples: Sequence[bytes]) -> Contents:
        whole, groups, size = hashlib.blake2b(digest_size=8), [], group_size(len(samples))
        for first in range(0, len(samples), size):
            group = hashlib.blake2b(digest_size=8)
            for sample in samples[first : first + size]:
                group.update(hashlib.blake2b(sample, digest_size=8).digest())
            whole.update(group.digest())
            groups.append(group.hexdigest()[:_GROUP_DIGITS])
        return cls(whole.hexdigest(), "".join(groups))

    def change_since(self, then: Contents, files: Sequence[File]) -> str | None:
        """Returns in words which files have other contents than `then`, as many of them; None if none has."""
        if self == then or self.place != then.place:
            return None
        size, digits = group_size(len(files)), _GROUP_DIGITS
        for number, start in enumerate(range(0, len(self.groups), digits)):
            if self.groups[start : start + digits] != then.groups[start : start + digits]:
                group = files[number * size : (number + 1) * size]
                if len(group) == 1:
                    return f"the file {group[0].path!r} has other contents"
                return f"one of the files from {group[0].path!r} to {group[-1].path!r} has other contents"
        return "a file has other contents"

    def files_since(self, then: Contents, count: int, files: Sequence[File]) -> str | None:
        """Returns in words which files were added, removed or replaced; None where digests do not tell.

        `count` is the number of the earlier files, whose contents are `then`.
        """
        if self.place != then.place or max(group_size(count), group_size(len(files))) > 1:
            return None
        now, old = _listed(self.groups), _listed(then.groups)
        if len(now) != len(files) or len(old) != count:
            return None
        if len(now) == len(old):
            others = [file.path for file, one, other in zip(files, now, old, strict=True) if one != other]
            return f"other contents than then have {some(others)}" if others else None
        first, last = _length_of_common(now, old), _length_of_common(now[::-1], old[::-1])
        if first + last != min(len(now), len(old)):
            return None  # several places, or equal files: which one it is cannot be told
        if len(now) > len(old):
            return f"by their contents the new ones are {some([file.path for file in files[first : len(now) - last]])}"
        place = f"after {files[first - 1].path!r}" if first else f"before {files[0].path!r}"
        return f"by their contents those that are gone came {place}"


def _listed(groups: str) -> list[str]:
    return [groups[start : start + _GROUP_DIGITS] for start in range(0, len(groups), _GROUP_DIGITS)]


def _length_of_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Returns how many values two sequences have in common from their starts on."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def group_size(count: int) -> int:
    """Returns how many of so many files have one digest together."""
    return max(1, -(-count // _MAX_GROUPS))


def _sample(file: File) -> bytes:
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        last = max(0, file.size - _PART_BYTES)  # of a small file the parts overlap, and have all of it
        return b"".join(os.pread(descriptor, _PART_BYTES, place) for place in (0, last // 2, last))
    finally:
        os.close(descriptor)

"""Digests of the contents of local files: they tell a copy of a file from other data of the same size.

Three parts of each file are read: the first, the middle and the last bytes. These hold a file's footer or header, and
some of its values. All of a large file would take as long as an epoch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from arrowflow.storage.store import File, Store

_PART_BYTES: Final = 4096
_MAX_GROUPS: Final = 256
"""Digests that are kept: few enough for a state, many enough to name the file that changed where files are few."""

_GROUP_DIGITS: Final = 4

_MAX_REMOTE_FILES: Final = 256
"""The most files that are looked at on a mounted file system of another machine, where each takes milliseconds."""


class Contents(NamedTuple):
    """Digests of the contents of some files, in their order.

    Attributes:
        whole: The digest of all files, 16 hexadecimal digits.
        groups: A short digest of each group of files that follow each other; the groups have the same size.
    """

    whole: str
    groups: str

    @classmethod
    def of(cls, store: Store, files: Sequence[File]) -> Contents | None:
        """Reads some bytes of each file; takes about 20 µs a local file.

        Returns: The digests; None if a file has changed, is not local, or is one of many on another machine.

        Example:
            >>> import pathlib, tempfile
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "a"
            >>> _ = path.write_bytes(b"abc")
            >>> from pyarrow import fs
            >>> Contents.of(Store(fs.LocalFileSystem()), [File(str(path), "a", 3, is_local=True)])
            Contents(whole='cc21bae75980e5fc', groups='79de')
        """
        if not store.is_local or (store.is_network and len(files) > _MAX_REMOTE_FILES):
            return None
        whole, groups, size = hashlib.blake2b(digest_size=8), [], group_size(len(files))
        for first in range(0, len(files), size):
            group = hashlib.blake2b(digest_size=8)
            for file in files[first : first + size]:
                try:
                    sample = _sample(file)
                except OSError:
                    return None
                if file.is_changed:
                    return None
                group.update(hashlib.blake2b(sample, digest_size=8).digest())
            whole.update(group.digest())
            groups.append(group.hexdigest()[:_GROUP_DIGITS])
        return cls(whole.hexdigest(), "".join(groups))

    def change_since(self, then: Contents, files: Sequence[File]) -> str | None:
        """Returns in words which files have other contents than they had; None if none has.

        Args:
            then: The contents of an earlier version of as many files.
            files: The files.
        """
        if self == then:
            return None
        size, digits = group_size(len(files)), _GROUP_DIGITS
        for number, start in enumerate(range(0, len(self.groups), digits)):
            if self.groups[start : start + digits] != then.groups[start : start + digits]:
                group = files[number * size : (number + 1) * size]
                if len(group) == 1:
                    return f"the file {group[0].path!r} has other contents"
                return f"one of the files from {group[0].path!r} to {group[-1].path!r} has other contents"
        return "a file has other contents"


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

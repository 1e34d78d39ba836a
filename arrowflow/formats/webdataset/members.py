"""The members of a tar archive, and the rows that they make.

The convention is that of the package `webdataset` (https://github.com/webdataset/webdataset): a member is called
`key.column`, where the key is all up to the first dot of the file's name, with its folders. Members that follow each other
with one key are a row. Folders, links, and names without a dot or that start with one are passed over.

`tarfile` parses the headers, each by itself: a walk reads a header and goes on behind the contents, which takes some 20 µs a
member. Names longer than 100 letters lie in a member of their own in front (of GNU's or of POSIX' kind).
"""

from __future__ import annotations

import re
import tarfile
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from arrowflow.errors import SourceError
from arrowflow.formats.text.blocks import Source

BLOCK: Final = tarfile.BLOCKSIZE
KEY: Final = "__key__"
"""The column of keys."""

_FILES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_NAME: Final = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_LENGTH: Final = re.compile(rb"(\d{1,9}) ")
_LONG_BYTES: Final = 1 << 20
"""The most bytes of a header's extension."""

Ints = npt.NDArray[np.int64]


class Members(NamedTuple):
    """The members that make the rows of an archive.

    Attributes:
        keys: The key of each row.
        columns: The names of the columns, in the order in which they occurred.
        firsts: The number of the first member of each row, and how many members there are.
        column: The column of each member, by its number.
        start: The first byte of each.
        stop: The byte after each.
        ends: The byte after the last member of each row.
        fault: The reason why rows end there, if the archive is broken.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    firsts: Ints
    column: Ints
    start: Ints
    stop: Ints
    ends: Ints
    fault: str | None = None


class _Rows:
    """The rows so far. The last one may get further members."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.columns: dict[str, int] = {}
        self.firsts: list[int] = []
        self.members: list[tuple[int, int, int]] = []
        self._seen: set[int] = set()

    def add(self, name: str, start: int, stop: int) -> None:
        named = _NAME.fullmatch(name)
        if named is None:
            return
        key, column = named[1], named[2].lower()
        number = self.columns.setdefault(column, len(self.columns))
        if not self.keys or self.keys[-1] != key:
            self.keys.append(key)
            self.firsts.append(len(self.members))
            self._seen.clear()
        if number in self._seen or column == KEY:
            raise SourceError(
                f"the archive has two members for column {column!r} of the key {key!r}, the second at byte {start - BLOCK}; "
                "give members of different rows different keys"
            )
        self._seen.add(number)
        self.members.append((number, start, stop))

    def made(self, *, is_whole: bool, fault: str | None) -> Members:
        """Returns the rows; without the last one unless it is known to be whole."""
        keys, firsts, members = self.keys, self.firsts, self.members
        if not is_whole and keys:
            keys, members, firsts = keys[:-1], members[: firsts[-1]], firsts[:-1]
        column, start, stop = np.array(members, np.int64).reshape(len(members), 3).T
        borders = np.array([*firsts, len(members)], np.int64)
        ends = stop[borders[1:] - 1] if len(keys) else np.zeros(0, np.int64)
        return Members(tuple(keys), tuple(self.columns), borders, column, start, stop, ends, fault)


def walk(source: Source, max_rows: int | None = None) -> Members:
    """Returns the members of an archive, up to its end, to its first fault, or to so many rows."""
    rows, at, name, fault = _Rows(), 0, None, None
    size: int | None = None
    while max_rows is None or len(rows.keys) <= max_rows:
        block = source.window(at, BLOCK).tobytes()
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            if len(block) < BLOCK or any(block):  # else it is the end mark
                fault = f"neither a member nor the end mark is at byte {at} ({error}); the archive is cut short, or is no tar"
            break
        start = at + BLOCK
        if member.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
            if member.size > _LONG_BYTES:
                fault = f"the header at byte {at} announces a name of {member.size:,} bytes"
                break
            told = source.window(start, member.size).tobytes()
            if len(told) < member.size:
                fault = f"the archive ends within the header at byte {at}; it is cut short"
                break
            if member.type == tarfile.GNUTYPE_LONGNAME:
                name = told.rstrip(b"\0").decode("utf-8", "surrogateescape")
            else:
                name, size = _extended(told, name, size)
            at = _behind(start, member.size)
            continue
        stop = start + (member.size if size is None else size)
        if stop > start and not source.window(stop - 1, 1).size:
            fault = f"the archive ends within the member at byte {at}; it is cut short"
            break
        if member.type in _FILES:
            rows.add(member.name if name is None else name, start, stop)
        at, name, size = _behind(start, stop - start), None, None
    done = max_rows is not None and len(rows.keys) > max_rows
    return rows.made(is_whole=fault is None and not done, fault=fault)


def _behind(start: int, size: int) -> int:
    return start + -(-size // BLOCK) * BLOCK


def _extended(told: bytes, name: str | None, size: int | None) -> tuple[str | None, int | None]:
    """Returns the name and the size that an extended header of POSIX tells."""
    at = 0
    while (found := _LENGTH.match(told, at)) is not None and int(found[1]) > 0:
        record = told[at : at + int(found[1])]
        kind, _, value = record[len(found[0]) :].rstrip(b"\n").partition(b"=")
        if kind == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif kind == b"size" and value.isdigit():
            size = int(value)
        at += int(found[1])
    return name, size

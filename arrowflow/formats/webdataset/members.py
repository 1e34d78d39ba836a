"""The members of a tar archive, and the rows that they make.

The convention is that of the package `webdataset` (https://github.com/webdataset/webdataset): a member is called
`key.column`, where the key is all up to the first dot of the file's name, with its folders. Members that follow each other
with one key are a row. Folders, symbolic links, devices, and names without a dot or that start with one are passed over.
Members that have data, but in another form than as one run of bytes, are faults: hard links and sparse files.

A walk reads a header and goes on behind the contents. `tarfile` parses the headers, each by itself, which takes 20 µs; the
common one, of a file with a short name, is parsed here in 2 µs.
Names longer than 100 letters lie in a member of their own in front (of GNU's or of POSIX' kind).
GNU tar marks a sparse file by its type in its own format, and by records `GNU.sparse.*` in that of POSIX.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from arrowflow.formats.text.blocks import Source
from arrowflow.formats.text.codings import ending_of

BLOCK: Final = tarfile.BLOCKSIZE
KEY: Final = "__key__"
"""The column of keys."""

_FILES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_EXTENSIONS: Final = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE)
_NAME: Final = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_NAME_OF, _SIZE, _SUM, _TYPE, _PREFIX = slice(0, 100), slice(124, 136), slice(148, 156), 156, 345
"""Places in a header; a prefix is the front part of a long name."""
_PLAIN_FILE: Final = ord(tarfile.REGTYPE)
_ADLER_MODULUS: Final = 65_521
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

    def add(self, name: str, start: int, stop: int) -> str | None:
        """Adds a member, if its name tells a row; returns the fault of a second one of the same row and column."""
        named = _NAME.fullmatch(name)
        if named is None:
            return None
        key, column = named[1], named[2].lower()
        if column == KEY:
            return (
                f"the member {name!r} at byte {start - BLOCK} would be the column of keys, {KEY!r}; rename it"
            )
        number = self.columns.setdefault(column, len(self.columns))
        if not self.keys or self.keys[-1] != key:
            self.keys.append(key)
            self.firsts.append(len(self.members))
            self._seen.clear()
        if number in self._seen:
            return (
                f"the archive has two members for column {column!r} of the key {key!r}, the second at byte {start - BLOCK}; "
                "give members of different rows different keys"
            )
        self._seen.add(number)
        self.members.append((number, start, stop))
        return None

    def made(self, *, is_whole: bool, fault: str | None) -> Members:
        """Returns the rows; without the last one unless it is known to be whole."""
        keys, firsts, members = self.keys, self.firsts, self.members
        if not is_whole and keys:
            keys, members, firsts = keys[:-1], members[: firsts[-1]], firsts[:-1]
        column, start, stop = np.array(members, np.int64).reshape(len(members), 3).T
        borders = np.array([*firsts, len(members)], np.int64)
        ends = stop[borders[1:] - 1]
        return Members(tuple(keys), tuple(self.columns), borders, column, start, stop, ends, fault)


class _Told(NamedTuple):
    """The data of a member that the headers in front of its own tell.

    Attributes:
        name: Its name, if its own header does not hold it.
        size: Its bytes, likewise.
        is_sparse: Whether the archive holds it without its zeros.
    """

    name: str | None = None
    size: int | None = None
    is_sparse: bool = False


_NOTHING: Final = _Told()


def walk(source: Source, max_rows: int | None = None) -> Members:
    """Returns the members of an archive, up to its end, to its first fault, or to so many rows."""
    rows, at, told, fault = _Rows(), 0, _NOTHING, None
    member_at = last = 0  # where the latest member has its header, and its last byte
    while fault is None and (max_rows is None or len(rows.keys) <= max_rows):
        window = source.window(last, at + BLOCK - last)
        if last < at and not window.size:
            fault = f"the archive ends within the member at byte {member_at}; it is cut short"
            break
        block = window[at - last :].tobytes()
        if told is _NOTHING and (plain := _plain(block)) is not None:
            name, size = plain
            member_at, start = at, at + BLOCK
            at = _behind(start, size)
            last = start + size - 1 if size else at
            fault = rows.add(name, start, start + size)
            continue
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            if len(block) < BLOCK or any(block):  # else it is the end mark
                fault = _no_header(block, at, error)
            break
        start = at + BLOCK
        if member.type in _EXTENSIONS:
            if member.size > _LONG_BYTES:
                fault = f"the header at byte {at} announces a name of {member.size:,} bytes"
                break
            text = source.window(start, member.size).tobytes()
            if len(text) < member.size:
                fault = f"the archive ends within the header at byte {at}; it is cut short"
                break
            told = _extended(member.type, text, told)
            last = at = _behind(start, member.size)
            continue
        name = member.name if told.name is None else told.name
        stop = start + (member.size if told.size is None else told.size)
        fault = _unread(name, member.type, told, at)
        if fault is None and member.type in _FILES:
            fault = rows.add(name, start, stop)
        member_at, at, told = at, _behind(start, stop - start), _NOTHING
        last = stop - 1 if stop > start else at
    done = max_rows is not None and len(rows.keys) > max_rows
    return rows.made(is_whole=fault is None and not done, fault=fault)


def _plain(block: bytes) -> tuple[str, int] | None:
    """Returns the name and the bytes of a file whose header alone tells them in the plainest way; None for any other header."""
    if len(block) < BLOCK or block[_TYPE] != _PLAIN_FILE or block[_PREFIX] or not block[_NAME_OF.start]:
        return None
    try:
        size = int(block[_SIZE].partition(b"\0")[0], 8)
        total = int(block[_SUM].partition(b"\0")[0], 8)
    except ValueError:
        return None
    # The header tells the sum of its bytes, with blanks in place of the sum itself. Adler's checksum sums up, too, in 0.1 µs.
    bytes_sum = total - len(block[_SUM]) * ord(" ") + sum(block[_SUM])
    if size < 0 or (1 + bytes_sum) % _ADLER_MODULUS != zlib.adler32(block) & 0xFFFF:
        return None
    return block[_NAME_OF].partition(b"\0")[0].decode("utf-8", "surrogateescape"), size


def _behind(start: int, size: int) -> int:
    return start + -(-size // BLOCK) * BLOCK


def _no_header(block: bytes, at: int, error: tarfile.HeaderError) -> str:
    """Returns the fault of an archive without a header where one is due."""
    ending = ending_of(block) if at == 0 else None
    if ending is not None:
        return f"the file is compressed, and its name does not say so: let the name end in .tar{ending}"
    return (
        f"neither a member nor the end mark is at byte {at} ({error}); the archive is cut short, or is no tar"
    )


def _unread(name: str, type: bytes, told: _Told, at: int) -> str | None:
    """Returns the fault of a member that has data in a form that is not read; None for others."""
    if told.is_sparse or type == tarfile.GNUTYPE_SPARSE:
        return (
            f"the member {name!r} at byte {at} is sparse: the archive has a map of its zeros in place of them; write the "
            "archive without --sparse"
        )
    if type == tarfile.LNKTYPE and _NAME.fullmatch(name):
        return (
            f"the member {name!r} at byte {at} is a hard link: its bytes are those of another member; write the archive with "
            "--hard-dereference, or by tarfile with dereference=True"
        )
    return None


def _extended(type: bytes, text: bytes, told: _Told) -> _Told:
    """Returns what is told of a member, with the text of one more header."""
    if type == tarfile.GNUTYPE_LONGLINK:
        return told
    if type == tarfile.GNUTYPE_LONGNAME:
        return told._replace(name=text.rstrip(b"\0").decode("utf-8", "surrogateescape"))
    records: dict[bytes, bytes] = {}
    at = 0
    while (found := _LENGTH.match(text, at)) is not None and int(found[1]) > 0:
        record = text[at : at + int(found[1])]
        kind, _, value = record[len(found[0]) :].rstrip(b"\n").partition(b"=")
        records[kind] = value
        at += int(found[1])
    name = records.get(b"GNU.sparse.name", records.get(b"path"))
    size = records.get(b"size", b"")
    return _Told(
        told.name if name is None else name.decode("utf-8", "surrogateescape"),
        int(size) if size.isdigit() else told.size,
        told.is_sparse or any(kind.startswith(b"GNU.sparse.") for kind in records),
    )

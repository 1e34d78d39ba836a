"""How text files are compressed and encoded, as their names, their first bytes and options tell."""

from __future__ import annotations

import codecs
import re
from typing import Any, Final

from arrowflow.errors import PlanError, shown
from arrowflow.storage import File

CODECS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".xz": "xz"}
"""Endings of compressed files, and the codecs. All are pyarrow's but xz, which Python's `lzma` reads."""

CODECS_OF_TAR: Final = {".tgz": "gzip", ".tbz": "bz2", ".tbz2": "bz2", ".tzst": "zstd", ".txz": "xz"}
"""Endings of compressed tar archives that are one word, and the codecs."""

_MAGIC: Final = re.compile(
    rb"(\x1f\x8b)|(BZh[1-9]1AY&SY)|(\x28\xb5\x2f\xfd)|(\x04\x22\x4d\x18)|(\xfd7zXZ\x00)"
)
"""The first bytes of compressed files, in the order of `CODECS`."""

_PACKINGS: Final = {
    b"PAR1\x15": "the file is Parquet; read it with read_parquet",
    b"ARROW1\0\0": "the file is Arrow IPC; read it with read_ipc",
    b"Obj\x01": "the file is Avro; read it with read_avro",
    b"PK\x03\x04": "the file is a zip archive; read a file in it as zip://name.csv::archive.zip",
    b"7z\xbc\xaf\x27\x1c": "the file is a 7z archive; unpack it",
}
"""First bytes of files that are packed otherwise, and what to do."""

UTF8: Final = "utf-8"

_MARKS: Final = {
    codecs.BOM_UTF32_LE: "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_ZEROS: Final[dict[tuple[bool, ...], str]] = {
    (False, True, False, True): "utf-16-le",
    (True, False, True, False): "utf-16-be",
    (False, True, True, True): "utf-32-le",
    (True, True, True, False): "utf-32-be",
}
"""Encodings by the places, of each four, that are zero in half of the letters or more."""


def codec_of(file: File) -> str | None:
    """Returns the codec of a file by the end of its name.

    Examples:
        >>> codec_of(File("x/a.csv.GZ", "a.csv.GZ", 1))
        'gzip'
    """
    endings = CODECS | CODECS_OF_TAR
    return next((codec for suffix, codec in endings.items() if file.path.lower().endswith(suffix)), None)


def ending_of(start: bytes) -> str | None:
    r"""Returns the ending of the names of files that are compressed as the first bytes of one tell.

    Examples:
        >>> ending_of(b"\x1f\x8b\x08"), ending_of(b"x,y")
        ('.gz', None)
    """
    found = _MAGIC.match(start)
    return None if found is None or found.lastindex is None else list(CODECS)[found.lastindex - 1]


def packing_of(start: bytes) -> str | None:
    r"""Returns what to do with a file that is packed in a way that no codec here unpacks, as the first bytes of one tell.

    Examples:
        >>> packing_of(b"PK\x03\x04")
        'the file is a zip archive; read a file in it as zip://name.csv::archive.zip'
        >>> packing_of(b"x,y")
    """
    if start.startswith(b"ustar", 257):
        return "the file is a tar archive; read a file in it as tar://name.csv::archive.tar, or read_webdataset reads all of it"
    return next((advice for magic, advice in _PACKINGS.items() if start.startswith(magic)), None)


def encoding_of(start: bytes) -> str | None:
    r"""Returns the encoding of a text of two or four bytes a letter, as the first bytes of one tell; None for others.

    Examples:
        >>> encoding_of("x,y".encode("utf-16")), encoding_of("x,y,z".encode("utf-16-be")), encoding_of(b"x,y")
        ('utf-16', 'utf-16-be', None)
    """
    for mark, name in _MARKS.items():
        if start.startswith(mark):
            return name
    zeros = [start[place::4].count(0) * 8 > len(start) for place in range(4)]
    return _ZEROS.get(tuple(zeros))


def checked_encoding(operator: str, given: Any) -> str:
    """Returns the name of an encoding as Python spells it.

    Raises:
        PlanError: Python knows no such encoding of texts.

    Examples:
        >>> checked_encoding("read_csv", "latin1")
        'iso8859-1'
    """
    try:
        found = codecs.lookup(given)
        "x".encode(found.name)  # some codecs are none of texts
    except (LookupError, TypeError) as error:
        raise PlanError(
            f"{operator}: encoding is an encoding that Python knows, as 'cp1252', got {shown(given)}"
        ) from error
    return str(found.name)


def is_utf8(data: Any) -> bool:
    """Returns whether bytes are a text in UTF-8."""
    try:
        str(data, UTF8)
    except UnicodeDecodeError:
        return False
    return True


def with_codecs(*suffixes: str) -> tuple[str, ...]:
    """Returns the suffixes, alone and followed by the suffixes of compressed files."""
    return (*suffixes, *(suffix + codec for suffix in suffixes for codec in CODECS))


def is_stream(file: File, encoding: str) -> bool:
    """Returns whether the text of a file is made of its bytes from the start on, so that no part is found alone."""
    return codec_of(file) is not None or encoding != UTF8

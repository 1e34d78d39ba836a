r"""Text files: a line is a row, in one column `text`.

pyarrow splits a block at its line ends in C++, without the GIL. A line is whatever lies between two line ends (`\n` or
`\r\n`), so an empty line is a row, and quotes mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from arrowflow.bad_rows import without
from arrowflow.errors import SourceError
from arrowflow.formats.text.blocks import Source, as_bytes
from arrowflow.formats.text.codings import UTF8, checked_encoding, is_utf8, with_codecs
from arrowflow.formats.text.scan import Bytes, Flags, Offsets, Scanner, line_ends
from arrowflow.formats.text.text import Block, Layout, TextFormat
from arrowflow.lazy import compute as pc
from arrowflow.storage import File
from arrowflow.types import VIEWS, is_string

COLUMN: Final = "text"

_SCHEMA: Final = pa.schema({COLUMN: pa.string()})
_NO_TEXT: Final = "the line is no UTF-8"


class Lines(Scanner):
    """Records of text files: lines, empty ones too."""

    def scan(self, data: Bytes, is_last: bool, base: int = 0) -> tuple[Offsets, Flags]:
        ends = line_ends(data, is_last)
        return ends, np.ones(ends.size, np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesFormat(TextFormat):
    """Lines of text.

    Attributes:
        encoding: Python's name of the encoding.
    """

    name: ClassVar[str] = "text"
    suffixes: ClassVar[tuple[str, ...]] = with_codecs(".txt")
    first_row: ClassVar[int] = 0
    recode: ClassVar[str] = "give encoding={!r}"

    encoding: str = UTF8

    def check_options(self) -> None:
        object.__setattr__(self, "encoding", checked_encoding(self.operator, self.encoding))

    def probe(self, schema: pa.Schema) -> None:
        for each in schema:
            if each.name == COLUMN and each.type.id not in VIEWS:
                raise pa.ArrowNotImplementedError(f"a line is a text or bytes, and no {each.type}")

    def layout(self, source: Source, start: int, file: File) -> Layout:
        types = _SCHEMA if self.types is None else self.types
        return Layout(start, pa.schema([each for each in types if each.name == COLUMN]))

    def inferred(self, data: Bytes, layout: Layout, columns: Sequence[str], file: File) -> pa.Schema:
        return _SCHEMA

    def scanner(self, kind: str, file: File) -> Lines:
        return Lines()

    def decode(self, data: pa.Buffer, layout: Layout, types: pa.Schema, file: File) -> pa.RecordBatch:
        """See `TextFormat.decode`."""
        type = types.field(COLUMN).type
        lines = _lines(data)
        if is_string(type):
            try:
                lines = lines.cast(pa.string())  # this checks the bytes
            except pa.ArrowInvalid as error:
                raise SourceError(
                    f"{_NO_TEXT}; give the encoding= of the files, or read bytes: af.read(paths, format='text', "
                    "schema={'text': pa.binary()})"
                ) from error
        return pa.RecordBatch.from_arrays([lines.cast(type)], [COLUMN])

    def quick(self, block: Block, hints: set[str]) -> tuple[pa.RecordBatch | None, Mapping[int, str]] | None:
        """See `TextFormat.quick`: looks at each line by itself."""
        lines = pa.RecordBatch.from_arrays([_lines(block.data)], [COLUMN])
        bad = {number: _NO_TEXT for number, line in enumerate(lines[COLUMN].to_pylist()) if not is_utf8(line)}
        return without(lines, bad).cast(block.types), bad

    def is_misfit(self, text: str) -> bool:
        return False


def _lines(data: pa.Buffer) -> pa.Array:
    """Returns the lines of some bytes, without their ends."""
    view = as_bytes(data)
    bounds = pa.py_buffer(np.array([0, data.size], np.int64))
    text = pa.Array.from_buffers(pa.large_binary(), 1, [None, bounds, data])
    if (view == ord("\r")).any():
        text = pc.replace_substring(text, b"\r\n", b"\n")
    lines = pc.split_pattern(text, b"\n").flatten()
    return lines[:-1] if view[-1] == ord("\n") else lines

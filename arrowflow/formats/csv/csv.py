"""CSV files: a split is a block of lines, decoded by pyarrow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pyarrow import csv

from arrowflow.errors import SourceError, repeated
from arrowflow.formats.csv.columns import can_be_empty, header_fields, read_block, read_columns, wide_bytes
from arrowflow.formats.csv.lines import CsvLines
from arrowflow.formats.csv.options import LATER_OPTIONS, checked
from arrowflow.formats.csv.rows import Lines, good_numbers, number_columns, with_lengths
from arrowflow.formats.protocol import Footer, Split
from arrowflow.formats.text.blocks import Source, as_bytes, behind_lines, first_records, owned
from arrowflow.formats.text.codings import UTF8, is_utf8, with_codecs
from arrowflow.formats.text.scan import Bytes, Scanner, starts_of
from arrowflow.formats.text.text import HIDDEN, SAMPLE_BYTES, Block, Layout, TextFormat
from arrowflow.formats.text.whole_numbers import check_texts, may_be_rounded
from arrowflow.formats.types import decoded_schema
from arrowflow.storage import File

_HEAD_BYTES: Final = 256 << 10
"""Bytes of the first bad block that are read for hints: a block read in vain takes 12 ms, and these 1 ms."""

_SOUND: Final = "sound"
"""The kind of files in which no quote closes a field in front of more text, as `CsvLines.is_sound` says."""

_NULL_WORDS: Final = frozenset(
    ["na", "n/a", "#n/a", "nan", "null", "none", "nil", "\\n", "-", "--", "?", "."]
)
"""Texts that mean null in many files."""

_COLUMN: Final = re.compile(r"In CSV column #(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat(TextFormat):
    """Lines of fields. An empty line is no row.

    Attributes:
        delimiter: The character between fields, or None for a comma, and a tab in files that end in `.tsv`.
        quote_char: The character around texts that hold it, delimiters or line ends; doubled inside. None for no
            quoting.
        escape_char: The character in front of one that stands for itself, or None.
        comment_prefix: The start of lines that are comments, or None.
        skip_rows: Lines in front of the header, or of the first row.
        has_header: Whether the first row has the names of the columns.
        column_names: Names of the columns of files that have no header.
        null_values: Unquoted texts that mean null. An empty field of a column that holds no texts always does.
        decimal_point: The character in front of the fraction of a number.
        truncate_ragged_lines: Whether lines get as many fields as there are columns.
        encoding: Python's name of the encoding.
    """

    name: ClassVar[str] = "csv"
    suffixes: ClassVar[tuple[str, ...]] = with_codecs(".csv", ".tsv")
    first_row: ClassVar[int] = 1
    recode: ClassVar[str] = "give encoding={!r}"

    delimiter: str | None = None
    quote_char: str | None = '"'
    escape_char: str | None = None
    comment_prefix: str | None = None
    skip_rows: int = 0
    has_header: bool = True
    column_names: tuple[str, ...] | None = None
    null_values: tuple[str, ...] = ("",)
    decimal_point: str = "."
    truncate_ragged_lines: bool = False
    encoding: str = UTF8

    def check_options(self) -> None:
        for name, value in checked(self).items():
            object.__setattr__(self, name, value)

    def arguments(self) -> Mapping[str, Any]:
        """See `OwnArguments.arguments`: options that came later only where they are given, so that older states hold."""
        later = {
            name: getattr(self, name) for name, usual in LATER_OPTIONS.items() if getattr(self, name) != usual
        }
        return {
            "block_bytes": self.block_bytes,
            "delimiter": self.delimiter,
            "quote_char": self.quote_char,
            "column_names": self.column_names and list(self.column_names),
            "null_values": list(self.null_values),
            **later,
        }

    def probe(self, schema: pa.Schema) -> None:
        names = schema.names or ["none"]
        options = csv.ConvertOptions(column_types=schema, null_values=["-"], strings_can_be_null=True)
        line = ",".join("-" for _ in names).encode() + b"\n"
        read = csv.ReadOptions(use_threads=False, column_names=names)
        read_columns(pa.py_buffer(line), read, csv.ParseOptions(), options)

    def scanner(self, kind: str, file: File) -> CsvLines:
        return CsvLines(self._delimiter(file), self.quote_char, self.escape_char, self.comment_prefix)

    def scanned(self, layout: Layout, scanner: Scanner) -> Layout:
        """See `TextFormat.scanned`: `decode` looks at quotes where this has not."""
        assert isinstance(scanner, CsvLines)
        return replace(layout, kind=_SOUND) if scanner.is_sound else layout

    def layout(self, source: Source, start: int, file: File) -> Layout:
        """See `TextFormat.layout`: reads the header, and infers types from the rows after it."""
        scanner = partial(self.scanner, "", file)
        start = behind_lines(source, start, self.skip_rows)
        names = self.column_names
        twice: tuple[str, ...] = ()
        if names is None:
            data, is_row = first_records(source, scanner, start, SAMPLE_BYTES, self.block_bytes)
            if not is_row.any():
                if self.types is None:
                    raise SourceError(_EMPTY)
                return Layout(start, self.types)
            ends, row = scanner().scan(data, True)[0], int(is_row.argmax())
            stop = int(ends[row])
            names = self._names(data[starts_of(ends)[row] : stop], file)
            twice = tuple(repeated(names))
            names = tuple(f"{HIDDEN}{number}" if name in twice else name for number, name in enumerate(names))
            start += stop if self.has_header else 0
        if self.types is not None:
            known = dict(zip(self.types.names, self.types.types, strict=True))
            schema = pa.schema([(name, known.get(name, pa.string())) for name in names])
            return Layout(start, schema, repeated=twice)
        layout = Layout(start, pa.schema([(name, pa.null()) for name in names]), repeated=twice)
        data, is_row = first_records(source, scanner, start, SAMPLE_BYTES, self.block_bytes)
        if not is_row.any():
            return layout
        return replace(layout, schema=self.inferred(data, layout, names, file))

    def _names(self, first: Bytes, file: File) -> tuple[str, ...]:
        """Returns the names of the columns, given the bytes of the first row."""
        lines = self.scanner("", file)
        row = as_bytes(self._prepared(owned(first), lines))
        with self._explained():
            fields = header_fields(_checked_quotes(row, lines), lines, self._parse_options(file))
        if not self.has_header:
            return tuple(f"column_{number}" for number in range(len(fields)))
        try:
            return tuple(field.decode() for field in fields)
        except UnicodeDecodeError as error:
            raise SourceError(f"the header is no UTF-8; {_RECODE}") from error

    @property
    def renaming(self) -> str:
        return (
            "column_names= names all of files without a header; where the first row is data, there is has_header=False, and "
            "skip_rows=1 leaves a header out"
        )

    def inferred(self, data: Bytes, layout: Layout, columns: Sequence[str], file: File) -> pa.Schema:
        names = layout.schema.names
        wanted = {} if len(columns) == len(names) else {"include_columns": list(columns)}
        convert = self._convert(empty=True, **wanted)
        data, found = self.sample(data, "", file, lambda text: self._read(text, names, file, convert).schema)
        for field in found:
            if pa.types.is_binary(field.type):
                raise SourceError(
                    f"column {field.name!r} holds bytes that are no UTF-8; {_RECODE}, or pass schema= with binary"
                )
        if rounded := may_be_rounded(found, data):
            texts = self._convert(include_columns=rounded, column_types=dict.fromkeys(rounded, pa.string()))
            check_texts(self._read(owned(data), names, file, texts))
        return decoded_schema(found)

    def decode(self, data: pa.Buffer, layout: Layout, types: pa.Schema, file: File) -> pa.RecordBatch:
        if "" in self.null_values:
            return self._decoded(data, layout, types, file)
        # Only texts can be empty, so these are read by themselves.
        texts = pa.schema([each for each in types if can_be_empty(each.type)])
        others = pa.schema([each for each in types if not can_be_empty(each.type)])
        found: dict[str, pa.Array] = {}
        for some, empty in ((texts, False), (others, True)):
            if some.names:
                found |= zip(
                    some.names, self._decoded(data, layout, some, file, empty=empty).columns, strict=True
                )
        return pa.RecordBatch.from_arrays([found[name] for name in types.names], schema=types)

    def _decoded(
        self, data: pa.Buffer, layout: Layout, types: pa.Schema, file: File, *, empty: bool = False
    ) -> pa.RecordBatch:
        """Returns some columns, in which empty fields are null if `null_values` or `empty` say so."""
        convert = self._convert(empty=empty, include_columns=types.names, column_types=types)
        try:
            table = self._read(data, layout.schema.names, file, convert, kind=layout.kind)
        except pa.ArrowInvalid as error:
            names = layout.schema.names
            text = _COLUMN.sub(lambda found: f"column {names[int(found[1])]!r}", str(error))
            raise pa.ArrowInvalid(text) from error
        return table.combine_chunks().to_batches()[0]

    def quick(self, block: Block, hints: set[str]) -> tuple[pa.RecordBatch | None, Mapping[int, str]] | None:
        """See `TextFormat.quick`: finds lines of other lengths, and texts that are no numbers. Hints are such columns."""
        if "" not in self.null_values:
            return None  # empty fields are null in some columns alone, which `decode` reads by themselves
        if not is_utf8(block.data):
            return None  # pyarrow prints an error where it shows such a line to `Lines`
        if not hints:
            head = block.data.slice(0, min(_HEAD_BYTES, block.data.size)).to_pybytes()
            self._lenient(block, pa.py_buffer(head[: head.rfind(b"\n")] + b"\n"), hints)
        found = self._lenient(block, block.data, hints)
        if found is None:
            return None
        table, doubtful, lines = found
        if lines.bad:
            hints.add("lines of other lengths")
        if not table.num_rows or table.num_rows + len(lines.bad) != block.rows:
            return None
        good = good_numbers(table.combine_chunks().to_batches()[0], doubtful, block.types, keep=block.keep)
        if good is None:
            return None
        batch, bad = good
        if bad and lines.bad:  # pyarrow counts the lines that it kept
            kept = np.delete(np.arange(block.rows), list(lines.bad))
            bad = dict(zip(kept[list(bad)].tolist(), bad.values(), strict=True))
        return batch, bad | lines.bad

    def _lenient(
        self, block: Block, data: pa.Buffer, hints: set[str]
    ) -> tuple[pa.Table, list[str], Lines] | None:
        """Reads lines of a block, columns of numbers with bad values as bytes.

        Returns: The table, these columns, and the lines of other lengths; None for other mistakes.
        """
        types, names = block.types, block.layout.schema.names
        numbers = number_columns(types, fractions=self.decimal_point == ".")
        while True:
            lines = Lines(keep=block.keep)
            doubtful = [name for name in numbers if name in hints]
            given = [pa.field(each.name, pa.binary()) if each.name in doubtful else each for each in types]
            convert = self._convert(include_columns=types.names, column_types=pa.schema(given))
            try:
                table = self._read(data, names, block.file, convert, lines, kind=block.layout.kind)
                return table, doubtful, lines
            except pa.ArrowInvalid as error:
                found = _COLUMN.search(str(error))
                name = None if found is None else names[int(found[1])]
                if name not in numbers or name in doubtful:
                    return None
                hints.add(str(name))

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        return TextFormat.scratch_bytes(self, footer, split, columns) + wide_bytes(len(columns))

    def is_misfit(self, text: str) -> bool:
        return "conversion error" in text

    def advice(self, text: str) -> str:
        if "invalid UTF8 data" in text:
            return _RECODE
        advice = TextFormat.advice(self, text)
        word = re.search(r"invalid value '(.*)'", text)
        if word is None or word[1].lower() not in _NULL_WORDS:
            return advice
        return f"{advice}; if {word[1]!r} means null, pass null_values={[*self.null_values, word[1]]}"

    def cure(self, text: str) -> str:
        cure = TextFormat.cure(self, text)
        if " columns, got " not in text:
            return cure
        named = "column_names= has a name for each field of a line; " if self.column_names else ""
        return (
            f"{named}where fields have another separator pass delimiter=; where other lines stand in front of the header, skip_rows=; "
            f"truncate_ragged_lines=True fills short lines with nulls and cuts long ones; else {cure}"
        )

    def _delimiter(self, file: File) -> str:
        return self.delimiter or ("\t" if file.path.lower().endswith(with_codecs(".tsv")) else ",")

    def _read(
        self,
        data: pa.Buffer,
        names: object,
        file: File,
        convert: object = None,
        bad: Lines | None = None,
        *,
        kind: str = "",
    ) -> pa.Table:
        """Reads bytes as one block, on the calling thread; lines of other lengths go to `bad` if it is given."""
        lines = self.scanner("", file)
        data = self._prepared(data, lines)
        parse = self._parse_options(file)
        ragged = Lines(keep=False) if self.truncate_ragged_lines and names is not None else None
        if (handler := ragged or bad) is not None:
            parse.invalid_row_handler = handler
        if kind != _SOUND:
            _checked_quotes(as_bytes(data), lines)
        table = read_block(data, names, parse, convert)
        if ragged is None or not ragged.lacking:
            return table
        data = with_lengths(data, lines, ragged.lacking, parse.delimiter, self._null_words())
        return read_block(data, names, parse, convert)

    def _parse_options(self, file: File) -> csv.ParseOptions:
        # Quoted line ends are read all the same: this option concerns only readers that cut files at line ends.
        return csv.ParseOptions(
            delimiter=self._delimiter(file),
            quote_char=self.quote_char if self.quote_char is not None else False,
            escape_char=self.escape_char if self.escape_char is not None else False,
            newlines_in_values=False,
        )

    def _prepared(self, data: pa.Buffer, lines: CsvLines) -> pa.Buffer:
        """Returns lines without comments, and with null words that pyarrow tells from others: it leaves escapes out."""
        text = as_bytes(data)
        kept = lines.without_comments(text)
        for word in self.null_values:
            if _is_escaped(word, self.escape_char):
                found = lines.fields(kept, word.encode())
                if found.size:
                    kept = kept.copy()
                    kept[(found[:, None] + np.arange(len(word.encode()))).ravel()] = 0
        return data if kept is text else owned(kept)

    def _null_words(self) -> list[str]:
        """Returns the words that mean null in prepared lines."""
        return [
            "\0" * len(word.encode()) if _is_escaped(word, self.escape_char) else word
            for word in self.null_values
        ]

    def _convert(self, *, empty: bool = False, **more: object) -> csv.ConvertOptions:
        """Returns options of pyarrow; if `empty`, empty fields are null, whatever `null_values` says."""
        return csv.ConvertOptions(
            null_values=[*self._null_words(), *([""] if empty else [])],
            decimal_point=self.decimal_point,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            **more,
        )


def _is_escaped(word: str, escape: str | None) -> bool:
    return escape is not None and len(word) > 1 and word.startswith(escape)


def _checked_quotes(text: Bytes, lines: CsvLines) -> Bytes:
    """Returns the bytes; raises `pa.ArrowInvalid` for text behind a quote that closes a field, which pyarrow adds to it."""
    found = lines.misplaced(text)
    if found.size:
        try:
            ends, is_row = lines.scan(text, True)
        except SourceError as error:  # it is cut inside of quoted text
            raise pa.ArrowInvalid(str(error)) from error
        row = int(is_row[: np.searchsorted(ends, found[0], side="right")].sum())
        raise pa.ArrowInvalid(
            f"Row #{row + 1}: a quote closes a field, and text follows it: double each quote inside of quoted text"
        )
    return text


_EMPTY: Final = "the file is empty and has no header to take names from; pass schema=, or leave it out"
_RECODE: Final = "give the encoding of the file, as in encoding='cp1252' of Windows in western Europe"

"""CSV files: a split is a block of lines, decoded by pyarrow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pyarrow import csv

from arrowflow.errors import PlanError, SourceError, shown
from arrowflow.formats.protocol import check_names
from arrowflow.formats.text.blocks import Source, as_bytes, first_records, owned, with_codecs
from arrowflow.formats.text.csv_rows import Lines, good_numbers, number_columns
from arrowflow.formats.text.scan import Bytes, CsvLines
from arrowflow.formats.text.text import SAMPLE_BYTES, Block, Layout, TextFormat
from arrowflow.formats.text.whole_numbers import check_texts, may_be_rounded
from arrowflow.formats.types import decoded_schema
from arrowflow.storage import File

_HEAD_BYTES: Final = 256 << 10
"""Bytes of the first bad block that are read for hints: a block read in vain takes 12 ms, and these 1 ms."""

_LINES: Final = "lines of other lengths"
"""The hint that there are some."""

_COLUMN: Final = re.compile(r"In CSV column #(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat(TextFormat):
    """Lines of fields. An empty line is no row.

    Attributes:
        delimiter: The character between fields, or None for a comma, and a tab in files that end in `.tsv`.
        quote_char: The character around texts that hold it, delimiters or line ends; doubled inside. None for no
            quoting.
        column_names: Names of the columns of files that have no header.
        null_values: Unquoted texts that mean null.
    """

    name: ClassVar[str] = "csv"
    suffixes: ClassVar[tuple[str, ...]] = with_codecs(".csv", ".tsv")
    first_row: ClassVar[int] = 1

    delimiter: str | None = None
    quote_char: str | None = '"'
    column_names: tuple[str, ...] | None = None
    null_values: tuple[str, ...] = ("",)

    def check_options(self) -> None:
        """See `TextFormat.check_options`."""
        for name in ("delimiter", "quote_char"):
            value: Any = getattr(self, name)
            is_one = isinstance(value, str) and len(value) == 1 and value.isascii() and value not in "\r\n"
            if value is not None and not is_one:
                raise PlanError(f"read_csv: {name} is one ASCII character, got {shown(value)}")
        if self.quote_char is not None and self.quote_char == self.delimiter:
            raise PlanError(f"read_csv: delimiter and quote_char are both {self.quote_char!r}")
        given: Any = self.null_values
        values = tuple(given) if isinstance(given, list | tuple) else (given,)
        object.__setattr__(self, "null_values", values)
        if not all(isinstance(value, str) for value in values):
            raise PlanError(f"read_csv: null_values are texts, got {list(values)}")
        self._check_column_names()

    def _check_column_names(self) -> None:
        given: Any = self.column_names
        if given is None:
            return
        names = (
            (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
        )
        if not names or not all(isinstance(name, str) for name in names):
            raise PlanError(f"read_csv: expected names of columns, got {shown(given)}")
        if len(set(names)) < len(names):
            raise PlanError(f"read_csv: column_names are one name a column, got {list(names)}")
        object.__setattr__(self, "column_names", names)

    def probe(self, schema: pa.Schema) -> None:
        """See `TextFormat.probe`."""
        names = schema.names or ["none"]
        options = csv.ConvertOptions(column_types=schema, null_values=["-"], strings_can_be_null=True)
        line = ",".join("-" for _ in names).encode() + b"\n"
        csv.read_csv(
            pa.BufferReader(line),
            csv.ReadOptions(use_threads=False, column_names=names),
            convert_options=options,
        )

    def scanner(self, kind: str, file: File) -> CsvLines:
        """See `TextFormat.scanner`."""
        return CsvLines(self._delimiter(file), self.quote_char)

    def layout(self, source: Source, start: int, file: File) -> Layout:
        """See `TextFormat.layout`: reads the header, and infers types from the rows after it."""
        scanner = partial(self.scanner, "", file)
        names = self.column_names
        if names is None:
            data, is_row = first_records(source, scanner, start, SAMPLE_BYTES)
            if not is_row.any():
                if self.types is None:
                    raise SourceError(_EMPTY)
                return Layout(start, self.types)
            stop = int(scanner().scan(data, True)[0][is_row.argmax()])
            names = self._names(data[:stop], file)
            start += stop
        if self.types is None:
            data, is_row = first_records(source, scanner, start, SAMPLE_BYTES)
            return Layout(start, self._inferred(data if is_row.any() else data[:0], names, file))
        known = dict(zip(self.types.names, self.types.types, strict=True))
        return Layout(start, pa.schema([(name, known.get(name, pa.string())) for name in names]))

    def _names(self, header: Bytes, file: File) -> tuple[str, ...]:
        with self._explained():
            table = _read(owned(header), None, self._parse(file))
        names = tuple(table.column_names)
        check_names(names)
        return names

    def _inferred(self, data: Bytes, names: tuple[str, ...], file: File) -> pa.Schema:
        """Returns types that hold the values of a sample; texts if there are no values."""
        if not data.size:
            return pa.schema([(name, pa.string()) for name in names])
        data, found = self.sample(
            data,
            "",
            file,
            lambda text: _read(text, names, self._parse(file), self._convert()).schema,
        )
        for name, type in zip(found.names, found.types, strict=True):
            if pa.types.is_binary(type):
                raise SourceError(
                    f"column {name!r} holds bytes that are no UTF-8; write the file as UTF-8, or pass schema= with "
                    "binary"
                )
        if rounded := may_be_rounded(found, data):
            texts = self._convert(include_columns=rounded, column_types=dict.fromkeys(rounded, pa.string()))
            check_texts(_read(owned(data), names, self._parse(file), texts))
        types = [pa.string() if pa.types.is_null(type) else type for type in found.types]
        return decoded_schema(pa.schema(list(zip(names, types, strict=True))))

    def decode(self, data: pa.Buffer, layout: Layout, types: pa.Schema, file: File) -> pa.RecordBatch:
        """See `TextFormat.decode`."""
        convert = self._convert(include_columns=types.names, column_types=types)
        try:
            table = _read(data, layout.schema.names, self._parse(file), convert)
        except pa.ArrowInvalid as error:
            names = layout.schema.names
            text = _COLUMN.sub(lambda found: f"column {names[int(found[1])]!r}", str(error))
            raise pa.ArrowInvalid(text) from error
        return table.combine_chunks().to_batches()[0]

    def quick(self, block: Block, hints: set[str]) -> tuple[pa.RecordBatch | None, Mapping[int, str]] | None:
        """See `TextFormat.quick`: finds lines of other lengths, and texts that are no numbers. Hints are such columns."""
        if not _is_utf8(block.data):
            return None  # pyarrow prints an error where it shows such a line to `Lines`
        if not hints:
            head = block.data.slice(0, min(_HEAD_BYTES, block.data.size)).to_pybytes()
            self._lenient(block, pa.py_buffer(head[: head.rfind(b"\n")] + b"\n"), hints)
        found = self._lenient(block, block.data, hints)
        if found is None:
            return None
        table, doubtful, lines = found
        if lines.bad:
            hints.add(_LINES)
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
        parse, numbers = self._parse(block.file), number_columns(types)
        while True:
            lines = parse.invalid_row_handler = Lines(keep=block.keep)
            doubtful = [name for name in numbers if name in hints]
            given = [pa.field(each.name, pa.binary()) if each.name in doubtful else each for each in types]
            convert = self._convert(include_columns=types.names, column_types=pa.schema(given))
            try:
                return _read(data, names, parse, convert), doubtful, lines
            except pa.ArrowInvalid as error:
                found = _COLUMN.search(str(error))
                name = None if found is None else names[int(found[1])]
                if name not in numbers or name in doubtful:
                    return None
                hints.add(str(name))

    def is_misfit(self, text: str) -> bool:
        """See `TextFormat.is_misfit`."""
        return "conversion error" in text

    def _delimiter(self, file: File) -> str:
        if self.delimiter is not None:
            return self.delimiter
        path = file.path.lower()
        return "\t" if path.endswith(with_codecs(".tsv")) else ","

    def _parse(self, file: File) -> csv.ParseOptions:
        # Quoted line ends are read all the same: this option concerns only readers that cut files at line ends.
        return csv.ParseOptions(
            delimiter=self._delimiter(file),
            quote_char=self.quote_char if self.quote_char is not None else False,
            newlines_in_values=False,
        )

    def _convert(self, **more: object) -> csv.ConvertOptions:
        return csv.ConvertOptions(
            null_values=list(self.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            **more,
        )


def _is_utf8(data: pa.Buffer) -> bool:
    """Returns whether bytes are a text, in a tenth of the time that `bytes.decode` takes."""
    bounds = pa.py_buffer(np.array([0, data.size], np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, bounds, data]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _read(data: pa.Buffer, names: object, parse: csv.ParseOptions, convert: object = None) -> pa.Table:
    """Reads bytes as one block, on the calling thread."""
    text = as_bytes(data)
    _check_quotes(text, parse)
    if text[-1] not in (ord("\r"), ord("\n")):
        data = owned(text, b"\n")
    read = csv.ReadOptions(use_threads=False, block_size=data.size, column_names=names)
    return csv.read_csv(pa.BufferReader(data), read, parse, convert)


def _check_quotes(text: Bytes, parse: csv.ParseOptions) -> None:
    """Raises `pa.ArrowInvalid` for text behind the quote that closes a field, which pyarrow adds to the field."""
    lines = CsvLines(parse.delimiter, parse.quote_char or None)
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


_EMPTY: Final = "the file is empty and has no header to take names from; pass schema=, or leave it out"

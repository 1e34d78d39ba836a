"""JSON files: objects, one a line, over several lines, or as the elements of one array. pyarrow decodes a split, a block of objects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
from pyarrow import json

from arrowflow.errors import ArrowflowError, SourceError
from arrowflow.formats.json import scan
from arrowflow.formats.json.keys import check_keys, check_lists, wide_bytes
from arrowflow.formats.json.rows import Misfit, no_objects
from arrowflow.formats.json.texts import as_texts
from arrowflow.formats.protocol import Footer, Split, check_names
from arrowflow.formats.text.blocks import Source, as_bytes, first_records, opened, owned
from arrowflow.formats.text.codings import with_codecs
from arrowflow.formats.text.scan import Bytes, Scanner
from arrowflow.formats.text.sifting import Records
from arrowflow.formats.text.text import SAMPLE_BYTES, Block, Layout, TextFormat
from arrowflow.formats.text.whole_numbers import check_objects, may_be_rounded
from arrowflow.formats.types import check_texts, convert, decoded_schema
from arrowflow.storage import File, Store
from arrowflow.types import is_list

_BLANKS: Final = b" \t\r\n"
_ARRAY: Final = "array"
_OBJECTS: Final = "objects"
_SCANNERS: Final[dict[str, Callable[[], Scanner]]] = {
    "": scan.JsonLines,
    _ARRAY: scan.JsonElements,
    _OBJECTS: scan.JsonObjects,
}
_NOT_ENDED: Final = b"{[,:"
_KIND_BYTES: Final = 16 << 10
"""Bytes at the start of a file that are looked at for objects over several lines, in 0.1 ms."""
_MAX_NESTING: Final = 64
"""Levels of a type that is inferred. At some thousands of them pyarrow ends the process."""

_NO_TEXT: Final = "changed from string to"
_CHANGED: Final = re.compile(rf"Column\(.*\) {_NO_TEXT} \w+")

_NO_KEYS: Final = b"{}  "
_EMPTY: Final = "the file has no rows to take columns from; pass schema=, or leave it out"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat(TextFormat):
    """Objects, whose keys are columns. An absent key is null; a key that is no column is ignored."""

    name: ClassVar[str] = "json"
    suffixes: ClassVar[tuple[str, ...]] = with_codecs(".json", ".jsonl", ".ndjson")
    first_row: ClassVar[int] = 0

    def probe(self, schema: pa.Schema) -> None:
        _parse(pa.py_buffer(b"{}\n"), schema)

    def scanner(self, kind: str, file: File) -> Scanner:
        return _SCANNERS[kind]()

    def layout(self, source: Source, start: int, file: File) -> Layout:
        """See `TextFormat.layout`: finds out whether the file is an array, and infers types from the first rows."""
        kind = ""
        while (data := source.window(start, SAMPLE_BYTES)).size:
            blanks = data.size - len(data.tobytes().lstrip(_BLANKS))  # other control characters are no JSON
            if blanks < data.size:
                kind = _kind(data[blanks:])
                start += blanks + (kind == _ARRAY)
                break
            start += data.size
        if self.types is not None:
            return Layout(start, self.types, kind)
        scanner = partial(self.scanner, kind, file)
        data, is_row = first_records(source, scanner, start, SAMPLE_BYTES, self.block_bytes)
        if not is_row.any():
            raise SourceError(_EMPTY)
        return Layout(start, self.inferred(data, Layout(start, pa.schema([]), kind), (), file), kind)

    def inferred(self, data: Bytes, layout: Layout, columns: Sequence[str], file: File) -> pa.Schema:
        if scan.nesting(data) > _MAX_NESTING:
            raise SourceError(
                f"its values are nested deeper than {_MAX_NESTING} levels; pass schema= with the columns to read"
            )
        check_keys(data)
        data, found = self.sample(
            data,
            layout.kind,
            file,
            lambda text: _parse(_as_lines(as_bytes(text)) if layout.kind == _ARRAY else text, None).schema,
        )
        check_names(found.names)
        if may_be_rounded(found, data):
            check_objects(data.tobytes(), found)
        return decoded_schema(pa.schema([(each.name, _parsed(each.type, has_times=False)) for each in found]))

    def holds(self, store: Store, footer: Footer, names: Sequence[str]) -> list[str]:
        """See `Untyped.holds`: columns with a value, since pyarrow does not say which keys it ignores."""
        layout = footer.details.layout
        known = frozenset(layout.schema.names)
        with opened(store, footer.file) as source:
            scanner = partial(self.scanner, layout.kind, footer.file)
            data, is_row = first_records(source, scanner, layout.start, SAMPLE_BYTES, self.block_bytes)
            if not is_row.any():
                return []
            lines = _as_lines(data) if layout.kind == _ARRAY else owned(data)
        if not _has_values(lines, names):
            return [name for name in names if name in known]
        return [name for name in names if name in known or _has_values(lines, [name])]

    def decode(self, data: pa.Buffer, layout: Layout, types: pa.Schema, file: File) -> pa.RecordBatch:
        lines = _as_lines(as_bytes(data)) if layout.kind == _ARRAY else data
        check_lists(as_bytes(data), types)
        try:
            table = _parse(lines, types)
        except pa.ArrowInvalid as error:
            if self.is_inferred or _NO_TEXT not in str(error):
                raise
            try:
                table = _parse(as_texts(lines, types), types)
            except pa.ArrowInvalid as later:
                if _NO_TEXT not in str(later):
                    raise
                # A value that does not come as a text stands in a malformed object, or behind one: `as_texts` went no further.
                raise pa.ArrowInvalid(_CHANGED.sub("a value is no JSON,", str(later))) from None
        batch = table.combine_chunks().to_batches()[0]
        check_texts(batch)
        columns = [convert(_sound(batch.column(name)), types.field(name).type) for name in types.names]
        return pa.RecordBatch.from_arrays(columns, schema=types)

    def quick(self, block: Block, hints: set[str]) -> tuple[pa.RecordBatch | None, Mapping[int, str]] | None:
        """See `TextFormat.quick`: finds lines that are no objects, and those with values of another kind."""
        if block.layout.kind:
            return None
        records = block.records
        wrong: dict[int, str] = {}
        for hint in sorted(hints):
            wrong |= Misfit.of(hint).rows(records)
        bad = no_objects(records, keep=block.keep)
        if hints and bad and not wrong:  # objects over several lines are good where all of the block is
            with suppress(pa.ArrowInvalid, ArrowflowError):
                batch = self.decode(block.data, block.layout, block.types, block.file)
                if batch.num_rows == len(records):
                    return batch, {}
        bad |= wrong
        for _ in range(8):  # kinds of wrong values; for more of them lines are decoded in small parts
            if len(bad) == len(records):
                break
            try:
                batch = self.decode(records.without(bad), block.layout, block.types, block.file)
                return (batch if batch.num_rows == len(records) - len(bad) else None), bad
            except pa.ArrowInvalid as error:
                misfit = Misfit.told(records, bad, str(error))
                more = {} if misfit is None else misfit.rows(records)
                if misfit is None or not more.keys() - bad.keys():
                    break
                hints.add(misfit.hint)
                bad |= more
        return None, bad

    def scratch_bytes(self, footer: Footer, split: Split, columns: Sequence[str]) -> int:
        wanted = frozenset(columns)
        types = [each.type for each in footer.schema if each.name in wanted]
        return TextFormat.scratch_bytes(self, footer, split, columns) + wide_bytes(types)

    def records(self, data: pa.Buffer, kind: str, file: File, first: int) -> Records:
        """See `TextFormat.records`: of an array, the bracket that closes it may lie in a later block."""
        if kind != _ARRAY:
            return TextFormat.records(self, data, kind, file, first)
        text = as_bytes(data)
        ends, _ = scan.elements(text)
        return Records.of(text, ends, scan.have_values(text, ends), first)

    def stripped(self, kind: str, row: bytes) -> bytes:
        """See `TextFormat.stripped`: an element of an array has a comma or the bracket behind it."""
        return row.strip()[:-1].rstrip() if kind == _ARRAY else row.strip()

    def advice(self, text: str) -> str:
        if "Column() changed" in text:
            return "rows are objects: read other values by Python and from_generator"
        return f"{TextFormat.advice(self, text)}; in schema=, pa.string() takes values of any kind as their JSON text"

    def cure(self, text: str) -> str:
        cure = TextFormat.cure(self, text)
        if "document is empty" not in text:
            return cure
        return f"if commas stand between the objects, put [ before the first one and ] behind the last one; else {cure}"

    def is_misfit(self, text: str) -> bool:
        return any(word in text for word in ("changed from", "convert", "conversion", "casted"))


def _kind(data: Bytes) -> str:
    """Returns the form of the records by the start of a file: objects over several lines have line ends within them."""
    if data[0] == ord("["):
        return _ARRAY
    data = data[:_KIND_BYTES]
    place = scan.first_end_within(data)
    if place is None or (data.size < _KIND_BYTES and not _are_objects(data)):
        return ""
    shown = data > ord(" ")
    before, behind = data[:place][shown[:place]], data[place:][shown[place:]]
    goes_on = before.size and before[-1] in _NOT_ENDED and not (behind.size and behind[0] == ord("{"))
    return _OBJECTS if goes_on else ""  # else a line is cut off, and the next one begins an object


def _are_objects(data: Bytes) -> bool:
    try:
        scan.JsonObjects().scan(data, True)
    except SourceError:
        return False
    return True


def _parse(data: pa.Buffer, types: pa.Schema | None) -> pa.Table:
    given = None if types is None else pa.schema([(each.name, _parsed(each.type)) for each in types])
    return json.read_json(
        pa.BufferReader(_with_first_object(data)),
        json.ReadOptions(use_threads=False, block_size=data.size),
        json.ParseOptions(
            explicit_schema=given, unexpected_field_behavior="infer" if given is None else "ignore"
        ),
    )


def _with_first_object(data: pa.Buffer) -> pa.Buffer:
    """Returns the same rows with an object as the first one: pyarrow ends the process where the first one is `null`."""
    found = re.match(rb"\s*null", data)
    if found is None:
        return data
    changed = owned(as_bytes(data))
    as_bytes(changed)[found.end() - len(_NO_KEYS) : found.end()] = np.frombuffer(_NO_KEYS, np.uint8)
    return changed


def _has_values(lines: pa.Buffer, names: Sequence[str]) -> bool:
    """Returns whether one of these keys has a value besides null: the type null has no other value."""
    try:
        _parse(lines, pa.schema([(name, pa.null()) for name in names]))
    except pa.ArrowInvalid as error:
        return "changed from null" in str(error)  # any other error is found, and told, when rows are decoded
    return False


def _as_lines(data: Bytes) -> pa.Buffer:
    """Returns the elements of an array, with a newline after each instead of the comma or the bracket."""
    lines = owned(data)
    as_bytes(lines)[scan.elements(data)[0] - 1] = ord("\n")
    return lines


def _parsed(type: pa.DataType, *, has_times: bool = True) -> pa.DataType:
    """Returns a type that pyarrow can parse and that is then cast: pyarrow parses only one kind of list.

    Without times, which JSON lacks, their place is taken by texts: pyarrow infers times from some texts.
    """
    if pa.types.is_struct(type):
        return pa.struct([(each.name, _parsed(each.type, has_times=has_times)) for each in type.fields])
    if is_list(type):
        return pa.list_(_parsed(type.value_type, has_times=has_times))
    return pa.string() if pa.types.is_timestamp(type) and not has_times else type


def _sound(array: pa.Array) -> pa.Array:
    """Returns the same values with as many nulls in lists of nulls alone as their offsets say: pyarrow makes too few."""
    type = array.type
    if pa.types.is_list(type):
        (stop,) = np.frombuffer(array.buffers()[1], np.int32)[len(array) :][:1] if len(array) else (0,)
        values = pa.nulls(stop) if pa.types.is_null(type.value_type) else _sound(array.values)
        return pa.Array.from_buffers(type, len(array), array.buffers()[:2], children=[values])
    if pa.types.is_struct(type) and type.num_fields:
        fields = [_sound(array.field(number)) for number in range(type.num_fields)]
        return pa.Array.from_buffers(type, len(array), array.buffers()[:1], children=fields)
    return array

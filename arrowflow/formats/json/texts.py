"""Values of any kind in columns of texts: JSON text in quotes, which pyarrow then reads as texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.json

from arrowflow.types import is_list, is_string

MAX_SHOWN: Final = 100
"""The most bytes of a malformed value that its error shows."""

_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_STRING: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_VALUE: Final = re.compile(rf"{_STRING}|[^\s,:\[\]{{}}\"]+", re.DOTALL)
_BRACKETS: Final = re.compile(rf"{_STRING}|([\[{{])|[\]}}]", re.DOTALL)
_SCALAR: Final = re.compile(
    r"true|false|-?(?:NaN|Inf|Infinity|(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
)
"""Lexers that take all that pyarrow takes, and more; of what is malformed pyarrow tells."""


def as_texts(data: pa.Buffer, types: pa.Schema) -> pa.Buffer:
    """Returns objects with the JSON text of each value that is no text where a column wants one, up to a malformed one.

    Examples:
        >>> types = pa.schema({"x": pa.string()})
        >>> as_texts(pa.py_buffer(b'{"x": [1, null], "y": 2} {"x": "a"}'), types).to_pybytes()
        b'{"x": "[1, null]", "y": 2} {"x": "a"}'
    """
    text = _Text(data.to_pybytes().decode("utf-8", "surrogateescape"))
    try:
        text.rewrite(pa.struct(list(types)))
    except _NoJsonError as error:
        shown = str(error).encode("utf-8", "replace")[:MAX_SHOWN].decode("utf-8", "ignore")
        raise pa.ArrowInvalid(f"JSON parse error: a value is no JSON, in row {text.row}: {shown}") from None
    except (ValueError, IndexError):
        pass  # pyarrow tells of them
    return pa.py_buffer(text.whole().encode("utf-8", "surrogateescape"))


class _NoJsonError(Exception):
    """A value that would become a text is no JSON."""


class _Text:
    """Objects, and what becomes of them; `row` counts the objects that are done."""

    def __init__(self, text: str) -> None:
        self.row = 0
        self._text = text
        self._parts: list[str] = []
        self._done = 0

    def whole(self) -> str:
        """Returns all of the text, as far as it was rewritten."""
        return "".join([*self._parts, self._text[self._done :]])

    def rewrite(self, type: pa.StructType) -> None:
        """Goes through objects of a type once."""
        fields = {field.name: field.type for field in type.fields}
        place = self._shown(0)
        while place < len(self._text):
            is_object = self._text[place] == "{"
            place = self._shown(self._object(place, fields) if is_object else self._skip(place))
            self.row += 1

    def _value(self, start: int, type: pa.DataType | None) -> int:
        """Returns the place behind a value."""
        first = self._text[start]
        if type is None:
            return self._skip(start)
        if pa.types.is_struct(type) and first == "{":
            return self._object(start, {field.name: field.type for field in type.fields})
        if is_list(type) and first == "[":
            return self._inside(start, "]", lambda place: self._value(place, type.value_type))
        stop = self._skip(start)
        if (
            (is_string(type) or pa.types.is_string_view(type))
            and first != '"'
            and self._text[start:stop] != "null"
        ):
            text = self._text[start:stop]
            if not (_is_json(text) if first in "[{" else _SCALAR.fullmatch(text)):
                raise _NoJsonError(text)
            self._parts += [self._text[self._done : start], json.dumps(text, ensure_ascii=False)]
            self._done = stop
        return stop

    def _object(self, start: int, types: dict[str, pa.DataType]) -> int:
        def member(place: int) -> int:
            self._expect(place, '"')
            stop = self._skip(place)
            key, stop = self._key(place, stop), self._shown(stop)
            self._expect(stop, ":")
            return self._value(self._shown(stop + 1), types.get(key))

        return self._inside(start, "}", member)

    def _inside(self, start: int, end: str, member: Callable[[int], int]) -> int:
        """Returns the place behind a list or an object, given what returns the place behind one of its members."""
        place = self._shown(start + 1)
        if self._text[place] == end:
            return place + 1
        while True:
            place = self._shown(member(place))
            if self._text[place] == end:
                return place + 1
            self._expect(place, ",")
            place = self._shown(place + 1)

    def _shown(self, place: int) -> int:
        """Returns the first place from one on that is not blank."""
        return _BLANKS.match(self._text, place).end()  # type: ignore[union-attr]  # it also matches no text

    def _key(self, start: int, stop: int) -> str:
        text = self._text[start:stop]
        return str(json.loads(text, strict=False)) if "\\" in text else text[1:-1]

    def _skip(self, start: int) -> int:
        """Returns the place behind a value."""
        if self._text[start] not in "[{":
            found = _VALUE.match(self._text, start)
            if found is None:
                raise ValueError(start)
            return found.end()
        depth = 0
        for found in _BRACKETS.finditer(self._text, start):
            if found[0][0] != '"':
                depth += 1 if found[1] else -1
                if depth == 0:
                    return found.end()
        raise ValueError(start)

    def _expect(self, place: int, letter: str) -> None:
        if self._text[place] != letter:
            raise ValueError(letter)


def _is_json(text: str) -> bool:
    """Whether pyarrow takes a list or an object."""
    try:
        json.loads(text, strict=False)
    except RecursionError:
        return True  # its brackets close, and at so many levels pyarrow may end the process
    except ValueError:
        row = b'{"":%s}' % text.encode("utf-8", "surrogateescape")
        try:
            pyarrow.json.read_json(pa.BufferReader(row))  # it takes `Inf`, too
        except pa.ArrowInvalid:
            return False
    return True

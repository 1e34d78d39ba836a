"""JSON forms of Polars expressions with long constants lifted out: whatever is no column is not walked.

Polars writes a list of a million keys as the bytes of an Arrow stream, each byte as a number of JSON: 19 MB, of which
Python would make eight million objects each time that somebody reads the tree. In a `Text` a short name stands in place
of such a list. The name is a digest, so equal expressions have equal texts, in every process.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

Json = Any

_BEGINS: Final = '":[255,255,255,255,'
"""The end of a key, and the first bytes of an Arrow stream. In a text, which may hold the same, quotes are escaped."""
MIN_CHARACTERS: Final = 4096
"""Shorter constants stay where they are."""


class Constant(str):
    """The name of a lifted constant, which stands in its place in a tree.

    Attributes:
        data: Its JSON form.
    """

    __slots__ = ("data",)
    data: str


class Text(str):
    """A JSON form with names in place of long constants.

    Attributes:
        constants: The constants by name.
    """

    __slots__ = ("constants",)
    constants: Mapping[str, Constant]


def lifted(text: str) -> str:
    """Returns a JSON form as Polars wrote it with its long constants lifted out.

    Example:
        >>> import polars as pl
        >>> text = pl.col("x").is_in(range(5000)).meta.serialize(format="json")
        >>> len(text) > 50_000, len(lifted(text)) < 300, whole(lifted(text)) == text
        (True, True, True)
    """
    constants: dict[str, Constant] = {}
    parts: list[str] = []
    end = 0
    while (begin := text.find(_BEGINS, end)) >= 0:
        in_text = text[begin - 1] == "\\"
        begin += 2
        stop = begin if in_text else text.index("]", begin) + 1
        if stop - begin < MIN_CHARACTERS:
            parts.append(text[end:stop])
        else:
            data = text[begin:stop]
            constant = Constant(f"bytes:{hashlib.sha256(data.encode()).hexdigest()}")
            constant.data = data
            constants[constant] = constant
            parts += [text[end:begin], _quoted(constant)]
        end = stop
    return _text("".join((*parts, text[end:])), constants) if constants else text


def pieces(text: str) -> Iterator[str]:
    """Yields the parts of a JSON form, its constants among them, in order."""
    constants = text.constants if isinstance(text, Text) else {}
    # Without constants there is nothing to split at, and an empty pattern would split everywhere.
    parts = re.split("|".join(map(_quoted, constants)), text) if constants else [text]
    names = re.findall("|".join(map(_quoted, constants)), text) if constants else []
    for part, name in itertools.zip_longest(parts, names):
        yield part
        if name is not None:
            yield constants[name[1:-1]].data


def whole(text: str) -> str:
    """Returns the JSON form with all its constants, as Polars reads it."""
    return "".join(pieces(text))


def like(text: str, other: str) -> str:
    """Returns the JSON form `other` with the constants of `text`, of which it was made."""
    return _text(other, text.constants) if isinstance(text, Text) else other


def loads(text: str) -> Json:
    """Returns the tree of a JSON form, in which names stand for long constants."""
    if not isinstance(text, Text):
        return json.loads(text)
    constants = text.constants

    def named(node: dict[str, Json]) -> dict[str, Json]:
        return {
            key: constants.get(part, part) if isinstance(part, str) else part for key, part in node.items()
        }

    return json.loads(text, object_hook=named)


def dumps(tree: Json) -> str:
    """Returns the JSON form of a tree."""
    constants: dict[str, Constant] = {name: name for name in _constants(tree)}
    text = json.dumps(tree)
    return _text(text, constants) if constants else text


def _text(value: str, constants: Mapping[str, Constant]) -> Text:
    text = Text(value)
    text.constants = constants
    return text


def _quoted(name: str) -> str:
    return f'"{name}"'


def _constants(node: Json) -> Iterator[Constant]:
    if isinstance(node, Constant):
        yield node
    elif isinstance(node, dict | list):
        for part in node.values() if isinstance(node, dict) else node:
            yield from _constants(part)

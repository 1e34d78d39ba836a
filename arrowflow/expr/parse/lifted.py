"""JSON forms of Polars expressions with long constants lifted out: whatever is no column is not walked.

Polars writes a list of a million keys as the bytes of an Arrow stream, each byte as a number of JSON: 19 MB, of which
Python would make eight million objects each time that somebody reads the tree. In a `Text` a short name stands in place
of such a list. The name is a digest, so equal expressions have equal texts, in every process that has the same Polars.

To write these numbers takes Polars 70 ms, and to read them 170 ms. Its binary form, of MessagePack, has the bytes as they
are, and takes 4 ms. So long constants are cut out of the binary form, and Polars writes only the rest as JSON.

Polars writes a Python function as its pickle. The pickle of a `Function` of `expr/own` holds a name, which stands in its place.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from pyarrow.types import is_binary_view, is_floating, is_integer, is_string_view

Json = Any

_BEGINS: Final = '":[255,255,255,255,'
"""The end of a key, and the first bytes of an Arrow stream. In a text, which may hold the same, quotes are escaped."""
MIN_CHARACTERS: Final = 4096
"""Shorter constants stay where they are."""
_MIN_BYTES: Final = MIN_CHARACTERS // 4

_BYTES: Final = re.compile(rb"[\xa1-\xaf][A-Za-z]+(?=(?:\xc5(..)|\xc6(....))(\xff\xff\xff\xff))", re.DOTALL)
"""A key of MessagePack, the number of bytes after it, and the start of an Arrow stream."""
_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end of an Arrow stream."""
_NUMBERS: Final = np.array([f"{byte},".encode() for byte in range(256)])
_BLOCK_BYTES: Final = 1 << 18


class Constant(str):
    """The name of a lifted constant, which stands in its place in a tree.

    Attributes:
        data: Its JSON form, or the bytes that this form lists.
    """

    __slots__ = ("data",)
    data: str | bytes

    def pieces(self) -> Iterator[str]:
        """Yields the parts of its JSON form."""
        if isinstance(self.data, str):
            yield self.data
            return
        for start in range(0, len(self.data), _BLOCK_BYTES):
            numbers = _NUMBERS[np.frombuffer(self.data[start : start + _BLOCK_BYTES], np.uint8)]
            characters = numbers.view(np.uint8)
            text = characters[characters != 0].tobytes().decode()
            last = start + _BLOCK_BYTES >= len(self.data)
            yield f"{'' if start else '['}{text[:-1] if last else text}{']' if last else ''}"


class OwnFunction(Constant):
    """The name of a function of `expr/own`, such as "arrowflow:hash_bucket:10": all of its identity, in every release."""

    __slots__ = ()


OWN: Final = "arrowflow:"
_PICKLED: Final = re.compile(r'"function":(\[80,76,80,89,[0-9,]+\])')
"""A Python function, of which Polars begins the pickle with "PLPY". In a text, the quote before the colon is escaped."""
_OWN: Final = re.compile(
    rb"arrowflow\.expr\.own\.function.{1,6}Function.{1,12}?([a-z_]+:[0-9]+)\x94", re.DOTALL
)
"""The global and its argument, as `pickle` writes them, one after the other."""


class Text(str):
    """A JSON form with names in place of long constants.

    Attributes:
        constants: The constants by name.
    """

    __slots__ = ("constants",)
    constants: Mapping[str, Constant]


def serialised(expr: pl.Expr) -> str:
    """Returns the JSON form of an expression with its long constants lifted out.

    Raises:
        polars.exceptions.ComputeError: Polars cannot write the expression as JSON, because it holds a Python function.

    Examples:
        >>> import polars as pl
        >>> expr = pl.col("x").is_in(range(5000))
        >>> len(serialised(expr)) < 300, whole(serialised(expr)) == expr.meta.serialize(format="json")
        (True, True)
    """
    return functions_named(_by_binary_form(expr) or lifted(expr.meta.serialize(format="json")))


def functions_named(text: str) -> str:
    """Returns the JSON form with names in place of functions of this library's own."""
    constants: dict[str, Constant] = dict(text.constants) if isinstance(text, Text) else {}

    def named(found: re.Match[str]) -> str:
        own = _OWN.search(bytes(json.loads(found[1])))
        if own is None:
            return found[0]
        name = OwnFunction(f"{OWN}{own[1].decode()}")
        name.data = found[1]
        constants[name] = name
        return f'"function":{_quoted(name)}'

    short = _PICKLED.sub(named, text)
    return text if short == text else _text(short, constants)


def _by_binary_form(expr: pl.Expr) -> str | None:
    """Returns the JSON form without long constants; None if the binary form has none that can be cut out."""
    try:
        data, constants = _cut(expr.meta.serialize(format="binary"))
        if not constants:
            return None
        text: str = pl.Expr.deserialize(io.BytesIO(data), format="binary").meta.serialize(format="json")
    except (pl.exceptions.PolarsError, TypeError, ValueError):
        return None  # JSON may fail alike, and its error says why
    for name in constants:
        before, text = text, text.replace(_placeholder(name)[1], _quoted(name))
        if text == before:
            return None  # this Polars writes a series anew in other words
    return _text(text, constants)


def _cut(data: bytes) -> tuple[bytes, dict[str, Constant]]:
    """Returns a binary form with short series in place of long ones, and the long ones."""
    constants: dict[str, Constant] = {}
    parts: list[bytes] = []
    end = 0
    at = 0
    while (found := _BYTES.search(data, at)) is not None:
        start = found.start(3)
        at = stop = start + int.from_bytes(found[1] or found[2])
        if not data.endswith(_END, start, stop):
            at = start
        elif stop - start >= _MIN_BYTES:
            listed = data[start:stop]
            constant = Constant(f"bytes:{hashlib.sha256(listed).hexdigest()}")
            constant.data = listed
            constants[constant] = constant
            parts += [data[end : found.end()], _placeholder(constant)[0]]
            end = stop
    return b"".join((*parts, data[end:])), constants


@lru_cache(maxsize=64)
def _placeholder(name: str) -> tuple[bytes, str]:
    """Returns the binary form and the JSON form of a short series that no expression of a user has."""
    literal = pl.lit(pl.Series(name, [], pl.String))  # an Enum takes nothing else
    data = literal.meta.serialize(format="binary")
    found = _BYTES.search(data)
    listed = json.loads(literal.meta.serialize(format="json"))["Literal"]["Series"]
    return data[found.end() :] if found else b"", json.dumps(listed, separators=(",", ":"))


def constant_series(node: Json) -> pl.Series | None:
    """Returns the value of a node that has nothing but a lifted constant, None for any other node.

    Raises:
        polars.exceptions.PolarsError: Polars cannot compute it.
    """
    keys: list[str] = []
    while isinstance(node, dict) and len(node) == 1:
        ((key, node),) = node.items()
        if len(key) >= 32:
            return None
        keys.append(key)
    if not isinstance(node, Constant) or isinstance(node.data, str):
        return None
    if keys in (["Literal", "Series"], ["Literal", "Scalar", "List"]):
        series = _without_copy(node.data)
        if series is not None:
            return series.implode() if keys[-1] == "List" else series
    path = b"".join(b"\x81" + bytes([0xA0 | len(key)]) + key.encode() for key in keys)
    form = b"".join((path, b"\xc6", len(node.data).to_bytes(4), node.data))
    return pl.select(pl.Expr.deserialize(io.BytesIO(form), format="binary")).to_series()


def _without_copy(stream: bytes) -> pl.Series | None:
    """Returns the series of an Arrow stream; None if it has a type of which Polars alone knows all.

    Polars would copy the bytes twice: of a million texts of 23 bytes, that takes 57 ms.
    """
    try:
        table = pa.ipc.open_stream(stream).read_all()
    except pa.ArrowNotImplementedError:
        return None  # whole numbers of 128 bits
    field = table.schema.field(0)
    inner = field.type.value_field if pa.types.is_large_list(field.type) else field
    is_plain = (is_integer, is_floating, is_string_view, is_binary_view)
    if field.metadata or inner.metadata or not any(each(inner.type) for each in is_plain):
        return None
    series = pl.from_arrow(table.column(0))
    assert isinstance(series, pl.Series)
    return series


def lifted(text: str) -> str:
    """Returns a JSON form as Polars wrote it with its long constants lifted out."""
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


def pieces(text: str, *, named: bool = False) -> Iterator[str]:
    """Yields the parts of a JSON form, its constants among them, in order; functions by their names if `named`."""
    constants = text.constants if isinstance(text, Text) else {}
    # Without constants there is nothing to split at, and an empty pattern would split everywhere.
    parts = re.split("|".join(map(_quoted, constants)), text) if constants else [text]
    names = re.findall("|".join(map(_quoted, constants)), text) if constants else []
    for part, name in itertools.zip_longest(parts, names):
        yield part
        if name is not None:
            constant = constants[name[1:-1]]
            yield from [name] if named and isinstance(constant, OwnFunction) else constant.pieces()


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
    """Returns the JSON form of a tree, spelled as Polars spells it: an expression and its tree are then one question."""
    constants: dict[str, Constant] = {part: part for _, part in items(tree) if isinstance(part, Constant)}
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False)
    return _text(text, constants) if constants else text


def items(tree: Json, *, evaluated: bool = True) -> Iterator[tuple[str, Json]]:
    """Yields the keys and values of all nodes, parents first, and the parts of lists under the key "".

    Without `evaluated` it leaves out nodes that run inside of lists and structs.
    """
    # A stack, as a generator in a generator for each level would pass on each item once a level.
    left = _parts(tree)
    while left:
        key, part = left.pop()
        yield key, part
        if evaluated or key != "evaluation":
            left += _parts(part)


def _parts(tree: Json) -> list[tuple[str, Json]]:
    """Returns what a node or a list holds, last ones first."""
    if isinstance(tree, dict):
        return list(tree.items())[::-1]
    return [("", part) for part in reversed(tree)] if isinstance(tree, list) else []


def words(tree: Json) -> Iterator[str]:
    """Yields all keys and bare names of a tree."""
    for key, part in (("", tree), *items(tree)):
        yield key
        if isinstance(part, str):
            yield part


def _text(value: str, constants: Mapping[str, Constant]) -> Text:
    text = Text(value)
    text.constants = constants
    return text


def _quoted(name: str) -> str:
    return f'"{name}"'


_SHOWN: Final = re.compile(rf'\.alias\("{OWN}([^"]*)"\)')


def shown(expr: pl.Expr, text: str) -> str:
    """Returns an expression as people read it, given its JSON form: Polars would call each function of ours `python_udf`.

    Examples:
        >>> import arrowflow as af
        >>> expr = af.hash_bucket("x", 10) + 1
        >>> str(expr), shown(expr, serialised(expr))
        ('[(col("x").python_udf()) + (dyn int: 1)]', '[(col("x").hash_bucket(10)) + (dyn int: 1)]')
    """
    if f'"function":"{OWN}' not in text:
        return str(expr)
    form = io.BytesIO(whole(dumps(_renamed(loads(text)))).encode())
    return _SHOWN.sub(r".\1", str(pl.Expr.deserialize(form, format="json")))


def _renamed(node: Json) -> Json:
    """Returns a tree with a name in place of each function: Polars writes a name behind its input, whatever it is."""
    if isinstance(node, list):
        return [_renamed(part) for part in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("function"), OwnFunction):
        column, *constants = node["input"]
        _, name, size = node["function"].split(":")
        arguments = ", ".join(["…"] * len(constants) + [size] * (size != "0"))
        return [_renamed(column), f"{OWN}{name}({arguments})"]
    return {
        "Alias"
        if isinstance(part, dict) and isinstance(part.get("function"), OwnFunction)
        else key: _renamed(part)
        for key, part in node.items()
    }

"""`pyarrow.compute` expressions, read from their serialised form into `tree` nodes.

pyarrow shows no parts of an expression, and its text is ambiguous. But pyarrow pickles an expression as an Arrow file.
The schema metadata of this file is the tree in prefix order: `call`, `field_ref`, `literal`, `options`, `end`. Keys
repeat, so pyarrow's dict of the metadata is useless. This module reads the list from the footer of the file itself.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.ipc

from arrowflow.errors import PlanError
from arrowflow.expr.parse.tree import COMPARISONS, Call, Column, Literal, Node
from arrowflow.lazy import compute as pc
from arrowflow.types import exact_values

_CHECKED: Final = ("add", "subtract", "multiply", "divide", "power", "abs", "negate")
# The name in pyarrow, and the name of the call. pyarrow runs all other functions.
_FUNCTIONS: Final = {
    **{name: name for name in COMPARISONS},
    **{name: name for name in ("sqrt", "exp", "log1p", "floor", "ceil", "if_else", "cast")},
    **{name: name for name in ("is_null", "is_nan", "is_finite", "is_in")},
    **{each: name for name in _CHECKED for each in (name, f"{name}_checked")},
    "ln": "log",
    "coalesce": "fill_null",
    "and_kleene": "and",
    "or_kleene": "or",
    "invert": "not",
    "is_valid": "is_not_null",
    "is_inf": "is_infinite",
}
# The registry calls these functions scalar, but they do not depend on the row alone.
_NOT_DETERMINISTIC: Final = frozenset(("random",))


def serialise(expr: pc.Expression) -> bytes:
    """Returns the serialised form of `expr`.

    Raises:
        PlanError: The expression names a column by position, which pyarrow cannot serialise.
    """
    try:
        return bytes(expr.__reduce__()[1][0])
    except pa.ArrowException as error:
        raise PlanError(
            f"pyarrow cannot serialise the expression {expr} ({error}); name columns by name"
        ) from error


def shown(expr: object) -> str:
    """Returns the text of an expression of either engine; pyarrow has no text for a literal that is not UTF-8."""
    try:
        return str(expr)
    except UnicodeDecodeError:
        return str(read(serialise(expr)))


def deserialise(data: bytes) -> pc.Expression:
    """Returns the expression whose serialised form is `data`."""
    return pc.Expression._deserialize(pa.py_buffer(data))


@lru_cache(maxsize=1024)
def check(data: bytes) -> str | None:
    """Returns the reason why the serialised expression `data` is not element-wise, None if it is element-wise."""
    for key, value in entries(data):
        if key == "call" and value != "cast" and (value in _NOT_DETERMINISTIC or _kind(value) != "scalar"):
            return f"`{value}` (a {_kind(value)} function)"
    return None


def _kind(name: str) -> str:
    try:
        return str(pc.get_function(name).kind)
    except KeyError:
        return "unknown"


@lru_cache(maxsize=1024)
def read(data: bytes) -> Node:
    """Returns the tree of the serialised expression `data`."""
    return _read(entries(data), 0, constants(data))[0]


@lru_cache(maxsize=1024)
def text(data: bytes) -> str:
    """Returns a text that two serialised expressions share only if they mean the same."""
    texts = [f"{column.type}:{_constant(column)!r}" for column in constants(data).columns]
    return "\n".join(
        f"{key}={texts[int(value)] if key in ('literal', 'options') else value}"
        for key, value in entries(data)
    )


def _constant(column: pa.Array) -> object:
    return _options(column) if pa.types.is_struct(column.type) else exact_values(column)[0]


def entries(data: bytes) -> list[tuple[str, str]]:
    """Returns the metadata of the schema of the Arrow file `data`, in order and with repeated keys.

    The file ends in a flatbuffer `Footer`, the length of the footer in four bytes, and `ARROW1`. Field 1 of the footer
    is the schema. Field 2 of the schema is a vector of tables of two strings.
    """
    (length,) = struct.unpack_from("<i", data, len(data) - 10)
    footer = data[len(data) - 10 - length : len(data) - 10]
    schema = _follow(footer, _field(footer, _follow(footer, 0), 1))
    vector = _follow(footer, _field(footer, schema, 2))
    (count,) = struct.unpack_from("<I", footer, vector)
    pairs = (_follow(footer, vector + 4 + 4 * index) for index in range(count))
    return [(_string(footer, pair, 0), _string(footer, pair, 1)) for pair in pairs]


def written(parts: list[tuple[str, str]], values: Sequence[pa.Array]) -> bytes:
    """Returns the serialised expression of the entries `parts` and the constants `values`."""
    # A batch without columns cannot have one row.
    columns = list(values) or [pa.Array.from_buffers(pa.null(), 1, [None])]
    fields = [(str(index), column.type) for index, column in enumerate(columns)]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, pa.KeyValueMetadata(parts)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _follow(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """The place of field `number` of the flatbuffer table at `table`, 0 if the field is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, vtable)
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + slot)[0] if slot < size else 0
    return table + int(offset) if offset else 0


def _string(data: bytes, table: int, number: int) -> str:
    at = _follow(data, _field(data, table, number))
    (length,) = struct.unpack_from("<I", data, at)
    return data[at + 4 : at + 4 + length].decode()


def constants(data: bytes) -> pa.RecordBatch:
    """Returns the constants of the serialised expression `data`, one column each; entries name a constant by number."""
    return pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)


def _read(entries: list[tuple[str, str]], start: int, constants: pa.RecordBatch) -> tuple[Node, int]:
    """Returns the node that begins at the entry `start`, and where the next one begins."""
    key, value = entries[start]
    at = start + 1
    if key == "field_ref":
        return Column(value), at
    if key == "literal":
        column = constants.column(int(value))
        return Literal(_constant(column), column.type), at
    args: list[Node] = []
    options: dict[str, object] = {"checked": True} if value.endswith("_checked") else {}
    if key == "nested_field_ref":
        function = "arrow:field"
        args.append(Column(entries[at][1]))
        at += int(value)
    else:
        function = _FUNCTIONS.get(value, f"arrow:{value}")
        while entries[at][0] != "end":
            if entries[at][0] == "options":
                options |= _options(constants.column(int(entries[at][1])))
                at += 1
            else:
                arg, at = _read(entries, at, constants)
                args.append(arg)
        at += 1
    # The serialised form of these entries is an expression of its own.
    source = written(entries[start:at], constants.columns)
    return Call(function, tuple(args), tuple(sorted(options.items())), source), at


def _options(column: pa.Array) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, part in enumerate(column.type.fields):
        if part.name == "_type_name":  # the name of the options' class
            continue
        value = exact_values(column.field(index))[0]
        found[part.name] = tuple(value) if isinstance(value, list) else value
        if part.name == "to_type":  # a null, which has this type
            found[part.name] = part.type
        elif part.name == "value_set":
            found[part.name] = Literal(value, part.type)
    return found

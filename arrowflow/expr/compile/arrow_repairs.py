"""Replacements for calls of `pyarrow.compute` that write outside their memory: other calls with the same result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final

import pyarrow as pa

from arrowflow.expr.parse import arrow_tree
from arrowflow.lazy import compute as pc

_ARGUMENT: Final = "argument"


@lru_cache(maxsize=1024)
def repaired(data: bytes) -> bytes | None:
    """Returns the serialised expression `data` without the calls of `_REPAIRS`, None if it has no such call."""
    entries = arrow_tree.entries(data)
    if not any(key == "call" and value in _REPAIRS for key, value in entries):
        return None
    constants = list(arrow_tree.constants(data).columns)
    return arrow_tree.written(_rewritten(entries, constants), constants)


Entries = list[tuple[str, str]]


def _rewritten(entries: Entries, constants: list[pa.Array]) -> Entries:
    """Returns the entries with the calls replaced, and appends the constants of the new calls."""
    found: Entries = []
    begun: list[int] = []  # where each open call begins in `found`
    for key, value in entries:
        found.append((key, value))
        if key == "call":
            begun.append(len(found) - 1)
        elif key == "end":
            start = begun.pop()
            (_, function), *argument, _ = found[start:]
            if function in _REPAIRS:
                found[start:] = _instead(function, argument, constants)
    return found


def _instead(function: str, argument: Entries, constants: list[pa.Array]) -> Entries:
    """Returns the entries that replace a function of an argument, and appends their constants."""
    data = _serialised(function)
    first = len(constants)
    constants.extend(arrow_tree.constants(data).columns)
    found: Entries = []
    for key, value in arrow_tree.entries(data):
        if (key, value) == ("field_ref", _ARGUMENT):
            found += argument
        else:
            found.append((key, str(first + int(value)) if key in ("literal", "options") else value))
    return found


@cache
def _serialised(function: str) -> bytes:
    return arrow_tree.serialise(_REPAIRS[function]())


def _year_month_day() -> pc.Expression:
    """Pyarrow's builder appends beyond 32 rows without more memory: https://github.com/apache/arrow/issues/38655."""
    argument = pc.field(_ARGUMENT)
    names = ["year", "month", "day"]
    parts = [pc.year(argument), pc.month(argument), pc.day(argument)]
    none = pc.scalar(pa.scalar(None, pa.struct([(name, pa.int64()) for name in names])))
    return pc.if_else(argument.is_valid(), pc.make_struct(*parts, field_names=names), none)


def _of_a_copy(function: str) -> Callable[[], pc.Expression]:
    """The function needs 0 as its first offset: it copies the offsets unchanged, but the bytes from the first on.

    A cast of a slice from large_string makes an array with another first offset, and files may hold such arrays.
    A trim of no characters copies the array.
    """
    return lambda: getattr(pc, function)(pc.ascii_trim(pc.field(_ARGUMENT), characters=""))


_REPAIRS: Final[dict[str, Callable[[], pc.Expression]]] = {
    "year_month_day": _year_month_day,
    **{name: _of_a_copy(name) for name in ("ascii_lower", "ascii_swapcase", "ascii_upper")},
}

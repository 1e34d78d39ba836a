"""The options of CSV: what they may be."""

from __future__ import annotations

from typing import Any, Final

from arrowflow.errors import PlanError, shown
from arrowflow.formats.text.codings import UTF8, checked_encoding
from arrowflow.options import check_flag

LATER_OPTIONS: Final[dict[str, Any]] = {
    "escape_char": None,
    "comment_prefix": None,
    "skip_rows": 0,
    "has_header": True,
    "decimal_point": ".",
    "truncate_ragged_lines": False,
    "encoding": UTF8,
}
"""Options that states of the first version do not have, and their defaults."""


def checked(format: Any) -> dict[str, Any]:
    """Returns the options of a `CsvFormat` as they are kept.

    Raises:
        PlanError: An option makes no sense, or not with another one.
    """
    for name in ("delimiter", "quote_char", "escape_char", "decimal_point"):
        value: Any = getattr(format, name)
        is_one = isinstance(value, str) and len(value) == 1 and value.isascii() and value not in "\r\n"
        if not is_one and (value is not None or name == "decimal_point"):
            raise PlanError(f"read_csv: {name} is one ASCII character, got {shown(value)}")
    _check_different(format)
    lines: Any = format.skip_rows
    if isinstance(lines, bool) or not isinstance(lines, int) or lines < 0:
        raise PlanError(f"read_csv: skip_rows is a number of lines, 0 or more, got {shown(lines)}")
    flags = ("has_header", "truncate_ragged_lines")
    return {
        **{name: check_flag("read_csv", name, getattr(format, name)) for name in flags},
        "comment_prefix": _comment(format.comment_prefix, format),
        "column_names": _names(format.column_names),
        "null_values": _nulls(format.null_values),
        "encoding": checked_encoding("read_csv", format.encoding),
    }


def _check_different(format: Any) -> None:
    given = {
        "delimiter": format.delimiter or ",",
        "quote_char": format.quote_char,
        "escape_char": format.escape_char,
        "decimal_point": None if format.decimal_point == "." else format.decimal_point,
    }
    names: dict[str, str] = {}
    for name, character in given.items():
        if character is not None and character in names:
            raise PlanError(
                f"read_csv: {names[character]} and {name} are both {character!r}; give another delimiter= or {name}="
            )
        names[character or name] = name


def _comment(prefix: Any, format: Any) -> str | None:
    if prefix is None:
        return None
    if not isinstance(prefix, str) or not prefix or "\n" in prefix or "\r" in prefix:
        raise PlanError(f"read_csv: comment_prefix is the start of comments, as '#', got {shown(prefix)}")
    if prefix[0] in (format.quote_char, format.delimiter or ",", format.escape_char):
        raise PlanError(
            f"read_csv: comment_prefix starts with a delimiter, a quote or an escape, got {prefix!r}"
        )
    return prefix


def _names(given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise PlanError(f"read_csv: expected names of columns, got {shown(given)}")
    if len(set(names)) < len(names):
        raise PlanError(f"read_csv: column_names are one name a column, got {list(names)}")
    return names


def _nulls(given: Any) -> tuple[str, ...]:
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not all(isinstance(value, str) for value in values):
        raise PlanError(f"read_csv: null_values are texts, got {list(values)}")
    return values

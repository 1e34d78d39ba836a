"""The output of commands: tables on a terminal or in a pipe, or JSON for scripts."""

from __future__ import annotations

import base64
import datetime
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from arrowflow.errors import printable
from arrowflow.observe.progress import BYTES, scaled
from arrowflow.optional import optional


def write_json(value: object) -> None:
    """Writes one JSON value and ends the line."""
    text = json.dumps(_finite(value), default=_plain, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(text + "\n")


def write_text(*lines: str) -> None:
    """Writes lines, without codes that a terminal obeys."""
    sys.stdout.write("".join(printable(line) + "\n" for line in lines))


def write_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Writes a table. The cells of the columns named as `numbers` stand at the right."""
    table = optional("rich.table", user="arrowflow", extra="cli").Table(
        box=optional("rich.box", user="arrowflow", extra="cli").SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for name in header:
        justify = "right" if name in numbers else "left"
        table.add_column(_text(name), justify=justify, overflow="fold")
    for cells in rows:
        table.add_row(*map(_text, cells))
    console().print(table)


def console() -> Any:
    """Returns rich's console of the standard output, which may be another one in each call."""
    made = optional("rich.console", user="arrowflow", extra="cli").Console(highlight=False)
    if not made.is_terminal:
        made.width = 160
    return made


def size(num_bytes: float) -> str:
    """Returns a number of bytes with its unit.

    Examples:
        >>> size(1536), size(10 << 20)
        ('1.5 KiB', '10 MiB')
    """
    return scaled(num_bytes, 1024, BYTES)


def _text(cell: str) -> Any:
    return optional("rich.text", user="arrowflow", extra="cli").Text(printable(cell))


def _finite(value: Any) -> Any:
    """Returns a value with texts in place of NaN and infinity, which JSON lacks: those of JSON by protobuf."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return list(map(_finite, value)) if isinstance(value, list | tuple) else value


def _plain(value: object) -> Any:
    """Returns what JSON has in place of a value: bytes as Base64, everything else that it lacks as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)

"""`arrowflow head`: the first rows of files, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
from polars.exceptions import PolarsError

from arrowflow.cli.files import dataset_of
from arrowflow.cli.output import console, write_json, write_table, write_text
from arrowflow.errors import PlanError, counted, cut

COLUMN_WIDTH: Final = 14
"""The room that a column needs in a table; where there is less, each column becomes a line."""


def run(
    paths: Sequence[str],
    *,
    rows: int,
    columns: Sequence[str] | None,
    where: str | None,
    format: str | None,
    as_json: bool,
) -> bool:
    """Shows rows; finds nothing to stop at."""
    dataset = dataset_of("head", paths, format)
    if where is not None:
        dataset = dataset.filter(expression_of(where))
    if columns is not None:
        if not columns:
            raise PlanError("head: --columns names no column; leave it out to see all")
        dataset = dataset.select(list(columns))
    found = dataset.take(rows).to_table().to_pylist()
    if as_json:
        for row in found:
            write_json(row)
    elif not found:
        write_text("no rows")
    else:
        _show(found)
    return False


def expression_of(text: str) -> pl.Expr:
    """Returns the expression that a text in SQL says: Polars parses it, and nothing is executed.

    Raises:
        PlanError: It is no such expression.

    Examples:
        >>> str(expression_of("price > 3 AND name LIKE 'a%'")).count("price")
        1
    """
    try:
        return pl.sql_expr(text)
    except PolarsError as error:
        raise PlanError(
            f"--where takes an expression of SQL, such as \"price > 3 AND name = 'a'\": {error}"
        ) from error


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(rows[0])
    cells = [[_shown(row[name]) for name in names] for row in rows]
    if len(names) * COLUMN_WIDTH <= console().width:
        write_table(names, cells)
    else:  # as many rows as have room
        room = max(1, console().width // (2 * COLUMN_WIDTH))
        shown = cells[:room]
        header = ["column", *(f"row {number}" for number in range(len(shown)))]
        write_table(header, zip(names, *shown, strict=True))
        if len(shown) < len(cells):
            write_text(f"{counted(len(cells) - len(shown), 'more row')}: `--columns` makes room for them")


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return cut(f"{value:.6g}" if isinstance(value, float) else str(value), 60)

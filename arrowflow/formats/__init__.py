"""File formats behind one protocol, and the registry that finds them by name."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final

from arrowflow.errors import PlanError, closest
from arrowflow.expr.pruning import ColumnStatistics
from arrowflow.formats.ipc.ipc import IpcFormat
from arrowflow.formats.parquet.parquet import ParquetFormat
from arrowflow.formats.protocol import Footer, Format, MayMatch, Split, match
from arrowflow.formats.text.csv import CsvFormat
from arrowflow.formats.text.json import JsonFormat
from arrowflow.formats.tfrecord.tfrecord import TfrecordFormat
from arrowflow.formats.types import decoded_schema, decoded_type, widens

__all__ = [
    "FORMATS",
    "ColumnStatistics",
    "Footer",
    "Format",
    "MayMatch",
    "Split",
    "decoded_schema",
    "decoded_type",
    "find",
    "match",
    "widens",
]

FORMATS: Final[dict[str, Format]] = {
    "parquet": ParquetFormat(),
    "ipc": IpcFormat(),
    "csv": CsvFormat(),
    "json": JsonFormat(),
    "tfrecord": TfrecordFormat(),
}


def find(name: str) -> Format:
    """Returns the format of that name: one of `FORMATS`, else what a package offers as `arrowflow.formats`.

    Raises:
        PlanError: There is no such format.

    Example:
        >>> find("parquet").suffixes
        ('.parquet', '.parq', '.pq')
    """
    if name in FORMATS:
        return FORMATS[name]
    offered = entry_points(group="arrowflow.formats")
    for entry in offered.select(name=name):
        made = entry.load()
        found: Format = made() if isinstance(made, type) else made
        return found
    raise PlanError(f"there is no format {name!r}; {closest(name, [*FORMATS, *offered.names])}")

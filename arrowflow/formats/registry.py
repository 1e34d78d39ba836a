"""The registry of formats by name, from this package and from other packages; and the options of formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from arrowflow.errors import PlanError, closest, said, shown
from arrowflow.formats.avro.avro import AvroFormat
from arrowflow.formats.capabilities import OwnArguments
from arrowflow.formats.csv.csv import CsvFormat
from arrowflow.formats.ipc.ipc import IpcFormat
from arrowflow.formats.json.json import JsonFormat
from arrowflow.formats.orc.orc import OrcFormat
from arrowflow.formats.parquet.parquet import ParquetFormat
from arrowflow.formats.protocol import Format
from arrowflow.formats.text.lines import LinesFormat
from arrowflow.formats.tfrecord.tfrecord import TfrecordFormat
from arrowflow.formats.webdataset.webdataset import WebdatasetFormat

FORMATS: Final[dict[str, Format]] = {
    "parquet": ParquetFormat(),
    "ipc": IpcFormat(),
    "orc": OrcFormat(),
    "avro": AvroFormat(),
    "csv": CsvFormat(),
    "json": JsonFormat(),
    "text": LinesFormat(),
    "tfrecord": TfrecordFormat(),
    "webdataset": WebdatasetFormat(),
}

ENTRY_POINTS: Final = "arrowflow.formats"
"""The group of entry points by which other packages offer formats. An entry is a class, or an object of the class."""


def find(name: str) -> Format:
    """Returns the format of this name: from `FORMATS`, else from a package's entry point `arrowflow.formats`.

    Raises:
        PlanError: There is no such format, or a package's entry point offers no format.

    Examples:
        >>> find("parquet").suffixes
        ('.parquet', '.parq', '.pq')
    """
    if name in FORMATS:
        return FORMATS[name]
    offered = entry_points(group=ENTRY_POINTS)
    for entry in offered.select(name=name):
        return _loaded(entry)
    raise PlanError(f"there is no format {name!r}; {closest(name, known_names(), kind='formats')}")


def known_names() -> list[str]:
    """Returns the names that `find` knows."""
    return [*FORMATS, *entry_points(group=ENTRY_POINTS).names]


def reader_of(format: Format) -> str:
    """Returns the function that reads a format, as messages name it. Formats of other packages have no function of their own.

    Examples:
        >>> reader_of(find("csv"))
        'read_csv'
    """
    return f"read_{format.name}" if type(format) is type(FORMATS.get(format.name)) else "read"


def _loaded(entry: EntryPoint) -> Format:
    where = f"the entry point {ENTRY_POINTS}: {entry.name} = {entry.value}"
    try:
        loaded = entry.load()
        made = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:
        raise PlanError(f"{where} cannot be loaded ({said(error)}); install or mend its package") from error
    if not isinstance(made, Format):
        raise PlanError(f"{where} gives {shown(made)}, which is no arrowflow.formats.Format; derive from it")
    return made


def configured(format: Format, options: Mapping[str, Any]) -> Format:
    """Returns the format with some of its options set.

    Raises:
        PlanError: The format has no such option, or the value makes no sense.

    Examples:
        >>> configured(find("csv"), {"delimiter": ";"}).delimiter
        ';'
    """
    known = _options(format)
    for name in options:
        if name not in known:
            names = closest(name, known, kind="options") if known else "it has no options"
            raise PlanError(
                f"{reader_of(format)}: the format {format.name!r} has no option {name!r}; {names}"
            )
    return dataclasses.replace(format, **options) if options else format  # type: ignore[type-var]


def arguments(format: Format) -> Mapping[str, Any]:
    """Returns as JSON values all that the rows depend on besides the files: the options, unless the format says.

    Examples:
        >>> arguments(find("json"))
        {'block_bytes': 4194304}
    """
    if isinstance(format, OwnArguments):
        return format.arguments()
    values = {name: getattr(format, name) for name in _options(format)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _options(format: Any) -> list[str]:
    fields = dataclasses.fields(format) if dataclasses.is_dataclass(format) else ()
    return [each.name for each in fields if each.compare and each.init]

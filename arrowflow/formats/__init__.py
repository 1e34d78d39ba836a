"""File formats behind one protocol, and the registry that finds them by name.

Formats of other packages derive from `Format`: see `docs/formats.md`.
"""

from arrowflow.bad_rows import BadRow
from arrowflow.expr.pruning import ColumnStatistics
from arrowflow.formats.capabilities import (
    InPlaceFormat,
    OwnArguments,
    PiecesFormat,
    PooledFormat,
    RunFormat,
    Sifted,
    SiftingFormat,
    StoredDecimals,
    StructFields,
    Unsure,
    Untyped,
)
from arrowflow.formats.protocol import Footer, Format, MayMatch, Split, match
from arrowflow.formats.registry import FORMATS, arguments, configured, find, known_names, reader_of
from arrowflow.formats.types import conform, decoded_schema, decoded_type, widens
from arrowflow.storage import File, Range, Store

__all__ = [
    "FORMATS",
    "BadRow",
    "ColumnStatistics",
    "File",
    "Footer",
    "Format",
    "InPlaceFormat",
    "MayMatch",
    "OwnArguments",
    "PiecesFormat",
    "PooledFormat",
    "Range",
    "RunFormat",
    "Sifted",
    "SiftingFormat",
    "Split",
    "Store",
    "StoredDecimals",
    "StructFields",
    "Unsure",
    "Untyped",
    "arguments",
    "configured",
    "conform",
    "decoded_schema",
    "decoded_type",
    "find",
    "known_names",
    "match",
    "reader_of",
    "widens",
]

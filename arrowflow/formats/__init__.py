"""File formats behind one protocol, and the registry that finds them by name.

Formats of other packages derive from `Format`: see `docs/formats.md`.
"""

from arrowflow.expr.pruning import ColumnStatistics
from arrowflow.formats.capabilities import (
    InPlaceFormat,
    OwnArguments,
    PiecesFormat,
    PooledFormat,
    RunFormat,
    StoredDecimals,
    Unsure,
    Untyped,
)
from arrowflow.formats.protocol import Footer, Format, MayMatch, Split, match
from arrowflow.formats.registry import FORMATS, arguments, configured, find
from arrowflow.formats.types import conform, decoded_schema, decoded_type, widens
from arrowflow.storage import File, Range, Store

__all__ = [
    "FORMATS",
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
    "Split",
    "Store",
    "StoredDecimals",
    "Unsure",
    "Untyped",
    "arguments",
    "configured",
    "conform",
    "decoded_schema",
    "decoded_type",
    "find",
    "match",
    "widens",
]

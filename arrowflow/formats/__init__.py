"""File formats behind one protocol, and the registry that finds them by name.

Formats of other packages derive from `Format`: see the `README.md` of this folder.
"""

from arrowflow.expr.pruning import ColumnStatistics
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
    "MayMatch",
    "Range",
    "Split",
    "Store",
    "arguments",
    "configured",
    "conform",
    "decoded_schema",
    "decoded_type",
    "find",
    "match",
    "widens",
]

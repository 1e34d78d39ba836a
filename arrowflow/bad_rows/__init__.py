"""Bad rows: what becomes of them (`on_error`), how many there were, and the folder that keeps them.

A bad row is one that a reader cannot decode, or for which a user's function raises. Failures of storage, of memory and
of a plan are none: they always raise.
"""

from __future__ import annotations

from arrowflow.bad_rows.bad_row_policy import (
    BY_OPTIONS,
    NO_BAD_ROWS,
    BadRowPolicy,
    LeftOut,
    bad_among,
    first_bad,
    is_bad_data,
    without,
)
from arrowflow.bad_rows.quarantine import BadRow, Quarantine

__all__ = [
    "BY_OPTIONS",
    "NO_BAD_ROWS",
    "BadRow",
    "BadRowPolicy",
    "LeftOut",
    "Quarantine",
    "bad_among",
    "first_bad",
    "is_bad_data",
    "without",
]

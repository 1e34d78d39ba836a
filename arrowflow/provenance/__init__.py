"""Questions about rows: which are left, and where those of a batch come from."""

from __future__ import annotations

from arrowflow.provenance.count_rows import count_rows
from arrowflow.provenance.locate import locate

__all__ = ["count_rows", "locate"]

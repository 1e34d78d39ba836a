"""Questions about rows: which are left, and where those of a batch come from."""

from __future__ import annotations

from arrowflow.provenance.count_rows import count_rows

__all__ = ["count_rows"]

"""Questions about rows: which are left, and where those of a batch come from."""

from __future__ import annotations

from arrowflow.provenance.count_rows import count_rows
from arrowflow.provenance.locate import locate
from arrowflow.provenance.read_quarantine import read_quarantine

__all__ = ["count_rows", "locate", "read_quarantine"]

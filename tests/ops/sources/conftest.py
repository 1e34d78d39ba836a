"""Fixtures for sources of files."""

from __future__ import annotations

from typing import Any

import pytest

from arrowflow.formats.parquet.parquet import ParquetFormat
from arrowflow.storage import File


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lists the files whose footers are read, that of the first file too, which is known from binding."""
    monkeypatch.setattr("arrowflow.ops.sources.files.splits.knows_footer", lambda *given: False)
    found: list[str] = []
    original = ParquetFormat.footer

    def footer(self: ParquetFormat, store: Any, file: File) -> Any:
        found.append(file.relative)
        return original(self, store, file)

    monkeypatch.setattr(ParquetFormat, "footer", footer)
    return found

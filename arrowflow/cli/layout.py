"""How a Parquet file stores its columns, as its footer tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from arrowflow.formats import Footer

_LEVELS = frozenset(("RLE", "BIT_PACKED"))
"""Encodings of levels, which nearly every column has beside that of its values."""


@dataclass(slots=True, kw_only=True)
class ColumnLayout:
    """How one column is stored in some row groups.

    Attributes:
        codecs: Names of compressions.
        encodings: Names of encodings, without those of levels.
        chunks: Column chunks, of all leaves.
        with_bounds: Those of them that have the least and the greatest value.
        with_page_index: Those of them that have a page index.
        stored_bytes: Their bytes in the file.
        values_bytes: Their bytes before compression.
    """

    codecs: set[str] = field(default_factory=set)
    encodings: set[str] = field(default_factory=set)
    chunks: int = 0
    with_bounds: int = 0
    with_page_index: int = 0
    stored_bytes: int = 0
    values_bytes: int = 0

    def add(self, chunk: Any) -> None:
        """Takes pyarrow's metadata of a column chunk."""
        self.codecs.add(chunk.compression)
        self.encodings.update(chunk.encodings)
        self.chunks += 1
        self.with_bounds += bool(chunk.is_stats_set and chunk.statistics.has_min_max)
        self.with_page_index += bool(chunk.has_offset_index)
        self.stored_bytes += chunk.total_compressed_size
        self.values_bytes += chunk.total_uncompressed_size

    def merge(self, other: ColumnLayout) -> None:
        """Takes the figures of other row groups."""
        self.codecs |= other.codecs
        self.encodings |= other.encodings
        for name in ("chunks", "with_bounds", "with_page_index", "stored_bytes", "values_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def value_encodings(self) -> list[str]:
        """The encodings of values, sorted; that of booleans may be one of levels, too."""
        return sorted(self.encodings - _LEVELS) or sorted(self.encodings)


def layout_of(footer: Footer) -> dict[str, ColumnLayout]:
    """Returns how a Parquet file stores each column.

    Raises:
        SourceError: The footer is corrupt.
    """
    found: dict[str, ColumnLayout] = {}
    for name, chunk in _chunks(footer):
        found.setdefault(name, ColumnLayout()).add(chunk)
    return found


def _chunks(footer: Footer) -> Iterator[tuple[str, Any]]:
    details = footer.details
    for split in footer.splits:
        group = details.row_groups[split.index]
        for name, (first, end) in details.leaves.items():
            for leaf in range(first, end):
                yield name, group.column(leaf)

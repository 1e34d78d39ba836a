"""How often the values of a column come, exactly, and about how many different ones there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError
from arrowflow.lazy import compute as pc

MOST_VALUES: Final = 1_000_000
"""Different values that are counted one by one: some 100 MB of texts."""
_PENDING_ROWS: Final = 1 << 20
_KEPT_HASHES: Final = 4_096


def value_counts(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Returns the different values of a column of texts or whole numbers, and how often each of them comes; nulls are left out.

    Arrow counts 262,144 texts of 20,000 kinds in 24 ms, and Polars in 37, after 3 to take them over (AMD EPYC).
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.large_string())
    counted = pc.value_counts(values.drop_null() if values.null_count else values)
    return counted.field(0), counted.field(1)


@dataclass(slots=True)
class Counts:
    """How often each value of a column comes; nulls are left out.

    Attributes:
        column: Its name, for messages.
        frame: Values and counts, each value once.
        pending: Counts of later rows, where values may come several times.
    """

    column: str
    frame: pl.DataFrame | None = None
    pending: list[pl.DataFrame] = field(default_factory=list)

    def merge(self, other: Counts) -> None:
        """Adds the values of another part."""
        for counted in ([] if other.frame is None else [other.frame]) + other.pending:
            self.pending.append(counted)
            if sum(map(len, self.pending)) > _PENDING_ROWS:
                self.joined()

    def joined(self) -> pl.DataFrame:
        """Returns values and counts: the most frequent value first, and equally frequent ones by value."""
        if self.frame is not None and not self.pending:
            return self.frame
        frames = ([] if self.frame is None else [self.frame]) + self.pending
        # A frame without rows may have another type.
        frames = [each for each in frames if len(each)] or frames[:1]
        counts = pl.concat(frames, how="vertical_relaxed")  # of UInt32 and Int64
        found = counts.group_by("value").agg(pl.col("count").cast(pl.Int64).sum())
        if len(found) > MOST_VALUES:
            raise DataError(
                f"column {self.column!r} has more than {MOST_VALUES:,} different values, which is no vocabulary; leave it out, "
                "or fit on fewer rows: ds.take(n).fit(…)"
            )
        self.frame, self.pending = found.sort("count", "value", descending=[True, False]), []
        return self.frame


@dataclass(slots=True)
class Distinct:
    """About how many different values a column has, with a standard error of 1.6 %; exactly, under 4,096.

    The least hashes are kept: the k-th of them says how close they lie (Bar-Yossef and others, "Counting distinct elements in
    a data stream", RANDOM 2002). Hashes are those of this release of Polars, so they are not stored.
    """

    least: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    def add(self, values: pl.Series) -> None:
        """Adds the values of some rows; nulls are left out."""
        self._keep(values.drop_nulls().hash(seed=7).to_numpy())

    def merge(self, other: Distinct) -> None:
        """Adds the values of another part."""
        self._keep(other.least)

    def _keep(self, hashes: npt.NDArray[np.uint64]) -> None:
        if len(self.least) == _KEPT_HASHES:
            hashes = hashes[hashes < self.least[-1]]
        if len(hashes):
            found = np.sort(np.concatenate([self.least, hashes]))
            differs = np.append(True, found[1:] != found[:-1])  # `np.unique` takes ten times as long
            self.least = found[differs][:_KEPT_HASHES]

    @property
    def count(self) -> int:
        """The estimate."""
        if len(self.least) < _KEPT_HASHES:
            return len(self.least)
        return round((_KEPT_HASHES - 1) * 2.0**64 / float(self.least[-1]))

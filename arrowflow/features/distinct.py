"""How often the values of a column come, exactly, and about how many different ones there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from arrowflow.errors import DataError

MOST_VALUES: Final = 1_000_000
"""Different values that are counted one by one: some 100 MB of texts."""
_PENDING_ROWS: Final = 1 << 20
_KEPT_HASHES: Final = 4_096


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

    def add(self, values: pl.Series) -> None:
        """Adds the values of some rows."""
        if values.dtype in (pl.Categorical, pl.Enum):
            values = values.cast(pl.String)
        self._take(values.drop_nulls().alias("value").value_counts(name="count"))

    def merge(self, other: Counts) -> None:
        """Adds the values of another part."""
        for counted in ([] if other.frame is None else [other.frame]) + other.pending:
            self._take(counted)

    def _take(self, counted: pl.DataFrame) -> None:
        self.pending.append(counted)
        if sum(map(len, self.pending)) > _PENDING_ROWS:
            self.joined()

    def joined(self) -> pl.DataFrame:
        """Returns values and counts: the most frequent value first, and equally frequent ones by value."""
        if self.frame is not None and not self.pending:
            return self.frame
        frames = ([] if self.frame is None else [self.frame]) + self.pending
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
            self.least = np.unique(np.concatenate([self.least, hashes]))[:_KEPT_HASHES]

    @property
    def count(self) -> int:
        """The estimate."""
        if len(self.least) < _KEPT_HASHES:
            return len(self.least)
        return round((_KEPT_HASHES - 1) * 2.0**64 / float(self.least[-1]))

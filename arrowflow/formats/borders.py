"""Borders of splits: where files lie one after the other, or rows in a file, a split takes as many as fit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def split_borders(starts: Ints, stops: Ints, *, max_count: int, max_bytes: int) -> list[int]:
    """Returns the number of the first one of each split, and how many there are in all.

    A split ends before the one that goes beyond either limit, but has at least one.

    Args:
        starts: The first byte of each, not falling.
        stops: The byte after each, not falling.
        max_count: The most of a split.
        max_bytes: The most bytes from the first byte of a split to its last.

    Examples:
        >>> stops = np.array([3, 5, 14])
        >>> split_borders(stops - [3, 2, 9], stops, max_count=64, max_bytes=5)
        [0, 2, 3]
    """
    borders, at = [0], 0
    while at < len(stops):
        fits = int(np.searchsorted(stops, starts[at] + max_bytes, side="right"))
        at = max(at + 1, min(fits, at + max_count))
        borders.append(at)
    return borders

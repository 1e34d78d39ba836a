"""Count, missing values, mean, standard deviation, least and greatest value of a column of numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt


@dataclass(slots=True)
class Moments:
    """The moments of a column after some of its rows; NaN counts as missing.

    The sums of squares of several parts are added as Chan, Golub and LeVeque do ("Updating formulae and a pairwise
    algorithm for computing sample variances", COMPSTAT 1982), so nothing is lost where the mean is far from 0.

    Attributes:
        count: Values.
        missing: Nulls and NaN.
        mean: Their mean.
        squares: The sum of the squares of their distances from the mean.
        least: The least one; infinity where there is none.
        greatest: The greatest one; minus infinity where there is none.
    """

    count: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0
    least: float = math.inf
    greatest: float = -math.inf

    @property
    def std(self) -> float | None:
        """The standard deviation of a sample, as in Polars and pandas; None for fewer than two values."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else None

    def add(self, values: npt.NDArray[np.float64], missing: int) -> None:
        """Adds values without NaN, and how many were missing beside them."""
        self.missing += missing
        if len(values):
            least, greatest = float(values.min()), float(values.max())
            mean, squares = least, 0.0  # of one value; the mean of its sum would be another number
            if least != greatest:
                with np.errstate(invalid="ignore", over="ignore"):  # of infinity
                    mean = float(values.mean())
                    away = values - mean
                    squares = float(np.square(away).sum())  # a product of BLAS starts threads of its own
            self.merge(Moments(len(values), 0, mean, squares, least, greatest))

    def merge(self, other: Moments) -> None:
        """Adds the rows of another part."""
        self.missing += other.missing
        if not other.count:
            return
        count = self.count + other.count
        apart = other.mean - self.mean
        self.squares += other.squares + apart * apart * (self.count * other.count / count)
        self.mean += apart * (other.count / count)
        self.count = count
        self.least, self.greatest = min(self.least, other.least), max(self.greatest, other.greatest)

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON has it, without infinities."""
        some = self.least <= self.greatest  # of numbers
        return asdict(self) | ({} if some else {"least": None, "greatest": None})

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Returns what `to_json` returned it of.

        Raises:
            ValueError: A figure is none; also `KeyError` and `TypeError`.
        """
        count, missing = stored["count"], stored["missing"]
        figures = [stored[name] for name in ("mean", "squares", "least", "greatest")]
        if figures[2:] == [None, None]:
            figures[2:] = [math.inf, -math.inf]
        if not all(type(each) is int and each >= 0 for each in (count, missing)):
            raise ValueError(f"count and missing are numbers of values, found {count!r} and {missing!r}")
        return cls(count, missing, *map(float, figures))

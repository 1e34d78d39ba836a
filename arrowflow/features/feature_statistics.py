"""`FeatureStatistics`: what `fit` has found, and the expressions that use it."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any, Final, Self

import polars as pl

from arrowflow.errors import DataError, PlanError, SourceError, closest, counted, shown
from arrowflow.expr.own.function import call
from arrowflow.features.distinct import Counts
from arrowflow.features.fit import Column, Columns, words
from arrowflow.features.moments import Moments
from arrowflow.features.quantiles import Quantiles
from arrowflow.observe.whole_file import write_whole

VERSION: Final = 1
_SHOWN_COLUMNS: Final = 10
_SHOWN_WORDS: Final = 3


class FeatureStatistics:
    """Statistics of columns, as `Dataset.fit` returns them, and expressions of Polars that use them.

    The expressions are element-wise: they fuse, push down and pickle, as all others do. Statistics of several ranks or days are
    merged by `merge`. They are JSON of some kilobytes, and up to a MiB for each column with quantiles.

    Examples:
        >>> import arrowflow as af
        >>> train = af.from_numpy({"price": [1.0, 2.0, 3.0], "brand": ["b", "a", "b"]})
        >>> stats = train.fit(mean=["price"], vocabulary={"brand": 10})
        >>> ready = train.with_columns(price=stats.standardize("price"), brand=stats.index("brand"))
        >>> ready.to_table().to_pydict()
        {'price': [-1.0, 0.0, 1.0], 'brand': [1, 2, 1]}
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __repr__(self) -> str:
        count = len(self._columns)
        lines = [f"FeatureStatistics of {counted(count, 'column')}"]
        lines += [
            f"  {name}: {_figures(self._columns[name])}" for name in list(self._columns)[:_SHOWN_COLUMNS]
        ]
        if count > _SHOWN_COLUMNS:
            lines.append(f"  … {count - _SHOWN_COLUMNS:,} more")
        return "\n".join(lines)

    # ------------------------------------------------------------------ figures

    def mean(self, column: str) -> float:
        """Returns the mean of a column, without its missing values."""
        return self._moments(column).mean

    def std(self, column: str) -> float | None:
        """Returns the standard deviation of a sample; None for fewer than two values."""
        return self._moments(column).std

    def min_max(self, column: str) -> tuple[float, float]:
        """Returns the least and the greatest value."""
        found = self._moments(column)
        return found.least, found.greatest

    def missing(self, column: str) -> int:
        """Returns how many values are null or NaN."""
        return self._column(column).moments.missing

    def boundaries(self, column: str) -> list[float]:
        """Returns the values between the buckets of a column, ascending, each once."""
        found = self._column(column)
        if found.quantiles is None:
            raise PlanError(
                f"there are no quantiles of {column!r}; ask for them: fit(quantiles={{{column!r}: 16}})"
            )
        self._moments(column)
        shares = [number / found.buckets for number in range(1, found.buckets)]
        return sorted(set(found.quantiles.at(shares).tolist()))

    def vocabulary(self, column: str) -> list[Any]:
        """Returns the most frequent values of a column, the most frequent one first, and equally frequent ones by value."""
        found = self._column(column)
        if found.counts is None:
            raise PlanError(
                f"there is no vocabulary of {column!r}; ask for it: fit(vocabulary={{{column!r}: 10_000}})"
            )
        return words(found)

    # ------------------------------------------------------------------ expressions

    def standardize(self, column: str) -> pl.Expr:
        """Returns `(x - mean) / std`; 0 for a column of one value. Floats keep their type, whole numbers become float64."""
        found = self._moments(column)
        return (pl.col(column) - found.mean) / (found.std or 1.0)

    def rescale(self, column: str) -> pl.Expr:
        """Returns `(x - min) / (max - min)`: 0 to 1 for what was fitted; 0 for a column of one value."""
        found = self._moments(column)
        return (pl.col(column) - found.least) / ((found.greatest - found.least) or 1.0)

    def impute(self, column: str) -> pl.Expr:
        """Returns the column with its mean in place of nulls and NaN; whole numbers become float64."""
        return pl.col(column).cast(pl.Float64).fill_nan(None).fill_null(self._moments(column).mean)

    def bucketize(self, column: str) -> pl.Expr:
        """Returns the number of the bucket of each value, from 0 on, as int32; a boundary belongs to the bucket above it.

        NaN is in the last bucket, and null stays null.
        """
        boundaries = pl.lit(pl.Series(self.boundaries(column), dtype=pl.Float64)).implode()
        return call("bucketize", 0, [pl.col(column), boundaries], pl.Int32)

    def index(self, column: str, *, oov: int = 0) -> pl.Expr:
        """Returns the place of each value in the vocabulary, from 1 on, as uint32; 0 for null.

        A value that the vocabulary lacks is 0, too. With `oov` it has one of so many places behind the vocabulary, by its hash, as
        `hash_bucket` takes it. So an embedding has `1 + len(stats.vocabulary(column)) + oov` rows.

        Raises:
            PlanError: There is no vocabulary of the column, or `oov` is no number of places.
        """
        if type(oov) is not int or not 0 <= oov < 1 << 31:
            raise PlanError(f"index: oov is a number of places from 0 on, got {shown(oov)}")
        return call("index", oov, [pl.col(column), self._words(column)], pl.UInt32)

    def one_hot(self, column: str) -> pl.Expr:
        """Returns a list of fixed size for each value: 1.0 at its place in the vocabulary, and 0.0 elsewhere, as float32.

        Null, and a value that the vocabulary lacks, are all 0.0.

        Raises:
            DataError: The vocabulary is empty, so a list would hold nothing.
        """
        size = len(self.vocabulary(column))
        if not size:
            raise DataError(
                f"column {column!r} has no value but nulls, so it has no vocabulary; leave it out"
            )
        return call("one_hot", 0, [pl.col(column), self._words(column)], pl.Array(pl.Float32, size))

    # ------------------------------------------------------------------ merged, stored

    def merge(self, *others: FeatureStatistics) -> FeatureStatistics:
        """Returns the statistics of all rows together, as of several ranks; the order of merging is part of quantiles.

        Raises:
            PlanError: They are of other columns, other figures or sizes of them, or vocabularies of texts and of numbers.
        """
        merged = copy.deepcopy(self)
        for other in others:
            if not isinstance(other, FeatureStatistics):
                raise PlanError(
                    f"merge: expected FeatureStatistics, as fit() returns them, got {shown(other)}"
                )
            if other._asked() != self._asked():
                raise PlanError(f"merge: expected statistics of {self._asked()}, got {other._asked()}")
            for name, column in other._columns.items():
                kind, others_kind = merged._kind(name), other._kind(name)
                if kind and others_kind and kind != others_kind:
                    raise PlanError(
                        f"merge: expected a vocabulary of {kind} of column {name!r}, got one of {others_kind}; `cast` the column "
                        "before fit()"
                    )
                merged._columns[name].merge(column)
        return merged

    def to_json(self) -> dict[str, Any]:
        """Returns what JSON can hold."""
        return {
            "version": VERSION,
            "columns": {name: _stored(column) for name, column in self._columns.items()},
        }

    @classmethod
    def of_json(cls, stored: Any) -> Self:
        """Returns the statistics that `to_json` was asked of.

        Raises:
            DataError: It is something else, or of a later version.
        """
        version = stored.get("version") if isinstance(stored, dict) else None
        if version != VERSION:
            raise DataError(
                f"expected statistics of version {VERSION}, as fit() makes them, found version {version!r}"
            )
        try:
            return cls({str(name): _loaded(str(name), each) for name, each in stored["columns"].items()})
        except (AttributeError, KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
            raise DataError(f"these are no statistics as fit() makes them: {error!r}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file of JSON, whole or not at all.

        Raises:
            SourceError: The folder does not exist, or cannot be written to.
        """
        text = json.dumps(self.to_json(), allow_nan=False)
        write_whole(path, [text], operator="save", name="statistics")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file that `save` wrote.

        Raises:
            SourceError: The file cannot be read.
            DataError: It holds something else.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"statistics cannot be read: {error}").locate(file=str(path)) from error
        try:
            stored = json.loads(text)
        except ValueError as error:
            raise DataError(f"expected statistics as JSON: {error}").locate(file=str(path)) from error
        return cls.of_json(stored)

    # ------------------------------------------------------------------ inside

    def _asked(self) -> dict[str, list[str]]:
        return {
            name: [
                "mean",
                *([f"quantiles of {each.buckets}"] if each.quantiles else []),
                *([f"vocabulary of {each.most}"] if each.counts else []),
            ]
            for name, each in self._columns.items()
        }

    def _column(self, name: str) -> Column:
        if name not in self._columns:
            raise PlanError(f"{name!r} was not fitted; {closest(name, self._columns)}")
        return self._columns[name]

    def _kind(self, name: str) -> str | None:
        """Returns the kind of the words of a column, if it has any."""
        counts = self._columns[name].counts
        values = None if counts is None else counts.joined()["value"]
        if values is None or not len(values):
            return None
        return "numbers" if values.dtype.is_integer() else "texts"

    def _words(self, name: str) -> pl.Expr:
        found = self.vocabulary(name)
        if not found or not isinstance(found[0], int):
            dtype: Any = pl.String
        else:
            dtype = pl.Int64 if max(found) < 1 << 63 else pl.UInt64
        return pl.lit(pl.Series(found, dtype=dtype)).implode()

    def _moments(self, name: str) -> Moments:
        found = self._column(name).moments
        if not found.count or found.least > found.greatest:
            kind = "has no value but nulls and NaN" if found.count == 0 else "has no numbers"
            raise DataError(f"column {name!r} {kind}, so it has no mean, ends or quantiles; leave it out")
        return found


def _figures(column: Column) -> str:
    """Returns some figures of a column, as text."""
    of = column.moments
    found = [f"{counted(of.count, 'value')}, {of.missing:,} missing"]
    if of.count and of.least <= of.greatest:
        spread = "" if of.std is None else f", std {of.std:.4g}"
        found.append(f"mean {of.mean:.4g}{spread}, min {of.least:.4g}, max {of.greatest:.4g}")
    if column.quantiles is not None:
        found.append(f"{column.buckets:,} buckets")
    if column.counts is not None:
        known = words(column)
        first = "".join(f" {shown(word)}," for word in known[:_SHOWN_WORDS]).rstrip(",")
        more = ", …" if len(known) > _SHOWN_WORDS else ""
        found.append(f"vocabulary of {len(known):,}{':' * bool(known)}{first}{more}")
    return ", ".join(found)


def _stored(column: Column) -> dict[str, Any]:
    found: dict[str, Any] = {"moments": column.moments.to_json()}
    if column.quantiles is not None:
        found |= {"buckets": column.buckets, "quantiles": column.quantiles.to_json()}
    if column.counts is not None:
        counts = column.counts.joined()
        found |= {
            "most": column.most,
            "values": counts["value"].to_list(),
            "counts": counts["count"].to_list(),
        }
    return found


def _loaded(name: str, stored: dict[str, Any]) -> Column:
    column = Column(Moments.from_json(stored["moments"]))
    if "quantiles" in stored:
        column.buckets, column.quantiles = int(stored["buckets"]), Quantiles.from_json(stored["quantiles"])
    if "values" in stored:
        values = pl.DataFrame(
            {"value": stored["values"], "count": stored["counts"]}, schema_overrides={"count": pl.Int64}
        )
        column.most, column.counts = int(stored["most"]), Counts(name, values)
    return column

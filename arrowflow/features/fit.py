"""The counting of `fit` and `describe`: what is asked for, and the counts of a column.

Rows are counted 65,536 by 65,536, whatever the files look like. Batches are counted at the same time, each by itself, and added
in their order (`parts.py`). So the same rows give the same figures to the last bit, on any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError, PlanError, SchemaError, closest, shown
from arrowflow.features.distinct import Counts, Distinct
from arrowflow.features.moments import Moments
from arrowflow.features.quantiles import Quantiles
from arrowflow.types import is_number


@dataclass(slots=True)
class Column:
    """The counts of one column.

    Attributes:
        moments: Its moments; of a column of anything but numbers the count and the missing values alone.
        quantiles: Its quantiles, if they are asked for.
        buckets: How many buckets its quantiles make.
        counts: Its values, if a vocabulary is asked for.
        most: How many of them are kept.
        distinct: About how many different values it has, if that is asked for.
    """

    moments: Moments = field(default_factory=Moments)
    quantiles: Quantiles | None = None
    buckets: int = 0
    counts: Counts | None = None
    most: int = 0
    distinct: Distinct | None = None

    def without_rows(self) -> Column:
        """Returns a column of which the same is asked for."""
        return replace(
            self,
            moments=Moments(),
            quantiles=self.quantiles and Quantiles(),
            counts=self.counts and Counts(self.counts.column),
            distinct=self.distinct and Distinct(),
        )

    def add(self, values: pa.Array) -> None:
        """Adds the values of some rows, but not to the vocabulary."""
        missing = values.null_count
        if _has_moments(values.type) or pa.types.is_boolean(values.type):
            numbers = _numbers(values.drop_null() if missing else values)
            if pa.types.is_floating(values.type):
                nan = np.isnan(numbers)
                numbers = numbers[~nan] if nan.any() else numbers
            self.moments.add(numbers, len(values) - len(numbers))
            if self.quantiles is not None:
                self.quantiles.add(numbers)
        else:
            self.moments.missing += missing
            self.moments.count += len(values) - missing
        if self.distinct is not None:
            series = pl.Series(values)
            self.distinct.add(series.drop_nans() if series.dtype.is_float() else series)

    def merge(self, other: Column) -> None:
        """Adds the rows of another part."""
        self.moments.merge(other.moments)
        for own, others in (
            (self.quantiles, other.quantiles),
            (self.counts, other.counts),
            (self.distinct, other.distinct),
        ):
            if own is not None and others is not None:
                own.merge(others)  # type: ignore[arg-type]


def _numbers(values: pa.Array) -> npt.NDArray[np.float64]:
    """Returns numbers without nulls as float64; `Array.to_numpy` would import pandas."""
    found = values.cast(pa.float64(), safe=False)
    return np.frombuffer(found.buffers()[1] or b"", np.float64)[found.offset : found.offset + len(found)]


Columns = dict[str, Column]


def asked_for(
    schema: pa.Schema,
    *,
    mean: Sequence[str],
    min_max: Sequence[str],
    quantiles: Mapping[str, int],
    vocabulary: Mapping[str, int],
) -> Columns:
    """Returns the columns to count; raises where one is missing or of another type."""
    for argument, sizes in ("quantiles", quantiles), ("vocabulary", vocabulary):
        if not isinstance(sizes, Mapping):
            raise PlanError(
                f"fit: {argument} is a mapping from names of columns to numbers, such as {{'price': 100}}, got {shown(sizes)}"
            )
    found: Columns = {}
    for argument, names in ("mean", mean), ("min_max", min_max), ("quantiles", quantiles):
        for name in _names(argument, names):
            type = _type_of(name, schema)
            if not is_number(type):
                other = "use vocabulary=" if _has_words(type) else "leave it out"
                raise SchemaError(
                    f"fit: {argument} takes columns of floats and whole numbers, {name!r} is {type}; `cast` it, or {other}"
                )
            found.setdefault(name, Column())
    for name, buckets in quantiles.items():
        found[name].buckets = _size("quantiles", name, buckets, least=2)
        found[name].quantiles = Quantiles()
    for name, most in vocabulary.items():
        type = _type_of(name, schema)
        if not _has_words(type):
            other = "make buckets of it: quantiles={…}" if is_number(type) else "`cast` it"
            raise SchemaError(
                f"fit: vocabulary takes columns of whole numbers or texts, {name!r} is {type}; {other}"
            )
        column = found.setdefault(name, Column())
        column.most, column.counts = _size("vocabulary", name, most, least=1), Counts(name)
    if not found:
        raise PlanError("fit: name at least one column: mean=, min_max=, quantiles= or vocabulary=")
    return found


def everything(schema: pa.Schema) -> Columns:
    """Returns all columns as `describe` counts them."""
    found = {}
    for each in schema:
        column = found[each.name] = Column()
        if _has_moments(each.type):
            column.quantiles = Quantiles()
        if not any(cannot(each.type) for cannot in _NOT_HASHED):
            column.distinct = Distinct()
    return found


_NOT_HASHED: Final = pa.types.is_nested, pa.types.is_decimal256, pa.types.is_interval
"""Types whose values Polars does not hash."""


def check_finite(columns: Columns) -> None:
    """Raises `DataError` for a column whose figures nobody can use."""
    for name, column in columns.items():
        of = column.moments
        if of.count and (of.least == -math.inf or of.greatest == math.inf):
            raise DataError(
                f"fit: column {name!r} holds infinity, of which no figure can be used; `filter` such rows first"
            )
        if not (math.isfinite(of.mean) and math.isfinite(of.squares)):
            raise DataError(
                f"fit: the values of column {name!r} are so large that the sum of their squares is no float64; divide them first, by "
                "with_columns"
            )


def described(columns: Columns, rows: int) -> pl.DataFrame:
    """Returns the table that `describe` shows: a row for each figure, a column for each column."""
    names = ["count", "null_count", "mean", "std", "min", "25%", "50%", "75%", "max", "distinct"]
    shown = {}
    for name, column in columns.items():
        of = column.moments
        numbers: list[float | None] = [None] * 7
        if column.quantiles is not None and of.count:
            quartiles = column.quantiles.at([0.25, 0.5, 0.75]).tolist()
            numbers = [of.mean, of.std, of.least, *quartiles, of.greatest]
        # A sketch of many values may estimate more of them than there are.
        distinct = None if column.distinct is None else float(min(column.distinct.count, of.count))
        shown[name] = [float(of.count), float(rows - of.count), *numbers, distinct]
    label = "statistic"
    while label in shown:
        label += "_"
    return pl.DataFrame({label: names, **shown}, schema_overrides=dict.fromkeys(shown, pl.Float64))


def words(column: Column) -> list[Any]:
    """Returns the vocabulary of a column."""
    assert column.counts is not None
    return column.counts.joined()["value"].head(column.most).to_list()


def _names(argument: str, given: Any) -> list[str]:
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    if not is_list or not all(isinstance(name, str) for name in given):
        raise PlanError(f"fit: {argument} is a list of names of columns, got {shown(given)}")
    return list(given)


def _type_of(name: str, schema: pa.Schema) -> pa.DataType:
    if name not in schema.names:
        raise PlanError(f"fit: unknown column {name!r}; {closest(name, schema.names)}")
    return schema.field(name).type


def _size(argument: str, name: str, value: Any, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PlanError(f"fit: {argument} of {name!r} is a number from {least} on, got {shown(value)}")
    return value


def _has_moments(type: pa.DataType) -> bool:
    return is_number(type) or pa.types.is_decimal(type)


def _has_words(type: pa.DataType) -> bool:
    return pa.types.is_integer(type) or _is_text(type)


def _is_text(type: pa.DataType) -> bool:
    kinds = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    return any(kind(type) for kind in kinds) or (pa.types.is_dictionary(type) and _is_text(type.value_type))

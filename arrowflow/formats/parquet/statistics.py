"""Statistics of Parquet row groups, as bounds against which a predicate may be tested."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from arrowflow.expr.pruning import ColumnStatistics
from arrowflow.lazy import parquet as pq
from arrowflow.types import is_ordered

_PER_SECOND: Final = {"milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupStatistics(Mapping[str, ColumnStatistics]):
    """The statistics of one row group, looked up column by column when a predicate asks.

    A column is absent if the file has no statistics for it, or if these cannot be trusted or compared.
    """

    group: pq.RowGroupMetaData
    schema: pa.Schema
    leaves: Mapping[str, tuple[int, int]]
    is_sound: Callable[[int], bool]

    def __getitem__(self, name: str) -> ColumnStatistics:
        type, (leaf, _) = self.schema.field(name).type, self.leaves[name]
        if pa.types.is_nested(type) or not self.is_sound(leaf):
            raise KeyError(name)
        column = self.group.column(leaf)
        statistics = column.statistics if column.is_stats_set else None
        if statistics is None:
            raise KeyError(name)
        low, high = _bounds(statistics, type)
        null_count = int(statistics.null_count) if statistics.has_null_count else None
        if low is None and null_count is None:
            raise KeyError(name)
        return ColumnStatistics(low, high, null_count)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.schema.names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _bounds(statistics: pq.Statistics, type: pa.DataType) -> tuple[Any, Any]:
    if not statistics.has_min_max:
        return None, None
    try:
        if pa.types.is_timestamp(type):
            return _instants(statistics, type)
        if not is_ordered(type):
            return None, None
        low, high = statistics.min, statistics.max
    except (ValueError, OverflowError, pa.ArrowException):  # e.g. bounds cut within a UTF-8 character
        return None, None
    if isinstance(low, float) and (math.isnan(low) or math.isnan(high)):
        return None, None
    return (low, high) if low <= high else (None, None)


def _instants(statistics: pq.Statistics, type: pa.DataType) -> tuple[Any, Any]:
    """Returns datetimes around the bounds; `Statistics.min` would import pandas for nanoseconds."""
    unit = json.loads(statistics.logical_type.to_json()).get("timeUnit")
    if unit not in _PER_SECOND:
        return None, None
    epoch = datetime.datetime(1970, 1, 1, tzinfo=None if type.tz is None else datetime.UTC)
    per_second = _PER_SECOND[unit]
    low = statistics.min_raw * 10**6 // per_second
    high = -(-statistics.max_raw * 10**6 // per_second)
    return epoch + datetime.timedelta(microseconds=low), epoch + datetime.timedelta(microseconds=high)

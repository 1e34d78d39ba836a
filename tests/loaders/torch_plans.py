"""Plans for a `DataLoader`, also of operators that mean something only for the whole stream. Spawned workers import them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import polars as pl
import pyarrow as pa

import arrowflow as af

ROWS: Final = 240


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("twice", pa.array([2 * value for value in batch["id"].to_pylist()]))


def numbers() -> Iterator[dict[str, int]]:
    return ({"id": number} for number in range(ROWS))


def rows(size: int = ROWS) -> af.Dataset:
    return af.range(size)


PLANS: Final[dict[str, Callable[[], af.Dataset]]] = {
    "shuffle": lambda: rows().shuffle(100).batch(32),
    "cache, shuffle": lambda: rows().cache().shuffle(seed=1).batch(32),
    "zip": lambda: af.zip(
        rows(16).concatenate(af.range(16, 48)), rows(48).rename({"id": "label"}).repeat()
    ).batch(16),
    "choose_from_datasets": lambda: af.choose_from_datasets(
        [af.range(100), af.range(100, 200)], af.from_numpy({"id": [0] * 60 + [1] * 60})
    ).batch(16),
    "window": lambda: rows().window(32, shift=7).batch(4),
    "group_by_window": lambda: rows().group_by_window(pl.col("id") // 40, 20),
    "filter": lambda: rows().filter(pl.col("id") % 3 == 0).batch(32, drop_remainder=True),
    "repeat": lambda: rows(31).repeat(5).batch(16),
    "map": lambda: rows().shuffle(50, seed=2).batch(32).map(doubled),
    "enumerate": lambda: rows().shuffle(50, seed=2).enumerate().batch(32),
    "generator": lambda: af.from_generator(numbers, schema=pa.schema({"id": pa.int64()})).batch(32),
    "split_by_rank": lambda: rows().shuffle(100, seed=3).batch(32).split_by_rank(1, 2),
}


def delivered(batches: Any) -> list[Any]:
    """Returns batches of tensors as lists."""
    return [{name: value.tolist() for name, value in batch.items()} for batch in batches]

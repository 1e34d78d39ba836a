"""What a split of a dataset delivers, compared with the dataset itself: on a rank, and in a `DataLoader`."""

from __future__ import annotations

import itertools
import math
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

import arrowflow as af
from arrowflow.ops.batches.batch import Batch
from arrowflow.plan.node import Node
from arrowflow.plan.walk import post_order, rewritten
from tests.loaders.frameworks import plain

LANES: Final = 16
"""The most that are used, unless somebody says otherwise."""
MOST_BATCHES: Final = 20
ROWS: Final = 1_024
MANY: Final = 100_000
MANY_IN_A_ROW: Final = 1_000
"""Values of an array of one size, or of a row, that are compared by their bytes."""
DIFFER: Final = {"pack_sequences", "rejection_resample", "sample_from_datasets"}
"""Operators whose rows in parts are other ones that are as good."""
ARGUMENTS: Final[dict[str, Any]] = {"null": "mask", "lists": "ragged"}
"""A loader takes nulls and lists of any length by them."""


def ends_in_batches(dataset: af.Dataset) -> af.Dataset:
    """Returns the dataset, in batches if it had none."""
    return dataset if dataset._plan.batched else dataset.batch(ROWS)


def check_rank(dataset: af.Dataset) -> None:
    """Raises `AssertionError` where a rank that is alone has other rows than the dataset; a typed error passes.

    At most a remainder of the lanes may be missing, and none where the last batch is filled up. Which rows a remainder
    leaves out may differ, and not how many.
    """
    try:
        expected = first_batches(dataset)
    except af.ArrowflowError:  # a page that shows an error
        return
    lost = LANES - 1
    try:
        found = first_batches(dataset.split_by_rank(0, 1))
    except af.PlanError as error:
        if "equal_steps" not in str(error):
            return
        lost = 0
        found = first_batches(dataset.split_by_rank(0, 1, how="whole"))
    if len(expected) == MOST_BATCHES:
        return  # the two are cut off at different rows
    have, want = rows_of(found), rows_of(expected)
    assert have.total() >= want.total() - lost, f"{have.total()} rows, the dataset has {want.total()}"
    if DIFFER & {node.name for node in post_order(dataset._plan)}:
        return
    foreign = have - rows_of(first_batches(af.Dataset(rewritten(dataset._plan, _without_dropping))))
    assert not foreign, f"{foreign.total()} rows are not those of the dataset, as {next(iter(foreign))}"


def _without_dropping(node: Node) -> Node:
    return replace(node, drop_remainder=False) if isinstance(node, Batch) else node


def check_torch_dataset(dataset: af.Dataset) -> None:
    """Raises `AssertionError` where a `DataLoader` has other batches than `to_torch`."""
    try:
        expected = arrays_of(dataset.to_torch(**ARGUMENTS))
    except af.ArrowflowError:
        return
    found = arrays_of(dataset.to_torch_dataset(**ARGUMENTS))
    pairs = enumerate(itertools.zip_longest(found, expected))
    differ = next((number for number, (one, other) in pairs if repr(one) != repr(other)), None)  # NaN too
    assert differ is None, f"batch {differ} differs; {len(found)} batches, to_torch has {len(expected)}"


def arrays_of(loader: Any) -> list[Any]:
    """Returns the first batches of an epoch as lists, those of pixels as their bytes."""
    loader.set_epoch(0)
    return [
        {name: shown(values) for name, values in batch.items()}
        for batch in itertools.islice(loader, MOST_BATCHES)
    ]


def shown(values: Any) -> Any:
    """Returns an array as a list, a long one of fixed size as its bytes."""
    ragged = isinstance(values, tuple) or getattr(values, "is_nested", False)
    if ragged or math.prod(values.shape) < MANY:
        return plain(values)
    return np.asarray(values).tobytes()


def first_batches(dataset: af.Dataset) -> list[pa.RecordBatch]:
    """Returns the first batches of an epoch; few of a dataset without end."""
    most = MOST_BATCHES if dataset.num_rows != math.inf else 8
    with iter(dataset) as run:
        run.set_epoch(0)
        return list(itertools.islice(run, most))


def rows_of(batches: Iterable[pa.RecordBatch]) -> Counter[str]:
    """Returns how often each row comes; fillers do not count."""
    found: Counter[str] = Counter()
    for batch in batches:
        if "mask" in batch.schema.names:
            batch = batch.filter(batch["mask"]).drop_columns("mask")
        found.update(map(str, zip(*(values_of(column) for column in batch.columns), strict=True)))
    return found


def values_of(column: pa.Array) -> list[Any]:
    """Returns the values of a column, tensors of many as a number that follows from their bytes."""
    flat = column
    while pa.types.is_fixed_size_list(flat.type) and not flat.null_count:
        flat = flat.flatten()
    if len(flat) <= MANY_IN_A_ROW * len(column) or not pa.types.is_primitive(flat.type) or flat.null_count:
        return column.to_pylist()
    rows = np.split(flat.to_numpy(zero_copy_only=False), len(column))
    return [zlib.crc32(row.tobytes()) for row in rows]

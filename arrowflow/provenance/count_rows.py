"""`count_rows`: which rows of files a filter leaves, so that ranks know how many steps they make."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from arrowflow.bad_rows import BadRowPolicy
from arrowflow.dataset import Dataset, plans_of
from arrowflow.errors import PlanError
from arrowflow.ops.sources.files.read import Read
from arrowflow.ops.sources.files.row_counts import RowCounts, counts_of
from arrowflow.ops.sources.files.split_tasks import of_split_key, split_key
from arrowflow.ops.sources.files.with_provenance import WithProvenance
from arrowflow.options import Options
from arrowflow.plan.node import Node
from arrowflow.plan.walk import post_order

_RAISE = BadRowPolicy()
_NAMES = ("__arrowflow_file", "__arrowflow_row_group", "__arrowflow_row")


def count_rows(dataset: Dataset, *, save: str | os.PathLike[str] | None = None) -> RowCounts:
    """Runs a dataset once, and returns which rows of its files are left.

    Pass the result, or the path, to `assert_cardinality` in the same place of the pipeline. Then `num_rows` and `len()` are
    known, and `split_by_rank` deals equally many of these rows to all lanes: all processes make equally many steps without a
    coordinator, and at most `lanes - 1` rows of an epoch are left out.

    Reads only the columns that decide. Memory: 8 bytes a row that is left, while it runs; then a bit a row of the files.

    Args:
        dataset: Files, and operators that keep or drop each row for itself, such as `filter` and `with_columns`. So may
            `map` with a function that keeps columns which it does not know.
        save: A local path to write the counts to, which must not end like a file of data. They hold for these files and
            operators alone.

    Raises:
        PlanError: The dataset has other operators, such as `take` or `batch`, repeats rows, or does not read files.

    Examples:
        >>> import arrowflow as af, pathlib, polars as pl, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = af.range(1000).write_parquet(folder / "data")
        >>> rows = af.read_parquet(folder / "data").filter(pl.col("id") % 3 == 0)
        >>> af.count_rows(rows, save=folder / "rows.counts").num_rows
        334
        >>> ds = rows.assert_cardinality(folder / "rows.counts").shuffle(100).batch(16, drop_remainder=True)
        >>> [len(ds.split_by_rank(rank, 4)) for rank in range(4)]
        [20, 20, 20, 20]
    """
    plans_of("count_rows", [dataset])
    bound = dataset._ready().bound
    left: dict[tuple[int, int], list[Any]] = {}
    deciding = bound
    while deciding.inputs and deciding.traits.one_to_one:  # up to the last operator that may drop rows
        (deciding,) = deciding.inputs
    traced = Dataset(_traced(deciding))
    source = next(post_order(bound))
    files = {file.path: number for number, file in enumerate(getattr(source, "files", ()))}
    if any(getattr(node, "policy", _RAISE).leaves_out for node in post_order(bound)):
        # Columns tell which rows are bad.
        traced = traced.with_options(Options(disabled_rules=["prune_columns"]))
    for batch in traced.select(list(_NAMES)):
        paths, groups, rows = (batch.column(name) for name in _NAMES)
        paths = paths.dictionary_encode()
        numbers = np.array([files[path] for path in paths.dictionary.to_pylist()], np.int64)
        keys = split_key(numbers[paths.indices.to_numpy()], groups.to_numpy())
        for key in np.unique(keys):
            left.setdefault(of_split_key(int(key)), []).append(rows.to_numpy()[keys == key])
    counts = counts_of(bound, left)
    if save is not None:
        counts.save(save)
    return counts


def _traced(plan: Node) -> Node:
    """Returns a bound plan with provenance right after its source."""
    if not plan.inputs:
        if not isinstance(plan, Read):
            raise PlanError(
                f"count_rows: it counts rows of files, so a pipeline begins with a source such as read_parquet, found {plan.name}"
            )
        return WithProvenance.of(plan, *_NAMES)
    traits, draws = plan.traits, plan.arguments().get("seed") is not None  # lanes draw other rows
    allowed = traits.one_to_one or traits.drops_rows or (traits.local and not draws)
    if len(plan.inputs) > 1 or plan.batched or not allowed:
        raise PlanError(
            f"count_rows: {plan.call()} does not keep or drop each row for itself; count the rows before it, and declare them "
            "there with assert_cardinality(counts)"
        )
    return dataclasses.replace(plan.carrying(_NAMES), inputs=(_traced(plan.inputs[0]),))

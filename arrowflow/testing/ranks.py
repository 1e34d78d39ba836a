"""The contract of `split_by_rank`. The plan without it is the oracle: all ranks together deliver its rows."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from arrowflow.dataset import Dataset
from arrowflow.errors import BudgetError, DataError, PlanError
from arrowflow.ops.batches.batch import Batch
from arrowflow.ops.batches.padded_batch import PaddedBatch
from arrowflow.plan.node import Node
from arrowflow.plan.walk import post_order, rewritten
from arrowflow.testing.chunks import chunked, cut

ROWS: Final = 128
"""At least so many rows reach the operator: some for each of its parts."""
BATCH_ROWS: Final = 16
LANES: Final = 4
RANKS: Final = 2
MASK: Final = "mask"
"""The column that is false in rows that fill up the last batch."""
REFUSED_LATE: Final = ("equal steps leave all of them out", "has no row in this repetition")
"""The words of errors that only a run finds."""

RowDicts = list[dict[str, Any]]


def check_ranks(apply: Callable[[Dataset], Dataset], table: pa.Table, *, parts_differ: bool = False) -> None:
    """Checks that ranks that run the whole plan have its rows, in order, and that the parts have each of its rows once.

    A plan that a split refuses passes, since the error says what to do.

    Args:
        apply: Puts the operator on top of a dataset.
        table: Some ten rows for the operator.
        parts_differ: Whether a part of the input, run for itself, may give other rows.

    Examples:
        >>> check_ranks(lambda ds: ds.unique("x"), pa.table({"x": [1, 2, 2, 3]}))
    """
    rows = pa.concat_tables([table] * -(-ROWS // table.num_rows)).combine_chunks().to_batches()[0]
    dataset = apply(chunked([cut(rows, [5, 1, 20])], table.schema))
    if dataset._ready().bound.batched:
        _check_whole(dataset)
        if not parts_differ:
            _check_parts(dataset, all_rows=False, equal_steps="drop")
        return
    _check_whole(dataset.batch(BATCH_ROWS))
    if not parts_differ:
        _check_parts(dataset.batch(BATCH_ROWS), all_rows=False, lanes=LANES, equal_steps="drop")
        _check_parts(dataset.batch(BATCH_ROWS, pad_remainder=True), all_rows=True, lanes=LANES)


def _check_whole(dataset: Dataset) -> None:
    """Checks that each rank has its part of each batch, or one batch of each round."""
    found = _unless_refused(
        lambda: [dataset.split_by_rank(rank, RANKS, how="whole") for rank in range(RANKS)]
    )
    if found is None:
        return
    counts = [len(batches) for batches in found]
    assert len(set(counts)) == 1, f"whole: ranks make different numbers of steps, {counts}"
    plain = _batches(dataset)
    in_turn = [plain[start : start + RANKS] for start in range(0, len(plain) - RANKS + 1, RANKS)]
    divided = [_divided(rows) for rows in plain if len(rows) >= RANKS]
    steps = [list(step) for step in zip(*found, strict=True)]
    assert repr(steps) in {repr(divided), repr(in_turn)}, (
        f"whole: at each step ranks have {steps}, the plan's batches are {plain}"
    )


def _divided(rows: RowDicts) -> list[RowDicts]:
    borders = [rank * len(rows) // RANKS for rank in range(RANKS + 1)]
    return [rows[start:end] for start, end in itertools.pairwise(borders)]


def _check_parts(dataset: Dataset, *, all_rows: bool, **options: Any) -> None:
    """Checks that the lanes have no row that is not the plan's, and none twice; also that none is missing, where asked."""
    found = _unless_refused(lambda: [dataset.split_by_rank(0, 1, how="parts", **options)])
    if found is None:
        return
    have, want = _counted(found[0]), _counted(_batches(Dataset(rewritten(dataset._plan, _with_all_rows))))
    assert not have - want, (
        f"in parts: {(have - want).total()} rows are not the plan's, as {min(have - want)}"
    )
    assert not (all_rows and want - have), (
        f"in parts: {(want - have).total()} rows are missing, as {min(want - have)}"
    )


def _with_all_rows(node: Node) -> Node:
    """Returns a node that leaves no remainder out: parts leave out other rows."""
    return replace(node, drop_remainder=False) if isinstance(node, Batch) else node


def _unless_refused(datasets: Callable[[], Sequence[Dataset]]) -> list[list[RowDicts]] | None:
    """Returns the batches of each rank; None where the plan cannot be split."""
    try:
        return [_batches(dataset) for dataset in datasets()]
    except (PlanError, BudgetError):
        return None
    except DataError as error:
        if any(words in str(error) for words in REFUSED_LATE):
            return None
        raise


def _batches(dataset: Dataset) -> list[RowDicts]:
    """Returns the batches of epoch 0. Lists that are padded to the longest one of a batch, or of a part of it, are left out."""
    padded = any(isinstance(node, PaddedBatch) for node in post_order(dataset._plan))
    with iter(dataset) as run:
        run.set_epoch(0)
        batches = [batch.to_pylist() for batch in run]
    left_out = list if padded else ()
    return [
        [{name: each for name, each in row.items() if not isinstance(each, left_out)} for row in rows]
        for rows in batches
    ]


def _counted(batches: Sequence[RowDicts]) -> Counter[str]:
    """Returns how often each row comes; fillers do not count."""
    rows = itertools.chain(*batches)
    return Counter(repr(row) for row in rows if row.pop(MASK, True) is not False)

"""Windows of documents that are cut: what is kept of them from one window to the next."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from arrowflow.kernels.items import Item, Origin
from arrowflow.ops.batches.split_documents import SplitKernel, SplitPosition
from arrowflow.plan.position import Position


def windows(*sizes: int) -> list[tuple[int, Position]]:
    """Returns the rows of each window of two documents, four tokens a row, and the position after it."""
    kernel = SplitKernel(2, 4, lambda chunks: (np.concatenate([chunk["size"] for chunk in chunks]), None))
    kernel.open(None, 0)
    items = [
        Item(pa.record_batch({"size": [size]}), (number,), None, Origin(number))
        for number, size in enumerate(sizes, 1)
    ]
    made = [item for each in items for item in kernel.push(each)] + list(kernel.finish())
    return [(item.chunk.packed_rows, item.position) for item in made]


def test_documents_that_end_with_a_row_are_let_go() -> None:
    """So are those without tokens behind them: else they stayed in memory, and the end had a window without rows."""
    assert windows(3, 5, 4, 0, 4, 4) == [
        (2, SplitPosition((2,), 0, used=0, left=0, number=1)),
        (1, SplitPosition((4,), 0, used=0, left=0, number=2)),
        (2, SplitPosition((6,), 0, used=0, left=0, number=3)),
    ]


def test_a_document_that_is_cut_is_kept_until_the_row_that_ends_it() -> None:
    assert windows(3, 7, 1, 1, 9) == [
        (2, SplitPosition((1,), 0, used=5, left=1, number=1)),
        (1, SplitPosition((4,), 0, used=0, left=0, number=2)),
        (3, SplitPosition((5,), 0, used=0, left=0, number=3)),
    ]

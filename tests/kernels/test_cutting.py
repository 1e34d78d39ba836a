"""`CuttingKernel`: cuts have the same numbers, from which windows take their order, wherever a run resumes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from arrowflow.kernels.cutting import CuttingKernel, Parts
from arrowflow.kernels.items import Item, Origin
from arrowflow.plan.position import Position
from arrowflow.testing import cut

pytestmark = pytest.mark.any_version

ROWS = pa.record_batch({"row": pa.array(range(7), pa.int64())})


def cuts(before: Position, chunk_rows: list[int]) -> list[tuple[int, list[int], Position]]:
    """Returns the number, the rows and the position of each cut behind a position, and of what passes."""
    kernel = CuttingKernel(2)
    opened = kernel.open(before, 0)
    start = 0 if opened is None else opened[0]
    made: list[Item] = []
    for chunk in cut(ROWS.slice(start), chunk_rows):
        start += chunk.num_rows
        made += kernel.push(Item(chunk, (start,), None, Origin(0)))
    found = []
    for item in [*made, *kernel.finish()]:
        chunks = item.chunk.chunks if isinstance(item.chunk, Parts) else [item.chunk]
        rows = [row for chunk in chunks for row in chunk["row"].to_pylist()]
        found.append((item.origin.split, rows, item.position))
    return found


@pytest.mark.parametrize("chunk_rows", [[7], [0, 3], [1], [0, 0, 1, 5]], ids=str)
@pytest.mark.parametrize("later", [[7], [0, 2], [1]], ids=str)
def test_cuts_keep_their_numbers_behind_each_position(chunk_rows: list[int], later: list[int]) -> None:
    expected = [(0, [0, 1]), (1, [2, 3]), (2, [4, 5]), (3, [6])]
    done = 0
    for _, rows, position in [(0, [], None), *cuts(None, chunk_rows)]:
        done += bool(rows)
        rest = cuts(position, later)
        assert [(number, rows) for number, rows, _ in rest if rows] == expected[done:]

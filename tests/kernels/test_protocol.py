"""What the operators share: `Held`, the rows that an operator keeps back with the position to come back to."""

from __future__ import annotations

import pyarrow as pa
import pytest

from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item, Origin
from arrowflow.plan.position import Position
from arrowflow.testing import cut

pytestmark = pytest.mark.any_version

ROWS = pa.record_batch({"row": pa.array(range(20), pa.int64())})


def items(chunk_rows: list[int], start: int) -> list[Item]:
    """Chunks from row `start` on, each with the number of the row behind it as its position."""
    found = []
    for chunk in cut(ROWS.slice(start), chunk_rows):
        start += chunk.num_rows
        found.append(Item(chunk, (start,), f"ticket {start}", Origin(0)))
    return found


def first_row(position: Position) -> int:
    return 0 if position is None else int(position[0])


def popped(held: Held, rows: int) -> list[int]:
    return [row for chunk in held.pop(rows)[0] for row in chunk.column("row").to_pylist()]


@pytest.mark.parametrize("chunk_rows", [[20], [1], [3, 0, 4]], ids=str)
def test_rows_come_out_as_they_went_in(chunk_rows: list[int]) -> None:
    held = Held()
    for item in items(chunk_rows, 0):
        held.add(item)
    assert held.rows == 20
    assert [popped(held, rows) for rows in (1, 7, 12)] == [[0], list(range(1, 8)), list(range(8, 20))]
    assert held.rows == 0


@pytest.mark.parametrize("later", [[20], [1], [2, 5], [0, 3]], ids=str)
def test_a_mark_leads_back_to_the_oldest_row_whatever_the_borders_are_then(later: list[int]) -> None:
    """Borders are free: after a resume the same rows may come in other chunks, also in smaller ones."""
    for gone in range(21):
        held = Held()
        for item in items([4, 6], 0):
            held.add(item)
        popped(held, gone)
        position, offset = held.mark()
        again = Held(position, offset)
        for item in items(later, first_row(position)):
            again.add(item)
        assert popped(again, again.rows) == list(range(gone, 20))


def test_a_small_rest_is_copied_where_that_is_cheap() -> None:
    """To copy a rest costs by the column, and frees by the byte."""
    for columns, rows, copied in (
        (1, 1 << 17, True),
        (1000, 1 << 9, False),
        (100, 1 << 11, True),
        (1, 1 << 9, False),
    ):
        chunk = pa.record_batch(
            {f"c{number}": pa.array(range(rows), pa.int64()) for number in range(columns)}
        )
        held = Held()
        held.add(Item(chunk, (rows,), "ticket", Origin(0)))
        held.pop(rows - 10)
        held.compact()
        assert held.tickets() == [() if copied else "ticket"]
        assert held.mark() == (None, rows - 10)
        assert held.pop(10)[0][0].equals(chunk.slice(rows - 10))


def test_a_mark_while_rows_are_still_skipped_keeps_the_rest_of_them() -> None:
    held = Held(None, 5)
    for item in items([2], 0)[:2]:
        held.add(item)
    assert (held.rows, held.mark()) == (0, ((4,), 1))


def test_slices_stand_on_the_tickets_of_their_chunks() -> None:
    held = Held()
    for item in items([4], 0)[:2]:
        held.add(item)
    assert held.pop(6)[1] == ["ticket 4", "ticket 8"]
    assert held.pop(2)[1] == ["ticket 8"]

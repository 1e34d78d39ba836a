"""Many narrow rows in memory travel in chunks of twice the rows.

Each call of NumPy hands the interpreter lock over, which two threads feel until a column of a chunk takes some 0.1 ms. Features of
twelve million rows take 0.71 of the time so, and a join 0.7 to 0.9. Rows stay narrow up to the end of the plan: a chunk of
embeddings takes twice the memory, and gains nothing.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from operator import attrgetter
from typing import Final

from arrowflow.ops.sources.from_memory import FromMemory
from arrowflow.plan.node import Node
from arrowflow.plan.walk import post_order, rebuild
from arrowflow.plan.widths import row_width

MANY_ROWS: Final = 1 << 21
"""Of fewer rows, longer chunks would be few for the cores."""
NARROW_BYTES: Final = 128
"""The most bytes of a row, where a text or list counts as 64. A chunk takes at most 16 MiB then."""
MEASURED: Final = 4
"""The longest record batches, whose rows are measured: their texts may be long."""


def lengthen_chunks(plan: Node) -> Node:
    """Has sources in memory send longer chunks, where all operators have narrow rows."""
    schemas = [node.schema for node in post_order(plan) if not isinstance(node, FromMemory)]
    if any(schema is None or row_width(schema).num_bytes > NARROW_BYTES for schema in schemas):
        return plan
    return rebuild(plan, _lengthen)


def _lengthen(node: Node) -> Node:
    if not isinstance(node, FromMemory) or node.count_rows(()) < MANY_ROWS:
        return node
    if node.long_chunks or node.in_place or node.blocks is not None:  # a `shuffle` decides what travels
        return node
    longest = heapq.nlargest(MEASURED, node.batches, key=attrgetter("num_rows"))
    if any(batch.nbytes > NARROW_BYTES * batch.num_rows for batch in longest):
        return node
    return replace(node, long_chunks=True).on()

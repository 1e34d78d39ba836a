"""The error for rows that a cache keeps in memory and that exceed the budget."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from arrowflow.errors import BudgetError


def over_budget(
    chunks: Sequence[pa.RecordBatch],
    total_bytes: int,
    *,
    budget_bytes: int,
    all_rows: int | None,
    spills: bool,
) -> BudgetError:
    """Returns the error.

    Args:
        chunks: The rows that are, or were to be, cached.
        total_bytes: Their bytes, each buffer counted once.
        budget_bytes: The bytes that they may take.
        all_rows: Rows that were to be cached in all, or None if that is not known.
        spills: Whether rows that do not fit would go into files.
    """
    text = f"the cached rows take {total_bytes:,} bytes, {total_bytes - budget_bytes:,} more than ram_budget allows"
    text += f" ({budget_bytes:,})"
    if spills:
        return BudgetError(f"{text}; raise ram_budget, or free them by cache_clear() and let them be spilled")
    rows = sum(chunk.num_rows for chunk in chunks)
    if all_rows is not None and all_rows > rows > 0:
        whole = _whole(chunks, total_bytes, all_rows)
        text += (
            f"; all {all_rows:,} rows would take some {whole:,}, {whole - budget_bytes:,} more than it allows"
        )
    return BudgetError(
        f"{text}; raise ram_budget, cache fewer rows or columns, keep them in files with cache(path), or let what "
        "does not fit be spilled with cache(spill=folder)"
    )


def _whole(chunks: Sequence[pa.RecordBatch], total_bytes: int, all_rows: int) -> int:
    """Returns the approximate bytes of all rows.

    Buffers do not tell: a buffer that the chunks share, or a slice's buffer, exists once for any number of rows. So for
    the rows that are still to come, only bytes that belong to the rows themselves count.
    """
    rows = sum(chunk.num_rows for chunk in chunks)
    of_rows = sum(int(chunk.nbytes) for chunk in chunks)
    return max(total_bytes, min(of_rows, total_bytes) * all_rows // rows)

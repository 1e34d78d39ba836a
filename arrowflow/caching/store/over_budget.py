"""What is said where the rows that a cache keeps in memory take more than the budget."""

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
        chunks: What is, or was to be, cached.
        total_bytes: Bytes that it takes, each buffer counted once.
        budget_bytes: Those that it may take.
        all_rows: Rows that were to be cached in all, or None if that is not known.
        spills: Whether what does not fit would go into files.
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
    """Returns about how many bytes all rows take.

    Buffers do not tell: one that the chunks share, or that is a slice's, is there once however many rows come. So only
    what belongs to the rows themselves counts for those that are to come.
    """
    rows = sum(chunk.num_rows for chunk in chunks)
    of_rows = sum(int(chunk.nbytes) for chunk in chunks)
    return max(total_bytes, min(of_rows, total_bytes) * all_rows // rows)

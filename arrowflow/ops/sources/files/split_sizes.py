"""The bytes of one source's splits once these are decoded: as their files say, or as earlier splits showed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from arrowflow.errors import BudgetError
from arrowflow.formats.capabilities import PiecesFormat, Unsure
from arrowflow.formats.protocol import Footer, Format, Split, reading
from arrowflow.ops.sources.files.runs import CallBytes
from arrowflow.ops.sources.files.split_tasks import SplitTask
from arrowflow.storage import Range, coalesce

_LEARNT_SCRATCH = 2.5
"""Output and scratch of a column whose size its file does not tell, for each byte that earlier splits showed."""


class SplitSizes:
    """The bytes that splits take, shared by all streams and epochs. They decide when splits are read, never the rows.

    Args:
        budget_bytes: The byte budget, which no split may exceed by itself.
    """

    def __init__(self, operator: str, format: Format, budget_bytes: int) -> None:
        self._operator = operator
        self._format = format
        self._unsure = format if isinstance(format, Unsure) else None  # 10 µs, so once
        self._budget_bytes = budget_bytes
        # The most bytes a row took, of each column whose size not all files tell. Threads may write it at the same
        # time: then one of the values is forgotten.
        self._row_bytes: dict[str, float] = {}

    def num_bytes(self, payload: SplitTask) -> int:
        """Returns output and scratch of the wanted columns; 0 for a split that will be refused."""
        if payload.output_bytes > self._budget_bytes and not payload.unsure:
            return 0
        rates = (self._row_bytes.get(name, 0.0) for name in payload.unsure)
        learnt = int(_LEARNT_SCRATCH * payload.split.num_rows * sum(rates))
        return payload.output_bytes + payload.scratch_bytes + learnt

    def is_known(self, payload: SplitTask) -> bool:
        """Whether the file tells the sizes of all columns, or an earlier split did."""
        return all(name in self._row_bytes for name in payload.unsure)

    def check(self, payload: SplitTask, columns: Sequence[str]) -> None:
        """Raises `BudgetError` where the split announces more bytes than the budget has, before any is allocated."""
        format, footer, split = self._format, payload.footer, payload.split
        needed, budget = payload.output_bytes, self._budget_bytes
        if self._unsure is not None and not payload.is_piece:
            with reading(self._operator, footer.file, split.index, format.part):
                needed = self._unsure.announced_bytes(payload.store, footer, split, columns)
        if needed > budget:
            error = BudgetError(
                f"{payload.num_rows:,} rows that are decoded together take {needed:,} bytes, as the file says, and "
                f"ram_budget is {budget:,} bytes: raise the budget to {needed + payload.scratch_bytes:,}, read fewer "
                "columns, write the file with smaller row groups, or leave it out"
            )
            raise error.locate(
                operator=self._operator, file=footer.file.path, row_group=split.index, part=format.part
            )

    def learn(self, payload: SplitTask, chunk: pa.RecordBatch) -> None:
        """Notes the bytes of the columns whose sizes the file does not tell."""
        for name in payload.unsure if chunk.num_rows else ():
            found = chunk.column(name).nbytes / chunk.num_rows
            self._row_bytes[name] = max(found, self._row_bytes.get(name, 0.0))


def total_bytes(footer: Footer, ranges: Iterable[Range]) -> int:
    """Returns the bytes of coalesced ranges; no more than the file has, whatever a corrupt footer says."""
    return min(footer.file.size, sum(end - start for start, end in ranges))


def largest_fetched(format: Format, first: Footer, names: Sequence[str]) -> int:
    """Returns the stored bytes of the first file's largest split."""
    split = _largest(first)
    return 0 if split is None else total_bytes(first, coalesce(format.ranges(first, split, names)))


def largest_decoded(format: Format, first: Footer, names: Sequence[str], calls: CallBytes) -> int:
    """Returns the bytes that decoding the first file's largest split takes, or a piece of it."""
    split = _largest(first)
    if split is None:
        return 0
    output = format.column_bytes(first, split, names)
    whole = output + format.scratch_bytes(first, split, names)
    large = output > calls.most_whole > 0
    is_cut = large and isinstance(format, PiecesFormat) and format.is_cut(first, split, names)
    return whole * calls.piece // output if is_cut else whole


def _largest(first: Footer) -> Split | None:
    return max(first.splits, key=lambda split: split.num_bytes, default=None)

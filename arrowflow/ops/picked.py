"""Rows that were picked from chunks for one batch, and their gathering."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import DataError
from arrowflow.ops.base import Origin, StatelessKernel, join
from arrowflow.ops.gather import gathered
from arrowflow.records import dataclass


@dataclass(slots=True)
class Picked:
    """The rows of one batch: chunks, the number of the first row of each, and numbers of rows, ascending."""

    chunks: list[pa.RecordBatch]
    starts: list[int]
    rows: npt.NDArray[np.int64]

    @property
    def num_rows(self) -> int:
        """Rows of the batch."""
        return len(self.rows)


class GatherKernel(StatelessKernel):
    """Gathers the rows of a batch into new memory.

    Args:
        operator: For errors.
        setting: What to make smaller where a batch holds too much.
    """

    def __init__(self, operator: str, setting: str) -> None:
        self._operator = operator
        self._setting = setting

    def apply(self, chunk: Picked, origin: Origin) -> pa.RecordBatch:
        """Returns the batch."""
        rows = chunk.rows
        cuts = [*np.searchsorted(rows, chunk.starts).tolist(), len(rows)]
        parts = []
        for part, first, start, stop in zip(chunk.chunks, chunk.starts, cuts[:-1], cuts[1:], strict=True):
            if start < stop:
                parts.append(gathered(part, rows[start:stop] - first))
        try:
            return join(parts)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"a batch of {len(rows):,} rows cannot be joined ({error}); texts or lists of one batch may hold 2 GiB "
                f"a column: use a smaller {self._setting}"
            ).locate(operator=self._operator) from error

"""The treatment of bad rows, their number, and the search for them where only a trial tells."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from arrowflow.bad_rows.quarantine import Quarantine
from arrowflow.errors import ArrowflowError
from arrowflow.options import OnError, ResolvedOptions, check_on_error


class LeftOut(NamedTuple):
    """The bad rows that were left out.

    Attributes:
        rows: How many rows, as far as that is known.
        parts: Row groups, record batches, blocks and files that were left out whole; of functions, their pieces.
        place: Tells it from others of one operator that came with an equal position; sums have none.
    """

    rows: int = 0
    parts: int = 0
    place: int = 0

    def plus(self, other: LeftOut) -> LeftOut:
        """Returns the sum."""
        return LeftOut(self.rows + other.rows, self.parts + other.parts)


NO_BAD_ROWS: Final = LeftOut()


@dataclass(frozen=True, slots=True)
class BadRowPolicy:
    """The treatment of an operator's bad rows. The default is what its pipeline says.

    Attributes:
        on_error: `raise`, `skip` or `quarantine`; None for what the options of the pipeline say.
        folder: The folder for bad rows.
    """

    on_error: OnError | None = None
    folder: str | None = None

    @classmethod
    def of(
        cls, operator: str, on_error: OnError | None, quarantine: str | os.PathLike[str] | None
    ) -> BadRowPolicy:
        """Returns the policy, with arguments as users write them."""
        return cls(on_error, check_on_error(operator, on_error, quarantine))

    def within(self, options: ResolvedOptions) -> BadRowPolicy:
        """Returns the policy of an operator in a pipeline with these options."""
        return self if self.on_error is not None else BadRowPolicy(options.on_error, options.quarantine)

    @property
    def leaves_out(self) -> bool:
        """Whether bad rows are left out."""
        return self.on_error in ("skip", "quarantine")

    def arguments(self) -> Mapping[str, Any]:
        """Returns what a state is compared by: nothing where bad rows raise, so that older states go on."""
        return {"on_error": "skip"} if self.leaves_out else {}

    def quarantine(self, operator: str) -> Quarantine | None:
        """Returns what keeps the bad rows of an operator; None if they are not kept."""
        return Quarantine(self.folder, operator) if self.folder is not None else None


BY_OPTIONS: Final = BadRowPolicy()
"""The default of operators: what the options of the pipeline say."""


def is_bad_data(error: BaseException) -> bool:
    """Whether an error says that rows are bad, so that they may be left out."""
    cause = error.__cause__
    return isinstance(error, ArrowflowError) and error.of_data and not isinstance(cause, MemoryError)


def first_bad(
    count: int, check: Callable[[int, int], object], error: ArrowflowError
) -> tuple[int, ArrowflowError]:
    """Returns the number of the first bad one of some rows, and what is wrong with it.

    Args:
        count: How many rows there are.
        check: Raises if one of the rows from a number on, and before another one, is bad.
        error: The error that it raised for all of them.
    """
    good, tried = 0, count
    while tried - good > 1:
        middle = (good + tried) // 2
        try:
            check(0, middle)
            good = middle
        except ArrowflowError as found:
            tried, error = middle, found
    return good, error


def bad_among(count: int, check: Callable[[int, int], object]) -> Iterator[tuple[int, ArrowflowError]]:
    """Yields the numbers of all bad rows, in order, and what is wrong with each; arguments as of `first_bad`."""
    parts = [(0, count)]
    while parts:
        start, stop = parts.pop()
        try:
            check(start, stop)
        except ArrowflowError as error:
            middle = (start + stop) // 2
            if middle == start:
                yield start, error
            else:
                parts += [(middle, stop), (start, middle)]


def without(batch: pa.RecordBatch, bad: Collection[int]) -> pa.RecordBatch:
    """Returns a batch of columns without some rows. `pa.array` would import pandas.

    Examples:
        >>> without(pa.record_batch({"x": [1, 2, 3]}), {1}).to_pydict()
        {'x': [1, 3]}
    """
    if not bad:
        return batch
    good = np.ones(batch.num_rows, np.bool_)
    good[list(bad)] = False
    bits = pa.py_buffer(np.packbits(good, bitorder="little"))
    mask = pa.Array.from_buffers(pa.bool_(), len(good), [None, bits], 0)
    # `RecordBatch.filter` makes indices of the mask, and takes twice as long.
    return pa.RecordBatch.from_arrays([column.filter(mask) for column in batch.columns], schema=batch.schema)

"""Rows for which a user function raises: what is left of their piece, and the kernel that counts and keeps them.

A piece with bad rows travels as an `Outcome` to the serial kernel right after the call. Calls end in any order, in threads
or in other processes; this kernel sees their outcomes in the order of the rows. If the first bad row ends the run, the
kernel delivers the results of the rows before it, and then raises. A state taken in between says how many these are, so
that a resumed run tries the bad row again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from arrowflow.bad_rows import BadRow, BadRowPolicy, LeftOut, is_bad_data
from arrowflow.errors import ArrowflowError
from arrowflow.kernels.gather import chosen
from arrowflow.kernels.items import Item, Origin, Outcome
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.combine.same_columns import FirstSchema
from arrowflow.ops.functions.function import function_name
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape

PART: Final = "part"
"""Tells a `PartPosition` from a position of the input, which begins with no text."""


class PartPosition(NamedTuple):
    """Position in the middle of a piece: in front of the bad row that ended a run.

    Attributes:
        kind: `PART`.
        rows: Results that were delivered since `before`.
        before: Position of the input before the piece.
    """

    kind: str
    rows: int
    before: Position


def _is_part(position: Position) -> bool:
    return isinstance(position, tuple) and position[:1] == (PART,)


def whole(
    policy: BadRowPolicy, chunk: pa.RecordBatch, call: Callable[[], pa.RecordBatch]
) -> pa.RecordBatch | Outcome:
    """Returns the result of a call for all rows of a chunk together; if the call fails, all of them are bad."""
    try:
        return call()
    except ArrowflowError as error:
        if not (policy.leaves_out and is_bad_data(error)):
            raise
        bad = tuple(BadRow(row, str(error)) for row in range(chunk.num_rows))
        return Outcome(chunk.slice(0, 0), bad, None if policy.folder is None else chunk, is_whole=True)


def by_row(
    policy: BadRowPolicy,
    given: pa.RecordBatch,
    made: pa.RecordBatch | None,
    bad: Mapping[int, str],
    error: ArrowflowError | None,
) -> pa.RecordBatch | Outcome:
    """Returns the results for the single rows of a chunk.

    Args:
        given: The chunk.
        made: The results for the good rows, in front of the row that ends the run; None where there are none.
        bad: The faults of the bad rows among these, by their numbers.
        error: The error that ends the run, if one does.

    Raises:
        ArrowflowError: It ends the run, and no row comes before it.
    """
    if not bad and made is not None and error is None:
        return made
    if not bad and made is None and error is not None:
        raise error
    places = sorted(bad)
    kept = chosen(given, np.array(places)) if bad and policy.folder is not None else None
    listed = tuple(BadRow(row, bad[row]) for row in places)
    return Outcome(given.slice(0, 0) if made is None else made, listed, kept, error)


def result_schema(fn: Callable[..., Any]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Returns the check that all results in a stream have one schema, which returns a result that has it.

    `repeat` compares schemas of several streams, in order.
    """
    first, what = FirstSchema(), f"what {function_name(fn)} returned later"
    return lambda chunk: first.checked(chunk, what, "schema= declares columns and types")


class ResultsKernel(SerialKernel):
    """Passes results on. Counts and keeps the bad rows, and raises behind the rows in front of the one that ends the run.

    Args:
        title: The operator, with the name of its function.
        policy: The treatment of bad rows.
        declared_by: The function whose first result declares the schema; None where that is known.
    """

    def __init__(self, title: str, policy: BadRowPolicy, declared_by: Callable[..., Any] | None) -> None:
        self._quarantine = policy.quarantine(title)
        self._checked = None if declared_by is None else result_schema(declared_by)
        self._before: Position = None
        self._skip = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores how many results of the next piece were delivered."""
        if _is_part(position):
            assert position is not None
            _, self._skip, position = PartPosition._make(position)
        self._before = position
        return position

    def push(self, item: Item) -> Iterator[Item]:
        chunk, error = item.chunk, None
        if isinstance(chunk, Outcome):
            self._leave_out(chunk, item.origin)
            chunk, error = chunk.chunk, chunk.error
        if self._checked is not None:
            chunk = self._checked(chunk)
        if self._skip:
            chunk = chunk.slice(min(self._skip, chunk.num_rows))
        if error is not None:
            rows = self._skip + chunk.num_rows
            yield item._replace(chunk=chunk, position=PartPosition(PART, rows, self._before))
            raise error
        if item.chunk.num_rows:  # otherwise it may be the end of an earlier piece
            self._skip = 0
        self._before = item.position
        yield item if chunk is item.chunk else item._replace(chunk=chunk)

    def _leave_out(self, outcome: Outcome, origin: Origin) -> None:
        bad = outcome.bad
        if bad:
            self.left_out = self.left_out.plus(LeftOut(len(bad), int(outcome.is_whole)))
            if self._quarantine is not None and outcome.given is not None:
                self._quarantine.keep_given(outcome.given, origin.split, origin.piece, bad)


def results_specs(
    title: str,
    *,
    policy: BadRowPolicy,
    checked: Callable[..., Any] | None = None,
    by_row: bool = False,
    unit: str = "piece",
) -> tuple[KernelSpec, ...]:
    """Returns the kernel that takes the results of a function in order, if one is needed.

    Args:
        title: The name that the folder of bad rows gets.
        checked: The function whose first result declares the schema; None where the schema is known.
        by_row: Whether the function is called for single rows, so that there are results in front of a bad row.
        unit: The word for what the function is called for.
    """
    if not (checked or by_row or policy.leaves_out):
        return ()
    facts = (f"the first {unit} declares the schema",) if checked else ()
    if policy.leaves_out:
        kept = "" if policy.folder is None else f", and kept in {policy.folder}"
        facts = (*facts, f"bad {'row' if by_row else unit}s are left out{kept}")
    spec = KernelSpec(
        "serial",
        lambda context: ResultsKernel(title, policy, checked),
        position=Shape(PartPosition, passes=lambda position: not _is_part(position)),
        has_position=checked is not None,
        facts=lambda: facts,
    )
    return (spec,)

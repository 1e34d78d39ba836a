"""Splits without survivors: no row meets the predicates, so only the columns of the predicates are decoded.

Bounds in a footer rule a split out if all its values lie outside. Often only the values themselves tell: an identifier
among random ones, a rare class. So the columns of the filter are decoded first, and the others only where a row passes.
Where a row passes, the columns of the filter are decoded twice. So this goes on only while it pays: each split that was
looked at changes the share of those without survivors, and the share has to exceed what the look costs. After that one
split in 64 is looked at, since the next files may be others.

The filter itself stays where it is. A split that cannot be told is read, so its error is the same as without a look. Of a
split without survivors nothing else is read, and so damage in its other columns is not met. Where bad row groups are left
out, there is no look: they are counted the same in each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr import Program, Where, compile_steps
from arrowflow.formats.capabilities import RunFormat
from arrowflow.formats.protocol import Footer, Split
from arrowflow.ops.sources.files.file_scan import FileScan
from arrowflow.ops.sources.files.partitions import without
from arrowflow.ops.sources.files.split_tasks import SplitTask

_MOST_COST: Final = 1 / 3
"""The most that a look may cost, as a part of decoding all columns."""

_FIRST_SHARE, _RECENT_SPLITS, _SELDOM = 0.5, 8, 64


class Survivors:
    """Tells which splits have rows that meet the predicates. One for all epochs and threads of a source.

    Args:
        format: The format, as it decodes the columns of the predicates.
        program: The predicates.
        columns: Their columns.
        cost: The bytes of these columns, as a part of all columns that are read.
    """

    def __init__(self, format: RunFormat, program: Program, columns: pa.Schema, cost: float) -> None:
        self._format = format
        self._program = program
        self._columns = columns
        self._least_share = cost / (1 - cost)
        # Threads change these at the same time. That a split is not counted does no harm.
        self._share = _FIRST_SHARE
        self._splits = self._looked = self._without = 0

    @classmethod
    def of(cls, node: FileScan, num_threads: int) -> Survivors | None:
        """Returns the survivors of a bound source; None where a look could never pay."""
        assert node.schema is not None and node.store is not None
        format, first = node.decoder(num_threads, exact=True), node.first
        schema = without(node.schema, node.partitions)
        stored = frozenset(schema.names)
        known = [one for one in node.predicates if stored.issuperset(one.columns)]
        used = {name for one in known for name in one.columns}
        names = [name for name in schema.names if name in used]
        if not names or first is None or not first.splits:
            return None
        part, whole = (
            format.column_bytes(first, first.splits[0], each) for each in (names, list(schema.names))
        )
        if part > _MOST_COST * whole or not node.store.is_local or not isinstance(format, RunFormat):
            return None
        columns = pa.schema([schema.field(name) for name in names])
        try:
            program = compile_steps([Where(one) for one in known], columns)
        except PlanError:  # the filter tells
            return None
        return cls(format, program, columns, part / whole)

    def missing(self, tasks: Sequence[SplitTask]) -> frozenset[int]:
        """Returns the keys of the splits without survivors, as far as a look pays. The splits follow each other."""
        self._splits += len(tasks)
        is_seldom = self._share < self._least_share and self._splits < _SELDOM
        if is_seldom or any(task.is_piece for task in tasks):
            return frozenset()
        self._splits = 0
        run: list[tuple[Footer, Split]] = [(task.footer, task.split) for task in tasks]
        try:
            chunks = self._format.read_run(tasks[0].store, run, self._columns)
            found = [not self._program.run(chunk).num_rows for chunk in chunks or ()]
        except Exception:  # noqa: BLE001  (read as a whole, the split or the filter says what is wrong)
            return frozenset()
        for is_missing in found:
            self._share += (is_missing - self._share) / _RECENT_SPLITS
        self._looked += len(found)
        self._without += sum(found)
        return frozenset(task.key for task, is_missing in zip(tasks, found, strict=False) if is_missing)

    def facts(self) -> list[str]:
        """Returns what was found, for people."""
        if not self._looked:
            return []
        names = ", ".join(self._columns.names)
        return [f"{names} alone ruled out {self._without} of {self._looked} splits that were looked at"]

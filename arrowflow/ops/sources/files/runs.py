"""How much one call decodes: a run of small splits, or a piece of a large one.

A call costs the same for few rows as for many: 2 to 4 ms where Polars decodes, and hand-overs between threads. So one
call reads a run of small splits, of one file or of several. Row groups that follow each other are decoded together,
which takes a third less than one by one. A row group that takes a large part of the byte budget is decoded in pieces,
where its format can.

Nothing else changes. Each split is still a chunk, or several, with its own position and its own key of everything
random. So the byte budget may decide how long runs and pieces are.

The first runs of an epoch, and the first pieces of a split, are short. So the first batch comes soon, and all cores have
work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from arrowflow.formats.capabilities import PiecesFormat
from arrowflow.formats.protocol import Format
from arrowflow.ops.sources.files.file_scan import FileScan
from arrowflow.ops.sources.files.split_tasks import SplitTask
from arrowflow.options import ResolvedOptions

MOST_BYTES: Final = 32 << 20
"""The most decoded bytes of a run, and of a piece. With twice as many reading alone gains 2 to 5 %, and `wide` loses 4 %."""

_FIRST_BYTES: Final = 4 << 20
"""The decoded bytes of the first run; each is up to twice as long as the one before it."""

_MOST_SPLITS: Final = 64
"""The most splits of a run. The first run is one split; each is up to twice as long as the one before it."""

_FIRST_PIECES: Final = 8
"""The first piece of a split is this part of the later ones; each is up to twice as long as the one before it."""

_CALLS_IN_BUDGET: Final = 32
"""The byte budget has room for this many of the largest calls."""

_LONG_CALLS: Final = _CALLS_IN_BUDGET // 4
"""So many lanes have runs as long as those of a plan without lanes. In 16 lanes, runs of half that length take 4 to 10 % less
CPU on `stream` than single row groups, and 200 MiB in place of 140; the plan without lanes takes 260."""

_RUNS_PER_CORE: Final = 8
"""An epoch has at least this many runs for each core."""


class CallBytes(NamedTuple):
    """Decoded bytes of a call.

    Attributes:
        run: The most of a run of splits; 0 where each split is a call.
        piece: About those of a piece of a split; 0 where splits are read whole.
    """

    run: int = 0
    piece: int = 0

    @classmethod
    def of(cls, node: FileScan, names: Sequence[str], options: ResolvedOptions) -> CallBytes:
        """Returns the bytes for the files of a bound source: little of the budget, and enough calls for all cores.

        So many lanes each hold what one call decodes: the calls of more than eight lanes are shorter, so that a quarter of
        the budget has room for one of each lane. Their pieces are not: a piece of a row group costs as much as a larger one.
        """
        format, first, store = node.format, node.first, node.store
        assert store is not None and first is not None
        if node.in_place or not store.is_local:
            return cls()
        most = min(MOST_BYTES, options.ram_budget // _CALLS_IN_BUDGET)
        of_file = sum(format.column_bytes(first, split, names) for split in first.splits)
        share = of_file * len(node.files) // (_RUNS_PER_CORE * options.cpu_budget)
        lanes = 1 if node.lane is None else node.lane.count
        # A row group that is left out is left out whole, whatever the budget.
        in_pieces = isinstance(format, PiecesFormat) and not node.policy.leaves_out
        return cls(min(most, share) // -(-lanes // _LONG_CALLS), most if in_pieces else 0)

    @property
    def most_whole(self) -> int:
        """The most decoded bytes of a split that is not cut."""
        return 2 * self.piece


def cut(task: SplitTask, format: Format, names: Sequence[str], sizes: CallBytes) -> Iterator[SplitTask]:
    """Yields a split, or its pieces if it is too large for one call."""
    footer, split = task.footer, task.split
    large = sizes.piece and task.output_bytes > sizes.most_whole and not task.unsure
    if large and isinstance(format, PiecesFormat) and format.is_cut(footer, split, names):
        most = split.num_rows * sizes.piece // task.output_bytes
        rows, at, chosen = max(1, most // _FIRST_PIECES), task.start, []
        for row in format.cuts(task.store, footer, split, names, rows) or ():
            if row >= at + rows:
                chosen.append(row)
                rows, at = min(2 * rows, most), row
        if chosen:
            yield from task.pieces(chosen)
            return
    yield task


class Runs:
    """Joins the splits of one epoch into calls.

    Args:
        most_bytes: The most decoded bytes of a call; 0 where each split is a call.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._next_bytes = min(_FIRST_BYTES, most_bytes)
        self._next_splits = 1
        self._run: list[SplitTask] = []
        self._num_bytes = 0

    def add(self, task: SplitTask) -> Iterator[SplitTask]:
        """Takes the next split, and yields the calls that are full."""
        alone = not self._most_bytes or task.is_piece or bool(task.unsure)
        if alone or self._num_bytes + task.output_bytes > self._next_bytes:
            yield from self.rest()
        self._run.append(task)
        self._num_bytes += task.output_bytes
        if alone or len(self._run) >= self._next_splits:
            yield from self.rest()

    def rest(self) -> Iterator[SplitTask]:
        """Yields the call that is not full yet, if there is one."""
        if run := self._run:
            self._run, self._num_bytes = [], 0
            self._next_bytes = min(2 * self._next_bytes, self._most_bytes)
            self._next_splits = min(2 * self._next_splits, _MOST_SPLITS)
            yield SplitTask.joined(run)

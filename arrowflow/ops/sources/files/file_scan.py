"""`FileScan`: the facts of a bound source of files that its kernels need, and which files and splits hold nothing of use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa

from arrowflow.bad_rows import BY_OPTIONS, BadRowPolicy
from arrowflow.expr import Expr, prunable
from arrowflow.expr.pruning import ColumnStatistics
from arrowflow.formats import Footer, Format, MayMatch, reader_of
from arrowflow.formats.capabilities import Hints, PooledFormat, StoredDecimals
from arrowflow.formats.protocol import prune
from arrowflow.kernels.kept import KeptChunks
from arrowflow.kernels.operator import Operator
from arrowflow.ops.sources.files.file_rows import FileRows
from arrowflow.ops.sources.files.partitions import Partitions, merged
from arrowflow.ops.sources.files.row_counts import RowCounts
from arrowflow.ops.sources.files.split_tasks import ReadPosition
from arrowflow.plan.access import SourceOrder
from arrowflow.plan.lane import Lane
from arrowflow.storage import File, Store


def has_exact_bounds(type: pa.DataType) -> bool:
    """Returns whether logs of tables have the bounds of a type in full: texts are cut, decimals rounded, floats may be NaN."""
    kinds = (pa.types.is_integer, pa.types.is_date32, pa.types.is_boolean, pa.types.is_timestamp)
    return any(test(type) for test in kinds)


@dataclass(frozen=True, slots=True, eq=False)
class FileStatistics:
    """The figures of a table's log on the columns of each file, in the order of the files. Picklable.

    Attributes:
        rows: The rows of each file; null for a file of which nothing is known.
        columns: For each column its least values, its greatest values, as statistics compare them, and its nulls; null
            where one is unknown.
    """

    rows: pa.Array
    columns: Mapping[str, tuple[pa.Array, pa.Array, pa.Array]]

    def of(self, number: int) -> tuple[Mapping[str, ColumnStatistics], int]:
        """Returns the statistics of a file and its rows."""
        rows = self.rows[number].as_py()
        return ({}, 1) if rows is None else (_OfFile(self, number), rows)


@dataclass(frozen=True, slots=True, eq=False)
class _OfFile(Mapping[str, ColumnStatistics]):
    """The statistics of one file: a predicate asks for a few of many columns."""

    all: FileStatistics
    number: int

    def __getitem__(self, name: str) -> ColumnStatistics:
        least, greatest, nulls = self.all.columns[name]
        return ColumnStatistics(*(values[self.number].as_py() for values in (least, greatest, nulls)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.all.columns)

    def __len__(self) -> int:
        return len(self.all.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScan(Operator):
    """The part of files that is read, and its order.

    Attributes:
        format: The format with its options; once bound, with the types of all files.
        paths: The paths that the user named.
        filesystem: Where to look, or None to tell by the paths.
        memory_map: Whether local files are mapped; None where they lie on a disk of this machine.
        partitioning: `"hive"`, `"auto"` or None: see `partitions.py`.
        target: The `schema=` that files are cast to, or None for the first file's.
        num_parallel_calls: Splits decoded at the same time, and splits fetched; None for the best number.
        policy: The treatment of bad rows; once bound, as the pipeline says.
        missing_columns: `"null"` where a file may lack columns of others, else `"error"`.
        picks: The names of columns that the user picks; None where all are read.
        store: Bound: the file system.
        files: Bound: the files, sorted.
        partitions: Bound: the columns that the names of folders give.
        statistics: Bound: what is known of the files before they are opened; None of files without a log.
        columns_of_all: Bound: the columns of all files, where one may lack those of others.
        first: Bound: the first file's footer; for a format without types, the footer after its first splits.
        columns: Names of the columns to read, or None for all. Set by a rule.
        predicates: Conditions that rows must meet to be of use; they only prune splits. Set by a rule.
        rows: The first row to deliver and the row to stop before. Set by a rule.
        order: The order that a later `shuffle` wants of the source.
        lane: The lane that reads its part of the rows, in the order; None for all of them.
        counts: Bound: the rows of all splits, which are read when a lane, or a user, asks for them.
        hints: Bound: what readers found out about bad rows.
        kept: The rows that are left of them after later operators, by which lanes are dealt; None for all.
        fields: For structs the only fields that are read. Set by a rule.
        stored: Decimals that may come as integers, since only the next operator's arithmetic reads them. Set by a rule.
        in_place: Whether a global `shuffle` after it gathers rows from the files themselves.
        keeps: The chunks that are kept for later epochs, one object for all lanes; None where none are.
    """

    format: Format = field(hash=False)
    paths: Any = field(hash=False)
    filesystem: Any = field(default=None, hash=False)
    memory_map: bool | None = field(default=None, compare=False)
    partitioning: str | None = None
    target: pa.Schema | None = None
    num_parallel_calls: int | None = None
    missing_columns: str = "error"
    policy: BadRowPolicy = BY_OPTIONS
    picks: tuple[str, ...] | None = field(default=None, compare=False)
    store: Store | None = field(default=None, compare=False)
    files: tuple[File, ...] = field(default=(), compare=False)
    partitions: Partitions | None = field(default=None, compare=False)
    statistics: FileStatistics | None = field(default=None, compare=False, repr=False)
    first: Footer | None = field(default=None, compare=False)
    columns_of_all: pa.Schema | None = field(default=None, compare=False)
    columns: tuple[str, ...] | None = None
    predicates: tuple[Expr, ...] = ()
    rows: tuple[int, int | None] = (0, None)
    order: SourceOrder | None = None
    lane: Lane | None = None
    counts: FileRows | None = field(default=None, compare=False, repr=False)
    hints: Hints = field(default_factory=Hints, compare=False, repr=False)
    kept: RowCounts | None = field(default=None, compare=False, repr=False)
    fields: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    stored: frozenset[str] = frozenset()
    in_place: bool = False
    keeps: KeptChunks | None = field(default=None, compare=False, repr=False)

    @property
    def operator(self) -> str:
        """The name of the source in messages: that of the function that reads the format."""
        return reader_of(self.format)

    @property
    def leniency(self) -> Mapping[str, bool]:
        """Returns which files fit its columns, as arguments of `match`."""
        return {"widen": self.target is not None, "may_lack": self.columns_of_all is not None}

    def all_columns(self) -> pa.Schema:
        """Returns all columns that can be read, wanted or not."""
        assert self.first is not None
        return merged(self.target or self.columns_of_all or self.first.schema, self.partitions)

    def _num_rows(self) -> int:
        assert self.counts is not None
        start, stop = self.rows
        total = self.counts.num_rows
        return max(0, (total if stop is None else min(stop, total)) - start)

    def _dealt(self, lane: Lane, epoch: int) -> tuple[int, int]:
        """Returns the lane's rows by their numbers: among those that are left, or among all that it reads."""
        return lane.rows(self._num_rows() if self.kept is None else self.kept.num_rows, epoch)

    def rows_of(self, epoch: int) -> tuple[int, int | None]:
        """Returns the first row, by its number in the order of an epoch, and the row to stop before."""
        if self.lane is None:
            return self.rows
        first, before = self._dealt(self.lane, epoch)
        if self.kept is None:
            return self.rows[0] + first, self.rows[0] + before
        assert self.counts is not None
        return self.counts.rows_of(first, before, self.kept, self.order, epoch)

    def first_position(self, epoch: int) -> ReadPosition | None:
        """Returns where a lane begins in the order of an epoch."""
        if self.lane is None or self.counts is None:
            return None
        return self.counts.position(self.rows_of(epoch)[0], self.order, epoch)

    def decoder(self, num_threads: int, *, exact: bool = False) -> Format:
        """Returns the format as it decodes, within a CPU budget: unless `exact`, decimals may come as integers."""
        format = self.format
        if self.stored and not exact and isinstance(format, StoredDecimals):
            format = format.with_stored(self.stored)
        return format.with_threads(num_threads) if isinstance(format, PooledFormat) else format


def match_test(node: FileScan) -> MayMatch | None:
    """Returns the test whether a split can hold a match; None where no test exists."""
    tests = [prunable(predicate, node.all_columns()) for predicate in node.predicates]
    known = [test for test in tests if test is not None]
    if not known:
        return None
    return lambda statistics, num_rows: not any(test(statistics, num_rows) for test in known)


def file_test(node: FileScan, may_match: MayMatch | None) -> Callable[[int], bool] | None:
    """Returns the test, by the number of a file, whether its folders and its log leave a match possible; None for neither."""
    folders, known = node.partitions, node.statistics
    if may_match is None or (folders is None and known is None):
        return None

    def may_hold(number: int) -> bool:
        statistics, rows = ({}, 1) if known is None else known.of(number)
        test = may_match if folders is None else folders.within(number, may_match)
        return test(statistics, rows)

    return may_hold


def files_wanted(node: FileScan, may_match: MayMatch | None) -> Callable[[int], bool] | None:
    """Returns the test, by the number of a file, whether the file has to be opened; None where all files have to.

    Rows that `skip`, `take` and lanes count have to be counted in every file.
    """
    return None if node.rows != (0, None) or node.lane is not None else file_test(node, may_match)


def left_out(node: FileScan, is_wanted: Callable[[int], bool] | None) -> tuple[str, ...]:
    """Returns the line of `explain` about files that are not opened."""
    if is_wanted is None:
        return ()
    count = sum(not is_wanted(number) for number in range(len(node.files)))
    known = "folders rule" if node.statistics is None else "the log rules"
    return (f"{known} out {count} of {len(node.files)} files",)


def pruned(node: FileScan, may_match: MayMatch | None) -> tuple[str, ...]:
    """Returns the line of `explain` about splits that are not read."""
    if may_match is None or node.first is None:
        return ()
    wanted = _splits_wanted(node, node.first, may_match)
    return (f"statistics prune {wanted.count(False)} of {len(wanted)} splits of the first file",)


def rows_of_one_split(node: FileScan) -> tuple[range, bool]:
    """Returns the numbers of the rows in the first split that may hold a match, and whether no other split may hold one.

    Only the splits of the first file are looked at. If none of them may hold a match, the range is empty.
    """
    assert node.first is not None
    may_match = match_test(node) if node.rows == (0, None) else None
    splits = node.first.splits
    wanted = [True] * len(splits) if may_match is None else _splits_wanted(node, node.first, may_match)
    ends = pairwise(accumulate((split.num_rows for split in splits), initial=0))
    ranges = [range(*rows) for rows, is_wanted in zip(ends, wanted, strict=True) if is_wanted]
    ranges = [rows for rows in ranges if rows]
    return (ranges or [range(0)])[0], len(ranges) <= 1 and len(node.files) == 1


def _splits_wanted(node: FileScan, first: Footer, may_match: MayMatch) -> list[bool]:
    """Returns whether each split of the first file may hold a match."""
    if node.partitions is not None:
        may_match = node.partitions.within(0, may_match)
    columns = node.all_columns()
    return [not prune(node.format, first, split, may_match, columns) for split in first.splits]

"""The files and splits of a source that provably hold no row of use."""

from __future__ import annotations

from collections.abc import Callable

from arrowflow.expr import prunable
from arrowflow.formats import MayMatch
from arrowflow.formats.protocol import prune
from arrowflow.ops.sources.files.splits import FileScan


def match_test(node: FileScan) -> MayMatch | None:
    """Returns the test whether a split can hold a match; None where no test exists."""
    tests = [prunable(predicate, node.all_columns()) for predicate in node.predicates]
    known = [test for test in tests if test is not None]
    if not known:
        return None
    return lambda statistics, num_rows: not any(test(statistics, num_rows) for test in known)


def files_wanted(node: FileScan, may_match: MayMatch | None) -> Callable[[int], bool] | None:
    """Returns the test, by the number of a file, whether the file has to be opened; None where all files have to.

    Rows that `skip`, `take` and lanes count have to be counted in every file.
    """
    folders = node.partitions
    if may_match is None or folders is None or node.rows != (0, None):
        return None
    return lambda number: folders.may_match(number, may_match)


def left_out(node: FileScan, is_wanted: Callable[[int], bool] | None) -> tuple[str, ...]:
    """Returns the line of `explain` about files that are not opened."""
    if is_wanted is None:
        return ()
    count = sum(not is_wanted(number) for number in range(len(node.files)))
    return (f"folders rule out {count} of {len(node.files)} files",)


def pruned(node: FileScan, may_match: MayMatch | None) -> tuple[str, ...]:
    """Returns the line of `explain` about splits that are not read."""
    if may_match is None or node.first is None:
        return ()
    if node.partitions is not None:
        may_match = node.partitions.within(0, may_match)
    columns, splits = node.all_columns(), node.first.splits
    count = sum(prune(node.format, node.first, split, may_match, columns) for split in splits)
    return (f"statistics prune {count} of {len(splits)} splits of the first file",)

"""The kernels of `read.py` that read footers, and decide the order of splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

from arrowflow.bad_rows import NO_BAD_ROWS, LeftOut
from arrowflow.errors import ArrowflowError
from arrowflow.formats.capabilities import Unsure
from arrowflow.formats.protocol import Footer, MayMatch, Split, footer_of, match, prune, raise_change, reading
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Item, Made, Origin, Task
from arrowflow.kernels.kinds import SerialKernel, SourceKernel
from arrowflow.ops.order.source_order import permuted
from arrowflow.ops.sources.files.file_identity import knows_footer, versions_in_run
from arrowflow.ops.sources.files.file_scan import FileScan, file_test
from arrowflow.ops.sources.files.partitions import without
from arrowflow.ops.sources.files.runs import CallBytes, Runs, cut
from arrowflow.ops.sources.files.split_tasks import (
    OPEN_FILES,
    FileTask,
    OpenFile,
    ReadPosition,
    SplitTask,
    drawn,
    is_no_file,
)
from arrowflow.plan.position import Position
from arrowflow.random import FILE_ORDER
from arrowflow.storage import (
    Fetched,
    File,
    Requests,
    Store,
    change_behind,
    coalesce,
    note_version,
    remote_change,
)

FOOTER_BYTES = 1 << 16
SMALL_FILE_BYTES = FOOTER_BYTES
"""A file of another machine that has no more bytes comes whole, by the request that its footer takes."""

_BUNDLE_FILES, _BUNDLE_BYTES = 16, 4 << 20
"""The most local files whose footers one call reads, and the bytes of files after which no other file is added. With
this, and splits of several files in one call, 2,000 small files take 0.97 s in place of 1.34."""


class FooterSource(SourceKernel):
    """Reads footers in the order in which the files are wanted; the position is (block of files,).

    Files that `is_wanted` rules out by their numbers are not opened. These files keep their places in their blocks. So
    the other files come in the same order, and positions mean the same.
    """

    def __init__(
        self, node: FileScan, context: Context, is_wanted: Callable[[int], bool] | None = None
    ) -> None:
        self._node = node
        self._store = store_in_run(node.store, context)
        self._versions = versions_in_run(node.files, context)
        self._is_wanted = is_wanted
        self._expected = without(node.all_columns(), node.partitions)
        self._context = context
        # Lanes that read parts of one file share its footer, as long as one of them has splits of it on the way: to read
        # and to rewrite footers anew was a tenth of the work of `stream`, shuffled, in 16 lanes.
        self._shared: MutableMapping[int, Footer] = context.run_storage.setdefault(
            (FooterSource, id(node.files)), WeakValueDictionary()
        )

    def tasks(self, position: Position) -> Iterator[Task]:
        for number, bundle in enumerate(self._bundles(self._files(position))):
            files = [self._node.files[each.number] for each in bundle]
            scanned = max(map(self._node.format.footer_bytes, files))  # one after the other
            yield Task(bundle, Origin(number), FOOTER_BYTES * len(bundle) + scanned)

    def _files(self, position: Position) -> Iterator[FileTask]:
        files, order, is_wanted = len(self._node.files), self._node.order, self._is_wanted
        size = 1 if order is None else OPEN_FILES
        numbers = range(files) if order is None else permuted(files, order, FILE_ORDER, self._context.epoch)
        for block in range(0 if position is None else position[0], -(-files // size)):
            places = range(block * size, min((block + 1) * size, files))
            found = [(place, int(numbers[place])) for place in places]
            wanted = [each for each in found if is_wanted is None or is_wanted(each[1])]
            for place, number in wanted:
                yield FileTask(number, block, place % size, len(wanted))

    def _bundles(self, files: Iterator[FileTask]) -> Iterator[list[FileTask]]:
        """Yields the files that one call opens: one, and up to twice as many as the call before while they are small."""
        node, most = self._node, 1
        bundle: list[FileTask] = []
        num_bytes = 0
        for file in files:
            bundle.append(file)
            num_bytes += node.files[file.number].size
            assert node.store is not None
            if len(bundle) >= most or num_bytes >= _BUNDLE_BYTES or not node.store.is_local:
                yield bundle
                most, bundle, num_bytes = min(2 * most, _BUNDLE_FILES), [], 0
        if bundle:
            yield bundle

    def read(self, task: Task) -> Iterator[Made]:
        """Yields the footers, after a check that they have the pipeline's schema."""
        *_, last = task.payload
        for file in task.payload:
            number, block, place, block_files = file
            footer: Footer | ArrowflowError
            held = None
            left_out = NO_BAD_ROWS
            try:
                held = self._held(number)
                footer = self._footer(number, held)
            except ArrowflowError as error:
                footer = error
                if is_no_file(error, self._node.policy):
                    footer, left_out = self._without(number, error), LeftOut(0, 1, number)
            opened = OpenFile(number, footer, block, place, block_files, held)
            yield Made(opened, None, more=file is not last, left_out=left_out)

    def _without(self, number: int, error: ArrowflowError) -> Footer:
        """Returns a footer without rows in place of one that cannot be read."""
        node = self._node
        file = node.files[number]
        if (kept := node.policy.quarantine(node.operator)) is not None:
            kept.keep_part(file.path, None, None, str(error))
        return Footer(file, self._expected, (), 0)

    def _held(self, number: int) -> Store | None:
        """Returns all bytes of a small file that is not local: they come by the one request that its footer takes."""
        file = self._node.files[number]
        if self._store.is_local or not 0 < file.size <= SMALL_FILE_BYTES:
            return None
        with reading(self._node.operator, file):
            return fetch_ahead(self._store, file, [(0, file.size)], {}, self._node.operator)

    def _footer(self, number: int, held: Store | None) -> Footer:
        node, file = self._node, self._node.files[number]
        if held is None:  # else the footer has to be that of the held bytes
            footer = self._shared.get(number)
            if footer is not None and not footer.file.is_changed:
                return footer
            note_version(node.store or self._store, file, self._versions)
        store = held or self._store
        # Kept chunks are those of this very file only if the store says so now: perhaps no bytes of it will be fetched.
        asks = not store.is_local and held is None and node.keeps is not None and bool(node.keeps.chunks)
        known = held is None and number == 0 and not asks and knows_footer(node.first, node.format, store)
        footer = (node.first if known else None) or footer_of(node.operator, node.format, store, file)
        match(self._expected, footer, operator=node.operator, **node.leniency)
        if node.partitions is not None:
            node.partitions.check(node.format, store, footer, node.operator)
        if asks:
            with reading(node.operator, file):
                raise_change(change_of(self._store, file, self._versions), file, node.operator)
        self._shared[number] = footer
        return footer


def store_in_run(store: Store | None, context: Context) -> Store:
    """Returns a store that waits and counts for a run. All kernels of the run that read it share its open files."""
    assert store is not None
    if store.is_local:
        return store
    # Values are weak: an `interleave` opens a store for each of its inputs.
    served = context.run_storage.setdefault(Requests, WeakValueDictionary())
    requests = served.get(id(store.requests))
    if requests is None:
        requests = served[id(store.requests)] = store.requests.served_by(context)
    return replace(store, requests=requests)


def change_of(store: Store, file: File, versions: MutableMapping[str, str | None]) -> str | None:
    """Asks a store how a file differs from what the run has met; None if it does not. Waits."""
    return store.requests.persist(partial(remote_change, store, file, versions))


def fetch_ahead(
    store: Store,
    file: File,
    ranges: Sequence[tuple[int, int]],
    versions: MutableMapping[str, str | None],
    operator: str,
) -> Fetched:
    """Fetches byte ranges of a file; raises as `Store.fetch_ahead` does, or says that the file has changed."""
    try:
        return store.fetch_ahead(file, ranges)
    except OSError as error:
        raise_change(change_behind(error, store, file, versions), file, operator)
        raise


class SplitPlanner(SerialKernel):
    """Decides which splits are read, in which order, and which of them by one call.

    Args:
        node: The bound source.
        may_match: The test whether a split can hold a match; None where all are read.
        sizes: The bytes that one call decodes.
    """

    def __init__(
        self,
        node: FileScan,
        may_match: MayMatch | None,
        sizes: CallBytes = CallBytes(),  # noqa: B008  (it does not change)
    ) -> None:
        self._node = node
        self._sizes = sizes
        self._runs = Runs(sizes.run)
        self._may_match, self._may_hold = may_match, file_test(node, may_match)
        self._epoch = 0
        self._rows = node.rows
        self._format = node.format
        self._unsure = node.format if isinstance(node.format, Unsure) else None  # 10 µs, so once
        self._blocks: dict[int, list[Item]] = {}  # several blocks where footers come in any order
        self._block = self._first_split = self._first_row = self._counted = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the block of files; its splits that are done are counted again but not read."""
        self._epoch, self._rows = epoch, self._node.rows_of(epoch)
        if position is None:
            position = self._node.first_position(epoch)
        if position is None:
            return None
        self._block, self._first_split, self._first_row, self._counted = ReadPosition._make(position)
        return (self._block,)

    def push(self, item: Item) -> Iterator[Item]:
        """Yields the splits of a block once all its footers have come."""
        file: OpenFile = item.chunk
        files = self._blocks.setdefault(file.block, [])
        files.append(item)
        if len(files) == file.block_files:
            del self._blocks[file.block]
            if file.block != self._block:  # otherwise it is the first file after a resume
                self._first_split = self._first_row = 0
            self._block = file.block
            yield from self._joined([each.chunk for each in files])

    def finish(self) -> Iterator[Item]:
        return self._items(self._runs.rest())

    def _joined(self, files: list[OpenFile]) -> Iterator[Item]:
        try:
            for task in self._plan(files):
                yield from self._items(self._runs.add(task))
        except ArrowflowError:
            yield from self.finish()
            raise
        if self.done:
            yield from self.finish()

    def _items(self, tasks: Iterator[SplitTask]) -> Iterator[Item]:
        # A task that holds its file's bytes is charged for them.
        return (Item(task, None, None if task.buffers else (), Origin(task.key)) for task in tasks)

    def _plan(self, files: list[OpenFile]) -> Iterator[SplitTask]:
        start, stop = self._rows
        first_split, first_row = self._first_split, self._first_row
        self._first_split = self._first_row = 0
        held = {file.number: file.held for file in files}
        for done, number, footer, split in self._ordered(files):
            if done < first_split:
                continue
            if stop is not None and self._counted >= stop:
                break
            base = ReadPosition(self._block, done, 0, self._counted)
            begin = max(start - self._counted, first_row if done == first_split else 0, 0)
            end = split.num_rows if stop is None else min(split.num_rows, stop - self._counted)
            self._counted += split.num_rows
            if begin < end and not self._is_pruned(number, footer, split):
                yield from self._tasks(number, footer, split, begin, end, base, held[number])
        self.done = stop is not None and self._counted >= stop

    def _is_pruned(self, number: int, footer: Footer, split: Split) -> bool:
        test, folders = self._may_match, self._node.partitions
        if test is None:
            return False
        if self._may_hold is not None and not self._may_hold(number):
            return True
        if folders is not None:
            test = folders.within(number, test)
        return prune(self._format, footer, split, test, self._node.all_columns())

    def _tasks(
        self,
        number: int,
        footer: Footer,
        split: Split,
        start: int,
        stop: int,
        base: ReadPosition,
        held: Store | None,
    ) -> list[SplitTask]:
        node, format = self._node, self._format
        assert node.store is not None and node.schema is not None
        names = without(node.schema, node.partitions).names
        with reading(node.operator, footer.file, split.index, format.part):
            is_here = node.store.is_local or held is not None
            ranges = () if is_here else coalesce(format.ranges(footer, split, names))
            sizes = (format.column_bytes, format.scratch_bytes)
            output_bytes, scratch_bytes = (size(footer, split, names) for size in sizes)
            unsure = () if self._unsure is None else self._unsure.unsure(footer, split, names)
            whole = SplitTask(
                held or node.store,
                tuple(ranges),
                footer,
                split,
                start,
                stop,
                base,
                number,
                output_bytes,
                scratch_bytes,
                tuple(unsure),
                is_border=node.lane is not None and (start, stop) != (0, split.num_rows),
            )
            return list(cut(whole, format, names, self._sizes))

    def _ordered(self, files: list[OpenFile]) -> list[tuple[int, int, Footer, Split]]:
        """Returns a block's splits, each with its number in the block, whatever splits the other files have."""
        footers: dict[int, Footer] = {}
        for file in files:
            if isinstance(file.footer, ArrowflowError):
                raise file.footer
            footers[file.number] = file.footer
        counts = [(file.place, file.number, len(footers[file.number].splits)) for file in files]
        found = drawn(counts, self._node.order, self._epoch)
        return [
            (done, number, footers[number], footers[number].splits[index]) for done, number, index in found
        ]

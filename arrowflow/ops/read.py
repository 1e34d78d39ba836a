"""`read_parquet`, `read_ipc`: files, split by split.

Three kernels in a row, so that footers, planning and decoding overlap:

1. a source of **footers**, one task a file, a few files ahead;
2. a serial **planner**, which turns footers into descriptors of splits: it counts rows, so that `skip` and `take`
   cost nothing for what they leave out; prunes splits that provably hold no match; and, where a `shuffle` above
   orders the source, draws splits from a few open files in turn;
3. a **reader**, which decodes one split a call; column operators above run in the same call.

A split's number is (its file's place in sorted order, its number in the file), whatever is pruned or permuted.
The position is (block of files, splits of it done, rows of the next split done, rows counted before it).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from arrowflow.expr import Expr, prunable
from arrowflow.formats import find
from arrowflow.formats.format import Footer, Format, MayMatch, Split, match
from arrowflow.ops.base import (
    Context,
    Item,
    KernelSpec,
    Made,
    Operator,
    Origin,
    Position,
    ReaderKernel,
    SerialKernel,
    SourceKernel,
    Task,
)
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import BindContext, Node, SourceOrder
from arrowflow.plan.traits import Borders, Traits
from arrowflow.random import permutation
from arrowflow.records import dataclass
from arrowflow.storage import File, Store, resolve

OPEN_FILES = 4
"""Files whose splits are mixed when a `shuffle` orders the source."""

MAX_SPLITS_PER_FILE = 1 << 24
FOOTER_BYTES = 1 << 16
FILE_ORDER, SPLIT_ORDER = 1, 2
"""Tell the two permutations of one seed and epoch apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Operator):
    """The rows of files, in sorted order of paths, or as a `shuffle` above orders them.

    Memory: one split a call with its decode scratch, and a few chunks ahead. Deterministic. Resume: seeks to the
    split.

    Attributes:
        format: Name in `arrowflow.formats.FORMATS`.
        paths: What the user named.
        filesystem: Where to look, or None to tell by the paths.
        target: The `schema=` that files are widened to, or None for the first file's.
        num_parallel_calls: Splits decoded at the same time, or None for the CPU budget.
        store: Bound: the file system.
        files: Bound: the files, sorted.
        first: Bound: the first file's footer.
        columns: Names of the columns to read, or None for all. Set by a rule.
        predicates: What rows must match to be of use; only prunes splits. Set by a rule.
        rows: First row to deliver and the one to stop before. Set by a rule.
        order: How a `shuffle` above wants the source ordered.
        stored: Decimals that may come as integers, since only arithmetic right above reads them. Set by a rule.
    """

    name: ClassVar[str] = "read"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE)

    format: str
    paths: Any = field(hash=False)
    filesystem: Any = field(default=None, hash=False)
    target: pa.Schema | None = None
    num_parallel_calls: int | None = None
    store: Store | None = field(default=None, compare=False)
    files: tuple[File, ...] = field(default=(), compare=False)
    first: Footer | None = field(default=None, compare=False)
    columns: tuple[str, ...] | None = None
    predicates: tuple[Expr, ...] = ()
    rows: tuple[int, int | None] = (0, None)
    order: SourceOrder | None = None
    stored: frozenset[str] = frozenset()

    @property
    def operator(self) -> str:
        """The name of the method that made it."""
        return f"read_{self.format}"

    @property
    def file_format(self) -> Format:
        """Its format."""
        return find(self.format)

    def arguments(self) -> Mapping[str, Any]:
        """Returns the format and, once bound, a digest of the files by relative path and size."""
        sources = [[file.relative, file.size] for file in self.files]
        return {"format": self.format, "files": len(sources), "sources": sources}

    def describe(self) -> str:
        """Returns files and what is pushed down as one line."""
        parts = [f"{len(self.files)} files" if self.bound else repr(self.paths)]
        if self.columns is not None:
            known = 0 if self.first is None else len(self._all_columns())
            parts.append(f"columns {len(self.columns)} of {known}: {', '.join(self.columns)}")
        if self.predicates:
            parts.append(f"prune by {', '.join(map(repr, self.predicates))}")
        if self.rows != (0, None):
            parts.append(f"rows {self.rows[0]}:{'' if self.rows[1] is None else self.rows[1]}")
        if self.stored:
            parts.append(f"as stored integers: {', '.join(sorted(self.stored))}")
        if self.order is not None:
            parts.append(f"order by seed {self.order.seed}{' and epoch' if self.order.reshuffle else ''}")
        return f"{self.operator}({'; '.join(parts)})"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Lists the files and reads the first one's footer."""
        format = self.file_format
        store, files = resolve(
            self.paths, filesystem=self.filesystem, suffixes=format.suffixes, operator=self.operator
        )
        first = format.footer(store, files[0])
        bound = dataclasses.replace(self, store=store, files=files, first=first)
        if self.target is not None:
            match(self.target, first, widen=True, operator=self.operator)
        return bound.on()

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Returns the columns to read of the first file's schema, or of `target`."""
        schema = self._all_columns()
        if self.columns is None:
            return schema
        return pa.schema([schema.field(name) for name in schema.names if name in self.columns])

    def _all_columns(self) -> pa.Schema:
        assert self.first is not None
        return self.target if self.target is not None else self.first.schema

    def count_rows(self, inputs: Sequence[int | None]) -> int:
        """Returns the rows of all footers: reads each file's, but nothing else."""
        assert self.store is not None
        total = sum(self.file_format.footer(self.store, file).num_rows for file in self.files)
        start, stop = self.rows
        return max(0, (total if stop is None else min(stop, total)) - start)

    def with_row_range(self, start: int, stop: int | None) -> Node | None:
        """Counts rows by footers; an ordered source has no first rows."""
        if self.order is not None:
            return None
        first, before = self.rows
        ends = [end for end in (before, None if stop is None else first + stop) if end is not None]
        return dataclasses.replace(self, rows=(first + start, min(ends, default=None))).on()

    def with_predicates(self, predicates: tuple[Any, ...]) -> Node:
        """Prunes by them."""
        return dataclasses.replace(self, predicates=self.predicates + predicates)

    def with_stored(self, columns: frozenset[str]) -> Node | None:
        """Takes the leave where the format knows what to do with it."""
        return dataclasses.replace(self, stored=columns).on() if self.format == "parquet" else None

    def narrow(self, wanted: frozenset[str]) -> Node:
        """Reads only the wanted columns."""
        assert self.schema is not None
        names = tuple(name for name in self.schema.names if name in wanted)
        return self if len(names) == len(self.schema) else dataclasses.replace(self, columns=names).on()

    def with_source_order(self, order: SourceOrder) -> Node:
        """Takes the order over."""
        return dataclasses.replace(self, order=order)

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """Decoded memory is new; mapped memory is the file's."""
        return self.format != "ipc"

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns the source of footers, the planner and the reader."""
        assert self.schema is not None and self.first is not None
        names = self.schema.names
        may_match = self.may_match()
        return (
            KernelSpec(
                operator=self.operator,
                kind="source",
                make=lambda context: FooterSource(self, context),
                engine="arrow",
                cost="waits",
                phase="open",
                buffer_items=OPEN_FILES,
                facts=lambda: ("footers, one call a file",),
            ),
            KernelSpec(
                operator=self.operator,
                kind="serial",
                make=lambda context: SplitPlanner(self, may_match, context),
                facts=lambda: ("order of splits", *self._pruned(may_match)),
            ),
            KernelSpec(
                operator=self.operator,
                kind="reader",
                phase="decode",
                where=self._where,
                make=lambda context: SplitReader(self),
                engine="arrow",
                max_calls=self.num_parallel_calls,
                floor_bytes=self._floor_bytes(names),
                facts=lambda: (f"decode of {len(names)} columns, one call a split",),
            ),
        )

    def _where(self, origin: Origin) -> tuple[str, int]:
        """Returns file and row group of a split."""
        number, index = divmod(origin.split, MAX_SPLITS_PER_FILE)
        return self.files[number].path, index

    def _floor_bytes(self, names: Sequence[str]) -> int:
        """Returns what decoding the first file's largest split takes."""
        assert self.first is not None
        if not self.first.splits:
            return 0
        largest = max(self.first.splits, key=lambda split: split.num_bytes)
        sizes = (self.file_format.column_bytes, self.file_format.scratch_bytes)
        return sum(size(self.first, largest, names) for size in sizes)

    def may_match(self) -> MayMatch | None:
        """Returns what tells whether a split can hold a match; None where nothing can be told."""
        tests = [prunable(predicate, self._all_columns()) for predicate in self.predicates]
        known = [test for test in tests if test is not None]
        if not known:
            return None
        return lambda statistics, num_rows: not any(test(statistics, num_rows) for test in known)

    def _pruned(self, may_match: MayMatch | None) -> tuple[str, ...]:
        if may_match is None or self.first is None:
            return ()
        splits = self.first.splits
        pruned = sum(self.file_format.prune(self.first, split, may_match) for split in splits)
        return (f"statistics prune {pruned} of {len(splits)} splits of the first file",)


class FooterSource(SourceKernel):
    """Reads footers in the order in which the files are wanted; the position is (block of files,)."""

    def __init__(self, node: Read, context: Context) -> None:
        self._node = node
        self._block_files = 1 if node.order is None else OPEN_FILES
        self._order = node.order
        self._context = context

    def tasks(self, position: Position) -> Iterator[Task]:
        """Yields one task a file, from the first one of a block on."""
        files = len(self._node.files)
        order = (
            range(files)
            if self._order is None
            else permuted(files, self._order, FILE_ORDER, self._context.epoch)
        )
        first = 0 if position is None else position[0] * self._block_files
        for place in range(first, files):
            yield Task(int(order[place]), Origin(place), FOOTER_BYTES)

    def read(self, task: Task) -> Iterator[Made]:
        """Yields the footer, once it is found to have the pipeline's schema."""
        node = self._node
        assert node.store is not None
        footer = node.file_format.footer(node.store, node.files[task.payload])
        match(node._all_columns(), footer, widen=node.target is not None, operator=node.operator)
        yield Made(OpenFile(task.payload, footer), None)


class OpenFile(NamedTuple):
    """A file whose footer is known."""

    number: int
    footer: Footer

    @property
    def num_rows(self) -> int:
        """Never 0, so that it counts as a chunk even without rows."""
        return 1


class SplitTask(NamedTuple):
    """A split to read.

    Attributes:
        footer: Its file's.
        split: The split.
        start: First row to deliver.
        stop: Row to stop before.
        base: Position at the split's start: (block, splits of it done, 0, rows counted before).
    """

    footer: Footer
    split: Split
    start: int
    stop: int
    base: tuple[int, int, int, int]

    @property
    def num_rows(self) -> int:
        """Rows that it will deliver."""
        return self.stop - self.start

    def position(self, row: int) -> Position:
        """Returns the position after `row` rows of the split."""
        block, done, _, counted = self.base
        if row < self.stop:
            return (block, done, row, counted)
        return (block, done + 1, 0, counted + self.split.num_rows)


class SplitPlanner(SerialKernel):
    """Decides which splits are read, in which order."""

    def __init__(self, node: Read, may_match: MayMatch | None, context: Context) -> None:
        self._node = node
        self._may_match = may_match
        self._context = context
        self._block_files = 1 if node.order is None else OPEN_FILES
        self._files: list[OpenFile] = []
        self._block = self._first_split = self._first_row = self._counted = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Restores the block of files; splits of it that are done are counted again but not read."""
        if position is None:
            return None
        self._block, self._first_split, self._first_row, self._counted = position
        return (self._block,)

    def push(self, item: Item) -> Iterator[Item]:
        """Yields the splits of a block once all its footers are there."""
        self._files.append(item.chunk)
        seen = self._block * self._block_files + len(self._files)
        if len(self._files) == self._block_files or seen == len(self._node.files):
            files, self._files = self._files, []
            yield from self._plan(files)
            self._block += 1

    def _plan(self, files: list[OpenFile]) -> Iterator[Item]:
        start, stop = self._node.rows
        format = self._node.file_format
        splits = self._ordered(files)
        first_split, first_row = self._first_split, self._first_row
        self._first_split = self._first_row = 0
        for done in range(first_split, len(splits)):
            number, footer, split = splits[done]
            if stop is not None and self._counted >= stop:
                break
            base = (self._block, done, 0, self._counted)
            begin = max(start - self._counted, first_row if done == first_split else 0, 0)
            end = split.num_rows if stop is None else min(split.num_rows, stop - self._counted)
            self._counted += split.num_rows
            pruned = self._may_match is not None and format.prune(footer, split, self._may_match)
            if begin < end and not pruned:
                origin = Origin(number * MAX_SPLITS_PER_FILE + split.index)
                yield Item(SplitTask(footer, split, begin, end, base), None, (), origin)
        self.done = stop is not None and self._counted >= stop

    def _ordered(self, files: list[OpenFile]) -> list[tuple[int, Footer, Split]]:
        order = self._node.order
        if order is None:
            return [(file.number, file.footer, split) for file in files for split in file.footer.splits]
        queues = []
        for file in files:
            splits = file.footer.splits
            places = permuted(len(splits), order, SPLIT_ORDER, self._context.epoch, file.number)
            queues.append([(file.number, file.footer, splits[place]) for place in places])
        return [
            queue[turn]
            for turn in range(max(map(len, queues), default=0))
            for queue in queues
            if turn < len(queue)
        ]


class SplitReader(ReaderKernel):
    """Decodes splits."""

    def __init__(self, node: Read) -> None:
        self._node = node
        self._format = node.file_format
        assert node.schema is not None
        self._names = node.schema.names

    def num_bytes(self, payload: SplitTask) -> int:
        """Returns output and scratch of the wanted columns."""
        output = self._format.column_bytes(payload.footer, payload.split, self._names)
        return output + self._format.scratch_bytes(payload.footer, payload.split, self._names)

    def read(self, payload: SplitTask) -> Iterator[Made]:
        """Yields the split's rows: one chunk, or a few where offsets would overflow."""
        node = self._node
        assert node.store is not None and node.schema is not None
        row = payload.start
        for chunk in self._format.read(
            node.store, payload.footer, payload.split, node.schema, payload.start, node.stored
        ):
            if row + chunk.num_rows > payload.stop:
                chunk = chunk.slice(0, payload.stop - row)
            row += chunk.num_rows
            yield Made(chunk, payload.position(row), row >= payload.stop)
            if row >= payload.stop:
                return


def permuted(count: int, order: SourceOrder, purpose: int, epoch: int, *more: int) -> Sequence[int]:
    """Returns a permutation of `range(count)` for one purpose of a source order."""
    places: list[int] = permutation(
        count, (order.seed, purpose, epoch if order.reshuffle else 0, *more)
    ).tolist()
    return places

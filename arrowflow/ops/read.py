"""`read_parquet`, `read_ipc`: files, split by split.

Kernels in a row (see `splits.py`), so that footers, planning, waiting and decoding overlap:

1. a source of **footers**, one task a file, a few files ahead;
2. a serial **planner**, which turns footers into descriptors of splits: it counts rows, so that `skip` and `take`
   cost nothing for what they leave out; prunes splits that provably hold no match; and, where a `shuffle` above
   orders the source, draws splits from a few open files in turn;
3. of files that are not local, a **fetcher**: it waits for the bytes of one split a call, which takes no core, so that
   any number of splits may be on their way while decoding stays within the CPU budget;
4. a **reader**, which decodes one split a call, a local file's from the file itself; column operators above run in the
   same call.

A split's number is (its file's place in sorted order, its number in the file), whatever is pruned or permuted.
The position is (block of files, splits of it done, rows of the next split done, rows counted before it).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.expr import Expr, prunable
from arrowflow.formats import find, parquet_polars
from arrowflow.formats.format import Footer, Format, MayMatch, Split, match
from arrowflow.ops.base import KernelSpec, Operator, Origin
from arrowflow.ops.splits import (
    MAX_SPLITS_PER_FILE,
    OPEN_FILES,
    FooterSource,
    SplitFetcher,
    SplitPlanner,
    SplitReader,
    total_bytes,
)
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import BindContext, Node, SourceOrder
from arrowflow.plan.traits import Borders, Traits
from arrowflow.records import dataclass
from arrowflow.storage import File, Store, coalesce, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Operator):
    """The rows of files, in sorted order of paths, or as a `shuffle` above orders them.

    Memory: one split a call with its decode scratch, and a few chunks ahead; of files that are not local, the stored
    bytes of a few splits, too. Deterministic. Resume: seeks to the split.

    Attributes:
        format: Name in `arrowflow.formats.FORMATS`.
        paths: What the user named.
        filesystem: Where to look, or None to tell by the paths.
        target: The `schema=` that files are widened to, or None for the first file's.
        num_parallel_calls: Splits decoded at the same time, and splits fetched, or None for as many as is best.
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
            known = 0 if self.first is None else len(self.all_columns())
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
        schema = self.all_columns()
        if self.columns is None:
            return schema
        return pa.schema([schema.field(name) for name in schema.names if name in self.columns])

    def all_columns(self) -> pa.Schema:
        """Returns what there is to read, whatever of it is wanted."""
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
        """Returns the source of footers, the planner, the fetcher where there is anything to fetch, and the reader."""
        assert self.schema is not None and self.store is not None
        names = self.schema.names
        may_match = self.may_match()
        return (
            KernelSpec(
                operator=self.operator,
                kind="source",
                make=lambda context: FooterSource(self, context),
                engine="arrow",
                cost="computes" if self.store.is_local else "waits",
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
            *(() if self.store.is_local else (self._fetch_spec(names),)),
            KernelSpec(
                operator=self.operator,
                kind="reader",
                phase="decode",
                where=self._where,
                make=lambda context: SplitReader(self, options.cpu_budget),
                engine=self._engine(options),
                max_calls=self.num_parallel_calls,
                floor_bytes=self._decoded_bytes(names),
                facts=lambda: (f"decode of {len(names)} columns, one call a split",),
            ),
        )

    def _engine(self, options: ResolvedOptions) -> str:
        """Returns whose pools may decode."""
        assert self.store is not None
        polars = self.format == "parquet" and self.store.is_local and parquet_polars.fits(options.cpu_budget)
        return "arrow+polars" if polars else "arrow"

    def _fetch_spec(self, names: Sequence[str]) -> KernelSpec:
        assert self.store is not None
        return KernelSpec(
            operator=self.operator,
            kind="reader",
            phase="read",
            where=self._where,
            make=lambda context: SplitFetcher(self),
            engine="python" if self.store.is_python else "arrow",
            cost="waits",
            max_calls=self.num_parallel_calls,
            floor_bytes=self._fetched_bytes(names),
            facts=lambda: (f"fetch of {len(names)} columns, one call a split",),
        )

    def _where(self, origin: Origin) -> tuple[str, int]:
        """Returns file and row group of a split."""
        number, index = divmod(origin.split, MAX_SPLITS_PER_FILE)
        return self.files[number].path, index

    def _largest(self) -> Split | None:
        assert self.first is not None
        return max(self.first.splits, key=lambda split: split.num_bytes, default=None)

    def _fetched_bytes(self, names: Sequence[str]) -> int:
        """Returns the stored bytes of the first file's largest split."""
        split = self._largest()
        if self.first is None or split is None:
            return 0
        return total_bytes(self.first, coalesce(self.file_format.ranges(self.first, split, names)))

    def _decoded_bytes(self, names: Sequence[str]) -> int:
        """Returns what decoding the first file's largest split takes."""
        split = self._largest()
        if self.first is None or split is None:
            return 0
        sizes = (self.file_format.column_bytes, self.file_format.scratch_bytes)
        return sum(size(self.first, split, names) for size in sizes)

    def may_match(self) -> MayMatch | None:
        """Returns what tells whether a split can hold a match; None where nothing can be told."""
        tests = [prunable(predicate, self.all_columns()) for predicate in self.predicates]
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

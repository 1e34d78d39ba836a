"""`read`, and the functions for one format each such as `read_parquet`: files, split by split.

Four kernels in a row let footers, planning, waiting and decoding overlap (the first two are in `splits.py`, the others in
`split_readers.py`):

1. a source of **footers**, a few files ahead: one large file a task, or up to 16 small ones;
2. a serial **planner**, which turns footers into descriptors of splits. It counts rows, so that rows left out by `skip`
   and `take` cost nothing. It prunes splits that provably hold no match. If a later `shuffle` orders the source, it
   draws splits from a few open files in turn. It joins small splits that follow each other to a run (see `runs.py`);
3. for files that are not local, a **fetcher**. It waits for the bytes of one split a call, which takes no core. So any
   number of splits may be on their way while decoding stays within the CPU budget;
4. a **reader**, which decodes one run a call, or one piece of a large split. Each split is a chunk of its own, with its
   own position, whatever run it was in. Column operators right after the source run in the same call.

A split's number is (its file's place in sorted order, its number in the file), whatever is pruned or permuted.
The position is (block of files, its splits that are done, rows of the next split done, rows counted before it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final

import pyarrow as pa

from arrowflow.errors import PlanError, SchemaError
from arrowflow.formats import arguments, match
from arrowflow.formats.capabilities import (
    Hints,
    InPlaceFormat,
    SiftingFormat,
    StoredDecimals,
    StructFields,
    Untyped,
    all_columns,
    first_footer,
    with_fields_only,
)
from arrowflow.formats.protocol import check_repeated
from arrowflow.kernels.kept import KeptChunks
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.sources.files.file_identity import files_added, files_identity
from arrowflow.ops.sources.files.file_rows import FileRows
from arrowflow.ops.sources.files.file_scan import FileScan
from arrowflow.ops.sources.files.partitions import described, discover, merged, traced, without
from arrowflow.ops.sources.files.read_kernels import kernels_of
from arrowflow.ops.sources.files.split_tasks import ReadPosition
from arrowflow.options import ResolvedOptions
from arrowflow.plan.access import RowAccess, SourceOrder
from arrowflow.plan.change import Change, Changeable
from arrowflow.plan.file_source import FileSource
from arrowflow.plan.lane import InLanes, Lane, Obstacle, too_few
from arrowflow.plan.node import BindContext, Count, Node
from arrowflow.plan.shape import checked
from arrowflow.plan.traits import Borders, Traits
from arrowflow.storage import Contents, Requests, lists_anew, resolve, shown_paths

_COPIES_KEPT: Final = (
    "later epochs get copies of the chunks that are kept in memory, since batches own their memory; "
    "Options(keep=False) keeps none"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(FileScan, FileSource, Changeable, InLanes, RowAccess):
    """The rows of files, in sorted order of paths, or as a `shuffle` after it orders them.

    Memory: one split a call with its decode scratch, and a few chunks ahead; for files that are not local, also the
    stored bytes of a few splits. Deterministic. Resume: seeks to the split.
    """

    name: ClassVar[str] = "read"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE)

    def arguments(self) -> Mapping[str, Any]:
        """Returns the format and, once bound, a digest of the files by relative path and size."""
        sources = [[file.relative, file.size] for file in self.files]
        own = {**arguments(self.format), **described(self.partitions), **self.policy.arguments()}
        if self.missing_columns != "error":
            own["missing_columns"] = self.missing_columns
        return {"format": self.format.name, **own, "files": len(sources), "sources": sources}

    def change_since(self, arguments: Mapping[str, Any]) -> Change | None:
        """Accepts files that come after those of the state."""
        return files_added(self.arguments(), arguments)

    def identity(self) -> dict[str, Any]:
        """Returns the parts of the files to read, and the files' identity; the names that users gave are left out."""
        assert self.store is not None
        own = {**Operator.identity(self), **files_identity(self.store, self.files), "schema": self.schema}
        own["folders"] = self.partitions and (self.partitions.values, self.partitions.numbers)
        del own["paths"], own["filesystem"], own["missing_columns"], own["arguments"]["sources"]
        return own

    def describe(self) -> str:
        by = f" of {self.format.name}" if self.operator == self.name else ""
        by += "" if self.partitions is None else f" by {', '.join(self.partitions.names)}"
        parts = [(f"{len(self.files)} files" if self.bound else shown_paths(self.paths)) + by]
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
        """Lists the files and reads the first file's footer, whose types all files are read by."""
        format, target, policy = self.format, self.target, self.policy.within(context.options)
        store, files = resolve(
            self.paths,
            filesystem=self.filesystem,
            suffixes=format.suffixes,
            operator=self.operator,
            requests=Requests.of(context.options, context.services),
        )
        if self.memory_map is not None:
            store = replace(store, memory_map=self.memory_map)
        folders = discover(files, partitioning=self.partitioning, target=target, operator=self.operator)
        if target is not None:
            target = without(target, folders)
        if isinstance(format, Untyped) and target is not None:
            format = format.typed(target)
        first = first_footer(self.operator, format, store, files)
        if target is None:
            check_repeated(format, first, self.operator, self.picks)
        if folders is not None:
            is_auto = self.partitioning == "auto"
            if is_auto and folders.held(format, store, first, self.operator) == folders.names:
                return replace(self, partitioning=None).bind(inputs, context)
            folders.check(format, store, first, self.operator)
        if not merged(first.schema, folders).names and self.missing_columns == "error":
            raise SchemaError(
                "the file has no columns, and rows without columns cannot be counted; pass schema= with those to "
                "read, or leave the file out"
            ).locate(operator=self.operator, file=first.file.path)
        of_all = None
        if target is None and self.missing_columns == "null":
            of_all = all_columns(self.operator, format, store, first, files)
        if isinstance(format, Untyped) and target is None:
            format = format.typed(of_all or first.schema, is_inferred=True)
        bound = replace(
            self,
            format=format,
            policy=policy,
            store=store,
            files=files,
            partitions=folders,
            first=first,
            columns_of_all=of_all,
            counts=FileRows(self.operator, format, store, files, policy),
            hints=Hints(),
        )
        if target is not None:
            match(target, first, widen=True, operator=self.operator)
        return bound.on()

    @property
    def stored_schema(self) -> pa.Schema | None:
        """The schema of the first file as it has it."""
        return None if self.first is None else self.first.stored

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        """Returns the columns to read of the first file's schema, or of `target`; before it is bound, all of `target`."""
        if self.first is None:
            return self.target
        schema = with_fields_only(self.all_columns(), self.fields)
        if self.columns is None:
            return schema
        wanted = frozenset(self.columns)
        return pa.schema([field for field in schema if field.name in wanted])

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns the rows of all footers: reads each file's footer, but nothing else. This does not find bad rows."""
        return None if self.policy.leaves_out else self._num_rows()

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """A lane without a single row would end before the others; reads all footers only if the first one leaves doubt."""
        assert self.first is not None
        if self.policy.leaves_out or self.first.num_rows < lanes or self.rows != (0, None):
            return too_few(self.operator, self._num_rows(), lanes, times)
        return None

    def in_lane(self, lane: Lane) -> Node:
        return replace(self, lane=lane)

    def position_behind(self, rows: int, epoch: int | None = None) -> tuple[ReadPosition, int] | None:
        """Returns the position of a row that is left, if it is known which are; the order may be an epoch's own."""
        if epoch is None or self.policy.leaves_out:
            return None
        assert self.counts is not None
        number = rows if self.lane is None else rows + self._dealt(self.lane, epoch)[0]
        if self.kept is None:
            number += self.rows[0]
        elif number < self.kept.num_rows:
            number = self.counts.row_of(number, self.kept, self.order, epoch)
        else:
            number = self._num_rows()
        return self.counts.position(number, self.order, epoch), rows

    def with_row_range(self, start: int, stop: int | None) -> Node | None:
        """Counts rows by footers; an ordered source has no first rows, and which of them are bad is not known."""
        if self.order is not None or self.policy.leaves_out:
            return None
        first, before = self.rows
        ends = [end for end in (before, None if stop is None else first + stop) if end is not None]
        return replace(self, rows=(first + start, min(ends, default=None))).on()

    def with_predicates(self, predicates: tuple[Any, ...]) -> Node:
        """Prunes splits by predicates."""
        return replace(self, predicates=self.predicates + predicates)

    def with_stored(self, columns: frozenset[str]) -> Node | None:
        """Accepts the columns if files of the format may store decimals as integers."""
        return replace(self, stored=columns).on() if isinstance(self.format, StoredDecimals) else None

    def with_provenance(self, names: tuple[str, str, str]) -> Node:
        """Adds the columns to those that folders give; both read nothing."""
        assert self.store is not None and self.first is not None
        folders = traced(self.partitions, self.files, names, self.target)
        folders.check(self.format, self.store, self.first, self.operator)
        return replace(self, partitions=folders).on()

    def with_struct_fields(self, fields: Mapping[str, frozenset[str]]) -> Node | None:
        """Reads of structs only these fields; types that a user gives are those of whole structs."""
        if self.target is not None or not isinstance(self.format, StructFields):
            return None
        return replace(self, fields=fields, format=self.format.with_struct_fields(fields)).on()

    def narrow(self, wanted: frozenset[str]) -> Node:
        """Reads only the wanted columns; all of them where they tell which single rows are bad."""
        if self.schema is None or (self.policy.leaves_out and isinstance(self.format, SiftingFormat)):
            return self
        names = tuple(name for name in self.schema.names if name in wanted)
        return self if len(names) == len(self.schema) else replace(self, columns=names).on()

    def with_source_order(self, order: SourceOrder) -> Node:
        return replace(self, order=order)

    def random_access(self) -> Node | None:
        """Rows of mapped files can be gathered where they lie."""
        format = self.format
        if not isinstance(format, InPlaceFormat):
            return None
        if self.policy.leaves_out:
            raise PlanError(
                f"{self.operator}: a shuffle of all rows finds each row by its number, and which rows are bad is not known; "
                "put `.cache()` before the shuffle, or read with on_error='raise'"
            )
        assert self.store is not None and self.first is not None
        format.check_in_place(self.store, self.first)
        return replace(self, in_place=True)

    def changed_file(self) -> str | None:
        return next((file.path for file in self.files if file.is_changed), None)

    def keeping(self, asked_bytes: int | None, *, copies: bool, only_dear: bool) -> Node:
        """Keeps chunks, unless files are mapped, or rows are left out, which each epoch has to count."""
        format = self.format
        assert self.store is not None and self.first is not None
        mapped = isinstance(format, InPlaceFormat) and format.is_mapped(self.store, self.first)
        if mapped or self.policy.leaves_out:
            return self
        rows = self.first.num_rows * sum(file.size for file in self.files) // max(self.first.file.size, 1)
        kept = KeptChunks(
            asked_bytes, copies=copies, source_rows=rows, is_local=self.store.is_local, only_dear=only_dear
        )
        return replace(self, keeps=kept)

    def local_files(self) -> Sequence[str]:
        return [file.path for file in self.files if file.is_local]

    def contents(self) -> Sequence[Any]:
        """Returns how many files there are, and digests of some of their bytes; nothing where that takes requests."""
        found = self._contents(len(self.files))
        return () if found is None else (len(self.files), *found)

    def changed_contents(self, then: Sequence[Any]) -> str | None:
        """Compares as many files as the state had."""
        count, *kept = checked([*then, ""][:4], tuple[Annotated[int, 1], str, str, str], "contents")
        now = self._contents(count)
        return None if now is None else now.change_since(Contents(*kept), self.files[:count])

    def files_since(self, then: Sequence[Any]) -> str | None:
        """Compares all files, by the digests of their contents."""
        count, *kept = checked([*then, ""][:4], tuple[Annotated[int, 1], str, str, str], "contents")
        now = self._contents(len(self.files))
        return None if now is None else now.files_since(Contents(*kept), count, self.files)

    def _contents(self, count: int) -> Contents | None:
        assert self.store is not None
        return Contents.of(self.store, self.files[:count])

    @property
    def is_current(self) -> bool:
        options = {"filesystem": self.filesystem, "suffixes": self.format.suffixes, "operator": self.operator}
        return not lists_anew(self.paths, self.files, store=self.store, **options)

    def copies(self) -> tuple[str, ...]:
        """Returns why files of a format that can be mapped are not."""
        format = self.format
        copies_kept = self.keeps is not None and self.keeps.copies
        kept = (f"{self.operator}: {_COPIES_KEPT}",) if copies_kept else ()
        if not isinstance(format, InPlaceFormat) or self.first is None:
            return kept
        assert self.store is not None
        if format.is_mapped(self.store, self.first):
            return kept
        return (
            *kept,
            f"{self.operator}: compressed, or not on a local disk: decoded into new memory",
        )

    def owns_buffers(self, inputs: Sequence[bool]) -> bool:
        """Decoded memory is new, and each batch has a private map of its file; rows found in place share one map."""
        return not self.in_place

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return kernels_of(self, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead(Read):
    """The rows of a version of a table, as of `Read`, in the order of the paths of the files that its log names.

    Attributes:
        table: The folder of the table, its URL, or the path of its metadata.
        version: The version to read; None until bound for the latest, and for a table that has none.
        client: Arguments of the client that reads the log.
    """

    version_name: ClassVar[str] = "version"

    table: str
    version: int | None = None
    client: Mapping[str, str] | None = field(default=None, hash=False, compare=False, repr=False)

    @property
    def operator(self) -> str:
        return self.name

    def describe(self) -> str:
        version = "" if self.version is None else f"{self.version_name} {self.version}"
        if not self.bound:
            return f"{self.name}({'; '.join(filter(None, (repr(self.table), version)))})"
        return Read.describe(self).replace("(", f"({version}; ", 1)

    def arguments(self) -> Mapping[str, Any]:
        """Returns also the version, so that a state of another one is refused."""
        return {self.version_name: self.version, **Read.arguments(self)}

    def identity(self) -> dict[str, Any]:
        found = Read.identity(self)
        del found["table"]
        return found

    def of_files(
        self, context: BindContext, version: int | None, paths: Sequence[str], schema: pa.Schema
    ) -> Any:
        """Returns what `Read` binds of these files, whose columns have these types."""
        named = replace(self, version=version, paths=list(paths), partitioning=None, target=schema)
        return Read.bind(named, (), context)

"""`read_files`: whole files as rows, their paths, bytes, and perhaps the folder that they lie in.

Four decisions matter.

* **The listing is the footer.** It has the names and the sizes of all files, so rows, splits and the bytes of each call
  are known before a file is opened, and a row is found by its number. So `shuffle()` without a size reads the files in
  any order, one by one, and holds none of them.
* **A split is up to 64 files, or 4 MiB of them**, in the order of the epoch. A call reads a split into one buffer, which is
  the column: files are copied once, from the system. Over a network a call makes its requests beside each other.
* **A window of `shuffle(n)` is filled with files from everywhere**: the source permutes single files by (seed, epoch).
* **A label is the first folder below what the user named**, as PyTorch's and Keras' folders of images have it. The folders'
  sorted names are an enum, so that the codes are the classes.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any, ClassVar, Final, Self

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError, SourceError, closest
from arrowflow.formats.protocol import check_unchanged, reading, split_borders
from arrowflow.interchange.binary import Memory, binary_column
from arrowflow.interchange.enums import as_enum
from arrowflow.kernels.context import Context
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.order.source_order import Block, permuted
from arrowflow.ops.order.spans import Places
from arrowflow.ops.sources.dealt import NumberedKernel, NumberedRows
from arrowflow.ops.sources.files.splits import store_in_run
from arrowflow.ops.sources.list_files import ListFiles
from arrowflow.options import ResolvedOptions
from arrowflow.plan.access import SourceOrder
from arrowflow.plan.node import BindContext, Node
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits
from arrowflow.random import FILE_ORDER
from arrowflow.storage import File, Store
from arrowflow.types import convert, enum_field

SPLIT_FILES: Final = 64
"""The most files of a split: 1 to 3 ms of reading, beside which the 0.1 ms of a call are little."""

SPLIT_BYTES: Final = 4 << 20
"""Bytes of a split: it ends before the file that goes beyond them, but has at least one file."""

MAX_FILE_BYTES: Final = (1 << 31) - 1 - SPLIT_BYTES
"""The largest file: the offsets of a binary column end at 2 GiB."""

IMAGE_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFiles(ListFiles):
    """The contents of files, one file a row: `path`, `bytes`, and perhaps `label`.

    Row order: as the paths are given; those of a directory or a glob are sorted; before a `shuffle` of a size permuted by
    (seed, epoch). Memory: the files of one split a call. Deterministic. Resume: seeks to the split, (files before it,).

    Attributes:
        labels: Whether there is a column `label`, of folders; or the names of all labels.
        max_bytes: The most bytes of a file.
        num_parallel_calls: Splits read at the same time; None for the best number.
        columns: Names of the columns to read. Set by a rule; None for all.
        order: The order that a later `shuffle` wants of the files.
        in_place: Whether a global `shuffle` after it reads the files.
        label_names: Bound: the names of all labels.
        codes: Bound: the number of each file's label.
    """

    name: ClassVar[str] = "read_files"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, new_memory=True)
    bytes_column: ClassVar[str] = "bytes"

    labels: bool | tuple[str, ...] = False
    max_bytes: int = MAX_FILE_BYTES
    num_parallel_calls: int | None = None
    columns: tuple[str, ...] | None = None
    order: SourceOrder | None = None
    in_place: bool = False
    label_names: tuple[str, ...] = field(default=(), compare=False, repr=False)
    codes: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def arguments(self) -> Mapping[str, Any]:
        """Returns, once bound, a digest of the files, and the labels that the codes stand for."""
        labels = {"labels": list(self.label_names)} if self.labels else {}
        return {**ListFiles.arguments(self), **labels}

    def identity(self) -> dict[str, Any]:
        """Returns also the labels, whose numbers a cache keeps."""
        return {**ListFiles.identity(self), "labels": self.label_names}

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        bound: Any = ListFiles.bind(self, inputs, context)
        for file in bound.files:
            if file.size > self.max_bytes:
                raise SourceError(
                    f"the file has {file.size:,} bytes, and max_bytes is {self.max_bytes:,}; leave it out of the paths, "
                    "or give a larger max_bytes= (a value of a column has less than 2 GiB)"
                ).locate(operator=self.name, file=file.path)
        if self.labels:
            folders = [_folder(self.name, file) for file in bound.files]
            labels = self.labels if isinstance(self.labels, tuple) else sorted(set(folders))
            numbers = {label: number for number, label in enumerate(labels)}
            for folder, file in zip(folders, bound.files, strict=True):
                if folder not in numbers:
                    raise SourceError(
                        f"the file lies in the folder {folder!r}, which labels= does not name; {closest(folder, labels, kind='labels')}"
                    ).locate(operator=self.name, file=file.path)
            codes = tuple(map(numbers.__getitem__, folders))
            bound = dataclasses.replace(bound, label_names=tuple(numbers), codes=codes)
        return bound.on()

    def all_columns(self) -> pa.Schema:
        """Returns all columns, wanted or not."""
        fields = [pa.field("path", pa.string()), pa.field(self.bytes_column, pa.binary())]
        return pa.schema([*fields, enum_field("label", self.label_names)] if self.labels else fields)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        schema = self.all_columns()
        if self.columns is None:
            return schema
        return pa.schema([each for each in schema if each.name in self.columns])

    def narrow(self, wanted: frozenset[str]) -> Node:
        """Leaves columns out; without its contents a file is not opened."""
        names = tuple(name for name in self.all_columns().names if name in wanted)
        return dataclasses.replace(self, columns=names).on()

    def with_source_order(self, order: SourceOrder) -> Node:
        return dataclasses.replace(self, order=order)

    def random_access(self) -> Node:
        """A file is found by its number. Over a network each call of a `shuffle()` would wait for its files."""
        assert self.store is not None
        if not self.store.is_local:
            raise PlanError(
                f"shuffle: without buffer_size it reads the files of {self.name} one by one, which have to be local; use "
                "shuffle(buffer_size), which permutes the files, too"
            )
        return dataclasses.replace(self, in_place=True)

    def part(self, first: int, before: int) -> Self:
        return self.taking(range(len(self.files))[first:before])

    def of_epoch(self, epoch: int) -> Self:
        node = self
        if self.order is not None:
            node = self.taking(permuted(len(self.files), self.order, FILE_ORDER, epoch))
        return ListFiles.of_epoch(node, epoch)

    def taking(self, numbers: Sequence[int]) -> Self:
        """Returns the source of these files, in this order."""
        return dataclasses.replace(
            self,
            files=tuple(self.files[number] for number in numbers),
            names=tuple(self.names[number] for number in numbers),
            codes=tuple(self.codes[number] for number in numbers) if self.codes else (),
        )

    def position_behind(self, rows: int, epoch: int | None = None) -> tuple[tuple[int], int] | None:
        """Returns the position of the split with this row; a `shuffle` after it gives each epoch an order of its own."""
        if self.in_place or (epoch is None and (self.order is not None or self.lane is not None)):
            return None
        starts = split_starts(self.of_epoch(epoch or 0).files)
        start = starts[max(0, bisect_right(starts, rows) - 1)]
        return (start,), start

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        assert self.store is not None
        return KernelSpec(
            "source",
            lambda context: self.of_epoch(context.epoch).kernel(context),
            position=Shape(tuple[int]),
            phase="read",
            engine="python",
            cost="unknown" if self.store.is_local else "waits",
            connections=self.store.connections,
            max_calls=self.num_parallel_calls,
            facts=f"one call for up to {SPLIT_FILES} files",
        )

    def kernel(self, context: Context) -> NumberedKernel:
        """Returns the kernel of these files."""
        rows = FileContents(self, store_in_run(self.store, context))
        return NumberedKernel(rows, self._splits, in_place=self.in_place, by_rows=True)

    def _splits(self) -> Iterator[Block]:
        borders = pairwise([*split_starts(self.files), len(self.files)])
        return (Block(split, split, *files) for split, files in enumerate(borders))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImages(ReadFiles):
    """As `ReadFiles`, of files that are called as images are."""

    name: ClassVar[str] = "read_images"
    bytes_column: ClassVar[str] = "image"
    suffixes: ClassVar[tuple[str, ...]] = IMAGE_SUFFIXES


@dataclass(frozen=True, slots=True)
class FileContents(NumberedRows):
    """Files that are read when a reader asks for them.

    Attributes:
        node: The files of an epoch, in its order.
        store: The file system, as the run reads it.
    """

    node: ReadFiles
    store: Store

    @property
    def num_rows(self) -> int:
        return len(self.node.files)

    @property
    def num_bytes(self) -> int:
        node = self.node
        reads = node.bytes_column in self._schema.names
        return sum(map(len, node.names)) + 12 * self.num_rows + (sum(map(_size, node.files)) if reads else 0)

    def slice(self, offset: int, length: int | None = None) -> FileContents:
        stop = self.num_rows if length is None else offset + length
        return FileContents(self.node.part(offset, stop), self.store)

    def gather(self, places: Places) -> pa.RecordBatch:
        return FileContents(self.node.taking(places.tolist()), self.store).everything()

    def everything(self) -> pa.RecordBatch:
        node, columns = self.node, []
        for each in self._schema:
            if each.name == "path":
                columns.append(convert(pl.Series(node.names, dtype=pl.String).to_arrow(), pa.string()))
            elif each.name == node.bytes_column:
                columns.append(self._read())
            else:
                columns.append(as_enum(pl.Series(node.codes, dtype=pl.UInt32).to_arrow(), each))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    @property
    def _schema(self) -> pa.Schema:
        assert self.node.schema is not None
        return self.node.schema

    def _read(self) -> pa.Array:
        files = self.node.files
        column, memory = binary_column([file.size for file in files])
        self.store.together([partial(self._read_file, *each) for each in zip(files, memory, strict=True)])
        return column

    def _read_file(self, file: File, memory: Memory) -> None:
        with reading(self.node.name, file):
            self.store.read_into(file, memory)
            check_unchanged(file)


def split_starts(files: Sequence[File]) -> list[int]:
    """Returns the number of the first file of each split.

    Examples:
        >>> split_starts([File("a", "a", 3 << 20), File("b", "b", 2 << 20), File("c", "c", 9 << 20)])
        [0, 1, 2]
    """
    sizes = np.array(list(map(_size, files)), np.int64)
    ends = np.cumsum(sizes)
    return split_borders(ends - sizes, ends, max_count=SPLIT_FILES, max_bytes=SPLIT_BYTES)[:-1]


_size = attrgetter("size")


def _folder(operator: str, file: File) -> str:
    """Returns the name of the first folder below what the user named."""
    folder, slash, _ = file.path[file.start or 0 :].lstrip("/").partition("/")
    if file.start is None or not slash:
        raise SourceError(
            "the file lies in no folder below the named one, so there is no label for it; name the folder that holds a "
            "folder a label, or pass labels=None"
        ).locate(operator=operator, file=file.path)
    return folder

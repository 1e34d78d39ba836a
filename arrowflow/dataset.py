"""`Dataset`: the fluent interface. Each method builds one node, nothing else."""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import call
from os import PathLike
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NoReturn,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import polars as pl
import pyarrow as pa

from arrowflow import run
from arrowflow.clock import WallClock
from arrowflow.cluster.engine import RayEngine
from arrowflow.delivery import EpochCounter, PassStart, RecordBatches
from arrowflow.errors import ArrowflowError, DataError, PlanError, counted, printable, shown
from arrowflow.executor.processes.wire import check_portable
from arrowflow.expr.run.foreign import empty_batch
from arrowflow.features import fit as fitting
from arrowflow.features.feature_statistics import FeatureStatistics
from arrowflow.features.parts import add_part, batch_rows, part_of, part_schema
from arrowflow.interchange.dtypes import dtype_named
from arrowflow.interrupts import interruptions
from arrowflow.iterator import Iterator as Run
from arrowflow.kernels.gather import joined_batch
from arrowflow.loaders.base import HandOver, Loader, MakeExport
from arrowflow.loaders.dlpack import DlpackExport
from arrowflow.loaders.export_request import ExportRequest, export_request
from arrowflow.loaders.jax import JaxExport
from arrowflow.loaders.numpy import NumpyExport
from arrowflow.loaders.polars import PolarsExport
from arrowflow.loaders.shared_epochs import SharedEpochs
from arrowflow.loaders.tf import TfExport, tf_dataset
from arrowflow.loaders.torch import TorchExport, torch_dtype
from arrowflow.loaders.torch_memory import CudaExport, MpsExport, PinnedExport, device_named
from arrowflow.observe.diagram import diagram
from arrowflow.observe.glance import glance
from arrowflow.observe.guessed_names import OF_DATASET, no_attribute
from arrowflow.observe.progress import ProgressBar
from arrowflow.ops.batches.batch import Batch
from arrowflow.ops.batches.bucket_by_sequence_length import DEFAULT_MAX_LAG_ROWS, bucketed
from arrowflow.ops.batches.group_by_window import GroupByWindow
from arrowflow.ops.batches.pack_sequences import Numbers, Overlong, PackSequences, Strategy
from arrowflow.ops.batches.padded_batch import padded_batch
from arrowflow.ops.batches.unbatch import Unbatch
from arrowflow.ops.batches.window import Window
from arrowflow.ops.cache.cache import Cache
from arrowflow.ops.cache.cached import cached
from arrowflow.ops.cache.disk_cache import DiskCache
from arrowflow.ops.columns.cast import Cast
from arrowflow.ops.columns.column_program import as_given, chosen_columns
from arrowflow.ops.columns.decode_image import DecodeImage
from arrowflow.ops.columns.drop import Drop
from arrowflow.ops.columns.fill_null import FillNull
from arrowflow.ops.columns.filter import Filter
from arrowflow.ops.columns.join import Join
from arrowflow.ops.columns.rename import Rename
from arrowflow.ops.columns.select import Select
from arrowflow.ops.columns.stack import Stack
from arrowflow.ops.columns.with_columns import WithColumns
from arrowflow.ops.combine.concatenate import Concatenate
from arrowflow.ops.combine.flat_map import FlatMap
from arrowflow.ops.combine.interleave import Interleave
from arrowflow.ops.combine.rejection_resample import RejectionResample
from arrowflow.ops.functions.function import check_function, function_name
from arrowflow.ops.functions.invocation import (
    BatchFormat,
    FunctionExecutor,
    MappingOperator,
    check_format,
)
from arrowflow.ops.functions.map import Map
from arrowflow.ops.functions.map_rows import MapRows
from arrowflow.ops.functions.reduce import Reduce, fold_batches
from arrowflow.ops.order.sample import Sample
from arrowflow.ops.order.shuffle import Shuffle
from arrowflow.ops.ranks.split_by_rank import How, SplitByRank
from arrowflow.ops.ranks.steps import EqualSteps
from arrowflow.ops.ranks.whole import ShareOfBatches
from arrowflow.ops.rows.assert_cardinality import AssertCardinality
from arrowflow.ops.rows.enumerate import Enumerate
from arrowflow.ops.rows.explode import Explode
from arrowflow.ops.rows.prefetch import Prefetch
from arrowflow.ops.rows.repeat import Repeat
from arrowflow.ops.rows.scan import Scan
from arrowflow.ops.rows.shard import Shard
from arrowflow.ops.rows.skip import Skip
from arrowflow.ops.rows.split import Split
from arrowflow.ops.rows.take import Take
from arrowflow.ops.rows.take_while import TakeWhile
from arrowflow.ops.rows.unique import Unique
from arrowflow.ops.rows.with_options import WithOptions
from arrowflow.ops.sources.files.file_scan import rows_of_one_split
from arrowflow.ops.sources.files.read import Read
from arrowflow.ops.sources.files.row_counts import RowCounts
from arrowflow.ops.sources.files.with_provenance import WithProvenance
from arrowflow.ops.sources.from_arrow import from_arrow
from arrowflow.ops.sources.from_memory import FromMemory, from_batches
from arrowflow.options import AUTOTUNE, OnError, Options, check_flag, check_size, with_arguments
from arrowflow.physical.stage import render_chain
from arrowflow.plan.foresight import fault_of, note_bound
from arrowflow.plan.node import Count, Node
from arrowflow.plan.walk import post_order, render_plan, rewritten
from arrowflow.write import (
    CSV,
    IPC,
    JSON,
    PARQUET,
    TFRECORD,
    WEBDATASET,
    Writer,
    Written,
    with_metadata,
    writer_of,
)

if TYPE_CHECKING:
    import jax
    import numpy.typing as npt
    import pyarrow.compute as pc
    import ray.data
    import tensorflow as tf
    import torch

    Expression: TypeAlias = pl.Expr | pc.Expression

_LOGGER: Final = logging.getLogger("arrowflow")
"""Has the whole traceback of an error in a plan, at the level DEBUG. The error itself ends in the user's own call."""

T = TypeVar("T")
_Arrays: TypeAlias = Literal["dense", "padded"]
_Ragged: TypeAlias = Literal["ragged"]
_Lists: TypeAlias = Literal["dense", "ragged", "padded"]
_Columns: TypeAlias = "Sequence[str | pl.Expr] | pl.Expr | None"


class ExportArguments(TypedDict, total=False):
    """The arguments that all loaders of arrays have, and that do not change the type of a batch."""

    columns: _Columns
    dtypes: Any
    null: Any
    strict_zero_copy: bool


class LoaderArguments(ExportArguments, total=False):
    """The arguments of loaders that iterate themselves."""

    engine: RayEngine | None


class TorchArguments(LoaderArguments, total=False):
    """The arguments of `to_torch`."""

    pin_memory: bool
    device: torch.device | str | None


class JaxArguments(LoaderArguments, total=False):
    """The arguments of `to_jax`."""

    sharding: jax.sharding.Sharding | None


_USUAL: Final = {
    "columns": None,
    "dtypes": None,
    "null": "error",
    "strict_zero_copy": False,
    "engine": None,
    "pin_memory": False,
    "device": None,
    "sharding": None,
}
"""The values of these arguments where they are not given."""


class Dataset:
    """An immutable, lazy, picklable plan for an ordered stream of rows, carried in record batches.

    Each method returns a new dataset. A dataset reads nothing before somebody asks for its schema or its rows. Then
    its plan is *bound*: files are listed, schemas are read, and names of columns are checked. An unknown column is an
    error in the very call that names it, if the names are known there without reading: after a source in memory, after
    `schema=`, and once a dataset has been asked or run.

    A dataset remembers one thing: how many epochs (0, 1, …) were counted. An iterator counts as an epoch once it has
    delivered its second batch, or has ended: a look counts nothing. A loader counts for itself, from the dataset's count
    when the loader was made. So a loader that is made anew in each turn of a loop gets the next order. Everything else
    that reads runs epoch 0 and does not count: `to_table`, `to_reader`, `__arrow_c_stream__`, `reduce`, `write_parquet`,
    `write_ipc`.

    Files on local disks are listed anew when a run begins or a question is asked (`schema`, `num_rows`, `len` of a
    loader). So replaced, added and removed files are noticed, also when a `cache` follows the source. Listings of
    other file systems stay until a run meets a changed file.

    Examples:
        >>> import arrowflow as af
        >>> import polars as pl
        >>> ds = af.range(10).filter(pl.col("id") % 2 == 0).with_columns(square=pl.col("id") ** 2).batch(3)
        >>> for batch in ds.to_numpy():
        ...     print(batch["square"].tolist())
        [0, 4, 16]
        [36, 64]
    """

    __slots__ = ("__weakref__", "_epochs", "_on_engine", "_plan", "_prepared")

    def __init__(self, plan: Node) -> None:
        fault = fault_of(plan)
        if fault is not None:
            __tracebackhide__ = True  # pytest and IPython then end a traceback in the user's call
            _LOGGER.debug("a plan cannot run as it is written", exc_info=fault)
            raise fault.with_traceback(None) from fault.__cause__
        self._plan = plan
        self._epochs = EpochCounter()
        self._prepared: run.Prepared | None = None
        self._on_engine: tuple[RayEngine, Dataset] | None = None

    def __reduce__(self) -> tuple[type[Dataset], tuple[Node]]:
        return Dataset, (self._plan,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dataset) and self._plan == other._plan

    def __hash__(self) -> int:
        return hash((Dataset, self._plan.name))

    if not TYPE_CHECKING:  # for type checkers a wrong name stays an error

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property has failed, and tells its own error
                return object.__getattribute__(self, name)
            raise no_attribute(self, "a dataset", name, OF_DATASET)

    def __repr__(self) -> str:
        lines = ["Dataset", *("  " + line for line in render_plan(self._plan))]
        foreseen, prepared = self._plan.foreseen, self._at_hand()
        if prepared is not None:
            lines += _shown_count(*prepared.known_count)
        if prepared is not None and prepared.bound.schema is not None:
            columns = [f"  {field.name}: {field.type}" for field in prepared.bound.schema]
        else:
            columns = [] if foreseen is None else [f"  {name}" for name in foreseen.names]
        if columns:
            lines += ["columns", *columns[:MOST_COLUMNS]]
        if len(columns) > MOST_COLUMNS:
            lines.append(f"  … and {len(columns) - MOST_COLUMNS:,} more: `schema` has all")
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        foreseen, prepared, schema, about = self._plan.foreseen, self._at_hand(), None, []
        if prepared is not None:
            schema, about = (
                prepared.bound.schema,
                [" ".join(" ".join(_shown_count(*prepared.known_count)).split())],
            )
        columns = [(name, "") for name in ([] if foreseen is None else foreseen.names)]
        if schema is not None:
            columns = [(field.name, str(field.type)) for field in schema]
        return glance(
            self.diagram(), about, columns, None if prepared is None else self._first_rows(prepared)
        )

    def _at_hand(self) -> run.Prepared | None:
        """Returns the plan for `repr`: prepared if it was, or if nothing but footers of local files has to be read for it."""
        elsewhere = (DiskCache, ShareOfBatches, SplitByRank)  # they look at a cache, or at all files
        looked_at = [
            node for node in post_order(self._plan) if not node.inputs or isinstance(node, elsewhere)
        ]
        if all(_is_here(node) for node in looked_at):
            with suppress(ArrowflowError):  # told where the dataset is used
                prepared = self._ready()
                reads = [node for node in post_order(prepared.bound) if isinstance(node, Read)]
                if sum(len(node.files) for node in reads) <= MOST_FOOTERS:
                    prepared.num_rows  # noqa: B018  (known from now on)
        return self._prepared

    def _first_rows(self, prepared: run.Prepared) -> pa.Table | None:
        """Returns the first five rows, or all where there are fewer.

        None where more than one row group would have to be read for them, a function called, or a bad row left out.
        """
        plan = self._plan
        while isinstance(plan, Batch | Prefetch):
            (plan,) = plan.inputs
        source, *operators = post_order(plan)
        if not _is_here(source) or not all(isinstance(node, (*_ROW_BY_ROW, Filter)) for node in operators):
            return None
        with suppress(ArrowflowError):
            bound, is_all = next(post_order(prepared.optimised)), True
            if isinstance(bound, Read) and bound.policy.leaves_out:
                return None  # a look would tell of bad rows, and `skip` counts those that are left
            if any(isinstance(node, Filter) for node in operators):
                rows, is_all = _rows_to_filter(bound)
                plan = rewritten(plan, partial(_within, source, rows))
            found = Dataset(plan).with_options(Options(progress=False)).take(5).to_table()
            return found if is_all or found.num_rows == 5 else None
        return None

    def _ready(self, *, without_last_select: bool = False) -> run.Prepared:
        """Prepares the plan for a run or a question; prepares it again if its files have changed."""
        with interruptions():
            if self._prepared is None or not self._prepared.is_current:
                try:
                    self._prepared = run.prepare(self._plan, without_last_select=without_last_select)
                except ArrowflowError as error:
                    __tracebackhide__ = True
                    _LOGGER.debug("a plan cannot be bound", exc_info=True)
                    raise error.with_traceback(None) from error.__cause__
                note_bound(self._plan, self._prepared.bound)
        return self._prepared

    def _ready_to_pick(self) -> run.Prepared:
        """Prepares the plan for a loader, which picks the columns of the plan's last `select` itself."""
        return self._ready(without_last_select=True)

    # ------------------------------------------------------------------------------------------ columns

    def select(
        self, *exprs: Expression | str | Sequence[Expression | str], **named: Expression | str
    ) -> Dataset:
        """Keeps only these columns, in this order.

        Args:
            *exprs: Names, expressions of Polars or of `pyarrow.compute`, selectors, or lists of them.
            **named: Expressions under new names.

        Raises:
            PlanError: An argument is no element-wise expression; or, once the plan is bound, a column is unknown.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> af.range(3).select("id", twice=pl.col("id") * 2).to_table().to_pydict()
            {'id': [0, 1, 2], 'twice': [0, 2, 4]}
        """
        return Dataset(Select.of(self._plan, exprs, named))

    def with_columns(
        self, *exprs: Expression | str | Sequence[Expression | str], **named: Expression | str | float
    ) -> Dataset:
        """Adds columns, or replaces columns in their places.

        All expressions see the columns of the input. An expression has to be element-wise, since a chunk is not the
        whole column: `x - x.mean()` is refused. The engine that an expression is written for, Polars or pyarrow,
        defines its result.

        Raises:
            PlanError: An argument is no element-wise expression; or, once the plan is bound, a column is unknown.

        Examples:
            >>> import arrowflow as af, polars as pl, pyarrow.compute as pc
            >>> ds = af.range(3).with_columns(half=pl.col("id") / 2, big=pc.field("id") > pc.scalar(1))
            >>> ds.to_table().to_pydict()
            {'id': [0, 1, 2], 'half': [0.0, 0.5, 1.0], 'big': [False, False, True]}
        """
        return Dataset(WithColumns.of(self._plan, exprs, named))

    def drop(self, *columns: str | pl.Expr | Sequence[str | pl.Expr]) -> Dataset:
        """Leaves columns out, given by names or by selectors of Polars.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> af.range(2).with_columns(x=pl.col("id") + 1).drop("id").schema.names
            ['x']
        """
        return Dataset(Drop.of(self._plan, columns))

    def rename(self, mapping: Mapping[str, str]) -> Dataset:
        """Renames columns, which stay in their places.

        Examples:
            >>> import arrowflow as af
            >>> af.range(2).rename({"id": "row"}).schema.names
            ['row']
        """
        return Dataset(Rename.of(self._plan, mapping))

    def cast(self, types: Mapping[Any, Any]) -> Dataset:
        """Changes the types of columns, given as types of pyarrow or of Polars, by name or selector.

        A value that the new type cannot hold raises a `DataError` when the run reaches it. Floats are rounded, and
        become infinite where they are too large for the new type, as in Polars and pyarrow. `pl.Enum` makes a column of
        codes, which has a dictionary type.

        Examples:
            >>> import arrowflow as af, pyarrow as pa
            >>> af.range(2).cast({"id": pa.float32()}).schema.field("id").type
            DataType(float)
        """
        return Dataset(Cast.of(self._plan, types))

    def fill_null(self, value: Any) -> Dataset:
        """Replaces nulls by a value.

        A single value fills all columns that can hold it. A mapping from names or selectors to values fills these
        columns only.

        Examples:
            >>> import arrowflow as af, pyarrow as pa
            >>> table = pa.table({"x": pa.array([1.0, None]), "s": ["a", None]})
            >>> af.from_arrow(table).fill_null(0).to_table().to_pydict()
            {'x': [1.0, 0.0], 's': ['a', None]}
            >>> af.from_arrow(table).fill_null({"s": "?"}).to_table().to_pydict()
            {'x': [1.0, None], 's': ['a', '?']}
        """
        return Dataset(FillNull.of(self._plan, value))

    def decode_image(
        self,
        column: str,
        size: int | tuple[int, int],
        *,
        mode: Literal["RGB", "L"] = "RGB",
        resize: Literal["nearest", "bilinear", "bicubic", "area", "lanczos"] = "bilinear",
        crop: Literal["centre", "random"] | None = None,
        flip: bool = False,
        area: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        seed: int | None = None,
        num_parallel_calls: int = AUTOTUNE,
        on_error: OnError | None = None,
        quarantine: str | PathLike[str] | None = None,
    ) -> Dataset:
        """Decodes a column of JPEG, PNG, WebP, BMP or TIFF images into pixels, `(height, width, channels)` of uint8.

        OpenCV (extra `images`) decodes on the pipeline's threads, without the interpreter lock, and shrinks a large JPEG
        while it decodes. EXIF orientation is applied. Null stays null. Loaders hand the column out as `(B, H, W, C)`.
        Where nothing is drawn, later epochs take pixels from memory, as far as `Options.keep` allows.

        Shuffle and filter before this operator, while images are still small.

        Args:
            column: The name of a column of binary, such as `image` of `af.read_images`.
            size: Height and width in pixels, or one number for both.
            mode: `"RGB"`, three channels; or `"L"`, one channel of grey.
            resize: The interpolation. `"area"` averages, and is best where images become much smaller.
            crop: The part of an image that is resized to `size`. None takes all of it, and may change its shape. `"centre"`
                takes the largest part in the middle that has the shape of `size`. `"random"` takes a random part, as
                `RandomResizedCrop` of torchvision.
            flip: Whether a random half of the images is mirrored left to right.
            area: For `crop="random"`: the least and the most share of the image that the part has.
            ratio: For `crop="random"`: the least and the most width of the part, in parts of its height.
            seed: The seed of random parts and flips. Each epoch draws anew; the draws do not depend on threads, or on
                where a run was resumed. By default a seed follows from `Options.seed` and the place in the plan.
            num_parallel_calls: Pieces that are decoded at the same time.
            on_error: The treatment of images that cannot be decoded: `"raise"`, `"skip"` leaves the row out, `"quarantine"`
                also writes it to a folder, as for `map`.
            quarantine: The folder for them, as in `map`.

        Raises:
            SchemaError: The column is no binary.
            DataError: The bytes are no image, are cut short, or announce more than 256 million pixels.
            PlanError: An argument makes no sense.
            MissingPackageError: OpenCV is not installed.

        Examples:
            >>> import arrowflow as af, cv2, numpy as np, pyarrow as pa
            >>> encoded = cv2.imencode(".png", np.full((20, 30, 3), 255, np.uint8))[1].tobytes()
            >>> images = af.from_arrow(pa.table({"image": [encoded, encoded]})).decode_image("image", (8, 12))
            >>> next(iter(images.batch(2).to_numpy()))["image"].shape
            (2, 8, 12, 3)
        """
        return Dataset(
            DecodeImage.of(
                self._plan,
                column,
                size,
                mode=mode,
                resize=resize,
                crop=crop,
                flip=flip,
                area=area,
                ratio=ratio,
                seed=seed,
                num_parallel_calls=num_parallel_calls,
                on_error=on_error,
                quarantine=quarantine,
            )
        )

    def stack(self, *, dtype: Any = None, **groups: pl.Expr | Sequence[str | pl.Expr]) -> Dataset:
        """Joins columns into one `fixed_size_list` column, which loaders hand out as `(B, n)`.

        The new column replaces its inputs. Stack before `shuffle`: one tensor column is gathered ten times as fast as
        its parts.

        Args:
            dtype: Type that all inputs are cast to; needed where their types differ.
            **groups: Names of the new columns, each with the columns that make it up: names, or selectors of Polars such
                as `cs.starts_with("f")`, which pick columns in the order of the schema.

        Raises:
            PlanError: Types differ and `dtype` is not given; or, once the plan is bound, a column is unknown.
            DataError: An input has nulls, which the run finds when it reaches them; call `fill_null` first.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> ds = af.range(2).with_columns(x=pl.col("id") * 10).stack(both=["id", "x"])
            >>> ds.to_table().to_pydict()
            {'both': [[0, 0], [1, 10]]}
        """
        return Dataset(Stack.of(self._plan, groups, dtype))

    # --------------------------------------------------------------------------------------------- rows

    def join(
        self,
        table: Any,
        on: str | Sequence[str],
        *,
        how: Literal["left", "inner"] = "left",
        unique: bool = True,
    ) -> Dataset:
        """Looks up rows of a table in memory by a key, and appends the other columns of the table.

        The rows keep their order. By default each row gives one row, so positions, splits and batches stay as they are. A
        key with a null matches nothing, as in Polars and SQL; NaN equals NaN, and -0.0 0.0. Put it before small batches:
        then one call looks many rows up.

        Memory: the table and an index of 28 to 52 bytes a row (up to 65,536 rows at most 1 MiB more), charged to
        `Options.ram_budget`; 20 more with `unique=False`. Only columns that are needed are looked up. Many columns are fast as
        one list of fixed size, such as an embedding.

        Args:
            table: Anything that `af.from_arrow` takes: a `pyarrow.Table`, a Polars frame, or another dataset. What is not in memory
                yet is read here, once. The table has to be finite.
            on: The columns of the key, which have the same names and types in both.
            how: The treatment of rows whose key the table lacks. "left" keeps them, with null in the new columns; "inner"
                leaves them out.
            unique: Whether each key comes once in the table; a key that comes twice is then an error. With False a row
                comes once for each match, in the order of the table.

        Raises:
            PlanError: A column is unknown, or is in both; or the operator comes after `batch` and changes the number of
                rows.
            SchemaError: A key has another type in the table.
            DataError: A key comes twice in the table; in `next()`.
            BudgetError: The table and its index take more than the budget; when the dataset is iterated.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> users = pl.DataFrame({"user": [7, 8], "age": [31, 64]})
            >>> clicks = af.from_arrow(pl.DataFrame({"user": [8, 7, 9]}))
            >>> clicks.join(users, on="user").to_table().to_pydict()
            {'user': [8, 7, 9], 'age': [64, 31, None]}
        """
        return Dataset(Join.of(self._plan, _in_memory(table), on, how=how, unique=unique))

    def filter(
        self,
        *predicates: Expression | Callable[..., Any],
        format: BatchFormat = "arrow",
        columns: _Columns = None,
        num_parallel_calls: int = AUTOTUNE,
        on_error: OnError | None = None,
        quarantine: str | PathLike[str] | None = None,
    ) -> Dataset:
        """Keeps the rows for which every predicate is true; a null does not count as true.

        Expressions directly after a file source also spare reading: row groups that provably hold no match are
        skipped. A function is opaque, like that of `map`: it sees pieces of splits, and the optimizer moves nothing
        across it.

        Args:
            *predicates: Expressions, or one function that gets a record batch and returns one boolean per row. The
                booleans come as an array of NumPy or pyarrow, or as a Polars Series. A class is used as in `map`.
            format: Type of the function's argument, as in `map`.
            columns: The columns that the function reads; it sees no others.
            num_parallel_calls: Calls of the function at the same time; 1 means one at a time, in order.
            on_error: The treatment of the rows of a call that fails, as in `map`.
            quarantine: The folder for them, as in `map`.

        Raises:
            PlanError: `filter` comes after `batch`; or expressions and functions are mixed, which takes two calls of
                `filter`.
            FunctionError: The function raised, or did not return one boolean per row; in `next()`, in order.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> af.range(10).filter(pl.col("id") > 7).to_table().to_pydict()
            {'id': [8, 9]}
            >>> af.range(10).filter(lambda batch: batch["id"] % 4 == 1, format="numpy").to_table().to_pydict()
            {'id': [1, 5, 9]}
        """
        return Dataset(
            Filter.of(
                self._plan,
                predicates,
                format=format,
                columns=columns,
                num_parallel_calls=num_parallel_calls,
                on_error=on_error,
                quarantine=quarantine,
            )
        )

    def map(
        self,
        fn: Callable[..., Any],
        *,
        format: BatchFormat = "arrow",
        columns: _Columns = None,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        seed: int | None = None,
        epoch: bool = False,
        num_parallel_calls: int = AUTOTUNE,
        executor: FunctionExecutor = "thread",
        keeps_rows: bool = False,
        on_error: OnError | None = None,
        quarantine: str | PathLike[str] | None = None,
    ) -> Dataset:
        """Calls a function on record batches; the function returns record batches with any number of rows.

        Before `batch`, the function sees pieces: each split (row group, shuffle window, …) is cut every 65,536 rows and every
        4 MiB of a column. Before a `batch` or `shuffle` it gets as many rows as that takes, but at least 128, where it reads
        bytes, and at least 1,024 where it reads texts or lists. An epoch begins with smaller pieces. `Options` has
        `max_chunk_rows` and `max_chunk_bytes` for other ones. After `batch`, the function sees exactly the batches. Several
        threads call the function, so it has to be pure.

        Args:
            fn: Gets a record batch and returns one, in the type that `format` names. Returned memory that `fn` could
                write again, such as an array that it keeps, is copied. Of a class, as many instances are made as calls
                run at once, and called: the place for things that are costly to load. Each instance has a thread of its
                own, on which it is made and called, so that it may hold what belongs to one thread, such as a connection
                of `sqlite3`. `functools.partial` gives the class arguments. An instance belongs to one operator and lives
                for one iteration over the dataset. So each epoch makes new instances, but the repetitions of a later
                `repeat` share them. If an instance has a method `close`, that is called on its thread when the iteration
                ends, also by an error; an exception of `close` is a `RuntimeWarning`.
            format: `"arrow"`: `pyarrow.RecordBatch`. `"numpy"`: dicts of arrays. Returned arrays of shape `(n, …)`
                become nested `fixed_size_list`, or `fixed_shape_tensor` where `schema` says so. `"polars"`: data
                frames.
            columns: The columns that `fn` reads; it sees no others, and others are not read from files.
            schema: Schema of the returned batches, whose columns may then come in any order. Without a schema the
                first chunk decides types and order, and `Dataset.schema` is unknown.
            seed: Makes the call `fn(batch, rng)`. The generator depends on (seed, operator, epoch, split, piece)
                alone.
            epoch: Makes the call `fn(batch, epoch)`, or `fn(batch, rng, epoch)`, with the number of the epoch: 0, 1, … So a
                curriculum resumes and `set_epoch` moves it. Before a cache the number is always 0.
            num_parallel_calls: Calls at the same time; 1 means one at a time, in order.
            executor: `"process"` calls `fn` in worker processes, with the same values in the same order. It is for
                functions in pure Python, which hold the interpreter lock and take more than a millisecond or so.
                Functions that wait are better off in threads. Batches go there and back through shared memory, with
                one copy each way. `cloudpickle` packs `fn` when an iteration begins. Definitions of a script or a
                notebook go by value, and no `if __name__ == "__main__"` is needed. `fn` finds the environment,
                working directory and `sys.path` of that time; its output is seen. Each call takes a core of the CPU
                budget and computes with one thread. Workers take one to three seconds to the first batch, and are kept for 10 seconds for
                the next iteration. Meanwhile a module that `fn` imports is not read again.
            keeps_rows: Declares that `fn` returns as many rows as it gets, which is checked. So `num_rows`, `len()` and
                the total of a progress bar stay known.
            on_error: The treatment of calls that fail, or return another table than declared. `"raise"` ends the run.
                `"skip"` leaves out all rows of the call, a piece or a batch; `map_rows` leaves out single rows. They are
                counted in `stats()` and `explain()`, and a line of the logger `arrowflow` says so at the end.
                `"quarantine"` also writes them to a folder. By default `Options.on_error` decides. A crash of a worker
                process, and a class that cannot be instantiated, always raise.
            quarantine: The folder, or its URL, for `on_error="quarantine"`; `af.read_quarantine` reads it.

        Raises:
            PlanError: With `executor="process"`, `fn` cannot be pickled.
            FunctionError: `fn` raised, or returned something other than `format` and `keeps_rows` ask for; in `next()`,
                in order.
            WorkerError: A worker process was killed or crashed in a call, or cannot load `fn`; in `next()`, in order.
            SchemaError: `fn` returned other columns or types than declared or than before.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> ds = af.range(3).map(lambda x: {"y": x["id"] + 0.5}, format="numpy")
            >>> ds.to_table().to_pydict()
            {'y': [0.5, 1.5, 2.5]}
            >>> class Lookup:
            ...     def __init__(self):
            ...         self.names = pl.DataFrame({"id": [0, 1, 2], "name": ["a", "b", "c"]})
            ...     def __call__(self, frame):
            ...         return frame.join(self.names, on="id", how="left", maintain_order="left")
            >>> af.range(3).map(Lookup, format="polars").to_table()["name"].to_pylist()
            ['a', 'b', 'c']
        """
        node = Map.of(
            self._plan,
            fn,
            format=format,
            columns=columns,
            schema=schema,
            seed=seed,
            epoch=epoch,
            num_parallel_calls=num_parallel_calls,
            executor=executor,
            on_error=on_error,
            quarantine=quarantine,
            keeps_rows=check_flag("map", "keeps_rows", keeps_rows),
        )
        return Dataset(_portable(node))

    def map_rows(
        self,
        fn: Callable[..., Any],
        *,
        columns: _Columns = None,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        seed: int | None = None,
        epoch: bool = False,
        num_parallel_calls: int = AUTOTUNE,
        executor: FunctionExecutor = "thread",
        on_error: OnError | None = None,
        quarantine: str | PathLike[str] | None = None,
    ) -> Dataset:
        """Calls a function on single rows. Slow: `map` takes many rows per call and is some hundred times as fast.

        Rows are made into Python objects and back while the interpreter lock is held. So more calls at the same time
        hardly help, except with `executor="process"`. Use `map_rows` to try things out, and for libraries that know
        only single rows. Pieces are cut as for `map`.

        Args:
            fn: Gets a row as a dict of Python values and returns another dict, or a tuple of the columns that `schema`
                names. A class is used as in `map`.
            columns: The columns that `fn` reads; it sees no others, and others are not read from files.
            schema: Schema of the returned rows. Without a schema the first piece decides, and `Dataset.schema` is
                unknown.
            seed: Makes the call `fn(row, rng)`, with a generator that the rows of a piece use one after the other.
            epoch: Makes the call `fn(row, epoch)`, or `fn(row, rng, epoch)`, with the number of the epoch: 0, 1, … So a
                curriculum resumes and `set_epoch` moves it. Before a cache the number is always 0.
            num_parallel_calls: Pieces that are worked on at the same time; 1 means one row at a time, in order.
            executor: `"process"` works on pieces in worker processes, as for `map`: several times as fast on as many
                cores.
            on_error: The treatment of rows for which `fn` fails, or returns values of other types than `schema`. `"raise"`
                delivers the rows before it, and raises. `"skip"` leaves the row out, and `"quarantine"` also writes it
                to a folder, as for `map`. Without `schema`, values of a wrong type cannot be told from right ones, and
                raise.
            quarantine: The folder for them, as in `map`.

        Raises:
            PlanError: With `executor="process"`, `fn` cannot be pickled.
            WorkerError: A worker process was killed or crashed, or cannot load `fn`; in `next()`, in order.
            FunctionError: `fn` raised, or returned no dict or other keys than before; in `next()`, in order.
            SchemaError: `fn` returned values of other types than declared or than before.
            DataError: A column that `fn` reads holds nanoseconds, which Python's dates and times cannot hold; `cast`
                the column.

        Examples:
            >>> import arrowflow as af
            >>> af.range(3).map_rows(lambda row: {"text": f"row {row['id']}"}).to_table().to_pydict()
            {'text': ['row 0', 'row 1', 'row 2']}
            >>> af.range(4).map_rows(lambda row: {"y": 6 // row["id"]}, on_error="skip").to_table()["y"].to_pylist()
            [6, 3, 2]
            >>> af.range(3).map_rows(lambda row: {"y": 2 ** row["id"]}, executor="process").to_table()["y"].to_pylist()
            [1, 2, 4]
        """
        node = MapRows.of(
            self._plan,
            fn,
            columns=columns,
            schema=schema,
            seed=seed,
            epoch=epoch,
            num_parallel_calls=num_parallel_calls,
            executor=executor,
            on_error=on_error,
            quarantine=quarantine,
        )
        return Dataset(_portable(node))

    def flat_map(
        self, fn: Callable[[dict[str, Any]], Dataset], *, num_parallel_calls: int = AUTOTUNE
    ) -> Dataset:
        """Calls a function for each row, and yields the rows of the returned datasets, one dataset after the other.

        `flat_map` is for things that are opened, like files: each row costs a call and a plan. To make several rows
        of one row, use `map`, which may return more rows than it gets. `flat_map` is `interleave` with one dataset at
        a time.

        Args:
            fn: Gets a row as a dict and returns a dataset that is not in batches. Several threads call `fn`, once per
                row, and again for the open dataset after a resume. The dataset is read later, where its memory lies.
                If `fn` refills an array, give the dataset a copy of the array.
            num_parallel_calls: Calls of `fn` at the same time. With 1 no dataset begins before the last one has
                ended. By default the next dataset begins early, and reads ahead.

        Raises:
            PlanError: `flat_map` comes after `batch`.
            FunctionError: `fn` raised, returned no dataset, or returned a dataset in batches; in `next()`, in order.
            SchemaError: A dataset has other columns or types than the first dataset.

        Examples:
            >>> import arrowflow as af
            >>> af.range(4).flat_map(lambda row: af.range(row["id"])).to_table()["id"].to_pylist()
            [0, 0, 1, 0, 1, 2]
        """
        return Dataset(FlatMap.of(self._plan, fn, _plan_of, num_parallel_calls=num_parallel_calls))

    def scan(
        self,
        initial_state: Any,
        fn: Callable[..., Any],
        *,
        format: BatchFormat = "arrow",
        columns: _Columns = None,
        schema: pa.Schema | Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Calls a function that carries a state from one record batch to the next, one call at a time, in order.

        The function sees the pieces that `map` sees, so its result does not depend on how files are read. After
        `batch`, the function sees exactly the batches. Each epoch begins with `initial_state`. The state is JSON and
        part of `state_dict()`. The function gets the state as it comes back from JSON, so the function may change it.
        With `Options.deterministic=False` pieces come in any order.

        Args:
            initial_state: Dicts with texts as keys, lists, texts, finite numbers, booleans and None: at most 32 KiB.
                All operators together keep at most 60 KiB in a state, else `state_dict` raises `StateError`.
            fn: Gets the state and a record batch, and returns the next state and a record batch with any number of
                rows.
            format: Type of the batches that `fn` gets and returns, as in `map`.
            columns: The columns that `fn` reads; it sees no others, and others are not read from files.
            schema: Schema of the returned batches. Without a schema the first chunk decides, and `Dataset.schema` is
                unknown.

        Raises:
            PlanError: `initial_state` is not JSON, or too large.
            FunctionError: `fn` raised, or returned something other than a JSON state and a batch.
            SchemaError: `fn` returned other columns or types than declared or than before.

        Examples:
            >>> import arrowflow as af
            >>> def running(total, arrays):
            ...     sums = total + arrays["id"].cumsum()
            ...     return int(sums[-1]), {"sum": sums}
            >>> af.range(6).batch(4).scan(0, running, format="numpy").to_table().to_pydict()
            {'sum': [0, 1, 3, 6, 10, 15]}
        """
        return Dataset(Scan.of(self._plan, initial_state, fn, format=format, columns=columns, schema=schema))

    def take(self, count: int) -> Dataset:
        """Keeps the first `count` rows.

        Raises:
            PlanError: `take` comes after `batch`, where `count` could mean rows or batches.

        Examples:
            >>> import arrowflow as af
            >>> af.range(10).take(2).to_table().to_pydict()
            {'id': [0, 1]}
        """
        return Dataset(Take.of(self._plan, count))

    def assert_cardinality(self, count: int | RowCounts | str | os.PathLike[str]) -> Dataset:
        """Declares that there are `count` rows, which is checked while they pass.

        So `num_rows`, `len()` and the total of a progress bar are known after operators whose rows only a run counts.

        Args:
            count: How many rows there are; or what `af.count_rows` returned or saved, which `split_by_rank` needs.

        Raises:
            PlanError: `assert_cardinality` comes after `batch`; the counts are of another pipeline, or cannot be read.
            DataError: There are more rows, or fewer; in `next()`, in order.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> even = af.range(10).filter(pl.col("id") % 2 == 0)
            >>> even.num_rows, even.assert_cardinality(5).num_rows
            (None, 5)
        """
        return Dataset(AssertCardinality.of(self._plan, count))

    def take_while(
        self,
        predicate: Expression | Callable[..., Any],
        *,
        format: BatchFormat = "arrow",
        columns: Sequence[str] | None = None,
    ) -> Dataset:
        """Keeps the rows before the first one for which the predicate is not true; a null does not count as true.

        Rows keep their order, and nothing is held. Nothing is read after that row, so endless datasets end there. A
        function is called one piece at a time, in order. It sees all rows of the piece in which the end lies.

        Args:
            predicate: An expression, or a function that gets a record batch and returns one boolean per row, as that
                of `filter`.
            format: Type of the function's argument, as in `map`.
            columns: The columns that the function reads; it sees no others.

        Raises:
            PlanError: `take_while` comes after `batch`, or the expression is no boolean.
            FunctionError: The function raised, or did not return one boolean per row; in `next()`, in order.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> af.range(10).take_while(pl.col("id") != 2).to_table().to_pydict()
            {'id': [0, 1]}
            >>> endless = af.range(3).repeat().enumerate()
            >>> endless.take_while(lambda batch: batch["index"] < 5, format="numpy").to_table()["id"].to_pylist()
            [0, 1, 2, 0, 1]
        """
        return Dataset(TakeWhile.of(self._plan, predicate, format=format, columns=columns))

    def skip(self, count: int) -> Dataset:
        """Leaves the first `count` rows out.

        Raises:
            PlanError: `skip` comes after `batch`, where `count` could mean rows or batches.

        Examples:
            >>> import arrowflow as af
            >>> af.range(4).skip(2).to_table().to_pydict()
            {'id': [2, 3]}
        """
        return Dataset(Skip.of(self._plan, count))

    def split(self, fractions: Sequence[float], *, seed: int = 0) -> tuple[Dataset, ...]:
        """Returns disjoint datasets, which together have all rows: each row falls into one of them by a random draw.

        The draw depends on `seed` and on the number of the row alone. So the parts are the same in every epoch and
        every run; their sizes are near the fractions, not exact. A `shuffle` after `split` permutes rows but not files;
        to shuffle files too, write the parts, or keep them in folders.

        Args:
            fractions: The shares of the rows, which sum to 1.
            seed: The seed of the draws.

        Raises:
            PlanError: The fractions make no sense, `split` comes after `batch`, or an operator before it orders rows
                anew in each epoch, may do so (`flat_map`, `interleave`), or repeats rows. A `cache` between fixes the
                order.

        Examples:
            >>> import arrowflow as af
            >>> train, validation = af.range(1000).split([0.9, 0.1], seed=7)
            >>> train.num_rows, validation.num_rows
            (904, 96)
        """
        return tuple(map(Dataset, Split.of(self._plan, fractions, seed)))

    def enumerate(self, start: int = 0, *, name: str = "index") -> Dataset:
        """Puts a column in front that numbers the rows of the epoch, as int64.

        A state holds the number of counted rows, so a resumed run goes on with the next number.

        Args:
            start: Number of the first row.
            name: Name of the new column.

        Raises:
            PlanError: `enumerate` comes after `batch`; or, once the plan is bound, the input has a column of that
                name.
            DataError: A number does not fit int64; in `next()`.

        Examples:
            >>> import arrowflow as af
            >>> af.from_numpy({"x": [0.5, 1.5]}).enumerate(start=1).to_table().to_pydict()
            {'index': [1, 2], 'x': [0.5, 1.5]}
        """
        return Dataset(Enumerate.of(self._plan, start, name))

    def with_provenance(self, file: str = "file", row_group: str = "row_group", row: str = "row") -> Dataset:
        """Adds the path, the row group and the row that each row came from. It comes right after a source of files.

        The columns are a string, an int32 and an int64: `pq.ParquetFile(file).read_row_group(row_group)` has the row under
        its number. Other formats have their own parts in place of row groups. The columns go with the rows through all
        operators that keep columns. Columns that nothing uses cost nothing. A filter by `file` opens no other file.

        Args:
            file: Name of the column for the path.
            row_group: Name of the column for the number of the row group in the file.
            row: Name of the column for the number of the row in the row group.

        Raises:
            PlanError: It comes after another operator; or, once the plan is bound, a name is taken.
            SchemaError: A file has a column of that name.

        Examples:
            >>> import arrowflow as af, pathlib, tempfile
            >>> folder = pathlib.Path(tempfile.mkdtemp())
            >>> _ = af.range(4).write_parquet(folder)
            >>> rows = af.read_parquet(folder).with_provenance().shuffle(4, seed=2).to_table()
            >>> rows.select(["id", "row_group", "row"]).to_pylist()[0]
            {'id': 2, 'row_group': 0, 'row': 2}
        """
        return Dataset(WithProvenance.of(self._plan, file, row_group, row))

    def explode(self, column: str) -> Dataset:
        """Makes a row of each element of a list column, and repeats the other columns.

        Lists may be of any length or of a fixed one. An empty list gives no row, null gives one row whose element is
        null. Rows keep their order, and the elements that of their list. Long lists come in pieces, so memory is
        bounded; only the list of a single row stays together.

        Raises:
            PlanError: The column is unknown or no list, or `explode` comes after `batch`.

        Examples:
            >>> import arrowflow as af, pyarrow as pa
            >>> table = pa.table({"doc": [1, 2, 3], "words": [["a", "b"], [], ["c"]]})
            >>> af.from_arrow(table).explode("words").to_table().to_pydict()
            {'doc': [1, 1, 3], 'words': ['a', 'b', 'c']}
        """
        return Dataset(Explode.of(self._plan, column))

    def unique(
        self,
        columns: str | pl.Expr | Sequence[str | pl.Expr] | None = None,
        *,
        max_rows: int = 10_000_000,
    ) -> Dataset:
        """Keeps the first row of each key, in order; null equals null, NaN equals NaN, and -0.0 equals 0.0.

        Memory: a key is held as 128 bits of hash. At most `max_rows` keys of an epoch take 16 bytes each, and four
        times that for moments, on top of `Options.ram_budget`. A state does not hold the keys. So a resumed run goes
        through the epoch again, from its start to its place.

        Args:
            columns: The columns that make the key; by default all of them.
            max_rows: The most different keys that are held. One key more is an error.

        Raises:
            PlanError: `unique` comes after `batch`; or, once the plan is bound, a column is unknown or cannot be a
                key.
            BudgetError: There are more than `max_rows` keys; in `next()`, after the rows that were kept.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> ds = af.range(6).with_columns(kind=pl.col("id") % 3)
            >>> ds.unique("kind", max_rows=100).to_table().to_pydict()
            {'id': [0, 1, 2], 'kind': [0, 1, 2]}
        """
        return Dataset(Unique.of(self._plan, columns, max_rows))

    def rejection_resample(
        self,
        label: Expression | str,
        target_dist: Sequence[float] | Mapping[Any, float],
        initial_dist: Sequence[float] | Mapping[Any, float] | None = None,
        *,
        seed: int | None = None,
    ) -> Dataset:
        """Leaves rows out at random, so that classes have wanted shares, and keeps as many rows as that allows.

        Kept rows stay as they were, in order. Unlike TensorFlow's method, which "can reject or repeat", it repeats no
        row, and puts no class beside the rows. Each epoch leaves out other rows. With `initial_dist` each row is
        decided by itself. Without `initial_dist` the first 8,192 rows are held back, counted, and decided by these
        counts. Later rows are decided by the counts of all blocks of 512 rows before. So put `shuffle` before, where
        the classes do not come mixed. Memory: the chunks of the first 8,192 rows. A state then holds the counts.

        Args:
            label: The class of a row: the name of a column, or an element-wise expression.
            target_dist: The wanted share of each class: by class, such as `{"cat": 0.5, "dog": 0.5}`, or a list for
                classes that are whole numbers from 0 on. Shares need not sum to 1.
            initial_dist: The share of each class in the data, given alike; by default estimated.
            seed: Seed of the draws; by default derived from `Options.seed` and the operator's place.

        Raises:
            PlanError: `rejection_resample` comes after `batch`; a share is negative; or a wanted class has no share
                in the data. Once the plan is bound: a column is unknown, or classes have another type.
            BudgetError: The first 8,192 rows take more than the budget; when the dataset is iterated.
            DataError: A class is null, or has no share; in `next()`.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> ds = af.range(10_000).with_columns(rare=(pl.col("id") % 10 == 0).cast(pl.Int8))
            >>> even = ds.rejection_resample("rare", [0.5, 0.5], [0.9, 0.1], seed=1).to_table()
            >>> even.num_rows, even["rare"].to_pylist().count(1)
            (2011, 1000)
        """
        return Dataset(RejectionResample.of(self._plan, label, target_dist, initial_dist, seed))

    # -------------------------------------------------------------------------------------------- order

    def shuffle(
        self,
        buffer_size: int | None = None,
        *,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
    ) -> Dataset:
        """Permutes the rows within windows of `buffer_size` rows, or without a size all rows.

        `shuffle(n)` also shuffles the order of files and row groups, if only column operators, filters and `repeat`
        come between the source and the shuffle. The row groups of four files at a time come in turn. Rows in memory
        (`from_arrow` of a table, `from_numpy`, `range`) are shuffled by blocks: an eighth of a window each, and at
        least 512 rows. So rows from all over the data meet in a window. Each epoch has another order, which follows
        from (seed, epoch). A state holds a cursor, not the buffer.

        `shuffle()` permutes all rows evenly. Memory stays flat, since rows are gathered from where they lie. So the
        source is one of these: uncompressed local files of `read_ipc`, `from_arrow` of a table, `from_numpy`,
        `range`, `read_images`, `read_files`, `read_lance`, or a `cache`. A cache is filled before the first row comes. Column operators, `take`, `skip` and
        `shard` may come in between. The order takes one number per row up to 262,144 rows; beyond, it takes eight times the root
        of the number of rows. Texts, lists, booleans and columns with nulls take a call for each record batch: prefer
        some thousand rows in each.

        Args:
            buffer_size: Rows of a window, or None for all rows.
            seed: Seed of the order; by default derived from `Options.seed` and the operator's place.
            reshuffle_each_iteration: Whether each epoch has an order of its own.

        Raises:
            PlanError: `shuffle` comes after `batch`; or, once the plan is bound, `shuffle()` has another source than
                these.

        Examples:
            >>> import arrowflow as af
            >>> af.range(6).shuffle(6, seed=1).to_table().to_pydict()
            {'id': [5, 0, 1, 3, 4, 2]}
            >>> af.range(6).shuffle(seed=1).to_table().to_pydict()
            {'id': [4, 2, 3, 1, 0, 5]}
        """
        return Dataset(
            Shuffle.of(self._plan, buffer_size, seed=seed, reshuffle_each_iteration=reshuffle_each_iteration)
        )

    def sample(
        self,
        n: int,
        *,
        weights: Expression | str,
        replacement: bool = False,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
    ) -> Dataset:
        """Draws `n` rows, each with a chance in proportion to its weight, as PyTorch's `WeightedRandomSampler` does.

        The rows come in the order of the draws. A row without weight is never drawn. Rows are gathered from where
        they lie, so the source is one that `shuffle()` without a size takes: uncompressed local files of `read_ipc`,
        `from_arrow` of a table, `from_numpy`, `range`, `read_images`, `read_files`, `read_lance`, or a `cache`. Column operators,
        `take`, `skip` and `shard` may come in between. The weights of all rows are read first and take 8 bytes a row; while rows are drawn, they take 16, or
        64 without replacement. Each epoch draws anew from (seed, epoch). A state holds a cursor.

        Args:
            n: Rows to draw.
            weights: The weight of a row: the name of a column of numbers, or an element-wise expression. Weights need
                not sum to 1.
            replacement: Whether a row may be drawn again. Without replacement, the chance is in proportion to the
                weights of the rows that were not drawn before.
            seed: Seed of the draws; by default derived from `Options.seed` and the operator's place.
            reshuffle_each_iteration: Whether each epoch draws anew.

        Raises:
            PlanError: `sample` comes after `batch`; or, once the plan is bound, the source is none of these, or the
                weights are no numbers.
            BudgetError: The weights take more than the budget; when the dataset is iterated.
            DataError: A weight is negative, null, NaN or infinite; no row has a weight; or, without replacement, fewer
                than `n` rows have one; in `next()`.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> af.range(6).sample(3, weights="id", seed=1).to_table().to_pydict()
            {'id': [4, 3, 5]}
            >>> af.range(6).sample(8, weights=pl.col("id") % 2, replacement=True, seed=1).to_table().to_pydict()
            {'id': [3, 1, 5, 5, 1, 3, 3, 1]}
        """
        return Dataset(
            Sample.of(
                self._plan,
                n,
                weights=weights,
                replacement=replacement,
                seed=seed,
                reshuffle_each_iteration=reshuffle_each_iteration,
            )
        )

    def repeat(self, count: int | None = None) -> Dataset:
        """Goes through its input `count` times, or without end; each time is the input's next epoch.

        `shuffle().repeat()` finishes each epoch while the first window of the next epoch fills. `repeat().shuffle()`
        lets windows cross epochs. An epoch without rows ends the repetition.

        Raises:
            SchemaError: `map` or the like made other columns or types than in the epoch before; in `next()`.

        Examples:
            >>> import arrowflow as af
            >>> af.range(2).repeat(2).to_table().to_pydict()
            {'id': [0, 1, 0, 1]}
        """
        return Dataset(Repeat.of(self._plan, count))

    def interleave(
        self,
        fn: Callable[[dict[str, Any]], Dataset],
        *,
        cycle_length: int = 4,
        block_length: int | None = None,
        num_parallel_calls: int = AUTOTUNE,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Calls a function for each row, and yields the rows of the returned datasets, several datasets in turn.

        `cycle_length` datasets are open. Each turn takes `block_length` rows of one dataset. A dataset that ends
        gives up the rest of its block, and the next dataset takes its place when that place has its next turn. The
        order depends on these two numbers, so neither is tuned. Options that are set in the datasets have no effect.

        Args:
            fn: Gets a row as a dict and returns a dataset that is not in batches. Several threads call `fn`, once per
                row, and again for the open datasets after a resume. The dataset is read later, where its memory lies.
                If `fn` refills an array, give the dataset a copy of the array.
            cycle_length: Datasets that are open at the same time.
            block_length: Rows of a turn; by default one chunk of one split, of at most `Options.max_chunk_rows`, 65,536, and
                `Options.max_chunk_bytes`.
            num_parallel_calls: Calls of `fn` at the same time. Also the number of open datasets that have begun,
                counted from the dataset whose turn it is. By default all of them and the next dataset have begun. A
                dataset that has begun reads ahead.
            deterministic: With False a dataset that is not ready is passed over for now, and `state_dict` is refused.
                Default: as in `Options`.

        Raises:
            PlanError: `interleave` comes after `batch`, or a number is out of range.
            FunctionError: `fn` raised, returned no dataset, or returned a dataset in batches; in `next()`, in order.
            SchemaError: A dataset has other columns or types than the first dataset.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> def tens(row):
            ...     return af.range(3).select(x=pl.col("id") + 10 * row["id"])
            >>> af.range(3).interleave(tens, cycle_length=2, block_length=2).to_table()["x"].to_pylist()
            [0, 1, 10, 11, 2, 12, 20, 21, 22]
        """
        return Dataset(
            Interleave.of(
                self._plan,
                fn,
                _plan_of,
                cycle_length=cycle_length,
                block_length=block_length,
                num_parallel_calls=num_parallel_calls,
                deterministic=deterministic,
            )
        )

    def concatenate(self, *others: Dataset) -> Dataset:
        """Yields the rows of this dataset, then the rows of each other dataset; batches stay as they are.

        All datasets have the same columns and types; the first dataset decides the order of columns. The next dataset
        starts while the last rows of the dataset before it are still under way. A state holds the number of the
        dataset and the place in it.

        Args:
            *others: Datasets, all in batches if this dataset is, else none.

        Raises:
            PlanError: An argument is no dataset, only some are in batches; or, once the plan is bound, columns
                differ.
            SchemaError: Columns differ in a dataset whose columns only running tells; in `next()`.

        Examples:
            >>> import arrowflow as af
            >>> af.range(2).concatenate(af.range(5, 7), af.range(1)).to_table().to_pydict()
            {'id': [0, 1, 5, 6, 0]}
        """
        return Dataset(Concatenate.of(self._plan, plans_of("concatenate", others)))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Keeps the rows whose number leaves the remainder `index` when divided by `num_shards`.

        As in tf.data, all rows are read. For several processes that train together use `split_by_rank`, with which each
        reads its part alone, and all make equally many steps. Shards of one dataset are disjoint and together complete if all of them see the rows in the
        same order. So call `shard` before a `shuffle` that has another seed in each shard.

        Examples:
            >>> import arrowflow as af
            >>> af.range(7).shard(3, 1).to_table().to_pydict()
            {'id': [1, 4]}
        """
        return Dataset(Shard.of(self._plan, num_shards, index))

    def split_by_rank(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        how: How | None = None,
        lanes: int | None = None,
        equal_steps: EqualSteps | None = None,
        coordinator: Any = None,
    ) -> Dataset:
        """Delivers, in each of several processes, its part of the same batches. Written last, after `batch`.

        The plan before it describes the stream of all processes together, and its batch size is the **global** one. The
        rows of all processes in an epoch are those of that plan, each once. The batches of all processes together are the
        same for every `world_size`, row for row. There are two ways; `explain()` says which one, and why:

        * In parts, if each operator before `batch` treats a row by that row alone, or by neighbours that are free, as in
          a `shuffle`. The plan runs in `lanes` that do not see each other, each on its part of the source's rows, with
          `buffer_size / lanes` rows in a `shuffle`. A batch has equally many rows of each lane, lane after lane. A process
          runs `lanes / world_size` of the lanes, and reads nothing else.
        * Whole, for every other plan, such as one with `zip` of different inputs, `window`, `scan` or a generator. Each
          process runs all of it. Of a batch of n rows, rank r of W takes rows rn/W to (r + 1)n/W. Column operators right
          before `batch`, what follows it, and functions with `keeps_rows=True` and no seed among that, run on the rows of
          the process alone. A line of the log says that the plan runs whole.

        All processes deliver equally many batches. In parts they have one size: where the lanes end differently, the last
        rows of some are left out, `lanes - 1` of an epoch at most. After `batch(…, pad_remainder=True)` they are filled up
        by repeats of the last row of each lane. In parts, functions after `batch` are called for each lane. Batches of
        `bucket_by_sequence_length` and the like come whole, of one lane after another, or to one process after another.

        Memory: in parts at least one chunk of each lane and two parts of some 16 MiB; whole, that of the plan. Budgets
        that are not given are divided by `LOCAL_WORLD_SIZE`, if the environment has it.

        Args:
            rank: Number of this process. By default that of `torch.distributed` or JAX, if initialised, else `RANK`
                of the environment, else 0.
            world_size: How many processes there are; from the same place.
            how: `"parts"` or `"whole"`; by default parts wherever they are right. In parts a global batch has rows from as
                many places of the order as there are lanes: on sorted rows without a shuffle, choose "whole".
            lanes: How many lanes there are, a divisor of the batch size and a multiple of `world_size`. It decides the
                rows of each batch. By default the largest divisor of the batch size up to 16, or up to 8 where the windows
                of a `shuffle` would have less than 100 rows.
            equal_steps: The end of an epoch where only a run tells how many rows each lane has, as after `filter`:
                `"drop"` ends with the last whole batch of the first lane that ends. Whole plans do not need it.
            coordinator: The means by which processes agree on the last step, with `equal_steps="drop"` in such a
                plan, and compare their epochs: a process group of `torch.distributed`, or an object with a method `all_min(numbers)`.
                By default the default group, if it is initialised; then "drop" is the default, too. They agree in
                `next()` before each 64 steps; leave the loop at the same step in all of them.

        Raises:
            PlanError: The plan does not end in batches, it cannot run in the parts that were asked for, the numbers do
                not divide each other, or several processes could end at different steps.
            RankError: The processes could not agree, since one of them failed, or is at another step or in another epoch;
                in `next()`.
            DataError: An epoch has rows, but equal steps leave all of them out; in `next()`.

        Examples:
            >>> import arrowflow as af
            >>> ds = af.range(12).batch(4)
            >>> [batch["id"].to_pylist() for batch in ds.split_by_rank(0, 2)]
            [[0, 3], [1, 4], [2, 5]]
            >>> [batch["id"].to_pylist() for batch in ds.split_by_rank(1, 2)]
            [[6, 9], [7, 10], [8, 11]]
            >>> [batch["id"].to_pylist() for batch in ds.split_by_rank(0, 1)]
            [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
        """
        return Dataset(
            SplitByRank.of(
                self._plan,
                rank,
                world_size,
                how=how,
                lanes=lanes,
                equal_steps=equal_steps,
                coordinator=coordinator,
            )
        )

    # ------------------------------------------------------------------------------------------ batches

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        pad_remainder: bool = False,
        mask: str = "mask",
        num_parallel_calls: int | None = None,
    ) -> Dataset:
        """Makes batches of exactly `batch_size` rows, across all borders; the last batch may be short.

        After `batch`, operators that count rows are refused; another `batch` cuts the rows anew. Batches are slices
        of chunks. A batch that crosses a border between chunks is joined. Columns of lists stay lists, of different
        length.

        Args:
            batch_size: Rows of a batch.
            drop_remainder: Whether a short last batch is left out.
            pad_remainder: Whether the last batch is filled up to `batch_size` rows by repeats of its last row. All
                batches then have a boolean column after the others: true for rows of the input, false for repeats.
                An evaluation sees each row once if it sums, per row, `where(mask, loss, 0)` and divides by the sum of
                the masks.
            mask: Name of that column.
            num_parallel_calls: Joins at the same time. By default batches are joined one by one as they are cut. That
                is faster, unless most batches are large and joined of many small chunks.

        Examples:
            >>> import arrowflow as af
            >>> [batch.num_rows for batch in af.range(5).batch(2)]
            [2, 2, 1]
            >>> for batch in af.range(3).batch(2, pad_remainder=True):
            ...     print(batch.to_pydict())
            {'id': [0, 1], 'mask': [True, True]}
            {'id': [2, 2], 'mask': [True, False]}

        Raises:
            PlanError: Both `drop_remainder` and `pad_remainder`, or a column has the name of the mask already.
        """
        return Dataset(
            Batch.of(
                self._plan,
                batch_size,
                drop_remainder=drop_remainder,
                pad_remainder=pad_remainder,
                mask=mask,
                num_parallel_calls=num_parallel_calls,
            )
        )

    def padded_batch(
        self,
        batch_size: int,
        *,
        padded_shapes: Mapping[str, int | Sequence[int | None] | None] | None = None,
        padding_values: Any = None,
        multiple_of: int | None = None,
        truncate: bool = False,
        lengths: Mapping[str, str] | None = None,
        drop_remainder: bool = False,
        num_parallel_calls: int = AUTOTUNE,
    ) -> Dataset:
        """Makes batches as `batch` does, and pads the lists of a column to one length; loaders give them as `(B, L)`.

        Every list column is padded at its end; lists of lists become `(B, L1, L2)`. A null list is all padding; a
        null inside a list stays null. A column with a given length becomes a `fixed_size_list`. The other columns
        keep their type, since their length differs between batches. Memory: one batch per call.

        Args:
            batch_size: Rows of a batch.
            padded_shapes: Lengths by column; for lists of lists one length per level. None, or a column that is not
                named, takes the longest list of the batch.
            padding_values: One value for all columns that can hold it (an unsigned column cannot hold -1), or values
                by column. Default: 0, False, or nothing.
            multiple_of: Rounds lengths that are not given up to a multiple of this number.
            truncate: Whether lists that are longer than a given length are cut off; else they are an error.
            lengths: Columns to add, as in `{"tokens": "num_tokens"}`: the number of values in each row of a column.
            drop_remainder: Whether a short last batch is left out.
            num_parallel_calls: Batches that are padded at the same time.

        Raises:
            PlanError: An argument does not fit; or, once the plan is bound, a column is unknown or has no lists.
            DataError: A list is longer than its column's given length; in `next()`.

        Examples:
            >>> import arrowflow as af, pyarrow as pa
            >>> ds = af.from_arrow(pa.table({"tokens": [[5, 6, 7], [8], [9, 9]]}))
            >>> for batch in ds.padded_batch(2, lengths={"tokens": "n"}).to_numpy():
            ...     print(batch["tokens"].tolist(), batch["n"].tolist())
            [[5, 6, 7], [8, 0, 0]] [3, 1]
            [[9, 9]] [2]
        """
        return Dataset(
            padded_batch(
                self._plan,
                batch_size,
                drop_remainder=drop_remainder,
                num_parallel_calls=num_parallel_calls,
                padded_shapes=padded_shapes,
                padding_values=padding_values,
                multiple_of=multiple_of,
                truncate=truncate,
                lengths=lengths,
            )
        )

    def bucket_by_sequence_length(
        self,
        column: str,
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        *,
        max_lag_rows: int = DEFAULT_MAX_LAG_ROWS,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        padded_shapes: Mapping[str, int | Sequence[int | None] | None] | None = None,
        padding_values: Any = None,
        multiple_of: int | None = None,
        truncate: bool = False,
        lengths: Mapping[str, str] | None = None,
        drop_remainder: bool = False,
        num_parallel_calls: int = AUTOTUNE,
    ) -> Dataset:
        """Makes batches of rows whose lists (or texts) in `column` have a similar length, and pads the lists.

        Rows are collected by length, in order; a bucket that is full is delivered. Lengths come from offsets, so the
        length of a text is in bytes. Values are only touched when a batch is gathered. A null counts as length 0. Put
        `shuffle` before this operator.

        Memory: the chunks of the last `max_lag_rows` rows at most, and one batch per call. `Options.ram_budget` has
        to have room for these chunks: one row of a rare length keeps all chunks after it. A state holds a few numbers
        per bucket. A resumed run reads again from the oldest held row on.

        Args:
            column: The column whose lengths decide on buckets.
            bucket_boundaries: Lengths at which the next bucket begins, going up. The list `[10, 20]` makes buckets of
                0 to 9, of 10 to 19, and of 20 or more.
            bucket_batch_sizes: Rows of a batch for each bucket: one number more than boundaries.
            max_lag_rows: A bucket comes short when its oldest row came this many rows ago, so that rows of a rare
                length are not held for ever.
            pad_to_bucket_boundary: Whether lists in `column` are padded to one less than the next boundary, instead
                of to the longest list. Then there are only as many shapes as boundaries, and a longer list is an
                error.
            no_padding: Whether lists keep their lengths; then any argument about padding is an error.
            padded_shapes: As in `padded_batch`.
            padding_values: As in `padded_batch`.
            multiple_of: As in `padded_batch`.
            truncate: As in `padded_batch`.
            lengths: As in `padded_batch`.
            drop_remainder: Whether short batches are left out: those at the end, and those of buckets that lag.
            num_parallel_calls: Batches that are gathered and padded at the same time.

        Raises:
            PlanError: An argument does not fit, or two arguments contradict each other. Once the plan is bound: the
                column is unknown, or its values have no length.
            BudgetError: `max_lag_rows` rows take more than the budget; when the dataset is iterated.
            DataError: A list is longer than the length that it is padded to; in `next()`.

        Examples:
            >>> import arrowflow as af, pyarrow as pa
            >>> ds = af.from_arrow(pa.table({"tokens": [[1], [2, 2, 2], [3], [4, 4, 4, 4], [5]]}))
            >>> for batch in ds.bucket_by_sequence_length("tokens", [3], [2, 2]).to_numpy():
            ...     print(batch["tokens"].tolist())
            [[1], [3]]
            [[2, 2, 2, 0], [4, 4, 4, 4]]
            [[5]]
        """
        return Dataset(
            bucketed(
                self._plan,
                column,
                bucket_boundaries,
                bucket_batch_sizes,
                max_lag_rows=max_lag_rows,
                pad_to_bucket_boundary=pad_to_bucket_boundary,
                no_padding=no_padding,
                drop_remainder=drop_remainder,
                num_parallel_calls=num_parallel_calls,
                padded_shapes=padded_shapes,
                padding_values=padding_values,
                multiple_of=multiple_of,
                truncate=truncate,
                lengths=lengths,
            )
        )

    def pack_sequences(
        self,
        columns: str | Sequence[str],
        length: int,
        *,
        strategy: Strategy = "first_fit",
        window_rows: int = 4096,
        pad_value: Numbers = 0,
        bos: Numbers | None = None,
        overlong: Overlong = "cut",
        segment_ids: str | None = "segment_ids",
        positions: str | None = "positions",
    ) -> Dataset:
        """Packs documents into rows of exactly `length` tokens.

        Columns of tokens, labels and masks become `(B, length)`, packed alike. Each other column becomes a list of one
        value for each segment. Two columns of the shape of the tokens are added. The segment ids number the documents
        of a row (1, 2, …; 0 is padding). The positions number the tokens of a document (0, 1, …). Each window of
        `window_rows` documents makes one batch. Put `shuffle` before, and `batch` after for batches of a wanted size.
        Nulls and empty documents vanish.

        Args:
            columns: The columns to pack, lists of numbers: one, or several with equal lengths in each row.
            length: Tokens of a row.
            strategy: `"first_fit"` keeps documents whole. Within a window the longest document is placed first, each
                in the first row with room for it. Rows and their documents then come in the order of the input.
                `"best_fit"` places each in the row with the least room for it. `"concat_then_split"` puts all
                documents one after the other and cuts every `length` tokens, across windows. Only the last row of an
                epoch is padded then. Each piece of a document is a segment of its own, with positions from 0.
            window_rows: Documents that are packed together. More documents fill rows better, and take more memory.
            pad_value: Value after the last document of a row: one for all columns, or a dict with one for each,
                where a column that is left out has 0.
            bos: Value before each document, which counts as its first token: one for all columns, or a dict with one
                for each.
            overlong: The treatment of documents over `length` tokens: `"cut"` makes pieces, which are packed as
                documents; `"drop"` leaves them out; `"raise"` makes them bad rows.
            segment_ids: Name of the column of segment ids; None leaves the column out.
            positions: Name of the column of positions; None leaves the column out.

        Raises:
            PlanError: Once the plan is bound, a column holds no lists of numbers, or cannot hold its `pad_value` or `bos`.
            DataError: A token is null, which the run finds when it reaches it. Or a document is too long, or has other
                lengths in other columns; `Options(on_error="skip")` leaves such documents out.

        Examples:
            >>> import arrowflow as af
            >>> ds = af.from_arrow(pa.table({"tokens": [[1, 2, 3], [4] * 4, [5, 6]], "source": ["a", "b", "c"]}))
            >>> packed = ds.pack_sequences("tokens", 5, positions=None).to_table().to_pydict()
            >>> packed["tokens"], packed["segment_ids"]
            ([[1, 2, 3, 5, 6], [4, 4, 4, 4, 0]], [[1, 1, 1, 2, 2], [1, 1, 1, 1, 0]])
            >>> packed["source"]
            [['a', 'c'], ['b']]
        """
        return Dataset(
            PackSequences.of(
                self._plan,
                columns,
                length,
                strategy=strategy,
                window_rows=window_rows,
                pad_value=pad_value,
                bos=bos,
                overlong=overlong,
                segment_ids=segment_ids,
                positions=positions,
            )
        )

    def unbatch(self) -> Dataset:
        """Makes the rows of batches addressable again, for operators that are refused after `batch`.

        Row order: as before. Memory: nothing held. Resume: from any row. No rows are copied. A function after it sees
        the rows of one batch a call, or fewer. Nothing that follows it changes which rows a batch before it has: an
        order that a later `shuffle` gives to a source does not pass it. In `split_by_rank` the plan runs whole.

        Raises:
            PlanError: There are no batches before it.

        Examples:
            The first row of each group, in random order:

            >>> import arrowflow as af
            >>> import polars as pl
            >>> groups = af.range(30).group_by_window(pl.col("id") % 3, 10)
            >>> first = groups.map(lambda group: group.slice(0, 1)).unbatch().shuffle(3, seed=1)
            >>> sorted(first.to_table()["id"].to_pylist())
            [0, 1, 2]
        """
        return Dataset(Unbatch.of(self._plan))

    def group_by_window(
        self,
        key: str | Expression,
        window_size: int,
        *,
        max_groups: int = 1024,
        max_lag_rows: int = DEFAULT_MAX_LAG_ROWS,
    ) -> Dataset:
        """Makes batches of `window_size` rows with the same key.

        Rows are collected by key, in order; a group that is full is delivered. Put a `map` after this operator to
        reduce groups: the `map` sees exactly these batches. Null is a key like any other.

        Memory: the chunks of the last `max_lag_rows` rows at most, and one batch per call. `Options.ram_budget` has
        to have room for these chunks: one row of a rare key keeps all chunks after it. A state holds a few numbers. A
        resumed run reads again from the oldest held row on.

        Args:
            key: Name of a column, or an expression: integers, booleans, strings, binaries or dates.
            window_size: Rows of a batch.
            max_groups: Groups that are held at the same time, 2,048 at most. When a row opens one group more, the
                oldest group comes short.
            max_lag_rows: A group comes short when its oldest row came this many rows ago, so that rows of a rare key
                are not held for ever. The oldest group also comes short when batches of more than 2,048 keys came
                since its oldest row.

        Raises:
            BudgetError: `max_lag_rows` rows take more than the budget; when the dataset is iterated.
            PlanError: Once the plan is bound, a column is unknown, or the key is of another type.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> for batch in af.range(7).group_by_window(pl.col("id") % 2, 3):
            ...     print(batch["id"].to_pylist())
            [0, 2, 4]
            [1, 3, 5]
            [6]
        """
        return Dataset(
            GroupByWindow.of(self._plan, key, window_size, max_groups=max_groups, max_lag_rows=max_lag_rows)
        )

    def window(
        self,
        size: int,
        *,
        shift: int | None = None,
        stride: int = 1,
        drop_remainder: bool = True,
        by: str | Expression | None = None,
        max_keys: int = 1_000_000,
    ) -> Dataset:
        """Combines `size` rows into one: columns become fixed-size lists, which loaders hand out as `(B, size)`.

        Windows side by side (`shift` and `stride` left out) are the rows' own memory; other windows are gathered. Windows begin
        at rows 0, `shift`, 2 · `shift` and so on of the rows that reach `window`, whatever was filtered before.

        With `by=` they begin at these rows of each series, and hold rows of that series alone, wherever these lie. Windows
        come in the order of their last rows; those that the end cuts short come after all others, by their first rows.
        Memory: the rows of each series that later windows need, fewer than one window spans, take at most twice their size,
        on top of `Options.ram_budget`. A state does not hold them. So a resumed run goes through the epoch again, from its
        start to its place.

        Args:
            size: Rows of a window.
            shift: Rows from the start of one window to the start of the next; `size` by default.
            stride: Rows from one row of a window to the next.
            drop_remainder: Whether windows that the end cuts short are left out. A list of fixed size cannot be
                short: with False, nulls stand for the missing rows. (In tf.data False is the default.)
            by: The key of a series, a column or an expression: integers, booleans, strings, binaries or dates. Null is a
                key like any other.
            max_keys: The most series. One more is an error.

        Raises:
            PlanError: `window` comes after `batch`; or, once the plan is bound, a column of the key is unknown, or the key
                is of another type.
            BudgetError: There are more than `max_keys` series; in `next()`, in order.

        Examples:
            >>> import arrowflow as af
            >>> af.range(5).window(3, shift=1).to_table().to_pydict()
            {'id': [[0, 1, 2], [1, 2, 3], [2, 3, 4]]}
            >>> af.range(5).window(3, drop_remainder=False).to_table().to_pydict()
            {'id': [[0, 1, 2], [3, 4, None]]}

            Windows of two rows of each series:

            >>> import polars as pl
            >>> rows = af.from_arrow(pl.DataFrame({"series": ["a", "b", "a", "a", "b"], "t": [0, 0, 1, 2, 1]}))
            >>> rows.window(2, shift=1, by="series").to_table().to_pydict()
            {'series': [['a', 'a'], ['a', 'a'], ['b', 'b']], 't': [[0, 1], [1, 2], [0, 1]]}
        """
        return Dataset(
            Window.of(
                self._plan,
                size,
                shift=shift,
                stride=stride,
                drop_remainder=drop_remainder,
                by=by,
                max_keys=max_keys,
            )
        )

    # --------------------------------------------------------------------------------------------- work

    def cache(
        self,
        path: str | PathLike[str] | None = None,
        *,
        key: str | None = None,
        compression: Literal["lz4", "zstd"] | None = None,
        spill: str | PathLike[str] | None = None,
        on_full: Literal["error", "bypass"] = "error",
        verify: Literal["first", "never"] = "first",
        storage_options: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Keeps the rows of its input, in memory or in a folder, and serves later epochs from there.

        All operators before the cache run as epoch 0. So a random map or a shuffle before the cache gives the same
        rows in every epoch; put `shuffle` after the cache. An epoch that stops early leaves its rows, and the next
        epoch goes on after them. Some inputs cannot be repeated from their middle: `from_generator`, one-shot
        streams, `interleave` and `flat_map`. There only a complete pass counts.

        Without a path the rows stay in memory, charged to the budget of each run. All datasets made from this one
        share them. The rows are freed with the last of these datasets, or by `cache_clear`. With `spill=` the rows
        beyond half of the budget lie in files in that folder, which vanish with the process.

        With a path the rows lie in that folder as Arrow IPC files. All epochs, later runs and other processes map
        their buffers without a copy, aligned to 64 bytes. Each plan has an entry of its own there, named by a
        fingerprint. The fingerprint covers the operators, arguments and functions before the cache (code, closures,
        and the values that the code names). It also covers the sources (path, size, time of change) and the versions
        of arrowflow, pyarrow, Polars, NumPy and Python. Another plan or other data make another entry, and old
        entries stay until `arrowflow.cache_clear(path)`. Files that functions open are not seen, those of
        `interleave` and `flat_map` included.

        Rows are committed in chunks. A chunk is written and flushed to the disk before anybody sees its rows. So the
        next run is served the committed chunks and computes the rest, whatever ended the last one, `kill -9`
        included. Several processes may name one folder: one of them computes, the others follow. Memory: one chunk
        per call, and up to 8 MiB that wait to be written.

        With an address of an object store (`s3://`, `gs://`, `az://`) the entries lie there, for all machines that reach
        it. A chunk is put whole, and only if there is none of its name (a conditional put), so nothing half-written is
        ever seen and nothing is overwritten. There is no lock. Processes that fill an entry at the same time all compute
        the same rows, since the plan before a cache is deterministic, and of equal chunks the first put wins. Of an
        input that cannot be repeated from its middle, the first complete pass wins. Every epoch fetches the chunks into
        memory that counts; `cache("s3://…").cache("folder")` keeps a copy on this machine, too. Nothing is removed
        there: remove what lies below the address with the tools of the store. See
        `docs/storage.md`.

        Args:
            path: The folder, which is made if need be, or an address of an object store.
            key: Stands for the code of all user functions before the cache, where that cannot be fingerprinted.
                Change the key when the functions change.
            compression: Compressed chunks take less space; every epoch decodes them into new memory.
            spill: A folder for rows that do not fit into memory; without a path only.
            on_full: `"error"` raises when the disk is full, or nothing can be written there; `"bypass"` lets the run go on
                without caching.
            verify: `"first"` looks at the checksum of each chunk when this process first maps the chunk, and of an object
                store's whenever it is fetched; `"never"` does not.
            storage_options: Arguments of the client of an object store: those of fsspec's, and for `s3://` also those of
                pyarrow's.

        Raises:
            PlanError: Two arguments do not go together; or, when the plan is bound, the address is no place for a cache.
            MissingPackageError: The client of the address is not installed; when the plan is bound.
            BudgetError: The rows cached in memory exceed `Options.ram_budget`; in `next()`.
            FingerprintError: A function or source cannot be fingerprinted; when the plan is bound. Give `key=`.
            CacheFullError: The disk is full, or nothing can be written there; in `next()`.
            WriteError: The folder or the store cannot be written, or the store has no conditional puts; in `next()`,
                before a row is computed.

        Examples:
            >>> import arrowflow as af, tempfile
            >>> calls = []
            >>> def slow(batch):
            ...     calls.append(batch.num_rows)
            ...     return batch
            >>> ds = af.range(3).map(slow).cache()
            >>> [batch["id"].to_pylist() for _ in range(2) for batch in ds], calls
            ([[0, 1, 2], [0, 1, 2]], [3])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     for _ in range(2):
            ...         rows = af.range(1000).shuffle(100).cache(folder).to_table().num_rows
            ...     [(entry.num_rows, entry.complete) for entry in af.cache_info(folder)]
            [(1000, True)]
        """
        return Dataset(
            cached(
                self._plan,
                path,
                key=key,
                compression=compression,
                spill=spill,
                on_full=on_full,
                verify=verify,
                storage_options=storage_options,
            )
        )

    def cache_clear(self) -> None:
        """Frees the rows that every `cache` in this dataset holds in memory; the next run computes them anew.

        The rows are freed for all datasets that share them. Iterators under way keep their rows until they end.
        `arrowflow.cache_clear(path)` removes rows in folders.

        Raises:
            PlanError: The dataset has no `cache` in memory.

        Examples:
            >>> import arrowflow as af
            >>> ds = af.range(3).cache()
            >>> table = ds.to_table()
            >>> ds.cache_clear()
        """
        caches = [node for node in post_order(self._plan) if isinstance(node, Cache)]
        if not caches:
            raise PlanError(
                "cache_clear: there is no `cache` in memory in this dataset; arrowflow.cache_clear(path) removes what "
                "lies in a folder"
            )
        for node in caches:
            node.store.clear()

    def prefetch(self, buffer_size: int = AUTOTUNE) -> Dataset:
        """Makes up to `buffer_size` batches before they are asked for, on a worker instead of the consumer's thread.

        Stages read ahead without `prefetch` too; it sets how far the stage before it goes. This is the one size that
        counts batches.

        Examples:
            >>> import arrowflow as af
            >>> [batch.num_rows for batch in af.range(5).batch(2).prefetch(2)]
            [2, 2, 1]
        """
        return Dataset(Prefetch.of(self._plan, buffer_size))

    def with_options(self, options: Options) -> Dataset:
        """Sets options of the whole pipeline; of several settings of one field the last setting wins.

        Examples:
            >>> import arrowflow as af
            >>> ds = af.range(5).with_options(af.Options(ram_budget="1GiB", seed=7))
            >>> ds.num_rows
            5
        """
        return Dataset(WithOptions.of(self._plan, options))

    def apply(self, transformation: Callable[[Dataset], Dataset]) -> Dataset:
        """Returns the dataset that a function makes of this dataset: a way to name and share parts of pipelines.

        Examples:
            >>> import arrowflow as af
            >>> def small(ds):
            ...     return ds.take(2).batch(1)
            >>> [batch.num_rows for batch in af.range(5).apply(small)]
            [1, 1]
        """
        result = transformation(self)
        if not isinstance(result, Dataset):
            raise PlanError(f"apply: expected the function to return a Dataset, got {type(result).__name__}")
        return result

    def with_engine(self, engine: RayEngine) -> Dataset:
        """Runs the pipeline on a cluster: its lanes in workers, all else in this process. Comes last, behind `batch`.

        The batches, their order and the states are those of `.split_by_rank(0, 1, lanes=engine.lanes)`, or of the
        `split_by_rank` that the plan ends in; see `docs/cluster.md`. `to_torch(engine=…)` and its like
        are short for it. The workers start with the first batch, and stay for later epochs, until the loader is closed or this
        dataset and its loaders are gone.

        Raises:
            PlanError: The plan has no lanes; once it runs, a function cannot be pickled, or a worker lacks a local file.
            WorkerError: Workers die again and again, or do not start; in `next()`.
            MissingPackageError: Ray is not installed; in `next()`.

        Examples:
            >>> import arrowflow as af
            >>> ds = af.range(100).batch(10).with_engine(af.RayEngine(workers=2, cpus_per_worker=1))
            >>> [batch.num_rows for batch in ds][:3]  # doctest: +SKIP
            [10, 10, 10]
        """
        if not isinstance(engine, RayEngine):
            raise PlanError(f"with_engine: engine is an af.RayEngine, got {shown(engine)}")
        found = self._on_engine
        if found is None or found[0] != engine:
            from arrowflow.cluster.on_cluster import OnCluster

            # Kept, so that the loaders of all epochs have the same workers.
            found = self._on_engine = engine, Dataset(OnCluster.of_plan(self._plan, engine))
            found[1]._epochs = self._epochs
        return found[1]

    # ---------------------------------------------------------------------------------------------- out

    def __iter__(self) -> Run[pa.RecordBatch]:
        """Runs the next epoch and yields its record batches.

        The iterator has `state_dict`, `load_state_dict`, `set_epoch`, `stats` and `close`, and is a context manager.
        """
        return Run(self._ready(), self._epochs, RecordBatches(), keeps=True)

    def __getitem__(self, key: object) -> NoReturn:
        raise PlanError(_other_than_brackets(key))

    def __contains__(self, value: object) -> NoReturn:
        raise PlanError(
            "a dataset does not look for values by `in`, which would run an epoch: filter for them, as in "
            "not ds.filter(pl.col('x') == 3).head(1).is_empty()"
        )

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        raise PlanError(
            "a dataset is no array: iterate over ds.to_numpy(); for a data frame write pl.DataFrame(ds) or "
            "pd.DataFrame.from_arrow(ds), and before pandas 3 ds.to_table().to_pandas()"
        )

    @overload
    def to_numpy(
        self, *, lists: _Arrays = "dense", collate: None = None, **arguments: Unpack[LoaderArguments]
    ) -> Loader[dict[str, npt.NDArray[Any]]]: ...

    @overload
    def to_numpy(
        self,
        *,
        lists: _Arrays = "dense",
        collate: Callable[[dict[str, npt.NDArray[Any]]], T],
        **arguments: Unpack[LoaderArguments],
    ) -> Loader[T]: ...

    @overload
    def to_numpy(
        self, *, lists: _Ragged, collate: None = None, **arguments: Unpack[LoaderArguments]
    ) -> Loader[dict[str, Any]]: ...

    @overload
    def to_numpy(
        self, *, lists: _Ragged, collate: Callable[[dict[str, Any]], T], **arguments: Unpack[LoaderArguments]
    ) -> Loader[T]: ...

    @with_arguments(LoaderArguments, _USUAL)
    def to_numpy(
        self,
        *,
        lists: _Lists = "dense",
        collate: Callable[[dict[str, Any]], Any] | None = None,
        **arguments: Unpack[LoaderArguments],
    ) -> Loader[Any]:
        """Returns a loader of batches as dicts of arrays, by column.

        Arrays are views of Arrow's memory. An array is writable where the batch alone owns its memory. It is
        read-only where a cache, the source or a second column may hold that memory too. `explain(copies=True)` of the
        loader tells which columns are copied, and why. Fixed-size lists, tensors, and lists of one length within
        their batch (see `padded_batch`) come as `(B, …)`. Dates come as `datetime64[D]`, enums as codes, texts as
        objects.

        Args:
            columns: Names of the columns in the wanted order, or selectors of Polars; others are not read. Default:
                all.
            dtypes: Dtypes by column, in place of the columns' own: `np.float32`, `"bfloat16"`, NumPy's `StringDType`.
                Or one dtype for all columns that can have it; the others, such as texts, keep their own.
                Integers take dates and times as counts of their unit, and floats take decimals. Binaries of fixed
                width are read as any dtype of that width. A value that does not fit is a `DataError`, also a value
                that a float would make infinite; floats are rounded.
            null: How nulls come, in all columns that can have them so, or by column. `"error"` refuses nulls. `"nan"`
                makes float64 of integers, and NaT in dates. `"mask"` puts a zero, and adds a column `<name>_mask` for
                each column that may have nulls: True where there is a value. Any other value takes the place of
                nulls.
            lists: How lists of any length come. `"dense"`: an error where lists of one batch differ. `"ragged"`: a
                named tuple of `values` and `offsets`. `"padded"`: as long as the longest list of the batch, with
                zeros at the end; a null list has the value of `null=` throughout.
            collate: Gets each batch, and returns the object that is delivered instead:
                `lambda batch: (batch["x"], batch["y"])`. The loop's thread calls it.
            strict_zero_copy: Whether a column that would be copied is an error.
            engine: An `af.RayEngine`, which runs the lanes of the pipeline on a cluster: see `with_engine`.

        Raises:
            PlanError: An argument is not valid; or, once the plan is bound, a column is unknown.
            SchemaError: No array has a column's type, or a column cannot become the asked dtype; when iteration
                starts.
            DataError: A column has nulls, a value that does not fit, or lists of different length; in `next()`.
            FunctionError: `collate` raised.

        Examples:
            >>> import arrowflow as af, pyarrow as pa
            >>> [batch["id"].tolist() for batch in af.range(3).batch(2).to_numpy()]
            [[0, 1], [2]]
            >>> ds = af.from_arrow(pa.table({"x": [1, None], "y": [0, 1]}))
            >>> next(iter(ds.to_numpy(null={"x": "mask"}, dtypes={"y": "float32"})))
            {'x': array([1, 0]), 'x_mask': array([ True, False]), 'y': array([0., 1.], dtype=float32)}
        """
        return self._loader("to_numpy", NumpyExport, lists, collate, arguments)

    @overload
    def to_dlpack(
        self, *, lists: _Lists = "dense", collate: None = None, **arguments: Unpack[LoaderArguments]
    ) -> Loader[dict[str, Any]]: ...

    @overload
    def to_dlpack(
        self,
        *,
        lists: _Lists = "dense",
        collate: Callable[[dict[str, Any]], T],
        **arguments: Unpack[LoaderArguments],
    ) -> Loader[T]: ...

    @with_arguments(LoaderArguments, _USUAL)
    def to_dlpack(
        self,
        *,
        lists: _Lists = "dense",
        collate: Callable[[dict[str, Any]], Any] | None = None,
        **arguments: Unpack[LoaderArguments],
    ) -> Loader[Any]:
        """Returns a loader of batches as dicts of objects that speak DLPack, by column.

        Memory that nobody else holds is handed over as it is. Other memory is copied, since not every consumer
        honours a read-only flag. Consumers of the versioned protocol get versioned capsules.

        Args:
            columns: As in `to_numpy`.
            dtypes: As in `to_numpy`; DLPack has no texts and dates, which need a dtype.
            null: As in `to_numpy`.
            lists: As in `to_numpy`.
            collate: As in `to_numpy`.
            strict_zero_copy: As in `to_numpy`.
            engine: As in `to_numpy`.

        Raises:
            PlanError: As in `to_numpy`.
            SchemaError: As in `to_numpy`, for the types that DLPack knows.
            DataError: As in `to_numpy`.
            FunctionError: As in `to_numpy`.

        Examples:
            >>> import arrowflow as af, numpy as np
            >>> [np.from_dlpack(batch["id"]).tolist() for batch in af.range(3).batch(2).to_dlpack()]
            [[0, 1], [2]]
        """
        return self._loader("to_dlpack", DlpackExport, lists, collate, arguments)

    @overload
    def to_torch(
        self, *, lists: _Lists = "dense", collate: None = None, **arguments: Unpack[TorchArguments]
    ) -> Loader[dict[str, torch.Tensor]]: ...

    @overload
    def to_torch(
        self,
        *,
        lists: _Lists = "dense",
        collate: Callable[[dict[str, torch.Tensor]], T],
        **arguments: Unpack[TorchArguments],
    ) -> Loader[T]: ...

    @with_arguments(TorchArguments, _USUAL)
    def to_torch(
        self,
        *,
        lists: _Lists = "dense",
        collate: Callable[[dict[str, torch.Tensor]], Any] | None = None,
        **arguments: Unpack[TorchArguments],
    ) -> Loader[Any]:
        """Returns a loader of batches as dicts of tensors, by column. Needs the extra `torch`.

        Memory that nobody else holds is aliased, and the loop may write into it, also under autograd. Other memory is
        copied, since PyTorch knows no read-only tensors.

        With `device="cuda"` batches come on that device. Each batch is copied into page-locked memory. A stream of
        its own copies it from there, while the device computes on the batch before. So the device holds one batch
        more than the loop. It also holds batches that the loop let go of but that it has yet to compute with. These
        are several where nothing in the loop waits for the device, as `loss.item()` does. A batch is for the stream
        that is current when the batch is delivered. That stream waits for the batch; this thread does not.

        Args:
            columns: As in `to_numpy`.
            dtypes: As in `to_numpy`, also as `torch.bfloat16`. Dates, times and decimals have no tensor without a
                dtype.
            null: As in `to_numpy`.
            lists: As in `to_numpy`; ragged lists come as jagged `torch.nested` tensors.
            collate: As in `to_numpy`; with a `device` it gets the batch on the device.
            strict_zero_copy: As in `to_numpy`. Contradicts `pin_memory` and `device`.
            pin_memory: Whether to copy into page-locked memory, from which `tensor.to("cuda", non_blocking=True)` is
                asynchronous. PyTorch keeps such memory by size and uses it again. Not needed with a `device`.
            device: The device that batches come on: "cuda" (the current one when iteration starts), one like "cuda:1",
                or "mps", Apple's. "mps" has no numbers of 64 bits with fractions: take `dtypes="float32"`.
            engine: As in `to_numpy`.

        Raises:
            MissingPackageError: PyTorch is not installed.
            PlanError: As in `to_numpy`; or there is no such device.
            SchemaError: As in `to_numpy`, for the types that tensors have.
            DataError: As in `to_numpy`.
            FunctionError: As in `to_numpy`.

        Examples:
            >>> import arrowflow as af
            >>> loader = af.range(3).batch(2).to_torch()
            >>> len(loader)
            2
            >>> [batch["id"].tolist() for batch in loader]  # doctest: +SKIP
            [[0, 1], [2]]
        """
        pin_memory = arguments.get("pin_memory", False)
        device = device_named(
            "to_torch",
            arguments.get("device"),
            pin_memory=pin_memory,
            strict_zero_copy=arguments.get("strict_zero_copy", False),
        )
        loader = partial(self._loader, "to_torch", resolve=torch_dtype)
        if device is None:
            return loader(PinnedExport if pin_memory else TorchExport, lists, collate, arguments)
        if device.startswith("mps"):
            return loader(partial(MpsExport, device=device), lists, collate, arguments)
        export = partial(CudaExport, device=device)
        return loader(export, lists, collate, arguments, arrived=call)

    @overload
    def to_torch_dataset(
        self,
        *,
        lists: _Lists = "dense",
        collate: None = None,
        **arguments: Unpack[ExportArguments],
    ) -> torch.utils.data.IterableDataset[dict[str, torch.Tensor]]: ...

    @overload
    def to_torch_dataset(
        self,
        *,
        lists: _Lists = "dense",
        collate: Callable[[dict[str, torch.Tensor]], T],
        **arguments: Unpack[ExportArguments],
    ) -> torch.utils.data.IterableDataset[T]: ...

    @with_arguments(ExportArguments, _USUAL)
    def to_torch_dataset(
        self,
        *,
        lists: _Lists = "dense",
        collate: Callable[[dict[str, torch.Tensor]], Any] | None = None,
        **arguments: Unpack[ExportArguments],
    ) -> torch.utils.data.IterableDataset[Any]:
        """Returns a `torch.utils.data.IterableDataset`, whose batches are tensors as of `to_torch`. Needs the extra `torch`.

        It is for frameworks that ask for a `DataLoader(…, batch_size=None)`. Batches, their order and states are those of
        `to_torch`, at any `num_workers`, forked or not, persistent or not. Use `num_workers=0`, the default: threads of this
        process do the work, and tensors stay where they are. With workers one of them runs the pipeline, on all cores and
        bytes of its budgets, and the others end at once. Its tensors are copied into shared memory. That pays where the loop
        itself holds the interpreter lock. Where functions of the pipeline hold it, use `executor="process"`.

        Each `iter()` of the `DataLoader` is the next epoch, from the dataset's count on, unless `set_epoch` names another one.
        A pass counts once the `DataLoader` has delivered its second batch, or once the pass has ended. A `DataLoader` with
        a `collate_fn` of its own, or with `pin_memory`, makes or takes batches ahead: there a look counts. A small temporary
        file keeps the count, also for copies on this machine. `len()` is known where that of `to_torch` is.

        `load_state_dict` makes the next pass go on, in this process or in workers. It takes the states of `to_torch`, of this
        dataset, and of `torchdata`'s `StatefulDataLoader` at any number of workers. With workers only a
        `StatefulDataLoader` can tell the state. Where several processes train, call `split_by_rank` first: workers run the
        part of their rank. Under accelerate do not: accelerate shares out the batches of its main process
        (`dispatch_batches`).

        Args:
            columns: As in `to_torch`.
            dtypes: As in `to_torch`.
            null: As in `to_torch`.
            lists: As in `to_torch`.
            collate: As in `to_torch`. Where workers are not forked, `collate` and all functions of the pipeline have
                to be functions of a module.
            strict_zero_copy: As in `to_torch`, up to the way out of a worker.

        Raises:
            MissingPackageError: PyTorch is not installed.
            PlanError: As in `to_torch`; or the `DataLoader` has a `batch_size`, which would make batches of batches; or
                ranks would have to agree on their steps, which workers cannot; when iteration starts.
            ForkError: A worker was forked from a process that had run a pipeline, or had used Polars, which this
                pipeline needs; the message names ways out.
            StateError: Workers run the pipeline, and a state was asked for in this process.
            SchemaError: As in `to_torch`.
            DataError: As in `to_torch`.
            FunctionError: As in `to_torch`.

        Examples:
            >>> import arrowflow as af
            >>> from torch.utils.data import DataLoader  # doctest: +SKIP
            >>> loader = DataLoader(af.range(3).batch(2).to_torch_dataset(), batch_size=None)  # doctest: +SKIP
            >>> [batch["id"].tolist() for batch in loader]  # doctest: +SKIP
            [[0, 1], [2]]
        """
        from arrowflow.loaders.torch_dataset import prepared_in_worker, torch_dataset

        name = "to_torch_dataset"
        request = export_request(name, lists, arguments, torch_dtype)
        prepares, rest = self._picked(name, request)
        in_worker: Callable[[], run.Prepared] = prepares
        alone = rewritten(self._plan, _alone)
        if alone is not self._plan:
            in_worker = partial(prepared_in_worker, Dataset(alone)._picked(name, request)[0])
        epochs = SharedEpochs(PassStart(self._epochs.begins.epoch), self._epochs)
        return torch_dataset(prepares, in_worker, epochs, _hand_over(name, TorchExport, rest, collate))

    @overload
    def to_jax(
        self, *, lists: _Arrays = "dense", collate: None = None, **arguments: Unpack[JaxArguments]
    ) -> Loader[dict[str, jax.Array]]: ...

    @overload
    def to_jax(
        self,
        *,
        lists: _Arrays = "dense",
        collate: Callable[[dict[str, jax.Array]], T],
        **arguments: Unpack[JaxArguments],
    ) -> Loader[T]: ...

    @overload
    def to_jax(
        self, *, lists: _Ragged, collate: None = None, **arguments: Unpack[JaxArguments]
    ) -> Loader[dict[str, Any]]: ...

    @overload
    def to_jax(
        self, *, lists: _Ragged, collate: Callable[[dict[str, Any]], T], **arguments: Unpack[JaxArguments]
    ) -> Loader[T]: ...

    @with_arguments(JaxArguments, _USUAL)
    def to_jax(
        self,
        *,
        lists: _Lists = "dense",
        collate: Callable[[dict[str, jax.Array]], Any] | None = None,
        **arguments: Unpack[JaxArguments],
    ) -> Loader[Any]:
        """Returns a loader of batches as dicts of JAX arrays, by column. Needs the extra `jax`.

        The transfer of each batch begins before the batch in front of it is delivered, so `next` waits until two
        batches are there. States, errors and the end come in order nevertheless. On the CPU, memory that nobody else
        holds is aliased where it is aligned to 64 bytes. Without `jax_enable_x64` dtypes of 64 bits become 32, as
        always in JAX. But a number that does not fit is an error.

        Args:
            columns: As in `to_numpy`.
            dtypes: As in `to_numpy`, also as `jnp.bfloat16`. Dates, times and decimals have no array without a dtype.
            null: As in `to_numpy`.
            lists: As in `to_numpy`; ragged lists do not go with `sharding`.
            collate: As in `to_numpy`.
            strict_zero_copy: As in `to_numpy`; batches for another device are copied there in any case.
            sharding: Makes global arrays. Each process gives the rows of its own devices, so call `shard` before. A
                batch needs a number of rows that its devices can share.
            engine: As in `to_numpy`.

        Raises:
            MissingPackageError: JAX is not installed.
            PlanError: As in `to_numpy`.
            SchemaError: As in `to_numpy`, for the types that JAX has.
            DataError: As in `to_numpy`; or the devices cannot share the rows of a batch.
            FunctionError: As in `to_numpy`.

        Examples:
            >>> import arrowflow as af
            >>> loader = af.range(3).batch(2).to_jax()
            >>> len(loader)
            2
            >>> [batch["id"].tolist() for batch in loader]  # doctest: +SKIP
            [[0, 1], [2]]
        """
        sharding = arguments.get("sharding")
        if sharding is not None and not hasattr(sharding, "device_set"):
            raise PlanError(f"to_jax: sharding is a jax.sharding.Sharding, got {shown(sharding)}")
        if sharding is not None and lists == "ragged":
            raise PlanError("to_jax: ragged lists have no rows that devices could share; take lists='padded'")
        export = partial(JaxExport, sharding=sharding)
        return self._loader("to_jax", export, lists, collate, arguments, arrived=lambda batch: batch)

    def to_tf(
        self, *, columns: _Columns = None, dtypes: Any = None, null: Any = "error", lists: _Lists = "dense"
    ) -> tf.data.Dataset:
        """Returns a `tf.data.Dataset` of batches as dicts of tensors, by column. Needs the extra `tf`.

        For Keras on TensorFlow: `model.fit(ds.batch(64).to_tf().map(lambda batch: (batch["x"], batch["y"])))`. Each
        iteration runs the next epoch, as that of a loader. Its `element_spec` comes from the schema. The size of batches is
        known where `batch` has `drop_remainder` or `mask`, their number where `len(ds)` is. Texts and bytes come as `tf.string`.

        On the CPU, memory that nobody else holds is aliased where it is aligned to 64 bytes. Errors of the pipeline come as
        errors of TensorFlow, whose text names them. There is no state, since TensorFlow may read ahead: to resume, iterate
        over `to_numpy()`, whose arrays functions of TensorFlow take.

        Args:
            columns: As in `to_numpy`.
            dtypes: As in `to_numpy`, also as `"bfloat16"`. Dates, times and decimals have no tensor without a dtype.
            null: As in `to_numpy`.
            lists: As in `to_numpy`; ragged lists come as `tf.RaggedTensor`.

        Raises:
            MissingPackageError: TensorFlow is not installed.
            PlanError: As in `to_numpy`; or only running the pipeline tells the schema.
            SchemaError: As in `to_numpy`, for the types that TensorFlow has.

        Examples:
            >>> import arrowflow as af
            >>> batches = af.range(3).batch(2).to_tf()  # doctest: +SKIP
            >>> [batch["id"].numpy().tolist() for batch in batches]  # doctest: +SKIP
            [[0, 1], [2]]
        """
        name = "to_tf"
        arguments: ExportArguments = {"columns": columns, "dtypes": dtypes, "null": null}
        prepares, request = self._picked(name, export_request(name, lists, arguments))
        loader: Loader[Any] = Loader(prepares, self._counter(), _hand_over(name, TfExport, request, None))
        return tf_dataset(prepares(), request, loader)

    @overload
    def to_polars(
        self, *, collate: None = None, columns: _Columns = None, engine: RayEngine | None = None
    ) -> Loader[pl.DataFrame]: ...

    @overload
    def to_polars(
        self,
        *,
        collate: Callable[[pl.DataFrame], T],
        columns: _Columns = None,
        engine: RayEngine | None = None,
    ) -> Loader[T]: ...

    def to_polars(
        self,
        *,
        columns: _Columns = None,
        collate: Callable[[pl.DataFrame], Any] | None = None,
        engine: RayEngine | None = None,
    ) -> Loader[Any]:
        """Returns a loader of data frames, which keep nulls and lists as they are.

        Args:
            columns: As in `to_numpy`.
            collate: As in `to_numpy`.
            engine: As in `to_numpy`.

        Raises:
            PlanError: As in `to_numpy`.
            SchemaError: Polars lacks the type of a column; when iteration starts.
            FunctionError: As in `to_numpy`.

        Examples:
            >>> import arrowflow as af
            >>> [frame["id"].sum() for frame in af.range(4).batch(2).to_polars()]
            [1, 5]
        """
        arguments: LoaderArguments = {"columns": columns, "engine": engine}
        return self._loader("to_polars", PolarsExport, "dense", collate, arguments)

    def _loader(
        self,
        name: str,
        make_export: MakeExport[Any],
        lists: str,
        collate: Callable[[Any], Any] | None,
        arguments: LoaderArguments,
        *,
        resolve: Callable[[Any], Any] = dtype_named,
        arrived: Callable[[Any], Any] | None = None,
    ) -> Loader[Any]:
        engine = arguments.get("engine")
        dataset = self if engine is None else self.with_engine(engine)
        prepares, request = dataset._picked(name, export_request(name, lists, arguments, resolve))
        hand_over = replace(_hand_over(name, make_export, request, collate), arrived=arrived)
        return Loader(prepares, self._counter(), hand_over)

    def _counter(self) -> EpochCounter:
        """Returns the counter of a new loader."""
        return EpochCounter(PassStart(self._epochs.begins.epoch), dataset=self._epochs)

    def _picked(
        self, operator: str, request: ExportRequest
    ) -> tuple[Callable[[], run.Prepared], ExportRequest]:
        """Returns the function that prepares the plan for a loader, and the request that is left to the loader.

        The function pickles, as the plan does.
        """
        selected, picks, request = self._selected(operator, request)
        return selected._ready_to_pick if picks else selected._ready, request

    def _selected(self, operator: str, request: ExportRequest) -> tuple[Dataset, bool, ExportRequest]:
        """Returns the dataset of a loader's columns, whether the loader picks them, and the request that is left to it.

        The plan itself picks the columns of selectors, which see all columns.
        """
        named = {**request.dtypes, **request.nulls}
        if named:  # a plan whose columns are known refuses an unknown name here
            Dataset(Select.named_by(operator, self._plan, list(named)))
        if request.columns is None:
            return self, False, request
        selected = Dataset(Select.named_by(operator, self._plan, as_given(request.columns)))
        if all(isinstance(column, str) for column in request.columns):
            return selected, True, request
        return selected, False, replace(request, columns=None)

    def to_ray(self) -> ray.data.Dataset:
        """Returns a `ray.data.Dataset` of the batches of epoch 0, in order. Lazy: Ray reads when it runs.

        One task of Ray runs the pipeline, with its budgets, and hands over its batches; Ray joins small ones to blocks. For
        training, `to_torch(engine=af.RayEngine(…))` keeps exact order and states, which Ray Data does not.

        Raises:
            MissingPackageError: Ray Data is not installed.

        Examples:
            >>> import arrowflow as af
            >>> blocks = af.range(1_000).batch(100).to_ray()  # doctest: +SKIP
            >>> blocks.count()  # doctest: +SKIP
            1000
        """
        from arrowflow.cluster.to_ray import ray_dataset

        rows = self.num_rows
        return ray_dataset(
            self._first_epoch, self._ready().bound.schema, rows if isinstance(rows, int) else None
        )

    def _first_epoch(self) -> Run[pa.RecordBatch]:
        return Run(self._ready(), EpochCounter(), RecordBatches())

    def to_reader(self) -> pa.RecordBatchReader:
        """Returns a `pyarrow.RecordBatchReader` over epoch 0.

        Raises:
            PlanError: The schema is unknown before the pipeline runs, and the pipeline yields no rows that could tell
                it.

        Examples:
            >>> import arrowflow as af
            >>> af.range(3).to_reader().read_all().num_rows
            3
        """
        prepared = self._ready()
        batches = Run(prepared, EpochCounter(), RecordBatches())
        return pa.RecordBatchReader.from_batches(*_with_schema(prepared.bound.schema, batches))

    def to_table(self) -> pa.Table:
        """Returns all rows of epoch 0 as a `pyarrow.Table`, which has to fit into memory.

        Examples:
            >>> import arrowflow as af
            >>> af.range(3).to_table().num_rows
            3
        """
        return self.to_reader().read_all()

    def reduce(
        self,
        initial_state: Any,
        fn: Callable[..., Any],
        *,
        format: BatchFormat = "arrow",
        columns: _Columns = None,
    ) -> Any:
        """Folds all rows of epoch 0 into a state, in order, one call of a function after the other.

        The function sees the pieces that `map` sees; after `batch`, exactly the batches. It runs on this thread while
        workers read ahead. With `Options.deterministic=False` rows come in any order.

        Args:
            initial_state: Any Python object.
            fn: Gets the state and a record batch, and returns the next state.
            format: Type of the batches: `"arrow"`: `pyarrow.RecordBatch`. `"numpy"`: dicts of arrays. `"polars"`:
                data frames.
            columns: The columns that the function reads; others are not read from files.

        Raises:
            FunctionError: The function raised.

        Examples:
            >>> import arrowflow as af
            >>> af.range(10).reduce(0, lambda total, batch: total + int(batch["id"].sum()), format="numpy")
            45
        """
        check_function("reduce", fn)
        check_format("reduce", format)
        chosen = None if columns is None else chosen_columns("reduce", (columns,))
        before = self._plan if chosen is None else Select.named_by("reduce", self._plan, as_given(chosen))
        with interruptions():
            prepared = run.prepare(Reduce(inputs=(before,)))
        with interruptions(), Run(prepared, EpochCounter(), RecordBatches()) as batches:
            try:
                return fold_batches(batches, initial_state, fn, format)
            except ArrowflowError as error:
                error.locate(operator="reduce")
                raise

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Exports epoch 0 through the Arrow PyCapsule interface, so that Polars, DuckDB and others read a dataset.

        A consumer decides what it makes of a stream: `pl.DataFrame(ds)` and `pd.DataFrame.from_arrow(ds)` are data
        frames, and `pl.from_arrow(ds)` is a series of structs since Polars 2.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> pl.DataFrame(af.range(3))["id"].sum()
            3
        """
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def write_parquet(
        self,
        path: str | PathLike[str],
        *,
        shard_bytes: int | str | None = None,
        shard_rows: int | None = None,
        row_group_rows: int | None = None,
        compression: str | None = "zstd",
        partition_by: str | Sequence[str] | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Written:
        """Writes epoch 0 as a folder of Parquet files, `part-00000.parquet` and so on, in the order of the rows.

        A half-written dataset never looks whole. On the local file system the folder gets its name in one step, once
        all shards are on the disk. An error, an interrupt or a crash leaves the name as it was, with one exception.
        The last step of an overwrite is two steps: after a crash between them the name is gone. The old folder and
        the new one then lie beside it as `.replaced-…` and `.writing-…`. The next write into this place gives the old
        folder its name back. It also removes what dead processes have left; a live writer holds a lock. Several
        writers may overwrite at the same time, in any threads, processes and machines: the last to finish is seen.

        On other file systems shards get their names when all are stored, and `read_parquet` refuses the folder while
        they do.

        Metadata of the first file that was read, or of a given table, are kept where the columns that they name are still
        there: those of GeoParquet, of pandas and of fields. Of `geo`, the bounds of the rows are left out.

        Memory: one row group, twice. The borders of batches are not kept: the rows alone decide where files and row
        groups end. Parquet does not have all types: `timestamp[s]` and `time32[s]` are read back as `[ms]`, `date64`
        as `date32`. Values of `date64` that are no whole days are refused, and so are fixed-size lists of size 0.

        With `partition_by=["year", "country"]` the rows lie in folders such as `year=2024/country=de/`, in their order
        within each folder, and the files do not hold these columns. `read_parquet` gives the columns back, behind the
        others: whole numbers as int64, all else as string, other types by its `schema=`. A null is called
        `__HIVE_DEFAULT_PARTITION__`, and special characters are percent-encoded. Sizes of files and row groups count
        within a folder. Memory: besides, 256 MiB of rows that wait for their row groups; beyond it row groups get
        shorter. At most 100 files are open; if there are more folders at a time, files get shorter, too.

        Args:
            path: The folder, or a URL that `pyarrow.fs` or fsspec knows. The folder and its parents are made. A name that
                ends like that of a file, as in `"one.parquet"`, is an error unless a `/` follows.
            shard_bytes: A file ends with the row group that takes it to that size. Default: 256 MiB, if no
                `shard_rows` are given.
            shard_rows: A file has exactly that many rows; the last file has the rest. With both limits, the first
                that is reached counts.
            row_group_rows: Rows of a row group, which readers decode in one call. Default: 262,144, fewer where their
                values exceed 64 MiB.
            compression: `"zstd"`, `"snappy"`, `"lz4"`, `"gzip"`, `"brotli"` or None.
            partition_by: The columns that name folders: whole numbers, texts, booleans, dates, timestamps or decimals.
            filesystem: A file system of `pyarrow.fs` or fsspec. By default the path tells it.
            storage_options: Arguments of the client that the path needs, as in `read_parquet`.
            overwrite: Whether the last step replaces a folder of Parquet files that is there already.

        Raises:
            WriteError: The folder is not empty or a mount point, or the disk is full. Parquet has no place for a type
                or a value, or there are over 100,000 files. A column of `partition_by` is not there, its type or a value
                names no folder, or no other column is left. Nothing is visible.
            PlanError: An argument is not valid; or there are no rows, and only rows could tell the schema.

        Examples:
            >>> import arrowflow as af, pathlib, tempfile
            >>> folder = pathlib.Path(tempfile.mkdtemp()) / "numbers"
            >>> written = af.range(10).write_parquet(folder, shard_rows=4)
            >>> [pathlib.Path(file).name for file in written.files], written.num_rows
            (['part-00000.parquet', 'part-00001.parquet', 'part-00002.parquet'], 10)
            >>> af.read_parquet(folder).num_rows
            10
        """
        return self._write(
            writer_of(
                PARQUET,
                path,
                shard_bytes=shard_bytes,
                shard_rows=shard_rows,
                group_rows=row_group_rows,
                compression=compression,
                partition_by=partition_by,
                filesystem=filesystem,
                storage_options=storage_options,
                overwrite=overwrite,
            )
        )

    def write_ipc(
        self,
        path: str | PathLike[str],
        *,
        shard_bytes: int | str | None = None,
        shard_rows: int | None = None,
        batch_rows: int | None = None,
        compression: str | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Written:
        """Writes epoch 0 as a folder of Arrow IPC files, `part-00000.arrow` and so on, in the order of the rows.

        Everything that `write_parquet` says holds here too, but all types stay as they are. Uncompressed files, the
        default, are mapped into memory when they are read, and not copied.

        Args:
            path: As in `write_parquet`.
            shard_bytes: As in `write_parquet`.
            shard_rows: As in `write_parquet`.
            batch_rows: Rows of a record batch in the file, which readers map in one call. Default: 65,536, fewer
                where their values exceed 64 MiB.
            compression: `"lz4"`, `"zstd"` or None.
            filesystem: As in `write_parquet`.
            storage_options: As in `write_parquet`.
            overwrite: As in `write_parquet`, for a folder of IPC files.

        Raises:
            WriteError: As in `write_parquet`.
            PlanError: As in `write_parquet`.

        Examples:
            >>> import arrowflow as af, pathlib, tempfile
            >>> folder = pathlib.Path(tempfile.mkdtemp()) / "numbers"
            >>> len(af.range(10).write_ipc(folder).files), af.read_ipc(folder).num_rows
            (1, 10)
        """
        return self._write(
            writer_of(
                IPC,
                path,
                shard_bytes=shard_bytes,
                shard_rows=shard_rows,
                group_rows=batch_rows,
                compression=compression,
                filesystem=filesystem,
                storage_options=storage_options,
                overwrite=overwrite,
            )
        )

    def write_csv(
        self,
        path: str | PathLike[str],
        *,
        shard_bytes: int | str | None = None,
        shard_rows: int | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Written:
        """Writes epoch 0 as a folder of CSV files, `part-00000.csv` and so on, in the order of the rows.

        Half-written datasets are treated as by `write_parquet`. Each file has a header. Texts are quoted:
        an empty text stays one, and a null is nothing between two commas. CSV does not keep types: give them to
        `read_csv` as `schema=` where its guess would differ.

        Args:
            path: As in `write_parquet`.
            shard_bytes: A file ends with the first block of 65,536 rows, or of 64 MiB, that takes it to that size.
                Default: 256 MiB, if no `shard_rows` are given.
            shard_rows: As in `write_parquet`.
            filesystem: As in `write_parquet`.
            storage_options: As in `write_parquet`.
            overwrite: As in `write_parquet`, for a folder of CSV files.

        Raises:
            WriteError: As in `write_parquet`. CSV has no place for lists, structs, bytes, times of day, durations and
                float16, nor for a null of the only column.
            PlanError: As in `write_parquet`.

        Examples:
            >>> import arrowflow as af, pathlib, tempfile
            >>> folder = pathlib.Path(tempfile.mkdtemp()) / "numbers"
            >>> len(af.range(10).write_csv(folder, shard_rows=4).files), af.read_csv(folder).num_rows
            (3, 10)
        """
        return self._write(
            writer_of(
                CSV,
                path,
                shard_bytes=shard_bytes,
                shard_rows=shard_rows,
                filesystem=filesystem,
                storage_options=storage_options,
                overwrite=overwrite,
            )
        )

    def write_json(
        self,
        path: str | PathLike[str],
        *,
        shard_bytes: int | str | None = None,
        shard_rows: int | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Written:
        """Writes epoch 0 as a folder of JSON lines, `part-00000.jsonl` and so on, in the order of the rows.

        Half-written datasets are treated as by `write_parquet`. Each row is an object on a line of its own, in
        which null values stand, too. JSON does not keep types: give them to `read_json` as `schema=` where its guess
        would differ. Timestamps and decimals are texts. While a block of rows is written, its lines are in memory beside it.

        Args:
            path: As in `write_parquet`.
            shard_bytes: As in `write_csv`.
            shard_rows: As in `write_parquet`.
            filesystem: As in `write_parquet`.
            storage_options: As in `write_parquet`.
            overwrite: As in `write_parquet`, for a folder of JSON files.

        Raises:
            WriteError: As in `write_parquet`. JSON has no place for bytes, dates, times of day, durations, float16 and
                maps, nor for NaN and infinity.
            PlanError: As in `write_parquet`.

        Examples:
            >>> import arrowflow as af, pathlib, tempfile
            >>> folder = pathlib.Path(tempfile.mkdtemp()) / "numbers"
            >>> af.from_numpy({"x": [[1, 2], [3, 4]]}).write_json(folder).num_rows
            2
            >>> print((folder / "part-00000.jsonl").read_text())
            {"x":[1,2]}
            {"x":[3,4]}
            <BLANKLINE>
        """
        return self._write(
            writer_of(
                JSON,
                path,
                shard_bytes=shard_bytes,
                shard_rows=shard_rows,
                filesystem=filesystem,
                storage_options=storage_options,
                overwrite=overwrite,
            )
        )

    def write_tfrecord(
        self,
        path: str | PathLike[str],
        *,
        shard_bytes: int | str | None = None,
        shard_rows: int | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Written:
        """Writes epoch 0 as a folder of TFRecord files, `part-00000.tfrecord` and so on, in the order of the rows.

        Half-written datasets are treated as by `write_parquet`. Each row is a `tf.train.Example` with a feature for each
        column; a null has none. Whole numbers become int64, texts become bytes: give types to `read_tfrecord` as `schema=`.
        Needs the extra `tfrecord`. protobuf encodes one row after the other, in some 20 µs for a dozen columns.

        Args:
            path: As in `write_parquet`.
            shard_bytes: As in `write_csv`.
            shard_rows: As in `write_parquet`.
            filesystem: As in `write_parquet`.
            storage_options: As in `write_parquet`.
            overwrite: As in `write_parquet`, for a folder of `.tfrecord` files.

        Raises:
            WriteError: As in `write_parquet`. An example has no place for types other than whole numbers (but uint64), float32,
                texts, bytes and lists of them, nor for nulls inside of lists.
            PlanError: As in `write_parquet`.
            MissingPackageError: protobuf or google-crc32c is not installed.

        Examples:
            >>> import arrowflow as af, pathlib, tempfile
            >>> folder = pathlib.Path(tempfile.mkdtemp()) / "numbers"
            >>> af.from_arrow(pa.table({"x": [1, None], "y": [b"a", b"b"]})).write_tfrecord(folder).num_rows
            2
            >>> af.read_tfrecord(folder).to_table().to_pylist()
            [{'x': 1, 'y': b'a'}, {'x': None, 'y': b'b'}]
        """
        return self._write(
            writer_of(
                TFRECORD,
                path,
                shard_bytes=shard_bytes,
                shard_rows=shard_rows,
                filesystem=filesystem,
                storage_options=storage_options,
                overwrite=overwrite,
            )
        )

    def write_webdataset(
        self,
        path: str | PathLike[str],
        *,
        shard_bytes: int | str | None = None,
        shard_rows: int | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Written:
        """Writes epoch 0 as a folder of WebDataset shards, `part-00000.tar` and so on, in the order of the rows.

        Half-written datasets are treated as by `write_parquet`. The column `__key__` has the key of each row, a text
        or a number: the name of a file without a dot, and maybe with folders. Each other column is a member `key.column`; a null
        has none. Bytes stay as they are, numbers and booleans become texts. So name columns as readers of the
        format expect them, in lower case: `jpg`, `cls`, `txt`, `json`. Equal rows make equal archives. A column without a
        value in the first shard is read back by `read_webdataset(…, missing_columns="null")`, or with `schema=`.

        Args:
            path: As in `write_parquet`.
            shard_bytes: As in `write_csv`.
            shard_rows: As in `write_parquet`.
            filesystem: As in `write_parquet`.
            storage_options: As in `write_parquet`.
            overwrite: As in `write_parquet`, for a folder of `.tar` files.

        Raises:
            WriteError: As in `write_parquet`. There is no column `__key__`, a key is no name or comes twice in a row, a row has no
                value, or a column has values that are neither bytes, texts, numbers nor booleans.
            PlanError: As in `write_parquet`.

        Examples:
            >>> import arrowflow as af, pathlib, tempfile
            >>> folder = pathlib.Path(tempfile.mkdtemp()) / "numbers"
            >>> rows = af.from_arrow(pa.table({"txt": ["a cat", "a dog"], "cls": [1, None]}))
            >>> rows.enumerate(name="__key__").write_webdataset(folder).num_rows
            2
            >>> af.read_webdataset(folder).to_table().to_pylist()
            [{'__key__': '0', 'txt': 'a cat', 'cls': 1}, {'__key__': '1', 'txt': 'a dog', 'cls': None}]
        """
        return self._write(
            writer_of(
                WEBDATASET,
                path,
                shard_bytes=shard_bytes,
                shard_rows=shard_rows,
                filesystem=filesystem,
                storage_options=storage_options,
                overwrite=overwrite,
            )
        )

    def _write(self, writer: Writer) -> Written:
        prepared = self._ready()
        with interruptions():
            writer.check()
            with Run(prepared, EpochCounter(), RecordBatches(), title=writer.operator) as running:
                schema, batches = _with_schema(prepared.bound.schema, running)
                sources = [node for node in post_order(prepared.bound) if isinstance(node, Read | FromMemory)]
                stored = [source.stored_schema for source in sources]
                return writer.write(
                    batches, with_metadata(schema, [each for each in stored if each is not None])
                )

    # --------------------------------------------------------------------------------------------- look

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types. Reads one footer per file source.

        Raises:
            PlanError: Only running the pipeline tells the schema: a `map` or a generator has no `schema=`.

        Examples:
            >>> import arrowflow as af
            >>> af.range(3).schema
            id: int64
        """
        schema = self._ready().bound.schema
        if schema is None:
            raise PlanError(
                "the schema is only known once the pipeline runs, since a map or a generator declares none; pass "
                "schema= to it. What interleave and flat_map open shows only in their rows, as in head(1).schema"
            )
        return schema

    @property
    def num_rows(self) -> int | float | None:
        """The exact number of rows of one epoch, from footers; `math.inf` for an endless pipeline.

        Those of steps that `skip_steps` leaves out are among them.

        None where only running the pipeline tells. Then the last whole epoch of this dataset or its loaders tells, also
        of a generator, unless random draws make epochs differ.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> numbers = af.range(10).skip(3)
            >>> numbers.num_rows, numbers.repeat().num_rows, numbers.filter(pl.col("id") > 5).num_rows
            (7, inf, None)
        """
        return self._ready().num_rows

    def __len__(self) -> int:
        """Returns the batches of the next epoch, as of a loader; of a dataset that does not end in batches, the rows.

        Raises:
            TypeError: The pipeline is endless, or only running it tells.

        Examples:
            >>> import arrowflow as af
            >>> len(af.range(10)), len(af.range(10).batch(4))
            (10, 3)
        """
        return run.length(self._ready(), self._epochs.begins.epoch, of_rows=not self._plan.batched)

    def __bool__(self) -> bool:
        """Returns True: a dataset is there, whether or not it has rows, which it may cost time to find out."""
        return True

    def fit(
        self,
        *,
        mean: Sequence[str] = (),
        min_max: Sequence[str] = (),
        quantiles: Mapping[str, int] | None = None,
        vocabulary: Mapping[str, int] | None = None,
    ) -> FeatureStatistics:
        """Finds statistics of columns in one pass over the rows of epoch 0, for features.

        Only the named columns are read, and a `filter` or `split` before it is honoured: fit on the training part alone.
        Nulls and NaN count as missing. Numbers count as float64, so whole numbers beyond 2^53 are rounded. The same rows in
        the same order give the same figures to the last bit; in another order, a mean may differ in the last bit. Memory
        stays flat: a MiB at most for each column with quantiles, and each value of a vocabulary once.

        Args:
            mean: Columns of numbers, for `standardize` and `impute`.
            min_max: Columns of numbers, for `rescale`.
            quantiles: Into how many buckets `bucketize` puts each of these columns, equally many rows in each. Ranks are
                off by 0.4 % of the rows at most; under 65,536 rows they are exact.
            vocabulary: How many of the most frequent values of each of these columns `index` and `one_hot` know. Columns
                hold texts or whole numbers, and at most a million different ones.

        Raises:
            PlanError: A column is unknown, none is named, or the dataset is endless.
            SchemaError: A column has a type that does not fit.
            DataError: There are no rows, or a column has too many different values.

        Examples:
            >>> import arrowflow as af
            >>> sales = af.from_numpy({"price": [1.0, 2.0, 6.0], "brand": ["b", "a", "b"]})
            >>> stats = sales.fit(mean=["price"], vocabulary={"brand": 100})
            >>> stats.mean("price"), stats.vocabulary("brand")
            (3.0, ['b', 'a'])
            >>> sales.select(stats.index("brand")).to_table()["brand"].to_pylist()
            [1, 2, 1]
        """
        columns = fitting.asked_for(
            self.schema,
            mean=mean,
            min_max=min_max,
            quantiles={} if quantiles is None else quantiles,
            vocabulary={} if vocabulary is None else vocabulary,
        )
        if not self._counted("fit", columns):
            raise DataError(
                "fit: there are no rows, so no column has a mean or a vocabulary; look at filters and paths"
            )
        fitting.check_finite(columns)
        return FeatureStatistics(columns)

    def describe(self) -> pl.DataFrame:
        """Returns figures of each column over all rows of epoch 0, in one pass and little memory.

        The rows of the result are count and nulls (NaN counts as null), mean, standard deviation, least value, quartiles,
        greatest value, and about how many different values there are, with a standard error
        of 1.6 %. Figures that a type does not have are null.

        Raises:
            PlanError: The dataset is endless.
            DataError: Values cannot be counted.

        Examples:
            >>> import arrowflow as af
            >>> af.range(1, 6).describe()["id"].to_list()
            [5.0, 0.0, 3.0, 1.5811388300841898, 1.0, 2.0, 3.0, 4.0, 5.0, 5.0]
        """
        columns = fitting.everything(self.schema)
        return fitting.described(columns, self._counted("describe", columns))

    def _counted(self, operator: str, columns: fitting.Columns) -> int:
        """Adds all rows of epoch 0 to some columns, and returns how many there were."""
        plan = Select.named_by(operator, self._plan, as_given(tuple(columns)))
        batches = Dataset(plan).batch(batch_rows(columns))
        bar, found, clock = None, 0, WallClock()
        try:
            prepared = self._ready()
            if prepared.num_rows == math.inf:
                raise PlanError(
                    f"{operator}: the dataset is endless; leave repeat() out of it, or take(n) rows"
                )
            if prepared.options.progress:  # the run's own bar would count parts
                batches = batches.with_options(Options(progress=False))
                total = prepared.num_rows
                bar = ProgressBar(total if isinstance(total, int) else None, operator)
            began = clock.now()
            counts = batches.map(
                partial(part_of, columns=columns),
                schema=part_schema(columns, batches.schema),
                on_error="raise",
            )
            for part in counts.to_reader():
                found += add_part(columns, part)
                if bar is not None:
                    now = clock.now()
                    bar.update(found, now, 0.0, now - began, 0)
            return found
        except ArrowflowError as error:
            error.locate(operator=operator)
            raise
        finally:
            if bar is not None:
                bar.close()

    def head(self, n: int = 5) -> pl.DataFrame:
        """Returns the first `n` rows of epoch 0 as a data frame of Polars, reading as little as possible.

        Unlike iteration it counts as no epoch. `take(n)` gives a dataset instead, and `take(n).to_table()` an Arrow table
        with the very types of the schema: a data frame holds tensors as their storage.

        Raises:
            PlanError: `n` is no number of rows.
            SchemaError: Polars cannot hold the type of a column; the message says what to do.

        Examples:
            >>> import arrowflow as af
            >>> af.range(100).batch(32).head(3)["id"].to_list()
            [0, 1, 2]
        """
        wanted = check_size("head", "n", n, least=0)
        ds = self if self._plan.batched else self.take(wanted)
        found: list[pa.RecordBatch] = []
        with ds.to_reader() as reader:
            as_frame = PolarsExport(reader.schema)
            while wanted > sum(batch.num_rows for batch in found):
                batch = next(reader, None)
                if batch is None:
                    break
                found.append(batch)
            found = found or [empty_batch(reader.schema)]
        return pl.concat([as_frame(batch) for batch in found]).head(wanted)

    def diagram(self) -> str:
        """Returns the plan as written as a picture: SVG text, in the colour of the text around it.

        Sources are on top, and each input of an operator has a branch of its own. Nothing is read. A notebook shows it
        with the dataset.

        Examples:
            >>> import arrowflow as af
            >>> picture = af.range(10).shuffle(10, seed=1).batch(2).diagram()
            >>> picture[:4], picture.count("<rect")
            ('<svg', 3)
        """
        return diagram(self._plan)

    def explain(self) -> str:
        """Returns the plan as written, as optimised and as it runs.

        The text shows which operators were pushed into the scan or fused, and which engine runs them.

        Examples:
            >>> import arrowflow as af, polars as pl
            >>> print(af.range(10).filter(pl.col("id") > 3).batch(2).explain())  # doctest: +ELLIPSIS
            logical plan
              range(start=0, stop=10, step=1)
              filter(...)
              batch(batch_size=2, drop_remainder=False)
            ...
        """
        prepared = self._ready()
        applied = ", ".join(prepared.applied) or "none applied"
        sections = {
            "logical plan": render_plan(prepared.bound),
            f"optimised plan (rules: {applied})": render_plan(prepared.optimised),
            f"physical plan (cpu_budget {prepared.options.cpu_budget}, ram_budget {prepared.options.ram_budget:,})": (
                render_chain(prepared.chain)
            ),
        }
        return printable(
            "\n".join(
                line
                for title, lines in sections.items()
                for line in (title, *("  " + line for line in lines))
            )
        )


MOST_COLUMNS: Final = 100
"""The most columns that the text of a dataset shows."""

MOST_FILTERED_ROWS: Final = 65_536
"""At most so many rows in memory are filtered for a look at five."""

MOST_FOOTERS: Final = 64
"""The most local files whose footers the text of a dataset reads to tell the rows."""


def plans_of(operator: str, datasets: Sequence[object]) -> tuple[Node, ...]:
    """Returns the plans of datasets.

    Raises:
        PlanError: A value is no dataset.
    """
    for number, value in enumerate(datasets, 1):
        if isinstance(value, list | tuple) and any(isinstance(each, Dataset) for each in value):
            raise PlanError(
                f"{operator}: expected datasets as arguments of their own, got a list: put * before it"
            )
        if not isinstance(value, Dataset):
            raise PlanError(f"{operator}: argument {number} is a Dataset, got {type(value).__name__}")
    return tuple(value._plan for value in datasets if isinstance(value, Dataset))


def _alone(node: Node) -> Node:
    """Returns a node that does not talk to other ranks."""
    if isinstance(node, SplitByRank) and node.coordinator is not None:
        return replace(node, coordinator=None)
    return node


def _other_than_brackets(key: object) -> str:
    """Returns what to write for a key in brackets: names of columns, a slice, or the number of a row."""
    if isinstance(key, str) or (isinstance(key, list | tuple) and all(isinstance(name, str) for name in key)):
        return (
            f"a dataset has no columns in brackets: ds.select({shown(key)}) is the dataset of these columns, and "
            f"ds.to_table().select({shown([key] if isinstance(key, str) else key)}) their values, in memory"
        )
    if isinstance(key, pl.Expr):
        return f"a dataset has no rows in brackets: ds.filter({shown(key)}) is the dataset of these rows"
    if isinstance(key, slice):
        text = "a dataset has no rows in brackets:"
        start, stop = key.start or 0, key.stop
        if key.step or not (isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop):
            return (
                f"{text} ds.skip(n).take(m) are m rows after the first n, and ds.shard(n, 0) is every nth row"
            )
        rest = f"ds.skip({start})" if start else "ds"
        rows = stop - start
        return f"{text} {rest}.take({rows}) is the dataset of these rows, and {rest}.head({rows}) a data frame of them"
    return (
        "a dataset has no rows by number: it is read in order, as skip(n).take(1) reads row n; for a DataLoader of "
        "PyTorch write DataLoader(ds.to_torch_dataset(), batch_size=None), or iterate over ds.to_torch() instead"
    )


_ROW_BY_ROW = (Cast, Drop, Enumerate, FillNull, Rename, Select, Stack, Take, WithColumns, WithOptions)
"""Operators of which the first rows need only the first rows of their input."""


def _rows_to_filter(source: Node) -> tuple[range, bool]:
    """Returns the numbers of rows to filter for a look, and whether all other rows are known not to match."""
    if isinstance(source, Read):
        return rows_of_one_split(source)
    count = source.count_rows(())
    return range(MOST_FILTERED_ROWS), count is not None and count <= MOST_FILTERED_ROWS


def _within(source: Node, rows: range, node: Node) -> Node:
    return Take.of(Skip.of(node, rows.start), len(rows)) if node is source else node


def _is_here(source: Node) -> bool:
    """Whether the columns of a node are in memory, or in the footer of one file on this machine."""
    if not isinstance(source, Read):
        return source.in_memory
    if type(source) is not Read or source.missing_columns == "null":
        return False  # the log of a table is read, or all footers
    paths = source.paths if isinstance(source.paths, list | tuple) else [source.paths]
    is_local = source.filesystem is None and not any("://" in str(path) for path in paths)
    return is_local and source.format.name in {"parquet", "ipc"}


def _shown_count(rows: Count, batches: Count) -> list[str]:
    """Returns the rows and batches of an epoch as lines, as far as they are known."""
    if rows is None:
        return []
    if rows == math.inf:
        return ["rows", "  without end"]
    cut = "" if batches is None else f" in {counted(int(batches), 'batch')}"
    return ["rows", f"  {rows:,}{cut}"]


def _plan_of(value: object) -> Node | None:
    return value._plan if isinstance(value, Dataset) else None


def _with_schema(
    schema: pa.Schema | None, batches: Iterator[pa.RecordBatch]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Returns the schema of a run and all its batches; where nobody knows the schema, the first batch tells it."""
    if schema is not None:
        return schema, batches
    first = next(batches, None)
    if first is None:
        raise PlanError(
            "the pipeline yields no rows, and only rows could tell its schema; pass schema= to the `map` or the generator "
            "that has none"
        )
    # No generator, which would have ended with an error, and not raise again.
    return first.schema, itertools.chain((first,), batches)


def _hand_over(
    name: str,
    make_export: MakeExport[Any],
    request: ExportRequest,
    collate: Callable[[Any], Any] | None,
) -> HandOver[Any]:
    if collate is not None and not callable(collate):
        raise PlanError(f"{name}: collate is a function of a batch, got {shown(collate)}")
    return HandOver(name=name, make_export=make_export, request=request, collate=collate)


def _portable(node: MappingOperator) -> Node:
    """Returns the node; raises `PlanError` where worker processes call its function, and it cannot be sent to them."""
    if node.executor == "process":
        check_portable(node.name, node.fn, function_name(node.fn))
    return node


def _in_memory(table: Any) -> pa.RecordBatch:
    """Returns the rows of a table, in one piece and with the types of a pipeline."""
    plan = table._plan if isinstance(table, Dataset) else from_arrow(table)
    if not isinstance(plan, FromMemory):
        dataset = Dataset(plan)
        if dataset.num_rows == math.inf:
            raise PlanError(
                "join: the table is endless, expected one that fits into memory; leave repeat() out of it"
            )
        whole = dataset.to_table()
        plan = from_batches(whole.to_batches(), whole.schema)
    return joined_batch(list(plan.batches) or [empty_batch(plan.types)], "table")

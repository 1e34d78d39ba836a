"""`Dataset`: the fluent interface. Each method builds one node, nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import polars as pl
import pyarrow as pa

from arrowflow import run
from arrowflow.caching.store.spill import spill_folder
from arrowflow.caching.store.upkeep import local_folder
from arrowflow.delivery import EpochCounter, RecordBatches
from arrowflow.errors import FunctionError, PlanError, SchemaError, shown
from arrowflow.executor.wire import check_portable
from arrowflow.expr import parse_expression, parse_many
from arrowflow.interchange.dtypes import dtype_named
from arrowflow.interrupts import interruptions
from arrowflow.iterator import Iterator as Run
from arrowflow.loaders.base import HandOver, Loader, MakeExport
from arrowflow.loaders.dlpack import DlpackExport
from arrowflow.loaders.jax import JaxExport
from arrowflow.loaders.numpy import NumpyExport
from arrowflow.loaders.polars import PolarsExport
from arrowflow.loaders.shared_epochs import SharedEpochs
from arrowflow.loaders.torch import TorchExport, torch_dtype
from arrowflow.loaders.torch_dataset import torch_dataset
from arrowflow.loaders.torch_memory import CudaExport, PinnedExport, Transfer, device_named
from arrowflow.loaders.wishes import Wishes, wishes_of
from arrowflow.ops.batches.batch import Batch
from arrowflow.ops.batches.bucket_by_sequence_length import DEFAULT_MAX_LAG_ROWS, bucketed, check_no_padding
from arrowflow.ops.batches.group_by_window import GroupByWindow
from arrowflow.ops.batches.groups import MAX_GROUPS
from arrowflow.ops.batches.pack_sequences import STRATEGIES, PackSequences, Strategy
from arrowflow.ops.batches.padded_batch import padded
from arrowflow.ops.batches.padding import plain
from arrowflow.ops.batches.window import Window
from arrowflow.ops.cache.cache import Cache
from arrowflow.ops.cache.disk_cache import DiskCache
from arrowflow.ops.columns.cast import Cast
from arrowflow.ops.columns.drop import Drop
from arrowflow.ops.columns.fill_null import FillNull, constant
from arrowflow.ops.columns.filter import Filter, FilterBy
from arrowflow.ops.columns.rename import Rename
from arrowflow.ops.columns.select import Named, Select
from arrowflow.ops.columns.stack import Stack
from arrowflow.ops.columns.with_columns import WithColumns
from arrowflow.ops.combine.concatenate import Concatenate
from arrowflow.ops.combine.flat_map import FlatMap
from arrowflow.ops.combine.interleave import MAX_CYCLE_LENGTH, Interleave
from arrowflow.ops.combine.rejection_resample import RejectionResample
from arrowflow.ops.combine.shares import check_shares
from arrowflow.ops.functions.calls import (
    BatchFormat,
    FunctionExecutor,
    check_executor,
    check_format,
    check_function,
)
from arrowflow.ops.functions.function import function_name
from arrowflow.ops.functions.map import Map
from arrowflow.ops.functions.map_rows import MapRows
from arrowflow.ops.functions.reduce import Reduce, fold_batches
from arrowflow.ops.order.shuffle import GlobalShuffle, Shuffle
from arrowflow.ops.rows.enumerate import Enumerate
from arrowflow.ops.rows.prefetch import Prefetch
from arrowflow.ops.rows.repeat import Repeat
from arrowflow.ops.rows.scan import Scan, state_text
from arrowflow.ops.rows.shard import Shard
from arrowflow.ops.rows.skip import Skip
from arrowflow.ops.rows.take import Take
from arrowflow.ops.rows.unique import Unique
from arrowflow.ops.rows.with_options import WithOptions
from arrowflow.ops.sources.from_memory import normalised_schema
from arrowflow.options import AUTOTUNE, MAX_LIST_SIZE, Options, check_seed, check_size
from arrowflow.physical.explain import render_chain
from arrowflow.plan.explain import render_plan
from arrowflow.plan.node import Node
from arrowflow.plan.walk import post_order
from arrowflow.types import arrow_type
from arrowflow.write import IPC, PARQUET, Writer, Written, writer_of

if TYPE_CHECKING:
    import jax
    import pyarrow.compute as pc
    import torch

    Expression: TypeAlias = pl.Expr | pc.Expression


class Dataset:
    """An immutable, lazy, picklable plan for an ordered stream of rows, carried in record batches.

    Nothing is read before the schema is asked for or rows are. Each method returns a new dataset. The only thing that
    a dataset remembers is how often it was iterated: each `iter()` of it or of its loaders runs the next epoch (0,
    1, …). Everything else that reads (`to_table`, `to_reader`, `__arrow_c_stream__`, `write_parquet`) runs epoch 0
    and does not count.

    When a run begins or a question is asked (`schema`, `num_rows`, `len` of a loader), files on local disks are listed
    anew, so what was replaced, added or removed is noticed, above a cache too. Listings of other file systems stay.

    Example:
        >>> import arrowflow as af
        >>> import polars as pl
        >>> ds = af.range(10).filter(pl.col("id") % 2 == 0).with_columns(square=pl.col("id") ** 2).batch(3)
        >>> for batch in ds.to_numpy():
        ...     print(batch["square"].tolist())
        [0, 4, 16]
        [36, 64]
    """

    __slots__ = ("__weakref__", "_epochs", "_plan", "_prepared")

    def __init__(self, plan: Node) -> None:
        self._plan = plan
        self._epochs = EpochCounter()
        self._prepared: run.Prepared | None = None

    def __reduce__(self) -> tuple[type[Dataset], tuple[Node]]:
        return Dataset, (self._plan,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dataset) and self._plan == other._plan

    def __hash__(self) -> int:
        return hash((Dataset, self._plan.name))

    def __repr__(self) -> str:
        lines = ["Dataset", *("  " + line for line in render_plan(self._plan))]
        if self._prepared is not None and self._prepared.bound.schema is not None:
            lines += ["columns", *(f"  {field.name}: {field.type}" for field in self._prepared.bound.schema)]
        return "\n".join(lines)

    def _ready(self, *, picked: bool = False) -> run.Prepared:
        """Prepares the plan for a run or a question, anew where its files are others by now."""
        with interruptions():
            if self._prepared is None or not self._prepared.is_current:
                self._prepared = run.prepare(self._plan, picked=picked)
        return self._prepared

    def _ready_to_pick(self) -> run.Prepared:
        """Prepares a `select` of names for a loader, which picks them itself."""
        return self._ready(picked=True)

    # ------------------------------------------------------------------------------------------ columns

    def select(
        self, *exprs: Expression | str | Sequence[Expression | str], **named: Expression | str
    ) -> Dataset:
        """Keeps just these columns, in this order; of Polars, `pyarrow.compute`, or names.

        Args:
            *exprs: Expressions, names, selectors, or lists of them.
            **named: Expressions under new names.

        Raises:
            PlanError: Something is not an element-wise expression; or, once it is bound, a column is unknown.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> af.range(3).select("id", twice=pl.col("id") * 2).to_table().to_pydict()
            {'id': [0, 1, 2], 'twice': [0, 2, 4]}
        """
        return Dataset(Select(inputs=(self._plan,), exprs=_named("select", exprs, named)))

    def with_columns(
        self, *exprs: Expression | str | Sequence[Expression | str], **named: Expression | str | float
    ) -> Dataset:
        """Adds columns, or replaces them in their places. All expressions see the columns as they were before.

        Expressions have to be element-wise, since a chunk is not the column: `x - x.mean()` is refused. The engine
        that an expression is written for decides what it means.

        Raises:
            PlanError: Something is not an element-wise expression; or, once it is bound, a column is unknown.

        Example:
            >>> import arrowflow as af, polars as pl, pyarrow.compute as pc
            >>> ds = af.range(3).with_columns(half=pl.col("id") / 2, big=pc.field("id") > pc.scalar(1))
            >>> ds.to_table().to_pydict()
            {'id': [0, 1, 2], 'half': [0.0, 0.5, 1.0], 'big': [False, False, True]}
        """
        return Dataset(WithColumns(inputs=(self._plan,), exprs=_named("with_columns", exprs, named)))

    def drop(self, *columns: str | Sequence[str]) -> Dataset:
        """Leaves columns out.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> af.range(2).with_columns(x=pl.col("id") + 1).drop("id").schema.names
            ['x']
        """
        return Dataset(Drop(inputs=(self._plan,), columns=_names("drop", columns)))

    def rename(self, mapping: Mapping[str, str]) -> Dataset:
        """Gives columns other names, in their places.

        Example:
            >>> import arrowflow as af
            >>> af.range(2).rename({"id": "row"}).schema.names
            ['row']
        """
        given: Any = mapping
        if not isinstance(given, Mapping) or not all(
            isinstance(name, str) for pair in given.items() for name in pair
        ):
            raise PlanError(f"rename: expected a mapping from old to new names, got {shown(mapping)}")
        return Dataset(Rename(inputs=(self._plan,), mapping=tuple(mapping.items())))

    def cast(self, types: Mapping[str, Any]) -> Dataset:
        """Changes the types of columns, named as `pyarrow` or Polars name them.

        A value that the new type cannot hold is a `DataError` when it comes by. `pl.Enum` gives codes, as a
        dictionary type.

        Example:
            >>> import arrowflow as af, pyarrow as pa
            >>> af.range(2).cast({"id": pa.float32()}).schema.field("id").type
            DataType(float)
        """
        if not isinstance(types, Mapping):
            raise PlanError(f"cast: expected a mapping from columns to types, got {shown(types)}")
        pairs = tuple((str(name), arrow_type(type, operator="cast")) for name, type in types.items())
        return Dataset(Cast(inputs=(self._plan,), types=pairs))

    def fill_null(self, value: Any) -> Dataset:
        """Replaces nulls by a value: in all columns that can hold it, or by a mapping from columns to values.

        Example:
            >>> import arrowflow as af, pyarrow as pa
            >>> table = pa.table({"x": pa.array([1.0, None]), "s": ["a", None]})
            >>> af.from_arrow(table).fill_null(0).to_table().to_pydict()
            {'x': [1.0, 0.0], 's': ['a', None]}
            >>> af.from_arrow(table).fill_null({"s": "?"}).to_table().to_pydict()
            {'x': [1.0, None], 's': ['a', '?']}
        """
        if value is None:
            raise PlanError("fill_null: expected a value, got None")
        if isinstance(value, Mapping):
            pairs = tuple((name, constant(single)) for name, single in value.items())
            return Dataset(FillNull(inputs=(self._plan,), by_column=pairs))
        return Dataset(FillNull(inputs=(self._plan,), value=constant(value)))

    def stack(self, *, dtype: Any = None, **groups: Sequence[str]) -> Dataset:
        """Puts columns side by side into one `fixed_size_list` column, which loaders hand out as `(B, n)`.

        Replaces its inputs. Stack before `shuffle`: one tensor column is gathered ten times as fast as its parts.

        Args:
            dtype: Type to cast all inputs to; needed where they differ.
            **groups: Name of the new column, and the columns that it is made of.

        Raises:
            PlanError: Types differ and `dtype` is not given; or, once it is bound, a column is unknown.
            DataError: An input has nulls, when they come by; `fill_null` first.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> ds = af.range(2).with_columns(x=pl.col("id") * 10).stack(both=["id", "x"])
            >>> ds.to_table().to_pydict()
            {'both': [[0, 0], [1, 10]]}
        """
        if not groups:
            raise PlanError("stack: name at least one group, as in stack(dense=['a', 'b'])")
        pairs = tuple((name, _names("stack", (columns,))) for name, columns in groups.items())
        type = None if dtype is None else arrow_type(dtype, operator="stack")
        if isinstance(type, pl.Enum):
            raise PlanError(f"stack: dtype is a type of numbers, got {dtype}")
        return Dataset(Stack(inputs=(self._plan,), groups=pairs, dtype=type))

    # --------------------------------------------------------------------------------------------- rows

    def filter(
        self,
        *predicates: Expression | Callable[..., Any],
        format: BatchFormat = "arrow",
        columns: Sequence[str] | None = None,
        num_parallel_calls: int = AUTOTUNE,
    ) -> Dataset:
        """Keeps the rows for which all predicates are true, or for which a function says so; null is not true.

        Expressions right above a file source also spare the reading of row groups that provably hold no match. A
        function is opaque, like that of `map`: it sees pieces of splits, and nothing is moved across it.

        Args:
            *predicates: Expressions, or one function that gets a record batch and returns one boolean a row: an array
                of NumPy or pyarrow, or a Polars Series. Of a class each worker makes an instance and calls that, anew
                in each epoch.
            format: What the function sees, as in `map`.
            columns: The columns that the function reads, and all that it sees.
            num_parallel_calls: Calls of the function at the same time; 1 means one at a time, in order.

        Raises:
            PlanError: Above `batch`; or expressions and functions are mixed, which is two calls of `filter`.
            FunctionError: The function raised, or returned no booleans or too few or many; in `next()`, in order.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> af.range(10).filter(pl.col("id") > 7).to_table().to_pydict()
            {'id': [8, 9]}
            >>> af.range(10).filter(lambda batch: batch["id"] % 4 == 1, format="numpy").to_table().to_pydict()
            {'id': [1, 5, 9]}
        """
        if not predicates:
            raise PlanError("filter: expected at least one predicate")
        functions = [predicate for predicate in predicates if callable(predicate)]
        if functions:
            if len(predicates) > 1:
                raise PlanError(
                    "filter: expected expressions or one function, got both or more; call `filter` once for each"
                )
            check_function("filter", functions[0])
            check_format("filter", format)
            return Dataset(
                FilterBy(
                    inputs=(self._plan,),
                    fn=functions[0],
                    format=format,
                    columns=None if columns is None else _names("filter", (columns,)),
                    num_parallel_calls=parallel_calls("filter", num_parallel_calls),
                )
            )
        if format != "arrow" or columns is not None or num_parallel_calls != AUTOTUNE:
            raise PlanError(
                "filter: format=, columns= and num_parallel_calls= are for a function, not expressions"
            )
        parsed = tuple(parse_many(predicates, operator="filter"))
        return Dataset(Filter(inputs=(self._plan,), predicates=parsed))

    def map(
        self,
        fn: Callable[..., Any],
        *,
        format: BatchFormat = "arrow",
        columns: Sequence[str] | None = None,
        schema: pa.Schema | None = None,
        seed: int | None = None,
        num_parallel_calls: int = AUTOTUNE,
        executor: FunctionExecutor = "thread",
    ) -> Dataset:
        """Calls a function on record batches, which returns record batches with any number of rows.

        Below `batch` the function sees each split (row group, window, …) cut every `Options.max_chunk_rows` rows;
        above, exactly the batches. It is called from several threads and has to be pure.

        Args:
            fn: Gets a record batch and returns one; what that means, `format` says. What it returns in memory that it
                could write again, such as an array that it keeps, is copied. Of a class each worker makes an
                instance (`functools.partial` gives it arguments) and calls that: the place for what is costly to load.
                An instance belongs to one operator and lives for one iteration over the dataset, so it is made anew in
                each epoch, but not in each repetition of a `repeat` above.
            format: `"arrow"`: `pyarrow.RecordBatch`. `"numpy"`: dicts of arrays, of which those of shape `(n, …)` are
                nested `fixed_size_list`, or `fixed_shape_tensor` where `schema` says so. `"polars"`: data frames.
            columns: The columns that `fn` reads; it sees no others, and others are not read from files.
            schema: Of what `fn` returns, whose columns may then come in any order. Without it the first chunk tells,
                the order too, and `Dataset.schema` is unknown.
            seed: Makes the call `fn(batch, rng)`, with a generator that depends on (seed, operator, epoch, split,
                piece) alone.
            num_parallel_calls: Calls at the same time; 1 means one at a time, in order.
            executor: `"process"` calls `fn` in worker processes, with the same values in the same order: for functions
                in pure Python, which hold the interpreter lock, and take more than a millisecond or so; those that wait
                are better off in threads. Batches go there and back through shared memory, with one copy each way. `fn`
                goes as `cloudpickle` packs it when an iteration begins, what a script or a notebook defines by value,
                and no `if __name__ == "__main__"` is needed. It finds the environment, working directory and
                `sys.path` of that time; what it prints is seen. Calls take a core each of the CPU budget, and compute
                with one thread. Workers start in half a second, and are kept for 10 seconds for the next iteration: a
                module that `fn` imports is not read again meanwhile.

        Raises:
            PlanError: With `executor="process"`, `fn` cannot be pickled.
            FunctionError: `fn` raised, or returned something else than it has to; in `next()`, in order.
            WorkerError: A worker process was killed or crashed in a call, or cannot load `fn`; in `next()`, in order.
            SchemaError: `fn` returned other columns or types than declared or than before.

        Example:
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
        check_function("map", fn)
        check_format("map", format)
        _check_executor("map", executor, fn)
        return Dataset(
            Map(
                inputs=(self._plan,),
                fn=fn,
                format=format,
                columns=None if columns is None else _names("map", (columns,)),
                types=_schema("map", schema),
                seed=None if seed is None else check_seed("map", seed),
                num_parallel_calls=parallel_calls("map", num_parallel_calls),
                executor=executor,
            )
        )

    def map_rows(
        self,
        fn: Callable[..., Any],
        *,
        columns: Sequence[str] | None = None,
        schema: pa.Schema | None = None,
        seed: int | None = None,
        num_parallel_calls: int = AUTOTUNE,
        executor: FunctionExecutor = "thread",
    ) -> Dataset:
        """Calls a function on single rows. Slow: `map` calls one for many rows at once, at some hundred times the rate.

        Rows are made into Python objects and back while the GIL is held, so more calls at the same time hardly help but
        with `executor="process"`. For trying things out, and for what knows rows only. Pieces are cut as for `map`.

        Args:
            fn: Gets a row as a dict of Python values and returns another one. Of a class each worker makes an instance
                and calls that, as for `map`.
            columns: The columns that `fn` reads; it sees no others, and others are not read from files.
            schema: Of what `fn` returns. Without it the first piece tells, and `Dataset.schema` is unknown.
            seed: Makes the call `fn(row, rng)`, with a generator that the rows of a piece use one after the other.
            num_parallel_calls: Pieces that are worked on at the same time; 1 means one row at a time, in order.
            executor: `"process"` works on pieces in worker processes, as for `map`: several times as fast on as many
                cores.

        Raises:
            PlanError: With `executor="process"`, `fn` cannot be pickled.
            WorkerError: A worker process was killed or crashed, or cannot load `fn`; in `next()`, in order.
            FunctionError: `fn` raised, or returned no dict or other keys than before; in `next()`, in order.
            SchemaError: `fn` returned values of other types than declared or than before.
            DataError: A column that it reads holds nanoseconds, which Python's dates and times do not; `cast` it.

        Example:
            >>> import arrowflow as af
            >>> af.range(3).map_rows(lambda row: {"text": f"row {row['id']}"}).to_table().to_pydict()
            {'text': ['row 0', 'row 1', 'row 2']}
            >>> af.range(3).map_rows(lambda row: {"y": 2 ** row["id"]}, executor="process").to_table()["y"].to_pylist()
            [1, 2, 4]
        """
        check_function("map_rows", fn)
        _check_executor("map_rows", executor, fn)
        return Dataset(
            MapRows(
                inputs=(self._plan,),
                fn=fn,
                columns=None if columns is None else _names("map_rows", (columns,)),
                types=_schema("map_rows", schema),
                seed=None if seed is None else check_seed("map_rows", seed),
                num_parallel_calls=parallel_calls("map_rows", num_parallel_calls),
                executor=executor,
            )
        )

    def flat_map(
        self, fn: Callable[[dict[str, Any]], Dataset], *, num_parallel_calls: int = AUTOTUNE
    ) -> Dataset:
        """Goes through the datasets that a function returns for the rows, one after the other.

        For things that are opened, like files: a call and a plan a row. To make several rows of one, `map` may return
        more rows than it gets. Of `interleave` this is the case of one dataset at a time.

        Args:
            fn: Gets a row as a dict and returns a dataset that is not in batches; called from several threads, once a
                row, and again for the open dataset after a resume. The dataset is
                read later, where its memory lies: of an array that `fn` refills give it a copy.
            num_parallel_calls: Calls of `fn` at the same time. With 1 no dataset is begun before the last one has
                ended; by default the next one is, and reads ahead.

        Raises:
            PlanError: Above `batch`.
            FunctionError: `fn` raised, or returned no dataset or one in batches; in `next()`, in order.
            SchemaError: A dataset has other columns or types than the first one.

        Example:
            >>> import arrowflow as af
            >>> af.range(4).flat_map(lambda row: af.range(row["id"])).to_table()["id"].to_pylist()
            [0, 0, 1, 0, 1, 2]
        """
        if not callable(fn):
            raise PlanError(f"flat_map: expected a function that returns a dataset, got {shown(fn)}")
        calls = parallel_calls("flat_map", num_parallel_calls)
        return Dataset(FlatMap(inputs=(self._plan,), fn=fn, plan_of=_plan_of, num_parallel_calls=calls))

    def scan(
        self,
        initial_state: Any,
        fn: Callable[..., Any],
        *,
        format: BatchFormat = "arrow",
        columns: Sequence[str] | None = None,
        schema: pa.Schema | None = None,
    ) -> Dataset:
        """Calls a function that carries a state from one record batch to the next, one call at a time, in order.

        The function sees the pieces that `map` sees, so that its result does not depend on how files are read; above
        `batch`, exactly the batches. Each epoch begins with `initial_state`. The state is JSON and part of what
        `state_dict` returns; the function gets it as it comes back from JSON, so it may change what it gets. With
        `Options.deterministic=False` pieces come in any order.

        Args:
            initial_state: Dicts with texts as keys, lists, texts, finite numbers, booleans and None: at most 32 KiB.
                What all operators keep in a state is at most 60 KiB, else `state_dict` raises `StateError`.
            fn: Gets the state and a record batch, and returns the next state and a record batch with any number of
                rows.
            format: What `fn` sees and returns, as in `map`.
            columns: The columns that `fn` reads; it sees no others, and others are not read from files.
            schema: Of what `fn` returns. Without it the first chunk tells, and `Dataset.schema` is unknown.

        Raises:
            PlanError: `initial_state` is not JSON, or too large.
            FunctionError: `fn` raised, or returned something else than a state that is JSON and a batch.
            SchemaError: `fn` returned other columns or types than declared or than before.

        Example:
            >>> import arrowflow as af
            >>> def running(total, arrays):
            ...     sums = total + arrays["id"].cumsum()
            ...     return int(sums[-1]), {"sum": sums}
            >>> af.range(6).batch(4).scan(0, running, format="numpy").to_table().to_pydict()
            {'sum': [0, 1, 3, 6, 10, 15]}
        """
        check_function("scan", fn)
        check_format("scan", format)
        try:
            state = state_text(initial_state, "initial_state")
        except FunctionError as error:
            raise PlanError(f"scan: {error}") from None
        return Dataset(
            Scan(
                inputs=(self._plan,),
                fn=fn,
                initial_state=state,
                format=format,
                columns=None if columns is None else _names("scan", (columns,)),
                types=_schema("scan", schema),
            )
        )

    def take(self, count: int) -> Dataset:
        """Keeps the first rows.

        Raises:
            PlanError: Above `batch`, where it could mean rows or batches.

        Example:
            >>> import arrowflow as af
            >>> af.range(10).take(2).to_table().to_pydict()
            {'id': [0, 1]}
        """
        return Dataset(Take(inputs=(self._plan,), count=check_size("take", "count", count, least=0)))

    def skip(self, count: int) -> Dataset:
        """Leaves the first rows out.

        Raises:
            PlanError: Above `batch`, where it could mean rows or batches.

        Example:
            >>> import arrowflow as af
            >>> af.range(4).skip(2).to_table().to_pydict()
            {'id': [2, 3]}
        """
        return Dataset(Skip(inputs=(self._plan,), count=check_size("skip", "count", count, least=0)))

    def enumerate(self, start: int = 0, *, name: str = "index") -> Dataset:
        """Puts a column in front that numbers the rows of the epoch, as int64.

        A state holds how many rows were counted, so a resumed run goes on with the next number.

        Args:
            start: Number of the first row.
            name: Name of the new column.

        Raises:
            PlanError: Above `batch`; or, once it is bound, there is a column of that name.
            DataError: A number does not fit int64; in `next()`.

        Example:
            >>> import arrowflow as af
            >>> af.from_numpy({"x": [0.5, 1.5]}).enumerate(start=1).to_table().to_pydict()
            {'index': [1, 2], 'x': [0.5, 1.5]}
        """
        if isinstance(start, bool) or not hasattr(start, "__index__") or not -(1 << 63) <= start < 1 << 63:
            raise PlanError(f"enumerate: start is a whole number that fits int64, got {shown(start)}")
        if not isinstance(name, str):
            raise PlanError(f"enumerate: name is a text, got {shown(name)}")
        return Dataset(Enumerate(inputs=(self._plan,), start=int(start), column=name))

    def unique(self, columns: str | Sequence[str] | None = None, *, max_rows: int = 10_000_000) -> Dataset:
        """Keeps the first row of each key, in order; null equals null, NaN equals NaN, and -0.0 equals 0.0.

        Holds the keys of one epoch as 128 bits of hash: 16 bytes for each of at most `max_rows`, four times that for
        moments, on top of `Options.ram_budget`. A state does not hold them, so a resumed run goes through the epoch
        again from its start up to its place.

        Args:
            columns: The columns that make the key; by default all of them.
            max_rows: Different keys that are held, at most. One more is an error.

        Raises:
            PlanError: Above `batch`; or, once it is bound, a column is unknown or has a type that cannot be a key.
            BudgetError: There are more than `max_rows` keys; in `next()`, behind the rows that were kept.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> ds = af.range(6).with_columns(kind=pl.col("id") % 3)
            >>> ds.unique("kind", max_rows=100).to_table().to_pydict()
            {'id': [0, 1, 2], 'kind': [0, 1, 2]}
        """
        names = None if columns is None else _names("unique", (columns,))
        return Dataset(
            Unique(inputs=(self._plan,), columns=names, max_rows=check_size("unique", "max_rows", max_rows))
        )

    def rejection_resample(
        self,
        label: Expression | str,
        target_dist: Sequence[float] | Mapping[int, float],
        initial_dist: Sequence[float] | Mapping[int, float] | None = None,
        *,
        seed: int | None = None,
    ) -> Dataset:
        """Leaves rows out at random, so that classes have wanted shares: as many rows are kept as that allows.

        Rows are as they were, in order; no class is put beside them, and none is repeated, while TensorFlow's method
        "can reject or repeat". Each epoch leaves out others. With `initial_dist`
        each row is decided by itself. Without it the shares are estimated from the blocks of 512 rows that came before,
        beginning with equal ones, and a state holds the counts.

        Args:
            label: The class of a row, an integer from 0 on: the name of a column, or an element-wise expression.
            target_dist: The share of each class that is wanted, in the order of classes or by class; shares need not
                sum to 1.
            initial_dist: The share of each class in the data, given alike; estimated where it is not given.
            seed: What is kept follows from; by default derived from `Options.seed` and the operator's place.

        Raises:
            PlanError: Above `batch`; shares are negative, or wanted of a class that there is nothing of; or, once it
                is bound, a column is unknown or the class is no integer.
            DataError: A class is null, or has no share; in `next()`.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> ds = af.range(10_000).with_columns(rare=(pl.col("id") % 10 == 0).cast(pl.Int8))
            >>> even = ds.rejection_resample("rare", [0.5, 0.5], [0.9, 0.1], seed=1).to_table()
            >>> even.num_rows, even["rare"].to_pylist().count(1)
            (2011, 1000)
        """
        target, initial = check_shares(target_dist, initial_dist)
        return Dataset(
            RejectionResample(
                inputs=(self._plan,),
                label=parse_expression(label, operator="rejection_resample", allow_name=True),
                target=target,
                initial=initial,
                seed=None if seed is None else check_seed("rejection_resample", seed),
            )
        )

    # -------------------------------------------------------------------------------------------- order

    def shuffle(
        self,
        buffer_size: int | None = None,
        *,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
    ) -> Dataset:
        """Permutes the rows within windows of `buffer_size` rows, or without it all rows.

        Of windows, where only column operators, filters and `repeat` lie between it and its source, that has an order
        which follows (seed, epoch) too: files and row groups, a few files at a time; or, of rows in memory (`from_arrow`
        of a table, `from_numpy`, `range`), blocks of an eighth of a window, and at least 512 rows. So rows from all over
        the data meet in a window. Each epoch has another order. A state holds a cursor, not the buffer.

        All rows are permuted evenly, and memory stays flat: they are gathered from where they lie. That is in files of
        `read_ipc` (local, not compressed), in `from_arrow` of a table, `from_numpy`, `range`, or a `cache`, which is
        filled before the first row comes. Of their order only a table of eight times the root of their number is held,
        of up to 262,144 rows the order itself. Column operators, `take` and `skip` may stand in between. Texts, lists,
        booleans and columns with nulls take a call for each record batch: prefer some thousand rows in each.

        Args:
            buffer_size: Rows of a window, or None for all rows.
            seed: What the order follows from; by default derived from `Options.seed` and the operator's place.
            reshuffle_each_iteration: Whether each epoch has an order of its own.

        Raises:
            PlanError: Above `batch`; or, once it is bound, without `buffer_size` above something else than these.

        Example:
            >>> import arrowflow as af
            >>> af.range(6).shuffle(6, seed=1).to_table().to_pydict()
            {'id': [5, 0, 1, 3, 4, 2]}
            >>> af.range(6).shuffle(seed=1).to_table().to_pydict()
            {'id': [4, 2, 3, 1, 0, 5]}
        """
        seed = None if seed is None else check_seed("shuffle", seed)
        reshuffle = bool(reshuffle_each_iteration)
        if buffer_size is None:
            return Dataset(GlobalShuffle(inputs=(self._plan,), seed=seed, reshuffle_each_iteration=reshuffle))
        size = check_size("shuffle", "buffer_size", buffer_size)
        return Dataset(
            Shuffle(inputs=(self._plan,), size=size, seed=seed, reshuffle_each_iteration=reshuffle)
        )

    def repeat(self, count: int | None = None) -> Dataset:
        """Goes through the data `count` times, or without end; each time is an epoch of what is below.

        `shuffle().repeat()` finishes each epoch while the next one's first window fills; `repeat().shuffle()` lets
        windows cross epochs. Ends after an epoch without rows.

        Raises:
            SchemaError: `map` or the like made other columns or types than in the epoch before; in `next()`.

        Example:
            >>> import arrowflow as af
            >>> af.range(2).repeat(2).to_table().to_pydict()
            {'id': [0, 1, 0, 1]}
        """
        if count is not None and count != -1:
            return Dataset(Repeat(inputs=(self._plan,), count=check_size("repeat", "count", count, least=0)))
        return Dataset(Repeat(inputs=(self._plan,), count=None))

    def interleave(
        self,
        fn: Callable[[dict[str, Any]], Dataset],
        *,
        cycle_length: int = 4,
        block_length: int | None = None,
        num_parallel_calls: int = AUTOTUNE,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Goes through the datasets that a function returns for the rows, several at a time and in turn.

        `cycle_length` datasets are open; of one after the other `block_length` rows are taken. One that ends gives up
        the rest of its block, and the next dataset takes its place when its turn comes again. The order depends on
        these two numbers, so neither is tuned. Options that are set in the datasets have no effect.

        Args:
            fn: Gets a row as a dict and returns a dataset that is not in batches; called from several threads, once a
                row, and again for the open datasets after a resume. The dataset is
                read later, where its memory lies: of an array that `fn` refills give it a copy.
            cycle_length: Datasets that are open at the same time.
            block_length: Rows of a turn; by default one chunk, at most `Options.max_chunk_rows` of one split.
            num_parallel_calls: Calls of `fn` at the same time, and how many of the open datasets are begun, counted
                from the one whose turn it is; by default all of them and the next one. What was begun reads ahead.
            deterministic: With False a dataset that is not ready is passed over for now, and `state_dict` is refused;
                by default as in `Options`.

        Raises:
            PlanError: Above `batch`, or a number is out of range.
            FunctionError: `fn` raised, or returned no dataset or one in batches; in `next()`, in order.
            SchemaError: A dataset has other columns or types than the first one.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> def tens(row):
            ...     return af.range(3).select(x=pl.col("id") + 10 * row["id"])
            >>> af.range(3).interleave(tens, cycle_length=2, block_length=2).to_table()["x"].to_pylist()
            [0, 1, 10, 11, 2, 12, 20, 21, 22]
        """
        if not callable(fn):
            raise PlanError(f"interleave: expected a function that returns a dataset, got {shown(fn)}")
        if deterministic is not None and not isinstance(deterministic, bool):
            raise PlanError(f"interleave: deterministic is True, False or None, got {shown(deterministic)}")
        length = check_size("interleave", "cycle_length", cycle_length)
        if length > MAX_CYCLE_LENGTH:
            raise PlanError(f"interleave: cycle_length is at most {MAX_CYCLE_LENGTH}, got {length}")
        return Dataset(
            Interleave(
                inputs=(self._plan,),
                fn=fn,
                plan_of=_plan_of,
                cycle_length=length,
                block_length=None
                if block_length is None
                else check_size("interleave", "block_length", block_length),
                num_parallel_calls=parallel_calls("interleave", num_parallel_calls),
                deterministic=deterministic,
            )
        )

    def concatenate(self, *others: Dataset) -> Dataset:
        """Yields the rows of this dataset, then those of each other one; batches stay as they are.

        All have the same columns and types; their order is that of the first one. The next dataset starts while the
        last rows of the one before are still under way. A state holds the number of the dataset and the place in it.

        Args:
            *others: Datasets, in batches if this one is, else not.

        Raises:
            PlanError: Something is no dataset, only some are in batches; or, once it is bound, columns differ.
            SchemaError: Columns differ that only running tells; in `next()`.

        Example:
            >>> import arrowflow as af
            >>> af.range(2).concatenate(af.range(5, 7), af.range(1)).to_table().to_pydict()
            {'id': [0, 1, 5, 6, 0]}
        """
        if not others:
            raise PlanError("concatenate: expected at least one other dataset")
        return Dataset(Concatenate(inputs=(self._plan, *plans_of("concatenate", others))))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Keeps the rows whose number leaves the remainder `index` when divided by `num_shards`.

        All rows are read. Shards of one dataset are disjoint and together complete, in every order that is the same
        for all of them; so shard before a `shuffle` that has a seed of its own per shard.

        Example:
            >>> import arrowflow as af
            >>> af.range(7).shard(3, 1).to_table().to_pydict()
            {'id': [1, 4]}
        """
        shards = check_size("shard", "num_shards", num_shards)
        number = check_size("shard", "index", index, least=0)
        if number >= shards:
            raise PlanError(f"shard: index is below num_shards={shards}, got {number}")
        return Dataset(Shard(inputs=(self._plan,), num_shards=shards, index=number))

    # ------------------------------------------------------------------------------------------ batches

    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, num_parallel_calls: int | None = None
    ) -> Dataset:
        """Makes batches of exactly `batch_size` rows, across all borders; the last may be short.

        Above it, operators that count rows are refused; another `batch` cuts anew. Batches are slices; one that
        crosses a border between chunks is joined. Columns of lists stay lists, of different length.

        Args:
            batch_size: Rows of a batch.
            drop_remainder: Whether a short last batch is left out.
            num_parallel_calls: Joins at the same time. By default batches are joined one by one as they are cut, which
                is faster unless most of them are large and joined of many small chunks.

        Example:
            >>> import arrowflow as af
            >>> [batch.num_rows for batch in af.range(5).batch(2)]
            [2, 2, 1]
        """
        joins = num_parallel_calls is not None
        return Dataset(
            Batch(
                inputs=(self._plan,),
                size=check_size("batch", "batch_size", batch_size),
                drop_remainder=bool(drop_remainder),
                joins=joins,
                num_parallel_calls=None
                if num_parallel_calls is None
                else parallel_calls("batch", num_parallel_calls),
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
        """Makes batches as `batch` does, in which all lists of a column have one length; loaders give them as `(B, L)`.

        Every list column is padded at its end; lists of lists become `(B, L1, L2)`. A null list is all padding; a null
        inside a list stays one. A column with a given length becomes a `fixed_size_list`; the others keep their type,
        since their length is another one in each batch. Memory: one batch a call.

        Args:
            batch_size: Rows of a batch.
            padded_shapes: Lengths by column; for lists of lists one per level. None, or a column that is not named: the
                longest list of the batch.
            padding_values: One value for all columns that can hold it (-1 is none for unsigned numbers), or values by
                column; by default 0, False, or nothing.
            multiple_of: What lengths that are not given are rounded up to a multiple of.
            truncate: Whether lists that are longer than a given length are cut off; else they are an error.
            lengths: Columns to add, as in `{"tokens": "num_tokens"}`: how many values each row of a column has.
            drop_remainder: Whether a short last batch is left out.
            num_parallel_calls: Batches that are padded at the same time.

        Raises:
            PlanError: An argument does not fit; or, once it is bound, a column is unknown or has no lists.
            DataError: A list is longer than its column's given length; in `next()`.

        Example:
            >>> import arrowflow as af, pyarrow as pa
            >>> ds = af.from_arrow(pa.table({"tokens": [[5, 6, 7], [8], [9, 9]]}))
            >>> for batch in ds.padded_batch(2, lengths={"tokens": "n"}).to_numpy():
            ...     print(batch["tokens"].tolist(), batch["n"].tolist())
            [[5, 6, 7], [8, 0, 0]] [3, 1]
            [[9, 9]] [2]
        """
        calls = parallel_calls("padded_batch", num_parallel_calls)
        batches = Batch(
            inputs=(self._plan,),
            size=check_size("padded_batch", "batch_size", batch_size),
            drop_remainder=bool(drop_remainder),
            joins=True,
            num_parallel_calls=calls,
        )
        return Dataset(
            padded(
                batches,
                operator="padded_batch",
                padded_shapes=padded_shapes,
                padding_values=padding_values,
                multiple_of=multiple_of,
                truncate=truncate,
                lengths=lengths,
                num_parallel_calls=calls,
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
        """Makes batches of rows whose lists (or texts) in `column` have a similar length, and pads them.

        Rows are collected by length, in order; a bucket comes when it is full. Lengths are read from offsets: those of
        texts are in bytes, and values are touched when a batch is gathered. Shuffle below it. A null counts as length
        0. Memory: the chunks of the last `max_lag_rows` rows at most, which `Options.ram_budget` has to have room for
        (one row of a rare length keeps all after it), and one batch a call. A state holds a few numbers a bucket; going
        on reads the rows since the oldest held one again.

        Args:
            column: What rows are measured by.
            bucket_boundaries: Lengths at which the next bucket begins, going up: [10, 20] makes buckets of 0 to 9, of
                10 to 19, and of 20 or more.
            bucket_batch_sizes: Rows of a batch by bucket: one more than boundaries.
            max_lag_rows: A bucket that is not full when its oldest row came this many rows ago comes short; so rows of
                a rare length are not held for ever.
            pad_to_bucket_boundary: Whether lists in `column` are padded to one less than the next boundary instead of the
                longest, so that there are only as many shapes as boundaries; a longer list is an error.
            no_padding: Whether lists are left as long as they are; what is said of padding then is an error.
            padded_shapes: As in `padded_batch`, and so are the next four.
            padding_values: See there.
            multiple_of: See there.
            truncate: See there.
            lengths: See there.
            drop_remainder: Whether short batches are left out: those at the end, and those of buckets that lag.
            num_parallel_calls: Batches that are gathered and padded at the same time.

        Raises:
            PlanError: An argument does not fit, or two contradict each other; or, once it is bound, the column is
                unknown or its values have no length.
            BudgetError: `max_lag_rows` rows are more than the budget; when it is iterated.
            DataError: A list is longer than the length it is to be padded to; in `next()`.

        Example:
            >>> import arrowflow as af, pyarrow as pa
            >>> ds = af.from_arrow(pa.table({"tokens": [[1], [2, 2, 2], [3], [4, 4, 4, 4], [5]]}))
            >>> for batch in ds.bucket_by_sequence_length("tokens", [3], [2, 2]).to_numpy():
            ...     print(batch["tokens"].tolist())
            [[1], [3]]
            [[2, 2, 2, 0], [4, 4, 4, 4]]
            [[5]]
        """
        calls = parallel_calls("bucket_by_sequence_length", num_parallel_calls)
        batches = bucketed(
            self._plan,
            column,
            bucket_boundaries,
            bucket_batch_sizes,
            max_lag_rows=max_lag_rows,
            drop_remainder=drop_remainder,
            num_parallel_calls=calls,
        )
        if no_padding:
            check_no_padding(
                pad_to_bucket_boundary=pad_to_bucket_boundary,
                padded_shapes=bool(padded_shapes),
                padding_values=padding_values is not None,
                multiple_of=multiple_of is not None,
                truncate=truncate,
                lengths=bool(lengths),
            )
            return Dataset(batches)
        return Dataset(
            padded(
                batches,
                operator="bucket_by_sequence_length",
                padded_shapes=padded_shapes,
                padding_values=padding_values,
                multiple_of=multiple_of,
                truncate=truncate,
                lengths=lengths,
                num_parallel_calls=calls,
                steps=(column, tuple(boundary - 1 for boundary in batches.bucket_boundaries))
                if pad_to_bucket_boundary
                else None,
            )
        )

    def pack_sequences(
        self,
        column: str,
        length: int,
        *,
        strategy: Strategy = "first_fit",
        window_rows: int = 4096,
        pad_value: float = 0,
        segment_ids: str | None = "segment_ids",
        positions: str | None = "positions",
    ) -> Dataset:
        """Packs documents into rows of exactly `length` tokens.

        The column of tokens becomes `(B, length)`, and two columns of the same shape say which document a token is of
        (1, 2, … in each row; 0 is padding) and where in it (0, 1, …). Each window of `window_rows` documents makes one
        batch; put `batch` above for batches of a wanted size, and `shuffle` below. Nulls and empty documents vanish.

        Args:
            column: The documents, lists of numbers. There must be no other columns: `select` it first.
            length: Tokens of a row.
            strategy: `"first_fit"` keeps documents whole: within a window the longest is placed first, each in the
                first row with room for it; rows and their documents then come in the order of the input. Only
                documents over `length` are cut, and their pieces packed as documents. `"concat_then_split"` puts all
                documents one after the other and cuts every `length` tokens, across windows; only the last row of an
                epoch is padded. Each piece of a document is a segment of its own, with positions from 0.
            window_rows: Documents that are packed together: more fill rows better, and take more memory.
            pad_value: Token behind the last document of a row.
            segment_ids: Name of the column of segment ids; None leaves it out.
            positions: Name of the column of positions; None leaves it out.

        Raises:
            PlanError: Once it is bound, there are other columns, or the column holds no lists of numbers.
            DataError: A token is null, when it comes by.

        Example:
            >>> import arrowflow as af
            >>> ds = af.from_arrow(pa.table({"tokens": [[1, 2, 3], [4] * 4, [5, 6]]}))
            >>> ds.pack_sequences("tokens", 5, positions=None).to_table().to_pydict()
            {'tokens': [[1, 2, 3, 5, 6], [4, 4, 4, 4, 0]], 'segment_ids': [[1, 1, 1, 2, 2], [1, 1, 1, 1, 0]]}
        """
        if strategy not in STRATEGIES:
            raise PlanError(
                f"pack_sequences: strategy is one of {', '.join(STRATEGIES)}, got {shown(strategy)}"
            )
        pad_value = plain(pad_value)
        if isinstance(pad_value, bool) or not isinstance(pad_value, int | float):
            raise PlanError(f"pack_sequences: pad_value is a number, got {shown(pad_value)}")
        made = [name for name in (segment_ids, positions) if name is not None]
        names = _names("pack_sequences", (column, *made))
        if len(set(names)) < len(names):
            raise PlanError(
                f"pack_sequences: column, segment_ids and positions have different names, got {', '.join(names)}"
            )
        return Dataset(
            PackSequences(
                inputs=(self._plan,),
                column=column,
                length=check_size("pack_sequences", "length", length, most=MAX_LIST_SIZE),
                strategy=strategy,
                window_rows=check_size("pack_sequences", "window_rows", window_rows),
                pad_value=pad_value,
                segment_ids=segment_ids,
                positions=positions,
            )
        )

    def group_by_window(
        self,
        key: str | Expression,
        window_size: int,
        *,
        max_groups: int = 1024,
        max_lag_rows: int = DEFAULT_MAX_LAG_ROWS,
    ) -> Dataset:
        """Makes batches of `window_size` rows with the same key.

        Rows are collected by key, in order; a group comes when it is full. The reduction is a `map` above, which sees
        exactly these batches. Null is a key like any other. Memory: the chunks of the last `max_lag_rows` rows at most,
        which `Options.ram_budget` has to have room for (one row of a rare key keeps all after it), and one batch a
        call. A state holds a few numbers; going on reads the rows since the oldest held one again.

        Args:
            key: Name of a column, or an expression: integers, booleans, strings, binaries or dates.
            window_size: Rows of a batch.
            max_groups: Groups that are held at the same time, 2,048 at most; when a row opens one more, the oldest comes
                short.
            max_lag_rows: A group that is not full when its oldest row came this many rows ago comes short, so that rows
                of a rare key are not held for ever. So does the oldest one when batches of more than 2,048 keys came since.

        Raises:
            BudgetError: `max_lag_rows` rows are more than the budget; when it is iterated.
            PlanError: Once it is bound, a column is unknown, or the key is of another type.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> for batch in af.range(7).group_by_window(pl.col("id") % 2, 3):
            ...     print(batch["id"].to_pylist())
            [0, 2, 4]
            [1, 3, 5]
            [6]
        """
        return Dataset(
            GroupByWindow(
                inputs=(self._plan,),
                key=parse_expression(key, operator="group_by_window", allow_name=True),
                window_size=check_size("group_by_window", "window_size", window_size),
                max_groups=check_size("group_by_window", "max_groups", max_groups, most=MAX_GROUPS),
                max_lag_rows=check_size("group_by_window", "max_lag_rows", max_lag_rows),
            )
        )

    def window(
        self, size: int, *, shift: int | None = None, stride: int = 1, drop_remainder: bool = True
    ) -> Dataset:
        """Makes rows of `size` rows each: every column becomes fixed-size lists, which loaders hand out as `(B, size)`.

        Windows side by side (`shift` and `stride` left out) are the rows' own memory; others are gathered.

        Args:
            size: Rows of a window.
            shift: Rows from the start of one window to that of the next; `size` by default.
            stride: Rows from one row of a window to the next.
            drop_remainder: Whether windows that the end cuts short are left out. A list of fixed size cannot be
                short: with False, null stands for what is missing. (In tf.data False is the default.)

        Raises:
            PlanError: Above `batch`.

        Example:
            >>> import arrowflow as af
            >>> af.range(5).window(3, shift=1).to_table().to_pydict()
            {'id': [[0, 1, 2], [1, 2, 3], [2, 3, 4]]}
            >>> af.range(5).window(3, drop_remainder=False).to_table().to_pydict()
            {'id': [[0, 1, 2], [3, 4, None]]}
        """
        rows = check_size("window", "size", size, most=MAX_LIST_SIZE)
        return Dataset(
            Window(
                inputs=(self._plan,),
                size=rows,
                shift=rows if shift is None else check_size("window", "shift", shift),
                stride=check_size("window", "stride", stride, most=MAX_LIST_SIZE),
                drop_remainder=bool(drop_remainder),
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
    ) -> Dataset:
        """Keeps what comes by, in memory or in a folder; later epochs are served from there.

        Everything below it runs as epoch 0, so a random map or a shuffle there gives the same in every epoch; put
        `shuffle` above. An epoch that stops early leaves its rows, and the next one goes on behind them; where what is
        below cannot be repeated from its middle (`from_generator`, one-shot streams, `interleave` and `flat_map`), only a
        complete pass counts.

        Without a path the rows stay in memory, charged to the budget of each run, and are shared by all datasets made
        from this one; they are freed with the last of these, or by `cache_clear`. With `spill=` those that take more
        than half of the budget lie in files in that folder instead, which vanish with the process.

        With a path they lie in that folder as Arrow IPC files, whose buffers are aligned to 64 bytes and mapped without
        a copy: by all epochs, later runs and other processes. Each plan has an entry of its own there, named by a
        fingerprint of the operators, arguments and functions below (code, closures, and what the code names), of the
        sources (path, size, time of change) and of the versions of arrowflow, pyarrow, Polars, NumPy and Python; another
        plan or other data make another entry, and old ones stay until `arrowflow.cache_clear(path)`. Files that functions
        open are not seen, those of `interleave` and `flat_map` included. Rows are committed in chunks, written and
        flushed to the disk before anybody sees them; so whatever ends a run, `kill -9` included, the next one is served
        from what there is and computes the rest. Several processes may name one folder: one of them computes, the others
        follow. Memory: one chunk a call, and up to 8 MiB that wait to be written.

        Args:
            path: The folder; it is made if need be.
            key: Stands for the code of all user functions below, where that cannot be fingerprinted; change it when
                they change.
            compression: Takes less space; every epoch decodes into new memory.
            spill: A folder for what does not fit into memory; without a path only.
            on_full: What happens when the disk is full: an error, or the run goes on without caching.
            verify: `"first"` looks at the checksum of each chunk when this process first maps it; `"never"` does not.

        Raises:
            PlanError: Arguments that do not go together.
            BudgetError: What is cached in memory exceeds `Options.ram_budget`; in `next()`.
            FingerprintError: A function or source cannot be fingerprinted; when the plan is bound. Give `key=`.
            CacheFullError: The disk is full; in `next()`.
            WriteError: The folder cannot be written; in `next()`.

        Example:
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
        if path is None:
            given = {"key": key, "compression": compression}
            wrong = [name for name, value in given.items() if value is not None]
            if wrong or on_full != "error" or verify != "first":
                name = wrong[0] if wrong else "on_full" if on_full != "error" else "verify"
                raise PlanError(
                    f"cache: {name}= is for a cache in a folder; name it, as in cache('folder', {name}=…)"
                )
            return Dataset(Cache(inputs=(self._plan,), spill=None if spill is None else spill_folder(spill)))
        if spill is not None:
            raise PlanError(
                "cache: with a path all rows lie in that folder, and none spill; leave out spill="
            )
        for name, value, choices in (
            ("compression", compression, (None, "lz4", "zstd")),
            ("on_full", on_full, ("error", "bypass")),
            ("verify", verify, ("first", "never")),
        ):
            if value not in choices:
                raise PlanError(
                    f"cache: {name} is one of {', '.join(map(repr, choices))}, got {shown(value)}"
                )
        if key is not None and not isinstance(key, str):
            raise PlanError(f"cache: key is a string, got {type(key).__name__}")
        return Dataset(
            DiskCache(
                inputs=(self._plan,),
                path=str(local_folder("cache", path)),
                key=key,
                compression=compression,
                on_full=on_full,
                verify=verify,
            )
        )

    def cache_clear(self) -> None:
        """Frees what every `cache` in this dataset holds in memory, for all datasets that share it; it is computed anew.

        Iterators that are under way keep what they go through until they end. What lies in folders is removed by
        `arrowflow.cache_clear(path)`.

        Raises:
            PlanError: There is no `cache` in memory in it.

        Example:
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

        Stages read ahead without it; it sets how far the one below goes. The one size that counts batches.

        Example:
            >>> import arrowflow as af
            >>> [batch.num_rows for batch in af.range(5).batch(2).prefetch(2)]
            [2, 2, 1]
        """
        if buffer_size == AUTOTUNE:
            return Dataset(Prefetch(inputs=(self._plan,)))
        return Dataset(
            Prefetch(inputs=(self._plan,), count=check_size("prefetch", "buffer_size", buffer_size, least=0))
        )

    def with_options(self, options: Options) -> Dataset:
        """Sets options of the whole pipeline; of several settings of one field the last one wins.

        Example:
            >>> import arrowflow as af
            >>> ds = af.range(5).with_options(af.Options(ram_budget="1GiB", seed=7))
            >>> ds.num_rows
            5
        """
        if not isinstance(options, Options):
            raise PlanError(f"with_options: expected arrowflow.Options, got {shown(options)}")
        return Dataset(WithOptions(inputs=(self._plan,), options=options))

    def apply(self, transformation: Callable[[Dataset], Dataset]) -> Dataset:
        """Returns what a function makes of this dataset, so that parts of pipelines can be named and shared.

        Example:
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

    # ---------------------------------------------------------------------------------------------- out

    def __iter__(self) -> Run[pa.RecordBatch]:
        """Runs the next epoch and yields its record batches.

        The iterator has `state_dict`, `load_state_dict`, `set_epoch`, `stats` and `close`, and is a context manager.
        """
        return Run(self._ready(), self._epochs, RecordBatches())

    def to_numpy(
        self,
        *,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        null: Any = "error",
        lists: Literal["dense", "ragged", "padded"] = "dense",
        collate: Callable[[dict[str, Any]], Any] | None = None,
        strict_zero_copy: bool = False,
    ) -> Loader[Any]:
        """Returns a loader of dicts of arrays, by column.

        Arrays are views of Arrow's memory: writable where the batch alone owns it, read-only where a cache, the source
        or a second column may hold it too; `explain(copies=True)` of the loader says what is a copy, and why. Fixed-size
        lists, tensors, and lists that all have one length within their batch (see `padded_batch`) come as `(B, …)`,
        dates as `datetime64[D]`, enums as codes, texts as objects.

        Args:
            columns: Names of the columns in the order wanted; others are not read. Default: all.
            dtypes: Dtypes by column, in place of those that the columns have: `np.float32`, `"bfloat16"`, NumPy's
                `StringDType`; integers take dates and times as counts of their unit, floats take decimals, and binaries
                of fixed width are read as any dtype of that width. A value that does not fit is a `DataError`, also
                one that a float would make infinite; floats are rounded.
            null: What becomes of nulls, in all columns that can have it, or by column: `"error"`; `"nan"`, which makes
                float64 of integers and is NaT in dates; `"mask"`, which puts a zero and adds a column `<name>_mask`,
                True where there is a value, for each column that may have nulls; or a value to put.
            lists: What becomes of lists of any length: `"dense"`, an error where lists of one batch differ; `"ragged"`,
                a named tuple of `values` and `offsets`; `"padded"`, as long as the longest of the batch, with zeros
                behind.
            collate: Gets each batch, and returns what is delivered instead, as `lambda batch: (batch["x"], batch["y"])`;
                on this thread.
            strict_zero_copy: Whether a column that would be copied is an error.

        Raises:
            PlanError: An argument is none; or, once it is bound, a column is unknown.
            SchemaError: A column has a type that no array has, or cannot become what is asked for; when iteration starts.
            DataError: A column has nulls, a value that does not fit, or lists of different length; when they come by.
            FunctionError: `collate` raised.

        Example:
            >>> import arrowflow as af, pyarrow as pa
            >>> [batch["id"].tolist() for batch in af.range(3).batch(2).to_numpy()]
            [[0, 1], [2]]
            >>> ds = af.from_arrow(pa.table({"x": [1, None], "y": [0, 1]}))
            >>> next(iter(ds.to_numpy(null={"x": "mask"}, dtypes={"y": "float32"})))
            {'x': array([1, 0]), 'x_mask': array([ True, False]), 'y': array([0., 1.], dtype=float32)}
        """
        return self._loader(
            "to_numpy",
            NumpyExport,
            self._wishes("to_numpy", columns, dtypes, null, lists, strict_zero_copy),
            collate,
        )

    def to_dlpack(
        self,
        *,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        null: Any = "error",
        lists: Literal["dense", "ragged", "padded"] = "dense",
        collate: Callable[[dict[str, Any]], Any] | None = None,
        strict_zero_copy: bool = False,
    ) -> Loader[Any]:
        """Returns a loader of dicts of objects that speak DLPack, by column.

        Memory that nobody else holds is handed over as it is; other memory is copied, since not every consumer
        honours a read-only flag. Consumers of the versioned protocol get versioned capsules.

        Args:
            columns: As in `to_numpy`.
            dtypes: As in `to_numpy`; texts and dates are unknown to DLPack without one.
            null: As in `to_numpy`.
            lists: As in `to_numpy`.
            collate: As in `to_numpy`.
            strict_zero_copy: As in `to_numpy`.

        Raises:
            PlanError: As in `to_numpy`.
            SchemaError: As in `to_numpy`, of types that DLPack knows.
            DataError: As in `to_numpy`.
            FunctionError: As in `to_numpy`.

        Example:
            >>> import arrowflow as af, numpy as np
            >>> [np.from_dlpack(batch["id"]).tolist() for batch in af.range(3).batch(2).to_dlpack()]
            [[0, 1], [2]]
        """
        return self._loader(
            "to_dlpack",
            DlpackExport,
            self._wishes("to_dlpack", columns, dtypes, null, lists, strict_zero_copy),
            collate,
        )

    def to_torch(
        self,
        *,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        null: Any = "error",
        lists: Literal["dense", "ragged", "padded"] = "dense",
        collate: Callable[[dict[str, torch.Tensor]], Any] | None = None,
        strict_zero_copy: bool = False,
        pin_memory: bool = False,
        device: torch.device | str | None = None,
    ) -> Loader[Any]:
        """Returns a loader of dicts of tensors, by column. Needs the extra `torch`.

        Memory that nobody else holds is aliased and may be written, for all that autograd cares; other memory is copied,
        since PyTorch knows no read-only tensors.

        With `device="cuda"` batches come on that device: each is copied into page-locked memory and from there, on a
        stream of its own, while the device computes on the one before it. So one batch more than the loop holds lies on
        the device, and those that the loop let go of but the device has yet to compute with: some, where nothing in the
        loop waits for it, as `loss.item()` does. A batch is for the stream that is current when it is delivered, which
        waits for it; this thread does not.

        Args:
            columns: As in `to_numpy`.
            dtypes: As in `to_numpy`, also as `torch.bfloat16`; dates, times and decimals have no tensor without one.
            null: As in `to_numpy`.
            lists: As in `to_numpy`; ragged lists come as jagged `torch.nested` tensors.
            collate: As in `to_numpy`; of a batch on the device, if there is one.
            strict_zero_copy: As in `to_numpy`. Contradicts the two below.
            pin_memory: Copy into page-locked memory, of which `tensor.to("cuda", non_blocking=True)` is asynchronous.
                PyTorch keeps such memory by size and uses it again. Not needed with a `device`.
            device: The CUDA device that batches come on, like "cuda" (the current one when iteration starts) or "cuda:1".

        Raises:
            MissingPackageError: PyTorch is not installed.
            PlanError: As in `to_numpy`; or there is no such device.
            SchemaError: As in `to_numpy`, of types that tensors have.
            DataError: As in `to_numpy`.
            FunctionError: As in `to_numpy`.

        Example:
            >>> import arrowflow as af
            >>> loader = af.range(3).batch(2).to_torch()
            >>> len(loader)
            2
            >>> [batch["id"].tolist() for batch in loader]  # doctest: +SKIP
            [[0, 1], [2]]
        """
        wishes = self._wishes("to_torch", columns, dtypes, null, lists, strict_zero_copy, resolve=torch_dtype)
        found = device_named("to_torch", device, pin_memory=pin_memory, strict_zero_copy=strict_zero_copy)
        if found is None:
            return self._loader("to_torch", PinnedExport if pin_memory else TorchExport, wishes, collate)
        export = partial(CudaExport, device=found)
        return self._loader("to_torch", export, wishes, collate, ahead=True, arrived=Transfer.wait)

    def to_torch_dataset(
        self,
        *,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        null: Any = "error",
        lists: Literal["dense", "ragged", "padded"] = "dense",
        collate: Callable[[dict[str, torch.Tensor]], Any] | None = None,
        strict_zero_copy: bool = False,
    ) -> torch.utils.data.IterableDataset[Any]:
        """Returns a `torch.utils.data.IterableDataset` of the same batches as `to_torch`. Needs the extra `torch`.

        For frameworks that ask for a `DataLoader(…, batch_size=None)`. Use `num_workers=0`, as is its default: the work is
        done by threads of this process, and tensors stay where they are. Workers, forked or not, persistent or not,
        deliver the same batches in the same order; but each of n runs the whole pipeline, with an n-th of `cpu_budget` and
        `ram_budget`, exports every n-th batch and passes over the others, and each tensor is copied into shared memory. So reading, functions and shuffles are computed once a worker (`cache(path)` below shares them).
        They pay where most of the time goes into a `collate` that holds the interpreter lock.

        Each `iter()` of the `DataLoader` is the next epoch in all workers, unless `set_epoch` says another one; they tell
        it by the seed that PyTorch draws, so whoever seeds PyTorch alike before two epochs has the same one twice. The
        count begins with the dataset's and is kept in a small file among temporary ones, also by copies on this machine.
        `len()` is known where that of `to_torch` is. States are for `torchdata`'s `StatefulDataLoader`, which goes on with
        exactly the next batch; without workers also for this process. Where several processes train, `shard` first, but not
        under accelerate, which then shares out the batches of its main process (`dispatch_batches`).

        Args:
            columns: As in `to_torch`.
            dtypes: As in `to_torch`.
            null: As in `to_torch`.
            lists: As in `to_torch`.
            collate: As in `to_torch`; a function of a module where workers are not forked, as all functions below then.
            strict_zero_copy: As in `to_torch`, up to the way out of a worker.

        Raises:
            MissingPackageError: PyTorch is not installed.
            PlanError: As in `to_torch`; or several workers would not have the same order (`deterministic=False`, a
                one-shot stream); when iteration starts.
            ForkError: A worker was forked from a process that had run a pipeline, or had used Polars, which this one needs;
                the message names ways out.
            StateError: A state was loaded outside of the workers that are to follow it.
            SchemaError: As in `to_torch`.
            DataError: As in `to_torch`.
            FunctionError: As in `to_torch`.

        Example:
            >>> import arrowflow as af
            >>> from torch.utils.data import DataLoader  # doctest: +SKIP
            >>> loader = DataLoader(af.range(3).batch(2).to_torch_dataset(), batch_size=None)  # doctest: +SKIP
            >>> [batch["id"].tolist() for batch in loader]  # doctest: +SKIP
            [[0, 1], [2]]
        """
        name = "to_torch_dataset"
        wishes = self._wishes(name, columns, dtypes, null, lists, strict_zero_copy, resolve=torch_dtype)
        return torch_dataset(
            self._prepares(wishes),
            SharedEpochs(self._epochs.next),
            _hand_over(name, TorchExport, wishes, collate),
        )

    def to_jax(
        self,
        *,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        null: Any = "error",
        lists: Literal["dense", "ragged", "padded"] = "dense",
        collate: Callable[[dict[str, jax.Array]], Any] | None = None,
        strict_zero_copy: bool = False,
        sharding: jax.sharding.Sharding | None = None,
    ) -> Loader[Any]:
        """Returns a loader of dicts of JAX arrays, by column. Needs the extra `jax`.

        The transfer of each batch begins before the one in front of it is delivered, so `next` waits until there are
        two; states, errors and the end come in order nevertheless. On the CPU memory that nobody else holds is aliased
        where it is aligned to 64 bytes. Without `jax_enable_x64` dtypes of 64 bits become 32, as always in JAX; but a
        number that does not fit is an error.

        Args:
            columns: As in `to_numpy`.
            dtypes: As in `to_numpy`, also as `jnp.bfloat16`; dates, times and decimals have no array without one.
            null: As in `to_numpy`.
            lists: As in `to_numpy`; ragged lists do not go with `sharding`.
            collate: As in `to_numpy`.
            strict_zero_copy: As in `to_numpy`; what goes to another device is copied there in any case.
            sharding: Makes global arrays: each process gives the rows of its own devices, so `shard` the rows below.
                One batch needs as many rows as its devices can share.

        Raises:
            MissingPackageError: JAX is not installed.
            PlanError: As in `to_numpy`.
            SchemaError: As in `to_numpy`, of types that JAX has.
            DataError: As in `to_numpy`; or the devices cannot share the rows of a batch.
            FunctionError: As in `to_numpy`.

        Example:
            >>> import arrowflow as af
            >>> loader = af.range(3).batch(2).to_jax()
            >>> len(loader)
            2
            >>> [batch["id"].tolist() for batch in loader]  # doctest: +SKIP
            [[0, 1], [2]]
        """
        if sharding is not None and not hasattr(sharding, "device_set"):
            raise PlanError(f"to_jax: sharding is a jax.sharding.Sharding, got {shown(sharding)}")
        if sharding is not None and lists == "ragged":
            raise PlanError("to_jax: ragged lists have no rows that devices could share; take lists='padded'")
        return self._loader(
            "to_jax",
            partial(JaxExport, sharding=sharding),
            self._wishes("to_jax", columns, dtypes, null, lists, strict_zero_copy),
            collate,
            ahead=True,
        )

    def to_polars(
        self,
        *,
        columns: Sequence[str] | None = None,
        collate: Callable[[pl.DataFrame], Any] | None = None,
    ) -> Loader[Any]:
        """Returns a loader of data frames, which have nulls and lists as they are.

        Args:
            columns: As in `to_numpy`.
            collate: As in `to_numpy`.

        Raises:
            PlanError: As in `to_numpy`.
            SchemaError: Polars has no such type as that of a column; when iteration starts.
            FunctionError: As in `to_numpy`.

        Example:
            >>> import arrowflow as af
            >>> [frame["id"].sum() for frame in af.range(4).batch(2).to_polars()]
            [1, 5]
        """
        return self._loader(
            "to_polars",
            PolarsExport,
            self._wishes("to_polars", columns, None, "error", "dense", strict_zero_copy=False),
            collate,
        )

    def _wishes(
        self,
        operator: str,
        columns: Sequence[str] | None,
        dtypes: Mapping[str, Any] | None,
        null: Any,
        lists: str,
        strict_zero_copy: bool,
        resolve: Callable[[Any], Any] = dtype_named,
    ) -> Wishes:
        return wishes_of(
            operator,
            columns=None if columns is None else _names(operator, (columns,)),
            dtypes=dtypes,
            null=null,
            lists=lists,
            strict_zero_copy=strict_zero_copy,
            resolve=resolve,
        )

    def _loader(
        self,
        name: str,
        make_export: MakeExport[Any],
        wishes: Wishes,
        collate: Callable[[Any], Any] | None,
        *,
        ahead: bool = False,
        arrived: Callable[[Any], Any] | None = None,
    ) -> Loader[Any]:
        hand_over = replace(_hand_over(name, make_export, wishes, collate), ahead=ahead, arrived=arrived)
        return Loader(self._prepares(wishes), self._epochs, hand_over)

    def _prepares(self, wishes: Wishes) -> Callable[[], run.Prepared]:
        """Returns what prepares the plan for a loader; it pickles, as the plan does."""
        return self._ready if wishes.columns is None else self.select(*wishes.columns)._ready_to_pick

    def to_reader(self) -> pa.RecordBatchReader:
        """Returns a `pyarrow.RecordBatchReader` over epoch 0.

        Raises:
            PlanError: The schema is not known before the pipeline runs, and it yields no rows to tell.

        Example:
            >>> import arrowflow as af
            >>> af.range(3).to_reader().read_all().num_rows
            3
        """
        prepared = self._ready()
        batches = Run(prepared, EpochCounter(), RecordBatches())
        return pa.RecordBatchReader.from_batches(*_with_schema(prepared.bound.schema, batches))

    def to_table(self) -> pa.Table:
        """Returns all rows of epoch 0 as a `pyarrow.Table`. Needs the memory for them.

        Example:
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
        columns: Sequence[str] | None = None,
    ) -> Any:
        """Returns what a function makes of a state and all rows of epoch 0, in order, one call after the other.

        The function sees the pieces that `map` sees; above `batch`, exactly the batches. It runs on this thread while
        what is below it is read ahead. With `Options.deterministic=False` rows come in any order.

        Args:
            initial_state: Any Python object.
            fn: Gets the state and a record batch, and returns the next state.
            format: What the function sees: `"arrow"`: `pyarrow.RecordBatch`. `"numpy"`: dicts of arrays. `"polars"`:
                data frames.
            columns: The columns that the function reads; others are not read from files.

        Raises:
            FunctionError: The function raised.

        Example:
            >>> import arrowflow as af
            >>> af.range(10).reduce(0, lambda total, batch: total + int(batch["id"].sum()), format="numpy")
            45
        """
        check_function("reduce", fn)
        check_format("reduce", format)
        below = self if columns is None else self.select(*_names("reduce", (columns,)))
        with interruptions():
            prepared = run.prepare(Reduce(inputs=(below._plan,)))
        with interruptions(), Run(prepared, EpochCounter(), RecordBatches()) as batches:
            try:
                return fold_batches(batches, initial_state, fn, format)
            except FunctionError as error:
                error.locate(operator="reduce")
                raise

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Exports epoch 0 through the Arrow PyCapsule interface, so that Polars, DuckDB and others read a dataset.

        Example:
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
        filesystem: Any = None,
        overwrite: bool = False,
    ) -> Written:
        """Writes epoch 0 as a folder of Parquet files, `part-00000.parquet` and so on, in the order of the rows.

        A half-written dataset never looks whole. On the local file system the folder gets its name in one step, once
        all shards are on the disk; an error, an interrupt or a crash leaves the name as it was, but for a crash in the
        middle of the last step of an overwrite, which is two: then the name is gone, and the old folder and the new
        one lie beside it as `.replaced-…` and `.writing-…`. The next write into this place gives the old one its name
        back, and removes what dead processes have left; who still writes holds a lock. Of several that overwrite at
        the same time, in any threads, processes and machines, the last to finish is seen. Elsewhere shards get their names when all are stored, and
        `read_parquet` refuses the folder while they do. Needs the memory of one row group, twice. The borders of
        batches are not kept; where files and row groups end follows from the rows alone.

        Parquet does not have all types: `timestamp[s]` and `time32[s]` are read back as `[ms]`, `date64` as `date32`.
        Values of `date64` that are no whole days are refused, and so are fixed-size lists of size 0.

        Args:
            path: The folder, or a URL that `pyarrow.fs` or fsspec knows. It is made, with those above it.
            shard_bytes: A file ends with the row group that takes it to that size. Default: 256 MiB, if no
                `shard_rows` are given.
            shard_rows: A file has exactly that many rows; the last has what is left. With both, what comes first.
            row_group_rows: Rows of a row group, which is what readers decode in one call. Default: 262,144, fewer
                where their values exceed 64 MiB.
            compression: `"zstd"`, `"snappy"`, `"lz4"`, `"gzip"`, `"brotli"` or None.
            filesystem: A file system of `pyarrow.fs` or fsspec, instead of telling by the path.
            overwrite: Whether a folder of Parquet files that is there already is replaced, in the last step.

        Raises:
            WriteError: The folder is not empty or a mount point, the disk is full, a type or a value has no place in
                Parquet, there are over 100,000 files; nothing is visible.
            PlanError: An argument is none; or there are no rows, and only rows could tell the schema.

        Example:
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
                filesystem=filesystem,
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
        overwrite: bool = False,
    ) -> Written:
        """Writes epoch 0 as a folder of Arrow IPC files, `part-00000.arrow` and so on, in the order of the rows.

        All that `write_parquet` says holds here, but all types stay what they are. Uncompressed files, the default, are
        mapped into memory when they are read, and not copied.

        Args:
            path: As in `write_parquet`.
            shard_bytes: As in `write_parquet`.
            shard_rows: As in `write_parquet`.
            batch_rows: Rows of a record batch in the file, which is what readers map in one call. Default: 65,536,
                fewer where their values exceed 64 MiB.
            compression: `"lz4"`, `"zstd"` or None.
            filesystem: As in `write_parquet`.
            overwrite: As in `write_parquet`, for a folder of IPC files.

        Raises:
            WriteError: As in `write_parquet`.
            PlanError: As in `write_parquet`.

        Example:
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
                overwrite=overwrite,
            )
        )

    def _write(self, writer: Writer) -> Written:
        prepared = self._ready()
        with interruptions():
            writer.check()
            with Run(prepared, EpochCounter(), RecordBatches()) as running:
                schema, batches = _with_schema(prepared.bound.schema, running)
                return writer.write(batches, schema)

    # --------------------------------------------------------------------------------------------- look

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types. Reads one footer per file source.

        Raises:
            PlanError: Only running the pipeline tells: a `map` or a generator has no `schema=`.

        Example:
            >>> import arrowflow as af
            >>> af.range(3).schema
            id: int64
        """
        schema = self._ready().bound.schema
        if schema is None:
            raise PlanError(
                "the schema is only known once the pipeline runs, since a map or a generator declares none; pass "
                "schema= to it"
            )
        return schema

    @property
    def num_rows(self) -> int | None:
        """The exact number of rows of one epoch, from footers; None where only running the pipeline tells.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> numbers = af.range(10).skip(3)
            >>> numbers.num_rows, numbers.filter(pl.col("id") > 5).num_rows
            (7, None)
        """
        return self._ready().num_rows

    def explain(self) -> str:
        """Returns the plan as written, as optimised and as it runs: what was pushed down, fused, and runs where.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> print(af.range(10).filter(pl.col("id") > 3).batch(2).explain())  # doctest: +ELLIPSIS
            logical plan
              range(start=0, stop=10, step=1)
              filter(...)
              batch(size=2, drop_remainder=False)
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
        return "\n".join(
            line for title, lines in sections.items() for line in (title, *("  " + line for line in lines))
        )


def parallel_calls(operator: str, value: int) -> int | None:
    """Returns a `num_parallel_calls` as nodes hold it: None for `AUTOTUNE`."""
    return None if value == AUTOTUNE else check_size(operator, "num_parallel_calls", value)


def plans_of(operator: str, datasets: Sequence[object]) -> tuple[Node, ...]:
    """Returns the plans of datasets, which all of them have to be."""
    for number, value in enumerate(datasets, 1):
        if not isinstance(value, Dataset):
            raise PlanError(f"{operator}: argument {number} is a Dataset, got {type(value).__name__}")
    return tuple(value._plan for value in datasets if isinstance(value, Dataset))


def _plan_of(value: object) -> Node | None:
    return value._plan if isinstance(value, Dataset) else None


def _with_schema(
    schema: pa.Schema | None, batches: Iterator[pa.RecordBatch]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Returns the schema of a run, which its first batch tells where nobody else does, and all batches."""
    if schema is not None:
        return schema, batches
    first = next(batches, None)
    if first is None:
        raise PlanError("the pipeline yields no rows, and only rows could tell its schema; pass schema=")
    # No generator, which would have ended with an error, and not raise again.
    return first.schema, itertools.chain((first,), batches)


def _hand_over(
    name: str,
    make_export: MakeExport[Any],
    wishes: Wishes,
    collate: Callable[[Any], Any] | None,
) -> HandOver[Any]:
    if collate is not None and not callable(collate):
        raise PlanError(f"{name}: collate is a function of a batch, got {shown(collate)}")
    return HandOver(name=name, make_export=make_export, wishes=wishes, collate=collate)


def _named(operator: str, exprs: tuple[Any, ...], named: Mapping[str, Any]) -> Named:
    if not exprs and not named:
        raise PlanError(f"{operator}: expected at least one column")
    listed = [(None, expr) for expr in parse_many(exprs, operator=operator, allow_name=True)]
    return (*listed, *((name, _parsed(operator, value)) for name, value in named.items()))


def _parsed(operator: str, value: Any) -> Any:
    if isinstance(value, bool | int | float):
        value = pl.lit(value)
    return parse_expression(value, operator=operator, allow_name=True)


def _check_executor(operator: str, executor: object, fn: Callable[..., Any]) -> None:
    check_executor(operator, executor)
    if executor == "process":
        check_portable(operator, fn, function_name(fn))


def _names(operator: str, columns: Sequence[Any]) -> tuple[str, ...]:
    names: list[str] = []
    for entry in columns:
        found = (
            [entry] if isinstance(entry, str) else list(entry) if isinstance(entry, list | tuple) else None
        )
        if not found or not all(isinstance(name, str) for name in found):
            raise PlanError(f"{operator}: expected names of columns, got {shown(entry)}")
        names += found
    if not names:
        raise PlanError(f"{operator}: expected at least one name of a column")
    return tuple(names)


def _schema(operator: str, schema: pa.Schema | None) -> pa.Schema | None:
    """Returns a schema that was given, with the types that travel inside a pipeline."""
    if schema is None:
        return None
    if not isinstance(schema, pa.Schema):
        raise PlanError(f"{operator}: schema is a pyarrow.Schema, got {type(schema).__name__}")
    try:
        return normalised_schema(schema)
    except SchemaError as error:
        error.locate(operator=operator)
        raise

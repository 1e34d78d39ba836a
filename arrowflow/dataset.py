"""`Dataset`: the fluent interface. Each method builds one node, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow import run
from arrowflow.errors import PlanError, SchemaError
from arrowflow.expr import parse, parse_many
from arrowflow.expr.types import arrow_type
from arrowflow.iterator import EpochCounter, RecordBatches
from arrowflow.iterator import Iterator as Run
from arrowflow.loaders.base import Loader
from arrowflow.loaders.dlpack import DlpackExport
from arrowflow.loaders.numpy import NumpyExport
from arrowflow.loaders.polars import PolarsExport
from arrowflow.loaders.torch import TorchExport
from arrowflow.ops.batch import Batch
from arrowflow.ops.cache import Cache
from arrowflow.ops.cast import Cast
from arrowflow.ops.drop import Drop
from arrowflow.ops.fill_null import FillNull
from arrowflow.ops.filter import Filter
from arrowflow.ops.from_arrow import normalised_schema
from arrowflow.ops.interleave import MAX_CYCLE_LENGTH, Interleave
from arrowflow.ops.map import BatchFormat, Map
from arrowflow.ops.prefetch import Prefetch
from arrowflow.ops.rename import Rename
from arrowflow.ops.repeat import Repeat
from arrowflow.ops.select import Named, Select
from arrowflow.ops.shard import Shard
from arrowflow.ops.shuffle import Shuffle
from arrowflow.ops.skip import Skip
from arrowflow.ops.stack import Stack
from arrowflow.ops.take import Take
from arrowflow.ops.with_columns import WithColumns
from arrowflow.ops.with_options import WithOptions
from arrowflow.options import AUTOTUNE, Options, check_seed, check_size
from arrowflow.physical.explain import render_chain
from arrowflow.plan.explain import render_plan
from arrowflow.plan.node import Node
from arrowflow.plan.walk import post_order

if TYPE_CHECKING:
    import pyarrow.compute as pc
    import torch

    Expression: TypeAlias = pl.Expr | pc.Expression


class Dataset:
    """An immutable, lazy, picklable plan for an ordered stream of rows, carried in record batches.

    Nothing is read before the schema is asked for or rows are. Each method returns a new dataset. The only thing that
    a dataset remembers is how often it was iterated: each `iter()` of it or of its loaders runs the next epoch (0,
    1, …). Everything else that reads (`to_table`, `to_reader`, `__arrow_c_stream__`) runs epoch 0 and does not
    count.

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

    def _ready(self) -> run.Prepared:
        if self._prepared is None:
            self._prepared = run.prepare(self._plan)
        return self._prepared

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
            raise PlanError(f"rename: expected a mapping from old to new names, got {mapping!r}")
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
            raise PlanError(f"cast: expected a mapping from columns to types, got {types!r}")
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
            return Dataset(FillNull(inputs=(self._plan,), by_column=tuple(value.items())))
        return Dataset(FillNull(inputs=(self._plan,), value=value))

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

    def filter(self, *predicates: Expression) -> Dataset:
        """Keeps the rows for which all predicates are true; null is not true.

        A filter right above a file source also spares the reading of row groups that provably hold no match.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> af.range(10).filter(pl.col("id") > 7).to_table().to_pydict()
            {'id': [8, 9]}
        """
        if not predicates:
            raise PlanError("filter: expected at least one predicate")
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
    ) -> Dataset:
        """Calls a function on record batches, which returns record batches with any number of rows.

        Below `batch` the function sees each split (row group, window, …) cut every `Options.max_chunk_rows` rows;
        above, exactly the batches. It is called from several threads and has to be pure.

        Args:
            fn: Gets a record batch and returns one; what that means, `format` says.
            format: `"arrow"`: `pyarrow.RecordBatch`. `"numpy"`: dicts of arrays. `"polars"`: data frames.
            columns: The columns that `fn` reads; it sees no others, and others are not read from files.
            schema: Of what `fn` returns. Without it the first chunk tells, and `Dataset.schema` is unknown.
            seed: Makes the call `fn(batch, rng)`, with a generator that depends on (seed, operator, epoch, split,
                piece) alone.
            num_parallel_calls: Calls at the same time; 1 means one at a time, in order.

        Raises:
            FunctionError: `fn` raised, or returned something else than it has to; in `next()`, in order.
            SchemaError: `fn` returned other columns or types than declared or than before.

        Example:
            >>> import arrowflow as af
            >>> ds = af.range(3).map(lambda x: {"y": x["id"] + 0.5}, format="numpy")
            >>> ds.to_table().to_pydict()
            {'y': [0.5, 1.5, 2.5]}
        """
        if not callable(fn):
            raise PlanError(f"map: expected a function, got {fn!r}")
        if format not in ("arrow", "numpy", "polars"):
            raise PlanError(f"map: format is 'arrow', 'numpy' or 'polars', got {format!r}")
        return Dataset(
            Map(
                inputs=(self._plan,),
                fn=fn,
                format=format,
                columns=None if columns is None else _names("map", (columns,)),
                types=_schema("map", schema),
                seed=None if seed is None else check_seed("map", seed),
                num_parallel_calls=parallel_calls("map", num_parallel_calls),
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

    # -------------------------------------------------------------------------------------------- order

    def shuffle(
        self, buffer_size: int, *, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Dataset:
        """Permutes the rows within windows of `buffer_size` rows.

        Where only column operators, filters and `repeat` lie between it and a file source, files and row groups are
        read in an order that follows (seed, epoch) too, a few files at a time. Each epoch has another order. A state
        holds a cursor, not the buffer.

        Args:
            buffer_size: Rows of a window.
            seed: What the order follows from; by default derived from `Options.seed` and the operator's place.
            reshuffle_each_iteration: Whether each epoch has an order of its own.

        Raises:
            PlanError: Above `batch`.

        Example:
            >>> import arrowflow as af
            >>> af.range(6).shuffle(6, seed=1).to_table().to_pydict()
            {'id': [5, 0, 1, 3, 4, 2]}
        """
        return Dataset(
            Shuffle(
                inputs=(self._plan,),
                size=check_size("shuffle", "buffer_size", buffer_size),
                seed=None if seed is None else check_seed("shuffle", seed),
                reshuffle_each_iteration=bool(reshuffle_each_iteration),
            )
        )

    def repeat(self, count: int | None = None) -> Dataset:
        """Goes through the data `count` times, or without end; each time is an epoch of what is below.

        `shuffle().repeat()` finishes each epoch while the next one's first window fills; `repeat().shuffle()` lets
        windows cross epochs. Ends after an epoch without rows.

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
                row, and again for the open datasets after a resume.
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
            raise PlanError(f"interleave: expected a function that returns a dataset, got {fn!r}")
        if deterministic is not None and not isinstance(deterministic, bool):
            raise PlanError(f"interleave: deterministic is True, False or None, got {deterministic!r}")
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

    def batch(self, batch_size: int, *, drop_remainder: bool = False) -> Dataset:
        """Makes batches of exactly `batch_size` rows, across all borders; the last may be short.

        Above it, operators that count rows are refused; another `batch` cuts anew.

        Args:
            batch_size: Rows of a batch.
            drop_remainder: Whether a short last batch is left out.

        Example:
            >>> import arrowflow as af
            >>> [batch.num_rows for batch in af.range(5).batch(2)]
            [2, 2, 1]
        """
        return Dataset(
            Batch(
                inputs=(self._plan,),
                size=check_size("batch", "batch_size", batch_size),
                drop_remainder=bool(drop_remainder),
            )
        )

    # --------------------------------------------------------------------------------------------- work

    def cache(self) -> Dataset:
        """Keeps in memory what comes by; later epochs, and other datasets made from this one, are served from there.

        Everything below it runs as epoch 0, so a random map or a shuffle there gives the same in every epoch; put
        `shuffle` above. An epoch that stops early leaves its rows, and the next one goes on behind them. The memory is
        charged to the budget of each run, and freed with the last dataset made from this one, or by `cache_clear`.

        Raises:
            BudgetError: What is cached exceeds `Options.ram_budget`; in `next()`.

        Example:
            >>> import arrowflow as af
            >>> calls = []
            >>> def slow(batch):
            ...     calls.append(batch.num_rows)
            ...     return batch
            >>> ds = af.range(3).map(slow).cache()
            >>> [batch["id"].to_pylist() for _ in range(2) for batch in ds], calls
            ([[0, 1, 2], [0, 1, 2]], [3])
        """
        return Dataset(Cache(inputs=(self._plan,)))

    def cache_clear(self) -> None:
        """Frees what every `cache` in this dataset holds, for all datasets that share it; it is computed anew.

        Iterators that are under way keep what they go through until they end.

        Raises:
            PlanError: There is no `cache` in it.

        Example:
            >>> import arrowflow as af
            >>> ds = af.range(3).cache()
            >>> table = ds.to_table()
            >>> ds.cache_clear()
        """
        caches = [node for node in post_order(self._plan) if isinstance(node, Cache)]
        if not caches:
            raise PlanError("cache_clear: there is no `cache` in this dataset")
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
            raise PlanError(f"with_options: expected arrowflow.Options, got {options!r}")
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

    def to_numpy(self) -> Loader[dict[str, np.ndarray[Any, Any]]]:
        """Returns a loader of dicts of arrays, by column.

        Arrays are views of Arrow's memory, read-only where others may hold it too. Fixed-size lists and tensors come
        as `(B, …)`, dates as `datetime64[D]`, texts as objects.

        Raises:
            SchemaError: A column has a type that no array has; when iteration starts.
            DataError: A column has nulls; when they come by.

        Example:
            >>> import arrowflow as af
            >>> [batch["id"].tolist() for batch in af.range(3).batch(2).to_numpy()]
            [[0, 1], [2]]
        """
        return self._loader("to_numpy", lambda schema, owned: NumpyExport(schema, owned=owned))

    def to_dlpack(self) -> Loader[dict[str, Any]]:
        """Returns a loader of dicts of objects that speak DLPack, by column.

        Memory that nobody else holds is handed over as it is; other memory is copied, since not every consumer
        honours a read-only flag.

        Example:
            >>> import arrowflow as af, numpy as np
            >>> [np.from_dlpack(batch["id"]).tolist() for batch in af.range(3).batch(2).to_dlpack()]
            [[0, 1], [2]]
        """
        return self._loader("to_dlpack", lambda schema, owned: DlpackExport(schema, owned=owned))

    def to_torch(self) -> Loader[dict[str, torch.Tensor]]:
        """Returns a loader of dicts of CPU tensors, by column. Needs the extra `torch`.

        Memory that nobody else holds is aliased and may be written; other memory is copied, since PyTorch knows no
        read-only tensors.

        Raises:
            ArrowflowError: PyTorch is not installed.

        Example:
            >>> import arrowflow as af
            >>> loader = af.range(3).batch(2).to_torch()
            >>> len(loader)
            2
            >>> [batch["id"].tolist() for batch in loader]  # doctest: +SKIP
            [[0, 1], [2]]
        """
        return self._loader("to_torch", lambda schema, owned: TorchExport(schema, owned=owned))

    def to_polars(self) -> Loader[pl.DataFrame]:
        """Returns a loader of data frames.

        Example:
            >>> import arrowflow as af
            >>> [frame["id"].sum() for frame in af.range(4).batch(2).to_polars()]
            [1, 5]
        """
        return self._loader("to_polars", lambda schema, owned: PolarsExport(schema, owned=owned))

    def _loader(self, name: str, make_export: Callable[[pa.Schema, bool], Any]) -> Loader[Any]:
        return Loader(name, self._ready, self._epochs, make_export)

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
        batches: Iterator[pa.RecordBatch] = Run(prepared, EpochCounter(), RecordBatches())
        schema = prepared.bound.schema
        if schema is None:
            first = next(batches, None)
            if first is None:
                raise PlanError(
                    "the pipeline yields no rows, and only rows could tell its schema; pass schema="
                )
            schema = first.schema
            batches = _chained(first, batches)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def to_table(self) -> pa.Table:
        """Returns all rows of epoch 0 as a `pyarrow.Table`. Needs the memory for them.

        Example:
            >>> import arrowflow as af
            >>> af.range(3).to_table().num_rows
            3
        """
        return self.to_reader().read_all()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Exports epoch 0 through the Arrow PyCapsule interface, so that Polars, DuckDB and others read a dataset.

        Example:
            >>> import arrowflow as af, polars as pl
            >>> pl.DataFrame(af.range(3))["id"].sum()
            3
        """
        return self.to_reader().__arrow_c_stream__(requested_schema)

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


def _plan_of(value: object) -> Node | None:
    return value._plan if isinstance(value, Dataset) else None


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _named(operator: str, exprs: tuple[Any, ...], named: Mapping[str, Any]) -> Named:
    if not exprs and not named:
        raise PlanError(f"{operator}: expected at least one column")
    listed = [(None, expr) for expr in parse_many(exprs, operator=operator, allow_name=True)]
    return (*listed, *((name, _parsed(operator, value)) for name, value in named.items()))


def _parsed(operator: str, value: Any) -> Any:
    if isinstance(value, bool | int | float):
        value = pl.lit(value)
    return parse(value, operator=operator, allow_name=True)


def _names(operator: str, columns: Sequence[Any]) -> tuple[str, ...]:
    names: list[str] = []
    for entry in columns:
        found = (
            [entry] if isinstance(entry, str) else list(entry) if isinstance(entry, list | tuple) else None
        )
        if not found or not all(isinstance(name, str) for name in found):
            raise PlanError(f"{operator}: expected names of columns, got {entry!r}")
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

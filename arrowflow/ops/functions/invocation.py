"""How user functions are called: what they see of a record batch, what comes back, and classes as functions.

A class is instantiated once per worker: a call takes an instance that is idle, or makes one where none is. So none is
ever used by two calls at once, there are never more than calls at the same time, and with `num_parallel_calls=1`
there is one. Instances belong to an operator in one run and not to a kernel, since `repeat` makes kernels anew in each
repetition. A run is one iteration over the dataset: the next one makes new instances.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError, FunctionError, PlanError, SchemaError, said, shown
from arrowflow.interchange.from_numpy import batch_from_arrays
from arrowflow.interchange.handed_over import TakeOver, copied_from, unshared
from arrowflow.interchange.to_numpy import ColumnExport, arrays_of, column_exports
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import SerialKernel, StatelessKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.kernels.recut import recut_spec
from arrowflow.ops.columns.column_program import check_columns, given_names
from arrowflow.ops.combine.elements import operator_key
from arrowflow.ops.combine.same_columns import FirstSchema
from arrowflow.ops.functions.function import check_function, code_digest, function_name, makes_functions
from arrowflow.ops.sources.from_memory import given_schema, normalised, normalised_schema
from arrowflow.options import ResolvedOptions, check_seed, parallel_calls
from arrowflow.plan.node import BindContext, Columns, Node
from arrowflow.plan.position import Position
from arrowflow.random import FUNCTION_CALLS, generator
from arrowflow.workarounds.slices import readable

BatchFormat = Literal["arrow", "numpy", "polars"]
FunctionExecutor = Literal["thread", "process"]
RETURNED = {"arrow": pa.RecordBatch, "numpy": dict, "polars": pl.DataFrame}
"""What a function returns, by format."""
GIVEN = {
    "arrow": ("a pyarrow.RecordBatch", "format='numpy' hands it arrays, format='polars' a data frame; "),
    "numpy": ("a dict of arrays", ""),
    "polars": ("a polars.DataFrame", ""),
}
"""What it is given, by format, for errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionOperator(Operator):
    """An operator that yields what a user function returns.

    Attributes:
        fn: The function, or a class of which each worker makes an instance that it calls.
        columns: What it reads, and all that it sees; None for all columns.
        types: The schema of what it returns, or None to take the first chunk's.
        place: Bound: the operator's place in the plan as written.
    """

    fn: Callable[..., Any] = field(hash=False)
    columns: tuple[str, ...] | None = None
    types: pa.Schema | None = None
    place: int = field(default=0, compare=False)

    @property
    def title(self) -> str:
        """Its name and its function's."""
        return f"{self.name}({function_name(self.fn)})"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Notes its place, for the keys of its random numbers and of its instances."""
        return dataclasses.replace(self, place=context.place).on(*inputs)

    def functions(self) -> Mapping[str, str]:
        """Returns a digest of the function's code."""
        return {self.name: code_digest(self.fn)}

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        """Returns the declared schema; without one only running it tells."""
        if self.columns is not None:
            check_columns(self.columns, inputs[0])
        return self.types

    def on(self, *inputs: Node) -> Self:
        """See `Node.on`; a declared schema is known whatever comes in."""
        return dataclasses.replace(Operator.on(self, *inputs), schema=self.types)

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns the columns that the function reads."""
        return (None if self.columns is None else frozenset(self.columns),)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingOperator(FunctionOperator):
    """One that calls its function for piece after piece, several at the same time.

    Attributes:
        seed: Makes `fn` be called with a random generator too.
        num_parallel_calls: Calls at the same time, or None for the CPU budget.
        executor: Where it is called, which changes none of its values.
    """

    seed: int | None = None
    num_parallel_calls: int | None = None
    executor: FunctionExecutor = field(default="thread", compare=False)

    @classmethod
    def of(
        cls,
        below: Node,
        fn: Callable[..., Any],
        *,
        columns: Sequence[str] | None,
        schema: pa.Schema | None,
        seed: int | None,
        num_parallel_calls: int,
        executor: FunctionExecutor,
        **own: Any,
    ) -> Self:
        """Returns the node, with arguments as users write them, those of its class in `own`."""
        check_function(cls.name, fn)
        check_format(cls.name, own.get("format", "arrow"))
        if executor not in {"thread", "process"}:
            raise PlanError(f"{cls.name}: executor is 'thread' or 'process', got {shown(executor)}")
        return cls(
            inputs=(below,),
            fn=fn,
            columns=given_names(cls.name, columns),
            types=given_schema(cls.name, schema),
            seed=check_seed(cls.name, seed),
            num_parallel_calls=parallel_calls(cls.name, num_parallel_calls),
            executor=executor,
            **own,
        )

    def describe(self) -> str:
        """Returns the operator as one line, with where its function runs."""
        text = FunctionOperator.describe(self)
        return text if self.executor == "thread" else f"{text[:-1]}, executor={self.executor!r})"

    def copies(self) -> tuple[str, ...]:
        """Returns how batches get to worker processes and back, or out of what the function may write again."""
        if self.executor == "thread":
            return (copied_from(self.name),)
        return (f"{self.name}: worker processes get a copy of each batch, and give one back",)

    def generators(self, epoch: int, origin: Origin) -> tuple[np.random.Generator, ...]:
        """Returns what `fn` is called with beside a piece: a generator, if there is a seed."""
        if self.seed is None:
            return ()
        return (generator((self.seed, FUNCTION_CALLS, self.place, epoch, origin.split, origin.piece)),)

    def specs(
        self,
        kernel: Callable[[Any, Context], StatelessKernel],
        options: ResolvedOptions,
        *,
        fact: str,
        unit: str,
    ) -> tuple[KernelSpec, ...]:
        """Returns the cutter of pieces (below `batch`), the caller, and the check of what came back."""
        cut = () if self.batched else (recut_spec(self.name, options),)
        process = self.executor == "process"
        call = KernelSpec(
            operator=self.name,
            kind="stateless",
            # Not the plan below, which may hold data: a worker process gets this node alone.
            make=functools.partial(kernel, dataclasses.replace(self, inputs=())),
            engine="python",
            # The thread of a call only waits for the worker process, which is where it computes.
            cost="computes" if process else "unknown",
            process=process,
            random=self.seed is not None,
            max_calls=self.num_parallel_calls,
            facts=lambda: (fact + ", in worker processes" if process else fact,),
        )
        if self.types is not None:
            return (*cut, call)
        check = KernelSpec(
            operator=self.name,
            kind="serial",
            make=lambda context: UniformKernel(self.name, self.fn),
            facts=lambda: (f"the first {unit} declares the schema",),
        )
        return (*cut, call, check)


def check_format(operator: str, format: object) -> None:
    """Raises `PlanError` for an unknown format."""
    if format not in RETURNED:
        raise PlanError(f"{operator}: format is 'arrow', 'numpy' or 'polars', got {shown(format)}")


class UserFunction:
    """A user function, or the instances of a class that are lent to one call at a time.

    Args:
        fn: The function or class.
        storage: What keeps the instances: `Context.run_storage`, so that they live until the run ends.
        place: The operator's, so that no other one gets its instances.
    """

    def __init__(self, fn: Callable[..., Any], storage: dict[Any, Any], place: int) -> None:
        self.name = function_name(fn)
        self._fn = fn
        # Both `setdefault` and the ends of a deque are one step each, so that workers need no lock.
        self._idle: deque[Any] | None = (
            storage.setdefault((UserFunction, fn, operator_key(place)), deque())
            if makes_functions(fn)
            else None
        )

    def __call__(
        self, *arguments: Any, hint: str = "", then: Callable[[list[Any]], Any] | None = None
    ) -> Any:
        """Returns what the function returns; or, with `then`, what that makes of a list with it.

        Until then no other call gets the instance, which may keep what it returned, to write it again.

        Raises:
            FunctionError: It raised; with `hint` where the exception looks as if it expected something else.
        """
        call = self._fn if self._idle is None else self._instance(self._idle)
        try:
            returned = [call(*arguments)]  # no variable holds it, so that `unshared` counts
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # `sys.exit()` among them, which ends this call and not the program
            text = f"{self.name} raised {said(error)}"
            if isinstance(error, ValueError) and "read-only" in text:
                raise FunctionError(
                    text + " (arrays share memory with what others read: write into a copy)"
                ) from error
            confused = isinstance(error, TypeError | AttributeError | ValueError)
            raise FunctionError(text + (hint if confused else "")) from error
        result = returned.pop() if then is None else then(returned)
        if self._idle is not None:
            self._idle.append(call)
        return result

    def _instance(self, idle: deque[Any]) -> Any:
        try:
            return idle.pop()
        except IndexError:
            pass  # all are lent
        try:
            return self._fn()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise FunctionError(
                f"{self.name}() raised {said(error)} (a class is instantiated without arguments; "
                "functools.partial gives it some)"
            ) from error


class BatchFunction:
    """A user function of record batches, in the format that it wants.

    Args:
        fn: The function or class.
        storage: What keeps the instances of a class: `Context.run_storage`.
        place: The operator's.
        format: What it sees and returns.
        columns: What it reads, and all that it sees; None for all columns.
        schema: What it is to return, for the tensors in it; the caller checks the rest.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        storage: dict[Any, Any],
        place: int,
        *,
        format: BatchFormat,
        columns: tuple[str, ...] | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        self._function = UserFunction(fn, storage, place)
        self._format = format
        self._columns = None if columns is None else list(columns)
        self._schema = schema
        self.name = self._function.name
        self.what = f"what {self.name} returned"
        self._exports: tuple[pa.Schema, tuple[ColumnExport, ...]] | None = (
            None  # replaced as a whole, by any thread
        )

    def argument(self, chunk: pa.RecordBatch) -> Any:
        """Returns a chunk as the function sees it."""
        if self._columns is not None:
            check_columns(self._columns, chunk.schema)
            chunk = chunk.select(self._columns)
        if self._format == "arrow":
            return chunk
        if self._format == "polars":
            return pl.DataFrame(readable(chunk))
        try:
            return self._arrays(chunk)
        except (DataError, SchemaError) as error:
            leave = "leave out what it does not read, with columns=[…], or " if self._columns is None else ""
            raise type(error)(
                f"{error} ({self.name} is given arrays, by format='numpy': {leave}take format='arrow' or 'polars')"
            ) from None

    def _arrays(self, chunk: pa.RecordBatch) -> dict[str, Any]:
        schema, known = chunk.schema, self._exports
        if known is None or not known[0].equals(schema):
            known = self._exports = (schema, column_exports(schema))
        return arrays_of(chunk, known[1])

    def call(self, num_rows: int, *arguments: Any, then: Callable[[list[Any]], Any] | None = None) -> Any:
        """Returns what the function returns; or, with `then`, what that makes of a list with it."""
        given, others = GIVEN[self._format]
        hint = (
            f" (it was given {num_rows:,} rows as {given}, not one row; {others}`map_rows` calls a function row by "
            "row, slowly)"
        )
        return self._function(*arguments, hint=hint, then=then)

    def batch(self, returned: list[Any], given: pa.RecordBatch | None) -> pa.RecordBatch:
        """Returns what the function returned as a record batch, which it cannot write any more.

        Args:
            returned: Holds what it returned, as the only one of this library.
            given: What it was given; None where it need not be kept from writing.

        Raises:
            FunctionError: It returned something else.
        """
        private = unshared(returned) if given is not None and self._format == "numpy" else frozenset()
        result = returned.pop()
        expected = RETURNED[self._format]
        if not isinstance(result, expected):
            raise FunctionError(
                f"{self.what} is a {type(result).__name__}, expected a {expected.__name__}, since "
                f"format={self._format!r}"
            )
        try:
            take = (
                None if given is None else TakeOver(given, unshared=private, foreign=self._format == "polars")
            )
            if isinstance(result, dict):
                return batch_from_arrays(result, self._schema, take)
            if isinstance(result, pl.DataFrame):
                result = result.to_arrow().combine_chunks()
                result = pa.RecordBatch.from_arrays(
                    [_whole(column) for column in result.columns], schema=result.schema
                )
            batch = normalised(result, normalised_schema(result.schema))
            return batch if take is None else take.batch(batch)
        except SchemaError as error:
            raise FunctionError(f"{self.what} is no table: {error}") from error


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class UniformKernel(SerialKernel):
    """Sees to it that all chunks of a stream have one schema; those of several streams `repeat` compares, in order."""

    def __init__(self, operator: str, fn: Callable[..., Any]) -> None:
        self._operator = operator
        self._what = f"what {function_name(fn)} returned later"
        self._first = FirstSchema()

    def open(self, position: Position, epoch: int) -> Position:
        """Passes the position on."""
        return position

    def push(self, item: Item) -> Iterator[Item]:
        """Passes the chunk on."""
        yield item._replace(chunk=self.checked(item.chunk))

    def checked(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the chunk; raises `SchemaError` where it has other columns than the first one."""
        try:
            return self._first.checked(chunk, self._what, "schema= declares columns and types")
        except SchemaError as error:
            error.locate(operator=self._operator)
            raise

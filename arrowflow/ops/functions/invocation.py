"""Calls of user functions: the arguments made of a record batch, and the checked results."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, get_args

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.bad_rows import BY_OPTIONS, BadRowPolicy
from arrowflow.errors import DataError, FunctionError, SchemaError
from arrowflow.interchange.converted import arrays_of, column_exports
from arrowflow.interchange.from_columns import batch_from_arrays
from arrowflow.interchange.handed_over import TakeOver, copied_from, unshared
from arrowflow.interchange.to_numpy import for_functions
from arrowflow.kernels.context import Context
from arrowflow.kernels.gather import OfSchema
from arrowflow.kernels.instances import Lender
from arrowflow.kernels.items import Origin
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.kernels.pieces import PieceOperator
from arrowflow.kernels.recut import recut_specs
from arrowflow.ops.columns.column_program import (
    as_texts,
    bound_names,
    check_columns,
    check_names,
    given_names,
)
from arrowflow.ops.functions.bad_results import results_specs
from arrowflow.ops.functions.function import UserFunction, check_function, code_digest, function_name
from arrowflow.ops.sources.from_memory import changed_schema, given_schema, normalised
from arrowflow.options import OnError, check_choice, check_flag, check_seed, parallel_calls
from arrowflow.plan.node import BindContext, Columns, Node
from arrowflow.plan.traits import SharedByEpochs
from arrowflow.random import FUNCTION_CALLS, generator
from arrowflow.workarounds.slices import readable

BatchFormat = Literal["arrow", "numpy", "polars"]
FunctionExecutor = Literal["thread", "process"]

_RETURNED: Final[dict[str, type]] = {"arrow": pa.RecordBatch, "numpy": dict, "polars": pl.DataFrame}
"""The result of a function, by format."""

_GIVEN: Final = {
    "arrow": ("a pyarrow.RecordBatch", "format='numpy' hands it arrays, format='polars' a data frame; "),
    "numpy": ("a dict of arrays", ""),
    "polars": ("a polars.DataFrame", ""),
}
"""The argument of a function, by format, and the other ways to call it."""

_BY_ROW: Final = "`map_rows` calls a function row by row, slowly"

_WAYS: Final[dict[type, str]] = {
    dict: f"format='numpy' is for functions of arrays; {_BY_ROW}",
    pl.DataFrame: "format='polars' is for functions of data frames",
    pa.RecordBatch: "format='arrow' is for functions of record batches",
}
"""The way to call a function, by the type of its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallingOperator(PieceOperator):
    """An operator that calls a user function for pieces.

    Attributes:
        fn: The function, or a class of which each worker makes and calls an instance.
        columns: The only columns that `fn` reads and sees; None for all columns.
        place: Bound: the operator's place in the plan as written.
    """

    fn: Callable[..., Any] = field(hash=False)
    columns: tuple[str, ...] | None = None
    place: int = field(default=0, compare=False)

    @property
    def title(self) -> str:
        return f"{self.name}({function_name(self.fn)})"

    def arguments(self) -> Mapping[str, Any]:
        format = {"format": self.format} if hasattr(self, "format") else {}
        return {"fn": function_name(self.fn), **format, "columns": as_texts(self.columns)}

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Notes its place, for the keys of random numbers and instances, and what becomes of bad rows."""
        policy = {"policy": self.policy.within(context.options)} if hasattr(self, "policy") else {}
        columns = bound_names(self.columns, inputs[0].schema)
        return dataclasses.replace(self, place=context.place, columns=columns, **policy).on(*inputs)

    def functions(self) -> Mapping[str, str]:
        return {self.name: code_digest(self.fn)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredicateOperator(CallingOperator):
    """An operator that keeps rows by the booleans that a user function returns for a piece of them, one a row.

    Attributes:
        format: The format of the batches that `fn` sees.
    """

    format: BatchFormat = "arrow"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_names(self.columns, inputs[0])
        return inputs[0]

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        return (None if wanted is None or self.columns is None else wanted | set(self.columns),)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionOperator(CallingOperator):
    """An operator that yields the results of a user function.

    Attributes:
        types: The schema of the result, or None to take the first chunk's.
    """

    types: pa.Schema | None = None

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        """Returns the declared schema; without a declared schema only a run tells."""
        check_names(self.columns, inputs[0])
        return self.types

    def on(self, *inputs: Node) -> Self:
        """See `Node.on`; a declared schema is known for any input."""
        return dataclasses.replace(Operator.on(self, *inputs), schema=self.types)

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        return (None if self.columns is None else frozenset(self.columns),)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingOperator(FunctionOperator):
    """An operator that calls its function for piece after piece, several at the same time.

    Attributes:
        seed: With a seed, `fn` also gets a random generator.
        epoch: Whether `fn` also gets the number of the epoch.
        num_parallel_calls: Calls at the same time, or None for the CPU budget.
        executor: Where `fn` is called; this changes no value.
        policy: The treatment of bad rows; once bound, as the pipeline says.
    """

    seed: int | None = None
    epoch: bool = False
    num_parallel_calls: int | None = None
    executor: FunctionExecutor = field(default="thread", compare=False)
    policy: BadRowPolicy = BY_OPTIONS

    @classmethod
    def of(
        cls,
        below: Node,
        fn: Callable[..., Any],
        *,
        columns: Any,
        schema: pa.Schema | Mapping[str, Any] | None,
        seed: int | None,
        epoch: bool,
        num_parallel_calls: int,
        executor: FunctionExecutor,
        on_error: OnError | None,
        quarantine: str | os.PathLike[str] | None,
        **own: Any,
    ) -> Self:
        """Returns the node, with arguments as users write them; `own` holds the arguments of its class."""
        check_function(cls.name, fn)
        check_format(cls.name, own.get("format", "arrow"))
        check_choice(cls.name, "executor", executor, get_args(FunctionExecutor))
        return cls(
            inputs=(below,),
            fn=fn,
            columns=given_names(cls.name, columns),
            types=given_schema(cls.name, schema),
            seed=check_seed(cls.name, seed),
            epoch=check_flag(cls.name, "epoch", epoch),
            num_parallel_calls=parallel_calls(cls.name, num_parallel_calls),
            executor=executor,
            policy=BadRowPolicy.of(cls.name, on_error, quarantine),
            **own,
        )

    def arguments(self) -> Mapping[str, Any]:
        """Adds the seed; so that older states go on, epoch and policy only where they are not the defaults."""
        epoch = {"epoch": True} if self.epoch else {}
        return {**FunctionOperator.arguments(self), "seed": self.seed, **epoch, **self.policy.arguments()}

    def describe(self) -> str:
        text = FunctionOperator.describe(self)
        return text if self.executor == "thread" else f"{text[:-1]}, executor={self.executor!r})"

    def copies(self) -> tuple[str, ...]:
        """Returns how batches get to worker processes and back, or out of memory that the function may write again."""
        if self.executor == "thread":
            return (copied_from(self.name),)
        return (f"{self.name}: worker processes get a copy of each batch, and give one back",)

    def shared_by_epochs(self, share: SharedByEpochs) -> SharedByEpochs:
        """Returns that epochs share nothing, if the function knows which one it is."""
        return SharedByEpochs.NOTHING if self.epoch else FunctionOperator.shared_by_epochs(self, share)

    def more_arguments(self, epoch: int, origin: Origin) -> tuple[Any, ...]:
        """Returns the arguments of `fn` beside a piece: a generator, if there is a seed, and the epoch, if it is wanted."""
        number = (epoch,) if self.epoch else ()
        if self.seed is None:
            return number
        rng = generator((self.seed, FUNCTION_CALLS, self.place, epoch, origin.split, origin.piece))
        return (rng, *number)

    def specs(
        self,
        kernel: Callable[[Any, Context], StatelessKernel],
        *,
        fact: str,
        unit: str,
    ) -> tuple[KernelSpec, ...]:
        """Returns the cutter of pieces (without a `batch` before it), the caller, and the check of results."""
        process = self.executor == "process"
        call = KernelSpec(
            "stateless",
            # The plan before it is left out, since it may hold data: a worker process gets this node alone.
            functools.partial(kernel, dataclasses.replace(self, inputs=())),
            engine="python",
            # The thread of a call only waits for the worker process, which computes.
            cost="computes" if process else "unknown",
            process=process,
            random=self.seed is not None or self.epoch,
            max_calls=self.num_parallel_calls,
            facts=fact + ", in worker processes" if process else fact,
        )
        results = results_specs(
            f"{self.title}-{self.place}",
            policy=self.policy,
            checked=self.fn if self.types is None else None,
            by_row=self.by_row,
            unit=unit,
        )
        return (*recut_specs(self), call, *results)


def check_format(operator: str, format: object) -> str:
    """Returns the format, or raises `PlanError` if it is not known."""
    found: str = check_choice(operator, "format", format, _RETURNED)
    return found


class BatchFunction:
    """A user function of record batches, in the format that the user chose.

    Args:
        lender: Keeps a class's instances.
        format: The format of the argument and of the result.
        columns: The only columns that `fn` reads and sees; None for all columns.
        schema: The schema of the result, for its tensors; the caller checks the rest.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        lender: Lender,
        place: int,
        *,
        format: BatchFormat,
        columns: tuple[str, ...] | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        self._function = UserFunction(fn, lender, place)
        self._format = format
        self._columns = None if columns is None else list(columns)
        self._schema = schema
        self.name = self._function.name
        self.what = f"what {self.name} returned"
        self._exports = OfSchema(column_exports)
        # Any thread replaces it as a whole.
        self._normal: tuple[pa.Schema, pa.Schema | None] | None = None

    @classmethod
    def of(cls, node: Any, context: Context) -> Self:
        """Returns the function of an operator, which has a `format`."""
        columns, types = node.columns, getattr(node, "types", None)
        return cls(node.fn, context, node.place, format=node.format, columns=columns, schema=types)

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
            return arrays_of(chunk, self._exports(chunk.schema))
        except (DataError, SchemaError) as error:
            leave = "leave out what it does not read, with columns=[…], or " if self._columns is None else ""
            raise type(error)(
                f"{for_functions(str(error))} ({self.name} is given arrays, by format='numpy': {leave}take format='arrow' or 'polars')"
            ) from None

    def call(self, num_rows: int, *arguments: Any, then: Callable[[list[Any]], Any] | None = None) -> Any:
        """Returns the function's result; with `then`, the value that `then` makes of a list with the result."""
        # The function may have been written for one row.
        given, others = _GIVEN[self._format]
        hint = f" (it was given {num_rows:,} rows as {given}, not one row; {others}{_BY_ROW})"
        return self._function(*arguments, hint=hint, then=then)

    def batch(self, returned: list[Any], given: pa.RecordBatch | None) -> pa.RecordBatch:
        """Returns the function's result as a record batch, which the function cannot write any more.

        Args:
            returned: Holds the result, as the only reference of this library.
            given: The function's argument; None where the argument need not be protected from writing.

        Raises:
            FunctionError: The result is something else.
        """
        private = unshared(returned) if given is not None and self._format == "numpy" else frozenset()
        result = returned.pop()
        expected = _RETURNED[self._format]
        if not isinstance(result, expected):
            raise FunctionError(
                f"{self.what} is a {type(result).__name__}, expected a {expected.__name__}, since "
                f"format={self._format!r}; {_WAYS.get(type(result), _BY_ROW)}"
            )
        try:
            foreign = self._format == "polars"
            take = None if given is None else TakeOver(given, unshared=private, foreign=foreign)
            if isinstance(result, dict):
                return batch_from_arrays(result, self._schema, take)
            if isinstance(result, pl.DataFrame):
                result = result.to_arrow().combine_chunks()
                result = pa.RecordBatch.from_arrays(
                    [_whole(column) for column in result.columns], schema=result.schema
                )
            batch = self._normalised(result)
            return batch if take is None else take.batch(batch)
        except SchemaError as error:
            is_row = isinstance(result, dict) and any(map(np.isscalar, result.values()))
            hint = f"; {_BY_ROW}" if is_row else ""
            raise FunctionError(f"{self.what} is no table: {error}{hint}") from error

    def _normalised(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a result with the types that travel inside a pipeline. Most have one schema, which saves 10 µs."""
        schema, known = batch.schema, self._normal
        if known is None or not known[0].equals(schema, check_metadata=True):
            known = self._normal = (schema, changed_schema(schema))
        return batch if known[1] is None else normalised(batch, known[1])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

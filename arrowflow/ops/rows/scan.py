"""`scan`: a user function that carries a state from one record batch to the next.

The state is JSON, and the function never gets the object that it returned, only a copy made from the JSON. So a resumed
run sees exactly the same states as an unbroken run. A later change by the function cannot leak into an earlier
position. Positions hold the text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import pyarrow as pa

from arrowflow.errors import FunctionError, PlanError
from arrowflow.interchange.handed_over import copied_from
from arrowflow.kernels.context import Context
from arrowflow.kernels.kinds import StateKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.kernels.recut import recut_specs
from arrowflow.ops.columns.column_program import given_names
from arrowflow.ops.functions.bad_results import result_schema
from arrowflow.ops.functions.function import check_function, conform, function_name
from arrowflow.ops.functions.invocation import BatchFormat, BatchFunction, FunctionOperator, check_format
from arrowflow.ops.sources.from_memory import given_schema
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Traits

MAX_STATE_BYTES = 32 << 10
"""Bytes of a state as a position holds it, so that all of an iterator's state stays under 64 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(FunctionOperator):
    """The batches that `fn(state, batch)` returns beside the next state, call after call.

    Before `batch`, `fn` sees pieces, see `kernels.pieces`; after `batch`, exactly the batches. Row order:
    as its input. Memory: input and output of one call, and the state. Deterministic if `fn` is. Resume: (position
    before the piece, state as JSON).

    Attributes:
        initial_state: JSON of the state with which each epoch begins.
        format: The format of the argument and of the result.
    """

    name: ClassVar[str] = "scan"
    traits: ClassVar[Traits] = Traits(opaque=True, in_turn=True)

    initial_state: str
    format: BatchFormat = "arrow"

    @classmethod
    def of(
        cls,
        below: Node,
        initial_state: Any,
        fn: Callable[..., Any],
        *,
        format: BatchFormat,
        columns: Any,
        schema: pa.Schema | Mapping[str, Any] | None,
    ) -> Self:
        check_function(cls.name, fn)
        check_format(cls.name, format)
        try:
            state = state_text(initial_state, "initial_state")
        except FunctionError as error:
            raise PlanError(f"scan: {error}") from None
        return cls(
            inputs=(below,),
            fn=fn,
            initial_state=state,
            format=format,
            columns=given_names(cls.name, columns),
            types=given_schema(cls.name, schema),
        )

    def arguments(self) -> Mapping[str, Any]:
        return {"initial_state": self.initial_state, **FunctionOperator.arguments(self)}

    def copies(self) -> tuple[str, ...]:
        return (copied_from(self.name),)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        call = KernelSpec(
            "serial",
            lambda context: ScanKernel(self, context),
            position=Shape(ScanPosition, _wrong),
            engine="python",
            facts=f"{function_name(self.fn)}(state, {self.format}), one call at a time, in order",
        )
        return (*recut_specs(self), call)


class ScanPosition(NamedTuple):
    """Position of a `ScanKernel`: the input's position, and the state as JSON."""

    input: Position
    state: str


def _wrong(at: ScanPosition) -> str | None:
    try:
        json.loads(at.state)
    except (ValueError, RecursionError):
        return f"state is {at.state[:80]!r}, expected JSON"
    return None


class ScanKernel(StateKernel):
    """Calls the function with the state that it returned last."""

    position = ScanPosition
    makes_memory = True

    def __init__(self, node: Scan, context: Context) -> None:
        self._types = node.types
        self.state = node.initial_state
        self._function = BatchFunction.of(node, context)
        self._checked = result_schema(node.fn)

    def step(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        function = self._function
        arguments = json.loads(self.state), function.argument(chunk)
        batch, self.state = function.call(
            chunk.num_rows, *arguments, then=lambda returned: self._taken(returned, chunk)
        )
        return batch

    def _taken(self, returned: list[Any], given: pa.RecordBatch) -> tuple[pa.RecordBatch, str]:
        """Returns the batch and the next state of a function's result."""
        function = self._function
        result = returned.pop()
        if not isinstance(result, tuple) or len(result) != 2:
            raise FunctionError(
                f"{function.what} is a {type(result).__name__}, expected a tuple of the next state and what becomes "
                "of the batch"
            )
        state, returned = result[0], [result[1]]
        del result
        batch = function.batch(returned, given)
        text = state_text(state, f"the state that {function.name} returned")
        if self._types is not None:
            batch = conform(batch, self._types, function.what)
        else:
            batch = self._checked(batch)
        return batch, text


def state_text(state: object, what: str) -> str:
    """Returns a state as JSON.

    Raises:
        FunctionError: The state is not JSON, or too large for a position.

    Examples:
        >>> state_text({"seen": 3}, "the state")
        '{"seen": 3}'
    """
    text = ""
    try:
        problem = _not_json(state, "state")
        if problem is None:
            text = json.dumps(state)
    except RecursionError:
        problem = "it is nested too deeply"
    except ValueError as error:  # an integer of thousands of digits, or a list that holds itself
        problem = str(error)
    if problem is not None:
        raise FunctionError(
            f"{what} is not JSON: {problem}; expected dicts with texts as keys, lists, texts, finite numbers, booleans "
            "and None"
        )
    # The state is a text inside JSON, where quotes and backslashes take two bytes each.
    num_bytes = len(json.dumps(text))
    if num_bytes > MAX_STATE_BYTES:
        raise FunctionError(
            f"{what} takes {num_bytes:,} bytes as JSON, at most {MAX_STATE_BYTES:,} fit into the state of an "
            "iterator; keep totals instead of rows"
        )
    return text


def _not_json(value: object, path: str) -> str | None:
    """Describes the first part of a value that JSON would not give back unchanged."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict) and not isinstance(key, str):
                return f"a key of {path} is {key!r}"
            problem = _not_json(inner, f"{path}[{key!r}]")
            if problem is not None:
                return problem
        return None
    if value is None or isinstance(value, str | int):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{path} is {value!r}"
    hint = ""
    if isinstance(value, tuple):
        hint = ", which comes back as a list"
    elif type(value).__module__ == "numpy":
        hint = ", of which int(…), float(…) or .tolist() makes what JSON knows"
    return f"{path} is a {type(value).__module__}.{type(value).__qualname__}{hint}"

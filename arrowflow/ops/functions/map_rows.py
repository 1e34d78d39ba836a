"""`map_rows`: a user function of single rows. The slow convenience: `map` calls a function once for 65,536 rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.errors import DataError, FunctionError, shown
from arrowflow.interchange.from_rows import batch_from_rows
from arrowflow.interchange.handed_over import copied_value
from arrowflow.interchange.kept_values import has_nanoseconds
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Origin
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.columns.column_program import as_texts, check_columns
from arrowflow.ops.functions.function import function_name
from arrowflow.ops.functions.invocation import MappingOperator, UserFunction
from arrowflow.options import ResolvedOptions
from arrowflow.plan.traits import Traits

FASTER = "`map` calls a function once for many rows, which is some hundred times as fast"
SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRows(MappingOperator):
    """The results of `fn` for each row of its input, both as dicts of Python values.

    Row order: as its input. Memory: input and output of a piece, and its rows as Python objects: some 500 bytes a row
    and more. Deterministic if `fn` is; the generator that `fn` may get depends on (seed, operator, epoch, split, piece)
    and the rows of the piece before. Resume: (position before the piece, rows, split, piece).

    Attributes:
        fn: The function, or a class of which each worker makes and calls an instance.
        columns: The only columns that `fn` reads and sees; None for all columns.
        types: The schema of the result, or None to take the first piece's.
        seed: With a seed, `fn` also gets a random generator.
        num_parallel_calls: Calls at the same time, or None for the CPU budget.
        executor: Where `fn` is called; this changes no value.
        place: Bound: the operator's place in the plan as written.
    """

    name: ClassVar[str] = "map_rows"
    traits: ClassVar[Traits] = Traits(one_to_one=True, opaque=True)

    def arguments(self) -> Mapping[str, Any]:
        """Returns the arguments that decide the input of the function."""
        return {
            "fn": function_name(self.fn),
            "columns": as_texts(self.columns),
            "seed": self.seed,
        }

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns the cutter of pieces (without a `batch` before it), the caller, and the check of results."""
        return self.specs(
            MapRowsKernel,
            options,
            fact=f"{function_name(self.fn)}(row), one call a row, slow: {FASTER}",
            unit="piece",
        )


class MapRowsKernel(StatelessKernel):
    """Calls the function for row after row."""

    def __init__(self, node: MapRows, context: Context) -> None:
        self._node = node
        self._epoch = context.epoch
        self._function = UserFunction(node.fn, context.run_storage, node.place)

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """Returns the function's results for the rows of a piece."""
        node = self._node
        if node.columns is not None:
            check_columns(node.columns, chunk.schema)
            chunk = chunk.select(list(node.columns))
        _check_units(chunk.schema)
        more = node.generators(self._epoch, origin)
        rows = [self._call(row, more) for row in chunk.to_pylist()]
        names = list(rows[0]) if node.types is None else node.types.names
        expected = set(names)
        for row in rows:
            if row.keys() != expected:
                raise FunctionError(
                    f"what {self._function.name} returned has the keys {list(row)}, expected {names}, as "
                    f"{'returned for an earlier row' if node.types is None else 'schema= declares'}"
                )
        return batch_from_rows(rows, names, node.types, f"what {self._function.name} returned")

    def _call(self, row: dict[str, Any], more: tuple[Any, ...]) -> dict[str, Any]:
        try:
            # Rows are made into columns together, so no row may change when the next row is made.
            result = self._function(row, *more, then=lambda returned: copied_value(returned.pop()))
        except FunctionError as error:
            raise FunctionError(f"{error} (for the row {_shown(row)})") from error.__cause__
        if not isinstance(result, dict) or not result or not all(type(key) is str for key in result):
            raise FunctionError(
                f"what {self._function.name} returned is {_shown(result)}, expected a dict of values by column for "
                f"each row; record batches are for `map`, and {FASTER}"
            )
        return result


def _check_units(schema: pa.Schema) -> None:
    """Raises `DataError` where Python would drop the nanoseconds, or would return another type than it got."""
    for field in schema:
        if has_nanoseconds(field.type):
            raise DataError(
                f"column {field.name!r} is {field.type}, and Python's dates and times hold microseconds; `cast` it "
                "before to that unit or to int64, or name the columns that the function reads with columns="
            )


def _shown(value: object) -> str:
    text = shown(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"

"""`map_rows`: a user function of single rows. The slow convenience: `map` calls a function once for many rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.bad_rows import BadRow, bad_among, first_bad, is_bad_data
from arrowflow.errors import ArrowflowError, DataError, FunctionError, shown
from arrowflow.interchange.from_rows import batch_from_rows
from arrowflow.interchange.handed_over import copied_value
from arrowflow.interchange.kept_values import has_nanoseconds
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Origin, Outcome
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
        policy: What becomes of rows for which `fn` fails.
        place: Bound: the operator's place in the plan as written.
    """

    name: ClassVar[str] = "map_rows"

    @property
    def traits(self) -> Traits:  # type: ignore[override]  # bad rows may be left out
        """One row out per row in, unless bad rows are left out."""
        if self.policy.leaves_out:
            return Traits(opaque=True, local=True, in_turn=True)
        return Traits(one_to_one=True, opaque=True, local=True)

    @property
    def by_row(self) -> bool:
        """The function is called for single rows."""
        return True

    def arguments(self) -> Mapping[str, Any]:
        """Returns the arguments that decide the input of the function."""
        return {
            "fn": function_name(self.fn),
            "columns": as_texts(self.columns),
            "seed": self.seed,
            **self.policy.arguments(),
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

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch | Outcome:
        """Returns the function's results for the rows of a piece."""
        node, given = self._node, chunk
        if node.columns is not None:
            check_columns(node.columns, chunk.schema)
            chunk = chunk.select(list(node.columns))
        _check_units(chunk.schema)
        rows, bad, error = self._called(chunk, node.generators(self._epoch, origin))
        batch: pa.RecordBatch | None = None
        if rows:
            names = list(next(iter(rows.values()))) if node.types is None else node.types.names
            try:
                batch = self._batch(list(rows.values()), names)
            except ArrowflowError as refused:
                error = self._sorted_out(rows, names, bad, refused) or error
                batch = self._batch(list(rows.values()), names) if rows else None
        if batch is not None and not bad and error is None:
            return batch
        if error is not None and not rows and not bad:
            raise error
        places = sorted(bad)
        kept = given.take(pa.array(places, pa.int64())) if bad and node.policy.folder is not None else None
        listed = tuple(BadRow(row, bad[row]) for row in places)
        return Outcome(given.slice(0, 0) if batch is None else batch, listed, kept, error)

    def _called(
        self, chunk: pa.RecordBatch, more: tuple[Any, ...]
    ) -> tuple[dict[int, dict[str, Any]], dict[int, str], ArrowflowError | None]:
        """Returns the results of good rows by their numbers, what is wrong with bad ones, and the error that ends the run.

        No error of a bad row is kept: the frames that it holds would keep Python's collector of garbage busy for longer
        than all else that a bad row costs.
        """
        leaves_out, types = self._node.policy.leaves_out, self._node.types
        expected = None if types is None else set(types.names)
        rows: dict[int, dict[str, Any]] = {}
        bad: dict[int, str] = {}
        for number, row in enumerate(chunk.to_pylist()):
            try:
                result = self._call(row, more)
                if expected is None:
                    expected = set(result)
                elif result.keys() != expected:
                    raise self._other_keys(result, rows)
            except ArrowflowError as error:
                if not (leaves_out and is_bad_data(error)):
                    return rows, bad, error
                bad[number] = str(error)
            else:
                rows[number] = result
        return rows, bad, None

    def _other_keys(self, result: dict[str, Any], rows: dict[int, dict[str, Any]]) -> FunctionError:
        types = self._node.types
        names = list(next(iter(rows.values()))) if types is None else types.names
        by = "returned for an earlier row" if types is None else "schema= declares"
        return FunctionError(
            f"what {self._function.name} returned has the keys {list(result)}, expected {names}, as {by}"
        )

    def _batch(self, rows: list[dict[str, Any]], names: list[str]) -> pa.RecordBatch:
        return batch_from_rows(rows, names, self._node.types, f"what {self._function.name} returned")

    def _sorted_out(
        self,
        rows: dict[int, dict[str, Any]],
        names: list[str],
        bad: dict[int, str],
        refused: ArrowflowError,
    ) -> ArrowflowError | None:
        """Takes the results out whose values make no column. Returns the error that ends the run, if one does."""
        numbers, values = list(rows), list(rows.values())

        def check(start: int, stop: int) -> None:
            self._batch(values[start:stop], names)

        # Without declared types, which of two kinds of values is the wrong one cannot be told.
        if self._node.policy.leaves_out and self._node.types is not None:
            for place, error in bad_among(len(values), check):
                bad[numbers[place]] = str(error)
                del rows[numbers[place]]
            return None
        place, error = first_bad(len(values), check, refused)
        for number in numbers[place:]:
            del rows[number]
        for number in [number for number in bad if number > numbers[place]]:
            del bad[number]
        return error

    def _call(self, row: dict[str, Any], more: tuple[Any, ...]) -> dict[str, Any]:
        try:
            # Rows are made into columns together, so no row may change when the next row is made.
            result = self._function(row, *more, then=lambda returned: copied_value(returned.pop()))
        except FunctionError as error:
            raise _for_row(error, row) from error.__cause__
        if not isinstance(result, dict) or not result or not all(type(key) is str for key in result):
            raise FunctionError(
                f"what {self._function.name} returned is {_shown(result)}, expected a dict of values by column for "
                f"each row; record batches are for `map`, and {FASTER}"
            )
        return result


def _for_row(error: FunctionError, row: dict[str, Any]) -> FunctionError:
    failed = FunctionError(f"{error} (for the row {_shown(row)})")
    failed.of_data = error.of_data
    return failed


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

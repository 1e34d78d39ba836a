"""`map_rows`: a user function of single rows. The slow convenience: `map` calls a function once for many rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import NoneType
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.bad_rows import bad_among, first_bad, is_bad_data
from arrowflow.errors import ArrowflowError, DataError, FunctionError, said, shown
from arrowflow.interchange.from_rows import batch_from_values, with_names
from arrowflow.interchange.handed_over import copied_value
from arrowflow.interchange.kept_values import has_nanoseconds
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Origin, Outcome
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.columns.column_program import check_columns
from arrowflow.ops.functions.bad_results import by_row
from arrowflow.ops.functions.function import UserFunction, call_failed, function_name
from arrowflow.ops.functions.invocation import MappingOperator
from arrowflow.options import ResolvedOptions
from arrowflow.plan.traits import Traits

FASTER = "`map` calls a function once for many rows, which is some hundred times as fast"
BLOCK_ROWS = 256
"""Rows that are dicts at the same time. With 65,536 Python's collector of garbage takes a third of the time; it begins with 700
objects, and a row has two."""
VALUE_ROWS, VALUE_BYTES = 8 * BLOCK_ROWS, 1 << 20
"""Most rows, and bytes of them, whose values are made at once, at least those of a block. To make 256 of a column at a time
takes a third longer a value."""
SMALL_DICT = 5
"""Most keys of a row whose dict is begun with the first one. To copy a dict with all of its keys is faster for more."""
_FLAT = frozenset((NoneType, bool, int, float, str, bytes))
"""Values of these classes never change, and hold nothing that does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRows(MappingOperator):
    """The results of `fn` for each row of its input, both as dicts of Python values.

    Row order: as its input. Memory: input and output of a piece, and its results as Python objects: some 50 bytes a
    value and more. Deterministic if `fn` is; the generator that `fn` may get depends on (seed, operator, epoch, split, piece)
    and the rows of the piece before. Resume: (position before the piece, rows, split, piece).
    """

    name: ClassVar[str] = "map_rows"

    @property
    def traits(self) -> Traits:  # type: ignore[override]  # bad rows may be left out
        """One row out per row in, unless bad rows are left out."""
        return Traits(one_to_one=not self.policy.leaves_out, opaque=True, local=True, in_turn=True)

    @property
    def by_row(self) -> bool:
        return True

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return self.specs(
            MapRowsKernel,
            fact=f"{function_name(self.fn)}(row), one call a row, slow: {FASTER}",
            unit="piece",
        )


class MapRowsKernel(StatelessKernel):
    """Calls the function for row after row."""

    def __init__(self, node: MapRows, context: Context) -> None:
        self._node = node
        self._epoch = context.epoch
        self._function = UserFunction(node.fn, context, node.place)

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch | Outcome:
        node, given = self._node, chunk
        if node.columns is not None:
            check_columns(node.columns, chunk.schema)
            chunk = chunk.select(list(node.columns))
        _check_units(chunk.schema)
        results = _Results(node, self._function.name)
        more = node.more_arguments(self._epoch, origin)
        self._function.lend(lambda call: results.take(chunk, call, more))
        batch: pa.RecordBatch | None = None
        if results.numbers:
            try:
                batch = results.batch()
            except ArrowflowError as refused:
                results.sort_out(refused)
                batch = results.batch() if results.numbers else None
        return by_row(node.policy, given, batch, results.bad, results.error)


class _Results:
    """The results for the rows of one piece, by column.

    No error of a bad row is kept. The frames that it holds would keep Python's collector of garbage busy, for longer than all
    else that a bad row costs.

    Attributes:
        numbers: The numbers of the rows that have a result.
        bad: The faults of bad rows, by their numbers.
        error: The error that ends the run.
    """

    def __init__(self, node: MapRows, name: str) -> None:
        self.numbers: Sequence[int] = ()
        self.bad: dict[int, str] = {}
        self.error: ArrowflowError | None = None
        self._types = node.types
        self._leaves_out = node.policy.leaves_out
        self._what = f"what {name} returned"
        self._name = name
        declared = () if node.types is None else node.types.names
        self._columns: dict[str, list[Any]] = {column: [] for column in declared}

    def take(self, chunk: pa.RecordBatch, call: Callable[..., Any], more: tuple[Any, ...]) -> None:
        """Calls the function for the rows of a piece, until one ends the run."""
        if more:
            call = functools.partial(_with_more, call, more)
        stopped = chunk.num_rows
        made: list[tuple[Any, ...]] = []
        for start, rows in _blocks_of(chunk):
            at = 0
            while at < len(rows):
                # Where a row is bad, the next ones go on from here: a `try` a row costs more than the rest of its way.
                before = len(made)
                try:
                    self._take_block(rows, at, call, made)
                    break
                except ArrowflowError as error:
                    at += len(made) - before
                    if not (self._leaves_out and is_bad_data(error)):
                        self.error, stopped = error, start + at
                        break
                    self.bad[start + at] = str(error)
                    at += 1
            for column, values in zip(self._columns.values(), zip(*made, strict=True), strict=False):
                column.extend(values)
            made.clear()  # and the rows, before the next ones are made
            rows.clear()
            if self.error is not None:
                break
        self.numbers = range(stopped)
        if self.bad:
            self.numbers = [number for number in self.numbers if number not in self.bad]

    def _take_block(
        self, rows: list[dict[str, Any]], start: int, call: Callable[..., Any], made: list[tuple[Any, ...]]
    ) -> None:
        """Calls the function for rows from one on, and adds the values of each result.

        Rows are made into columns together, so no value may change when the function makes the next one: lists, arrays
        and the like are copied at once.
        """
        names = tuple(self._columns)
        get, width, flat, add = _getter(names), len(names) or -1, _FLAT, made.append
        for row in rows if start == 0 else rows[start:]:
            try:
                result = call(row)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raise _for_row(call_failed(self._name, error), row) from error
            if type(result) is not dict or len(result) != width:
                result = self._as_dict(result)
                if width < 0:
                    self._columns = {name: [] for name in result}
                    names = tuple(result)
                    get, width = _getter(names), len(names)
                elif len(result) != width:
                    raise self._other_keys(result)
            try:
                values = get(result)
            except KeyError:
                raise self._other_keys(result) from None
            for value in values:
                if type(value) not in flat:
                    try:
                        values = tuple(map(copied_value, values))
                    except Exception as error:
                        text = f"{self._what} has a value of which NumPy makes no array: {said(error)}"
                        raise _for_row(FunctionError(text), row) from error
                    break
            add(values)

    def _as_dict(self, result: Any) -> dict[str, Any]:
        """Returns a result as values by column; the columns of a declared schema name the values of a plain tuple."""
        result = with_names(result)
        if isinstance(result, tuple) and self._types is not None and len(result) == len(self._types):
            return dict(zip(self._types.names, result, strict=True))
        if isinstance(result, tuple) and result:
            expected = (
                "declare schema=, whose columns name them"
                if self._types is None
                else f"the columns of schema= are {self._types.names}"
            )
            raise FunctionError(f"{self._what} is a tuple of {len(result)} values: {expected}")
        if not isinstance(result, dict) or not result or not all(type(key) is str for key in result):
            raise FunctionError(
                f"{self._what} is {shown(result)}, expected a dict of values by column for "
                f"each row; record batches are for `map`, and {FASTER}"
            )
        return dict(result)

    def _other_keys(self, result: dict[str, Any]) -> FunctionError:
        if not result or not all(type(key) is str for key in result):
            self._as_dict(result)
        by = "returned for an earlier row" if self._types is None else "schema= declares"
        return FunctionError(
            f"{self._what} has the keys {list(result)}, expected {list(self._columns)}, as {by}"
        )

    def batch(self) -> pa.RecordBatch:
        return batch_from_values(self._columns, self._types, self._what)

    def sort_out(self, refused: ArrowflowError) -> None:
        """Takes the results out whose values make no column, or notes the error that ends the run."""
        columns, numbers = self._columns, list(self.numbers)

        def check(start: int, stop: int) -> None:
            part = {name: values[start:stop] for name, values in columns.items()}
            batch_from_values(part, self._types, self._what)

        # Without declared types, which of two kinds of values is the wrong one cannot be told.
        if self._leaves_out and self._types is not None:
            wrong = {place: str(error) for place, error in bad_among(len(numbers), check)}
            self.bad |= {numbers[place]: error for place, error in wrong.items()}
            good = [place for place in range(len(numbers)) if place not in wrong]
        else:
            place, self.error = first_bad(len(numbers), check, refused)
            good = list(range(place))
            self.bad = {number: error for number, error in self.bad.items() if number < numbers[place]}
        self.numbers = [numbers[place] for place in good]
        self._columns = {name: [values[place] for place in good] for name, values in columns.items()}


def _blocks_of(chunk: pa.RecordBatch) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yields the number of a row, and that row and the next ones as `to_pylist` makes them, in half of its time."""
    names = chunk.schema.names
    blocks = min(VALUE_ROWS, VALUE_BYTES * chunk.num_rows // max(1, chunk.nbytes)) // BLOCK_ROWS
    size = max(1, blocks) * BLOCK_ROWS
    for first in range(0, chunk.num_rows, size):
        columns = [column.to_pylist() for column in chunk.slice(first, size).columns]
        for start in range(first, min(first + size, chunk.num_rows), BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, chunk.num_rows)
            parts = [values[start - first : stop - first] for values in columns]
            yield start, _dicts_of(names, parts, stop - start)


def _dicts_of(names: list[str], columns: list[list[Any]], num_rows: int) -> list[dict[str, Any]]:
    first = names[0] if 0 < len(names) <= SMALL_DICT else None
    if first is None:
        empty: dict[str, Any] = dict.fromkeys(names)
        rows = [empty.copy() for _ in range(num_rows)]
    else:
        rows = [{first: value} for value in columns[0]]
        names, columns = names[1:], columns[1:]
    for name, values in zip(names, columns, strict=True):
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


def _getter(names: Sequence[str]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """Returns a function that takes values out of a dict."""
    if len(names) == 1:
        (name,) = names
        return lambda row: (row[name],)
    return itemgetter(*names) if names else lambda row: ()


def _with_more(call: Callable[..., Any], more: tuple[Any, ...], row: dict[str, Any]) -> Any:
    return call(row, *more)


def _for_row(error: FunctionError, row: dict[str, Any]) -> FunctionError:
    failed = FunctionError(f"{error} (for the row {shown(row)})")
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

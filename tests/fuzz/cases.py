"""A case: a table, steps with expressions, and how the rows are cut. It prints as a script that can be run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.testing import chunked, cut
from tests.fuzz.calls import ULPS, Engine
from tests.fuzz.columns import SCHEMA, array_of, pool_of
from tests.fuzz.expressions import Made, arrow_text, expressions, source_of
from tests.oracles import engines

_COLUMN: Final = re.compile(r'\b[cf]\("(\w+)"\)')


@dataclass(frozen=True)
class Step:
    """One operator and the expressions that it is given, by name."""

    operator: str
    made: Mapping[str, Made]

    def __str__(self) -> str:
        if self.operator == "filter":
            return f".filter({self.made[''].text})"
        return f".{self.operator}({', '.join(f'{name}={one.text}' for name, one in self.made.items())})"

    def sources(self) -> dict[str, Any]:
        return {name: source_of(one.text) for name, one in self.made.items()}

    def on_dataset(self, dataset: af.Dataset, sources: Mapping[str, Any]) -> af.Dataset:
        if self.operator == "filter":
            return dataset.filter(sources[""])
        if self.operator == "select":
            return dataset.select(*dataset.schema.names, **sources)
        return dataset.with_columns(**sources)

    def on_table(self, table: pa.Table, sources: Mapping[str, Any]) -> pa.Table:
        """Returns what the engines make of the whole table."""
        if self.operator == "filter":
            return engines.filtered(table, sources[""])
        return engines.with_columns(table, sources)


@dataclass(frozen=True)
class Case:
    """Steps on a table that is cut into chunks.

    Attributes:
        columns: The columns by name, with their values as Arrow stores them.
        steps: The operators.
        cuts: How many rows a chunk has, in turn.
        times: How often the rows are repeated, so that long loops run too.
        chunks: Whether chunks without rows travel too; else each chunk is a batch in memory.
        max_chunk_rows: As in `Options`.
    """

    columns: Mapping[str, Sequence[Any]]
    steps: Sequence[Step]
    cuts: Sequence[int]
    times: int
    chunks: bool
    max_chunk_rows: int

    @cached_property
    def table(self) -> pa.Table:
        table = pa.table({name: array_of(name, list(values)) for name, values in self.columns.items()})
        return pa.concat_tables([table] * self.times).combine_chunks()

    @property
    def scale(self) -> int:
        """By how much chunks are larger where rows are repeated, since hundreds of them take their time."""
        return max(1, self.times // 3)

    @property
    def sizes(self) -> list[int]:
        return [size * self.scale for size in self.cuts]

    def dataset(self, steps: Sequence[tuple[Step, Mapping[str, Any]]]) -> af.Dataset:
        table = engines.plain_table(self.table) if self.chunks else self.table
        parts = [part for batch in table.to_batches() for part in cut(batch, self.sizes)]
        if self.chunks:
            dataset = chunked([parts], table.schema)
        else:
            dataset = af.from_arrow(pa.Table.from_batches(parts, table.schema))
        for step, sources in steps:
            dataset = step.on_dataset(dataset, sources)
        return dataset.with_options(af.Options(cpu_budget=1, max_chunk_rows=self.max_chunk_rows * self.scale))

    def check(self) -> bool:
        """Raises `AssertionError` where the pipeline does not yield what the engines yield. Returns whether it yields rows."""
        try:
            steps = [(step, step.sources()) for step in self.steps]
        except engines.ENGINE_ERRORS:  # there is no such expression
            return False
        expected = self.as_declared(steps, self.expected(steps, self.table))
        try:
            found = self.dataset(steps).to_table()
        except af.ArrowflowError as error:
            refused = any(re.search(pattern, str(error)) for pattern in REFUSALS)
            if not refused and not isinstance(expected, BaseException):
                raise AssertionError(f"{error!r}, expected {expected}") from error
            return False
        except engines.ENGINE_ERRORS as error:
            raise AssertionError(f"no ArrowflowError, but {error!r}") from error
        assert isinstance(expected, pa.Table), f"no error, expected {expected!r}; found\n{found}"
        assert found.column_names == expected.column_names
        for name in expected.column_names:
            exact = all(step.made[name].exact for step in self.steps if name in step.made)
            wrong = engines.difference(
                engines.plain(found.column(name)),
                expected.column(name).combine_chunks(),
                0 if exact else ULPS,
            )
            assert wrong is None, f"column {name!r}: {wrong}"
        return True

    def check_apart(self) -> None:
        """Checks the expressions of one step together, but each alone where one is refused: its error would hide others."""
        if self.has_values() and self.check():
            return
        (step,) = self.steps
        alone = {name: self._of({name: one}) for name, one in step.made.items()}
        kept = {name: step.made[name] for name, case in alone.items() if case.has_values()}
        if not (0 < len(kept) < len(alone) and self._of(kept).check()):
            kept = {}
        for name in alone.keys() - kept.keys():
            alone[name].check()

    def has_values(self) -> bool:
        """Returns whether the engines compute the whole table, by types that do not depend on it."""
        try:
            steps = [(step, step.sources()) for step in self.steps]
        except engines.ENGINE_ERRORS:
            return False
        return isinstance(self.as_declared(steps, self.expected(steps, self.table)), pa.Table)

    def _of(self, made: Mapping[str, Made]) -> Case:
        return replace(self, steps=[replace(step, made=made) for step in self.steps])

    def as_declared(
        self, steps: Sequence[tuple[Step, Mapping[str, Any]]], expected: pa.Table | BaseException
    ) -> pa.Table | BaseException:
        """Returns a table with the types that the expressions have on no rows: types never depend on data.

        Polars makes lists of another type where all are null, and finds another type for both branches of a `when`. Where
        an engine fails on no rows, there is no type: that error is returned.
        """
        declared = self.expected(steps, self.table.slice(0, 0))
        if isinstance(expected, BaseException):
            return expected
        if isinstance(declared, BaseException):
            return declared
        if expected.schema.equals(declared.schema):
            return expected
        try:
            return engines.plain_table(expected).cast(declared.schema)
        except pa.ArrowException as error:
            return error

    def expected(
        self, steps: Sequence[tuple[Step, Mapping[str, Any]]], table: pa.Table
    ) -> pa.Table | BaseException:
        """Returns what the engines make of the whole table, or their error."""
        table = engines.plain_table(table)
        try:
            for step, sources in steps:
                table = step.on_table(table, sources)
        except engines.ENGINE_ERRORS as error:
            return error
        return table

    def __repr__(self) -> str:
        columns = ", ".join(
            f'"{name}": {list(values)!r} as {arrow_text(self.table.schema.field(name).type)}'
            for name, values in self.columns.items()
        )
        source = "chunks" if self.chunks else "batches"
        times = f" * {self.times}" if self.times > 1 else ""
        steps = "\n    ".join(map(str, self.steps))
        return f"\n  {{{columns}}}{times} in {source} of {self.sizes} rows, max_chunk_rows={self.max_chunk_rows * self.scale}\n    {steps}\n"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis prints, which else takes dataclasses apart."""
        printer.text(repr(self))


REFUSALS: Final = (
    r"a type that Arrow does not have",  # Int128 and its like
    r"a cast to Categorical",
    r"guesses a format from the first text of a chunk",
    # Polars finds no type for both branches of a `when`, and looks for none where all rows take one of them.
    r"failed to determine supertype",
    # A `when` of bare numbers and dates or times, for which Polars finds a type only when it sees the rows.
    r"a type that depends on the rows",
    # Of nothing but nulls, Polars makes null structs, and structs of nulls of others.
    r"casts .+ to a struct",
    # Of nothing but null lists, `list.diff` of Polars makes lists of null, of which it makes no sets: it panics.
    r"list\.diff.*not implemented for dtype Null",
    # pyarrow forgets the error if a later value of the same call fits.
    r"Rounded value .* does not fit in precision",
)
"""Errors for what the engines compute on a whole table, each with its reason."""


@st.composite
def cases(draw: st.DrawFn, steps: Sequence[Step]) -> Case:
    """Draws the data for some steps, and how they are cut."""
    texts = [one.text for step in steps for one in step.made.values()]
    names = sorted({name for text in texts for name in _COLUMN.findall(text) if name in SCHEMA}) or ["i64"]
    rows = draw(st.sampled_from([2, 3, 5, 8, 0]))
    columns = {
        name: draw(st.lists(st.none() | pool_of(name), min_size=rows, max_size=rows)) for name in names
    }
    return Case(
        columns=columns,
        steps=steps,
        cuts=(draw(st.integers(1, 4)), *draw(st.lists(st.integers(0, 9), max_size=3))),
        times=draw(st.sampled_from([1, 1, 1, 1, 40])),
        chunks=draw(st.booleans()),
        max_chunk_rows=draw(st.sampled_from([65_536, 3, 1])),
    )


@st.composite
def together(draw: st.DrawFn, made: Sequence[st.SearchStrategy[Made]]) -> Case:
    """Draws one operator with several expressions."""
    named = {f"out{number}": draw(one) for number, one in enumerate(made)}
    return draw(cases([Step(draw(st.sampled_from(["with_columns", "select"])), named)]))


@st.composite
def pipelines(draw: st.DrawFn) -> Case:
    """Draws several operators with expressions of both engines, which read what earlier ones made."""
    columns = dict(SCHEMA)
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 3))):
        operator = draw(st.sampled_from(["with_columns", "select", "filter"]))
        names = (
            [""]
            if operator == "filter"
            else [f"out{number}{part}" for part in "ab"[: draw(st.integers(1, 2))]]
        )
        made = {name: draw(expressions(draw(ENGINES), predicate=not name, columns=columns)) for name in names}
        steps.append(Step(operator, made))
        if any(one.type is None for one in made.values()):
            break
        columns |= {name: one.type for name, one in made.items() if name and one.exact}
    return draw(cases(steps))


ENGINES: Final[st.SearchStrategy[Engine]] = st.sampled_from(["polars", "arrow"])

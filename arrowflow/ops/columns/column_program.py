"""The shared base of all column operators: each gives its `steps`, and one program runs the steps of all neighbours.

`select with_columns drop rename cast fill_null stack filter` differ only in the steps that they make from their
arguments and their input's schema. Rules replace neighbours by one `Columns`, which holds the steps themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError, closest, repeated, shown
from arrowflow.expr import (
    Expr,
    Keep,
    Output,
    Program,
    Project,
    Stack,
    Step,
    Where,
    columns_of,
    compile_steps,
    expand,
    parse_expression,
)
from arrowflow.kernels.items import Origin
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import Columns as ColumnNames
from arrowflow.plan.node import Node
from arrowflow.plan.traits import Traits
from arrowflow.recycler import Recycler

_NAMES_SHOWN = 16
"""How many columns a line of `explain` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOperator(Operator):
    """Base of the operators that work on columns, row by row.

    Row order: as its input. Memory: the columns that it writes, one chunk a call. Resume: as its input.
    """

    traits: ClassVar[Traits] = Traits(one_to_one=True)

    @abstractmethod
    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        """Returns the operator's steps on an input of this schema.

        Raises:
            PlanError: The operator does not fit the schema.
        """

    def bound_steps(self) -> tuple[Step, ...]:
        """Returns its steps, where the columns of its input are known."""
        schema = self.inputs[0].schema
        assert schema is not None
        return self.steps(schema)

    def program(self, schema: pa.Schema) -> Program:
        """Returns the compiled steps."""
        return compile_steps(self.steps(schema), schema)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return self.program(inputs[0]).schema

    def columns_needed(self, wanted: ColumnNames) -> tuple[ColumnNames, ...]:
        schema = self.inputs[0].schema
        if schema is None:
            return (None,)
        for step in reversed(self.steps(schema)):
            wanted = _needed(step, wanted)
        return (wanted,)

    def merged(self) -> Columns:
        """Returns the steps themselves, on its input and with the steps of the column operators right before it."""
        run: list[ColumnOperator] = [self]
        while isinstance(before := run[-1].inputs[0], ColumnOperator) and before.inputs[0].schema is not None:
            run.append(before)
        listed: list[Step] = []
        operators: list[str] = []
        for node in reversed(run):
            listed += node.bound_steps()
            operators += node.operators_merged()
        return Columns(listed=tuple(listed), operators=tuple(operators)).on(*run[-1].inputs)

    def operators_merged(self) -> tuple[str, ...]:
        """Returns the operators whose steps it runs."""
        return (self.name,)

    def narrow(self, wanted: frozenset[str]) -> Node:
        schema = self.inputs[0].schema
        if schema is None or self.schema is None:
            return self
        listed: list[Step] = []
        needed: ColumnNames = wanted
        for step in reversed(self.steps(schema)):
            if isinstance(step, Project):
                outputs = [output for output in step.outputs if needed is None or output[0] in needed]
                step = Project(tuple(outputs))
            listed.append(step)
            needed = _needed(step, needed)
        listed.reverse()
        if tuple(listed) == self.steps(schema) and len(wanted) == len(self.schema):
            return self
        if isinstance(listed[-1], Where) and len(wanted) < len(self.schema):
            listed.append(Project(tuple((name, Keep(name)) for name in self.schema.names if name in wanted)))
        return Columns(listed=tuple(listed), operators=self.operators_merged()).on(*self.inputs)

    def stored_columns(self, schema: pa.Schema) -> frozenset[str]:
        """Returns the decimals of its input that it also takes as the integers by which they are stored."""
        return self.program(schema).stored

    def source_predicates(self, schema: pa.Schema) -> tuple[Expr, ...]:
        """Returns the predicates on its input's own columns that every output row fulfils."""
        found: list[Expr] = []
        unchanged = set(schema.names)
        for step in self.steps(schema):
            if isinstance(step, Where):
                found += [step.predicate] if unchanged.issuperset(step.predicate.columns) else []
            else:
                unchanged &= {name for name, output in step.outputs if output == Keep(name)}
        return tuple(found)

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        """Returns one stateless kernel around the compiled program, under the names of merged operators."""
        schema = self.inputs[0].schema
        program = None if schema is None else self.program(schema)
        recycler = Recycler(options.ram_budget)  # for all epochs
        return KernelSpec(
            "stateless",
            lambda context: ProgramKernel(self, program, recycler),
            engine="numpy" if program is None else _engines(program),
            repeats=True,
            facts=lambda: ("compiled on the first chunk",) if program is None else _facts(program),
            operator="+".join(dict.fromkeys(self.operators_merged())),
        )


def _engines(program: Program) -> str:
    """Returns where a program's parts run, joined by plus signs."""
    text = " ".join(program.explain())
    return "+".join(engine for engine in ("numpy", "arrow", "polars") if engine in text) or "pass-through"


def _facts(program: Program) -> tuple[str, ...]:
    """Returns which part ran where; columns that are only passed through share one line, which names the first of them."""
    lines = program.explain()
    passed = [line.removesuffix(": pass-through") for line in lines if line.endswith(": pass-through")]
    written = [line for line in lines if not line.endswith(": pass-through")]
    if not passed:
        return tuple(written)
    rest = len(passed) - _NAMES_SHOWN
    more = f" and {rest:,} more" if rest > 0 else ""
    return (*written, f"pass-through: {', '.join(passed[:_NAMES_SHOWN])}{more}")


def _needed(step: Step, wanted: ColumnNames) -> ColumnNames:
    if isinstance(step, Where):
        return None if wanted is None else wanted | set(step.predicate.columns)
    outputs = [output for name, output in step.outputs if wanted is None or name in wanted]
    return frozenset(name for output in outputs for name in columns_of(output))


class ProgramKernel(StatelessKernel):
    """Runs a program; compiles it on the first chunk where the schema was not known before."""

    def __init__(self, node: ColumnOperator, program: Program | None, recycler: Recycler) -> None:
        self._node = node
        self._program = program
        self._recycler = recycler

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        if self._program is None:
            # Two workers may both compile; either result is right, since all chunks have one schema.
            self._program = self._node.program(chunk.schema)
        return self._program.run(chunk, self._recycler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns(ColumnOperator):
    """Steps as they are: the result of rules that merge neighbouring column operators.

    Attributes:
        listed: The steps.
        operators: Names of the operators whose steps these are, upstream first.
    """

    name: ClassVar[str] = "columns"

    listed: tuple[Step, ...]
    operators: tuple[str, ...]

    @property
    def traits(self) -> Traits:  # type: ignore[override]  # of all operators only this one's depend on an instance
        """One row out per row in, unless a step drops rows."""
        drops = any(isinstance(step, Where) for step in self.listed)
        return Traits(one_to_one=not drops, drops_rows=drops)

    @property
    def stacks(self) -> bool:
        """Whether any step joins several columns into one."""
        projects = [step for step in self.listed if isinstance(step, Project)]
        return any(isinstance(output, Stack) for step in projects for _, output in step.outputs)

    def operators_merged(self) -> tuple[str, ...]:
        return self.operators

    def describe(self) -> str:
        return f"columns[{' · '.join(self.operators)}]"

    def arguments(self) -> Mapping[str, Any]:
        """Returns nothing: states are compared by the plan as written."""
        return {}

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        return self.listed


def with_outputs(schema: pa.Schema, outputs: Mapping[str, Output]) -> tuple[Step, ...]:
    """Returns one projection: all columns, some of them rewritten, then the new columns."""
    columns: dict[str, Output] = {name: Keep(name) for name in schema.names}
    columns.update(outputs)
    return (Project(tuple(columns.items())),)


def check_columns(names: Sequence[str], schema: pa.Schema) -> None:
    """Raises `PlanError` for the first name that is no column, and names the closest columns."""
    for name in names:
        if not schema.get_all_field_indices(name):  # `schema.names` is a new list each time
            raise PlanError(f"unknown column {name!r}; {closest(name, schema.names)}")


def check_unique(names: Sequence[str]) -> None:
    """Raises `PlanError` if an output column would come twice."""
    if twice := repeated(names):
        raise PlanError(
            f"output columns have different names, got {', '.join(map(repr, twice))} more than once"
        )


def column_names(operator: str, columns: Sequence[Any]) -> tuple[str, ...]:
    """Returns names of columns that a user gave singly or in lists; raises `PlanError` unless there is a name."""
    names = chosen_columns(operator, columns)
    for name in names:
        if not isinstance(name, str):
            raise PlanError(f"{operator}: expected names of columns, got {name!r}")
    return names


def chosen_columns(operator: str, columns: Sequence[Any]) -> tuple[Any, ...]:
    """Returns names of columns and selectors of Polars that a user gave singly or in lists.

    Raises:
        PlanError: There is no name, or something else.
    """
    found: list[str | Expr] = []
    for entry in columns:
        listed = list(entry) if isinstance(entry, list | tuple) else [entry]
        if not all(isinstance(one, str) or _selects(one) for one in listed):
            raise PlanError(f"{operator}: expected names of columns, got {shown(entry)}")
        found += [one if isinstance(one, str) else parse_expression(one, operator=operator) for one in listed]
    if not found:
        raise PlanError(f"{operator}: expected at least one name of a column, got none")
    return tuple(found)


def _selects(value: object) -> bool:
    """Returns whether a value picks columns and does nothing else: `cs.numeric()`, `pl.all()`, `pl.col("x")`."""
    return isinstance(value, pl.Expr) and value.meta.is_column_selection()


def as_given(chosen: Sequence[Any]) -> list[Any]:
    """Returns names and selectors as a user gives them to `select`."""
    return [one if isinstance(one, str) else one.source for one in chosen]


def given_names(operator: str, columns: object) -> tuple[Any, ...] | None:
    """Returns the names and selectors in an argument `columns`; None where the argument was not given."""
    if isinstance(columns, list | tuple) and not columns:
        raise PlanError(
            f"{operator}: columns={columns!r} names no column; name some, or leave columns= out for all"
        )
    return None if columns is None else chosen_columns(operator, (columns,))


def check_names(chosen: Iterable[Any] | None, schema: pa.Schema) -> None:
    """Raises `PlanError` if a name is unknown; selectors pick what there is."""
    check_columns([one for one in chosen or () if isinstance(one, str)], schema)


def names_on(chosen: Sequence[Any], schema: pa.Schema) -> tuple[str, ...]:
    """Returns the columns that names and selectors pick, in their order; selectors repeat no column.

    Raises:
        PlanError: A column is unknown.

    Examples:
        >>> import polars.selectors as cs
        >>> schema = pa.schema({"a": pa.int8(), "b": pa.string(), "c": pa.int8()})
        >>> names_on(chosen_columns("drop", ["c", cs.integer()]), schema)
        ('c', 'a')
    """
    found: list[str] = []
    for one in chosen:
        if isinstance(one, str):
            found.append(one)
        else:
            check_columns(one.columns, schema)
            found += [str(single.name) for single in expand(one, schema) if single.name not in found]
    check_columns(found, schema)
    return tuple(found)


def some_names_on(chosen: Sequence[Any], schema: pa.Schema) -> tuple[str, ...]:
    """Returns what `names_on` does; raises `PlanError` where that is nothing."""
    names = names_on(chosen, schema)
    if not names:
        raise PlanError(
            f"{', '.join(map(repr, chosen))} picks no column; known columns: {', '.join(schema.names)}"
        )
    return names


def bound_names(chosen: Sequence[Any] | None, schema: pa.Schema | None) -> tuple[str, ...] | None:
    """Returns the columns that an argument `columns` picks of an input, in its order; one that it names twice comes twice.

    Raises:
        PlanError: A column is unknown, or a selector meets a schema that only a run tells.
    """
    if chosen is None or all(isinstance(one, str) for one in chosen):
        return None if chosen is None else tuple(chosen)
    if schema is None:
        raise PlanError(
            "a selector needs to know the columns, which only a run tells here; name the columns, or pass schema= to "
            "the function before"
        )
    return some_names_on(chosen, schema)


def values_by_column(pairs: Iterable[tuple[Any, Any]], schema: pa.Schema) -> dict[str, Any]:
    """Returns values by column for pairs of a name or a selector, and a value.

    Raises:
        PlanError: A column is unknown, or has two values.
    """
    found = [(name, value) for chosen, value in pairs for name in names_on((chosen,), schema)]
    if twice := repeated([name for name, _ in found]):
        raise PlanError(f"expected one value for each column, got two for {', '.join(map(repr, twice))}")
    return dict(found)


def as_texts(chosen: Sequence[Any] | None) -> list[str] | None:
    """Returns names and digests of selectors, by which states are compared."""
    return None if chosen is None else [as_text(one) for one in chosen]


def as_text(one: Any) -> str:
    """Returns a name, or the digest of a selector."""
    return one if isinstance(one, str) else str(one.digest())

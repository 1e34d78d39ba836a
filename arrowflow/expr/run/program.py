"""`compile_steps` turns steps into a `Program`: neighbouring steps fuse into as few passes over a batch as possible."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from arrowflow.errors import PlanError, repeated
from arrowflow.expr.compile.graph import INPUT, Graph, Op
from arrowflow.expr.compile.slots import (
    Computed,
    Eager,
    Passed,
    Slot,
    lowered,
    metadata_of,
    names_of,
    slot_of,
    steady,
    type_of_expr,
)
from arrowflow.expr.compile.steps import FillNull, Keep, Project, Step, Where
from arrowflow.expr.parse.expression import Expr, expand
from arrowflow.expr.run.passes import Pass
from arrowflow.recycler import Recycler
from arrowflow.types import is_untyped, numpy_dtype, untyped


@dataclass(frozen=True, slots=True)
class Program:
    """Compiled steps. Immutable; any number of threads may `run` it at the same time.

    Attributes:
        schema: The schema of the batches that `run` returns; it depends on the input schema alone.
        columns: The input columns that `run` reads; it needs no others.
    """

    schema: pa.Schema
    columns: frozenset[str]
    passes: tuple[Pass, ...] = field(repr=False)

    @property
    def stored(self) -> frozenset[str]:
        """The decimal input columns that `run` also takes in stored form, as 64-bit integers."""
        return self.passes[0].stored if self.passes else frozenset()

    @property
    def struct_fields(self) -> dict[str, frozenset[str]]:
        """The structs among the input columns of which only single fields are read, with these fields."""
        return self.passes[0].struct_fields if self.passes else {}

    def run(self, batch: pa.RecordBatch, recycler: Recycler | None = None) -> pa.RecordBatch:
        """Returns the rows of `batch` that pass, with the output columns.

        Columns that only pass through are the same arrays if every row passes. The memory for other columns comes from
        the recycler, if there is one.

        Raises:
            DataError: A value breaks a computation: a null in a stack, a number that a cast cannot hold.

        Examples:
            >>> import polars as pl, pyarrow as pa
            >>> from arrowflow.expr import Keep, Project, Where, compile_steps, parse_expression
            >>> batch = pa.RecordBatch.from_pydict({"x": [1, 2, 3]})
            >>> twice = parse_expression(pl.col("x") * 2, operator="with_columns")
            >>> positive = Where(parse_expression(pl.col("x") > 1, operator="filter"))
            >>> program = compile_steps([positive, Project((("x", Keep("x")), ("y", twice)))], batch.schema)
            >>> program.run(batch).to_pydict()
            {'x': [2, 3], 'y': [4, 6]}
            >>> program.explain()
            ['filter: numpy', 'x: pass-through', 'y: numpy']
        """
        rows = batch.num_rows
        names = self.passes[0].columns if self.passes else tuple(batch.schema.names)
        columns: Mapping[str, pa.Array] = {name: batch.column(name) for name in names}
        for one in self.passes:
            columns, rows = one.run(columns, rows, recycler)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def explain(self) -> list[str]:
        """Returns one line per filter and output: `numpy`, `arrow`, `polars` or `pass-through`."""
        if len(self.passes) == 1:
            return self.passes[0].explain()
        return [f"{number}. {line}" for number, one in enumerate(self.passes, 1) for line in one.explain()]


def compile_steps(steps: Sequence[Step], schema: pa.Schema) -> Program:
    """Returns `steps`, one after another, as one program for batches of `schema`.

    Of a schema without types the program has the names of its output alone.

    Raises:
        PlanError: A step reads a column that does not exist, or cannot compute with its type.
    """
    if is_untyped(schema):
        projects = [step for step in steps if isinstance(step, Project)]
        made = untyped([name for name, _ in projects[-1].outputs]) if projects else schema
        return Program(made, frozenset(), ())
    steps = tuple(steps)
    for asked, on, program in tuple(_latest):
        if asked is steps and on is schema:
            return program
    keys = tuple(itertools.chain.from_iterable(map(_key, steps)))
    program = _compiled(_Question(keys, schema, steps))
    _latest.append((steps, schema, program))
    return program


_latest: Final[deque[tuple[tuple[Step, ...], pa.Schema, Program]]] = deque(maxlen=1)
"""The last question, which each rule asks again. To find it by its keys takes as long as to make a plan."""


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    """Steps on a schema. One plan asks several times: each rule that rebuilds a node compiles it again."""

    keys: tuple[Any, ...]
    schema: pa.Schema
    steps: tuple[Step, ...]

    def __eq__(self, other: object) -> bool:
        # The keys hold metadata, because the metadata of an enum holds the values of its codes.
        return (
            isinstance(other, _Question)
            and self.keys == other.keys
            and self.schema.equals(other.schema, check_metadata=True)
        )

    def __hash__(self) -> int:
        # Types that users write in Python have no hash. A plan asks of a schema and of less of it, so its length tells.
        return hash((self.keys, len(self.schema)))


def _key(step: Step) -> Iterator[object]:
    """Yields the keys that tell steps apart: no tuples, since so many tuples would start the garbage collector."""
    if isinstance(step, Where):
        yield Where
        yield step.predicate.key()
        return
    yield Project
    for name, output in step.outputs:
        yield name
        yield type(output)
        if isinstance(output, Expr):
            yield output.name
            yield output.key()
        elif isinstance(output, Keep):
            yield output.name
        elif isinstance(output, FillNull):
            yield output.name
            # The value alone is not enough: 0, 0.0, -0.0 and False are equal, but not the same.
            yield type(output.value)
            yield repr(output.value)
        else:
            yield output


@lru_cache(maxsize=256)
def _compiled(question: _Question) -> Program:
    steps, schema = question.steps, question.schema
    _check_names(schema.names)
    builder = _Builder(schema)
    passes: list[Pass] = []
    for step in steps:
        if not builder.add(step):
            passes.append(builder.one_pass())
            builder = _Builder(builder.described_schema())
            added = builder.add(step)
            assert added
    passes.append(builder.one_pass())
    pruned = _pruned(passes)
    return Program(builder.described_schema(), frozenset(pruned[0].columns), tuple(pruned))


def forget_compiled() -> None:
    """Forgets all compiled programs, and so frees their scratch memory, once a plan is made."""
    _compiled.cache_clear()
    _latest.clear()


def output_fields(expr: Expr, schema: pa.Schema) -> list[pa.Field]:
    """Returns a field for each output of `expr` on `schema`; an output without a name is called "".

    Raises:
        PlanError: `expr` reads a column that does not exist, or its engine cannot compute with its type.

    Examples:
        >>> import polars as pl, pyarrow as pa
        >>> from arrowflow.expr import parse_expression
        >>> output_fields(parse_expression(pl.col("x") / 2, operator="select"), pa.schema([("x", pa.int32())]))
        [pyarrow.Field<x: double>]
    """
    fields = []
    for part in expand(expr, schema):
        slot = slot_of(part, lambda name: None, schema, Graph())
        fields.append(pa.field(part.name or "", slot.type))
    return fields


def _check_names(names: Sequence[str]) -> None:
    twice = repeated(names)
    if twice:
        raise PlanError(f"column names must be unique, these are not: {', '.join(map(repr, twice))}")


def _pruned(passes: Sequence[Pass]) -> list[Pass]:
    """Drops from every pass but the last the columns that the next pass does not read."""
    kept = [passes[-1]]
    for one in reversed(passes[:-1]):
        read = set(kept[0].columns)
        slots = {name: slot for name, slot in one.slots.items() if name in read}
        kept.insert(0, Pass(slots, one.predicate, one.graph, one.schema))
    return kept


class _Builder:
    """Collects steps into one pass for as long as they fit."""

    def __init__(self, schema: pa.Schema) -> None:
        self.graph = Graph()
        self.input = self.schema = schema
        self.slots: dict[str, Slot] = {field.name: Passed(field.name, field.type) for field in schema}
        self.predicate: Op | Expr | None = None
        self.projected = False

    def add(self, step: Step) -> bool:
        """Takes `step` in, or returns False where it has to begin another one."""
        return self._where(step) if isinstance(step, Where) else self._project(step)

    def _where(self, step: Where) -> bool:
        if self.projected:
            return False
        parts = expand(step.predicate, self.schema)
        types = [type_of_expr(part, self.schema) for part in parts]
        if len(parts) != 1 or not pa.types.is_boolean(types[0]):
            raise PlanError(
                f"a filter needs one boolean expression, {step.predicate!r} gives {', '.join(map(str, types))}"
            )
        op = lowered(parts[0], types[0], self._env, self.schema, self.graph)
        predicate = steady(parts[0], types[0], self.schema) if op is None else op
        if self.predicate is None:
            self.predicate = predicate
        elif isinstance(predicate, Op) and isinstance(self.predicate, Op):
            # NumPy's kernels raise nothing, so the second predicate may see rows that the first drops.
            self.predicate = self.graph.op("and", (self.predicate, predicate), pa.bool_())
        else:
            return False
        return True

    def _project(self, step: Project) -> bool:
        _check_names([name for name, _ in step.outputs])
        slots: dict[str, Slot] = {}
        fields = []
        for name, output in step.outputs:
            made = slot_of(output, self._env, self.schema, self.graph)
            slot = self._rebased(made)
            if slot is None:
                return False
            slots[name] = slot
            fields.append(pa.field(name, slot.type, metadata=metadata_of(made, self.schema)))
        self.slots = slots
        self.schema = pa.schema(fields)
        self.projected = True
        return True

    def _env(self, name: str) -> Op | None:
        """Returns the operation that computes the column `name`, or None if NumPy cannot read the column."""
        slot = self.slots.get(name)
        if isinstance(slot, Computed):
            return slot.op
        if isinstance(slot, Passed) and numpy_dtype(slot.type) is not None:
            return self.graph.input(slot.name, slot.type)
        return None

    def _rebased(self, slot: Slot) -> Slot | None:
        """Returns `slot`, which reads the current columns, as a slot on the pass's input, None if there is none."""
        if isinstance(slot, Passed):
            return self.slots[slot.name]
        if isinstance(slot, Computed):
            # An input alone has the same values under another type.
            return Passed(slot.op.param, slot.type) if slot.op.kernel == INPUT else slot
        reads = {name: self.slots[name] for name in names_of(slot)}
        passed = {
            name: source.name
            for name, source in reads.items()
            if isinstance(source, Passed) and source.type.equals(self.input.field(source.name).type)
        }
        if len(passed) < len(reads):
            return None
        if isinstance(slot, Eager):
            return Eager(tuple(passed[name] for name in slot.names), slot.type, slot.function)
        return None if any(name != source for name, source in passed.items()) else slot

    def described_schema(self) -> pa.Schema:
        """Returns the schema of the current columns, with the values of the codes of enums."""
        fields = [
            field if pa.types.is_dictionary(field.type) else pa.field(field.name, field.type)
            for field in self.schema
        ]
        return pa.schema(fields)

    def one_pass(self) -> Pass:
        """Returns one pass for all steps that were added."""
        return Pass(self.slots, self.predicate, self.graph, self.input)

"""`Pass`: at most one predicate, then output columns, run over one batch in one go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from arrowflow.expr.compile.graph import Graph, Op
from arrowflow.expr.compile.slots import Eager, Foreign, Passed, Slot, Stacked, names_of, ops_of
from arrowflow.expr.parse.expression import Expr
from arrowflow.expr.parse.polars_tree import struct_fields
from arrowflow.expr.run.blocks import BlockPlan
from arrowflow.expr.run.columns import RowBlock, blocks, filter_arrays, fit_one_call, passing_blocks, source
from arrowflow.expr.run.foreign import run_arrow, run_polars
from arrowflow.expr.run.looked_up import LookedUp, looked_up
from arrowflow.expr.run.sinks import ColumnSink, MaskSink, Matrix
from arrowflow.recycler import Recycler
from arrowflow.types import Array

Columns = Mapping[str, pa.Array]
_NOTHING = pa.schema([("", pa.null())])


class Pass:
    """One pass over a batch.

    Attributes:
        slots: The output columns, by name and in order.
        predicate: The test for rows that pass: an operation for NumPy, an expression for its engine, or None for all
        rows.
        graph: The graph that holds the operations.
        schema: The schema of the batch.
    """

    def __init__(
        self, slots: dict[str, Slot], predicate: Op | Expr | None, graph: Graph, schema: pa.Schema
    ) -> None:
        self.slots, self.predicate, self.graph, self.schema = slots, predicate, graph, schema
        self._mask = BlockPlan((predicate,)) if isinstance(predicate, Op) else None
        own = {"": Foreign(predicate, pa.bool_())} if isinstance(predicate, Expr) else {}
        self._foreign_predicate = _foreigners(own, schema)
        # The passed columns that NumPy copies row by row when a predicate drops some.
        passed = {
            name: slot for name, slot in slots.items() if predicate is not None and isinstance(slot, Passed)
        }
        gathers = {name: graph.gather(slot.name, slot.type) for name, slot in passed.items()}
        gathered = {name: (op,) for name, op in gathers.items() if op is not None}
        computed = {name: ops for name, slot in slots.items() if (ops := ops_of(slot))}
        self._dense = _Numeric(slots, computed)
        self._sparse = _Numeric(slots, computed | gathered) if gathered else self._dense
        self._uncomputed = _read_by(slots.values())
        self._filtered = _read_by(slot for name, slot in slots.items() if name not in gathered)
        self._foreign = _foreigners(slots, schema)
        # Columns that are read beside the inputs of NumPy.
        self._others = {*self._uncomputed, *_read_by(own.values())}
        self._inputs = self._dense.inputs + (() if self._mask is None else self._mask.inputs)
        self.columns = tuple(sorted({*self._others, *(op.param for op in self._inputs)}))

    @property
    def stored(self) -> frozenset[str]:
        """The decimal columns of which only the low words are read: they may also arrive as 64-bit integers."""
        inputs = {op.param for op in self._inputs if pa.types.is_decimal128(op.type)}
        return frozenset(inputs - self._others)

    @property
    def struct_fields(self) -> dict[str, frozenset[str]]:
        """The structs of which only single fields are read, with these fields."""
        exprs = [slot.expr for slot in self.slots.values() if isinstance(slot, Foreign)]
        if isinstance(self.predicate, Expr):
            exprs.append(self.predicate)
        whole = set(_read_by(slot for slot in self.slots.values() if not isinstance(slot, Foreign)))
        found: dict[str, frozenset[str]] = {}
        for expr in exprs:
            read = struct_fields(expr.json()) if expr.engine == "polars" else {}
            whole.update({*expr.columns} - {*read})
            for name, fields in read.items():
                found[name] = found.get(name, frozenset()) | fields
        return {name: fields for name, fields in found.items() if name not in whole}

    def run(self, columns: Columns, num_rows: int, recycler: Recycler | None) -> tuple[Columns, int]:
        """Returns the output columns for the input `columns` of `num_rows` rows, and their number of rows.

        Any number of threads may call this at the same time.
        """
        mask = self._passing(columns, num_rows)
        kept = num_rows if mask is None else int(np.count_nonzero(mask))
        if mask is None or kept == num_rows:
            made = self._dense.run(columns, blocks(num_rows), num_rows, recycler)
            return self._finish(made, columns, num_rows), num_rows
        numeric, names = self._sparse, self._filtered
        if fit_one_call(num_rows, len(self._uncomputed)):
            numeric, names = self._dense, self._uncomputed
        made = numeric.run(columns, passing_blocks(mask), kept, recycler)
        filtered = filter_arrays([columns[name] for name in names], mask)
        return self._finish(made, dict(zip(names, filtered, strict=True)), kept), kept

    def _finish(self, made: dict[str, pa.Array], columns: Columns, rows: int) -> Columns:
        """Adds the columns that NumPy did not make: `columns` are the inputs, with only the rows that pass."""
        for foreigners in self._foreign:
            made.update(foreigners.run(columns, rows))
        for name, slot in self.slots.items():
            if isinstance(slot, Eager):
                made[name] = slot.function(*[columns[part] for part in slot.names])
            elif isinstance(slot, Passed) and name not in made:
                column = columns[slot.name]
                made[name] = column if column.type.equals(slot.type) else column.view(slot.type)
        return made

    def _passing(self, columns: Columns, num_rows: int) -> Array | None:
        if self.predicate is None:
            return None
        if self._mask is not None:
            sink = MaskSink(np.empty(num_rows, np.bool_))
            self._mask.run(columns, blocks(num_rows), [sink])
            return sink.values
        flags = self._foreign_predicate[0].run(columns, num_rows)[""]
        values, valid = source(flags, np.dtype(np.bool_)).read(RowBlock(0, num_rows, None), None)
        return values if valid is None else values & valid

    def explain(self) -> list[str]:
        """Returns a line for the predicate and a line for each output: which engine runs it."""
        lines = [f"{name}: {_where(name, slot)}" for name, slot in self.slots.items()]
        if self.predicate is None:
            return lines
        return [f"filter: {self.predicate.engine if isinstance(self.predicate, Expr) else 'numpy'}", *lines]


def _read_by(slots: Iterable[Slot]) -> tuple[str, ...]:
    return tuple(sorted({name for slot in slots for name in names_of(slot)}))


class _Numeric:
    """Computes the outputs `ops`, which are among `slots`, in one pass. Any number of threads may `run` it."""

    def __init__(self, slots: Mapping[str, Slot], ops: Mapping[str, tuple[Op, ...]]) -> None:
        self._outputs = [(name, slots[name], own[0].dtype) for name, own in ops.items()]
        self._plan = BlockPlan(tuple(op for own in ops.values() for op in own))
        self.inputs = self._plan.inputs

    def run(
        self, columns: Columns, chosen: Iterable[RowBlock], rows: int, recycler: Recycler | None
    ) -> dict[str, pa.Array]:
        """Returns the outputs over the blocks `chosen` of `columns`, which have `rows` rows."""
        if not self._outputs:
            return {}
        made = {
            name: Matrix(slot.names, slot.type, dtype, rows, recycler)
            if isinstance(slot, Stacked)
            else ColumnSink(slot.type, dtype, rows, recycler)
            for name, slot, dtype in self._outputs
        }
        self._plan.run(columns, chosen, [sink for one in made.values() for sink in one.sinks])
        return {name: one.array() for name, one in made.items()}


def _where(name: str, slot: Slot) -> str:
    if isinstance(slot, Passed):
        return "pass-through" if slot.name == name else f"pass-through of {slot.name}"
    if isinstance(slot, Foreign):
        return slot.expr.engine
    return "arrow" if isinstance(slot, Eager) else "numpy"


@dataclass(frozen=True, slots=True)
class _Foreigners:
    """All outputs of one engine, evaluated in one call on only the columns that they read.

    Attributes:
        engine: The engine.
        slots: The outputs by name, without their long sets.
        reads: The columns that they read, the answers of the long sets among them.
        looked_up: The long sets, by the names of their answers.
    """

    engine: str
    slots: Mapping[str, Foreign]
    reads: pa.Schema
    looked_up: Mapping[str, LookedUp]

    def run(self, columns: Columns, rows: int) -> dict[str, pa.Array]:
        if self.looked_up:
            columns = {**columns, **{name: one.run(columns) for name, one in self.looked_up.items()}}
        # Constants alone still need the number of rows.
        arrays = [columns[name] for name in self.reads.names] or [pa.nulls(rows)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.reads or _NOTHING)
        exprs = [(slot.expr.source, slot.type) for slot in self.slots.values()]
        if self.engine == "arrow":
            arrays = run_arrow(exprs, batch)
        else:
            inside_lists = any('{"Eval":' in slot.expr.json() for slot in self.slots.values())
            arrays = run_polars(exprs, batch, inside_lists=inside_lists)
        return dict(zip(self.slots, arrays, strict=True))


def _foreigners(slots: Mapping[str, Slot], schema: pa.Schema) -> tuple[_Foreigners, ...]:
    found = []
    for engine in ("polars", "arrow"):
        own: dict[str, Foreign] = {}
        sets: dict[str, LookedUp] = {}
        for name, slot in slots.items():
            if isinstance(slot, Foreign) and slot.expr.engine == engine:
                expr, used = looked_up(slot.expr, schema)
                own[name] = Foreign(expr, slot.type)
                sets.update((each.one.name, each) for each in used)
        if own:
            names = dict.fromkeys(name for slot in own.values() for name in slot.expr.columns)
            reads = pa.schema(
                [pa.field(name, pa.bool_()) if name in sets else schema.field(name) for name in names]
            )
            found.append(_Foreigners(engine, own, reads, sets))
    return tuple(found)

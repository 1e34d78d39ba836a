"""The outputs of a pass that NumPy computes, as one plan over blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from arrowflow.expr.compile.graph import Op
from arrowflow.expr.compile.slots import Slot, Stacked
from arrowflow.expr.run.blocks import BlockPlan, Sink
from arrowflow.expr.run.columns import RowBlock
from arrowflow.expr.run.sinks import ColumnSink, Matrix
from arrowflow.recycler import Recycler


class Numeric:
    """Computes the outputs `ops`, which are among `slots`, in one pass. Any number of threads may `run` it."""

    def __init__(self, slots: Mapping[str, Slot], ops: Mapping[str, tuple[Op, ...]]) -> None:
        self._outputs = [(name, slots[name], own) for name, own in ops.items()]
        self._plan = BlockPlan(tuple(op for _, _, own in self._outputs for op in own))

    @property
    def inputs(self) -> tuple[Op, ...]:
        """The input columns that are read."""
        return self._plan.inputs

    def run(
        self,
        columns: Mapping[str, pa.Array],
        chosen: Iterable[RowBlock],
        rows: int,
        recycler: Recycler | None,
    ) -> dict[str, pa.Array]:
        """Returns the outputs over the blocks `chosen` of `columns`, which have `rows` rows."""
        if not self._outputs:
            return {}
        sinks: list[Sink] = []
        finish: list[Callable[[], pa.Array]] = []
        for _, slot, ops in self._outputs:
            if isinstance(slot, Stacked):
                matrix = Matrix(slot.names, slot.type, ops[0].dtype, rows, recycler)
                sinks.extend(matrix.sinks)
                finish.append(matrix.array)
            else:
                column = ColumnSink(slot.type, ops[0].dtype, rows, recycler)
                sinks.append(column)
                finish.append(column.array)
        self._plan.run(columns, chosen, sinks)
        return {name: array() for (name, _, _), array in zip(self._outputs, finish, strict=True)}

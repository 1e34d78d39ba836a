"""The outputs of a stage that NumPy computes, as one plan over blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from arrowflow.expr.blocks import BlockPlan, Sink
from arrowflow.expr.graph import Op
from arrowflow.expr.columns import Block
from arrowflow.expr.sinks import ColumnSink, Matrix, StackSink
from arrowflow.expr.slots import Slot, Stacked


class Numeric:
    """Computes the outputs `ops`, which are among `slots`, in one pass. Any number of threads may `run` it."""

    def __init__(self, slots: Mapping[str, Slot], ops: Mapping[str, tuple[Op, ...]]) -> None:
        self._outputs = [(name, slots[name], own) for name, own in ops.items()]
        self._plan = BlockPlan(tuple(op for _, _, own in self._outputs for op in own))

    def run(self, columns: Mapping[str, pa.Array], chosen: Iterable[Block], rows: int) -> dict[str, pa.Array]:
        """Returns the outputs over the blocks `chosen` of `columns`, which have `rows` rows."""
        if not self._outputs:
            return {}
        sinks: list[Sink] = []
        made: list[ColumnSink | tuple[Matrix, list[StackSink]]] = []
        for _, slot, ops in self._outputs:
            if isinstance(slot, Stacked):
                matrix = Matrix(slot.names, slot.type, ops[0].dtype, rows)
                made.append((matrix, matrix.sinks()))
                sinks.extend(made[-1][1])
            else:
                made.append(ColumnSink(slot.type, ops[0].dtype, rows))
                sinks.append(made[-1])
        self._plan.run(columns, chosen, sinks)
        arrays = [part.array() if isinstance(part, ColumnSink) else part[0].array(part[1]) for part in made]
        return {name: array for (name, _, _), array in zip(self._outputs, arrays, strict=True)}

"""The node, the position and the gathering of `sample_from_datasets` and `choose_from_datasets`.

`mixing.py` has their collector of blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.kernels.context import Context
from arrowflow.kernels.gather import GatherKernel, gathered
from arrowflow.kernels.held import join
from arrowflow.kernels.items import Origin
from arrowflow.kernels.kinds import BoundaryKernel
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.combine.same_columns import SameColumnsOperator
from arrowflow.plan.node import BindContext, Node
from arrowflow.plan.position import Mark
from arrowflow.plan.shape import Inputs, Shape, below, fitting, parts
from arrowflow.plan.widths import RowWidth, row_bytes, row_width

BLOCK_ROWS: Final = 16_384
"""Rows of the output that are decided together: a multiple of the strata of the draws."""

PART_BYTES: Final = 16 << 20
"""Bytes of the rows that one call gathers."""

Choices = npt.NDArray[np.uint16]
"""For each row the number of its input; a row that is left out has the number of inputs."""


class MixPosition(NamedTuple):
    """Position of a `MixKernel`.

    Attributes:
        marks: The place in each input.
        cursor: The place from which the draws of the block are made again.
        block: Number of the block.
        row: Rows of the block that are done.
        most: Rows of the next part, at most.
        dropped: Inputs that have run out.
    """

    marks: tuple[Mark, ...]
    cursor: Any
    block: int
    row: int
    most: int
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixOperator(SameColumnsOperator):
    """Base of the operators that mix rows.

    Attributes:
        width: Bound: bytes of a row by the plan as written.
    """

    width: RowWidth = field(default=RowWidth(), compare=False)

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        bound = SameColumnsOperator.bind(self, inputs, context)
        return dataclasses.replace(cast(MixOperator, bound), width=row_width(bound.schema))

    def mix_specs(
        self, make: Callable[[Context], BoundaryKernel], cursor: Any, wrong: Callable[[Any], str | None]
    ) -> tuple[KernelSpec, ...]:
        """Returns the collector of blocks and the gatherer.

        Args:
            make: Makes the collector.
            cursor: The type of its cursor. Positions in it are those of further inputs.
            wrong: Returns what is wrong with a cursor of this type; None for nothing.
        """

        def wrong_at(at: MixPosition) -> str | None:
            return (
                parts("marks", at.marks, self.num_sources)
                or below("row", at.row, BLOCK_ROWS + 1)
                or (None if at.most else "most is 0, expected rows of a part")
                or below("dropped", max(at.dropped, default=0), self.num_sources)
                or wrong(fitting(at.cursor, cursor, "cursor", []))
            )

        def inputs(at: MixPosition) -> Inputs:
            found = [mark.before for mark in at.marks]
            fitting(at.cursor, cursor, "cursor", found)
            return enumerate(found)

        rows = min(BLOCK_ROWS, self.width.rows_in(PART_BYTES, 0, 1))
        return (
            KernelSpec(
                "boundary",
                make,
                position=Shape(MixPosition, wrong_at, inputs),
                pins_order=True,
                splits=True,
                facts=f"collect rows of {self.num_sources} inputs, no copy",
            ),
            KernelSpec(
                "stateless",
                lambda context: OrderKernel(),
                engine="numpy+arrow",
                # One part is gathered while another is consumed.
                floor_bytes=2 * rows * row_bytes(self.schema),
                facts=f"gather up to {BLOCK_ROWS:,} rows or {PART_BYTES:,} bytes a call",
            ),
        )


@dataclass(slots=True)
class MixedRows:
    """Chunks of all inputs, input after input, and the input of each row; the rows stand on the chunks' tickets."""

    chunks: list[pa.RecordBatch]
    choices: Choices
    num_rows: int
    nbytes: int


class OrderKernel(GatherKernel):
    """Puts the rows of a part in order, into new memory."""

    def gather(self, chunk: MixedRows, origin: Origin) -> pa.RecordBatch:
        # Joined, the rows lie as a stable sort by input would put them: its inverse gives the place of each row.
        indices = np.empty(chunk.num_rows, np.uint32)
        indices[np.argsort(chunk.choices, kind="stable")] = np.arange(chunk.num_rows, dtype=np.uint32)
        return gathered(join(chunk.chunks), indices)

"""The node that `sample_from_datasets` and `choose_from_datasets` share. `mixing.py` has its collector of blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from arrowflow.kernels.context import Context
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.combine.mix_position import mix_shape
from arrowflow.ops.combine.mixed_rows import OrderKernel
from arrowflow.ops.combine.mixing import BLOCK_ROWS, PART_BYTES, MixKernel
from arrowflow.ops.combine.same_columns import SameColumnsOperator
from arrowflow.plan.node import BindContext, Node
from arrowflow.plan.widths import RowWidth, row_bytes, row_width


@dataclass(frozen=True, slots=True, kw_only=True)
class MixOperator(SameColumnsOperator):
    """Base of the operators that mix rows.

    Attributes:
        width: Bound: bytes of a row by the plan as written.
    """

    width: RowWidth = field(default=RowWidth(), compare=False)

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Notes the columns and the bytes of a row."""
        bound = SameColumnsOperator.bind(self, inputs, context)
        return dataclasses.replace(cast(MixOperator, bound), width=row_width(bound.schema))

    def mix_specs(
        self, make: Callable[[Context], MixKernel], cursor: Any, wrong: Callable[[Any], str | None]
    ) -> tuple[KernelSpec, ...]:
        """Returns the collector of blocks and the gatherer.

        Args:
            make: Makes the collector.
            cursor: The type of its cursor.
            wrong: Returns what is wrong with a cursor of this type; None for nothing.
        """
        rows = min(BLOCK_ROWS, self.width.rows_in(PART_BYTES, 0, 1))
        return (
            KernelSpec(
                operator=self.name,
                kind="boundary",
                make=make,
                position=mix_shape(self.num_sources, BLOCK_ROWS, cursor, wrong),
                pins_order=True,
                splits=True,
                facts=lambda: (f"collect rows of {self.num_sources} inputs, no copy",),
            ),
            KernelSpec(
                operator=self.name,
                kind="stateless",
                make=lambda context: OrderKernel(),
                engine="numpy+arrow",
                # One part is gathered while another is consumed.
                floor_bytes=2 * rows * row_bytes(self.schema),
                facts=lambda: (f"gather up to {BLOCK_ROWS:,} rows or {PART_BYTES:,} bytes a call",),
            ),
        )

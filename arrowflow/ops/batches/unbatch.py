"""`unbatch`: the rows of batches, addressable again.

Operators that count or choose single rows are refused after `batch`, where `take(3)` could mean rows or batches. After
`unbatch` it means rows. The chunks pass as they are, so there is no kernel. A batch is a split for what follows. Nothing
that orders a source passes `unbatch`: the batches before it keep their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from arrowflow.errors import PlanError
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import Node
from arrowflow.plan.traits import Borders, Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbatch(RowOperator):
    """The rows of its input's batches.

    Row order: as its input. Memory: nothing held. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "unbatch"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, keeps_number=True, in_turn=True)

    @classmethod
    def of(cls, below: Node) -> Self:
        """Returns the node, if its input is in batches."""
        if not below.batched:
            raise PlanError(
                "unbatch: there are no batches before it, so its rows are addressable already; leave it out"
            )
        return cls(inputs=(below,))

    def arguments(self) -> Mapping[str, Any]:
        return {}

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return ()

"""`prefetch`: how many batches may be ready before the consumer asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.options import AUTOTUNE, ResolvedOptions, check_size, whole_number
from arrowflow.plan.node import Node
from arrowflow.plan.traits import Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch(RowOperator):
    """The same chunks; up to `count` of them are made before the consumer asks. This is the one size in batches.

    Row order: as its input. Memory: `count` chunks. Deterministic. Resume: as its input.

    Every stage reads ahead on its own. `prefetch` sets how far the stage before it goes, and moves the slicing of
    batches off the consumer's thread.
    """

    name: ClassVar[str] = "prefetch"
    traits: ClassVar[Traits] = Traits(one_to_one=True)

    count: int | None = None

    @classmethod
    def of(cls, below: Node, buffer_size: int) -> Self:
        if whole_number(buffer_size) == AUTOTUNE:
            return cls(inputs=(below,))
        return cls(inputs=(below,), count=check_size(cls.name, "buffer_size", buffer_size, least=0))

    def arguments(self) -> Mapping[str, Any]:
        return {}

    def identity(self) -> dict[str, Any]:
        """Returns nothing: `prefetch` changes neither rows nor order nor positions."""
        return {}

    @property
    def noop(self) -> bool:
        return self.count == 0

    def describe(self) -> str:
        return f"prefetch({'AUTOTUNE' if self.count is None else self.count})"

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        """Returns a buffer for the stage before it; `prefetch` runs nothing of its own."""
        items = self.count if self.count is not None else max(4, 2 * options.cpu_budget)
        return (KernelSpec("buffer", buffer_items=items),) if items else ()

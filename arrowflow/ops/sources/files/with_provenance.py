"""`with_provenance`: where each row came from. The source before it makes the columns, so that it is gone once bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.sources.files.read import Read
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import BindContext, Node
from arrowflow.plan.traits import Traits
from arrowflow.types import untyped

PROVENANCE = ("file", "row_group", "row")
"""Names of its columns: the path (string), the number of the row group (int32), and of the row in it (int64)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithProvenance(Operator):
    """The rows of files, with the path, the row group and the row of each.

    Row order: as its input. Memory: 12 bytes and the path, a row, as far as later operators use these columns.
    Deterministic. Resume: its input's position.

    Attributes:
        names: The names of the columns.
    """

    name: ClassVar[str] = "with_provenance"
    traits: ClassVar[Traits] = Traits(one_to_one=True)

    names: tuple[str, str, str] = PROVENANCE

    @classmethod
    def of(cls, below: Node, *names: object) -> Self:
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise PlanError(f"with_provenance: expected three different names, got {shown(names)}")
        if below.inputs:
            raise _misplaced(below)
        return cls(inputs=(below,), names=names)  # type: ignore[arg-type]  # three texts

    def arguments(self) -> Mapping[str, Any]:
        return {"names": list(self.names)}

    def describe(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.names))})"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Leaves the work to the source."""
        (source,) = inputs
        if not isinstance(source, Read):
            raise _misplaced(source)
        return source.with_provenance(self.names)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Returns its input's columns, and its own; the source that it becomes knows their types."""
        return untyped([*inputs[0].names, *self.names])

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        raise NotImplementedError


def _misplaced(before: Node) -> PlanError:
    return PlanError(
        f"with_provenance: it comes right after a source of files, such as read_parquet, and not after {before.name}; rows "
        "of other sources can be numbered with enumerate()"
    )

"""`with_options`: settings of the whole pipeline, carried by the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from arrowflow.errors import PlanError, shown
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.options import Options, ResolvedOptions
from arrowflow.plan.bind import SetsOptions
from arrowflow.plan.node import Node, called
from arrowflow.plan.traits import Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class WithOptions(RowOperator, SetsOptions):
    """The same chunks, in a pipeline with these options. The last of several settings of one field wins.

    Row order: as its input. Memory: nothing held. Resume: as its input.
    """

    name: ClassVar[str] = "with_options"
    traits: ClassVar[Traits] = Traits(one_to_one=True)

    @classmethod
    def of(cls, below: Node, options: Options) -> Self:
        if not isinstance(options, Options):
            raise PlanError(f"with_options: expected arrowflow.Options, got {shown(options)}")
        return cls(inputs=(below,), options=options)

    def arguments(self) -> Mapping[str, Any]:
        """Returns nothing: bound operators have the options that decide rows in their own arguments."""
        return {}

    def identity(self) -> dict[str, Any]:
        """Returns nothing: `with_options` itself changes neither rows nor order nor positions."""
        return {}

    @property
    def noop(self) -> bool:
        """Options are read from the plan as written."""
        return True

    def describe(self) -> str:
        names = (field.name for field in dataclasses.fields(self.options))
        settings = {name: getattr(self.options, name) for name in names}
        return called(self.name, {name: value for name, value in settings.items() if value is not None})

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return ()

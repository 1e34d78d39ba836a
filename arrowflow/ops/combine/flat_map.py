"""`flat_map`: the rows of many datasets, one dataset after the other: an `interleave` of one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from arrowflow.ops.combine.interleave import Interleave
from arrowflow.ops.functions.function import function_name


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMap(Interleave):
    """The rows of the datasets that `fn` returns for the rows of its input, one dataset after the other.

    Row order: the input's order, and within a dataset its own. Memory: the chunks of one dataset, and of the dataset
    opened ahead. Deterministic if `fn` is. Resume: as `interleave` with one place. `fn` is called again for the open
    dataset, and for no other dataset that came before.
    """

    name: ClassVar[str] = "flat_map"

    cycle_length: int = 1

    def arguments(self) -> Mapping[str, Any]:
        return {"fn": function_name(self.fn)}

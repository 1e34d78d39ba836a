"""`Coordinator`: what ranks agree by."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from arrowflow.errors import PlanError, shown


@runtime_checkable
class Coordinator(Protocol):
    """The means by which ranks agree. `torch.distributed`'s process groups need no class of their own."""

    def all_min(self, numbers: Sequence[int]) -> Sequence[int]:
        """Returns, for each place, the least of the numbers that all ranks give. Waits for all of them.

        Called in `next()`, on its thread, equally often on all ranks.
        """


def coordinator_of(given: Any, world_size: int) -> Coordinator | None:
    """Returns the coordinator that a user gave, one of their own or for a process group of PyTorch; else the default group.

    The default group is taken where it is initialised, and as large as the plan is split.

    Raises:
        PlanError: It is neither.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if given is None:
        ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
        return DefaultGroup() if ready and 1 < world_size == distributed.get_world_size() else None
    if isinstance(given, Coordinator):
        return given
    if distributed is not None and isinstance(given, distributed.ProcessGroup):
        return TorchCoordinator(given)
    raise PlanError(
        "split_by_rank: coordinator is a process group of torch.distributed, or an object with a method "
        f"all_min(numbers), got {shown(given)}"
    )


class TorchCoordinator(Coordinator):
    """Reductions in a process group of PyTorch, which nothing else may use at the same time."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __repr__(self) -> str:
        return "the given process group"

    def all_min(self, numbers: Sequence[int]) -> Sequence[int]:
        import torch
        from torch import distributed

        device = torch.device("cuda" if distributed.get_backend(self._group) == "nccl" else "cpu")
        values = torch.tensor(numbers, dtype=torch.int64, device=device)
        distributed.all_reduce(values, distributed.ReduceOp.MIN, group=self._group)
        return [int(value) for value in values.tolist()]


class DefaultGroup(TorchCoordinator):
    """The group of all processes of `torch.distributed`. Picklable: it is looked up when it is used."""

    def __init__(self) -> None:
        super().__init__(None)

    def __reduce__(self) -> tuple[type[DefaultGroup], tuple[()]]:
        return DefaultGroup, ()

    def __repr__(self) -> str:
        return "the default process group of torch.distributed"

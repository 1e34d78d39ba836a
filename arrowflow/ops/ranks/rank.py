"""`Rank`: which of several processes this is, as the launcher or the framework tells it."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from arrowflow.errors import PlanError
from arrowflow.options import check_size


class Rank(NamedTuple):
    """One of several processes that deliver a stream together.

    Attributes:
        rank: Its number, from 0.
        world_size: How many processes there are.
        local_world_size: How many of them run on this machine, and share its cores and memory.
    """

    rank: int
    world_size: int
    local_world_size: int

    def share(self, count: int) -> tuple[int, int]:
        """Returns its part of so many rows or lanes, as (first, before); nothing if there is not one for each process.

        Examples:
            >>> [Rank(number, 3, 1).share(8) for number in range(3)]
            [(0, 2), (2, 5), (5, 8)]
        """
        if count < self.world_size:
            return 0, 0
        return self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size


def found_rank(rank: int | None, world_size: int | None) -> Rank:
    """Returns the given rank; otherwise that of `torch.distributed`, of JAX, of Ray Train or of the environment; else the only one.

    Frameworks are asked only if they are loaded and initialised: nothing is imported.

    Raises:
        PlanError: Only one of the two is given, or one of them is out of range.
    """
    if (rank is None) != (world_size is None):
        raise PlanError("split_by_rank: give rank and world_size together, or none of them")
    if rank is None or world_size is None:
        rank, world_size = _of_torch() or _of_jax() or _of_ray_train() or _of_environment() or (0, 1)
    size = check_size("split_by_rank", "world_size", world_size)
    number = check_size("split_by_rank", "rank", rank, least=0, most=size - 1)
    local = _number("LOCAL_WORLD_SIZE")
    return Rank(number, size, max(1, min(local or 1, size)))


def _of_torch() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _of_jax() -> tuple[int, int] | None:
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return None
    return jax.process_index(), jax.process_count()


def _of_ray_train() -> tuple[int, int] | None:
    train = sys.modules.get("ray.train")
    try:
        context = None if train is None else train.get_context()
        return None if context is None else (context.get_world_rank(), context.get_world_size())
    except RuntimeError:  # no worker of a trainer
        return None


def _of_environment() -> tuple[int, int] | None:
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    return None if rank is None or size is None else (rank, size)


def _number(name: str) -> int | None:
    """Returns a number of the environment; None where it is not set."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise PlanError(f"split_by_rank: the environment has {name}={text!r}, expected a whole number")
    return int(text)

"""`Rank`: which of several processes this is, as the launcher or the framework tells it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
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

    def share(self, count: int) -> range:
        """Returns the numbers of its rows, or lanes, of so many; nothing if there is not one for each process.

        Examples:
            >>> [Rank(number, 3, 1).share(8) for number in range(3)]
            [range(0, 2), range(2, 5), range(5, 8)]
        """
        if count < self.world_size:
            return range(0)
        return range(self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size)


def found_rank(rank: int | None, world_size: int | None) -> Rank:
    """Returns the given rank; otherwise that of `torch.distributed`, of JAX, of Ray Train or of the environment; else the only one.

    Frameworks are asked only if they are loaded and initialised: nothing is imported.

    Raises:
        PlanError: Only one of the two is given, or one of them is out of range.
    """
    if (rank is None) != (world_size is None):
        raise PlanError("split_by_rank: give rank and world_size together, or none of them")
    if rank is None or world_size is None:
        rank, world_size = next(_told())
    size = check_size("split_by_rank", "world_size", world_size)
    number = check_size("split_by_rank", "rank", rank, least=0, most=size - 1)
    return Rank(number, size, max(1, min(_number("LOCAL_WORLD_SIZE") or 1, size)))


def _told() -> Iterator[tuple[int, int]]:
    """Yields the ranks and numbers of processes that frameworks and the environment tell; at last that of one process."""
    distributed, jax, train = map(sys.modules.get, ("torch.distributed", "jax", "ray.train"))
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        yield distributed.get_rank(), distributed.get_world_size()
    if jax is not None and jax.distributed.is_initialized():
        yield jax.process_index(), jax.process_count()
    with suppress(RuntimeError):  # no worker of a trainer
        if train is not None and (context := train.get_context()) is not None:
            yield context.get_world_rank(), context.get_world_size()
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if rank is not None and size is not None:
        yield rank, size
    yield 0, 1


def _number(name: str) -> int | None:
    """Returns a number of the environment; None where it is not set."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise PlanError(f"split_by_rank: the environment has {name}={text!r}, expected a whole number")
    return int(text)

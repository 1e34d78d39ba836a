"""`shuffle`: windows of rows, each permuted; or, without a size, all rows.

A window is exactly `size` rows of the input sequence, whatever its chunk borders. Its permutation is a pure function of
(seed, epoch, window number). So the state is a cursor and not the buffer: a resumed shuffle collects the window again
and permutes it to the same order. There are two kernels. A serial kernel collects windows without a copy. A stateless
kernel gathers a window, so that the next windows are made while one is consumed.

Where no operator in between forbids it, (seed, epoch) also orders the source before the shuffle, see
`with_source_order`. The plan as written decides this, so no rule changes an order.

Without a size it is `global_shuffle.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from arrowflow.kernels.context import Context
from arrowflow.kernels.cutting import CutPosition, CuttingKernel, Parts, cut_shape
from arrowflow.kernels.gather import GatherKernel
from arrowflow.kernels.items import Origin
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.ops.order.global_shuffle import GlobalShuffle
from arrowflow.ops.order.scatter import reordered
from arrowflow.ops.order.source_order import bound_seed
from arrowflow.options import ResolvedOptions, check_flag, check_seed, check_size
from arrowflow.plan.access import RowAccess, SourceOrder, position_behind, with_source_order
from arrowflow.plan.lane import InLanes, Obstacle, small_windows
from arrowflow.plan.node import BindContext, Count, Node
from arrowflow.plan.traits import Borders, SharedByEpochs, Traits
from arrowflow.plan.widths import row_bytes
from arrowflow.random import WINDOW_ORDER, Key, permutation
from arrowflow.recycler import Recycler


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle(RowOperator, InLanes, RowAccess):
    """Its input's rows, permuted within windows of `size` rows.

    Row order: a pure function of (seed, epoch, window). Memory: two windows, and one that is gathered;
    `memory.SPARE_SHARE` bounds the memory that waits to be used again. Deterministic. Resume: (position before the
    window, rows of the window to drop, window number); the window is collected again.

    Attributes:
        size: Rows of a window.
        seed: The seed of the order; None until bound, then derived from `Options.seed` and the operator's place.
        reshuffle_each_iteration: Whether each epoch has its own order.
    """

    name: ClassVar[str] = "shuffle"
    traits: ClassVar[Traits] = Traits(
        borders=Borders.FREE,
        gathers=True,
        needs_rows=True,
        local=True,
        row_sizes=("size",),
        new_memory=True,
        keeps_number=True,
    )

    size: int
    seed: int | None = None
    reshuffle_each_iteration: bool = True

    @classmethod
    def of(
        cls, below: Node, buffer_size: int | None, *, seed: int | None, reshuffle_each_iteration: bool
    ) -> Shuffle | GlobalShuffle:
        """Returns the node for this buffer, or for none, with arguments as users write them."""
        seed = check_seed(cls.name, seed)
        reshuffle = check_flag(cls.name, "reshuffle_each_iteration", reshuffle_each_iteration)
        if buffer_size is None:
            return GlobalShuffle(inputs=(below,), seed=seed, reshuffle_each_iteration=reshuffle)
        size = check_size(cls.name, "buffer_size", buffer_size)
        return cls(inputs=(below,), size=size, seed=seed, reshuffle_each_iteration=reshuffle)

    @property
    def title(self) -> str:
        return f"{self.name}({self.size:,})"

    def arguments(self) -> Mapping[str, Any]:
        return {
            "size": self.size,
            "seed": self.seed,
            "reshuffle_each_iteration": self.reshuffle_each_iteration,
        }

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Fixes the seed, and orders the source before it by that seed where possible."""
        seed = bound_seed(self.seed, context)
        order = SourceOrder(seed=seed, reshuffle=self.reshuffle_each_iteration, window=self.size)
        return dataclasses.replace(self, seed=seed).on(with_source_order(inputs[0], order))

    def shared_by_epochs(self, share: SharedByEpochs) -> SharedByEpochs:
        """Returns the number of rows, if all epochs have that."""
        return max(share, SharedByEpochs.NUMBER)

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """A lane permutes its part of a window, which has to be large enough to mix its rows."""
        return InLanes.obstacle(self, lanes, times) or small_windows(self.name, self.size, lanes)

    def rows_wanted(self, rows: int | None) -> int:
        return self.size

    def rows_again(self, rows: int) -> int:
        """Returns the rows of the window at its position, and of the windows with the rows after this window."""
        return rows + 2 * self.size

    def position_behind(self, rows: int, epoch: int | None = None) -> tuple[Any, int] | None:
        """Returns the position before the window with this row, where the input's position before that can be told."""
        number = rows // self.size
        first = number * self.size
        found = position_behind(self.inputs[0], first, epoch)
        return None if found is None else (CutPosition(found[0], first - found[1], number), first)

    def window_key(self, epoch: int, number: int) -> Key:
        """Returns the key of a window's order."""
        assert self.seed is not None
        return (self.seed, WINDOW_ORDER, epoch if self.reshuffle_each_iteration else 0, number)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        window_bytes = row_bytes(self.schema) * self.size
        recycler = Recycler(options.ram_budget)  # for all epochs
        return (
            KernelSpec(
                "serial",
                lambda context: CuttingKernel(self.size),
                position=cut_shape(self.size),
                splits=True,
                buffer_items=1,
                floor_bytes=window_bytes,
                facts=f"collect windows of {self.size:,} rows, no copy",
            ),
            KernelSpec(
                "stateless",
                lambda context: PermuteKernel(self, recycler, context),
                random=True,
                engine="numpy+arrow",
                floor_bytes=window_bytes,
                facts="permute and gather, one call a window",
            ),
        )


class PermuteKernel(GatherKernel):
    """Permutes a window and gathers its rows into new memory."""

    def __init__(self, node: Shuffle, recycler: Recycler, context: Context) -> None:
        self._node = node
        self._epoch = context.epoch
        self._recycler = recycler

    def gather(self, chunk: Parts, origin: Origin) -> pa.RecordBatch:
        order = permutation(chunk.num_rows, self._node.window_key(self._epoch, origin.split))
        return reordered(chunk.chunks, order, self._recycler)

    def limit(self, chunk: Parts) -> tuple[str, str, str]:
        return f"a window of {chunk.num_rows:,} rows cannot be gathered", "one window", "use a smaller window"

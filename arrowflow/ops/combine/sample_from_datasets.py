"""`sample_from_datasets`: rows of several datasets, drawn at random by weight.

Draws are *stratified*. Take any 16, 256 or 4,096 rows of the output that begin at a multiple of that number. Each
sixteenth (256th, 4,096th) of the unit interval gets exactly one of their draws. Each draw alone is uniform, and the
assignment of draws to rows is random. But the share of a dataset stays within a few rows of its weight at every moment.
Independent draws stray by the square root of the rows. So even a small batch is mixed by the weights.

A state of other weights may be loaded. Rows that were drawn by the old weights then come again by the old weights: the
rest of the block, and the rows after it that operators ask for (`Node.rows_again`). So positions hold the weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from arrowflow.kernels.context import Context
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.combine.mix_operator import BLOCK_ROWS, Choices, MixOperator
from arrowflow.ops.combine.mixing import Draws, MixKernel
from arrowflow.ops.order.source_order import bound_seed
from arrowflow.options import ResolvedOptions
from arrowflow.plan.change import Change, Changeable
from arrowflow.plan.lane import InLanes, Lane, Obstacle, dealt_rows, in_lane, obstacle_of, worst
from arrowflow.plan.node import BindContext, Count, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import parts
from arrowflow.plan.traits import Borders, Traits
from arrowflow.plan.walk import rows_in_lanes
from arrowflow.random import SAMPLE_DRAWS, bits

Stop = Literal["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"]
"""Where a mix ends, in the words of `datasets.interleave_datasets`."""

_STRATA = 16
_DRAW_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFromDatasets(MixOperator, Changeable, InLanes):
    """Rows of its inputs, each from an input drawn at random; the rows of one input stay in their order.

    Row order: a pure function of (seed, epoch, block). Memory: one chunk of each input, a MiB of small inputs that
    begin again, and the part that is gathered, some 16 MiB or 16,384 rows at a time. Deterministic. Resume: (per input,
    position before its oldest held row and rows used from there; the weights, and up to which block they hold; number
    of the block; rows of the block that are done; rows of the next part; inputs that have run out).

    Attributes:
        weights: How often each input is drawn, in relation to the others; None for equally often.
        stop: Where the output ends.
        seed: The seed of the draws; None until bound, then derived from `Options.seed` and the operator's place.
        again: Bound: rows that operators after it may ask for again.
    """

    name: ClassVar[str] = "sample_from_datasets"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True, local=True, new_memory=True)

    weights: tuple[float, ...] | None = None
    stop: Stop = "first_exhausted"
    seed: int | None = None
    again: int = dataclasses.field(default=0, compare=False, repr=False)

    def arguments(self) -> Mapping[str, Any]:
        """Returns the number of inputs, the weights, the seed, and where it ends, in the words of older states."""
        return {
            "datasets": len(self.inputs),
            "weights": None if self.weights is None else list(self.weights),
            "seed": self.seed,
            "stop_on_empty_dataset": self.stop == "first_exhausted",
            **({"stop": "all_exhausted"} if self.stop == "all_exhausted" else {}),
        }

    def describe(self) -> str:
        weights = "" if self.weights is None else f", {list(self.weights)}"
        seed = "" if self.seed is None else f", seed={self.seed}"
        return f"{self.name}({len(self.inputs)} datasets{weights}{seed}, stop={self.stop!r})"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        seed = bound_seed(self.seed, context)
        return MixOperator.bind(dataclasses.replace(self, seed=seed), inputs, context)

    def change_since(self, arguments: Mapping[str, Any]) -> Change:
        rows = self.old_until(0) * BLOCK_ROWS
        return Change(
            arguments={**self.arguments(), "weights": arguments.get("weights")},
            effect=f"draws by its weights of now, after at most {rows:,} rows that come by those of the state",
            repeats=True,
        )

    def asked_for(self, again: int | None, rows: int | None, options: ResolvedOptions) -> Node:
        return self if again is None else dataclasses.replace(self, again=again)

    def old_until(self, block: int) -> int:
        """Returns the first block with new weights, where a state of other weights has a place in `block`."""
        return block + 1 + -(-max(0, self.again - 1) // BLOCK_ROWS)

    @property
    def shares(self) -> tuple[float, ...]:
        """The weight of each input."""
        return self.weights or (1.0,) * len(self.inputs)

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns the rows of all inputs with a weight, where all these inputs are read to their ends."""
        drawn = [rows for rows, share in zip(inputs, self.shares, strict=True) if share]
        known = [rows for rows in drawn if rows is not None]
        if len(known) < len(drawn):
            return None
        total = sum(known)
        if self.stop == "all_exhausted":
            return total if not total or total == math.inf else None
        stops = self.stop == "first_exhausted" and len(known) > 1 and total and min(known) < math.inf
        return None if stops else total

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """Each lane draws from its part of each input; a lane whose part is empty would end, or never draw from it."""
        drawn = [child for child, share in zip(self.inputs, self.shares, strict=True) if share]
        for number, child in enumerate(drawn):
            rows = rows_in_lanes(child)
            if rows is None or rows < lanes:
                known, remedy = "rows that only a run counts", "count them once, by assert_cardinality"
                if rows is not None:
                    known, remedy = f"{rows:,} rows for {lanes} lanes", "repeat() it"
                which = f"in dataset {number + 1} of those that are drawn"
                return Obstacle(self.name, f"has {known} {which}", remedy)
        return worst(obstacle_of(child, lanes, times) for child in drawn)

    def in_lane(self, lane: Lane) -> Node:
        """Deals the rows of each input after those of the inputs before it; an input that is never drawn has none."""
        assert self.seed is not None
        inputs, own = [], lane
        for child, share in zip(self.inputs, self.shares, strict=True):
            inputs.append(in_lane(child, own) if share else child)
            own = own.after(dealt_rows(child) if share else 0)
        return dataclasses.replace(self, seed=lane.seed(self.seed)).on(*inputs)

    def dealt_rows(self) -> int:
        """Returns the rows of the inputs that are drawn."""
        return sum(dealt_rows(child) for child, share in zip(self.inputs, self.shares, strict=True) if share)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return self.mix_specs(
            lambda context: SampleKernel(self, context), tuple[Weights, ...] | None, self._wrong
        )

    def _wrong(self, weights: tuple[Weights, ...] | None) -> str | None:
        if weights is None:
            return None
        for each in weights:
            if problem := parts("shares", each.shares, len(self.inputs)):
                return problem
            if min(each.shares) < 0 or not any(each.shares):
                return f"shares are {each.shares}, expected weights"
        return (
            None if weights and weights[-1].until is None else "cursor ends, expected weights without an end"
        )


class Weights(NamedTuple):
    """The weights of some blocks.

    Attributes:
        shares: The weight of each input.
        until: The first block with other weights; None if there is none.
    """

    shares: tuple[float, ...]
    until: int | None


class SampleKernel(MixKernel):
    """Draws the inputs of a block."""

    def __init__(self, node: SampleFromDatasets, context: Context) -> None:
        assert node.seed is not None
        self._node = node
        stop, again = node.stop == "first_exhausted", node.stop == "all_exhausted"
        super().__init__(node, context, stop=stop, again=again)
        self._key = (node.seed, SAMPLE_DRAWS, context.epoch)
        self._follow((Weights(node.shares, None),))

    def _follow(self, weights: tuple[Weights, ...]) -> None:
        """Draws by the first of some weights, and later by the others."""
        self._weights = weights
        shares = np.array([each.shares for each in weights])
        self._opened = np.flatnonzero(shares.any(axis=0)).tolist()
        # Scaling by a power of two changes no draw, and keeps the sum of huge weights finite.
        self._shares = np.ldexp(shares[0], -np.frexp(shares[0].max())[1])

    def _cursor(self) -> Position:
        return self._weights

    def _restore_cursor(self, cursor: Position) -> None:
        if cursor is None:  # states of early alphas do not hold the weights
            return
        weights = tuple(map(Weights._make, cursor))
        (shares, _), own = weights[-1], self._weights[-1]
        if shares != own.shares:
            weights = (*weights[:-1], Weights(shares, self._node.old_until(self._block)), own)
        self._follow(weights)

    def _next_block(self) -> None:
        left = tuple(each for each in self._weights if each.until is None or each.until > self._block)
        if left != self._weights:
            self._follow(left)
            self.done = self._is_over()

    def _draw(self) -> Draws:
        return stratified(BLOCK_ROWS, (*self._key, self._block))

    def _choose(self, draws: Draws) -> Choices:
        dropped = list(self._empty)
        while not np.delete(self._shares, dropped).any():
            self._follow(self._weights[1:])  # all inputs that the old weights name have run out
        shares = self._shares.copy()
        shares[dropped] = 0
        sums = shares.cumsum()
        limits = np.ceil(sums / sums[-1] * 2.0**_DRAW_BITS).astype(np.uint64)
        # The last limit is beyond all draws. A sum of comparisons is cheaper than a search among a few limits.
        if len(limits) > _STRATA:
            return np.searchsorted(limits, draws, side="right").astype(np.uint16)
        choices = np.zeros(len(draws), np.uint16)
        for limit in limits[limits < 1 << _DRAW_BITS].astype(np.uint32):
            choices += draws >= limit
        return choices


def stratified(num_rows: int, key: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    """Returns random 32-bit numbers, stratified in each 16, 256 and 4,096 of them.

    The upper four bits are a permutation of 0 to 15 in each 16 rows. Of 256 rows, the 16 rows with the same upper four
    bits, one in each 16, get a permutation of 0 to 15 as their next four bits; and so on.

    Args:
        num_rows: How many; a multiple of 4,096.
        key: The numbers are a function of this key.

    Examples:
        >>> sorted((stratified(4096, (7, 1))[:16] >> 28).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    """
    words = bits(key, 2 * num_rows).view(np.uint32).reshape(4, num_rows)
    rows = np.arange(num_rows, dtype=np.uint32)
    drawn = np.zeros(num_rows, np.uint32)
    for level in range(3):
        shift = np.uint32(4 * level)
        # Each 16^(level + 1) rows and each number drawn so far has one permutation.
        line = ((rows >> (shift + np.uint32(4))) << shift) | drawn
        member = (rows >> shift) & np.uint32(15)
        drawn = (drawn << np.uint32(4)) | _permutations(words[level]).take((line << np.uint32(4)) | member)
    return (drawn << np.uint32(20)) | (words[3] >> np.uint32(12))


def _permutations(keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Returns random permutations of 0 to 15 in a row, one for each 16 random keys."""
    lines = (keys & ~np.uint32(15)).reshape(-1, _STRATA)
    lines |= np.arange(_STRATA, dtype=np.uint32)
    lines.sort(axis=1)
    lines &= np.uint32(15)
    return lines.ravel()

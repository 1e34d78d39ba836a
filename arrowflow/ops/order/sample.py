"""`sample`: rows drawn by a weight of each row, with replacement or without.

A source with random access keeps its rows in place, as for a global `shuffle`, whose kernels run here too. At the start
of an epoch the weights of all rows are computed, eight bytes each. They decide which row takes each place of the output.
So the state is the number of rows delivered.

With replacement, a place takes the row in whose part of the running sum of weights a random number falls. The number is
found by its place, so no number is kept. Without replacement, each row gets a key: a number with exponential density,
divided by the row's weight. The rows of the smallest keys, in the order of the keys, are distributed as rows that are
drawn one after the other (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).

Column operators that lie between source and `sample` run on the rows that were drawn. Of these operators, the weights
need some for all rows. `weighing` holds those steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import BudgetError, DataError, PlanError
from arrowflow.expr import Expr, Program, Project, Step, compile_steps, expand, parse_expression
from arrowflow.kernels.context import Context
from arrowflow.kernels.items import Item
from arrowflow.kernels.operator import KernelSpec
from arrowflow.ops.columns.column_program import ColumnOperator, check_columns
from arrowflow.ops.columns.column_program import Columns as ColumnSteps
from arrowflow.ops.order.global_shuffle import (
    LaneOrder,
    OfAllRows,
    Order,
    RowCollectKernel,
    WholeOrder,
    gather_spec,
    split_source,
)
from arrowflow.ops.order.random_access import AllRows, InPlaceRows
from arrowflow.ops.order.source_order import bound_seed
from arrowflow.ops.order.spans import Places
from arrowflow.options import ResolvedOptions, check_flag, check_seed, check_size
from arrowflow.plan.node import BindContext, Columns, Count, Node
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Traits
from arrowflow.plan.walk import fold
from arrowflow.plan.widths import row_width
from arrowflow.random import WEIGHTED_DRAWS, Key, exponentials, uniforms

Floats = npt.NDArray[np.float64]

AGAIN_BYTES: Final = 16
"""Most bytes of a row while rows are drawn with replacement: its weight, and a running sum."""
ONCE_BYTES: Final = 64
"""Most bytes of a row while rows are drawn without replacement: weight, key, number, and what sorting them takes."""
BLOCK_ROWS: Final = 1 << 16
"""Rows whose weights or keys are computed at a time."""
WEIGHT: Final = "weight"
_UNFIT: Final = ("sample: it draws from all rows", "put `.cache()` right before it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(OfAllRows):
    """Rows of its input, `count` of them, each drawn with a chance in proportion to its weight.

    Row order: the order of the draws, a pure function of (seed, epoch, weights). Memory: 8 bytes for each row of the
    input, more while rows are drawn (`row_bytes`), and a few parts of the output. Deterministic. Resume: (rows delivered,).

    Attributes:
        count: Rows to draw.
        weights: The weight of a row.
        replacement: Whether a row may be drawn again.
        weighing: Bound: the steps from the rows of the source to their weights.
    """

    name: ClassVar[str] = "sample"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True, collects=True, new_memory=True)

    count: int
    weights: Expr
    replacement: bool
    weighing: tuple[Step, ...] = dataclasses.field(default=(), compare=False)

    @classmethod
    def of(
        cls,
        below: Node,
        n: int,
        *,
        weights: Any,
        replacement: bool,
        seed: int | None,
        reshuffle_each_iteration: bool,
    ) -> Self:
        return cls(
            inputs=(below,),
            count=check_size(cls.name, "n", n, least=0),
            weights=parse_expression(weights, operator=cls.name, allow_name=True),
            replacement=check_flag(cls.name, "replacement", replacement),
            seed=check_seed(cls.name, seed),
            reshuffle_each_iteration=check_flag(
                cls.name, "reshuffle_each_iteration", reshuffle_each_iteration
            ),
        )

    @property
    def title(self) -> str:
        return f"{self.name}({self.count:,})"

    @property
    def row_bytes(self) -> int:
        """Most bytes for each row of the input while rows are drawn."""
        return AGAIN_BYTES if self.replacement else ONCE_BYTES

    def arguments(self) -> Mapping[str, Any]:
        return {
            "count": self.count,
            "weights": self.weights.digest(),
            "replacement": self.replacement,
            "seed": self.seed,
            "reshuffle_each_iteration": self.reshuffle_each_iteration,
        }

    def describe(self) -> str:
        return f"{self.name}({self.count}, weights={self.weights!r}, replacement={self.replacement})"

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Fixes seed and weights, and changes places with the operators that can work on gathered rows.

        Raises:
            PlanError: The source has no random access, or the weights are no column of numbers.
        """
        rows, above = split_source(inputs[0], _UNFIT)
        # The other operators between source and sample change no row.
        listed = [step for node in above if isinstance(node, ColumnOperator) for step in node.bound_steps()]
        steps = ColumnSteps(listed=(*listed, self._weigh(inputs[0].schema)), operators=())
        weighing = steps.on(rows).narrow(frozenset([WEIGHT]))
        assert isinstance(weighing, ColumnSteps)
        width = row_width(rows.schema)
        seed = bound_seed(self.seed, context)
        plan: Node = dataclasses.replace(self, seed=seed, width=width, weighing=weighing.listed).on(rows)
        return reduce(lambda below, node: node.on(below), above, plan)

    def _weigh(self, schema: pa.Schema | None) -> Step:
        """Returns the step from the input's columns to the weights, after a check of names and type."""
        if schema is None:  # of a cache after a function
            raise PlanError(
                "weights need to know the columns, which only a run tells here; pass schema= to the function before, or write "
                "the rows as files and sample these"
            )
        check_columns(self.weights.columns, schema)
        singles = expand(self.weights, schema)
        if len(singles) != 1:
            raise PlanError(f"weights {self.weights!r} make {len(singles)} columns, expected one")
        weigh = Project(((WEIGHT, singles[0]),))
        type = compile_steps((weigh,), schema).schema.field(WEIGHT).type
        if not (pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)):
            raise PlanError(f"weights {self.weights!r} are {type}, expected numbers")
        return weigh

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        return (None if wanted is None else wanted | self._read_for_weights(),)

    def _read_for_weights(self) -> frozenset[str]:
        (names,) = ColumnSteps(listed=self.weighing, operators=()).on(*self.inputs).columns_needed(None)
        return names or frozenset()

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        return self.count

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        known = fold(self.inputs[0], lambda node, counts: node.count_rows(counts))
        floor_bytes = self.row_bytes * known if isinstance(known, int) else 0
        return (
            KernelSpec(
                "serial",
                lambda context: DrawKernel(self, options.ram_budget, context),
                position=Shape(tuple[int]),
                pins_order=True,
                splits=True,
                engine="numpy",
                floor_bytes=floor_bytes,
                facts=f"read weights, and draw {self.count:,} rows where they lie",
            ),
            gather_spec("gather the rows that were drawn"),
        )

    def weigher(self) -> Callable[[pa.RecordBatch], pa.Array]:
        """Returns the function that computes the weights of rows."""
        schema = self.inputs[0].schema
        assert schema is not None
        # Weights that are a constant read no column, but their number is that of the rows.
        needed = self._read_for_weights() or frozenset(schema.names[:1])
        names = [name for name in schema.names if name in needed]
        program: Program = compile_steps(self.weighing, pa.schema([schema.field(name) for name in names]))
        # Not a safe cast: large whole numbers may be rounded.
        return lambda rows: program.run(rows.select(names)).column(0).cast(pa.float64(), safe=False)


class DrawKernel(RowCollectKernel):
    """Collects the source's descriptors, reads all weights, and draws."""

    def __init__(self, node: Sample, budget_bytes: int, context: Context) -> None:
        assert node.seed is not None
        super().__init__(node.width, self._order, budget_bytes)
        self._node = node
        self._context = context
        self._key = (node.seed, WEIGHTED_DRAWS, context.epoch if node.reshuffle_each_iteration else 0)

    def finish(self) -> Iterator[Item]:
        if self._node.count and not self._parts:
            raise DataError(f"its input has no rows, expected some to draw {self._node.count:,} from")
        return super().finish() if self._node.count else iter(())

    def _order(self, rows: AllRows) -> Order:
        """Returns the draws. Lanes of one run share them: each has its places of the same draws."""
        node, context = self._node, self._context
        if node.lane is None:
            return self._draw(rows)
        drawn = (DrawKernel, id(node.inputs[0]), self._key)
        order = context.run_storage.get(drawn)
        if order is None:
            order = context.run_storage[drawn] = self._draw(rows)
        return LaneOrder(order, node.lane, context.epoch)

    def _draw(self, rows: AllRows) -> WholeOrder:
        num_bytes = rows.num_rows * self._node.row_bytes
        if num_bytes > self._budget_bytes:
            raise BudgetError(
                f"drawing from {rows.num_rows:,} rows takes {num_bytes:,} bytes, and ram_budget allows "
                f"{self._budget_bytes:,}; raise ram_budget, or draw from fewer rows"
            )
        weights = self._weights(rows.num_rows)
        some = int(np.count_nonzero(weights))
        count = self._node.count
        if not some:
            raise DataError(f"weights {self._node.weights!r} are zero in all {rows.num_rows:,} rows")
        if self._node.replacement:
            return Again(weights, count, self._key)
        if count > some:
            raise DataError(
                f"{some:,} rows have weights {self._node.weights!r} above zero, expected at least {count:,} to draw that "
                "many without replacement; draw fewer, or use replacement=True"
            )
        return Once(weights, count, self._key)

    def _weights(self, num_rows: int) -> Floats:
        """Returns the weights of all rows, which are numbers, finite, and not negative."""
        weigh = self._node.weigher()
        weights, at = np.empty(num_rows), 0
        for part in self._parts:
            for start in range(0, part.num_rows, BLOCK_ROWS):
                rows = part.slice(start, BLOCK_ROWS)
                if not isinstance(rows, InPlaceRows):
                    rows = InPlaceRows(rows.gather(np.arange(rows.num_rows)))
                found = weigh(rows.chunk)
                if found.null_count:
                    self._refuse(at + found.is_null().index(True).as_py(), None)
                weights[at : at + len(found)] = block = found.to_numpy()
                bad = ~(np.isfinite(block) & (block >= 0))
                if bad.any():
                    first = int(bad.argmax())
                    self._refuse(at + first, float(block[first]))
                at += len(found)
        return weights

    def _refuse(self, row: int, value: float | None) -> None:
        found = "null" if value is None else str(value)
        raise DataError(
            f"weights {self._node.weights!r} are {found} in row {row:,}, expected a finite number of at least 0; use "
            "`fill_null`, or compute other weights by `with_columns`"
        )


class Again(WholeOrder):
    """Draws with replacement: the row at each place."""

    def __init__(self, weights: Floats, num_rows: int, key: Key) -> None:
        self.num_rows = num_rows
        self._key = key
        self._ends = weights
        with np.errstate(over="ignore"):
            total = np.cumsum(weights)[-1]
        if not np.isfinite(total):
            weights /= weights.max()
        np.cumsum(weights, out=self._ends)
        # Rounding might give the sum itself, which lies behind the last row.
        self._last = np.searchsorted(self._ends, self._ends[-1])

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        return (pa.py_buffer(self._ends),)

    def part(self, start: int, stop: int) -> Places:
        return self._rows(uniforms(self._key, start, stop))

    def at(self, places: Places) -> Places:
        if not len(places):
            return places
        first, last = int(places.min()), int(places.max())
        return self._rows(uniforms(self._key, first, last + 1)[places - first])

    def _rows(self, draws: Floats) -> Places:
        return np.minimum(np.searchsorted(self._ends, draws * self._ends[-1], side="right"), self._last)


class Once(WholeOrder):
    """Draws without replacement: the row at each place."""

    def __init__(self, weights: Floats, num_rows: int, key: Key) -> None:
        self.num_rows = num_rows
        rows = np.flatnonzero(weights)  # the key of a tiny weight may overflow, and still beats no weight
        keys = weights[rows]
        with np.errstate(over="ignore"):
            for start in range(0, len(keys), BLOCK_ROWS):
                block = keys[start : start + BLOCK_ROWS]
                np.divide(exponentials(key, start, start + len(block)), block, out=block)
        # By value, since the order in which `argpartition` leaves equal keys is nobody's promise.
        limit = np.partition(keys, num_rows - 1)[num_rows - 1]
        below = np.flatnonzero(keys <= limit)
        self._numbers: Places = rows[below[np.argsort(keys[below], kind="stable")][:num_rows]]

    @property
    def buffers(self) -> tuple[pa.Buffer, ...]:
        return (pa.py_buffer(self._numbers),)

    def part(self, start: int, stop: int) -> Places:
        return self._numbers[start:stop]

    def at(self, places: Places) -> Places:
        return self._numbers[places]

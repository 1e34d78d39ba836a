"""`choose_from_datasets`: rows of several datasets, in the order that a column of numbers gives.

The numbers are one more input, read block by block, and of a block as far as the next part needs them: they may come
slowly. A number that names no dataset is an error; the error comes after
the rows that the numbers before it choose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from arrowflow.errors import DataError, PlanError
from arrowflow.kernels.context import Context, StreamHandle
from arrowflow.kernels.held import Held
from arrowflow.kernels.items import Item
from arrowflow.kernels.operator import KernelSpec
from arrowflow.lazy import compute as pc
from arrowflow.ops.combine.mix_operator import BLOCK_ROWS, Choices, MixOperator
from arrowflow.ops.combine.mixing import Draws, MixKernel
from arrowflow.ops.rows.repeat import Repeat
from arrowflow.options import ResolvedOptions
from arrowflow.plan.node import BindContext, Count, Node
from arrowflow.plan.position import Mark, Position
from arrowflow.plan.traits import Borders, Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseFromDatasets(MixOperator):
    """Rows of all its inputs but the last; the numbers of the last input tell from which input each row comes.

    Row order: by the numbers; the rows of one input stay in their order. Memory: one chunk of each input, and the part
    that is gathered, some 16 MiB or 16,384 rows at a time. Deterministic. Resume: (per input, position before its
    oldest held row and rows used from there; the same of the numbers, before the block; number of the block; rows of
    the block that are done; rows of the next part; inputs that have run out).

    Attributes:
        stop_on_empty_dataset: Whether the first row that an input lacks ends the output; otherwise the others go on.
    """

    name: ClassVar[str] = "choose_from_datasets"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True, new_memory=True)

    stop_on_empty_dataset: bool = True

    @property
    def num_sources(self) -> int:
        """All inputs but the numbers."""
        return len(self.inputs) - 1

    def arguments(self) -> Mapping[str, Any]:
        return {"datasets": self.num_sources, "stop_on_empty_dataset": self.stop_on_empty_dataset}

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        """Reads repeated numbers together: it sees no borders between them."""
        *sources, numbers = inputs
        if isinstance(numbers, Repeat):
            numbers = dataclasses.replace(numbers, joins=True)
        return MixOperator.bind(self, (*sources, numbers), context)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        check_numbers(inputs[-1])
        return MixOperator.output_schema(self, inputs)

    def count_rows(self, inputs: Sequence[Count]) -> Count:
        """Returns the numbers, if each input has as many rows, so that none runs out; otherwise only a run tells."""
        *sources, numbers = inputs
        if numbers == 0 or not any(rows != 0 for rows in sources):
            return 0
        lasting = numbers is not None and all(rows is not None and rows >= numbers for rows in sources)
        return numbers if lasting else None

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return self.mix_specs(lambda context: ChooseKernel(self, context), Mark, lambda mark: None)


def check_numbers(schema: pa.Schema) -> None:
    """Raises `PlanError` unless there is one column of whole numbers."""
    if len(schema) != 1 or not pa.types.is_integer(schema.field(0).type):
        found = ", ".join(f"{field.name!r} of {field.type}" for field in schema)
        raise PlanError(
            f"choose_from_datasets: choice_dataset has one column, of whole numbers; got {found or 'none'}; "
            "`select` the one that chooses"
        )


class ChooseKernel(MixKernel):
    """Reads the inputs of a block from one more stream."""

    def __init__(self, node: ChooseFromDatasets, context: Context) -> None:
        super().__init__(node, context, stop=node.stop_on_empty_dataset)
        self._numbers = Held()
        self._numbers_stream: StreamHandle | None = None
        self._numbers_ended = self._numbers_failed = False
        self._block_start = Mark(None, 0)
        self._drawn: Draws = np.zeros(0, np.uint16)  # of the current block, as far as its numbers were read

    def _cursor(self) -> Position:
        return self._block_start

    def _restore_cursor(self, cursor: Position) -> None:
        assert cursor is not None
        self._block_start = Mark._make(cursor)
        self._numbers = Held(*self._block_start)

    def _next_block(self) -> None:
        self._block_start = self._numbers.mark()
        self._drawn = self._drawn[:0]

    def _has_more(self) -> bool:
        return len(self._drawn) < BLOCK_ROWS and (not self._numbers_ended or self._numbers.rows > 0)

    def next_input(self) -> StreamHandle | None:
        """Returns the stream of numbers where the next block begins; otherwise the stream as for every mix."""
        if self.done or self._broken is not None:
            return self._broken
        if self._numbers_stream is None:
            self._numbers_stream = self._context.open(
                self._num_sources, self._epoch, self._block_start.before
            )
        stream = super().next_input()
        return self._numbers_stream if self._draws is None else stream

    def push_from(self, stream: StreamHandle, item: Item) -> Iterator[Item]:
        if stream is not self._numbers_stream:
            return super().push_from(stream, item)
        if item.chunk.num_rows:
            check_numbers(item.chunk.schema)
        self._numbers.add(item)
        return self._parts()

    def ended(self, stream: StreamHandle) -> Iterator[Item]:
        """Takes the numbers that have come for the last block, or cuts the part where a row is lacking."""
        if stream is not self._numbers_stream:
            return super().ended(stream)
        self._numbers_ended = True
        return self._parts()

    def failed(self, stream: StreamHandle) -> Iterator[Item]:
        """Cuts the part where a row is lacking, or takes the numbers that have come; the error comes after them."""
        if stream is not self._numbers_stream:
            return super().failed(stream)
        self._numbers_failed = True
        return self.ended(stream)

    def _end(self) -> None:
        if self._numbers_failed and self._failure is None:
            self._broken = self._numbers_stream
        else:
            super()._end()

    def _draw(self) -> Draws | None:
        read = len(self._drawn)
        if read + self._numbers.rows < min(BLOCK_ROWS, self._row + self._most) and not self._numbers_ended:
            return None
        chunks, _ = self._numbers.pop(min(BLOCK_ROWS - read, self._numbers.rows))
        numbers = [self._valid(chunk.column(0)) for chunk in chunks]
        self._drawn = found = np.concatenate([self._drawn, *numbers])
        wrong = np.flatnonzero(found[read:] >= self._num_sources)
        if not len(wrong):
            return found
        first = read + int(wrong[0])
        row = self._block * BLOCK_ROWS + first
        value = pa.chunked_array([chunk.column(0) for chunk in chunks])[first - read].as_py()
        self._failure = DataError(
            f"choose_from_datasets: row {row:,} of choice_dataset is {value}, expected the number of a dataset, 0 to "
            f"{self._num_sources - 1}"
        )
        return found[:first]

    def _valid(self, column: pa.Array) -> Choices:
        """Returns numbers as choices; a wrong number, such as the first null, becomes the choice of no dataset."""
        type = np.dtype(str(column.type))
        # A view of the memory, where a null holds any value.
        values = np.frombuffer(column.buffers()[1], type, len(column), column.offset * type.itemsize)
        wrong = (values < 0) | (values >= self._num_sources)
        choices = np.where(wrong, self._num_sources, values).astype(np.uint16)
        if column.null_count:
            choices[pc.index(column.is_null(), True).as_py()] = self._num_sources
        return choices

    def _choose(self, draws: Draws) -> Choices:
        named = np.arange(self._num_sources, dtype=np.uint16)
        named[list(self._dropped)] = self._num_sources
        return named[draws]

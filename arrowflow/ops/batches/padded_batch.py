"""`padded_batch`: batches whose lists all have one length, so that loaders hand them out as `(B, L)`.

Two operators do the work: `batch` cuts and joins, and the operator of this module pads each batch, in parallel calls.
So the same padding serves every operator that makes batches.

**The type of a padded column.** A given length makes a `fixed_size_list`. The longest length of a batch differs from
batch to batch, but the type of a column may not. So that column stays `list`, and all rows have one length only within
a batch. Loaders hand out such a column as `(B, L)`, without a copy.

A padded column that is read row by row does not tell how many values a row had. `lengths` adds a column that does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from arrowflow.errors import PlanError, shown
from arrowflow.kernels.gather import OfSchema
from arrowflow.kernels.items import Origin
from arrowflow.kernels.kinds import StatelessKernel
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.batches.batch import Batch
from arrowflow.ops.batches.padding import (
    ColumnPadding,
    column_padding,
    is_list,
    list_levels,
    padding_value,
    plain,
)
from arrowflow.ops.columns.column_program import check_columns
from arrowflow.ops.columns.fill_null import holds
from arrowflow.options import MAX_LIST_SIZE, ResolvedOptions, check_flag, check_size, parallel_calls
from arrowflow.plan.node import Columns, Node
from arrowflow.plan.traits import Traits
from arrowflow.types import is_untyped

Sizes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch(Operator):
    """Its input's batches with every list column padded to one length.

    Row order: as its input. Memory: one padded batch a call. Deterministic. Resume: as its input.

    Attributes:
        padding_values: Value by column.
        padding_value: The value for all columns that can hold it and are not named, or None.
        padded_shapes: Lengths by column, one per level of nesting; None for the longest.
        multiple_of: The longest length is rounded up to a multiple of this number.
        steps: A column and a list of lengths; its longest list is rounded up to the next of them. Or None.
        truncate: Whether lists longer than a given length are cut off.
        lengths: Names of columns to add, by the column whose lengths they hold.
        num_parallel_calls: Calls at the same time, or None for the CPU budget.
        narrowed: Whether a rule may have removed the columns that `padding_value` is for.
        operator: Name of the method that the node belongs to, for errors and statistics.
    """

    name: ClassVar[str] = "padded_batch"
    traits: ClassVar[Traits] = Traits(counts_alone=True, local=True, keeps_number=True)

    padding_values: tuple[tuple[str, Any], ...] = ()
    padding_value: Any = None
    padded_shapes: tuple[tuple[str, Sizes], ...] = ()
    multiple_of: int = 1
    steps: tuple[str, tuple[int, ...]] | None = None
    truncate: bool = False
    lengths: tuple[tuple[str, str], ...] = ()
    num_parallel_calls: int | None = None
    narrowed: bool = False
    operator: str = "padded_batch"

    def arguments(self) -> Mapping[str, Any]:
        return {
            "padded_shapes": [[name, list(sizes)] for name, sizes in self.padded_shapes] or None,
            "padding_values": [[name, repr(value)] for name, value in self.padding_values] or None,
            "padding_value": None if self.padding_value is None else repr(self.padding_value),
            "multiple_of": None if self.multiple_of == 1 else self.multiple_of,
            "steps": None if self.steps is None else [self.steps[0], list(self.steps[1])],
            "truncate": self.truncate or None,
            "lengths": [list(pair) for pair in self.lengths] or None,
        }

    @property
    def batched_by(self) -> Node | None:
        """Itself if its own method made the batches."""
        return self if self.operator == self.name else self.inputs[0].batched_by

    @property
    def _named(self) -> list[str]:
        """The columns that its arguments name."""
        padded = [name for name, _ in (*self.padded_shapes, *self.padding_values)]
        return [*padded, *(column for column, _ in self.lengths), *(self.steps or ())[:1]]

    def columns(self, schema: pa.Schema) -> tuple[ColumnPadding, ...]:
        """Returns how each list column of its input is padded.

        Raises:
            PlanError: A named column holds no lists, or a value does not fit its column.
        """
        shapes, values = dict(self.padded_shapes), dict(self.padding_values)
        check_columns(self._named, schema)
        if is_untyped(schema):
            return ()
        for name in self._named:
            if not is_list(schema.field(name).type):
                raise PlanError(f"column {name!r} has type {schema.field(name).type}, only lists are padded")
        lists = [field for field in schema if is_list(field.type)]
        if self.padding_value is not None and not self.narrowed and not any(map(self._pads, lists)):
            raise PlanError(
                f"no column can be padded with {shown(self.padding_value)} ({type(self.padding_value).__name__}); columns "
                "of lists are " + (", ".join(f"{field.name}: {field.type}" for field in lists) or "none")
            )
        steps = {} if self.steps is None else dict([self.steps])
        return tuple(
            column_padding(
                field.name,
                field.type,
                shapes.get(field.name, ()),
                values.get(field.name, self.padding_value if self._pads(field) else None),
                multiple_of=self.multiple_of,
                steps=steps.get(field.name, ()),
                truncate=self.truncate,
            )
            for field in lists
        )

    def _pads(self, field: pa.Field) -> bool:
        """Whether `padding_value` is used for this column."""
        type = list_levels(field.type)[1]
        if not holds(type, self.padding_value):
            return False
        try:
            padding_value(field.name, type, self.padding_value)
        except PlanError:
            return False
        return True

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        try:
            types = {column.name: column.types[0] for column in self.columns(inputs[0])}
            fields = [field.with_type(types.get(field.name, field.type)) for field in inputs[0]]
            taken = {field.name for field in fields}
            for _, name in self.lengths:
                if name in taken:
                    raise PlanError(
                        f"lengths: there is a column {name!r} already; give the lengths another name"
                    )
                taken.add(name)
                fields.append(pa.field(name, pa.int64()))
        except PlanError as error:
            error.locate(operator=self.operator)
            raise
        return pa.schema(fields)

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        if wanted is None:
            return (None,)
        added = {name: column for column, name in self.lengths}
        return (frozenset(added.get(name, name) for name in wanted),)

    def narrow(self, wanted: frozenset[str]) -> Node:
        (needed,) = self.columns_needed(wanted)
        assert needed is not None
        return dataclasses.replace(
            self,
            padding_values=tuple(pair for pair in self.padding_values if pair[0] in needed),
            padded_shapes=tuple(pair for pair in self.padded_shapes if pair[0] in needed),
            steps=None if self.steps is None or self.steps[0] not in needed else self.steps,
            lengths=tuple(pair for pair in self.lengths if pair[1] in wanted),
            narrowed=True,
        ).on(*self.inputs)

    def lower(self, options: ResolvedOptions) -> KernelSpec:
        return KernelSpec(
            "stateless",
            lambda context: PadKernel(self),
            engine="numpy+arrow",
            max_calls=self.num_parallel_calls,
            facts="pad lists to one length",
            operator=self.operator,
        )


class PadKernel(StatelessKernel):
    """Pads the list columns of a batch."""

    def __init__(self, node: PaddedBatch) -> None:
        self._lengths = node.lengths
        self._known = OfSchema(lambda schema: (node.output_schema([schema]), node.columns(schema)))

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        schema, paddings = self._known(chunk.schema)
        columns = dict(zip(chunk.schema.names, chunk.columns, strict=True))
        lengths: dict[str, np.ndarray[Any, np.dtype[np.int64]]] = {}
        for padding in paddings:
            columns[padding.name], lengths[padding.name] = padding.pad(columns[padding.name])
        for column, name in self._lengths:
            buffers = [None, pa.py_buffer(lengths[column])]
            columns[name] = pa.Array.from_buffers(pa.int64(), chunk.num_rows, buffers)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def padded_batch(
    below: Node, batch_size: int, *, drop_remainder: bool, num_parallel_calls: int, **padding: Any
) -> PaddedBatch:
    """Returns the node on batches of its own, with arguments as users write them; `padded` takes the rest."""
    calls, operator = num_parallel_calls, PaddedBatch.name
    batches = Batch.of(
        below, batch_size, drop_remainder=drop_remainder, num_parallel_calls=calls, operator=operator
    )
    return padded(batches, operator=operator, num_parallel_calls=calls, **padding)


def padded(
    batches: Node,
    *,
    operator: str,
    padded_shapes: Mapping[str, int | Sequence[int | None] | None] | None,
    padding_values: Any,
    multiple_of: int | None,
    truncate: bool,
    lengths: Mapping[str, str] | None,
    num_parallel_calls: int,
    steps: tuple[str, tuple[int, ...]] | None = None,
) -> PaddedBatch:
    """Returns the node that pads what `batches` yields, with arguments as users write them.

    Raises:
            PlanError: An argument is not valid, or two arguments contradict each other.
    """
    by_column = isinstance(padding_values, Mapping)
    values = _pairs(operator, "padding_values", padding_values) if by_column else ()
    names = _pairs(operator, "lengths", {} if lengths is None else lengths)
    if not all(isinstance(name, str) for _, name in names):
        raise PlanError(f"{operator}: lengths maps columns to names of new columns, got {shown(lengths)}")
    shapes = _pairs(operator, "padded_shapes", {} if padded_shapes is None else padded_shapes)
    lengths_given = tuple((name, _sizes(operator, shape)) for name, shape in shapes)
    multiple = 1 if multiple_of is None else check_size(operator, "multiple_of", multiple_of)
    if steps is not None:
        _check_steps(operator, *steps, dict(lengths_given).get(steps[0], ()), multiple)
    return PaddedBatch(
        inputs=(batches,),
        padding_values=tuple((name, plain(value)) for name, value in values),
        padding_value=None if by_column else plain(padding_values),
        padded_shapes=lengths_given,
        multiple_of=multiple,
        steps=steps,
        truncate=check_flag(operator, "truncate", truncate),
        lengths=names,
        num_parallel_calls=parallel_calls(operator, num_parallel_calls),
        operator=operator,
    )


def _check_steps(operator: str, column: str, steps: tuple[int, ...], sizes: Sizes, multiple_of: int) -> None:
    """Raises `PlanError` where a column's lists are to get the lengths of `steps` and other lengths, too."""
    if not steps:
        raise PlanError(
            f"{operator}: pad_to_bucket_boundary pads to one less than the next of bucket_boundaries, and there is none"
        )
    if sizes and sizes[0] is not None:
        raise PlanError(
            f"{operator}: {column!r} is padded to {sizes[0]:,} by padded_shapes and to other lengths by "
            "pad_to_bucket_boundary; leave one of them out"
        )
    uneven = [step for step in steps if step % multiple_of]
    if uneven:
        raise PlanError(
            f"{operator}: pad_to_bucket_boundary pads {column!r} to {uneven[0]:,} values, which is no multiple of "
            f"multiple_of={multiple_of:,}; take boundaries that are one more than a multiple, or leave one out"
        )


def _pairs(operator: str, argument: str, given: Any) -> tuple[tuple[str, Any], ...]:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise PlanError(f"{operator}: {argument} is a mapping from names of columns, got {shown(given)}")
    return tuple(given.items())


def _sizes(operator: str, shape: Any) -> Sizes:
    listed = list(shape) if isinstance(shape, list | tuple) else [shape]
    # -1 is how tf.data spells None in a TensorShape.
    return tuple(
        None
        if size is None or size == -1
        else check_size(operator, "padded_shapes", size, most=MAX_LIST_SIZE)
        for size in listed
    )

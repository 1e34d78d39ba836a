"""`pack_sequences`: documents into rows of exactly as many tokens as a model takes.

Each window of `window_rows` documents is packed alone, or cut alone, and makes one batch. So the rows are a pure
function of the input's rows, the state is a cursor, and several windows are packed at the same time.

Lengths decide where documents go, and several columns with the same lengths go the same way: decided once, copied each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.bad_rows import BY_OPTIONS, BadRowPolicy
from arrowflow.errors import DataError, PlanError, shown
from arrowflow.kernels.cutting import CuttingKernel, Parts, cut_shape
from arrowflow.kernels.gather import GatherKernel, gathered
from arrowflow.kernels.held import join
from arrowflow.kernels.items import Origin, Outcome
from arrowflow.kernels.operator import KernelSpec, Operator
from arrowflow.ops.batches.packing import Integers, Layout, cut, document_lengths, fitted
from arrowflow.ops.batches.padding import is_list, padding_value, plain
from arrowflow.ops.batches.split_documents import DocumentRows, SplitKernel, SplitPosition
from arrowflow.ops.columns.column_program import check_columns, column_names
from arrowflow.ops.functions.bad_results import by_row, results_specs
from arrowflow.options import MAX_LIST_SIZE, ResolvedOptions, check_choice, check_size
from arrowflow.plan.lane import InLanes, Obstacle, small_windows
from arrowflow.plan.node import BindContext, Columns, Count, Node
from arrowflow.plan.shape import Shape, at_most
from arrowflow.plan.traits import Borders, Traits
from arrowflow.plan.widths import row_bytes
from arrowflow.types import is_number, is_untyped, untyped

Strategy = Literal["first_fit", "best_fit", "concat_then_split"]
"""Grain and MaxText give the strategies these names."""

Overlong = Literal["cut", "drop", "raise"]

Numbers = float | Mapping[str, float]
"""A number for all columns, or one for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSequences(Operator, InLanes):
    """Rows of exactly `length` tokens that hold several documents each, with segment ids and positions.

    Row order: by the first document of a row; windows in order, one batch each. Memory: the documents of two windows,
    and the rows of the windows that are being packed. Deterministic. Resume: (position before the window, rows of the
    window to drop, window number). With `concat_then_split`: (position before the document that is being cut, rows,
    its tokens in earlier rows, documents of earlier windows from there on, window number).

    Attributes:
        columns: The columns that are packed, lists of numbers; those of one row have equal lengths.
        length: Tokens of a row.
        strategy: Whether documents stay whole where they can, or fill all rows.
        window_rows: Documents that are packed together.
        pad_values: The value that fills a row after its last document, for each column.
        bos: The value that comes before each document, for each column; None for no such value.
        overlong: The treatment of documents over `length` tokens.
        segment_ids: Name of the column of segment ids, or None for no such column.
        positions: Name of the column of positions, or None for no such column.
        policy: Bound: the treatment of documents whose columns differ in length, or that are too long.
    """

    name: ClassVar[str] = "pack_sequences"
    traits: ClassVar[Traits] = Traits(
        borders=Borders.CUT, local=True, row_sizes=("window_rows",), new_memory=True
    )

    columns: tuple[str, ...]
    length: int
    strategy: Strategy = "first_fit"
    window_rows: int = 4096
    pad_values: tuple[float, ...] = (0,)
    bos: tuple[float, ...] | None = None
    overlong: Overlong = "cut"
    segment_ids: str | None = "segment_ids"
    positions: str | None = "positions"
    policy: BadRowPolicy = BY_OPTIONS

    @classmethod
    def of(
        cls,
        below: Node,
        columns: str | Sequence[str],
        length: int,
        *,
        strategy: Strategy,
        window_rows: int,
        pad_value: Numbers,
        bos: Numbers | None,
        overlong: Overlong,
        segment_ids: str | None,
        positions: str | None,
    ) -> Self:
        check_choice(cls.name, "strategy", strategy, get_args(Strategy))
        check_choice(cls.name, "overlong", overlong, get_args(Overlong))
        if strategy == "concat_then_split" and overlong != "cut":
            raise PlanError(
                f"pack_sequences: strategy='concat_then_split' cuts documents of any length, so overlong={overlong!r} has "
                "no meaning; leave it out, or choose 'first_fit' or 'best_fit'"
            )
        packed = column_names(cls.name, (columns,))
        made = [name for name in (segment_ids, positions) if name is not None]
        names = column_names(cls.name, (packed, *made))
        if len(set(names)) < len(names):
            raise PlanError(
                "pack_sequences: columns, segment_ids and positions have different names, got "
                + ", ".join(names)
            )
        return cls(
            inputs=(below,),
            columns=packed,
            length=check_size(cls.name, "length", length, most=MAX_LIST_SIZE),
            strategy=strategy,
            window_rows=check_size(cls.name, "window_rows", window_rows),
            pad_values=_by_column("pad_value", pad_value, packed, 0),
            bos=None if bos is None else _by_column("bos", bos, packed, None),
            overlong=overlong,
            segment_ids=segment_ids,
            positions=positions,
        )

    @property
    def added(self) -> list[str]:
        """The columns that are added."""
        return [name for name in (self.segment_ids, self.positions) if name is not None]

    def arguments(self) -> Mapping[str, Any]:
        """Returns all arguments, numbers as text: NaN is not equal to itself, and JSON has no NaN."""
        one = len(self.columns) == 1
        pads = [repr(value) for value in self.pad_values]
        return {
            "column": self.columns[0] if one else list(self.columns),
            "length": self.length,
            "strategy": self.strategy,
            "window_rows": self.window_rows,
            "pad_value": pads[0] if one else pads,
            "segment_ids": self.segment_ids,
            "positions": self.positions,
            **({} if self.bos is None else {"bos": [repr(value) for value in self.bos]}),
            **({} if self.overlong == "cut" else {"overlong": self.overlong}),
            **self.policy.arguments(),
        }

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        finds_bad = len(self.columns) > 1 or self.overlong == "raise"
        policy = self.policy.within(context.options) if finds_bad else self.policy
        return dataclasses.replace(self, policy=policy).on(*inputs)

    def obstacle(self, lanes: int, times: Count) -> Obstacle | None:
        """A lane packs its part of a window, which has to be large enough to fill rows well."""
        cuts = self.strategy == "concat_then_split"
        small = None if cuts else small_windows(self.name, self.window_rows, lanes)
        return InLanes.obstacle(self, lanes, times) or small

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """Returns packed columns as lists of `length`, the others as lists of a value a segment, and the new columns."""
        (schema,) = inputs
        check_columns(self.columns, schema)
        for name in self.added:
            if name in schema.names:
                raise PlanError(
                    f"pack_sequences: there is a column {name!r} already; `rename` it, or name the new one otherwise "
                    "by segment_ids= or positions="
                )
        if is_untyped(schema):
            return untyped([*schema.names, *self.added])
        for number, name in enumerate(self.columns):
            type = schema.field(name).type
            if not is_list(type) or not is_number(type.value_type):
                raise PlanError(
                    f"pack_sequences: expected a column of lists of numbers, {name!r} is {type}; `cast` it, such as to "
                    "pa.list_(pa.uint8())"
                )
            for argument, values in ("pad_value", self.pad_values), ("bos", self.bos or ()):
                for value in values[number : number + 1]:
                    _check_fits(argument, value, name, type.value_type)
        packed = {name: pa.list_(schema.field(name).type.value_type, self.length) for name in self.columns}
        kept = [(field.name, packed.get(field.name) or pa.list_(field.type)) for field in schema]
        return pa.schema(kept + [(name, pa.list_(pa.int32(), self.length)) for name in self.added])

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        """Returns the wanted columns, and those that are packed, whose lengths are compared."""
        return (None if wanted is None else wanted | {*self.columns},)

    def rows_again(self, rows: int) -> int | None:
        """Returns the rows of the window at its position; where documents are cut, a row may reach over many of them."""
        return self.window_rows + 1 if rows <= 1 and self.strategy != "concat_then_split" else None

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        cuts = self.strategy == "concat_then_split"
        collect = KernelSpec(
            "serial",
            lambda context: (
                SplitKernel(self.window_rows, self.length, self.sizes_of)
                if cuts
                else CuttingKernel(self.window_rows)
            ),
            position=Shape(SplitPosition, self._wrong) if cuts else cut_shape(self.window_rows),
            splits=True,
            buffer_items=1,
            floor_bytes=row_bytes(self.inputs[0].schema) * self.window_rows,
            facts=f"collect windows of {self.window_rows:,} rows, no copy",
        )
        pack = KernelSpec(
            "stateless",
            lambda context: PackKernel(self),
            engine="numpy+arrow",
            floor_bytes=row_bytes(self.schema),
            facts=f"{self.strategy} into rows of {self.length:,}, one call a window",
        )
        return collect, pack, *results_specs(self.name, policy=self.policy, unit="document")

    def _wrong(self, at: SplitPosition) -> str | None:
        # Documents that are gone or left are no more than were counted with windows.
        return at_most("offset + left", at.offset + at.left, at.number * self.window_rows)

    def sizes_of(self, chunks: Sequence[pa.RecordBatch]) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Returns the tokens of each document in rows, and whether it is bad; of bad ones none are.

        Raises:
            PlanError: The schema was unknown before the first chunk, and these columns cannot be packed.
        """
        if self.schema is None:
            self.output_schema([chunks[0].schema])
        first, *others = [document_lengths([chunk.column(name) for chunk in chunks]) for name in self.columns]
        sizes = first + (first > 0) * (self.bos is not None)
        bad = np.zeros(len(first), np.bool_)
        for other in others:
            bad |= other != first
        gone = bad
        if self.overlong != "cut":
            gone = bad | (sizes > self.length)
            bad = gone if self.overlong == "raise" else bad
        sizes[gone] = 0
        return sizes, bad


def _by_column(argument: str, given: Any, columns: Sequence[str], default: float | None) -> tuple[float, ...]:
    """Returns a number for each column; raises `PlanError` where that is not what was given."""
    by_name = given if isinstance(given, Mapping) else dict.fromkeys(columns, given)
    unknown = [name for name in by_name if name not in columns]
    if unknown:
        raise PlanError(f"pack_sequences: {argument} names {unknown[0]!r}, which is not packed")
    values = tuple(plain(by_name.get(name, default)) for name in columns)
    for name, value in zip(columns, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PlanError(f"pack_sequences: {argument} is a number, got {shown(value)} for {name!r}")
    return values


def _check_fits(argument: str, value: float, column: str, type: pa.DataType) -> None:
    try:
        padding_value(column, type, value)
    except PlanError as error:
        raise PlanError(
            f"pack_sequences: {argument} is a value of {column!r} ({type}), got {shown(value)}"
        ) from error


class PackKernel(GatherKernel):
    """Packs a window: decides by lengths, then copies each document once."""

    def __init__(self, node: PackSequences) -> None:
        self._node = node

    def gather(self, chunk: Parts, origin: Origin) -> pa.RecordBatch | Outcome:
        """Returns the window's rows.

        Raises:
            DataError: A token is null, or a document is bad and bad rows end the run.
        """
        node, chunks = self._node, chunk.chunks
        sizes, bad = node.sizes_of(chunks)
        faults = self._faults(chunk, bad, origin)
        if isinstance(chunk, DocumentRows):
            pieces = cut(sizes, node.length, chunk.skip, chunk.packed_rows)
        else:
            pieces = fitted(sizes, node.length, best=node.strategy == "best_fit")
        layout = Layout(pieces, node.length)
        columns = {name: self._packed(name, chunks, layout) for name in node.columns}
        others = [name for name in chunks[0].schema.names if name not in columns]
        if others:
            values = gathered(join([each.select(others) for each in chunks]), pieces.owners)
            columns |= zip(others, map(layout.by_segment, values.columns), strict=True)
        columns = {name: columns[name] for name in chunks[0].schema.names}
        for name, make in (node.segment_ids, layout.segment_ids), (node.positions, layout.positions):
            if name is not None:
                columns[name] = pa.FixedSizeListArray.from_arrays(make(), node.length)
        made = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        return by_row(node.policy, join(chunks), made, faults, None) if faults else made

    def limit(self, chunk: Parts) -> tuple[str, str, str]:
        what = f"pack_sequences: the values of {chunk.num_rows:,} documents cannot be gathered"
        return what, "one window", "use a smaller window_rows"

    def _packed(self, name: str, chunks: Sequence[pa.RecordBatch], layout: Layout) -> pa.Array:
        node = self._node
        number = node.columns.index(name)
        bos = None if node.bos is None else node.bos[number]
        tokens = layout.tokens([each.column(name) for each in chunks], node.pad_values[number], bos)
        if tokens.null_count:
            raise DataError(
                f"pack_sequences: expected tokens, found {tokens.null_count:,} nulls within the documents of "
                f"{name!r}; leave them out of the lists, or put a token in their place"
            ).locate(operator=node.name)
        return pa.FixedSizeListArray.from_arrays(tokens, node.length)

    def _faults(self, chunk: Parts, bad: npt.NDArray[np.bool_], origin: Origin) -> dict[int, str]:
        """Returns what is wrong with bad documents that no window before had; raises where they end the run."""
        node, faults = self._node, {}
        seen = chunk.seen if isinstance(chunk, DocumentRows) else 0
        if not bad[seen:].any():
            return {}
        lengths = [document_lengths([each.column(name) for each in chunk.chunks]) for name in node.columns]
        for row in (seen + np.flatnonzero(bad[seen:])).tolist():
            sizes = [int(each[row]) for each in lengths]
            told = ", ".join(f"{size:,} in {name!r}" for name, size in zip(node.columns, sizes, strict=True))
            what = f"pack_sequences: document {row - seen:,} of window {origin.split:,} has {told}"
            if len(set(sizes)) > 1:
                faults[row] = f"{what}; expected lists of equal lengths, one value for each token"
            else:
                limit = f"{node.length:,}{' with its bos' if node.bos is not None else ''}"
                faults[row] = f"{what}; expected at most {limit}, or overlong='cut' or 'drop'"
            if not node.policy.leaves_out:
                raise DataError(faults[row]).locate(operator=node.name)
        return faults

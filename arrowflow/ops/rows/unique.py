"""`unique`: the first row of each key.

Keys are held as 128 bits of hash, whatever their types, in sorted arrays. Any worker hashes and sorts a chunk's keys;
the lookup goes in order. Arrays of similar size are merged, so that there are few arrays. Each key is moved some twenty
times while ten million keys are found.

The keys would be far too large for a state. So a resumed run reads the rows again from the start of the epoch, and
yields the rows from the position on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import BudgetError
from arrowflow.kernels.gather import GatherKernel, OfSchema, chosen
from arrowflow.kernels.items import Item, Noted, Origin
from arrowflow.kernels.kinds import SerialKernel, StatelessKernel
from arrowflow.kernels.operator import KernelSpec, RowOperator
from arrowflow.lookup.keys import Words, check_keys, hashes
from arrowflow.ops.columns.column_program import as_texts, bound_names, check_names, given_names
from arrowflow.options import ResolvedOptions, check_size
from arrowflow.plan.node import BindContext, Columns, Node
from arrowflow.plan.position import Position
from arrowflow.plan.shape import Shape
from arrowflow.plan.traits import Borders, Resume, Traits
from arrowflow.types import is_untyped

KEY_BYTES = 16
"""Bytes of a held key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique(RowOperator):
    """The rows of its input whose key has not come before in this epoch; null equals null, NaN NaN, and -0.0 0.0.

    Row order: as its input. Memory: 16 bytes for each of at most `max_rows` different keys, four times that while keys
    are merged; not charged to the ledger. Deterministic. Resume: (rows of the input,); the epoch is run again from its
    start.

    Attributes:
        columns: The columns that make the key; None for all columns.
        max_rows: Different keys that are held, at most.
    """

    name: ClassVar[str] = "unique"
    traits: ClassVar[Traits] = Traits(borders=Borders.FREE, needs_rows=True, resume=Resume.REPLAY)

    columns: tuple[str, ...] | None
    max_rows: int

    @classmethod
    def of(cls, below: Node, columns: Any, max_rows: int) -> Self:
        return cls(
            inputs=(below,),
            columns=given_names(cls.name, columns),
            max_rows=check_size(cls.name, "max_rows", max_rows),
        )

    def arguments(self) -> Mapping[str, Any]:
        """Returns the columns; the limit of held keys decides no row."""
        return {"columns": as_texts(self.columns)}

    def bind(self, inputs: tuple[Node, ...], context: BindContext) -> Node:
        return dataclasses.replace(self, columns=bound_names(self.columns, inputs[0].schema)).on(*inputs)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        schema = inputs[0]
        check_names(self.columns, schema)
        if is_untyped(schema):
            return schema
        check_keys(self.columns or schema.names, schema, "name others with columns=")
        return schema

    def columns_needed(self, wanted: Columns) -> tuple[Columns, ...]:
        return (None if wanted is None or self.columns is None else wanted | set(self.columns),)

    def lower(self, options: ResolvedOptions) -> tuple[KernelSpec, ...]:
        return (
            KernelSpec(
                "stateless",
                lambda context: KeyHashKernel(self),
                engine="polars+numpy",
                facts="hash and sort keys",
            ),
            KernelSpec(
                "serial",
                lambda context: UniqueKernel(self.max_rows),
                position=Shape(tuple[int]),
                pins_order=True,
                engine="numpy",
                facts=f"hold up to {self.max_rows:,} keys, {self.max_rows * KEY_BYTES:,} bytes",
            ),
            KernelSpec(
                "stateless", lambda context: ChosenKernel(), engine="arrow", facts="gather first rows"
            ),
        )


class Keys(NamedTuple):
    """Different keys: two halves of a hash, sorted by the first."""

    first: Words
    second: Words


@dataclass(slots=True)
class Keyed(Noted):
    """A chunk, its different keys as two halves of a hash, and of each of these keys the number of its first row."""

    first: Words
    second: Words
    rows: npt.NDArray[np.intp]


class Chosen(NamedTuple):
    """A chunk and the numbers of its chosen rows."""

    chunk: pa.RecordBatch
    rows: npt.NDArray[np.intp]

    @property
    def num_rows(self) -> int:
        """How many rows are chosen."""
        return len(self.rows)


class KeyHashKernel(StatelessKernel):
    """Hashes the keys of a chunk, and finds the different ones among these keys."""

    def __init__(self, node: Unique) -> None:
        self._node = node
        self._check = OfSchema(lambda schema: node.output_schema([schema]))

    def apply(self, chunk: pa.RecordBatch, origin: Origin) -> Keyed:
        """Returns the chunk with its different keys, after a check that they fit its schema."""
        self._check(chunk.schema)
        names = self._node.columns or chunk.schema.names
        keys, rows = different(*hashes(chunk.select(list(names))))
        return Keyed(chunk, *keys, rows)


def different(first: Words, second: Words) -> tuple[Keys, npt.NDArray[np.intp]]:
    """Returns the different keys of some rows, sorted, and the number of the first row of each."""
    order = np.argsort(first, kind="stable")
    keys = Keys(first[order], second[order])
    again = keys.first[1:] == keys.first[:-1]
    same = again & (keys.second[1:] == keys.second[:-1])
    if np.count_nonzero(again) != np.count_nonzero(same):
        # Two keys may share a first half, and their rows may take turns.
        order = np.lexsort((second, first))
        keys = Keys(first[order], second[order])
        same = (keys.first[1:] == keys.first[:-1]) & (keys.second[1:] == keys.second[:-1])
    new = np.concatenate([np.ones(1, np.bool_), ~same])
    return Keys(keys.first[new], keys.second[new]), order[new]


class SeenKeys:
    """The keys that have come, in sorted arrays, each at least twice as long as the next array."""

    def __init__(self) -> None:
        self.num_keys = 0
        self._parts: list[Keys] = []

    def missing(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Returns which of these keys are new."""
        left = np.ones(len(keys.first), np.bool_)
        for part in self._parts:
            _drop_known(left, keys, part)
        return left

    def add(self, keys: Keys) -> None:
        """Adds new keys."""
        parts = self._parts
        self.num_keys += len(keys.first)
        parts.append(keys)
        while len(parts) > 1 and len(parts[-2].first) < 2 * len(parts[-1].first):
            one, other = parts[-2:]
            first = np.concatenate([one.first, other.first])
            order = np.argsort(first, kind="stable")  # a stable sort merges sorted parts
            parts[-2:] = [Keys(first[order], np.concatenate([one.second, other.second])[order])]


def _drop_known(left: npt.NDArray[np.bool_], keys: Keys, part: Keys) -> None:
    """Clears the places of keys that are in `part`."""
    places = np.searchsorted(part.first, keys.first)
    candidates = np.arange(len(places))
    while len(candidates):
        # One round, except for keys that share their first half with another key.
        inside = places < len(part.first)
        candidates, places = candidates[inside], places[inside]
        alike = part.first[places] == keys.first[candidates]
        candidates, places = candidates[alike], places[alike]
        known = part.second[places] == keys.second[candidates]
        left[candidates[known]] = False
        candidates, places = candidates[~known], places[~known] + 1


class UniqueKernel(SerialKernel):
    """Chooses the rows whose keys are new; the position is (rows of the input,)."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._seen = SeenKeys()
        self._rows = 0
        self._skip = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Notes how many rows pass without a result; the input starts over."""
        if position is not None:
            (self._skip,) = position
        return None

    def push(self, item: Item) -> Iterator[Item]:
        """Yields a chunk with the numbers of its new rows, and fails after the last key that can be held."""
        start, rows = self._rows, item.chunk.num_rows
        room = self._max_rows - self._seen.num_keys
        chosen = self._new_rows(item.chunk) if rows else np.zeros(0, np.intp)
        full = len(chosen) > room
        if full:
            rows, chosen = int(chosen[room]), chosen[:room]
        self._rows += rows
        if self._rows >= self._skip:
            yield self._put(item, chosen[chosen >= self._skip - start])
        if full:
            raise BudgetError(
                f"there are more than max_rows={self._max_rows:,} different keys, which take {KEY_BYTES} bytes each; raise "
                "max_rows, or make keys of fewer columns"
            )

    def _new_rows(self, keyed: Keyed) -> npt.NDArray[np.intp]:
        keys, rows = Keys(keyed.first, keyed.second), keyed.rows
        new = self._seen.missing(keys)
        if not new.all():
            keys, rows = Keys(keys.first[new], keys.second[new]), rows[new]
        if len(rows):
            self._seen.add(keys)
        return np.sort(rows)

    def _put(self, item: Item, chosen: npt.NDArray[np.intp]) -> Item:
        chunk = item.chunk.chunk if isinstance(item.chunk, Keyed) else item.chunk
        # An item without rows is perhaps no record batch yet, but parts to make one of.
        empty = chunk.slice(0, 0) if chunk.num_rows else chunk
        payload = Chosen(chunk, chosen) if len(chosen) else empty
        return Item(payload, (self._rows,), item.ticket, item.origin)


class ChosenKernel(GatherKernel):
    """Gathers the chosen rows."""

    def gather(self, chunk: Chosen, origin: Origin) -> pa.RecordBatch:
        return chosen(chunk.chunk, chunk.rows)

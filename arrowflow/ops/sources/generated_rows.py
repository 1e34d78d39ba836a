"""Rows of a generator become record batches: many rows at once if they come fast, each at once if they come slowly.

The source kernel runs the generator and adds each row to a `RowGroup`. It passes the group on with the first row, and
fills it while the group travels. `RowsKernel` behind it takes all rows that are there and converts them together. So
no clock decides, no row waits for another one, and a generator may wait for its own consumer.

Concurrency: the source adds to `rows` and then reads `announced`. `RowsKernel` clears `announced` and then reads the
length of `rows`. Whichever comes first, each row is taken: by the pass that cleared the mark, or by the next one, for
which the source passes the group on again. The last pass may find no row. Nothing else is shared.

Each row is a split. Where something sees that, a user function or the consumer, each row is a chunk of its own. Before
a `batch` or a `shuffle` nothing does, and the rows that were converted together stay together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import pyarrow as pa

from arrowflow.errors import FunctionError, SchemaError, shown
from arrowflow.interchange.from_rows import batch_from_rows
from arrowflow.kernels.items import Item, Origin
from arrowflow.kernels.kinds import SerialKernel
from arrowflow.ops.functions.function import conform
from arrowflow.plan.position import Position

Row = Mapping[str, Any] | tuple[Any, ...]

GROUP_ROWS = 256
"""Rows of a group, unless their values reach `GROUP_BYTES` before. A chunk costs some 50 µs, which is 0.2 µs a row."""
GROUP_BYTES = 1 << 16
"""Bytes of values at which a group is full, so that little is held that the ledger cannot count."""

_DECIDES = "; the first element decides, unless schema= does"


@dataclass(slots=True, eq=False)
class RowGroup:
    """Rows that follow each other, filled by the source and taken by `RowsKernel` at the same time.

    Attributes:
        start: The number of the first row's element.
        rows: The rows.
        num_bytes: Bytes of their values, about.
        announced: Whether the group is on its way to `RowsKernel`, which will take all rows that are there.
        taken: How many rows `RowsKernel` took.
        buffers: None: Python objects are no Arrow memory.
    """

    buffers: ClassVar[tuple[pa.Buffer, ...]] = ()

    start: int
    rows: list[Row] = field(default_factory=list)
    num_bytes: int = 0
    announced: bool = False
    taken: int = 0

    @property
    def num_rows(self) -> int:
        """Its rows."""
        return len(self.rows)

    @property
    def full(self) -> bool:
        """Whether the next row belongs to another group."""
        return len(self.rows) >= GROUP_ROWS or self.num_bytes >= GROUP_BYTES

    def add(self, row: Row) -> None:
        """Adds a row."""
        self.num_bytes += sum(map(_num_bytes, row.values() if isinstance(row, Mapping) else row))
        self.rows.append(row)


def _num_bytes(value: Any) -> int:
    """Returns the bytes of a value of a row, about."""
    if isinstance(value, list | tuple):
        nested = value and isinstance(value[0], list | tuple | dict)
        return sum(map(_num_bytes, value)) if nested else 8 * len(value)
    if isinstance(value, str | bytes):
        return len(value)
    return int(getattr(value, "nbytes", 8))


class RowsKernel(SerialKernel):
    """Makes chunks of groups of rows; batches pass it. The position is (elements taken,), as the source's.

    Args:
        types: The declared schema; without it the first element that has rows decides.
        name: The generator function's name, for errors.
        single: Whether each row becomes a chunk of its own.
    """

    def __init__(self, types: pa.Schema | None, name: str, *, single: bool = False) -> None:
        self._single = single
        self._schema = types
        self._advice = _DECIDES if types is None else ""
        self._name = name
        self._delivered = 0

    def open(self, position: Position, epoch: int) -> Position:
        """Remembers how many elements were delivered: a resumed source sends one of them where no schema is declared."""
        self._delivered = 0 if position is None else position[0]
        return position

    def push(self, item: Item) -> Iterator[Item]:
        if isinstance(item.chunk, RowGroup):
            yield from self._take(item.chunk)
            return
        end, batch = cast(tuple[int], item.position)[0], item.chunk
        if batch.num_rows and self._schema is not None:
            batch = conform(batch, self._schema, self._what(end - 1))
        elif batch.num_rows:
            self._schema = batch.schema
        if end > self._delivered:
            yield item._replace(chunk=batch)

    def _take(self, group: RowGroup) -> Iterator[Item]:
        group.announced = False
        begin, end = group.taken, len(group.rows)
        group.taken = end
        if self._schema is None and begin < end:
            self._schema = self._first_schema(group.rows[begin], group.start + begin)
        begin = max(begin, self._delivered - group.start)
        rows, number = group.rows[begin:end], group.start + begin
        if not rows:
            return
        whole = self._batch(rows, number)
        if whole is not None and not self._single:
            yield Item(whole, (number + len(rows),), None, Origin(number))
            return
        for at, row in enumerate(rows):  # where one is wrong, the good ones come before the error
            chunk = self._converted(row, number + at) if whole is None else whole.slice(at, 1)
            yield Item(chunk, (number + at + 1,), None, Origin(number + at))

    def _batch(self, rows: list[Row], number: int) -> pa.RecordBatch | None:
        """Returns rows as one batch; None if one of them is wrong, which converting them one by one tells."""
        schema = self._schema
        assert schema is not None
        names = set(schema.names)
        try:
            dicts = [self._named(row, number) for row in rows]
            if any(row.keys() != names for row in dicts):
                return None
            return batch_from_rows(dicts, schema.names, schema, self._name)
        except (SchemaError, FunctionError):
            return None

    def _converted(self, row: Row, number: int) -> pa.RecordBatch:
        schema = self._schema
        assert schema is not None
        row = self._named(row, number)
        if row.keys() != set(schema.names):
            has = f"has the columns {list(row)}, expected {schema.names}"
            raise SchemaError(f"{self._what(number)} {has}{self._advice}")
        try:
            return batch_from_rows([row], schema.names, schema, self._what(number))
        except SchemaError as error:
            raise SchemaError(f"{error}{self._advice}") from error

    def _first_schema(self, row: Row, number: int) -> pa.Schema:
        row = self._named(row, number)
        if not row or not all(type(name) is str for name in row):
            raise FunctionError(
                f"{self._what(number)}: expected a dict of values by column, got {shown(row)}"
            )
        return batch_from_rows([row], list(row), None, self._what(number)).schema

    def _named(self, row: Row, number: int) -> Mapping[str, Any]:
        """Returns a row as a mapping; the columns of a declared schema name the values of a tuple."""
        if not isinstance(row, tuple):
            return row
        names = None if self._advice or self._schema is None else self._schema.names
        if names is None or len(names) != len(row):
            expected = (
                "declare schema=, whose columns name them" if names is None else f"the columns are {names}"
            )
            raise FunctionError(f"{self._what(number)} is a tuple of {len(row)} values: {expected}")
        return dict(zip(names, row, strict=True))

    def _what(self, number: int) -> str:
        return f"element {number} of {self._name}"

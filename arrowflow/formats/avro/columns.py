"""A column of an Avro file: its type, the schema by which Polars decodes it, and what is left to do after that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from arrowflow.lazy import compute as pc


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a part of one.

    Attributes:
        name: Its name in what holds it.
        type: Its type.
        stored: The schema by which Polars decodes it; None for a column without a value, which takes no byte.
        symbols: The texts that its numbers stand for, if it is an enum.
        parts: The fields of a record; the values of an array; keys and values of a map.
    """

    name: str
    type: pa.DataType
    stored: Any
    symbols: tuple[str, ...] = ()
    parts: tuple[Column, ...] = ()

    def built(self, array: pa.Array) -> pa.Array:
        """Returns what Polars decoded as the type of this column.

        Raises:
            IndexError: A number stands for no symbol.
        """
        if self.symbols:
            texts = pl.Series(self.symbols, dtype=pl.String).to_arrow(compat_level=pl.CompatLevel.oldest())
            return pc.take(texts, array).cast(self.type)
        if not self.parts:
            return array.cast(self.type)
        mask = array.is_null() if array.null_count else None
        if pa.types.is_struct(self.type):
            fields = [part.built(array.field(number)) for number, part in enumerate(self.parts)]
            return pa.StructArray.from_arrays(fields, fields=list(self.type), mask=mask)
        offsets = array.offsets.cast(pa.int32())
        if pa.types.is_map(self.type):
            values = [part.built(array.values.field(number)) for number, part in enumerate(self.parts)]
            return pa.MapArray.from_arrays(offsets, *values, type=self.type, mask=mask)
        return pa.ListArray.from_arrays(offsets, self.parts[0].built(array.values), type=self.type, mask=mask)

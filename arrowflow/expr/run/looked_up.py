"""Long sets of texts, which are taken out of an expression of Polars: their answers are columns that the rest of it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import polars as pl
import pyarrow as pa

from arrowflow.expr.own.members import MIN_KEYS, Members
from arrowflow.expr.parse.expression import Expr
from arrowflow.expr.parse.long_constants import LongSet, long_sets, without
from arrowflow.expr.parse.polars_tree import read
from arrowflow.expr.parse.tree import Column
from arrowflow.expr.run.foreign import polars_type, run_polars
from arrowflow.types import is_string


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The answers of an `is_in`.

    Attributes:
        one: The call.
        type: The type of the values that are looked up.
        schema: Their columns.
        members: The set.
    """

    one: LongSet
    type: pa.DataType
    schema: pa.Schema
    members: Members

    def run(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """Returns the answer for each row. Any thread."""
        value = self.one.value
        if isinstance(read(value.text), Column):
            return self.members(columns[value.columns[0]])
        batch = pa.RecordBatch.from_arrays([columns[name] for name in value.columns], schema=self.schema)
        (values,) = run_polars([(value.expr, self.type)], batch, inside_lists='{"Eval":' in value.text)
        return self.members(values)


_KNOWN: Final[WeakValueDictionary[tuple[str, bool], Members]] = WeakValueDictionary()
"""The sets of programs that are there: rules compile a program several times, and one set may be in several programs."""


def looked_up(expr: Expr, schema: pa.Schema) -> tuple[Expr, tuple[LookedUp, ...]]:
    """Returns an expression without its long sets of texts, and these sets: their answers are columns that it reads."""
    found = [_looked_up(one, schema) for one in long_sets(expr.json())] if expr.engine == "polars" else []
    kept = tuple(each for each in found if each is not None)
    shorter = without(expr.json(), [each.one for each in kept]) if kept else None
    if shorter is None:
        return expr, ()
    return Expr("polars", shorter.expr, expr.name, shorter.columns, shorter.text), kept


def _looked_up(one: LongSet, schema: pa.Schema) -> LookedUp | None:
    value = one.value
    if isinstance(read(value.text), Column):
        type = schema.field(value.columns[0]).type
    else:
        type = polars_type(value, schema)
    if not (is_string(type) or pa.types.is_binary(type) or pa.types.is_large_binary(type)):
        return None
    members = _members(one, pl.String() if is_string(type) else pl.Binary())
    if members is None:
        return None
    return LookedUp(one, type, pa.schema([schema.field(name) for name in value.columns]), members)


def _members(one: LongSet, dtype: pl.DataType) -> Members | None:
    """Returns the set, if it is long and its keys have the type of the values; else Polars looks or refuses."""
    known = _KNOWN.get((one.keys, one.nulls_equal))
    if known is None:
        keys = one.series()
        if keys is None or keys.dtype != dtype or len(keys) < MIN_KEYS:
            return None
        known = Members(keys, nulls_equal=one.nulls_equal)
    elif known.dtype != dtype:
        return None
    return _KNOWN.setdefault((one.keys, one.nulls_equal), known)

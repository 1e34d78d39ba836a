"""`cast`: other types for columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.expr import Cast as CastStep
from arrowflow.expr import Keep, Project, Step, normalise
from arrowflow.ops.columns import ColumnOperator, check_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast(ColumnOperator):
    """Its input with some columns in other types; a value that does not fit is a `DataError`.

    Row order: as its input. Memory: the columns it writes, one chunk a call. Deterministic. Resume: as its input.
    """

    name: ClassVar[str] = "cast"

    types: tuple[tuple[str, pa.DataType], ...]

    def arguments(self) -> Mapping[str, Any]:
        """Returns the pairs of column and type."""
        return {"types": [[name, str(type)] for name, type in self.types]}

    def describe(self) -> str:
        """Returns the types as text."""
        return f"cast({', '.join(f'{name}: {type}' for name, type in self.types)})"

    def steps(self, schema: pa.Schema) -> tuple[Step, ...]:
        """Returns one projection."""
        types = dict(self.types)
        check_columns(list(types), schema)
        return (
            Project(
                tuple(
                    (name, CastStep(name, types[name]) if name in types else Keep(name))
                    for name in schema.names
                )
            ),
        )


def arrow_type(value: Any, *, operator: str) -> pa.DataType:
    """Returns a type of pyarrow or of Polars as the pyarrow type that columns have here.

    Raises:
        PlanError: It is neither.

    Example:
        >>> arrow_type(pl.Float32, operator="cast"), arrow_type(pa.string_view(), operator="cast")
        (DataType(float), DataType(string))
    """
    if isinstance(value, pa.DataType):
        return value if pa.types.is_dictionary(value) else normalise(value)
    if isinstance(value, pl.DataType) or (isinstance(value, type) and issubclass(value, pl.DataType)):
        found = pl.Series([], dtype=value).to_arrow().type
        return found if pa.types.is_dictionary(found) else normalise(found)
    raise PlanError(
        f"{operator}: expected a type of pyarrow or Polars, such as pa.float32() or pl.Float32, got {value!r}"
    )

"""Casts, fills and stacks that NumPy has no kernel for: pyarrow's functions compute them on whole columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from arrowflow.errors import DataError
from arrowflow.expr.run.columns import RowBlock, source
from arrowflow.expr.run.sinks import Matrix, check_nulls
from arrowflow.lazy import compute as pc
from arrowflow.types import numpy_dtype


@dataclass(frozen=True, slots=True)
class Casting:
    """Casts the column `name` to `type` by pyarrow's safe rules."""

    name: str
    type: pa.DataType

    def __call__(self, array: pa.Array) -> pa.Array:
        """Returns `array` as `type`.

        Raises:
            DataError: A value does not fit.
        """
        try:
            return array.cast(self.type)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(f"column {self.name!r} cannot be cast to {self.type}: {error}") from error


@dataclass(frozen=True, slots=True)
class Filling:
    """Replaces nulls by `value`. An array without nulls stays the same array."""

    value: pa.Scalar

    def __call__(self, array: pa.Array) -> pa.Array:
        return pc.fill_null(array, self.value) if array.null_count else array


@dataclass(frozen=True, slots=True)
class FillingCodes:
    """Replaces nulls of an enum by the code of one of its values: all its chunks have the declared values, in order."""

    code: int

    def __call__(self, array: pa.DictionaryArray) -> pa.Array:
        codes = pl.Series(array.indices).fill_null(self.code).to_arrow()  # `pa.scalar` would import pandas
        return pa.DictionaryArray.from_arrays(codes, array.dictionary)


@dataclass(frozen=True, slots=True)
class Stacking:
    """Puts the columns `names`, cast to `type`, side by side."""

    names: tuple[str, ...]
    type: pa.DataType

    def __call__(self, *arrays: pa.Array) -> pa.Array:
        """Returns the stack of `arrays`.

        Raises:
            DataError: A value does not fit, or is null.
        """
        check_nulls({name: array.null_count for name, array in zip(self.names, arrays, strict=True)})
        dtype = numpy_dtype(self.type)
        assert dtype is not None
        rows = len(arrays[0])
        matrix = Matrix(self.names, pa.list_(self.type, len(self.names)), dtype, rows, None)
        for name, array, sink in zip(self.names, arrays, matrix.sinks, strict=True):
            values, _ = source(Casting(name, self.type)(array), dtype).read(RowBlock(0, rows, None), None)
            np.copyto(sink.values, values)
        return matrix.array()

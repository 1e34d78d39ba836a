"""`Function`: the callable that stands in an expression of Polars, and the name by which this library finds it again.

Polars calls it where a part of an expression has it, and everywhere outside of this library. A column that is nothing but the
function is computed without Polars. Polars stores a callable as its pickle. The pickle holds the name, so nothing is unpickled
to find it (`parse/lifted.py`), and it is the name that makes the identity of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

from arrowflow.expr.own.buckets import Buckets
from arrowflow.expr.own.hash_bucket import HashBucket
from arrowflow.expr.own.places import Index, OneHot

Compute = Callable[[pa.Array], pa.Array]

FUNCTIONS: Final[dict[str, Callable[[int, pl.Series | None, pa.DataType], Compute]]] = {
    "bucketize": Buckets.of,
    "hash_bucket": HashBucket.of,
    "index": Index.of,
    "one_hot": OneHot.of,
}
"""The functions by name: each takes its size, its constants and the type of a column."""


class Function:
    """A function of a column, and of a list of constants where it needs one; `name` is a name in `FUNCTIONS` and a size.

    Examples:
        >>> import polars as pl
        >>> pl.select(call("hash_bucket", 10, [pl.lit("Oslo")], pl.Int64)).item()
        8
    """

    __slots__ = ("_made", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._made: tuple[pl.Series | None, pa.DataType, Compute] | None = None

    def __reduce__(self) -> tuple[type[Function], tuple[str]]:
        return Function, (self.name,)

    def __call__(self, columns: Sequence[pl.Series], **_: Any) -> pl.Series:
        """Returns the values for the columns that Polars gives: the values, and a list of all constants."""
        array = columns[0].to_arrow(compat_level=pl.CompatLevel.oldest())
        words = columns[1][0] if len(columns) > 1 else None
        return pl.Series(columns[0].name, self._compute(words, array.type)(array))

    def _compute(self, words: pl.Series | None, type: pa.DataType) -> Compute:
        """Returns the function, made once: with 100,000 words that takes 80 ms, and to compare them 1.3 ms. Any thread."""
        made = self._made
        if made is None or made[1] != type or not _equal(made[0], words):
            made = self._made = words, type, function(self.name, words, type)
        return made[2]


def _equal(one: pl.Series | None, other: pl.Series | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.equals(other, check_dtypes=True)


def call(name: str, size: int, inputs: Sequence[pl.Expr | str], dtype: Any) -> pl.Expr:
    """Returns the expression that applies a function to a column and a constant list."""
    return pl.map_batches(inputs, Function(f"{name}:{size}"), return_dtype=dtype, is_elementwise=True)


def function(name: str, words: pl.Series | None, type: pa.DataType) -> Compute:
    """Returns the function with a name as `Function` has it, for a column of `type`.

    Raises:
        PlanError: The function does not take such a column.
    """
    kind, size = name.split(":")
    return FUNCTIONS[kind](int(size), words, type)

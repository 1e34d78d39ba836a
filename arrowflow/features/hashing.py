"""`hash_bucket`: an expression of Polars whose values no release of any library changes."""

from __future__ import annotations

import polars as pl

from arrowflow.errors import PlanError, shown
from arrowflow.expr.own.function import call


def hash_bucket(column: str | pl.Expr, n: int) -> pl.Expr:
    """Returns the number of the bucket of each value, from 0 to `n - 1`, as int64; null for null.

    The bucket is the value's XXH64 modulo `n`: of the UTF-8 of a text, or of 8 bytes of a whole number, the least significant byte
    first. So it is the same on every machine, for int32 and int64, and after each release of Polars and pyarrow.

    Args:
        column: A column of texts, bytes, whole numbers or enum values, or an expression that makes one.
        n: The number of buckets.

    Raises:
        PlanError: `n` is no number of buckets, or, when the plan is bound, the column has another type.

    Examples:
        >>> import arrowflow as af
        >>> users = af.from_numpy({"city": ["Oslo", "Lima", "Oslo"], "user": [7, 8, 9]})
        >>> users.select(af.hash_bucket("city", 1024)).to_table()["city"].to_pylist()
        [776, 458, 776]
        >>> train = users.filter(af.hash_bucket("user", 10) < 8)  # all rows of a user are in one part
    """
    if type(n) is not int or not 0 < n < 1 << 63:
        raise PlanError(f"hash_bucket: n is a number of buckets from 1 on, got {shown(n)}")
    return call("hash_bucket", n, [column], pl.Int64)

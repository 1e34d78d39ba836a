"""Pruning never drops a row that matches: random predicates of both engines over real Parquet statistics."""

from __future__ import annotations

import contextlib
import datetime
import io
import random
from decimal import Decimal
from functools import cache
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from arrowflow.errors import PlanError
from arrowflow.expr import ColumnStatistics, Expr, Where, compile_steps, parse_expression, prunable
from arrowflow.formats.parquet.statistics import RowGroupStatistics
from tests.effort import scaled
from tests.expr.edges import TYPES, UNITS, edges
from tests.expr.test_kernels import by_engine

c, f = pl.col, pc.field
ENGINE_ERRORS: Final = (pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException)
NAN: Final = float("nan")
UTC: Final = datetime.UTC


def moment(hour: int) -> datetime.datetime:
    return datetime.datetime(2001, 1, 1, hour, tzinfo=UTC).replace(tzinfo=None)


# Values to draw from for each column; predicates compare with the same ones and some between.
POOLS: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "i": (pa.int32(), [-2, -1, 0, 1, 2, 3]),
    "u": (pa.uint8(), [0, 1, 2, 255]),
    "g": (pa.int64(), [-(2**62), 0, 2**53 + 1, 2**53 + 3]),
    "f": (pa.float64(), [-1.0, -0.0, 0.0, 0.5, 2.0, NAN, float("inf")]),
    "h": (pa.float32(), [-1.0, 0.0, float(np.float32(0.1)), 0.25, NAN]),
    "b": (pa.bool_(), [True, False]),
    "s": (pa.string(), ["", "a", "ab", "b", "ü", "z" * 100]),
    "d": (pa.date32(), [datetime.date(2001, 1, day) for day in (1, 2, 3)]),
    "t": (pa.timestamp("us"), [moment(hour) for hour in (1, 2, 3)]),
    "m": (pa.timestamp("ms"), [moment(hour) for hour in (1, 2, 3)]),
    "z": (pa.timestamp("us", "UTC"), [moment(hour).replace(tzinfo=UTC) for hour in (1, 2, 3)]),
    "n": (pa.timestamp("ns"), [moment(hour) for hour in (1, 2, 3)]),
    "q": (pa.decimal128(9, 2), [Decimal("-1.00"), Decimal("0.00"), Decimal("1.25")]),
    "y": (pa.binary(), [b"", b"a", b"\xff"]),
}
BETWEEN: Final[dict[str, list[Any]]] = {
    "i": [0.5, 2**40, 1],
    "g": [float(2**53), 0.5],
    "f": [0, 1, 0.1],
    "h": [0.1, 1, 0, 1e39],
    "q": [0, 1, Decimal("0.333")],
    "t": [moment(2).replace(microsecond=1)],
    "m": [moment(2).replace(microsecond=1)],
}
ROWS: Final = 3


def make_table(rng: random.Random, groups: int) -> pa.Table:
    columns = {}
    for name, (type, pool) in POOLS.items():
        values: list[Any] = []
        for _ in range(groups):
            few = rng.sample(pool, rng.randint(1, 2))
            nulls = rng.choice([0, 0, 0.4, 1])
            values += [None if rng.random() < nulls else rng.choice(few) for _ in range(ROWS)]
        columns[name] = pa.array(values, type)
    return pa.table(columns)


def statistics_of(metadata: Any, group: int) -> dict[str, ColumnStatistics]:
    found = {}
    for index in range(metadata.num_columns):
        chunk = metadata.row_group(group).column(index)
        known = chunk.statistics
        if known is not None:
            low, high = (known.min, known.max) if known.has_min_max else (None, None)
            found[chunk.path_in_schema] = ColumnStatistics(low, high, known.null_count)
    return found


def atom(rng: random.Random, polars: bool) -> Any:
    name = rng.choice(list(POOLS))
    column: Any = c(name) if polars else f(name)
    type, pool = POOLS[name]
    kind = rng.randint(0, 9)
    if kind == 0:
        return column.is_null()
    if kind == 1:
        return column.is_not_null() if polars else column.is_valid()
    if kind == 2 and name == "b":
        return column
    values = rng.sample(pool, 2)
    if kind == 3 and name not in ("n", "m"):
        return column.is_in(values) if polars else column.isin(pa.array(values, type))
    if kind == 4 and polars:
        return column.is_between(*values, closed=rng.choice(["both", "left", "right", "none"]))
    if kind == 5 and name in ("i", "f"):
        return column + 1 > values[0]
    value = rng.choice([*pool, *BETWEEN.get(name, [])])
    if polars and rng.random() < 0.3 and name in ("d", "i"):
        return pl.lit(value) <= column
    if not polars and not isinstance(value, int | float | str):
        exact = type if value in pool else None
        value = pa.scalar(value, exact)
    operators = [lambda a, b: a > b, lambda a, b: a >= b, lambda a, b: a < b, lambda a, b: a <= b]
    operators += [lambda a, b: a == b, lambda a, b: a != b]
    return rng.choice(operators)(column, value)


def predicate(rng: random.Random, polars: bool, depth: int = 2) -> Any:
    kind = rng.randint(0, 5) if depth else 5
    if kind == 0:
        return ~predicate(rng, polars, depth - 1)
    if kind in (1, 2):
        left, right = predicate(rng, polars, depth - 1), predicate(rng, polars, depth - 1)
        return left & right if kind == 1 else left | right
    return atom(rng, polars)


@pytest.mark.parametrize("polars", [True, False])
@pytest.mark.parametrize("seed", range(scaled(2)))
def test_no_matching_row_is_pruned(seed: int, polars: bool) -> None:
    rng = random.Random(seed)
    groups = 30
    table = make_table(rng, groups)
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=ROWS)
    file = pq.ParquetFile(sink)
    statistics = [statistics_of(file.metadata, group) for group in range(groups)]
    (batch,) = file.read().append_column("row", pa.array(range(len(table)))).combine_chunks().to_batches()
    pruned = tried = 0
    while tried < 100:
        source = predicate(rng, polars)
        expr = parse_expression(source, operator="test")
        try:
            rows = compile_steps([Where(expr)], batch.schema).run(batch).column("row").to_numpy()
        except ValueError:  # the engine cannot compare these types
            continue
        tried += 1
        matches = np.bincount(rows // ROWS, minlength=groups)
        skip = prunable(expr, batch.schema)
        for group in range(groups):
            if skip is not None and skip(statistics[group], ROWS):
                pruned += 1
                assert matches[group] == 0, f"{source} {statistics[group]}"
    assert pruned > 200


SCHEMA: Final = pa.schema([(name, type) for name, (type, _) in POOLS.items()])


def skips(source: Any, rows: int = 10, **statistics: ColumnStatistics) -> bool | None:
    test = prunable(parse_expression(source, operator="test"), SCHEMA)
    return None if test is None else test(statistics, rows)


def known(low: object, high: object, nulls: int | None = 0) -> ColumnStatistics:
    return ColumnStatistics(low, high, nulls)


def test_what_is_concluded() -> None:
    assert skips(c("i") > 5, i=known(1, 5))
    assert not skips(c("i") >= 5, i=known(1, 5))
    assert skips(~(f("i") >= 1), i=known(1, 5))
    assert skips((c("i") > 5) & (c("f") + 1 > 0), i=known(1, 5))
    assert not skips((c("i") > 5) | (c("f") + 1 > 0), i=known(1, 5))
    assert skips(c("i") != 3, i=known(3, 3))
    assert skips(c("i") > 0, i=known(None, None, 10))
    assert skips(c("i").is_null(), i=known(1, 5))
    assert skips(c("i").is_not_null(), i=known(None, None, 10))
    assert skips(f("b"), b=known(False, False))
    assert not skips(c("b"), b=known(False, True))
    assert skips(c("i").is_in([7, 8]), i=known(1, 5))
    assert skips(c("d") >= pl.date(2002, 1, 1), d=known(datetime.date(2001, 1, 1), datetime.date(2001, 5, 1)))
    assert skips(c("n").cast(pl.Datetime("us")) > 0) is None


def test_nan_is_beyond_all_statistics() -> None:
    assert not skips(c("f") > 5, f=known(1.0, 2.0))  # NaN is greater, and may be there
    assert skips(f("f") > 5, f=known(1.0, 2.0))
    assert skips(c("f") < 1, f=known(1.0, 2.0))
    assert not skips(f("f") != 1, f=known(1.0, 1.0))
    assert not skips(~(f("f") < 5), f=known(1.0, 2.0))
    assert not skips(c("f") == 5, f=known(NAN, NAN))
    assert skips(c("f") == NAN) is None


def test_what_is_unknown_prunes_nothing() -> None:
    assert not skips(c("i") > 5)
    assert not skips(c("i") > 5, i=known(None, None))
    assert not skips(c("i").is_null(), i=known(1, 5, None))
    assert not skips(c("i") > 5, i=known("a", "b"))
    assert not skips(c("n") > moment(1), n=known(moment(1), moment(1)))
    assert not skips(f("t") > pa.scalar(moment(1), pa.timestamp("us")), t=known("x", "y"))
    others = [c("i") > c("u"), c("i") > 0.5, c("q") > Decimal("0.333"), c("m") > moment(1), c("i") == 2**40]
    others += [
        c("w") > 0,
        c("w").is_in([1]),
        c("i") + 1 > 0,
        c("i").is_in([1.5]),
        pl.lit(True),
        c("w"),
        c("i"),
    ]
    for source in others:
        assert skips(source) is None, source
    assert skips(f("i").is_null(nan_is_null=True)) is None
    assert skips(~(c("i") + 1 > 0)) is None
    assert skips(f("z") > pa.scalar(moment(1))) is None or not skips(f("z") > pa.scalar(moment(1)))


def test_stored_integers_stand_for_moments() -> None:
    assert skips(
        f("n") > pa.scalar(10, pa.timestamp("ns")).cast(pa.timestamp("us"), safe=False), n=known(-5, -1)
    )
    assert skips(f("m") > pa.scalar(5, pa.timestamp("ms")), m=known(0, 5))


def test_moments_without_nanoseconds_are_no_limits_of_a_column_that_has_them() -> None:
    """A writer may have cut the rest: the greatest value may lie up to a microsecond behind what is told."""
    moment = datetime.datetime(1970, 1, 1, 0, 0, 0, 1)
    told = known(moment, moment)
    for unit, prunes in (("us", True), ("ns", False)):
        type = pa.timestamp(unit)
        limit = pa.scalar(1000 if unit == "ns" else 1, type)
        skip = prunable(parse_expression(f("x") > limit, operator="filter"), pa.schema({"x": type}))
        assert skip is not None
        assert skip({"x": told}, 9) == prunes


CONSTANTS: Final = (
    *(0, 1, -1, 300, -129, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, 0.5, 0.1, 1e39),
    *(Decimal("1.5"), True, "1", datetime.date(1970, 1, 1), datetime.time(0), datetime.datetime(1970, 1, 1)),
    *(
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
        datetime.timedelta(0),
        datetime.timedelta(microseconds=-1),
    ),
)
OF_POLARS: Final = (2**63, 2**64 - 1, NAN, pl.lit(0.1, dtype=pl.Float32), pl.lit(-1, dtype=pl.Int8))
OF_ARROW: Final = tuple(
    pa.scalar(value, pa.int64()).cast(kind)
    for value in (5, -5)
    for kind in (*(pa.timestamp(unit) for unit in UNITS), *(pa.duration(unit) for unit in UNITS))
)


def comparisons(column: Any, constants: Any) -> list[Any]:
    """Every comparison with every constant, and membership, that the engine's own interface lets one write."""
    found = []
    for constant in constants:
        with contextlib.suppress(TypeError, ValueError, pl.exceptions.PolarsError, pa.ArrowException):
            found += [column > constant, column >= constant, column == constant, constant >= column]
            if isinstance(column, pl.Expr):
                found += [column.is_in([constant]), column.is_in([constant], nulls_equal=True)]
                found += [
                    column.is_between(constant, constant),
                    column.is_in([constant, None], nulls_equal=True),
                ]
            else:
                values = pa.array([constant.as_py() if isinstance(constant, pa.Scalar) else constant])
                found += [column.isin(values), pc.is_in(column, value_set=values, skip_nulls=True)]
    return [source for one in found if isinstance(one, pl.Expr | pc.Expression) for source in (one, ~one)]


@cache
def compared() -> list[tuple[Any, Expr]]:
    """Returns all comparisons, and what the parser makes of them, which depends on no type."""
    found = []
    for source in (
        *comparisons(c("x"), (*CONSTANTS, *OF_POLARS)),
        *comparisons(f("x"), (*CONSTANTS, *OF_ARROW)),
    ):
        with contextlib.suppress(PlanError):
            found.append((source, parse_expression(source, operator="test")))
    return found


@pytest.mark.parametrize("type", [type for type in TYPES if not pa.types.is_float16(type)], ids=str)
def test_the_edges_of_every_type_are_not_pruned_away(type: pa.DataType) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": edges(type)}).sort_by("x"), sink, row_group_size=ROWS)
    file = pq.ParquetFile(sink)
    table = file.read()
    (batch,) = table.combine_chunks().to_batches()
    groups = range(file.num_row_groups)
    leaves = {"x": (0, 1)}
    statistics = [
        dict(RowGroupStatistics(file.metadata.row_group(group), table.schema, leaves, lambda leaf: True))
        for group in groups
    ]
    for source, expr in compared():
        try:
            skip = prunable(expr, table.schema)
        except (ValueError, TypeError, *ENGINE_ERRORS):  # refused
            continue
        skipped = [
            (group, known)
            for group, known in enumerate(statistics)
            if skip is not None and skip(known, len(table.slice(ROWS * group, ROWS)))
        ]
        if not skipped:
            continue
        try:
            flags = by_engine(source, batch)
        except (ValueError, TypeError, *ENGINE_ERRORS):  # refused
            continue
        for group, known in skipped:
            assert True not in flags.slice(ROWS * group, ROWS).to_pylist(), f"{source} {known}"


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("polars", [True, False])
def test_long_lists_prune_as_their_keys_do(name: str, polars: bool) -> None:
    """The truth is the comparison with each key alone; a long list of rare types may keep what it could leave out."""
    type, pool = POOLS[name]
    schema = pa.schema([(name, type)])
    rng = random.Random(name)
    for _ in range(scaled(30)):
        chosen = rng.sample(pool, rng.randint(1, len(pool)))
        keys = pa.array(rng.choices(chosen, k=rng.choice([1, 3, 20, 2000])), type)
        series = pl.from_arrow(keys)
        assert isinstance(series, pl.Series)
        whole = c(name).is_in(series.implode()) if polars else f(name).isin(keys)
        skip = prunable(parse_expression(whole, operator="filter"), schema)
        each = [
            c(name).is_in(series.slice(at, 1).implode()) if polars else f(name).isin(keys.slice(at, 1))
            for at in {str(key): at for at, key in enumerate(keys.to_pylist())}.values()
        ]
        alone = [prunable(parse_expression(one, operator="filter"), schema) for one in each]
        low, high = sorted(rng.choices([value for value in pool if value is not NAN], k=2))
        bounds = {name: ColumnStatistics(low, high, rng.choice([0, 1, None]))}
        expected = all(one is not None and one(bounds, 10) for one in alone)
        found = skip is not None and skip(bounds, 10)
        assert found is expected or (not found and len(keys) > 1000)
        assert skip is None or skip({name: ColumnStatistics(None, None, 10)}, 10)
        assert skip is None or not skip({}, 10)


def test_keys_between_the_row_groups_prune() -> None:
    skip = prunable(
        parse_expression(c("x").is_in(range(0, 1_000_000, 10)), operator="filter"),
        pa.schema([("x", pa.int64())]),
    )
    assert skip is not None
    found = [
        skip({"x": ColumnStatistics(low, high, 0)}, 5)
        for low, high in ((1, 9), (1, 10), (999_991, 2_000_000))
    ]
    assert found == [True, False, True]

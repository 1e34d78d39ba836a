"""NumPy computes what the owning engine computes: same type, same nulls, same values."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from functools import cache, partial, wraps
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import _acero as acero

import arrowflow as af
from arrowflow.expr import (
    Program,
    Project,
    Where,
    compile_steps,
    forget_compiled,
    normalise,
    output_fields,
    parse_expression,
)
from arrowflow.expr.compile.graph import Op, reachable
from arrowflow.expr.compile.lower_arrow import ArrowLowering
from arrowflow.expr.compile.lower_polars import PolarsLowering
from arrowflow.expr.compile.lowering import Lowering, stored_integer
from arrowflow.expr.compile.slots import ops_of
from arrowflow.expr.run.numpy_kernels import KERNELS, VALIDITY
from tests.effort import scaled

INTEGERS: Final = {
    "i8": pa.int8(),
    "i16": pa.int16(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "u8": pa.uint8(),
    "u16": pa.uint16(),
    "u32": pa.uint32(),
    "u64": pa.uint64(),
}
SCHEMA: Final = pa.schema(
    [
        *INTEGERS.items(),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("g32", pa.float32()),
        ("g64", pa.float64()),
        ("b", pa.bool_()),
        ("c", pa.bool_()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us")),
        ("utc", pa.timestamp("ms", "UTC")),
        ("span", pa.duration("us")),
        ("dec", pa.decimal128(15, 2)),
        ("whole", pa.decimal128(9, 0)),
        ("s", pa.string()),
    ]
)
DAY: Final = datetime.date(1995, 1, 1)
MOMENT: Final = datetime.datetime(2001, 2, 3, 4, 5, 6, 789000, datetime.UTC).replace(tzinfo=None)
c, f = pl.col, pc.field

# `test_conversions.py` has all casts, and arithmetic and comparisons of two columns and with constants.
POLARS: Final[list[Any]] = [
    *(c(name) + 1 for name in ("i8", "i64", "u64")),
    *(c(name) * 3 - c(name) for name in ("i8", "i64", "u64")),
    *(c(name) / 7 for name in ("i8", "i64", "u64")),
    *(c(name) // 3 for name in ("i8", "i64", "u64")),
    *(c(name) % 5 for name in ("i8", "i64", "u64")),
    *(c(name) > 1 for name in ("i8", "i64", "u64")),
    *(c(name).cast(pl.Float32) for name in ("i8", "i64", "u64")),
    *(c(name).cast(pl.Float64) for name in ("i8", "i64", "u64")),
    *(c(name).abs() for name in ("i8", "i32", "i64", "f32", "f64")),
    *(-c(name) for name in ("i8", "i32", "i64", "f32", "f64")),
    c("f32") / 7,
    c("f64") != c("g64"),
    c("f64") ** 2,
    c("f32") ** 2,
    c("f32") >= 2,
    c("f64") < 1.5,
    c("f64") != 0,
    c("f32") >= c("g32"),
    c("f64") < c("g64"),
    c("i32") == c("i32"),
    c("day") >= DAY,
    c("day") < pl.date(1995, 1, 1),
    c("ts") > MOMENT,
    c("utc").to_physical(),
    c("day").to_physical(),
    c("span") > datetime.timedelta(seconds=1),
    c("whole").cast(pl.Float32),
    c("dec") > 0,
    c("dec") >= Decimal("1.5"),
    c("dec") == Decimal("1.25"),
    (c("dec").cast(pl.Float64) * (1 - c("dec").cast(pl.Float64))).cast(pl.Float32),
    c("dec").cast(pl.Float32) * (1 - c("dec").cast(pl.Float32)),
    c("b") & c("c"),
    c("b") | c("c"),
    ~c("b"),
    (c("f64") > 1) & (c("i32") < 5) | c("b"),
    c("b") | (c("f32") > 0),
    c("f64").is_nan(),
    c("f32").is_not_nan(),
    c("f64").is_finite(),
    c("f32").is_infinite(),
    c("f64").is_null(),
    c("i64").is_not_null(),
    c("f32").fill_null(0),
    c("f64").fill_null(0.5),
    c("i32").fill_null(-1),
    c("i8").fill_null(1000),
    c("i8").fill_null(7),
    c("f32").fill_null(-0.0),
    c("b").fill_null(True),
    c("day").fill_null(DAY),
    c("f32").fill_null(c("g32")),
    c("f32").fill_null(0) + c("g32").fill_null(1),
    c("f64").is_between(-1, 1),
    c("f32").is_between(0, 2, closed="left"),
    c("i32").is_between(-1, 1, closed="none"),
    c("day").is_between(DAY, datetime.date(1996, 1, 1), closed="right"),
    c("i32").is_in([1, 2, 3]),
    c("i8").is_in([1, None]),
    c("day").is_in([DAY]),
    c("f64").is_in([1.0, 2.0]),
    c("s").is_in(["a", "b"]),
    c("f64").clip(-1, 1),
    c("f32").clip(lower_bound=0),
    c("i32").clip(upper_bound=3),
    c("f64").floor(),
    c("f32").ceil(),
    c("f64").sqrt(),
    c("f32").sqrt(),
    pl.when(c("f64") > 0).then(c("f64")).otherwise(0),
    pl.when(c("b")).then(1).otherwise(c("i32")),
    pl.when(c("b")).then(c("f32")),
    pl.when(c("i32") > 0).then(c("b")).otherwise(c("c")),
    pl.when(c("b")).then(c("i8")).otherwise(pl.lit(-1, pl.Int8)),
    pl.when(c("b")).then(c("u64")).otherwise(pl.lit(2**63, pl.UInt64)),
    pl.when(c("b")).then(c("f64")).otherwise(-0.0),
    pl.when(c("b")).then(c("f32")).otherwise(c("g32")),
    pl.when(c("b")).then(c("day")).otherwise(DAY),
    pl.when(c("b")).then(c("b")).otherwise(False),
    pl.max_horizontal("f64", "g64"),
    pl.min_horizontal("i32", "i64"),
    c("s").str.len_bytes(),
    c("s") + "x",
    pl.lit(3),
    pl.lit(1.5, dtype=pl.Float32) * c("f32"),
    pl.lit(5, dtype=pl.Int8) + c("i32"),
]
ARROW: Final[list[Any]] = [
    f("f64") + 1,
    f("i32").cast("float64") * f("f64"),
    pc.multiply(f("i32"), f("i32")),
    pc.subtract(f("u8"), f("u8")),
    pc.divide(f("f64"), f("g64")),
    pc.negate(f("f32")),
    pc.abs(f("f64")),
    pc.abs(f("i32")),
    f("f32") == 0.1,
    f("f64") != 0,
    f("f32") <= f("g32"),
    f("f64") >= f("g64"),
    f("i8") < 300,
    f("u64") >= 1,
    pc.scalar(2) < f("f64"),
    f("day") >= DAY,
    f("ts") > MOMENT,
    f("utc") > pa.scalar(MOMENT, pa.timestamp("ms", "UTC")),
    f("dec") >= Decimal("1.5"),
    f("whole").cast("float32"),
    (f("dec").cast("float64") * (pc.scalar(1) - f("dec").cast("float64"))).cast("float32"),
    f("b") & f("c"),
    f("b") | f("c"),
    ~f("b"),
    (f("f64") > 1) & ~(f("i32") < 5) | f("b"),
    f("f64").is_nan(),
    f("f64").is_null(),
    f("f64").is_null(nan_is_null=True),
    f("i32").is_valid(),
    pc.is_finite(f("f32")),
    pc.is_inf(f("f32")),
    pc.coalesce(f("f32"), pa.scalar(0, pa.float32())),
    pc.coalesce(f("f32"), 0.0),
    pc.coalesce(f("i32"), f("i32")),
    pc.coalesce(f("f64"), f("g64"), 0.0),
    f("f64"),
    f("i32").isin([1, 2, 3]),
    f("f64").isin([1.0]),
    f("day").isin([DAY]),
    pc.is_in(f("i32"), value_set=pa.array([1, None], pa.int32())),
    pc.if_else(f("b"), f("f64"), f("g64")),
    pc.if_else(f("f64") > 0, f("i32"), 0),
    pc.if_else(f("b"), f("c"), True),
    pc.if_else(f("b"), f("f32"), pa.scalar(-0.0, pa.float32())),
    pc.floor(f("f64")),
    pc.ceil(f("f32")),
    pc.sqrt(f("f64")),
    pc.utf8_length(f("s")),
    pc.max_element_wise(f("f64"), f("g64")),
]
TRANSCENDENTAL: Final[list[Any]] = [
    c("f32").log1p(),
    c("f64").log1p(),
    c("f32").log(),
    c("f64").log(),
    c("f64").log10(),
    c("f32").log(2),
    c("f32").exp(),
    c("f64").exp(),
    pc.log1p(f("f32")),
    pc.ln(f("f64")),
    pc.exp(f("f32")),
    pc.exp(f("f64")),
    pc.power(f("f64"), 2),
]
EXACT: Final[list[Any]] = [*POLARS, *ARROW]
EVERYTHING: Final[list[Any]] = [*EXACT, *TRANSCENDENTAL]
PREDICATES: Final = [
    index
    for index, source in enumerate(EXACT)
    if output_fields(parse_expression(source, operator="test"), SCHEMA)[0].type == pa.bool_()
]


def stored(type: pa.DataType, rows: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Values as `type` stores them, with every special one among them."""
    if pa.types.is_boolean(type):
        return np.packbits(rng.integers(0, 2, rows, dtype=np.uint8), bitorder="little")
    if pa.types.is_decimal(type):
        top = 10**type.precision
        low = np.where(
            rng.random(rows) < 0.5, rng.integers(-300, 300, rows), rng.integers(-top + 1, top, rows)
        )
        return np.stack([low, low >> 63], axis=1)
    if pa.types.is_floating(type):
        dtype = np.dtype(f"f{type.bit_width // 8}")
        special = np.array([0.0, -0.0, 1.0, 2.0, 0.5, np.nan, np.inf, -np.inf, 0.1, 16777216.0], dtype)
        wide = (rng.standard_normal(rows) * 10.0 ** rng.integers(-30, 30, rows)).astype(dtype)
        return np.where(rng.random(rows) < 0.5, rng.choice(special, rows), wide)
    dtype = np.dtype(f"{'u' if pa.types.is_unsigned_integer(type) else 'i'}{type.bit_width // 8}")
    if not pa.types.is_integer(type):
        moment = MOMENT.replace(tzinfo=datetime.UTC) if type == pa.timestamp("ms", "UTC") else MOMENT
        middle = {"ts": moment, "day": DAY}.get("day" if pa.types.is_date(type) else "ts")
        day = 1_000_000 if pa.types.is_duration(type) else stored_integer(middle, type)
        return (day + rng.integers(-3, 3, rows) * rng.integers(0, 2, rows)).astype(dtype)
    limits = np.iinfo(dtype)
    full = rng.integers(limits.min, limits.max, rows, dtype, endpoint=True)
    near = rng.integers(max(limits.min, -3), 6, rows).astype(dtype)
    edges = rng.choice(np.array([limits.min, limits.max], dtype), rows)
    kind = rng.integers(0, 4, rows)
    return np.where(kind < 2, near, np.where(kind == 2, full, edges))


def column(type: pa.DataType, rows: int, nulls: bool, rng: np.random.Generator) -> pa.Array:
    if pa.types.is_string(type):
        words = [
            None if nulls and rng.random() < 0.3 else str(rng.choice(["", "a", "b", "xyz"]))
            for _ in range(rows)
        ]
        return pa.array(words, type)
    flags = rng.random(rows) < 0.7
    valid = pa.py_buffer(np.packbits(flags, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(
        type, rows, [valid, pa.py_buffer(np.ascontiguousarray(stored(type, rows, rng)))]
    )


def make_batch(rows: int, seed: int, nulls: bool, offset: int) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    arrays = [column(field.type, rows + offset, nulls, rng) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA).slice(offset)


BATCHES: Final = st.builds(
    make_batch,
    st.sampled_from([0, 1, 7, 64, 300]),
    st.integers(0, 1 << 32),
    st.booleans(),
    st.integers(0, 11),
)
USUAL: Final = make_batch(64, 1, True, 3)
"""A quick run draws one batch, and hypothesis begins with the one that has no rows."""
WITHOUT_NULLS: Final = {"f64", "g32", "c", "i64"}
SOME_NULLS: Final = pa.record_batch(
    {name: make_batch(64, 2, name not in WITHOUT_NULLS, 0)[name] for name in SCHEMA.names}, schema=SCHEMA
)
"""Pairs of columns of which one has nulls and the other none."""


def by_engine(source: Any, batch: pa.RecordBatch) -> pa.Array:
    if isinstance(source, pl.Expr):
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        if batch.num_rows == 1:
            # Polars divides one row by a constant, and multiplies more than one by its reciprocal. A chunk is not
            # the column, so that ours is what it does for more than one.
            return by_engine(source, pa.concat_batches([batch, batch])).slice(0, 1)
        found = frame.with_columns(source.alias("out")).get_column("out").to_arrow()
    else:
        table = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
        project = acero.ProjectNodeOptions([source], ["out"])
        plan = [acero.Declaration("table_source", table), acero.Declaration("project", project)]
        found = acero.Declaration.from_sequence(plan).to_table(use_threads=False).column(0).combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    return found.cast(normalise(found.type))


def same(left: pa.Array, right: pa.Array, ulps: int) -> bool:
    """Equal type, nulls and values, the bits of floats included (any NaN is a NaN)."""
    if left.type != right.type or len(left) != len(right) or not left.is_null().equals(right.is_null()):
        return False
    mine, other = left.drop_null(), right.drop_null()
    if not pa.types.is_floating(left.type):
        return bool(mine.equals(other))
    one, two = np.asarray(mine), np.asarray(other)
    both_nan = np.isnan(one) & np.isnan(two)
    one, two = one[~both_nan], two[~both_nan]
    if ulps == 0:
        integer = np.dtype(f"i{one.dtype.itemsize}")
        return bool((one.view(integer) == two.view(integer)).all())
    with np.errstate(invalid="ignore"):
        close = np.abs(one - two) <= ulps * np.spacing(np.maximum(np.abs(one), np.abs(two)))
    return bool(((one == two) | close).all())


def outcome(run: Callable[[], pa.Array]) -> pa.Array | None:
    try:
        return run()
    except (ValueError, pa.ArrowException, pl.exceptions.PolarsError):  # DataError is a ValueError
        return None


@cache
def program_at(index: int) -> Program:
    return compile_steps([Project((("out", parse_expression(EVERYTHING[index], operator="test")),))], SCHEMA)


@cache
def filter_at(index: int) -> Program:
    return compile_steps([Where(parse_expression(EVERYTHING[index], operator="test"))], SCHEMA)


def check(index: int, batch: pa.RecordBatch, ulps: int = 0) -> None:
    source, program = EVERYTHING[index], program_at(index)
    expected = outcome(lambda: by_engine(source, batch))
    found = outcome(lambda: program.run(batch).column("out"))
    if expected is None or found is None:
        assert (expected is None) == (found is None), f"{source}: {program.explain()} {expected} {found}"
        return
    assert same(found, expected, ulps), f"{source}: {program.explain()}\n{found}\n{expected}"
    assert found.type == program.schema.field("out").type


def test_every_kernel_runs_in_some_expression() -> None:
    """An expression that runs on its engine equals its engine, so the tests of values would not tell."""
    passes = [one for index in range(len(EVERYTHING)) for one in program_at(index).passes]
    ops = [op for one in passes for slot in one.slots.values() for op in reachable(ops_of(slot))]
    missing = {*KERNELS, *VALIDITY} - {op.kernel for op in ops}
    assert not missing, (
        f"no expression in POLARS, ARROW or TRANSCENDENTAL runs {sorted(missing)}: arrowflow/expr/README.md lists the"
        " places of a kernel"
    )


@pytest.mark.parametrize("lowering", [PolarsLowering, ArrowLowering])
def test_every_rule_lowers_some_expression(lowering: type[Lowering], monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: set[str] = set()

    def watched(function: str, rule: Callable[..., Op]) -> Callable[..., Op]:
        @wraps(rule)
        def call(*arguments: Any, **options: Any) -> Op:
            found = rule(*arguments, **options)  # raises where the engine has to do it
            lowered.add(function)
            return found

        return call

    monkeypatch.setattr(
        lowering, "rules", {name: watched(name, rule) for name, rule in lowering.rules.items()}
    )
    forget_compiled()
    for source in EVERYTHING:
        compile_steps([Project((("out", parse_expression(source, operator="test")),))], SCHEMA)
    missing = lowering.rules.keys() - lowered
    assert not missing, (
        f"no expression in POLARS, ARROW or TRANSCENDENTAL runs {sorted(missing)} without its engine: "
        "arrowflow/expr/README.md lists the places of a kernel"
    )


@settings(max_examples=scaled(25))
@given(BATCHES)
@example(USUAL)
@example(SOME_NULLS)
def test_expressions_are_exact(batch: pa.RecordBatch) -> None:
    for index in range(len(EXACT)):
        check(index, batch)


@settings(max_examples=scaled(25))
@given(BATCHES)
@example(USUAL)
def test_transcendental_functions_are_within_two_ulps(batch: pa.RecordBatch) -> None:
    for index in range(len(EXACT), len(EVERYTHING)):
        check(index, batch, ulps=2)


@settings(max_examples=scaled(15))
@given(BATCHES)
@example(USUAL)
def test_predicates_keep_the_rows_that_the_engine_keeps(batch: pa.RecordBatch) -> None:
    for index in PREDICATES:
        source = EVERYTHING[index]
        flags = outcome(partial(by_engine, source, batch))
        if flags is None:  # as for pyarrow's u64 >= 1, see the expressions' own test
            continue
        expected = batch.filter(flags)
        found = filter_at(index).run(batch)
        assert found.num_rows == expected.num_rows, source
        for name in SCHEMA.names:
            assert same(found.column(name), expected.column(name), 0), f"{source} {name}"


def test_the_rows_that_pass_are_computed_alike() -> None:
    """All expressions in one program; those that raise are tried alone."""
    batch, where = make_batch(200, 7, True, 3), Where(parse_expression(c("day") >= DAY, operator="test"))
    rows = batch.filter(by_engine(c("day") >= DAY, batch))
    outputs, expected = [], []
    for index, source in enumerate(EVERYTHING):
        output = (str(index), parse_expression(source, operator="test"))
        alone = outcome(partial(_computed, program_at(index), rows))
        if alone is None:
            program = compile_steps([where, Project((output,))], SCHEMA)
            assert outcome(partial(_computed, program, batch)) is None, source
        else:
            outputs.append(output)
            expected.append(alone)
    assert len(expected) > 100
    found = compile_steps([where, Project(tuple(outputs))], SCHEMA).run(batch)
    for name, column, alone in zip(found.schema.names, found.columns, expected, strict=True):
        assert same(column, alone, 0), EVERYTHING[int(name)]


def _computed(program: Program, batch: pa.RecordBatch) -> pa.Array:
    return program.run(batch).column(0)


def test_columns_of_nulls() -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(3, field.type) for field in SCHEMA], schema=SCHEMA)
    for index in range(len(EVERYTHING)):
        check(index, batch)


@pytest.mark.parametrize("scale", [0, 1, 4])
def test_decimals_become_float32_as_pyarrow_does_it(scale: int) -> None:
    """Beyond 24 bits it rounds the whole and the fraction apart."""
    edge = 1 << 24
    for largest in (edge - 1, edge, edge + 1, 3 * edge // 2, 10**14 + 1):
        digits = [n for n in (0, 5, -3, edge - 1, edge, -edge, edge + 1, largest) if abs(n) <= largest]
        column = pa.array([Decimal(n).scaleb(-scale) for n in digits], pa.decimal128(15, scale))
        batch = pa.record_batch({"d": column})
        found = (
            af.from_arrow(batch).select(x=pc.field("d").cast(pa.float32())).to_table()["x"].combine_chunks()
        )
        assert same(found, column.cast(pa.float32()), 0)


def test_the_reciprocal_of_a_constant_may_overflow() -> None:
    """1 / 1e-45 is infinite as float32: the engine divides then, without a warning of NumPy."""
    frame = pl.DataFrame({"x": [1e-45, 0.0, None, 2.0]}, schema={"x": pl.Float32})
    expr = pl.col("x") / pl.lit(1e-45, dtype=pl.Float32)
    found = af.from_arrow(frame).select(y=expr).to_table()["y"].to_pylist()
    assert str(found) == str(frame.select(y=expr)["y"].to_list())

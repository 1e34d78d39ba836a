"""Conversions and arithmetic over the whole range of every type: in chunks of any size, what the engine gives."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import _acero as acero

from arrowflow.errors import ArrowflowError, DataError
from arrowflow.expr import Cast, Program, Project, Stack, compile_steps, normalise, parse_expression
from arrowflow.expr.compile.graph import Graph, Op
from arrowflow.expr.compile.slots import Foreign, slot_of
from arrowflow.expr.compile.steps import Output
from arrowflow.testing.contracts import IN_FULL
from arrowflow.types import numpy_dtype
from tests.expr.edges import DECIMALS, INTEGERS, NUMBERS, TEMPORAL, TYPES, edges
from tests.expr.test_kernels import same

c, f = pl.col, pc.field
PLAIN: Final = (*INTEGERS, pa.float32(), pa.float64(), pa.decimal128(15, 3))
FIRST_ROWS: Final = (0, 7)
ENGINE_ERRORS: Final = (
    ValueError,
    TypeError,
    pa.ArrowException,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
DAY: Final = datetime.date(1970, 1, 1)
MOMENT: Final = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)
SPAN: Final = datetime.timedelta(microseconds=-1)


def output_of(source: Any) -> Output:
    return source if isinstance(source, Cast | Stack) else parse_expression(source, operator="test")


def program_of(source: Any, schema: pa.Schema) -> Program | None:
    """The program of an expression or of an output; None when it is refused."""
    try:
        return compile_steps([Project((("out", output_of(source)),))], schema)
    except ArrowflowError:
        return None


def is_ours(source: Any, env: Mapping[str, Op], schema: pa.Schema, graph: Graph) -> bool:
    try:
        return not isinstance(slot_of(output_of(source), env.get, schema, graph), Foreign)
    except ArrowflowError:  # the engine refuses it
        return False


def check_all(sources: Iterable[Any], batch: pa.RecordBatch, first_rows: Sequence[int] = FIRST_ROWS) -> int:
    """Checks the expressions that NumPy computes, and returns how many there are. The others are their engine's own."""
    graph, schema = Graph(), batch.schema
    env = {field.name: graph.input(field.name, field.type) for field in schema if numpy_dtype(field.type)}
    ours = [source for source in sources if is_ours(source, env, schema, graph)]
    polars = [source for source in ours if isinstance(source, pl.Expr)]
    arrow = [source for source in ours if isinstance(source, pc.Expression)]
    for own, engine in ((polars, by_polars), (arrow, by_arrow)):
        if own:
            check_table(own, engine(own, batch), batch, first_rows)
    return len(ours)


def check_table(
    sources: Sequence[Any],
    expected: Sequence[pa.Array],
    batch: pa.RecordBatch,
    first_rows: Sequence[int] = FIRST_ROWS,
) -> None:
    """Checks outputs that no value of the batch makes fail, computed in one chunk, and in two."""
    outputs = [output_of(source) for source in sources]
    program = compile_steps(
        [Project(tuple((str(at), output) for at, output in enumerate(outputs)))], batch.schema
    )
    for rows in first_rows:
        chunks = [program.run(part) for part in (batch.slice(0, rows), batch.slice(rows)) if part.num_rows]
        found = pa.Table.from_batches(chunks).combine_chunks()
        for source, column, wanted in zip(sources, found.columns, expected, strict=True):
            array = pa.concat_arrays(column.chunks)
            assert equal(array, wanted), (
                f"{source} of {batch.schema.types}, after {rows} rows: {array}, not {wanted}"
            )


def equal(found: pa.Array, expected: pa.Array) -> bool:
    if isinstance(found, pa.FixedSizeListArray):
        return found.type.equals(expected.type) and equal(found.flatten(), expected.flatten())
    return same(found, expected, 0)


def by_polars(sources: Sequence[pl.Expr], batch: pa.RecordBatch) -> list[pa.Array]:
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    found = frame.with_columns(source.alias(str(at)) for at, source in enumerate(sources))
    arrays = [found.get_column(str(at)).to_arrow() for at in range(len(sources))]
    return [array.cast(normalise(array.type)) for array in arrays]


def by_arrow(sources: Sequence[pc.Expression], batch: pa.RecordBatch) -> list[pa.Array]:
    table = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    project = acero.ProjectNodeOptions(sources, [str(at) for at in range(len(sources))])
    plan = [acero.Declaration("table_source", table), acero.Declaration("project", project)]
    found = acero.Declaration.from_sequence(plan).to_table(use_threads=False)
    return [column.combine_chunks() for column in found.columns]


def polars_type(type: pa.DataType) -> pl.DataType:
    found = pl.from_arrow(pa.nulls(0, type))
    assert isinstance(found, pl.Series)
    return found.dtype


def casts(type: pa.DataType) -> Iterator[Any]:
    dtype = polars_type(type)
    yield c("x").cast(dtype)
    yield c("x").cast(dtype, strict=False)
    if dtype.is_integer():
        yield c("x").cast(dtype, wrap_numerical=True)
    yield f("x").cast(type)


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_every_type_is_cast_to_every_type(type: pa.DataType) -> None:
    batch = pa.RecordBatch.from_arrays([edges(type)], names=["x"])
    ours = check_all((source for target in TYPES for source in casts(target)), batch)
    assert ours or type in (pa.float16(), *DECIMALS[2:], pa.string())


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_the_operators_cast_as_pyarrow_does(type: pa.DataType) -> None:
    values = edges(type).drop_null()
    batch = pa.RecordBatch.from_arrays([values], names=["x"])
    for target in TYPES:
        for output in (Cast("x", target), Stack(("x",), target)):
            program = program_of(output, batch.schema)
            if program is None:
                continue
            try:
                wanted = values.cast(target)
            except pa.ArrowException:
                with pytest.raises(DataError):
                    program.run(batch)
            else:
                stacked = (
                    [wanted] if isinstance(output, Cast) else [pa.FixedSizeListArray.from_arrays(wanted, 1)]
                )
                check_table([output], stacked, batch)


# -- two columns, and a column with a constant

COMPARISONS: Final[tuple[Callable[[Any, Any], Any], ...]] = (
    lambda a, b: a > b,
    lambda a, b: a <= b,
    lambda a, b: a == b,
)
ARITHMETIC: Final[tuple[Callable[[Any, Any], Any], ...]] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
)
POLARS: Final = (
    *ARITHMETIC,
    *COMPARISONS,
    lambda a, b: a // b,
    lambda a, b: a % b,
    lambda a, b: pl.when(c("b")).then(a).otherwise(b),
)
ARROW: Final = (
    *ARITHMETIC,
    *COMPARISONS,
    pc.add,
    pc.subtract,
    pc.multiply,
    pc.divide,
    pc.coalesce,
    lambda a, b: pc.if_else(f("b"), a, b),
)


def made(functions: Any, left: Any, right: Any) -> Iterator[Any]:
    """The expressions of two sides that the engine's own interface lets one write."""
    for function in functions:
        try:
            found = function(left, right)
        except ENGINE_ERRORS:
            continue
        if isinstance(found, pl.Expr | pc.Expression):
            yield found


def flags(rows: int) -> pa.Array:
    return pa.array([[True, False, None][row % 3] for row in range(rows)])


@pytest.mark.parametrize("left", PLAIN, ids=str)
def test_two_columns(left: pa.DataType) -> None:
    ours = 0
    for right in PLAIN:
        one, two = edges(left), edges(right)
        both = np.divmod(np.arange(len(one) * len(two)), len(two))
        columns = [values.take(pa.array(places)) for values, places in zip((one, two), both, strict=True)]
        batch = pa.RecordBatch.from_arrays([*columns, flags(len(columns[0]))], names=["x", "y", "b"])
        ours += check_all((*made(POLARS, c("x"), c("y")), *made(ARROW, f("x"), f("y"))), batch, [299])
    assert ours


# Of every kind: of either sign, at the edges of the integers, beyond int64, of each type; zeros, and what rounds.
CONSTANTS: Final = (
    *(0, 2, 3, -1, -2, -129, 300, 2**24 + 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63)),
    *(0.0, -0.0, 0.5, 0.1, -2.0, 1e39, Decimal("1.5"), True),
)
OF_POLARS: Final = (
    *(2**63, 2**64 - 1, -(2**63) - 1, float("nan"), float("inf")),
    *(pl.lit(value, dtype=dtype) for value, dtype in ((-1, pl.Int8), (2**63, pl.UInt64), (0.1, pl.Float32))),
    *(pl.lit(value, dtype=pl.Float64) for value in (0.1, 2.0, 1e300)),
)
OF_ARROW: Final = (
    *(pa.scalar(value, pa.int8()) for value in (1, -1)),
    pa.scalar(2**63, pa.uint64()),
    pa.scalar(2.0, pa.float32()),
)


WITH_CONSTANTS: Final = (*PLAIN, pa.decimal128(18, 6))


@pytest.mark.parametrize("type", WITH_CONSTANTS, ids=str)
def test_a_column_and_a_constant(type: pa.DataType) -> None:
    values = edges(type)
    batch = pa.RecordBatch.from_arrays([values, flags(len(values))], names=["x", "b"])
    # In brief, each constant meets every second type.
    some = slice(None) if IN_FULL else slice(WITH_CONSTANTS.index(type) % 2, None, 2)
    ours = check_all(with_constants(POLARS, c("x"), (*CONSTANTS, *OF_POLARS)[some]), batch)
    ours += check_all(with_constants(ARROW, f("x"), (*CONSTANTS, *OF_ARROW)[some]), batch)
    assert ours


def with_constants(functions: Any, column: Any, constants: Any) -> Iterator[Any]:
    for constant in constants:
        yield from made(functions, column, constant)
        yield from made((*functions[1:5:2], functions[4]), constant, column)  # -, /, >


@pytest.mark.parametrize("type", TEMPORAL, ids=str)
def test_a_moment_and_a_constant(type: pa.DataType) -> None:
    values = edges(type)
    batch = pa.RecordBatch.from_arrays([values, values[::-1], flags(len(values))], names=["x", "y", "b"])
    polars = (DAY, MOMENT, SPAN, pl.lit(MOMENT, dtype=pl.Datetime("ns")), pl.lit(1).cast(pl.Time), c("y"))
    stored = [
        pa.scalar(5, pa.int64()).cast(kind)
        for kind in (pa.timestamp("s"), pa.timestamp("ns"), pa.duration("ns"))
    ]
    ours = 0
    for constant in polars:
        ours += check_all(made((*COMPARISONS, POLARS[-1]), c("x"), constant), batch)
    for constant in (DAY, MOMENT, SPAN, *stored, f("y")):
        ours += check_all(made((*COMPARISONS, *ARROW[-2:]), f("x"), constant), batch)
    assert ours


@pytest.mark.parametrize("type", [*NUMBERS, *TEMPORAL], ids=str)
def test_functions_of_one_column(type: pa.DataType) -> None:
    values = edges(type)
    batch = pa.RecordBatch.from_arrays([values, flags(len(values))], names=["x", "b"])
    x, y = c("x"), f("x")
    polars = [
        *(x.abs(), -x, x.floor(), x.ceil(), x.sqrt(), ~x, x & c("b"), x | c("b"), x.to_physical()),
        *(x.is_nan(), x.is_not_nan(), x.is_finite(), x.is_infinite(), x.is_null(), x.is_not_null()),
        *(x**2, x**2.0, x ** pl.lit(2, dtype=pl.Int8), x ** pl.lit(2, dtype=pl.Float64), x.fill_null(-1)),
        *(x // 0, x % 0, x / 0, x.is_between(-1, 5), x.is_between(0.5, 5, closed="left")),
    ]
    arrow = [
        *(pc.abs(y), pc.abs_checked(y), pc.negate(y), pc.negate_checked(y), pc.floor(y), pc.ceil(y)),
        *(pc.sqrt(y), pc.is_nan(y), pc.is_inf(y), pc.is_finite(y), y.is_null(), y.is_valid(), ~y, y & f("b")),
        *(y | f("b"), pc.multiply_checked(y, y), pc.divide_checked(y, 2), pc.divide_checked(y, 0)),
    ]
    assert check_all([*polars, *arrow], batch) or type == DECIMALS[-1]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (c("u") + (-2), [None, 3]),
        (c("u") * -129, [None, -645]),
        ((c("u") + -2) > 0, [None, True]),
        (c("u") / -1, [None, -5.0]),
        (c("u") / pl.lit(None), [None, None]),
        (c("t").cast(pl.Int32, strict=False), [None, 5]),
        (c("i").clip(5, 2), [5, 2]),
    ],
    ids=str,
)
def test_what_does_not_fit_is_null(source: Any, expected: list[object]) -> None:
    table = {
        "u": pa.array([2**63 + 1, 5], pa.uint64()),
        "t": pa.array([10**15, 5], pa.timestamp("us")),
        "i": [3, 7],
    }
    batch = pa.RecordBatch.from_pydict(table)
    program = program_of(source, batch.schema)
    assert program is not None
    assert program.run(batch).column("out").to_pylist() == expected

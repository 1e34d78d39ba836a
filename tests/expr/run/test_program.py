"""Programs: fusing changes nothing, what is passed through is not copied, errors are typed."""

from __future__ import annotations

import datetime
import pickle
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrowflow.errors import DataError, PlanError
from arrowflow.expr import (
    Cast,
    FillNull,
    Keep,
    Project,
    Stack,
    Step,
    Where,
    columns_of,
    compile_steps,
    output_fields,
    parse_expression,
)
from arrowflow.expr.run.columns import BLOCK_ROWS
from tests.effort import scaled

c, f = pl.col, pc.field


def expr(source: Any) -> Any:
    return parse_expression(source, operator="test")


def batch_of(rows: int, seed: int = 0) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    return pa.RecordBatch.from_pydict(
        {
            "i": pa.array(rng.integers(-9, 9, rows), pa.int32()),
            "x": pa.array(rng.standard_normal(rows), pa.float64()),
            "n": pa.array(rng.standard_normal(rows), pa.float32(), mask=rng.random(rows) < 0.3),
            "s": pa.array([str(value) for value in rng.integers(0, 9, rows)], pa.string()),
            "b": pa.array(rng.random(rows) < 0.5, pa.bool_(), mask=rng.random(rows) < 0.3),
        }
    )


STEPS: Final[list[Step]] = [
    Where(expr(c("i") > 0)),
    Where(expr(f("x") < 0.5)),
    Where(expr(c("b"))),
    Where(expr(c("s").is_in(["1", "2", "3", "4"]))),
    Where(expr(pc.starts_with(f("s"), "3") | (f("i") > -5))),
    Project(
        (
            ("i", Keep("i")),
            ("x", expr(c("x") * 2)),
            ("n", FillNull("n", 0)),
            ("s", Keep("s")),
            ("b", Keep("b")),
        )
    ),
    Project(
        (
            ("i", Cast("i", pa.int32())),
            ("x", expr(c("i") + c("x"))),
            ("n", Keep("n")),
            ("s", Keep("s")),
            ("b", Keep("b")),
        )
    ),
    Project(
        (
            ("i", Keep("i")),
            ("x", Keep("x")),
            ("n", Keep("n")),
            ("s", expr(c("s") + "!")),
            ("b", expr(~c("b"))),
        )
    ),
    Project(
        (
            ("i", Keep("i")),
            ("x", expr(f("x") - 1.0)),
            ("n", expr(c("n").log1p())),
            ("s", Keep("s")),
            ("b", expr(c("n") > 0)),
        )
    ),
    Project(
        (
            ("b", Keep("b")),
            ("s", expr(c("s").str.to_uppercase())),
            ("n", Keep("n")),
            ("x", Cast("n", pa.float64())),
            ("i", Keep("i")),
        )
    ),
    Project(
        (
            ("i", Keep("i")),
            ("n", Keep("n")),
            ("s", Keep("s")),
            ("b", FillNull("b", False)),
            ("x", expr(pl.lit(2.5))),
        )
    ),
]


def in_turn(steps: Sequence[Step], batch: pa.RecordBatch) -> pa.RecordBatch:
    for step in steps:
        batch = compile_steps([step], batch.schema).run(batch)
    return batch


@settings(max_examples=scaled(80))
@given(st.lists(st.sampled_from(STEPS), max_size=5), st.sampled_from([0, 1, 50]), st.integers(0, 20))
def test_fused_steps_equal_steps_in_turn(steps: list[Step], rows: int, offset: int) -> None:
    batch = batch_of(rows + offset).slice(offset)
    program = compile_steps(steps, batch.schema)
    found, expected = program.run(batch), in_turn(steps, batch)
    assert found.schema == expected.schema == program.schema
    for name in expected.schema.names:
        assert str(found.column(name)) == str(expected.column(name)), (name, program.explain())
    found.validate(full=True)


def test_rows_beyond_one_block() -> None:
    batch = batch_of(2 * BLOCK_ROWS + 17)
    steps: list[Step] = [
        Where(expr((c("i") > 0) | c("b"))),
        Project((("n", Keep("n")), ("b", Keep("b")), ("y", expr(c("n").fill_null(1) * 2)), ("s", Keep("s")))),
    ]
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    expected = frame.filter((c("i") > 0) | c("b")).select("n", "b", (c("n").fill_null(1) * 2).alias("y"), "s")
    found = pl.from_arrow(compile_steps(steps, batch.schema).run(batch))
    assert isinstance(found, pl.DataFrame)
    assert found.equals(expected)


def test_only_what_is_read_is_asked_for() -> None:
    batch = batch_of(10)
    steps: list[Step] = [
        Where(expr(c("i") > 0)),
        Project((("a", Keep("x")), ("y", expr(c("n") + 1)))),
        Project((("a", Keep("a")),)),
    ]
    program = compile_steps(steps, batch.schema)
    assert program.columns == {"i", "x"}
    assert program.run(batch.select(["x", "i"])).equals(program.run(batch))
    assert columns_of(Stack(("a", "b"))) == ("a", "b")
    assert columns_of(expr(c("n") + c("i"))) == ("i", "n")


def test_dead_columns_of_an_earlier_stage_are_not_computed() -> None:
    batch = batch_of(10)
    steps: list[Step] = [
        Project((("s", expr(c("s") + "!")), ("x", expr(c("x").cast(pl.Int8))))),
        Where(expr(c("s") > "3")),
        Project((("s", Keep("s")),)),
    ]
    assert compile_steps(steps, batch.schema).columns == {"s"}


def test_passing_through_is_not_a_copy() -> None:
    batch = batch_of(100)
    program = compile_steps(
        [Where(expr(c("i") > -100)), Project((("z", Keep("s")), ("i", Keep("i"))))], batch.schema
    )
    found = program.run(batch)
    assert found.column("z").buffers()[2].address == batch.column("s").buffers()[2].address
    assert found.column("i").buffers()[1].address == batch.column("i").buffers()[1].address
    renamed = compile_steps([Project((("z", expr(c("s"))), ("y", expr(f("i")))))], batch.schema)
    assert renamed.explain() == ["z: pass-through of s", "y: pass-through of i"]
    assert renamed.run(batch).column("y").buffers()[1].address == batch.column("i").buffers()[1].address


def test_another_type_for_the_same_bytes_is_not_a_copy() -> None:
    days = pa.array([1, None, 3], pa.int32()).cast(pa.date32())
    batch = pa.RecordBatch.from_arrays([days], names=["day"]).slice(1)
    found = compile_steps([Project((("day", expr(c("day").cast(pl.Int32))),))], batch.schema).run(batch)
    assert found.column("day").to_pylist() == [None, 3]
    assert found.column("day").buffers()[1].address == days.buffers()[1].address


def test_a_column_that_is_read_twice_may_become_a_date() -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1, None], pa.int32())})
    program = compile_steps([Project((("day", expr((c("a") + c("a")).cast(pl.Date))),))], batch.schema)
    assert program.run(batch).column("day").to_pylist() == [datetime.date(1970, 1, 3), None]


def test_lists_without_values_behind_others_can_be_put_together() -> None:
    """Polars says where their values begin, and hands over no bytes."""
    lists = pa.array([[1, 2]] * 11 + [None, []], pa.list_(pa.int64()))
    batch = pa.RecordBatch.from_arrays([lists], names=["l"]).slice(11)
    program = compile_steps(
        [Project((("o", expr(c("l").list.sort())), ("s", expr(pl.struct("l")))))], batch.schema
    )
    found = program.run(batch)
    twice = pa.concat_batches([found, found])
    assert twice.column("o").to_pylist() == [None, []] * 2
    assert twice.column("s").to_pylist() == [{"l": None}, {"l": []}] * 2


TYPES: Final = [
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.decimal128(15, 2),
    pa.decimal128(38, 4),
    pa.decimal256(60, 2),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time64("ns"),
    pa.timestamp("ns", "Europe/Berlin"),
    pa.duration("s"),
    pa.month_day_nano_interval(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.binary(3),
    pa.list_(pa.int32()),
    pa.large_list(pa.string()),
    pa.list_(pa.float32(), 2),
    pa.struct([("a", pa.int8()), ("b", pa.string())]),
    pa.map_(pa.string(), pa.int32()),
    pa.dictionary(pa.int8(), pa.string()),
    pa.fixed_shape_tensor(pa.float32(), (2, 2)),
]


@pytest.mark.parametrize("source", [c("k") > 1, f("k") > 1], ids=["polars", "arrow"])
def test_filters_carry_every_type(source: Any) -> None:
    arrays = {str(type): _nulls(type) for type in TYPES}
    batch = pa.RecordBatch.from_pydict(arrays | {"k": pa.array([0, 1, 2, 3])})
    found = compile_steps([Where(expr(source))], batch.schema).run(batch)
    assert found.schema == batch.schema
    assert found.column("k").to_pylist() == [2, 3]
    assert [found.column(name).null_count for name in arrays] == [2] * len(arrays)
    assert compile_steps([Where(expr(c("k") > 9))], batch.schema).run(batch).num_rows == 0
    assert compile_steps([Where(expr(c("k") > 1))], batch.schema).run(batch.slice(0, 0)).num_rows == 0


def _nulls(type: pa.DataType) -> pa.Array:
    if not isinstance(type, pa.BaseExtensionType):
        return pa.nulls(4, type)
    return pa.ExtensionArray.from_storage(type, pa.nulls(4, type.storage_type))


@pytest.mark.parametrize("copies", [1, 12], ids=["few columns", "many columns"])
def test_filters_carry_values(copies: int) -> None:
    kinds = {
        "dec": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(38, 2)),
        "bit": pa.array([True, None, False]),
        "fsl": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
        "half": pa.array(np.array([1, 2, 3], np.float16)),
        "text": pa.array(["a", None, ""]),
        "nested": pa.array([[[0, 0]], [[1, 1]], [[2, 2]], None], pa.list_(pa.list_(pa.int8(), 2), 1))[1:],
    }
    values = {f"{name} {copy}": array for copy in range(copies) for name, array in kinds.items()}
    values["k"] = pa.array([1, 0, 1])
    batch = pa.RecordBatch.from_pydict(values)
    computed = Project((*((name, Keep(name)) for name in batch.schema.names), ("twice", expr(c("k") * 2))))
    assert compile_steps([Where(expr(c("k") == 1)), computed], batch.schema).run(batch).column(
        "twice"
    ).to_pylist() == [2, 2]
    found = compile_steps([Where(expr(c("k") == 1))], batch.schema).run(batch)
    assert found.to_pydict() == {name: [array[0].as_py(), array[2].as_py()] for name, array in values.items()}


def test_stack_of_computed_columns() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1.0, None], "b": [2.0, 3.0], "k": [1, 0]})
    filled = Project((("a", expr(c("a").fill_null(0))), ("b", Keep("b")), ("k", Keep("k"))))
    stacked = Project((("m", Stack(("a", "b"))), ("k", Keep("k"))))
    program = compile_steps([filled, stacked], batch.schema)
    assert program.explain() == ["m: numpy", "k: pass-through"]
    assert program.schema.field("m").type == pa.list_(pa.float64(), 2)
    assert program.run(batch).column("m").to_pylist() == [[1.0, 2.0], [0.0, 3.0]]
    only = compile_steps([Where(expr(c("k") > 0)), filled, stacked], batch.schema)
    assert only.run(batch).column("m").to_pylist() == [[1.0, 2.0]]
    assert program.run(batch.slice(0, 0)).num_rows == 0


@pytest.mark.parametrize("type", [pa.float64(), pa.int64()])
def test_stack_refuses_nulls(type: pa.DataType) -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1, None, None], type), "b": pa.array([1, 2, 3], type)})
    for output in (Stack(("b", "a")), Stack(("b", "a"), pa.float32())):
        with pytest.raises(DataError, match=r"'a' \(2\).*fill_null"):
            compile_steps([Project((("m", output),))], batch.schema).run(batch)


def test_stack_casts_and_checks_types() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": [0.5, 1.5], "f": [True, False], "s": ["x", "y"]})

    def run(*names: str, type: pa.DataType | None = None) -> Any:
        return (
            compile_steps([Project((("m", Stack(names, type)),))], batch.schema)
            .run(batch)
            .column("m")
            .to_pylist()
        )

    assert run("a", "b", type=pa.float32()) == [[1.0, 0.5], [2.0, 1.5]]
    assert run("f", "f") == [[True, True], [False, False]]
    assert run("a", "b", type=pa.float16()) == [[1.0, 0.5], [2.0, 1.5]]
    assert run("a", "f", type=pa.bool_()) == [[True, True], [True, False]]
    with pytest.raises(PlanError, match=r"different types.*dtype="):
        run("a", "b")
    with pytest.raises(PlanError, match="numbers or booleans"):
        run("s", "s")
    with pytest.raises(PlanError, match="did you mean"):
        run("aa")
    with pytest.raises(PlanError, match="at least one"):
        run()
    with pytest.raises(DataError, match="'b' cannot be cast to int32"):
        run("a", "b", type=pa.int32())


def test_casts() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"a": [1, 300], "s": ["x", "7"], "d": [Decimal("1.50"), Decimal("2.25")]}
    )

    def run(name: str, type: Any) -> Any:
        return (
            compile_steps([Project((("out", Cast(name, type)),))], batch.schema)
            .run(batch)
            .column("out")
            .to_pylist()
        )

    assert run("a", pa.string()) == ["1", "300"]
    assert run("a", pa.int64()) == [1, 300]
    assert run("d", pa.float64()) == [1.5, 2.25]
    assert run("s", pl.Enum(["7", "x"])) == ["x", "7"]
    with pytest.raises(DataError, match="column 'a' cannot be cast to int8") as caught:
        run("a", pa.int8())
    assert isinstance(caught.value.__cause__, pa.ArrowInvalid)
    with pytest.raises(PlanError, match="cannot be cast"):
        run("a", pa.list_(pa.int8()))
    with pytest.raises(PlanError, match=r"depend on the data.*pl\.Enum"):
        run("s", pa.dictionary(pa.int8(), pa.string()))
    with pytest.raises(DataError):
        run("s", pl.Enum(["7"]))


def test_fill_null() -> None:
    values = {
        "i": pa.array([None, 2], pa.int8()),
        "f": pa.array([None, float("nan")], pa.float32()),
        "s": pa.array([None, "x"]),
        "b": pa.array([None, True]),
        "d": pa.array([None, Decimal("1.00")], pa.decimal128(9, 2)),
        "h": pa.array(np.array([1, 2], np.float16)),
    }
    batch = pa.RecordBatch.from_pydict(values)

    def run(name: str, value: Any) -> Any:
        program = compile_steps([Project((("out", FillNull(name, value)),))], batch.schema)
        assert program.schema.field("out").type == batch.schema.field(name).type
        return program.run(batch).column("out").to_pylist()

    assert run("i", -1) == [-1, 2]
    assert str(run("f", 0.5)) == "[0.5, nan]"
    assert run("s", "?") == ["?", "x"]
    assert run("b", False) == [False, True]
    assert run("d", 0) == [Decimal("0.00"), Decimal("1.00")]
    assert run("h", 0) == [1.0, 2.0]
    with pytest.raises(PlanError, match="cannot be a value of type int8"):
        run("i", 1000)
    with pytest.raises(PlanError, match="cannot be a value of type int8"):
        run("i", "x")
    with pytest.raises(PlanError, match="cannot be a value"):
        run("i", object())
    with pytest.raises(PlanError, match="got None"):
        run("i", None)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([Where(expr(c("ii") > 0))], "unknown column 'ii'.*did you mean 'i'"),
        ([Where(expr(f("ii") > 0))], "unknown column 'ii'"),
        ([Where(expr(c("i") + 1))], "one boolean expression"),
        ([Where(expr(c("i", "x") > 0))], "one boolean expression"),
        ([Project((("a", Keep("q")),))], "unknown column 'q'"),
        ([Project((("a", Keep("i")), ("a", Keep("x"))))], "must be unique.*'a'"),
        ([Project((("a", expr(c("s") * c("b"))),))], "cannot evaluate"),
        ([Project((("a", expr(pc.add(f("s"), f("i")))),))], "cannot evaluate"),
        ([Project((("a", expr(c("i", "x"))),))], "yields 2 columns"),
    ],
)
def test_plan_errors(steps: list[Step], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        compile_steps(steps, batch_of(0).schema)


TEMPORAL = pa.schema(
    [
        *(("b", pa.bool_()), ("i", pa.int64()), ("day", pa.date32()), ("ts", pa.timestamp("s"))),
        ("st", pa.struct([("x", pa.date32())])),
    ]
)
when = pl.when(c("b"))


def test_plan_errors_about_types() -> None:
    schema = pa.schema(
        [("w", pa.decimal256(60, 2)), ("u", pa.uint64()), ("i", pa.int64()), ("d", pa.decimal128(15, 2))]
    )
    with pytest.raises(PlanError, match=r"Polars cannot read column 'w'.*pyarrow\.compute"):
        output_fields(expr(c("w") > 1), schema)
    inside = pa.schema([("st", pa.struct([("w", pa.decimal256(60, 2))]))])
    with pytest.raises(PlanError, match=r"Polars cannot read column 'st'"):
        compile_steps([Project((("st", Cast("st", pl.Enum(["a"]))),))], inside)
    with pytest.raises(PlanError, match=r"Int128.*cast"):
        output_fields(expr(c("u").cast(pl.Int128)), schema)
    with pytest.raises(PlanError, match="Precision"):
        output_fields(expr(f("d") > 0), schema)
    with pytest.raises(PlanError, match="guesses a format"):
        output_fields(expr(c("s").cast(pl.Date).dt.year()), pa.schema([("s", pa.string())]))
    assert output_fields(expr(c("i").cast(pl.Datetime("us"))), schema)[0].type == pa.timestamp("us")
    with pytest.raises(PlanError, match=r"casts string to a struct.*pl\.struct"):
        output_fields(expr(c("s").cast(pl.Struct({"x": pl.Int64}))), pa.schema([("s", pa.string())]))
    positive = c("v").list.filter(pl.element() > 0)
    dates = output_fields(expr(positive.cast(pl.Date)), pa.schema([("v", pa.list_(pa.int64()))]))
    assert dates[0].type == pa.date32()
    with pytest.raises(PlanError, match="must be unique"):
        compile_steps([], pa.schema([("a", pa.int8()), ("a", pa.int8())]))


BARE_NUMBERS = [
    when.then(c("day")).otherwise(0).degrees(),
    when.then(c("day") - c("day")).otherwise(pl.lit(0)),
    when.then(0).otherwise(c("ts")).dt.epoch(time_unit="ns"),
    when.then(c("day")).when(c("i") > 1).then(pl.lit(2) + 1.5).otherwise(c("day")),
    when.then(c("day")).otherwise(float("nan")),
    c("st").struct.with_fields(pl.when(pl.field("x") == pl.field("x")).then(pl.field("x")).otherwise(0)),
]


@pytest.mark.parametrize("source", BARE_NUMBERS, ids=range(len(BARE_NUMBERS)))
def test_bare_numbers_among_dates_and_times_are_refused(source: pl.Expr) -> None:
    with pytest.raises(PlanError, match=r"depends on the rows.*pl\.lit\(0, dtype"):
        output_fields(expr(source), TEMPORAL)


def test_numbers_among_others_have_a_type() -> None:
    typed = {
        pa.int64(): [
            when.then(c("i")).otherwise(0),
            when.then(c("day")).otherwise(pl.lit(0, dtype=pl.Int64)),
        ],
        pa.int32(): [when.then(1).otherwise(2), when.then(1).otherwise(None)],
        pa.float64(): [when.then(1).when(c("i") > 1).then(2.5).otherwise(c("i"))],
        pa.date32(): [when.then(c("day")).otherwise(pl.lit(0).cast(pl.Date)), when.then(c("day"))],
        TEMPORAL.field("st").type: [
            c("st").struct.with_fields(pl.when(pl.field("x").dt.day() > 1).then(pl.field("x")))
        ],
    }
    found = {
        type: {output_fields(expr(one), TEMPORAL)[0].type for one in many} for type, many in typed.items()
    }
    assert found == {type: {type} for type in typed}


@pytest.mark.parametrize(
    "source", [pc.add_checked(f("i"), f("i")), c("i").cast(pl.Int8), c("s").str.to_integer()]
)
def test_values_that_an_engine_refuses(source: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"i": pa.array([1 << 62]), "s": ["x"]})
    program = compile_steps([Project((("out", expr(source)),))], batch.schema)
    with pytest.raises(DataError, match="cannot evaluate") as caught:
        program.run(batch)
    assert caught.value.__cause__ is not None


def test_mixed_engines_in_one_projection() -> None:
    batch = batch_of(30)
    outputs = (
        ("one", expr(c("s").str.len_bytes())),
        ("two", expr(pc.utf8_upper(f("s")))),
        ("three", expr(pl.lit("k"))),
        ("four", expr(c("i") * 2)),
    )
    program = compile_steps([Where(expr(f("i") > 0)), Project(outputs)], batch.schema)
    assert program.explain() == ["filter: numpy", "one: polars", "two: arrow", "three: polars", "four: numpy"]
    found = program.run(batch)
    assert set(found.column("three").to_pylist()) == {"k"}
    assert found.column("one").to_pylist() == [1] * found.num_rows
    foreign = compile_steps([Where(expr(c("s") > "4"))], batch.schema)
    assert foreign.explain()[0] == "filter: polars"
    two = compile_steps([Project(outputs), Where(expr(c("one") > 0))], batch.schema)
    assert two.explain()[0] == "1. one: polars"
    constants = compile_steps([Project((("k", expr(pl.lit(1))),))], batch.schema)
    assert constants.run(batch).num_rows == 0 or constants.run(batch).column("k").to_pylist() == [1] * 30


def test_enum_codes_and_text_from_polars() -> None:
    batch = pa.RecordBatch.from_pydict({"s": ["b", "a", None]})
    enum = expr(c("s").cast(pl.Enum(["a", "b"])))
    program = compile_steps([Project((("e", enum), ("l", expr(pl.concat_list("s", "s")))))], batch.schema)
    found = program.run(batch)
    assert pa.types.is_dictionary(found.schema.field("e").type)
    assert found.column("e").indices.to_pylist() == [1, 0, None]
    assert found.schema.field("l").type == pa.list_(pa.string())


def test_a_program_runs_in_many_threads() -> None:
    batch = batch_of(5000)
    steps: list[Step] = [
        Where(expr(c("i") > 0)),
        Project((("y", expr(c("x") * 3 + c("n"))), ("s", Keep("s")))),
    ]
    program = compile_steps(steps, batch.schema)
    parts = [batch.slice(start, 500) for start in range(0, 5000, 500)]
    expected = [program.run(part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert all(
                left.equals(right) for left, right in zip(pool.map(program.run, parts), expected, strict=True)
            )


def test_steps_pickle() -> None:
    for step in STEPS:
        assert pickle.loads(pickle.dumps(step)) == step


def test_scratch_memory_does_not_grow_with_the_columns() -> None:
    names = [f"c{at}" for at in range(100)]
    batch = pa.record_batch({name: pa.array([1.0, -1.0, 3.0]) for name in names})
    positive = Where(parse_expression(pl.col("c0") > 0, operator="filter"))
    logarithms = [(name, parse_expression(pl.col(name).log1p() * 2, operator="select")) for name in names]
    program = compile_steps([positive, Project(tuple(logarithms))], batch.schema)
    tracemalloc.start()
    try:
        assert program.run(batch).num_rows == 2
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 8 * BLOCK_ROWS  # one block of values takes eight bytes a row

"""What an engine evaluates depends on the row alone, whichever rows are in its chunk."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from arrowflow.expr import Project, Where, compile_steps, parse_expression

c = pl.col
HAS_B: Final = c("s").str.contains("b")  # true in the first third, false in the second, null in the last
CONSTANT_IN_CHUNKS: Final[list[Any]] = [
    pl.lit(1e39) >= pl.when(c("s").is_null()).then(c("f")).otherwise(0),
    pl.lit(1.0) >= pl.when(HAS_B).then(49.0).otherwise(3.0),
    pl.when(HAS_B).then(49.0).otherwise(3.0) >= pl.lit(1.0),
    pl.lit(True).eq_missing(c("l").list.agg(pl.element().any())),
    c("x") / pl.when(HAS_B).then(49.0).otherwise(3.0),
    c("x") / pl.when(HAS_B).then(49.0).when(c("i") > 3).then(7.0).otherwise(3.0),
    c("f") / pl.when(HAS_B).then(pl.lit(7) * 7).otherwise(3.0),
    c("i") + pl.when(HAS_B).then(100).otherwise(2),
    c("x") / pl.coalesce("k", 49),
    c("x") / pl.coalesce(pl.when(HAS_B).then(7.0), 49.0),
    pl.when(c("x") / pl.when(HAS_B).then(49.0) > 0.5).then(c("x") / 49).otherwise(1),
    pl.when(HAS_B).then(1.5).otherwise(c("f")),
    c("v").list.eval(pl.element() / 49).list.get(0, null_on_oob=True),
    c("v").list.eval(pl.element() / pl.when(pl.element() > 0).then(49.0).otherwise(3.0)).list.sum(),
]


def rows() -> pa.RecordBatch:
    rng = np.random.default_rng(14)
    size = 300
    third = np.arange(size) // 100
    x = rng.standard_normal(size) * 10
    columns = {
        "x": pa.array(x),
        "f": pa.array(x.astype(np.float32)),
        "i": pa.array(rng.integers(-100, 100, size), pa.int8()),
        "k": pa.array([None if part == 1 else 7 for part in third], pa.int64()),
        "s": pa.array([("abc", "xyz", None)[part] for part in third]),
        "l": pa.array([None if part else [True, False] for part in third], pa.list_(pa.bool_())),
        "v": pa.array([[value] if index % 7 == 0 else [] for index, value in enumerate(x)]),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def cut(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    borders = [0, 1, 3, 100, 101, 150, 152, 200, 299, 300]
    return [batch.slice(start, stop - start) for start, stop in pairwise(borders)]


def test_values_are_cut_at_fixed_borders() -> None:
    """A chunk without some of the intervals has the codes of all."""
    borders, batch = [-5.0, 0.0, 7.5], rows()
    labels = ["lowest", "low", "high", "highest"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Polars 2 has another name
        cut_to_enum = c("x").cut(borders, labels=labels).cast(pl.Enum(labels))
    sources: dict[str, Any] = {"cut": cut_to_enum}
    if hasattr(pl.Expr, "bin_intervals"):
        sources["bins"] = c("x").bin_intervals(borders, labels=False, right_closed=True)
    outputs = [(name, parse_expression(source, operator="select")) for name, source in sources.items()]
    program = compile_steps([Project(tuple(outputs))], batch.schema)
    found = pl.concat([pl.DataFrame(program.run(part)) for part in cut(batch)])
    expected = np.searchsorted(borders, batch["x"].to_numpy())
    assert found["cut"].to_physical().to_list() == expected.tolist()
    assert "bins" not in sources or found["bins"].to_list() == expected.tolist()


@pytest.mark.parametrize("source", CONSTANT_IN_CHUNKS, ids=range(len(CONSTANT_IN_CHUNKS)))
def test_chunks_change_nothing(source: Any) -> None:
    batch = rows()
    project = Project(
        (
            ("out", parse_expression(source, operator="test")),
            ("x", parse_expression(c("x") + 1, operator="test")),
        )
    )
    program = compile_steps([project], batch.schema)
    assert program.explain()[0] == "out: polars"
    whole = program.run(batch)
    assert pa.Table.from_batches([program.run(part) for part in cut(batch)]).equals(pa.table(whole))
    expected = pl.DataFrame(batch).with_columns(out=source).get_column("out")
    assert pl.Series(whole.column("out")).equals(expected, check_dtypes=True)
    assert program.run(batch.slice(0, 0)).num_rows == 0


def test_what_is_one_row_for_polars_is_repeated() -> None:
    batch = rows()
    null = parse_expression(pl.lit(1) > (c("i") > pl.lit(None)), operator="test")
    five = parse_expression(pl.lit(5), operator="test")
    program = compile_steps([Project((("null", null), ("five", five)))], batch.schema)
    for part in [batch, *cut(batch), batch.slice(0, 0)]:
        size = part.num_rows
        assert program.run(part).to_pydict() == {"null": [None] * size, "five": [5] * size}


@pytest.mark.parametrize(
    "source", [source for source in CONSTANT_IN_CHUNKS if "list" not in str(source)], ids=str
)
def test_chunks_drop_no_rows(source: Any) -> None:
    batch = rows()
    program = compile_steps([Where(parse_expression(source.cast(pl.Boolean), operator="test"))], batch.schema)
    found = pa.Table.from_batches([program.run(part) for part in cut(batch)])
    assert found.equals(pa.table(program.run(batch)))

"""Literals that Python's own objects do not hold: they do what the engine does, in programs and over pruned files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.types import exact_values, temporal_array

c, f = pl.col("x"), pc.field("x")
DAY: Final = 86_400_000
# What is stored: beyond nanoseconds, the years 1 to 9999, and what Python's own spans and clocks count.
TIMES: Final[dict[pa.DataType, list[int]]] = {
    pa.timestamp("s"): [-(2**40), 0, 2**40],
    pa.timestamp("ms"): [-(2**60), 253402300799999, 253402300800000],
    pa.timestamp("us"): [-62135596800000001, 1, 2**62],
    pa.timestamp("ns"): [-1, 1, 2, 2**62],
    pa.timestamp("us", "UTC"): [-(2**62), 1, 2**62],
    pa.timestamp("ns", "Europe/Berlin"): [1, 2, 2**62],
    pa.duration("s"): [-(2**40), 1, 2**40],
    pa.duration("ns"): [-1, 1, 2, 2**62],
    pa.time64("ns"): [0, 1, 2, DAY * 10**6 - 1],
    pa.date32(): [-719163, 2**30, -(2**31) + 1],
    pa.date64(): [-719163 * DAY, DAY, 2**30 * DAY],
}
# The others differ in what is stored alone.
QUICK: Final = {
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.duration("ns"),
    pa.date32(),
}


def arrow_forms(literal: pa.Scalar) -> Iterator[pc.Expression]:
    values = pa.repeat(literal, 1)
    yield from (f == literal, f != literal, f < literal, f >= literal, (f >= literal) & (f <= literal))
    yield from (pc.is_in(f, value_set=values), f.isin(values))
    yield from (pc.coalesce(f, literal), pc.if_else(f > literal, f, literal))


def polars_forms(literal: Any) -> Iterator[pl.Expr]:
    yield from (c == literal, c != literal, c < literal, c >= literal, c.is_between(literal, literal))
    yield from (c.eq_missing(literal), c.fill_null(literal), pl.when(c > literal).then(c).otherwise(literal))


def by_engine(source: Any, table: pa.Table) -> pa.Array:
    if isinstance(source, pl.Expr):
        return pl.DataFrame(table).with_columns(out=source).get_column("out").to_arrow()
    return ds.dataset(table).to_table(columns={"out": source}, use_threads=False)["out"].combine_chunks()


def check(sources: Sequence[Any], table: pa.Table, path: Path, *, inverted: bool = True) -> None:
    outputs = {str(at): source for at, source in enumerate(sources)}
    computed = af.from_arrow(table).select(**outputs).to_table()
    for source, column in zip(sources, computed.columns, strict=True):
        expected, found = by_engine(source, table), column.combine_chunks()
        assert found.equals(expected.cast(found.type)), source
        if pa.types.is_boolean(found.type):
            pairs = [(source, expected), (~source, pc.invert(expected))]
            for predicate, flags in pairs[: 1 + inverted]:
                kept = af.read_parquet(path).filter(predicate).to_table()
                assert kept["row"].combine_chunks().equals(table.filter(flags)["row"].combine_chunks()), (
                    source
                )


def written(values: pa.Array, path: Path) -> pa.Table:
    """One row a row group, null among them, as Parquet gives it back: it has no seconds."""
    column = pa.concat_arrays([values, pa.nulls(1, values.type)])
    table = pa.table({"x": column, "row": range(len(column))})
    pq.write_table(table, path, row_group_size=1)
    return af.read_parquet(path).to_table().combine_chunks()


@pytest.mark.parametrize(
    "type", [pytest.param(type, marks=() if type in QUICK else pytest.mark.slow) for type in TIMES], ids=str
)
def test_times_beyond_those_of_python(type: pa.DataType, tmp_path: Path) -> None:
    table = written(
        pa.concat_arrays([temporal_array(value, type) for value in TIMES[type]]), tmp_path / "x.parquet"
    )
    column = table["x"].combine_chunks()
    series = pl.Series(column)
    for index in range(len(TIMES[type])):
        literal = pl.lit(series.to_physical()[index]).cast(series.dtype)
        polars = (*polars_forms(literal), c.is_in(series[[index]].implode()))
        forms, is_last = [*arrow_forms(column[index]), *polars], index == len(TIMES[type]) - 1
        check(forms, table, tmp_path / "x.parquet", inverted=is_last)  # which is beyond those of Python


NOT_UTF8: Final = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\x02\0\0\0"), pa.py_buffer(b"\xff\xfe")]
)
OTHERS: Final[list[tuple[pa.Array, list[Any]]]] = [
    (
        pa.array([0, 1, 2**64 - 1], pa.uint64()),
        [
            c.is_in([2**64 - 1, 2**64]),
            c.is_in([2**64 - 1]),
            c < 2**64,
            c == 2**65,
            f == pa.scalar(2**64 - 1, pa.uint64()),
        ],
    ),
    (pa.array([0, 2**63 - 1]), [c.is_in([2**64]), c < 2**64, c > -(2**63) - 1]),
    (
        pa.array([b"", b"a", b"\xff", b"\xff\xfe"]),
        [c == b"\xff", c.is_in([b"\xff"]), f == b"\xff", f.isin([b"\xff"]), f < pa.scalar(b"\xff\xfe")],
    ),
    (pa.array(["", "a", "ÿ"]), [f == NOT_UTF8[0], f < NOT_UTF8[0], f.isin(NOT_UTF8), f == b"\xff"]),
    (
        pa.array([0.0, 1.5, 3e38], pa.float32()),
        [c < 1e39, c.is_between(-1e39, 1e39), f < 1e39, f.isin([1e39])],
    ),
    (
        pa.array([0, 1], pa.timestamp("ms")),
        [f < temporal_array(2**40, pa.timestamp("s"))[0], f > temporal_array(999_999, pa.timestamp("ns"))[0]],
    ),
    (pa.array([9131, 9132], pa.date32()), [f < pa.scalar(9131 * 86_400 + 1, pa.timestamp("s"))]),
]


@pytest.mark.parametrize(("values", "sources"), OTHERS, ids=[str(values.type) for values, _ in OTHERS])
def test_numbers_bytes_and_texts(values: pa.Array, sources: list[Any], tmp_path: Path) -> None:
    table = written(values, tmp_path / "x.parquet")
    check(sources, table, tmp_path / "x.parquet")


def test_expressions_that_pyarrow_cannot_write_have_a_text() -> None:
    dataset = af.from_arrow(pa.table({"x": ["a"]})).filter(f == NOT_UTF8[0])
    assert "\\xff\\xfe" in dataset.explain()
    with pytest.raises(af.PlanError, match=r"\\xff"):
        _ = af.from_arrow(pa.table({"x": [1]})).filter(pc.equal(pc.add(f, 1), NOT_UTF8[0])).schema


def test_digests_tell_apart_what_python_does_not() -> None:
    one, two = (f > temporal_array(value, pa.timestamp("ns"))[0] for value in (1, 2))
    digests = {af.expr.parse_expression(source, operator="test").digest() for source in (one, two, one)}
    assert len(digests) == 2


def test_exact_values() -> None:
    nested = pa.array([[1], None, []], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("ns")))
    assert exact_values(nested) == [[1], None, []]
    assert exact_values(NOT_UTF8) == [b"\xff\xfe"]
    assert exact_values(temporal_array(2**30, pa.date32())) == [2**30]

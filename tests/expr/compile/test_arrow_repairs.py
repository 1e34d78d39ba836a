"""What runs in the place of calls of pyarrow that write where they must not gives the same, in memory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af

f = pc.field
MOMENTS = [pa.timestamp("s"), pa.timestamp("ns", "Europe/Berlin"), pa.date32(), pa.date64()]


@pytest.mark.parametrize("type", MOMENTS, ids=str)
def test_the_date_is_the_one_of_pyarrow(type: pa.DataType) -> None:
    moments = pa.array([0, None, 1_000_000, -1], type)
    dates = pc.year_month_day(moments)
    found = af.from_arrow(pa.table({"t": moments})).select(out=pc.year_month_day(f("t"))).to_table()
    assert found.column("out").combine_chunks().equals(dates)


def test_dates_may_be_parts_of_dates() -> None:
    year = pc.struct_field(pc.year_month_day(f("t")), ["year"])
    day = pc.struct_field(pc.year_month_day(pc.if_else(year == 1970, f("t"), pc.scalar(None))), ["day"])
    rows = af.from_arrow(pa.table({"t": pa.array([86_400, None, 10**9], pa.timestamp("s"))}))
    assert rows.select(day=day).to_table().column("day").to_pylist() == [2, None, None]
    assert rows.filter(year > 1970).num_rows is None
    assert rows.filter(year > 1970).to_table().num_rows == 1


@pytest.mark.slow
def test_dates_of_many_rows_stay_within_their_memory() -> None:
    code = """
import pyarrow as pa, pyarrow.compute as pc, arrowflow as af
rows = af.from_arrow(pa.table({"t": pa.array([1] * 3_000, pa.timestamp("s"))}))
print(rows.select(out=pc.year_month_day(pc.field("t"))).to_table().num_rows)
"""
    environment = os.environ | {"ARROW_DEBUG_MEMORY_POOL": "abort"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert run.stdout.split() == ["3000"], run.stderr


CASES: list[tuple[Any, list[str | None]]] = [
    (pc.ascii_upper, ["AB", None, "C"]),
    (pc.ascii_lower, ["ab", None, "c"]),
    (pc.ascii_swapcase, ["Ab", None, "c"]),
]


@pytest.mark.parametrize(("function", "expected"), CASES, ids=["upper", "lower", "swapcase"])
@pytest.mark.parametrize("large", [False, True])
def test_texts_need_not_begin_where_their_buffer_does(
    function: Any, expected: list[str | None], large: bool
) -> None:
    offsets = pa.py_buffer(np.array([2, 4, 4, 5], np.int32))
    texts = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\5"), offsets, pa.py_buffer(b"xyaBC")])
    assert texts.to_pylist() == ["aB", None, "C"]
    expr = function(f("s").cast(pa.large_string()) if large else f("s"))
    out = af.from_arrow(pa.table({"s": texts})).select(out=expr).to_table().column("out")
    out.validate(full=True)
    assert out.to_pylist() == expected

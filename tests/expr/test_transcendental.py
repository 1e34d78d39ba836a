"""Transcendental functions: which are equal to their engine bit for bit, and which within two ulps.

A kernel of a transcendental function may be so near and not equal, on every CPU. Compare on `dense`. Such a function is in `NEAR`,
in `TRANSCENDENTAL` of `test_kernels.py` and in no line of `test_conversions.py`. The docstring of `expr/run/numpy_kernels.py`
and `docs/limits.md` name it, and `~` precedes it in `tests/fuzz/polars_calls.py`.

NumPy picks its loops by the features of the CPU: `NPY_DISABLE_CPU_FEATURES="…" pytest` runs this as on another CPU, for
each line that `python -m tests.expr.cpu_levels` prints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from arrowflow.expr import Program, Project, compile_steps, parse_expression
from tests.expr.cpu_levels import cpu_feature_levels, umath
from tests.fuzz import polars_calls

Floats = npt.NDArray[Any]

x, f = pl.col("x"), pc.field("x")
BASES: Final = (1.5, 2, 2.5, 7, 10, 1000, 1e30)
NEAR: Final[list[Any]] = [
    x.exp(),
    x.log(),
    *(x.log(base) for base in BASES),
    x.log10(),
    x.log1p(),
    pc.exp(f),
    pc.ln(f),
    pc.log1p(f),
    pc.power(f, 2),
]
EXACT: Final[list[Any]] = [
    *(x.sqrt(), x.cbrt(), x**2, x**2.0, x**3, x**0.5, x.log(0.5)),
    *(x.sin(), x.cos(), x.tan(), x.cot(), x.arcsin(), x.arccos(), x.arctan()),
    *(x.sinh(), x.cosh(), x.tanh(), x.arcsinh(), x.arccosh(), x.arctanh()),
    *(x.degrees(), x.radians(), pl.arctan2(x, 1 - x)),
    *(pc.sqrt(f), pc.power(f, 3), pc.power(f, 0.5), pc.log2(f), pc.log10(f), pc.logb(f, 3.0)),
    *(pc.sin(f), pc.cos(f), pc.tan(f), pc.asin(f), pc.acos(f), pc.atan(f), pc.atan2(f, f)),
]
TYPES: Final = (pa.float32(), pa.float64())


@pytest.mark.parametrize("source", NEAR, ids=str)
def test_what_is_near_is_told_to_users_and_to_the_fuzzer(source: Any) -> None:
    (name,) = {*re.findall(r"(\w+)\(", str(source))} - {"col"}
    limits = (Path(__file__).resolve().parents[2] / "docs/limits.md").read_text(encoding="utf-8")
    assert re.search(rf"`{'log' if name == 'ln' else name}\b", limits)
    calls = [line for line in polars_calls.POLARS.splitlines() if f".{name}(" in line]
    assert all(line.startswith("~") for line in calls)
    assert calls or not isinstance(source, pl.Expr)


def dense(type: pa.DataType) -> Floats:
    """Values of every magnitude, the numbers around 0, 1 and 2, all powers of two, subnormals and infinities."""
    dtype = np.dtype(f"f{type.bit_width // 8}")
    rng = np.random.default_rng(type.bit_width)
    bits = rng.integers(0, 1 << type.bit_width, 100_000, np.dtype(f"u{dtype.itemsize}"), endpoint=False)
    centres = rng.choice([0.0, 1.0, 2.0, np.e], 100_000)
    near = (centres + rng.standard_normal(100_000) * 10.0 ** rng.integers(-9, 2, 100_000)).astype(dtype)
    with np.errstate(over="ignore", under="ignore"):
        powers = np.ldexp(1.0, np.arange(-1074, 1024)).astype(dtype)
    limits = np.finfo(dtype)
    edges = np.array([0.0, np.inf, np.nan, limits.max, limits.tiny, limits.smallest_subnormal], dtype)
    beside = np.nextafter(np.array([0, 1, 1, 2], dtype), np.array([1, 0, 2, 1], dtype))
    some = np.concatenate([bits.view(dtype), near, powers, edges, beside])
    return np.concatenate([some, -some])


@cache
def batch_of(type: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(dense(type))], names=["x"])


def some_of(type: pa.DataType, rows: int) -> pa.RecordBatch:
    batch = batch_of(type)
    return batch.take(pa.array(np.random.default_rng(3).integers(0, batch.num_rows, rows)))


def program_of(sources: Sequence[Any], type: pa.DataType) -> Program:
    outputs = [(str(at), parse_expression(source, operator="test")) for at, source in enumerate(sources)]
    return compile_steps([Project(tuple(outputs))], pa.schema([("x", type)]))


def by_engine(source: Any, batch: pa.RecordBatch) -> Floats:
    if isinstance(source, pl.Expr):
        return pl.DataFrame(batch).select(source.alias("x")).to_series().to_numpy()
    found = ds.dataset(pa.table(batch)).to_table(columns={"x": source}, use_threads=False)
    return np.asarray(found.column(0).combine_chunks())


def distance(left: Floats, right: Floats) -> int:
    """The most ulps between two numbers of the same place; NaN must be in the same places."""
    assert left.dtype == right.dtype
    assert (np.isnan(left) == np.isnan(right)).all()
    numbers = ~np.isnan(left)
    one, two = (_ordered(side[numbers]) for side in (left, right))
    far = 1 << 40  # a sum of two whole numbers of 64 bits would not fit
    across = np.minimum(np.abs(one), far) + np.minimum(np.abs(two), far)
    return int(np.where((one < 0) == (two < 0), np.abs(one - two), across).max(initial=0))


def _ordered(values: Floats) -> npt.NDArray[np.int64]:
    """Whole numbers in the order of the values: neighbours are one apart, and -0.0 comes right before 0.0."""
    dtype = np.dtype(f"i{values.dtype.itemsize}")
    bits = values.view(dtype)
    return np.where(bits < 0, -1 - (bits & np.iinfo(dtype).max), bits).astype(np.int64)


@pytest.mark.parametrize("type", TYPES, ids=str)
@pytest.mark.parametrize("source", NEAR, ids=str)
def test_exponentials_and_logarithms_are_within_two_ulps(source: Any, type: pa.DataType) -> None:
    batch, program = batch_of(type), program_of([source], type)
    assert program.explain() == ["0: numpy"]
    assert distance(np.asarray(program.run(batch).column(0)), by_engine(source, batch)) <= 2


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_all_others_are_equal_to_the_bit(type: pa.DataType) -> None:
    batch = some_of(type, 5_000)
    found = program_of(EXACT, type).run(batch)
    for source, column in zip(EXACT, found.columns, strict=True):
        assert distance(np.asarray(column), by_engine(source, batch)) == 0, source


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_a_value_depends_on_its_row_alone(type: pa.DataType) -> None:
    sources = [*NEAR, *EXACT]
    program, batch = program_of(sources, type), some_of(type, 600)
    cuts = [0, 1, 2, 5, 12, 29, 64, 131, 600]
    parts = pa.Table.from_batches(
        [program.run(batch.slice(start, stop - start)) for start, stop in pairwise(cuts)]
    )
    for source, column, whole in zip(sources, parts.columns, program.run(batch).columns, strict=True):
        assert distance(np.asarray(column), np.asarray(whole)) == 0, source


def test_levels_begin_with_all_features_and_end_with_none() -> None:
    levels = cpu_feature_levels()
    found = {name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]}
    assert levels[0] == ""
    assert found == set(levels[-1].split())


def test_levels_of_other_machines() -> None:
    older = ["SSE42", "AVX2", "FMA3", "AVX512F", "AVX512_SKX", "AVX512_SPR"]
    has = dict.fromkeys(older[:-1], True) | {"AVX512_SPR": False}
    assert cpu_feature_levels(older, has) == ["", "AVX512F AVX512_SKX", "SSE42 AVX2 FMA3 AVX512F AVX512_SKX"]
    assert cpu_feature_levels(older, dict.fromkeys(older[:3], True)) == ["", "SSE42 AVX2 FMA3"]
    assert cpu_feature_levels(["ASIMDHP"], {"ASIMDHP": True}) == ["", "ASIMDHP"]
    assert cpu_feature_levels([], {}) == [""]

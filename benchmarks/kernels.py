"""The NumPy kernels of expressions beside the engines that own the expressions, with and without AVX-512.

Each expression runs alone, over one batch with nulls: by NumPy as it is compiled, and by its engine, as it would run
without the kernel. A kernel that is nowhere faster by a tenth, or somewhere slower by more than a tenth, has no reason to
be there. There are no kernels for some CPUs alone. Times are CPU time. The table has them for Polars with and without
AVX-512, and then for Arrow. `--contender avx512` or `avx2` prints those of one kind of CPU; the results that are kept are
those of `make bars`, and do not change with a kernel.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import time
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from arrowflow.expr import Program, Project, compile_steps, forget_compiled, parse_expression
from arrowflow.expr.compile.lower_arrow import ArrowLowering
from arrowflow.expr.compile.lower_polars import PolarsLowering
from benchmarks import harness

ROWS: Final = 65_536
TRIES: Final = 60
FASTER: Final = 1.1
NOT_SLOWER: Final = 0.9
NARROW: Final = {
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL X86_V4"
}
c, f = pl.col, pc.field

POLARS: Final[dict[str, Any]] = {
    "add": c("a") + c("b"),
    "subtract": c("a") - c("b"),
    "multiply": c("a") * c("b"),
    "divide": c("a") / c("b"),
    "quotient": c("dec").cast(pl.Float64),
    "floor_divide": c("i") // 3,
    "modulo": c("i") % 5,
    "square": c("a") ** 2,
    "negate": -c("a"),
    "abs": c("a").abs(),
    "sqrt": c("a").sqrt(),
    "exp": c("a").exp(),
    "log": c("a").log(),
    "log1p": c("a").log1p(),
    **{f"{name} (float32)": getattr(c("s"), name)() for name in ("exp", "log", "log1p", "sqrt", "abs")},
    "add (float32)": c("s") + c("s"),
    "floor": c("a").floor(),
    "ceil": c("a").ceil(),
    "equal (is_nan, both, either)": c("a") == c("b"),
    "not_equal": c("i") != c("j"),
    "less": c("i") < c("j"),
    "less_equal": c("i") <= c("j"),
    "greater (not)": c("a") > 1.0,
    "greater_equal": c("i") >= 3,
    "and": c("p") & c("q"),
    "or": c("p") | c("q"),
    "not": ~c("p"),
    "is_nan": c("a").is_nan(),
    "is_finite": c("a").is_finite(),
    "is_infinite": c("a").is_infinite(),
    "convert": c("i").cast(pl.Float64),
    "fill": c("a").fill_null(0.0),
    "is_null": c("a").is_null(),
    "is_not_null": c("a").is_not_null(),
    "if_else": pl.when(c("p")).then(c("a")).otherwise(c("b")),
}
ARROW: Final[dict[str, Any]] = {
    "add": pc.add(f("a"), f("b")),
    "subtract": pc.subtract(f("a"), f("b")),
    "multiply": pc.multiply(f("a"), f("b")),
    "divide": pc.divide(f("a"), f("b")),
    "multiply (decimals)": f("dec").cast(pa.float64()),
    "decimal_to_float32": f("dec").cast(pa.float32()),
    "square": pc.power(f("a"), 2),
    "negate": pc.negate(f("a")),
    "abs": pc.abs(f("a")),
    "sqrt": pc.sqrt(f("a")),
    "exp": pc.exp(f("a")),
    "log": pc.ln(f("a")),
    "log1p": pc.log1p(f("a")),
    "floor": pc.floor(f("a")),
    "ceil": pc.ceil(f("a")),
    "equal": f("a") == f("b"),
    "not_equal": f("i") != f("j"),
    "less": f("i") < f("j"),
    "less_equal": f("i") <= f("j"),
    "greater": f("a") > 1.0,
    "greater_equal": f("i") >= 3,
    "and": f("p") & f("q"),
    "or": f("p") | f("q"),
    "not": ~f("p"),
    "is_nan": f("a").is_nan(),
    "is_finite": pc.is_finite(f("a")),
    "is_infinite": pc.is_inf(f("a")),
    "convert": f("k").cast(pa.float64()),
    "fill": pc.coalesce(f("a"), 0.0),
    "is_null": f("a").is_null(),
    "is_not_null": f("a").is_valid(),
    "if_else_null": pc.if_else(f("p"), f("a"), f("b")),
}
EXPRESSIONS: Final = {
    f"{name}, {engine}": expr
    for engine, named in (("Polars", POLARS), ("Arrow", ARROW))
    for name, expr in named.items()
}


def _batch() -> pa.RecordBatch:
    rng = np.random.default_rng(0)
    columns = {
        "a": rng.random(ROWS) * 10,
        "b": rng.random(ROWS) * 10,
        "s": (rng.random(ROWS) * 10).astype(np.float32),
        "i": rng.integers(0, 100, ROWS),
        "j": rng.integers(0, 100, ROWS),
        "p": rng.random(ROWS) < 0.5,
        "q": rng.random(ROWS) < 0.5,
    }
    made = {name: pa.array(values, mask=rng.random(ROWS) < 0.1) for name, values in columns.items()}
    made["dec"] = pa.array(columns["i"]).cast(pa.decimal128(19, 0)).cast(pa.decimal128(15, 2))
    return pa.record_batch({**made, "k": made["j"].cast(pa.int32())})


def _nanoseconds(program: Program, batch: pa.RecordBatch) -> float:
    """Returns the CPU time of a row in the quickest of some tries, which load of others disturbs least."""
    seconds = []
    for _ in range(TRIES):
        start = time.process_time()
        program.run(batch)
        seconds.append(time.process_time() - start)
    return min(seconds) / batch.num_rows * 1e9


def _figures() -> harness.Measurement:
    batch, watch, found = _batch(), harness.Stopwatch(), {}
    rules = PolarsLowering.rules, ArrowLowering.rules
    for name, expr in EXPRESSIONS.items():
        steps = (Project((("y", parse_expression(expr, operator="with_columns")),)),)
        for way, kept in (("numpy", rules), ("engine", ({}, {}))):
            PolarsLowering.rules, ArrowLowering.rules = kept
            forget_compiled()
            program = compile_steps(steps, batch.schema)
            if way == "numpy" and "numpy" not in " ".join(program.explain()).lower():
                raise AssertionError(f"{name} has no kernel: {program.explain()}")
            found[f"{name}: {way}"] = _nanoseconds(program, batch)
    return watch.measurement(ROWS * TRIES * len(EXPRESSIONS), **found)


def _without_avx512() -> harness.Measurement:
    """Measures in another process, since NumPy and Arrow look at the CPU when they are imported."""
    command = [sys.executable, "-m", "benchmarks.kernels", "--contender", "avx512"]
    env = os.environ | NARROW | {"ARROW_USER_SIMD_LEVEL": "AVX2"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return harness.Measurement(**json.loads(done.stdout.splitlines()[-1]))


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar for each kernel: for one of the engines, on one of the CPUs, it is a tenth faster; and the slowest."""
    bars, slowest = [], (math.inf, "")
    for kernel in POLARS | ARROW:
        shown, best = [], 0.0
        for name, level in itertools.product(EXPRESSIONS, rounds):
            if name.startswith(f"{kernel}, "):
                ours, engine = (
                    harness.median_extra(rounds[level], f"{name}: {way}") for way in ("numpy", "engine")
                )
                shown.append(f"{ours:.1f} to {engine:.1f} ns")
                best = max(best, engine / ours)
                slowest = min(slowest, (engine / ours, f"{name}, {level}"))
        bars.append(harness.Bar(kernel, f">= {FASTER}", "; ".join(shown), best >= FASTER, best))
    worst, name = slowest
    return [*bars, harness.Bar("the slowest kernel", f">= {NOT_SLOWER}", name, worst >= NOT_SLOWER, worst)]


CONTENDERS: Final = {"avx512": _figures, "avx2": _without_avx512}

if __name__ == "__main__":
    harness.main("kernels", CONTENDERS, judge, rounds=3)

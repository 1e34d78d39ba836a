"""What logs of tables say of each file, against the rows of the files."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import arrowflow as af
from arrowflow.expr import parse_expression
from arrowflow.ops.sources.files.file_scan import files_wanted, match_test
from tests.ops.tables import refused


def moment(microseconds: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=microseconds)  # no zone


POOLS: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "whole": (pa.int64(), [-(2**62), -1, 0, 1, 2**53 + 1, 2**53 + 3]),
    "small": (pa.int8(), [-128, -1, 0, 127]),
    "day": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(2001, 1, 2)]),
    "flag": (pa.bool_(), [True, False]),
    "at": (pa.timestamp("us"), [moment(-(10**15) - 1), moment(-1), moment(1), moment(999), moment(1_000)]),
    "real": (pa.float64(), [-1.0, -0.0, 0.1, float("nan"), float("inf")]),
    "exact": (pa.decimal128(38, 20), [Decimal("0.1"), Decimal("0.10000000000000000001")]),
    "text": (pa.string(), ["", "a", "z" * 100, "z" * 101, "ü" * 80]),
}


def drawn_files() -> Iterator[pa.Table]:
    """Yields files of few values each, so that statistics tell them apart; some columns have nulls, or nothing else."""
    rng = random.Random(5)
    for _ in range(12):
        columns = {}
        for name, (type, pool) in POOLS.items():
            few, nulls = rng.sample(pool, rng.randint(1, 2)), rng.choice([0, 0, 0.4, 1])
            columns[name] = pa.array(
                [None if rng.random() < nulls else rng.choice(few) for _ in range(4)], type
            )
        yield pa.table(columns)


def check_bounds(ds: af.Dataset, times: int) -> None:
    """Draws predicates: a log rules out files, and none with a match."""
    rng = random.Random(7)
    counts = ruled_out(ds, (_predicate(rng) for _ in range(times)))
    assert sum(counts) > len(counts)


def check_bounds_of(name: str, ds: af.Dataset) -> None:
    """Checks that a log is asked for the values of a column of `POOLS` if it has them in full, and never otherwise."""
    sources = [pl.col(name).is_not_null(), *(pl.col(name) == value for value in POOLS[name][1])]
    without_values, *counts = ruled_out(ds, sources)
    if name in ("real", "exact", "text"):
        assert set(counts) <= {without_values, 0}
    else:
        assert max(counts) > without_values


def check_state_of_version(read: Callable[..., af.Dataset], change: Callable[[], object], *texts: str) -> Any:
    """Checks that a state goes on with the version it is of, which is given as `then`, and with no later one."""
    with iter(read().batch(2)) as batches:
        next(batches)
        state = batches.state_dict()
        expected = [value for batch in batches for value in batch["x"].to_pylist()]
    change()
    with iter(read().batch(2)) as later:
        refused(af.StateError, lambda: later.load_state_dict(state), *texts)
    with iter(read(then=True).batch(2)) as same:
        same.load_state_dict(state)
        assert [value for batch in same for value in batch["x"].to_pylist()] == expected
    return state


def _atom(rng: random.Random) -> pl.Expr:
    name = rng.choice(list(POOLS))
    column, values = pl.col(name), rng.choices(POOLS[name][1], k=2)
    # Polars 1.35 refuses a list of decimals of another scale.
    some = pl.Series(pa.array(values, POOLS[name][0])) if name == "exact" else values
    kinds = [column.is_null(), column.is_not_null(), column.is_in(some)]
    kinds += [column >= values[0], column < values[0], column == values[0], column != values[0]]
    return rng.choice(kinds)


def _predicate(rng: random.Random, depth: int = 2) -> pl.Expr:
    kind = rng.randint(0, 4) if depth else 4
    if kind == 0:
        return ~_predicate(rng, depth - 1)
    if kind == 4:
        return _atom(rng)
    left, right = _predicate(rng, depth - 1), _predicate(rng, depth - 1)
    return left & right if kind == 1 else left | right


def ruled_out(ds: af.Dataset, predicates: Iterable[pl.Expr]) -> list[int]:
    """Returns how many files the log rules out for each predicate, none of which has a match, as Polars says."""
    node: Any = ds._ready().bound
    frames = [pl.DataFrame(pq.ParquetFile(file.path).read()) for file in node.files]
    counts = []
    for source in predicates:
        expr = parse_expression(source, operator="filter")
        bound = node.with_predicates((expr,))
        is_wanted = files_wanted(bound, match_test(bound)) or (lambda number: True)
        out = [frame for number, frame in enumerate(frames) if not is_wanted(number)]
        assert all(frame.filter(source).is_empty() for frame in out), source
        counts.append(len(out))
    return counts

"""Filters over Parquet files of several writers: the rows with pruning are those of the engine on the whole table."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import arrowflow as af
from tests.effort import scaled
from tests.fuzz.calls import CALLS, Engine
from tests.fuzz.columns import SCHEMA, TYPES, array_of
from tests.fuzz.expressions import filled, source_of
from tests.oracles import engines

DRAWN_SLOWLY = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

TESTS: Final = (
    *("{ordered} {compare} {value}", "{value} {compare} {ordered}", "{ordered} {compare} {same}"),
    *("{any}.is_null()", "{any}.is_not_null()", "{any}.is_valid()", "{any}.is_null(nan_is_null={flag})"),
    *("{flat}.is_in({values}, nulls_equal={flag})", "{any}.isin({values})", "{number}.is_nan()"),
    "pc.is_in({flat}, value_set={constants}, skip_nulls={flag})",
    "{ordered}.is_between({value}, {value}, closed={closed})",
    *("{flat}.eq_missing({value})", "{flat}.ne_missing({value})"),
    *("{text}.str.starts_with({word})", "pc.starts_with({text}, pattern={word}, ignore_case={flag})"),
    *("{bool} & {flag}", "pc.xor({bool}, {bool})", "pc.is_finite({number})"),
    "pl.when({bool}).then({flat}).otherwise({value})",
)
"""Lines of the tables of calls that give flags, most of which statistics may answer."""


# --------------------------------------------------------------------------------------------- writers


def by_pyarrow(**options: Any) -> Callable[[pa.Table, Path, int], None]:
    return lambda table, path, rows: pq.write_table(table, path, row_group_size=rows, **options)


def by_polars(**options: Any) -> Callable[[pa.Table, Path, int], None]:
    return lambda table, path, rows: pl.DataFrame(table).write_parquet(path, row_group_size=rows, **options)


def by_duckdb(version: str) -> Callable[[pa.Table, Path, int], None]:
    """Returns a writer that is DuckDB; its row groups have 2,048 rows at least, so that each is a file."""

    def write(table: pa.Table, path: Path, rows: int) -> None:
        for number, start in enumerate(range(0, max(1, table.num_rows), rows)):
            database().register("part", table.slice(start, rows))
            target = path.with_name(f"{path.stem}-{number}.parquet")
            database().execute(f"COPY part TO '{target}' (FORMAT parquet, PARQUET_VERSION {version})")

    return write


@cache
def database() -> duckdb.DuckDBPyConnection:
    """The one connection to DuckDB: a new one takes longer than all else that a case does."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone='UTC'")
    return connection


WRITERS: Final[Mapping[str, Callable[[pa.Table, Path, int], None]]] = {
    "pyarrow": by_pyarrow(),
    "pyarrow 1.0": by_pyarrow(version="1.0"),
    "pyarrow 2.4, pages v2": by_pyarrow(version="2.4", data_page_version="2.0"),
    "pyarrow without statistics": by_pyarrow(write_statistics=False),
    "pyarrow with statistics of one column": by_pyarrow(write_statistics=["row"]),
    "pyarrow with small pages": by_pyarrow(data_page_size=1, write_batch_size=1, write_page_index=True),
    "pyarrow without dictionaries": by_pyarrow(use_dictionary=False),
    "pyarrow with int96": by_pyarrow(use_deprecated_int96_timestamps=True),
    "pyarrow with milliseconds": by_pyarrow(coerce_timestamps="ms", allow_truncated_timestamps=True),
    "pyarrow without the Arrow schema": by_pyarrow(store_schema=False),
    "pyarrow with decimals as integers": by_pyarrow(store_decimal_as_integer=True),
    "Polars": by_polars(),
    "Polars without statistics": by_polars(statistics=False),
    "Polars with all statistics": by_polars(statistics="full"),
    "Polars with a maximum only": by_polars(statistics={"min": False, "max": True, "null_count": True}),
    "Polars with counts only": by_polars(statistics={"min": False, "max": False, "null_count": True}),
    "DuckDB v1": by_duckdb("v1"),
    "DuckDB v2": by_duckdb("v2"),
}


# ----------------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A filter over a file.

    Attributes:
        columns: The values of each column in each row group, as Arrow stores them.
        rows: How many rows a row group has.
        writer: The name of who writes the file.
        engine: Who owns the predicate.
        predicate: Its text.
    """

    columns: Mapping[str, Sequence[Sequence[Any]]]
    rows: int
    writer: str
    engine: Engine
    predicate: str

    @property
    def table(self) -> pa.Table:
        """All rows, with their numbers."""
        arrays = {
            name: array_of(name, list(itertools.chain(*groups))) for name, groups in self.columns.items()
        }
        count = sum(map(len, next(iter(self.columns.values()))))
        return pa.table(arrays | {"row": pa.array(range(count), pa.int64())})

    def check(self, folder: Path) -> None:
        """Raises `AssertionError` where the filter keeps other rows than its engine."""
        try:
            source = source_of(self.predicate)
            WRITERS[self.writer](self.table, folder / "table.parquet", self.rows)
            # Of pages v2 of DuckDB without a value, pyarrow 26 reads none: "Unexpected end of stream".
            whole = engines.plain_table(
                pa.concat_tables(pq.read_table(path) for path in sorted(folder.iterdir()))
            )
        except engines.ENGINE_ERRORS:  # there is no such expression, or no such file
            return
        expected: list[int] | BaseException
        try:
            expected = engines.filtered(whole, source)["row"].to_pylist()
        except engines.ENGINE_ERRORS as error:
            expected = error
        try:
            found = af.read_parquet(folder).filter(source).select("row").to_table()["row"].to_pylist()
        except af.ArrowflowError as error:
            if not isinstance(expected, BaseException):
                raise AssertionError(f"{error!r}, expected rows {expected}") from error
            return
        except engines.ENGINE_ERRORS as error:
            raise AssertionError(f"no ArrowflowError, but {error!r}") from error
        if isinstance(expected, BaseException):
            assert found == _without_pruned(folder, source), f"rows {found}, expected {expected!r}"
        else:
            assert found == expected

    def __repr__(self) -> str:
        values = {name: [list(group) for group in groups] for name, groups in self.columns.items()}
        return f"\n  {values} by {self.writer}, {self.rows} rows a group\n    .filter({self.predicate})\n"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis prints, which else takes dataclasses apart."""
        printer.text(repr(self))


def _without_pruned(folder: Path, source: Any) -> list[int]:
    """Returns the rows of all row groups that the engine can filter: a row group that is pruned raises no error."""
    rows: list[int] = []
    for path in sorted(folder.iterdir()):
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                group = engines.plain_table(file.read_row_group(number))
                with contextlib.suppress(*engines.ENGINE_ERRORS):
                    rows += engines.filtered(group, source)["row"].to_pylist()
    return rows


NAMES: Final = [
    name for name in SCHEMA if not TYPES[name.removesuffix("_2")].kinds & {"nested", "foreign", "respelled"}
]


@st.composite
def predicates(draw: st.DrawFn, engine: Engine, columns: Mapping[str, Any], near: Any, depth: int = 2) -> str:
    """Draws a predicate of and, or, not, and tests."""
    kind = draw(st.integers(0, 5)) if depth else 0
    if kind <= 2:
        flags = [name for name in columns if name.startswith("b") and SCHEMA[name] == pa.bool_()]
        alone: bool = bool(flags) and draw(st.booleans())
        if alone:
            return f'{"c" if engine == "polars" else "f"}("{draw(st.sampled_from(flags))}")'
        tests = [call for call in CALLS if call.engine == engine and call.text in TESTS]
        return filled(
            draw, draw(st.sampled_from(tests)), {name: SCHEMA[name] for name in columns}, [], near
        ).text
    inner = [draw(predicates(engine, columns, near, depth - 1)) for _ in range(1 if kind == 3 else 2)]
    return f"~({inner[0]})" if kind == 3 else f"({inner[0]}) {'&' if kind == 4 else '|'} ({inner[1]})"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draws columns of which each row group has few values, so that bounds are narrow, and a filter near them."""
    engine: Engine = draw(st.sampled_from(["polars", "arrow"]))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
    rows = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    columns: dict[str, list[list[Any]]] = {}
    near: dict[pa.DataType, Any] = {}
    for name in names:
        pool = TYPES[name.removesuffix("_2")].pool
        few = st.lists(st.none() | pool, min_size=1, max_size=2)
        columns[name] = [
            draw(st.lists(st.sampled_from(draw(few)), min_size=rows, max_size=rows)) for _ in range(groups)
        ]
        known = [value for group in columns[name] for value in group if value is not None]
        near[SCHEMA[name]] = st.sampled_from(known) | pool if known else pool
    predicate = draw(predicates(engine, columns, near))
    return Case(columns, rows, draw(st.sampled_from(sorted(WRITERS))), engine, predicate)


# ----------------------------------------------------------------------------------------------- tests


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Path]]:
    """A new folder for each file, since footers are remembered."""
    root = tmp_path_factory.mktemp("filters")

    def made() -> Iterator[Path]:
        for number in itertools.count():
            path = root / str(number)
            path.mkdir()
            yield path
            shutil.rmtree(path)

    yield made()
    shutil.rmtree(root)


@settings(max_examples=scaled(150), suppress_health_check=DRAWN_SLOWLY, database=None)
@given(case=cases())
def test_pruned_rows_are_those_of_the_engine(folders: Iterator[Path], case: Case) -> None:
    case.check(next(folders))


def test_all_tests_are_lines_of_the_tables() -> None:
    assert set(TESTS) <= {call.text for call in CALLS}


@pytest.mark.parametrize("writer", [name for name in WRITERS if "without statistics" not in name])
def test_statistics_of_each_writer_prune(tmp_path: Path, writer: str) -> None:
    table = pa.table({"row": pa.array(range(9)), "text": pa.array([None] * 3 + ["b"] * 6)})
    WRITERS[writer](table, tmp_path / "table.parquet", 3)
    test = "row" if "only" not in writer else "text"
    source = pl.col("row") > 6 if test == "row" else pl.col("text").is_null()
    dataset = af.read_parquet(tmp_path).filter(source)
    assert dataset.to_table().num_rows == (2 if test == "row" else 3)
    assert "statistics prune" in dataset.explain() and "statistics prune 0 of" not in dataset.explain()

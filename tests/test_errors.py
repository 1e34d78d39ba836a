"""The exception tree, and how errors say where they happened."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.errors import closest

BASES = {
    af.PlanError: ValueError,
    af.SchemaError: TypeError,
    af.SourceError: OSError,
    af.WriteError: OSError,
    af.DataError: ValueError,
    af.BudgetError: MemoryError,
    af.StateError: ValueError,
    af.ClosedError: RuntimeError,
    af.ForkError: RuntimeError,
    af.RankError: RuntimeError,
    af.FunctionError: Exception,
    af.WorkerError: RuntimeError,
    af.MissingPackageError: ImportError,
    af.CacheFullError: Exception,
    af.FingerprintError: ValueError,
}


@pytest.mark.parametrize("kind", BASES, ids=lambda kind: kind.__name__)
def test_errors_are_what_python_calls_them_too(kind: type[af.ArrowflowError]) -> None:
    assert issubclass(kind, af.ArrowflowError)
    assert issubclass(kind, BASES[kind])
    assert str(kind("what is wrong")) == "what is wrong"


def test_all_errors_are_exported() -> None:
    found = {
        kind for kind in vars(af).values() if isinstance(kind, type) and issubclass(kind, af.ArrowflowError)
    }
    assert found == {af.ArrowflowError, *BASES}


@pytest.mark.parametrize("kind", BASES, ids=lambda kind: kind.__name__)
def test_errors_say_where(kind: type[af.ArrowflowError]) -> None:
    error = kind("bad bytes").locate(operator="read_parquet", file="/a/b.parquet", row_group=3)
    assert str(error) == "read_parquet: bad bytes (in file '/a/b.parquet', row group 3)"
    assert str(kind("bad").locate(file="b")) == "bad (in file 'b')"
    assert str(kind("take: bad").locate(operator="take")) == "take: bad"


def test_the_first_place_stays() -> None:
    """Who is nearest to the fault knows best; callers above only fill in what is missing."""
    error = af.DataError("bad").locate(operator="cast", row_group=0)
    assert error.locate(operator="batch", file="x", row_group=5) is error
    assert (error.operator, error.file, error.row_group) == ("cast", "x", 0)


@pytest.mark.parametrize("kind", BASES, ids=lambda kind: kind.__name__)
def test_errors_pickle_with_their_places(kind: type[af.ArrowflowError]) -> None:
    """They cross process borders in data loaders with workers."""
    error = kind("bad").locate(operator="read_ipc", file="x", row_group=2)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("pricee", ["price", "tax"], "did you mean 'price'?"),
        ("tax1", ["tax2", "tax3", "x"], "did you mean 'tax3' or 'tax2'?"),
        ("zzz", ["a", "b"], "known columns: a, b"),
        ("zzz", [str(number) for number in range(30)], "known columns: 0, 1, 2"),
        ("x", [], "known columns: "),
    ],
)
def test_unknown_names_come_with_the_closest(name: str, names: list[str], expected: str) -> None:
    assert closest(name, names).startswith(expected)
    assert ("…" in closest(name, names)) is (len(names) > 20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of three row groups; a null in the second row group of the second file."""
    columns: dict[str, list[float | None]] = {"a": [1.0] * 6, "b": [1.0, 2.0, None, 4.0, 5.0, 6.0]}
    for name, values in columns.items():
        table = pa.table({"x": pa.array(values, pa.float64()), "y": values[::-1]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)
    return tmp_path


def refuse_nulls(batch: Any) -> Any:
    if batch["x"].null_count:
        raise ValueError("a null")
    return batch


@pytest.mark.parametrize("rules", [(), ("merge_columns", "prune_columns")])
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda ds: ds.stack(z=["x"]), id="stack"),
        pytest.param(lambda ds: ds.map(refuse_nulls), id="map"),
        pytest.param(lambda ds: ds.skip(1).filter(pl.col("y") > -1e9).map(refuse_nulls).batch(2), id="later"),
    ],
)
def test_an_error_names_the_row_group(
    folder: Path, build: Callable[[af.Dataset], af.Dataset], rules: tuple[str, ...]
) -> None:
    dataset = build(af.read_parquet(folder).select("x", "y")).with_options(af.Options(disabled_rules=rules))
    with pytest.raises(af.ArrowflowError) as caught:
        list(dataset)
    assert (Path(str(caught.value.file)).name, caught.value.row_group) == ("b.parquet", 1)


def test_an_error_behind_a_shuffle_names_no_file(folder: Path) -> None:
    with pytest.raises(af.FunctionError) as caught:
        list(af.read_parquet(folder).shuffle(4, seed=1).map(refuse_nulls))
    assert caught.value.file is None


class Mute(ValueError):
    """Neither says what it is about, nor shows itself."""

    def __str__(self) -> str:
        raise RuntimeError("another error")

    __repr__ = __str__


class Hidden:
    """An object that does not show itself."""

    def __repr__(self) -> str:
        raise RuntimeError("another error")


class Mutes:
    """Raises where libraries ask it for data."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise Mute

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        raise Mute


def mute(*args: Any) -> Any:
    raise Mute


def yields_then_mute() -> Iterator[dict[str, int]]:
    yield {"x": 1}
    raise Mute


MUTE: dict[str, Callable[[af.Dataset], Any]] = {
    "map": lambda ds: ds.map(mute).to_table(),
    "map of arrays": lambda ds: ds.map(mute, format="numpy").to_table(),
    "map in processes": lambda ds: ds.map(mute, executor="process").to_table(),
    "map of a class": lambda ds: ds.map(partial(Instance, 1)).to_table(),
    "map_rows": lambda ds: ds.map_rows(mute).to_table(),
    "filter": lambda ds: ds.filter(mute).to_table(),
    "flat_map": lambda ds: ds.flat_map(mute).to_table(),
    "interleave": lambda ds: ds.interleave(mute).to_table(),
    "scan": lambda ds: ds.scan(0, mute).to_table(),
    "reduce": lambda ds: ds.reduce(0, mute),
    "from_generator": lambda ds: af.from_generator(mute).to_table(),
    "later": lambda ds: af.from_generator(yields_then_mute).to_table(),
    "collate": lambda ds: list(ds.batch(2).to_numpy(collate=mute)),
    "stream": lambda ds: af.from_arrow(Mutes()).to_table(),
    "array": lambda ds: af.from_numpy({"x": Mutes()}),
    "column": lambda ds: ds.map(lambda batch: {"x": Mutes()}, format="numpy").to_table(),
}


class Instance:
    def __init__(self, number: int) -> None:
        raise Mute

    def __call__(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize("runs", MUTE.values(), ids=MUTE)
def test_exceptions_without_a_text_are_told_by_their_type(runs: Callable[[af.Dataset], Any]) -> None:
    with pytest.raises(af.ArrowflowError, match="Mute, whose text cannot be had") as caught:
        runs(af.range(4))
    causes, error = [], caught.value.__cause__
    while error is not None:
        causes.append(type(error))
        error = error.__cause__
    assert causes[-1] is Mute


HIDDEN: dict[str, Callable[[af.Dataset, Any], Any]] = {
    "size": lambda ds, value: ds.batch(value),
    "function": lambda ds, value: ds.map(value),
    "expression": lambda ds, value: ds.filter(value),
    "type": lambda ds, value: ds.cast({"id": value}),
    "value": lambda ds, value: ds.fill_null(value).schema,
    "padding": lambda ds, value: ds.padded_batch(2, padding_values=value).schema,
    "null": lambda ds, value: list(ds.batch(2).to_numpy(null={"id": value})),
    "nulls": lambda ds, value: list(ds.batch(2).to_numpy(null=value)),
    "names": lambda ds, value: ds.drop(value),
    "budget": lambda ds, value: af.Options(ram_budget=value),
    "path": lambda ds, value: af.read_parquet(value).schema,
    "row": lambda ds, value: ds.map_rows(lambda row: value).to_table(),
    "element": lambda ds, value: af.from_generator(lambda: [value]).to_table(),
    "scalar": lambda ds, value: af.from_numpy({"x": value}),
    "format": lambda ds, value: af.read_csv("a.csv", delimiter=value),
}


@pytest.mark.parametrize("uses", HIDDEN.values(), ids=HIDDEN)
def test_objects_that_do_not_show_themselves_are_told_by_their_type(
    uses: Callable[[af.Dataset, Any], Any],
) -> None:
    with pytest.raises(af.ArrowflowError, match="Hidden"):
        uses(af.range(4), Hidden())

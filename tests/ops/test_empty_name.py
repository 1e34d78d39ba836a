"""A column named "" is a column like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import arrowflow as af

c, f = pl.col, pc.field
Apply = Callable[[af.Dataset, str], af.Dataset]
CASES: Final[dict[str, Apply]] = {
    "filter": lambda ds, k: ds.filter(c(k) > 1),
    "filter by Polars": lambda ds, k: ds.filter(c(k).cast(pl.String).str.contains("3")),
    "filter of pyarrow": lambda ds, k: ds.filter(f(k) > 1),
    "filter by pyarrow": lambda ds, k: ds.filter(pc.add_checked(f(k), 1) > 2),
    "filters": lambda ds, k: ds.filter(c(k) > 0).with_columns(z=c(k) * 2).filter(c("z") < 5),
    "with_columns from": lambda ds, k: ds.with_columns(
        o=c(k) + 1, p=pl.max_horizontal(k, "n"), q=pc.add(f(k), 1)
    ),
    "with_columns to": lambda ds, k: ds.with_columns(**{k: c("n") * 2}),
    "with_columns to, by pyarrow": lambda ds, k: ds.with_columns(**{k: pc.multiply(f(k), 2)}),
    "select": lambda ds, k: ds.select(k, c("n").alias("m")),
    "select an expression": lambda ds, k: ds.select(c(k) + 1),
    "select all": lambda ds, k: ds.select(pl.all()),
    "select by type": lambda ds, k: ds.select(cs.integer()),
    "drop": lambda ds, k: ds.drop(k),
    "rename": lambda ds, k: ds.rename({k: "x", "n": k}),
    "cast": lambda ds, k: ds.cast({k: "float32"}),
    "cast to an enum": lambda ds, k: ds.select(**{k: c("column_0")}).cast({k: pl.Enum(["a", "b"])}),
    "fill_null": lambda ds, k: ds.fill_null({k: 5}),
    "stack from": lambda ds, k: ds.fill_null(0).stack(o=[k, "n"], dtype="float32"),
    "stack to": lambda ds, k: ds.fill_null(0).drop(k).stack(**{k: ["n"]}),
    "unique": lambda ds, k: ds.unique(k),
    "map": lambda ds, k: ds.map(lambda frame: frame.select(pl.col(k)), format="polars"),
}


def table(name: str) -> pa.Table:
    # Polars' own name for a column without one is taken.
    return pa.table({name: [1, None, 3], "column_0": ["a", "b", None], "n": [1.0, 2.0, 3.0]})


@pytest.fixture(scope="module", params=["memory", "file"])
def sources(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[af.Dataset]:
    """The same rows with and without a name."""
    tables = [table(name) for name in ("", "k")]
    if request.param == "memory":
        return [af.from_arrow(each) for each in tables]
    paths = [tmp_path_factory.mktemp("named") / "x.parquet" for _ in tables]
    for each, path in zip(tables, paths, strict=True):
        pq.write_table(each, path, row_group_size=2)
    return [af.read_parquet(path) for path in paths]


@pytest.mark.parametrize("case", CASES)
def test_a_column_without_a_name(case: str, sources: list[af.Dataset]) -> None:
    found, expected = (CASES[case](ds, name).to_table() for ds, name in zip(sources, ("", "k"), strict=True))
    names = ["" if name == "k" else name for name in expected.schema.names]
    assert found.equals(expected.rename_columns(names))


def test_data_frames_keep_their_names() -> None:
    (frame,) = af.from_arrow(table("")).batch(3).to_polars()
    assert frame.columns == ["", "column_0", "n"]

"""`with_columns`: columns added or replaced."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowflow as af
from arrowflow.testing import assert_same_values, check_operator
from tests.ops.tables import NUMBERS, Apply, refused

pytestmark = pytest.mark.any_version

CASES: dict[str, Apply] = {
    "added": lambda ds: ds.with_columns(y=pl.col("x") * 2, z=pc.field("n") - pc.scalar(1)),
    "replaced": lambda ds: ds.with_columns(pl.col("x").fill_null(0.5), n=pc.field("n") + pc.field("row")),
    "texts": lambda ds: ds.with_columns(
        upper=pl.col("s").str.to_uppercase(), known=pl.col("s").is_not_null()
    ),
    "constants and copies": lambda ds: ds.with_columns(
        one=1, half=0.5, yes=True, copy=pl.col("x"), other="s"
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_contracts(case: str) -> None:
    check_operator(CASES[case], NUMBERS, ordered_by="row")


def test_replaced_columns_keep_their_places() -> None:
    ds = af.from_arrow(NUMBERS).with_columns(x=pl.lit(1.0), new=pl.col("row"))
    assert ds.schema.names == ["row", "x", "n", "s", "b", "new"]


def test_all_expressions_see_the_columns_as_they_were() -> None:
    ds = af.from_arrow(NUMBERS).with_columns(row=pl.col("row") + 100, was=pl.col("row"))
    assert ds.to_table().column("was").to_pylist() == list(range(17))


@pytest.mark.parametrize("engine", ["polars", "pyarrow"])
def test_null_stays_null_and_nan_stays_nan(engine: str) -> None:
    expr = pl.col("x") + 1.0 if engine == "polars" else pc.field("x") + pc.scalar(1.0)
    found = af.from_arrow(NUMBERS).with_columns(y=expr).to_table().column("y").combine_chunks()
    assert_same_values(found, pc.add(NUMBERS.column("x"), 1.0).combine_chunks())


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        (lambda ds: ds.with_columns(y=pl.col("roww") * 2), ["'roww'", "did you mean 'row'?"]),
        (lambda ds: ds.with_columns(), []),
        (lambda ds: ds.with_columns(y=pl.col("x").rank()), []),
        (lambda ds: ds.with_columns(y=pl.col("x").sum()), []),
        (lambda ds: ds.with_columns(pl.col("x"), x=pl.col("n")).schema, []),
        (lambda ds: ds.with_columns(y=[1, 2]), []),
    ],
)
def test_bad_arguments(call: Apply, texts: list[str]) -> None:
    refused(af.PlanError, lambda: call(af.from_arrow(NUMBERS)), "with_columns", *texts)


def test_types_are_normalised() -> None:
    """Polars writes large_string; every text that a pipeline holds is a plain string."""
    ds = af.from_arrow(NUMBERS).with_columns(t=pl.col("s") + "!", u=pl.concat_str("s", "s"))
    assert {ds.schema.field(name).type for name in "tu"} == {pa.string()}
    assert ds.to_table().schema.equals(ds.schema)

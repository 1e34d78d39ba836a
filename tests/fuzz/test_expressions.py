"""Expressions over random chunks yield what their engine yields on the whole table: type, validity, value, error."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import arrowflow as af
from tests.effort import scaled
from tests.fuzz import arrow_calls, polars_calls
from tests.fuzz.calls import CALLS, NAMESPACES, TABLE
from tests.fuzz.cases import Case, Step, pipelines, together
from tests.fuzz.columns import SCHEMA
from tests.fuzz.expressions import Made, expressions, source_of

DRAWN_SLOWLY = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
TOGETHER = 12
"""Calls of one step, of which the run costs little more than that of one call."""
WRITTEN_FOR = {"polars": "2.1", "pyarrow": "26.0"}
"""Versions of which the tables name all functions; for others, the tests of that are skipped."""


@pytest.mark.parametrize("first", range(0, len(CALLS), TOGETHER))
@settings(max_examples=scaled(20), suppress_health_check=DRAWN_SLOWLY, database=None)
@given(data=st.data())
def test_calls_give_what_their_engines_give(first: int, data: st.DataObject) -> None:
    """Two examples at least unless it is quick: Hypothesis begins with the simplest one, which is two rows of nulls."""
    calls = CALLS[first : first + TOGETHER]
    case: Case = data.draw(together([expressions(call.engine, call, depth=1) for call in calls]), "case")
    case.check_apart()
    flags = [one for step in case.steps for one in step.made.values() if one.type == pa.bool_()]
    if flags:
        flag: Made = data.draw(st.sampled_from(flags), "predicate")
        replace(case, steps=[Step("filter", {"": flag})]).check()


@settings(max_examples=scaled(100), suppress_health_check=DRAWN_SLOWLY, database=None)
@given(case=pipelines())
def test_pipelines_of_both_engines_give_what_the_engines_give_in_turn(case: Case) -> None:
    case.check()


@pytest.mark.parametrize(
    "text", [*polars_calls.REFUSED.split("\n")[1:-1], *arrow_calls.REFUSED.split("\n")[1:-1]]
)
def test_calls_that_need_more_than_their_row_are_refused(text: str) -> None:
    table = pa.table({name: pa.nulls(2, type) for name, type in SCHEMA.items()})
    with pytest.raises(af.PlanError):
        _ = af.from_arrow(table).select(out=source_of(text)).schema


def needs(package: str, version: str) -> None:
    if not version.startswith(WRITTEN_FOR[package] + "."):
        pytest.skip(f"the tables are written for {package} {WRITTEN_FOR[package]}")


def test_every_option_is_in_the_table() -> None:
    needs("polars", pl.__version__)
    needs("pyarrow", pa.__version__)
    assert TABLE == CALLS, "a line names a function, or an option, that there is not"
    missing = {call.text: options for call in CALLS if (options := call.missing_options())}
    assert not missing, "options that the lines do not give"


def test_every_function_of_polars_is_in_a_table() -> None:
    needs("polars", pl.__version__)
    owners = {"": pl.Expr} | {f"{name}.": type(getattr(pl.col("x"), name)) for name in NAMESPACES}
    known = {f"{prefix}{name}" for prefix, owner in owners.items() for name in vars(owner) if name[0] != "_"}
    known -= {*NAMESPACES, "meta", "ext"}
    named = {*polars_calls.NOT_ROW_BY_ROW.split(), *polars_calls.NOT_CALLS.split()}
    missing = {name for name in known - named if f".{name}(" not in polars_calls.POLARS}
    assert not missing, "add a line for each, or its name to those that look at more than one row"
    assert named <= known, "names that Polars does not have"


def test_every_function_of_pyarrow_is_in_a_table() -> None:
    needs("pyarrow", pa.__version__)
    known = {name for name in pc.list_functions() if pc.get_function(name).kind == "scalar"}
    known = {f"{name}_" if name in ("and", "or") else name for name in known} - {"cast"}
    missing = {name for name in known if f"pc.{name}(" not in arrow_calls.ARROW}
    assert missing == set(arrow_calls.NOT_ROW_BY_ROW)

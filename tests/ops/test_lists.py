"""The lists that name every operator: what tests run, and the rows of the documentation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import arrowflow as af
from tests.linear.pipelines import PIPELINES
from tests.ops.tables import BATCHED_ALLOWED, BATCHED_REFUSED, OPERATORS
from tests.oracles.plans import LIBRARY

DOCS = Path(__file__).resolve().parents[2] / "docs"

COMBINING = {
    name for name, value in vars(af).items() if getattr(value, "__module__", None) == "arrowflow.combining"
}
"""Functions that make one dataset of several."""
NOT_IN_PLANS = {
    "apply": "makes no node: it calls a function",
    "split_by_rank": "comes last, and delivers rows of lanes: tests/ops/ranks has plans of its own",
    "with_engine": "comes last, and needs a cluster: tests/cluster has plans of its own",
    "with_provenance": "comes right after a source of files: tests/ops/sources/test_with_provenance.py",
    "assert_cardinality": "asks for a number of rows that a random plan does not know",
}
"""Methods that random plans leave out, with a reason."""
NOT_COUNTED = {
    "apply": NOT_IN_PLANS["apply"],
    "with_engine": NOT_IN_PLANS["with_engine"],
    "with_options": "carries settings and touches no column",
    "with_provenance": NOT_IN_PLANS["with_provenance"],
}
"""Methods whose work by columns is not counted, with a reason."""
NOT_OF_RANKS = dict.fromkeys(
    ("select", "with_columns", "drop", "rename", "cast", "fill_null", "stack", "decode_image"),
    "is one of the `columns` of the table, which always run in parts",
) | {
    "apply": NOT_IN_PLANS["apply"],
    "assert_cardinality": "changes no row",
    "prefetch": "changes no row",
    "split_by_rank": "is what the table is about",
    "unbatch": "makes the rows of batches single ones again",
    "with_engine": NOT_IN_PLANS["with_engine"],
    "with_options": "changes no row",
    "with_provenance": NOT_IN_PLANS["with_provenance"],
}
"""Operators of which the docs need not say whether they run in parts, with a reason."""
NOT_BY_BATCHES = {
    "apply": "does whatever its function does",
    "split_by_rank": "needs batches, and makes them of the rows of lanes",
    "concatenate": "takes batches if all of its inputs are in batches",
    "sample_from_datasets": "has another input, for which `take` is refused already",
}
"""Operators of which no one test says whether they are allowed after `batch`, with a reason."""


def methods() -> set[str]:
    """Returns the public methods of `Dataset` that return one."""
    found = {name: value for name, value in vars(af.Dataset).items() if inspect.isfunction(value)}
    returned = {name: value.__annotations__.get("return") for name, value in found.items()}
    return {name for name, kind in returned.items() if kind == "Dataset" and not name.startswith("_")}


ALL = methods() | COMBINING


def words(code: CodeType) -> Iterator[str]:
    """Yields the names of what code calls, also inside of it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from words(inner)


def called(functions: Iterable[Callable[..., Any]]) -> set[str]:
    """Returns the names of what functions call, and the functions that they close over."""
    found: set[str] = set()
    for function in functions:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        found.update(words(function.__code__), called(filter(inspect.isfunction, cells)))
    return found


def documented() -> set[str]:
    """Returns the operators that the tables of operators name."""
    tables = re.findall(
        r"^\| operator \|.*\n((?:\|.*\n)+)", (DOCS / "operators.md").read_text(encoding="utf-8"), re.M
    )
    cells = [line.split("|")[1] for table in tables for line in table.splitlines()[1:]]
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}


def test_the_methods_are_found() -> None:
    assert {"select", "filter", "scan", "cache", "batch"} < methods()
    assert not {"schema", "to_numpy", "reduce", "write_parquet"} & methods()
    assert {"zip", "sample_from_datasets", "choose_from_datasets"} == COMBINING


def test_the_table_of_operators_has_them_all_with_plans_that_call_them() -> None:
    """`OPERATORS` in `tests/ops/tables.py`: plans, pickles, types, fingerprints, contracts."""
    # The first comes right after files, the second makes the node of `split_by_rank`.
    assert set(OPERATORS) == ALL - {"with_provenance", "with_engine"}
    assert [name for name, apply in OPERATORS.items() if name not in called([apply])] == []


def test_every_operator_is_known_to_be_allowed_or_refused_after_batch() -> None:
    known = [*BATCHED_ALLOWED, *BATCHED_REFUSED, *NOT_BY_BATCHES]
    assert sorted(known) == sorted(OPERATORS)


@pytest.mark.parametrize(
    ("plans", "left_out"),
    [(LIBRARY, NOT_IN_PLANS), (PIPELINES, NOT_COUNTED)],
    ids=["LIBRARY in tests/oracles/plans.py", "PIPELINES in tests/linear/pipelines.py"],
)
def test_every_operator_is_in_random_plans_and_is_counted_by_columns(
    plans: Mapping[str, Callable[..., Any]], left_out: Mapping[str, str]
) -> None:
    assert ALL - called(plans.values()) == left_out.keys()


def test_every_operator_is_documented() -> None:
    assert documented() == ALL


def test_the_docs_say_of_every_operator_whether_it_runs_in_parts() -> None:
    """The table of `docs/ranks.md`."""
    page = (DOCS / "ranks.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| in parts \| whole \|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert ALL - set(re.findall(r"`(\w+)", table)) == NOT_OF_RANKS.keys()

"""The exception tree, and how errors say where they happened."""

from __future__ import annotations

import pickle

import pytest

import arrowflow as af
from arrowflow.errors import closest

BASES = {
    af.PlanError: ValueError,
    af.SchemaError: TypeError,
    af.SourceError: OSError,
    af.DataError: ValueError,
    af.BudgetError: MemoryError,
    af.StateError: ValueError,
    af.ClosedError: RuntimeError,
    af.ForkError: RuntimeError,
    af.FunctionError: Exception,
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

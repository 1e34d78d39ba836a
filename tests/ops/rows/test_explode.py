"""`explode`: each element of a list as a row of its own."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import batches_of, check_operator
from tests.ops.tables import ALL_TYPES_INSIDE, refused, rows_of

pytestmark = pytest.mark.any_version

LISTS = [[1, 2], [], None, [None], [3, 4, 5], [6], []]
TYPES = [pa.list_(pa.int32()), pa.large_list(pa.int32())]


def naive(rows: list[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    return [
        row | {column: value} for row in rows for value in ([None] if row[column] is None else row[column])
    ]


@pytest.mark.parametrize("column", ["list", "large_list", "vector"])
def test_contracts(column: str) -> None:
    """Columns of all types repeat; where each cut is tried, some."""
    some = ["row", "text", "dictionary", "struct", column]
    table = ALL_TYPES_INSIDE if column == "vector" else ALL_TYPES_INSIDE.select(some)
    check_operator(lambda ds: ds.explode(column), table, in_full=column == "list")


@pytest.mark.parametrize("max_rows", [1, 2, 4, 100])
@pytest.mark.parametrize("type", TYPES)
def test_each_element_is_a_row_whatever_the_pieces(type: pa.DataType, max_rows: int) -> None:
    table = pa.table({"a": range(7), "l": pa.array(LISTS, type), "z": list("abcdefg")})
    ds = af.from_arrow(table).explode("l").with_options(af.Options(max_chunk_rows=max_rows))
    expected = naive(table.to_pylist(), "l")
    assert ds.to_table().to_pylist() == expected
    assert rows_of(ds.select("a"), "a") == [row["a"] for row in expected]
    assert ds.schema == pa.schema([("a", pa.int64()), ("l", pa.int32()), ("z", pa.string())])
    assert max(batch.num_rows for batch in batches_of(ds)) <= max(max_rows, 3)


def test_fixed_lists_with_nulls() -> None:
    table = pa.table({"l": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int8(), 2))})
    for part, expected in ((table, [1, 2, None, 3, None]), (table.slice(1, 1), [None])):
        assert rows_of(af.from_arrow(part).explode("l"), "l") == expected


def test_bad_arguments() -> None:
    ds = af.range(3)
    refused(af.PlanError, lambda: ds.explode("id").schema, "explode", "int64", "expected a list")
    refused(af.PlanError, lambda: ds.explode("ids").schema, "explode", "ids")
    refused(af.PlanError, lambda: ds.explode(["id"]), "explode", "one column")  # type: ignore[arg-type]

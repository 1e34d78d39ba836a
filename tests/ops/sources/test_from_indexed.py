"""Rows by an indices mapping, without the library whose mapping it is; `tests/neighbours/test_datasets.py` has that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.ops.sources import from_indexed
from arrowflow.ops.sources.from_indexed import FromIndexed, FromMapped
from arrowflow.ops.sources.from_memory import from_batches
from arrowflow.testing import assert_same_rows, batches_of, check_dataset
from tests.ops.tables import NUMBERS, refused

PLACES = [16, 0, 3, 3, 9, 15, 1]


def indexed(places: list[int]) -> af.Dataset:
    parts = NUMBERS.combine_chunks().to_batches(max_chunksize=5)
    memory = from_batches(parts, NUMBERS.schema)
    return af.Dataset(FromIndexed(memory=memory, places=np.array(places, np.int64)))


class Mapped:
    """What `datasets.Dataset` has."""

    column_names = NUMBERS.schema.names

    def __init__(self, places: list[int] | None) -> None:
        self.data = SimpleNamespace(table=NUMBERS)
        self._indices = None if places is None else pa.table({"indices": pa.array(places, pa.uint64())})

    def __len__(self) -> int:
        return len(NUMBERS) if self._indices is None else len(self._indices)


@pytest.mark.parametrize("places", [PLACES, [], list(range(17))], ids=["some", "none", "all"])
def test_rows_come_by_their_places(places: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_indexed, "MAX_CHUNK_ROWS", 4)
    expected = NUMBERS.take(pa.array(places, pa.int64())).combine_chunks().to_batches()
    assert_same_rows(batches_of(indexed(places)), expected)
    assert indexed(places).num_rows == len(places)
    check_dataset(lambda: indexed(places).batch(3))


def test_columns_that_nobody_wants_are_not_gathered() -> None:
    ds = indexed(PLACES).select("row")
    assert ds.to_table()["row"].to_pylist() == PLACES
    assert "from_arrow(7 rows, 1 columns in memory, by their indices)" in ds.explain()


def test_a_global_shuffle_gathers_from_where_they_lie() -> None:
    assert sorted(indexed(PLACES).shuffle(seed=1).to_table()["row"].to_pylist()) == sorted(PLACES)
    assert indexed([]).shuffle().to_table().num_rows == 0


def test_a_state_knows_the_places() -> None:
    state = iter(indexed(PLACES)).state_dict()
    refused(af.StateError, lambda: iter(indexed(PLACES[::-1])).load_state_dict(state), "from_arrow", "places")
    assert indexed(PLACES) == indexed(PLACES)
    assert indexed(PLACES) != indexed(PLACES[::-1])


@pytest.mark.parametrize("places", [None, PLACES], ids=["all", "some"])
def test_what_is_mapped_is_read_as_it_is_bound(places: list[int] | None) -> None:
    def made() -> af.Dataset:
        return af.Dataset(FromMapped(source=Mapped(places)))

    expected: Any = NUMBERS if places is None else NUMBERS.take(pa.array(places, pa.int64()))
    assert_same_rows(batches_of(made()), expected.combine_chunks().to_batches())
    assert (made().num_rows, made().schema) == (len(expected), NUMBERS.schema)
    assert made() == made() and hash(made()) == hash(made())
    assert made() != af.Dataset(FromMapped(source=Mapped([1])))
    assert f"rows={len(expected)}" in repr(made())

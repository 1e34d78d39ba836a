"""`shard`: every n-th row."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import arrowflow as af
from arrowflow.testing import check_operator
from tests.ops.tables import NUMBERS, ids, numbers, refused, rows_of

pytestmark = pytest.mark.any_version


@pytest.mark.parametrize(("num_shards", "index"), [(2, 1), (5, 0), (30, 20)])
def test_contracts(num_shards: int, index: int) -> None:
    check_operator(lambda ds: ds.shard(num_shards, index), NUMBERS, in_full=num_shards == 2)


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 20])
def test_shards_are_a_partition(num_shards: int) -> None:
    shards = [numbers(4, 1, 0, 9).shard(num_shards, index) for index in range(num_shards)]
    for index, shard in enumerate(shards):
        assert rows_of(shard) == list(range(index, 14, num_shards))
        assert shard.num_rows == len(range(index, 14, num_shards))


def test_shards_of_a_shuffle_with_a_seed_are_a_partition_in_every_epoch() -> None:
    for epoch in range(2):
        parts = [ids(af.range(50).shuffle(20, seed=5).shard(3, index), epoch=epoch) for index in range(3)]
        assert sorted(itertools.chain(*parts)) == list(range(50))


def test_ranks_share_the_batches_of_a_shard_with_chunks_that_have_none_of_its_rows() -> None:
    ds = numbers(1, 8, 1, 1, 5).shard(5, 4).batch(2)
    shares = [list(ds.split_by_rank(rank, 2)) for rank in range(2)]
    assert [[batch["row"].to_pylist() for batch in share] for share in shares] == [[[4]], [[9]]]


@pytest.mark.parametrize(
    "arguments",
    [(0, 0), (-1, 0), (2, 2), (2, -1), (2.0, 0), (2, 1.0), (True, 0), (2, False), ("2", 0), (2, None)],
)
def test_bad_arguments(arguments: tuple[Any, Any]) -> None:
    refused(af.PlanError, lambda: af.range(3).shard(*arguments), "shard")

"""Random numbers: pinned by golden values, uniform as far as statistics can tell, independent of threads."""

from __future__ import annotations

import hashlib
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowflow import random
from tests.effort import scaled

pytestmark = pytest.mark.any_version

TRIES = max(3_000, scaled(3_000))
"""Orders of a few rows, of which each is as likely as the others: of five rows there are 120."""
SIZES = (0, 1, 2, 3, 511, 1024, 1025, 1536, 8192, 262_143, 262_144, 262_145, 600_001)
GOLDEN_BITS = [1060010937140503447, 8337850067718900822, 17867720961614491760]
GOLDEN_EMPTY = 9461671887116589789
GOLDEN_BIG = 3225033867116752865
GOLDEN_SMALL = {0: [], 1: [0], 2: [1, 0], 5: [3, 4, 0, 2, 1], 12: [11, 6, 7, 9, 8, 3, 1, 10, 4, 5, 0, 2]}
GOLDEN_LARGE = {
    1024: "adc4fccf8c80c425",
    1025: "7a50ba1a7c94187a",
    1536: "50ca1cec064ea266",
    8192: "5c8197aa89216e59",
    262143: "7f123ed059895d52",
    262144: "4560e1ce1ecffa77",
    262145: "6e5b90ea67cf8062",
    600001: "f1217838acd3176a",
}


def digest(rows: npt.NDArray[np.generic]) -> str:
    return hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()


def chi_square_z(counts: npt.NDArray[np.int64], freedom: int | None = None) -> float:
    """How many standard deviations the counts are less even than expected."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1 if freedom is None else freedom
    chi = float(((counts - expected) ** 2).sum() / expected)
    return float((chi - freedom) / (2 * freedom) ** 0.5)


def rank_correlation_z(rows: npt.NDArray[np.int64]) -> float:
    """Spearman's correlation of place and row, in standard deviations."""
    num_rows = len(rows)
    return float(np.corrcoef(rows, np.arange(num_rows))[0, 1] * (num_rows - 1) ** 0.5)


def test_raw_bits_are_pinned() -> None:
    assert random.bits((7, 1), 3).tolist() == GOLDEN_BITS
    assert random.bits((), 1).tolist() == [GOLDEN_EMPTY]
    assert random.bits((-1, 1 << 100), 1).tolist() == [GOLDEN_BIG]


def test_bits_are_those_of_philox_keyed_by_blake2b() -> None:
    encoded = b"\x01\0\0\0\x07" + b"\x02\0\0\0\x80\x00" + b"\x01\0\0\0\xff"
    key = hashlib.blake2b(encoded, digest_size=16, person=b"arrowflow.random").digest()
    expected = np.random.Philox(key=np.frombuffer(key, "<u8")).random_raw(4)
    assert np.array_equal(random.bits((7, 128, -1), 4), expected)


def test_fewer_bits_are_a_prefix_of_more() -> None:
    assert np.array_equal(random.bits((3,), 1000)[:10], random.bits((3,), 10))


@given(st.lists(st.tuples(st.integers(), st.integers()), min_size=2, max_size=2, unique=True))
def test_different_keys_give_different_bits(keys: list[tuple[int, int]]) -> None:
    first, second = (random.bits(key, 2) for key in keys)
    assert not np.array_equal(first, second)


def test_splitting_the_key_elsewhere_gives_different_bits() -> None:
    words = {int(random.bits(key, 1)[0]) for key in [(1, 2), (12,), (1, 2, 0), (0, 1, 2), (258,), (2, 1)]}
    assert len(words) == 6


def test_generators_repeat() -> None:
    first, second = (random.generator((5, 2)).standard_normal(100) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("num_rows", SIZES)
def test_each_row_comes_once(num_rows: int) -> None:
    rows = random.permutation(num_rows, (1, 2))
    assert rows.dtype == np.uint32
    assert np.array_equal(np.sort(rows), np.arange(num_rows))


def test_orders_are_pinned() -> None:
    assert {n: random.permutation(n, (7, n)).tolist() for n in (0, 1, 2, 5, 12)} == GOLDEN_SMALL
    assert {n: digest(random.permutation(n, (7, n))) for n in SIZES[5:]} == GOLDEN_LARGE


@pytest.mark.parametrize("num_rows", [2, 3, 4, 5])
def test_small_orders_are_equally_likely(num_rows: int) -> None:
    powers = num_rows ** np.arange(num_rows)
    codes = [int(random.permutation(num_rows, (11, i)) @ powers) for i in range(TRIES)]
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == np.prod(np.arange(1, num_rows + 1))
    assert abs(chi_square_z(counts)) < 4


@pytest.mark.parametrize("num_rows", [4, 5])
def test_scattered_orders_are_equally_likely(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "_SORTED_ROWS", 0)
    monkeypatch.setattr(random, "_NETWORK_ROWS", 2)
    test_small_orders_are_equally_likely(num_rows)


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [4, 5])
def test_orders_of_several_blocks_are_equally_likely(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "_BLOCK_ROWS", 2)
    test_small_orders_are_equally_likely(num_rows)


@pytest.mark.parametrize("num_rows", [64, 1024, 1500, 9000])
def test_places_are_uniform_over_a_thousand_seeds(num_rows: int) -> None:
    orders = np.stack([random.permutation(num_rows, (seed,)) for seed in range(1000)])
    for row in (0, 1, num_rows // 2, num_rows - 1):
        places = (orders == row).argmax(axis=1)
        assert abs(chi_square_z(np.bincount(places * 16 // num_rows, minlength=16))) < 4
        assert (
            abs(chi_square_z(np.bincount(orders[:, row].astype(np.int64) * 16 // num_rows, minlength=16))) < 4
        )


@pytest.mark.slow
@pytest.mark.parametrize(("num_rows", "num_seeds"), [(64, 1000), (1500, 1000), (9000, 1000), (262_144, 100)])
def test_order_does_not_correlate(num_rows: int, num_seeds: int) -> None:
    scores, neighbours, rising = [], [], []
    for seed in range(num_seeds):
        rows = random.permutation(num_rows, (seed, 1)).astype(np.int64)
        scores.append(rank_correlation_z(rows))
        neighbours.append(np.corrcoef(rows[1:], rows[:-1])[0, 1] * num_rows**0.5)
        rising.append(((rows[1:] > rows[:-1]).sum() - (num_rows - 1) / 2) / ((num_rows + 1) / 12) ** 0.5)
    for values in (scores, neighbours, rising):
        assert abs(np.mean(values)) < 4 / num_seeds**0.5 + 1.5 / num_rows**0.5
        assert abs(np.var(values) - 1) < 4 * (2 / num_seeds) ** 0.5


@pytest.mark.parametrize("num_rows", [65_536, 262_144, 600_000])
def test_blocks_spread_over_blocks(num_rows: int) -> None:
    """Rows of each 64th of the input are spread over the 64ths of the output as chance would do it."""
    rows = random.permutation(num_rows, (3,)).astype(np.int64)
    cells = rows * 64 // num_rows * 64 + np.arange(num_rows) * 64 // num_rows
    assert abs(chi_square_z(np.bincount(cells, minlength=64 * 64), freedom=63 * 63)) < 4


@pytest.mark.slow
def test_both_ends_reach_the_first_places_equally() -> None:
    """The first and the last row fall into the first 512 of 16,384 places alike, over 4,000 seeds."""
    orders = [random.permutation(16_384, (seed, 2))[:512] for seed in range(4000)]
    for row in (0, 16_383):
        hits = sum(bool((order == row).any()) for order in orders)
        assert abs(hits - 125) < 4 * 125**0.5


# ------------------------------------------------------------------------------- permutations in parts

PART_SIZES = (0, 1, 2, 3, 1024, 262_144, 262_145, 600_001)
GOLDEN_PARTS = {262145: "efb9d07fafd4f14a", 600001: "3b4db1c1781a334d"}


def whole(num_rows: int, key: random.Key) -> npt.NDArray[np.int64]:
    return random.Permutation(num_rows, key).part(0, num_rows)


@pytest.fixture
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "_BLOCK_ROWS", 0)


@pytest.mark.parametrize("num_rows", PART_SIZES)
def test_each_row_comes_once_in_parts(num_rows: int) -> None:
    order = random.Permutation(num_rows, (1, 2))
    rows = np.concatenate([order.part(0, num_rows // 3), order.part(num_rows // 3, num_rows)])
    assert rows.dtype == np.int64
    assert np.array_equal(np.sort(rows), np.arange(num_rows))


@pytest.mark.usefixtures("small_networks")
def test_networks_of_any_size_permute() -> None:
    for num_rows in (*range(1, 70), 1000, 1023, 1025):
        assert np.array_equal(np.sort(whole(num_rows, (num_rows,))), np.arange(num_rows))


def test_a_part_does_not_depend_on_the_others() -> None:
    order, expected = random.Permutation(500_000, (3,)), whole(500_000, (3,))
    for start, stop in ((499_999, 500_000), (0, 1), (77_777, 177_777), (5, 5)):
        assert np.array_equal(order.part(start, stop), expected[start:stop])


def test_few_rows_are_permuted_as_ever() -> None:
    assert np.array_equal(whole(3000, (4,)), random.permutation(3000, (4,)))


def test_orders_in_parts_are_pinned() -> None:
    assert {n: digest(whole(n, (7, n))) for n in GOLDEN_PARTS} == GOLDEN_PARTS


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [2048, 4096])
@pytest.mark.usefixtures("small_networks")
def test_places_in_networks_are_uniform_over_a_thousand_seeds(num_rows: int) -> None:
    orders = np.stack([whole(num_rows, (seed,)) for seed in range(1000)])
    for place in (0, 1, num_rows // 2, num_rows - 1):
        counts = np.bincount(orders[:, place] * 16 // num_rows, minlength=16)
        assert abs(chi_square_z(counts)) < 4
    cells = orders * 32 // num_rows * 32 + np.arange(num_rows) * 32 // num_rows
    assert abs(chi_square_z(np.bincount(cells.ravel(), minlength=32 * 32), freedom=31 * 31)) < 4
    for distance in (1, 2, round(num_rows**0.5), num_rows // 2):
        steps = (orders[:, distance:] - orders[:, :-distance]) % num_rows
        assert abs(chi_square_z(np.bincount(steps.ravel() * 32 // num_rows, minlength=32))) < 4


@pytest.mark.slow
@pytest.mark.parametrize(("num_rows", "num_seeds"), [(2048, 1000), (300_000, 40)])
@pytest.mark.usefixtures("small_networks")
def test_order_in_networks_does_not_correlate(num_rows: int, num_seeds: int) -> None:
    scores, neighbours, rising = [], [], []
    for seed in range(num_seeds):
        rows = whole(num_rows, (seed, 1))
        scores.append(rank_correlation_z(rows))
        neighbours.append(np.corrcoef(rows[1:], rows[:-1])[0, 1] * num_rows**0.5)
        rising.append(((rows[1:] > rows[:-1]).sum() - (num_rows - 1) / 2) / ((num_rows + 1) / 12) ** 0.5)
    for values in (scores, neighbours, rising):
        assert abs(np.mean(values)) < 4 / num_seeds**0.5 + 1.5 / num_rows**0.5
        assert abs(np.var(values) - 1) < 4 * (2 / num_seeds) ** 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("small_networks")
def test_networks_do_not_keep_lines_or_columns_together() -> None:
    """Rows that were in one line or column of the table of 32 by 32 are in one again as often as chance has it."""
    orders = np.stack([whole(1024, (seed, 3)) for seed in range(2000)])
    lines, columns = orders // 32, orders % 32
    for step in (1, 32):
        for where in (lines, columns):
            together = (where[:, : 1024 - step : 64] == where[:, step::64]).mean()
            expected, count = 31 / 1023, 2000 * 16
            assert abs(together - expected) < 4 * (expected / count) ** 0.5


def test_threads_do_not_matter() -> None:
    expected = [digest(random.permutation(20_000, (seed,))) for seed in range(32)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: digest(random.permutation(20_000, (seed,))), range(32)))
    assert found == expected


@pytest.mark.parametrize("num_rows", [200_000, 262_144, 262_145, 1_000_000])
def test_scratch_stays_in_its_bound(num_rows: int) -> None:
    arrow = 8 * num_rows + (8 << 18) * (num_rows > 1 << 18)  # sorted indices, of all rows and of a block
    tracemalloc.start()
    rows = random.permutation(num_rows, (1,))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak + arrow - rows.nbytes <= random.SCRATCH_BYTES_PER_ROW * num_rows + 65_536


def test_domains_differ() -> None:
    """Operators with the same seed draw from different numbers: each key has its domain behind the seed."""
    named = {
        name: value for name, value in vars(random).items() if name.endswith(("_ORDER", "_DRAWS", "_CALLS"))
    }
    assert len(named) == 11
    assert len(set(named.values())) == len(named)

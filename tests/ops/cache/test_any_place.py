"""Caches in memory, in files beside it, in folders and in stores: hit, miss and any mixture of them are the same."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.caching.store.chunk import Name
from arrowflow.testing import assert_same_batches, batches_of, check_operator
from arrowflow.testing.contracts import IN_FULL
from tests.ops.cache.cases import (
    CASES,
    PLACES,
    SMALL,
    Counted,
    Log,
    endless_at_first,
    in_store,
    same,
    spilled,
)
from tests.ops.tables import ALL_TYPES, NUMBERS, Apply, check_two_at_once, ids, numbers, rows_of

pytestmark = pytest.mark.any_version

ALL = [case for case in CASES if case != "before a shuffle of all rows"]
CHECKED: dict[str, list[str]] = {
    "memory": ALL,
    "spilled": ["alone", "twice", "of a repeat", "in batches"],
    "half spilled": ["repeated", "before a batch", "before a shuffle", "before a shuffle of all rows"],
    "folder": ALL,
    "compressed": ["before a batch"],
    "store": ["alone", "twice", "in batches", "of a function", "of a filter"],
    "two stores": ["alone"],
}
"""The cases of each place: places share kernels, and each kernel has all cases."""
PAIRS = [(place, case) for place, cases in CHECKED.items() for case in cases]
SAME_EACH_EPOCH = [(place, case) for place, case in PAIRS if not case.startswith("before a shuffle")]
BESIDE_MEMORY = ["memory", "spilled"]


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "cache").mkdir()
    return str(tmp_path / "cache")


def cache_at(place: str, root: str) -> Apply:
    return lambda ds: PLACES[place](ds, root)


@pytest.mark.parametrize(("place", "case"), PAIRS)
def test_contracts(place: str, case: str, root: str) -> None:
    """What is iterated several times finds what it left."""
    check_operator(
        lambda ds: CASES[case](ds, cache_at(place, root)),
        NUMBERS,
        ordered_by="row" if case == "alone" else None,
        splits_matter="function" in case,
        epochs_differ=case.startswith("before a shuffle"),
        in_full=IN_FULL and case == "alone" and place in ("memory", "folder"),
    )
    assert "spilled" not in place or list(Path(root).iterdir()) == []


def run(ds: af.Dataset, state: str | None = None) -> tuple[list[pa.RecordBatch], list[str]]:
    """Returns the batches of an epoch, or of the rest of one, and the state after each."""
    with iter(ds) as iterator:
        if state is None:
            iterator.set_epoch(2)
        else:
            iterator.load_state_dict(json.loads(state))
        found = [(batch, json.dumps(iterator.state_dict())) for batch in iterator]
    return [batch for batch, _ in found], [state for _, state in found]


@pytest.mark.parametrize(("place", "case"), SAME_EACH_EPOCH)
def test_hit_and_miss_give_equal_batches_and_equal_states(place: str, case: str, root: str) -> None:
    """Also where the state comes from the one and goes into the other; and the batches are those without a cache."""
    folders = (Path(root, str(number)) for number in itertools.count())

    def made() -> af.Dataset:
        folder = next(folders)
        folder.mkdir()
        return CASES[case](numbers(7, 0, 5, 4), cache_at(place, str(folder)))

    plain = batches_of(CASES[case](numbers(7, 0, 5, 4), lambda ds: ds))
    warm = made()
    (missed, states), hit = run(warm), run(warm)
    assert hit[1] == states
    for found in (missed, hit[0]):
        assert_same_batches(found, plain)
    count = len(states)
    for step in sorted({0, count // 3, 2 * count // 3, count - 1}):
        for ds in (warm, made()):
            assert_same_batches(run(ds, states[step])[0], plain[step + 1 :], f"after batch {step}")
    if place == "store":
        assert run(CASES[case](numbers(7, 0, 5, 4), cache_at("folder", root)))[1] == states
    if "spilled" in place:
        roomy = CASES[case](numbers(7, 0, 5, 4), lambda ds: spilled(ds, root, 1 << 20))
        assert [run(roomy)[1] for _ in range(2)] == [states] * 2, "where chunks are is in no state"
        assert_same_batches(run(roomy, states[count // 2])[0], plain[count // 2 + 1 :])


def is_chunk(path: str) -> bool:
    return Name.parse(path.rpartition("/")[2]) is not None


class Stored:
    """The chunks of a cache, which a test takes away and puts back."""

    def __init__(self, place: str, root: str) -> None:
        self.place, self.root = place, root
        if place == "store":
            self.address = in_store(root).removeprefix("memory:/")
            fsspec = pytest.importorskip("fsspec")
            self.files = fsspec.filesystem("memory")

    def read(self) -> dict[str, bytes]:
        if self.place == "store":
            return {name: self.files.cat_file(name) for name in self.files.find(self.address)}
        return {str(path): path.read_bytes() for path in Path(self.root).rglob("*") if path.is_file()}

    def write(self, files: dict[str, bytes]) -> None:
        for name in self.read():
            if name not in files:
                Path(name).unlink() if self.place == "folder" else self.files.rm_file(name)
        for name, data in files.items():
            Path(name).write_bytes(data) if self.place == "folder" else self.files.pipe_file(name, data)


@pytest.mark.parametrize(
    ("place", "case"),
    [
        *itertools.product(
            ["folder", "store"], ["alone", "twice", "in batches", "of a function", "of a filter"]
        ),
        ("folder", "of a shuffle"),
        ("folder", "of a repeat"),
    ],
)
def test_any_mixture_of_chunks_gives_the_same_rows(place: str, case: str, root: str) -> None:
    def made() -> af.Dataset:
        return CASES[case](numbers(7, 0, 5, 4), cache_at(place, root))

    plain = batches_of(CASES[case](numbers(7, 0, 5, 4), lambda ds: ds))
    stored = Stored(place, root)
    assert_same_batches(batches_of(made()), plain)
    whole = stored.read()
    names = sorted(filter(is_chunk, whole))[:4]
    assert names
    for kept in range(2 ** len(names)):
        gone = {name for number, name in enumerate(names) if not kept >> number & 1}
        stored.write({name: data for name, data in whole.items() if name not in gone})
        assert_same_batches(batches_of(made()), plain)


@pytest.mark.parametrize("place", ["folder", "store"])
def test_a_chunk_of_another_entry_is_not_read(place: str, root: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    Path(other).mkdir()

    def made(first: int, root: str) -> af.Dataset:
        rows = af.range(first, first + 200).with_options(af.Options(max_chunk_rows=40)).map(same)
        return cache_at(place, root)(rows)

    for first, folder in ((0, root), (1000, other)):
        made(first, folder).to_table()
    mine, foreign = (
        {name: data for name, data in Stored(place, folder).read().items() if is_chunk(name)}
        for folder in (root, other)
    )
    folder = next(iter(mine)).rpartition("/")[0]
    Stored(place, root).write({f"{folder}/{name.rpartition('/')[2]}": foreign[name] for name in foreign})
    assert mine and ids(made(0, root)) == list(range(200))


@pytest.mark.parametrize("place", PLACES)
def test_every_type_goes_through(place: str, root: str) -> None:
    ds = af.from_arrow(ALL_TYPES)
    cached = cache_at(place, root)(ds)
    for _ in range(2):
        assert_same_batches(batches_of(cached), batches_of(ds))


@pytest.mark.parametrize("place", PLACES)
def test_no_rows(place: str, root: str) -> None:
    cached = cache_at(place, root)(numbers(3, 3).filter(pl.col("row") > 9))
    assert [batches_of(ds) for ds in (cached, cached, cached.repeat())] == [[], [], []]
    assert "spilled" in place or "memory" in place or "complete, 0 rows" in cached.explain()


@pytest.mark.parametrize("place", ["folder", "store"])
def test_rows_are_computed_once(place: str, root: str, tmp_path: Path) -> None:
    """Also where another process or dataset begins, or where one stops early."""
    log = Log(tmp_path / "log")

    def made() -> af.Dataset:
        return cache_at(place, root)(af.range(30).with_options(SMALL).map(log, num_parallel_calls=1))

    with iter(made()) as iterator:
        for _ in range(4):
            next(iterator)
    names = [Name.parse(name.rpartition("/")[2]) for name in Stored(place, root).read()]
    seen = sum(name.num_rows for name in names if name is not None)
    assert seen >= 12, "what a consumer saw is stored"
    before = len(log.rows)
    for _ in range(3):
        assert ids(made()) == list(range(30))
    assert all(row >= seen for row in log.rows[before:])
    assert sorted({*log.rows}) == list(range(0, 30, 3))
    assert made().num_rows == 30


@pytest.mark.parametrize("place", ["memory", "spilled", "folder", "store"])
def test_an_input_that_cannot_be_repeated_counts_when_it_is_complete(place: str, root: str) -> None:
    """And rows of two of its runs do not meet."""
    places: dict[str, Apply] = {
        "memory": lambda ds: ds.cache(),
        "spilled": lambda ds: ds.cache(spill=root),
        "folder": lambda ds: ds.cache(root, key="rows"),
        "store": lambda ds: ds.cache(in_store(root), key="rows"),
    }
    ds, runs = endless_at_first(places[place])
    with iter(ds) as iterator:
        for _ in range(3):
            next(iterator)
    assert "only a complete pass counts" in ds.explain()
    assert place != "folder" or not [entry for entry in af.cache_info(root) if entry.complete]
    second = list(range(100, 110))
    assert [rows_of(ds), rows_of(ds), rows_of(ds.repeat(2))] == [second, second, second * 2]
    with iter(ds) as first, iter(ds) as other:
        assert [next(first)["row"][0].as_py(), next(other)["row"][0].as_py()] == [100, 100]
    assert next(runs) == 2
    assert place != "folder" or [entry.complete for entry in af.cache_info(root)] == [True]


@pytest.mark.parametrize("place", BESIDE_MEMORY)
def test_what_it_yields_is_read_only(place: str, root: str) -> None:
    ds = cache_at(place, root)(af.range(10)).to_numpy()
    assert not any(batch["id"].flags.writeable for _ in range(2) for batch in ds)


@pytest.mark.parametrize("place", BESIDE_MEMORY)
def test_two_iterators_fill_it_at_once(place: str, root: str) -> None:
    check_two_at_once(cache_at(place, root)(numbers(*[3] * 12).map(same)), num_batches=12)


@pytest.mark.parametrize("place", BESIDE_MEMORY)
def test_an_iterator_keeps_what_was_cleared_before_it(place: str, root: str) -> None:
    ds = cache_at(place, root)(numbers(*[2] * 6).map(same))
    rows_of(ds)
    with iter(ds) as iterator:
        next(iterator)
        ds.cache_clear()
        assert [batch["row"][0].as_py() for batch in iterator] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("place", BESIDE_MEMORY)
def test_datasets_made_from_it_share_it(place: str, root: str) -> None:
    counted = Counted()
    ds = cache_at(place, root)(numbers(4, 4).map(counted))
    assert rows_of(ds.filter(pl.col("row") > 2)) == [3, 4, 5, 6, 7]
    assert rows_of(ds.batch(3).repeat(2)) == [*range(8)] * 2
    assert sorted(rows_of(ds.with_options(af.Options(ram_budget=1 << 20)).shuffle(seed=3))) == [*range(8)]
    assert rows_of(ds.with_options(af.Options(cpu_budget=1)).shuffle(3, seed=1).take(2)) != []
    assert counted.calls == 2


@pytest.mark.parametrize("cache", [lambda ds, root: ds.cache(), spilled], ids=BESIDE_MEMORY)
def test_a_pickled_copy_starts_empty(cache: Callable[[af.Dataset, str], Any], root: str) -> None:
    ds = cache(numbers(50_000), root)
    rows_of(ds)
    assert len(pickle.dumps(ds)) < len(pickle.dumps(numbers(50_000))) + 1000
    copy = pickle.loads(pickle.dumps(ds))
    assert copy == ds and copy._plan.spill == ds._plan.spill
    assert not copy._plan.store.shelves
    assert rows_of(copy) == list(range(50_000))


@pytest.mark.parametrize("place", BESIDE_MEMORY)
@pytest.mark.parametrize("stop", [0, 1, 5, 9])
def test_an_epoch_that_stopped_leaves_what_it_had(place: str, stop: int, root: str) -> None:
    counted = Counted()
    ds = cache_at(place, root)(numbers(*[2] * 10).map(counted, num_parallel_calls=1))
    with iter(ds) as iterator:
        first = list(itertools.islice(iterator, stop))
    begun = counted.calls
    found = batches_of(ds)
    assert_same_batches(found[:stop], first)
    assert [batch["row"].to_pylist() for batch in found] == [[i, i + 1] for i in range(0, 20, 2)]
    # What was in flight when it stopped may be computed again.
    assert counted.calls <= 10 + begun - stop
    again = counted.calls
    assert_same_batches(batches_of(ds), found)
    assert counted.calls == again

"""`interleave`: the rotation, what is opened when, errors in their order, and that it goes on where it was."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.ops.combine.interleave import MAX_CYCLE_LENGTH
from arrowflow.testing import (
    Fault,
    Gate,
    assert_same_batches,
    batches_of,
    check_operator,
    check_resume,
    chunked,
    cut,
    raising,
)
from tests.ops.tables import NUMBERS, Apply, ids, numbers, refused, rows_of, stands_for_all

pytestmark = pytest.mark.any_version

SCHEMA = pa.schema([("row", pa.int64()), ("i", pa.int64())])
SMALL = af.Options(max_chunk_rows=3)
Fn = Callable[[dict[str, Any]], af.Dataset]


def element(row: int, sizes: Sequence[int]) -> af.Dataset:
    """Returns a dataset whose rows name `row` and count through splits of these sizes, in uneven chunks."""
    batch = pa.record_batch(
        [pa.array([row] * sum(sizes), pa.int64()), pa.array(range(sum(sizes)), pa.int64())], schema=SCHEMA
    )
    starts = itertools.accumulate([0, *sizes])
    splits = [cut(batch.slice(start, size), [2, 0, 1]) for start, size in zip(starts, sizes, strict=False)]
    return chunked(splits, SCHEMA)


def sizes_of(row: int) -> list[int]:
    """Elements of 0 to 9 rows, in 0 to 2 splits."""
    return [[], [2], [5, 4], [1, 0], [3, 3], [7]][row % 6]


def children(row: dict[str, Any]) -> af.Dataset:
    return element(row["row"], sizes_of(row["row"]))


def rotated(elements: Sequence[list[list[Any]]], cycle: int) -> list[Any]:
    """Returns the order of tf.data, by plain Python; each element comes as its turns, the last of which shows its end."""
    coming, found = iter(elements), list[Any]()
    places: list[list[list[Any]]] = [[]] * cycle
    while True:
        places = [turns or next(coming, []) for turns in places]
        if not any(places):
            return found
        found += flat([turns[0] for turns in places if turns])
        places = [turns[1:] for turns in places]


def turns_of(row: int, block: int | None) -> list[list[Any]]:
    """Returns the turns of an element: pieces of its splits, or groups of its rows. A short group shows the end."""
    sizes, size = sizes_of(row), block or 3
    borders = [0, *itertools.accumulate(sizes)] if block is None else [0, sum(sizes)]
    turns = [
        [(row, i) for i in range(first, min(first + size, stop))]
        for start, stop in itertools.pairwise(borders)
        for first in range(start, stop, size)
    ]
    return turns if block and turns and len(turns[-1]) < block else [*turns, []]


def pairs(ds: Iterable[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [(row["row"], row["i"]) for batch in ds for row in batch.select(["row", "i"]).to_pylist()]


def flat(lists: Sequence[Sequence[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


BROKEN = ValueError("bad piece")


def broken_at(number: int) -> Fn:
    """Returns a function of elements of two pieces, of which that of one number raises `BROKEN`."""

    def fn(row: dict[str, Any]) -> af.Dataset:
        fault = Fault(raising(BROKEN), when=lambda batch: row["row"] == number, fn=lambda batch: batch)
        return element(row["row"], [1, 1]).map(fault)

    return fn


# ------------------------------------------------------------------------------------------- contracts


def noise(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    return batch.append_column("noise", pa.array(rng.random(batch.num_rows)))


def more_noise(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    return batch.append_column("more", pa.array(rng.random(batch.num_rows)))


def noisy(row: dict[str, Any]) -> af.Dataset:
    return children(row).map(noise, seed=5).shuffle(4)


def nested(row: dict[str, Any]) -> af.Dataset:
    return numbers(row["row"] % 3, 2).interleave(children, cycle_length=2, block_length=1)


def generated(row: dict[str, Any]) -> af.Dataset:
    return af.from_generator(lambda: ({"row": row["row"], "i": i} for i in range(row["row"])))


CASES: dict[str, Apply] = {
    "chunks": lambda ds: ds.interleave(children),
    "one after the other": lambda ds: ds.interleave(children, cycle_length=1, block_length=2),
    "rows": lambda ds: ds.interleave(children, cycle_length=3, block_length=1),
    "blocks": lambda ds: ds.interleave(children, cycle_length=2, block_length=4, num_parallel_calls=1),
    "more places than elements": lambda ds: ds.interleave(children, cycle_length=30, num_parallel_calls=2),
    "one in another": lambda ds: ds.take(6).interleave(nested, cycle_length=2, block_length=3),
}
EPOCHS_DIFFER: dict[str, Apply] = {
    "behind what drops rows and cuts windows": lambda ds: (
        ds.filter(pl.col("row") % 4 != 1)
        .shuffle(5, seed=1)
        .interleave(children, cycle_length=3)
        .skip(3)
        .take(20)
        .shuffle(7, seed=2)
        .batch(4)
    ),
    "a random map behind it and in it": lambda ds: (
        ds.take(7)
        .interleave(noisy, cycle_length=3, block_length=2)
        .map(more_noise, seed=2)
        .repeat(2)
        .batch(5)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *EPOCHS_DIFFER])
def test_contracts(case: str) -> None:
    apply = {**CASES, **EPOCHS_DIFFER}[case]
    check_operator(
        lambda ds: apply(ds.with_options(SMALL)),
        NUMBERS,
        epochs_differ=case in EPOCHS_DIFFER,
        in_full=stands_for_all(case, CASES) or stands_for_all(case, EPOCHS_DIFFER),
    )


def test_contracts_of_generators_in_it() -> None:
    check_operator(
        lambda ds: ds.interleave(generated, cycle_length=2, block_length=2),
        NUMBERS.slice(0, 6),
        in_full=False,
    )


# ------------------------------------------------------------------------------------------- the rotation


@pytest.mark.parametrize("block", [None, 1, 2, 3, 4, 100])
@pytest.mark.parametrize("cycle", [1, 2, 3, 5, 40])
def test_the_order_is_that_of_a_naive_rotation(cycle: int, block: int | None) -> None:
    rows = [3, 1, 2, 5, 0, 4, 2, 2, 6, 8, 7, 12, 5, 1]
    ds = af.from_arrow(pa.table({"row": rows})).with_options(SMALL)
    found = pairs(ds.interleave(children, cycle_length=cycle, block_length=block))
    assert found == rotated([turns_of(row, block) for row in rows], cycle)
    assert len(found) == sum(sum(sizes_of(row)) for row in rows)


def test_the_order_is_that_of_the_documentation_of_tf_data() -> None:
    ds = af.range(1, 6).interleave(
        lambda row: af.range(6).select(x=pl.col("id") * 0 + row["id"]), cycle_length=2, block_length=4
    )
    expected = "1111 2222 11 22 3333 4444 33 44 5555 55"
    assert rows_of(ds, "x") == [int(digit) for digit in expected.replace(" ", "")]


def test_a_place_is_filled_when_its_turn_comes_again() -> None:
    """As in tf.data: the end of an element is only seen in its next turn, which is so without rows."""
    ds = numbers(3).interleave(
        lambda row: element(row["row"], [8 if row["row"] == 1 else 4]), cycle_length=2, block_length=4
    )
    assert [row for row, _ in pairs(ds)] == [0] * 4 + [1] * 8 + [2] * 4


def test_borders_below_it_do_not_matter() -> None:
    one, *others = (
        pairs(numbers(*sizes).interleave(children, cycle_length=2, block_length=3))
        for sizes in ([8], [1] * 8, [3, 0, 5])
    )
    assert others == [one, one]


@pytest.mark.parametrize("block", [None, 2])
def test_turns_are_its_splits(block: int | None) -> None:
    """What a random map above sees are pieces of turns: a pure function of the plan."""

    def run(options: af.Options) -> list[pa.RecordBatch]:
        ds = numbers(7).with_options(options).interleave(children, cycle_length=2, block_length=block)
        return batches_of(ds.map(more_noise, seed=3))

    seen = run(SMALL)
    turns = [len(turn) for row in range(7) for turn in turns_of(row, block) if turn]
    assert sorted(batch.num_rows for batch in seen) == sorted(turns)
    assert_same_batches(run(af.Options(max_chunk_rows=3, cpu_budget=1)), seen)


def test_nothing_in_nothing_out() -> None:
    assert not batches_of(numbers(0).interleave(children))
    assert not batches_of(numbers(3).interleave(lambda row: element(0, [])))
    assert not batches_of(numbers(3).interleave(lambda row: element(0, [0, 0]), block_length=2))
    assert af.range(0).interleave(children).num_rows == 0
    assert af.range(1).interleave(children).num_rows is None


def test_the_function_gets_python_values() -> None:
    seen = []

    def fn(row: dict[str, Any]) -> af.Dataset:
        seen.append(row)
        return af.range(1)

    table = pa.table({"path": ["a", None], "n": [1, 2], "list": [[1], None]})
    batches_of(af.from_arrow(table).interleave(fn, num_parallel_calls=1))
    assert seen == table.to_pylist()


def test_files_of_a_list(tmp_path: Path) -> None:
    for number in range(5):
        table = pa.table({"x": range(number * 10, number * 10 + 4)})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=2)
    files = af.list_files(tmp_path / "*.parquet")
    ds = files.interleave(
        lambda row: af.read_parquet(row["path"]).filter(pl.col("x") % 10 != 1), cycle_length=2
    )
    assert rows_of(ds, "x") == [0, 10, 2, 3, 12, 13, 20, 30, 22, 23, 32, 33, 40, 42, 43]
    check_resume(lambda: files.interleave(read_file, cycle_length=3, block_length=1).batch(3))


def read_file(row: dict[str, Any]) -> af.Dataset:
    return af.read_parquet(row["path"])


def test_each_epoch_is_one_of_the_elements() -> None:
    shuffled = af.range(10).shuffle(10, seed=4)
    ds = af.range(1).interleave(lambda row: shuffled)
    orders = [ids(ds, epoch=epoch) for epoch in range(3)]
    assert orders == [ids(shuffled, epoch=epoch) for epoch in range(3)]
    assert ids(ds.repeat(2)) == orders[0] + orders[1]


def test_random_values_differ_between_elements_and_never_change() -> None:
    def values(options: af.Options, **arguments: Any) -> list[float]:
        ds = af.range(6).interleave(lambda row: af.range(4).map(noise, seed=1), **arguments)
        return rows_of(ds.with_options(options), "noise")

    expected = values(af.Options(cpu_budget=1))
    assert len(set(expected)) == 24
    assert values(af.Options(cpu_budget=4)) == expected
    assert values(af.Options(cpu_budget=2, autotune=False), num_parallel_calls=3) == expected
    assert sorted(values(af.Options(), cycle_length=1)) == sorted(expected)


def test_elements_without_a_seed_are_shuffled_differently() -> None:
    orders = batches_of(af.range(4).interleave(lambda row: af.range(20).shuffle(20)))
    assert len({tuple(batch["id"].to_pylist()) for batch in orders}) == 4


# ------------------------------------------------------------------------------------------- what is opened


class Opened:
    """Elements that wait at a gate until they may yield, and tell who has begun."""

    def __init__(self, rows: int = 2, *, shut: Iterable[int] = ()) -> None:
        self.gates = [Gate() for _ in range(20)]
        self.begun = Gate()
        self.begun.open()
        self.numbers: list[int] = []
        self._rows = rows
        for number in set(range(20)) - set(shut):
            self.gates[number].open()

    def __call__(self, row: dict[str, Any]) -> af.Dataset:
        number = row["id"]

        def generate() -> Iterator[dict[str, int]]:
            self.numbers.append(number)
            self.begun.pass_through()
            self.gates[number].pass_through()
            for i in range(self._rows):
                yield {"row": number, "i": i}

        return af.from_generator(generate, schema=SCHEMA)


@pytest.mark.parametrize(("calls", "begun"), [(af.AUTOTUNE, 4), (1, 1), (2, 2), (9, 3)])
def test_so_many_are_begun_while_the_first_one_waits(calls: int, begun: int) -> None:
    """By default all of the cycle, and the next one."""
    opened = Opened(shut=[0])
    ds = af.range(8).interleave(opened, cycle_length=3, block_length=1, num_parallel_calls=calls)
    with iter(ds.with_options(af.Options(cpu_budget=8))) as iterator:
        thread = threading.Thread(target=lambda: next(iterator))
        thread.start()
        opened.begun.wait_for(begun)
        # Nothing else begins before the first one yields: its turn is not over.
        assert sorted(opened.numbers) == list(range(begun))
        opened.gates[0].open()
        thread.join()
        assert [row for row, _ in pairs(iterator)] == [1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 6, 7]


def test_what_is_left_to_the_tuner_is_one_without_it() -> None:
    opened = Opened()
    ds = af.range(4).interleave(opened, cycle_length=2, block_length=1)
    with iter(ds.with_options(af.Options(autotune=False))) as iterator:
        assert next(iterator)["row"].to_pylist() == [0]
        assert opened.numbers == [0]
        next(iterator)
        assert opened.numbers == [0, 1]


def test_functions_are_called_at_the_same_time() -> None:
    gate = Gate()

    def fn(row: dict[str, Any]) -> af.Dataset:
        gate.pass_through()
        return element(row["id"], [2])

    with iter(af.range(6).interleave(fn, cycle_length=2)) as iterator:
        thread = threading.Thread(target=lambda: next(iterator))
        thread.start()
        gate.wait_for(3)
        gate.open()
        thread.join()


def test_the_memory_is_that_of_the_cycle_and_given_back() -> None:
    def fresh(row: dict[str, Any]) -> af.Dataset:
        return af.range(20_000).with_columns(x=pl.col("id") + row["id"])

    ds = af.range(50).interleave(fresh, cycle_length=2, num_parallel_calls=1)
    with iter(ds.with_options(af.Options(ram_budget="1MiB", cpu_budget=2))) as iterator:
        assert sum(batch.num_rows for batch in iterator) == 1_000_000
        stats = iterator.stats()
        assert stats.ledger_bytes == 0
        assert stats.ledger_peak_bytes < 8 << 20


def test_it_stops_in_the_middle() -> None:
    with iter(af.range(100).interleave(lambda row: af.range(1000).repeat(), cycle_length=5)) as iterator:
        assert len(list(itertools.islice(iterator, 7))) == 7
    assert iterator.stats().ledger_bytes == 0


# ------------------------------------------------------------------------------------------- without order


@pytest.mark.parametrize("block", [None, 1, 2])
def test_several_that_are_not_ready_hold_nobody_back_and_lose_nothing(block: int | None) -> None:
    slow = (0, 2, 5)
    opened = Opened(rows=3, shut=slow)
    ds = af.range(9).interleave(opened, cycle_length=4, block_length=block, deterministic=False)
    found: list[tuple[int, int]] = []
    with iter(ds) as iterator:
        while len(found) < 3 * 6:
            found += pairs([next(iterator)])
        assert not {row for row, _ in found} & set(slow)
        for number in (5, 0, 2):
            opened.gates[number].open()
            waited: list[tuple[int, int]] = []
            while len(waited) < 3:
                waited += pairs([next(iterator)])
            assert waited == [(number, i) for i in range(3)]
            found += waited
        assert next(iterator, None) is None
    assert sorted(found) == [(row, i) for row in range(9) for i in range(3)]


def test_one_that_stops_in_the_middle_is_passed_over_until_it_goes_on() -> None:
    """Its rows stay in their own order, whatever comes in between."""
    gate = Gate()

    def fn(row: dict[str, Any]) -> af.Dataset:
        def generate() -> Iterator[pa.RecordBatch]:
            for i in range(4):
                if row["id"] == 1 and i == 2:
                    gate.pass_through()
                yield pa.record_batch([[row["id"]], [i]], schema=SCHEMA)

        return af.from_generator(generate, schema=SCHEMA)

    ds = af.range(4).interleave(fn, cycle_length=3, block_length=1, deterministic=False)
    with iter(ds) as iterator:
        found = pairs(itertools.islice(iterator, 14))
        assert [i for row, i in found if row == 1] == [0, 1]
        gate.open()
        rest = pairs(iterator)
    assert rest == [(1, 2), (1, 3)]
    assert sorted(found + rest) == [(row, i) for row in range(4) for i in range(4)]


def test_a_function_that_takes_long_holds_no_open_input_back() -> None:
    gate = Gate()

    def fn(row: dict[str, Any]) -> af.Dataset:
        if row["id"] == 1:
            gate.pass_through()
        return element(row["id"], [3])

    ds = af.range(4).interleave(fn, cycle_length=3, block_length=1, deterministic=False)
    with iter(ds) as iterator:
        assert pairs(itertools.islice(iterator, 3)) == [(0, i) for i in range(3)]
        gate.open()
        assert sorted(pairs(iterator)) == [(row, i) for row in (1, 2, 3) for i in range(3)]


def test_without_order_an_error_comes_once_and_ends_it() -> None:
    """Rows that came before it are whole, and none comes twice."""
    found: list[tuple[int, int]] = []
    with iter(numbers(6).interleave(broken_at(2), cycle_length=3, deterministic=False)) as iterator:
        with pytest.raises(af.FunctionError, match="bad piece") as caught:
            found.extend(pair for batch in iterator for pair in pairs([batch]))
        assert caught.value.__cause__ is BROKEN
        with pytest.raises(af.ClosedError, match="has raised"):
            next(iterator)
    assert len(set(found)) == len(found)
    assert not [row for row, _ in found if row == 2]


def test_without_order_every_repetition_is_whole() -> None:
    ds = numbers(8).with_options(SMALL).interleave(children, cycle_length=3, deterministic=False)
    expected = sorted(pairs(ds))
    found = pairs(ds.repeat(3))
    third = len(found) // 3
    assert [sorted(found[first : first + third]) for first in (0, third, 2 * third)] == [expected] * 3
    assert len(pairs(ds.take(11))) == 11


@pytest.mark.parametrize(("cycle", "block"), [(1, None), (2, 1), (5, None), (5, 3)])
def test_without_order_the_rows_are_the_same(cycle: int, block: int | None) -> None:
    def find(options: af.Options, **arguments: Any) -> list[tuple[int, int]]:
        ds = numbers(15).with_options(options)
        return sorted(pairs(ds.interleave(children, cycle_length=cycle, block_length=block, **arguments)))

    expected = [(row, i) for row in range(15) for i in range(sum(sizes_of(row)))]
    assert find(SMALL, deterministic=False) == expected
    assert find(SMALL, deterministic=False, num_parallel_calls=1) == expected
    assert find(af.Options(deterministic=False)) == expected


def test_without_order_there_is_no_state() -> None:
    ds = numbers(3).interleave(children, deterministic=False).batch(2)
    with iter(ds) as iterator:
        refused(af.StateError, iterator.state_dict, "interleave", "deterministic=False")


def test_order_may_be_asked_for_in_spite_of_the_options() -> None:
    ds = numbers(9).interleave(children, cycle_length=3, block_length=2, deterministic=True)
    expected = pairs(numbers(9).interleave(children, cycle_length=3, block_length=2))
    for _ in range(8):
        assert pairs(ds.with_options(af.Options(deterministic=False, cpu_budget=4))) == expected


def test_one_without_order_is_strict_in_one_with_order_and_below_a_cache() -> None:
    def loose(row: dict[str, Any]) -> af.Dataset:
        return numbers(4).interleave(children, cycle_length=2, block_length=1, deterministic=False)

    def strict(row: dict[str, Any]) -> af.Dataset:
        return numbers(4).interleave(children, cycle_length=2, block_length=1)

    assert pairs(numbers(3).interleave(loose)) == pairs(numbers(3).interleave(strict))
    cached = loose({}).cache()
    assert pairs(cached) == pairs(strict({}))
    with iter(cached) as iterator:
        next(iterator)
        iterator.state_dict()


# ------------------------------------------------------------------------------------------- states


def test_finished_elements_are_not_opened_again() -> None:
    seen: list[int] = []

    def fn(row: dict[str, Any]) -> af.Dataset:
        seen.append(row["row"])
        return element(row["row"], [9] if row["row"] == 0 else [2])

    ds = numbers(6).interleave(fn, cycle_length=2, block_length=1)
    with iter(ds) as iterator:
        pairs(itertools.islice(iterator, 9))
        state = json.dumps(iterator.state_dict())
        expected = pairs(iterator)
    seen.clear()
    with iter(ds) as iterator:
        iterator.load_state_dict(json.loads(state))
        assert pairs(iterator) == expected
    # Of the first nine rows five are of element 0, two of 1, and two of 2. Whether 2 is at its end may be known or not.
    assert sorted(seen) == [0, 2, 3, 4, 5]


def test_a_state_is_small_whatever_is_open(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(100_000, 120_000)}), tmp_path / "some.parquet", row_group_size=5_000)
    inner = af.read_parquet(tmp_path / "some.parquet").filter(pl.col("x") % 2 == 0).shuffle(500, seed=1)

    def size(cycle: int) -> int:
        ds = af.range(10**9, 10**9 + cycle).interleave(
            lambda row: inner, cycle_length=cycle, block_length=99, num_parallel_calls=1
        )
        with iter(ds) as iterator:
            for _ in range(60 * cycle):
                next(iterator)
            return len(json.dumps(iterator.state_dict()))

    assert size(1) + (size(9) - size(1)) / 8 * (MAX_CYCLE_LENGTH - 1) < 64 << 10


def test_one_shot_streams_are_asked_for_again() -> None:
    table = pa.table({"x": range(10)})

    def stream(row: dict[str, Any]) -> af.Dataset:
        return af.from_arrow(pa.RecordBatchReader.from_batches(table.schema, table.to_batches(3)))

    check_resume(lambda: af.range(5).interleave(stream, cycle_length=2))


@pytest.mark.parametrize(("name", "value"), [("cycle_length", 3), ("block_length", 2)])
def test_a_state_of_another_rotation_is_refused(name: str, value: int) -> None:
    given: dict[str, Any] = {"cycle_length": 2, "block_length": 1}
    with iter(numbers(5).interleave(children, **given)) as iterator:
        next(iterator)
        state = iterator.state_dict()
    texts = ("interleave", f"{name}={value}", f"{name}={given[name]}")
    with iter(numbers(5).interleave(children, **given | {name: value})) as iterator:
        refused(af.StateError, lambda: iterator.load_state_dict(state), *texts)


def test_changed_code_warns() -> None:
    def changed(row: dict[str, Any]) -> af.Dataset:
        return children({"row": row["row"] + 1})

    with iter(numbers(5).interleave(children, block_length=1)) as iterator:
        next(iterator)
        state = iterator.state_dict()
    changed.__qualname__ = "children"
    other = numbers(5).interleave(changed, block_length=1)
    with iter(other) as iterator, pytest.warns(UserWarning, match="interleave"):
        iterator.load_state_dict(state)


# ------------------------------------------------------------------------------------------- errors


def rows_before(ds: af.Dataset, error: type[Exception], *texts: str) -> tuple[list[int], Exception]:
    """Returns the elements whose rows come before the error, and the error."""
    found: list[int] = []
    with iter(ds) as iterator, pytest.raises(error) as caught:
        found.extend(value for batch in iterator for value in batch["row"].to_pylist())
    for text in texts:
        assert text in str(caught.value), f"{text!r} is not in {caught.value}"
    return found, caught.value


@pytest.mark.parametrize("parallel", [af.AUTOTUNE, 1, 3])
def test_an_error_of_the_function_comes_in_its_turn(parallel: int) -> None:
    fault = Fault(raising(BROKEN), when=lambda row: row["row"] == 3, fn=lambda row: element(row["row"], [2]))
    ds = numbers(6).interleave(fault, cycle_length=2, block_length=1, num_parallel_calls=parallel)
    found, error = rows_before(ds, af.FunctionError, "interleave", "ValueError: bad piece", "'row': 3")
    assert found == [0, 1, 0, 1, 2]
    assert error.__cause__ is BROKEN
    assert rows_of(ds.take(5)) == [0, 1, 0, 1, 2], "a take that has enough never hears of it"


def test_an_error_in_an_element_comes_in_its_turn() -> None:
    ds = numbers(4).interleave(broken_at(1), cycle_length=3)
    found, error = rows_before(ds, af.FunctionError, "map", "bad piece")
    assert found == [0]
    assert error.__cause__ is BROKEN


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": [1, 2]}), tmp_path / "good.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no file PAR1")
    ds = af.from_arrow(pa.table({"path": [str(tmp_path / "good.parquet"), str(tmp_path / "bad.parquet")]}))
    found, _ = rows_before(ds.interleave(read_file, cycle_length=1), af.SourceError, "bad.parquet")
    assert found == [1, 2]


@pytest.mark.parametrize("result", [None, 3, pa.table({"x": [1]}), [1, 2]])
def test_something_else_than_a_dataset_is_refused(result: Any) -> None:
    texts = ("interleave", "expected an arrowflow.Dataset", type(result).__name__)
    refused(af.FunctionError, lambda: batches_of(af.range(3).interleave(lambda row: result)), *texts)


REFUSED: dict[str, tuple[Callable[[], af.Dataset], type[Exception], tuple[str, ...]]] = {
    "batches": (
        lambda: af.range(4).batch(2),
        af.FunctionError,
        ("interleave", "put `batch` after `interleave`"),
    ),
    "its own words": (lambda: af.range(4).fill_null({"id": "x"}), af.PlanError, ("fill_null", "'x'")),
    "cannot be written": (
        lambda: af.range(4).select("idd"),
        af.FunctionError,
        ("interleave", "PlanError: select: unknown column 'idd'"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_plan_that_cannot_run_is_refused(case: str) -> None:
    make, error, texts = REFUSED[case]
    refused(error, lambda: batches_of(af.range(3).interleave(lambda row: make())), *texts)


OTHER_SCHEMAS: dict[str, tuple[Callable[[af.Dataset], af.Dataset], tuple[str, ...]]] = {
    "a type": (lambda ds: ds.cast({"i": pa.int32()}), ("'i'", "int32", "int64")),
    "a name": (lambda ds: ds.rename({"i": "j"}), ("['row', 'j']", "['row', 'i']")),
    "one more": (lambda ds: ds.with_columns(z=pl.col("i")), ("'z'",)),
    "one less": (lambda ds: ds.drop("i"), ("['row']",)),
    "an order": (lambda ds: ds.select("i", "row"), ("['i', 'row']", "select")),
}


@pytest.mark.parametrize("case", OTHER_SCHEMAS)
def test_elements_have_one_schema(case: str) -> None:
    change, texts = OTHER_SCHEMAS[case]

    def fn(row: dict[str, Any]) -> af.Dataset:
        ds = element(row["row"], [2])
        return change(ds) if row["row"] == 2 else ds

    ds = numbers(4).interleave(fn, cycle_length=2, block_length=1)
    found, _ = rows_before(ds, af.SchemaError, "interleave", "fn returned for row 2", *texts)
    assert found == [0, 1, 0, 1]


def test_elements_without_rows_declare_nothing() -> None:
    def fn(row: dict[str, Any]) -> af.Dataset:
        return element(1, [1]) if row["row"] else element(0, [0]).rename({"i": "other"})

    assert pairs(numbers(2).interleave(fn)) == [(1, 0)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"fn": af.range(3)}, "function"),
        ({"cycle_length": 0}, "cycle_length"),
        ({"cycle_length": MAX_CYCLE_LENGTH + 1}, "cycle_length"),
        ({"cycle_length": 1.5}, "cycle_length"),
        ({"block_length": 0}, "block_length"),
        ({"num_parallel_calls": 0}, "num_parallel_calls"),
        ({"deterministic": "yes"}, "deterministic"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], text: str) -> None:
    refused(af.PlanError, lambda: af.range(3).interleave(**{"fn": children, **arguments}), "interleave", text)


def test_it_needs_rows() -> None:
    refused(af.PlanError, lambda: af.range(3).batch(2).interleave(children), "interleave", "batch")


def test_explain_says_what_it_does() -> None:
    text = af.range(3).interleave(children, cycle_length=3, block_length=16).explain()
    assert "interleave(fn='children', cycle_length=3, block_length=16)" in text
    assert "children(row), and plan what it returns" in text
    assert "rotate over 3 inputs, 16 rows of each in turn" in text

"""Pieces follow from the rows of a split and from the plan alone: not from chunks, layout, rules, ranks or resumes."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow import state as states
from arrowflow.kernels.pieces import FEW_ROWS, Pieces
from arrowflow.kernels.value_bytes import value_ends
from arrowflow.optimizer import RULES
from arrowflow.options import MAX_CHUNK_BYTES
from arrowflow.testing import chunked, cut
from tests.effort import scaled

pytestmark = pytest.mark.any_version

KILOBYTE = 1 << 10


def sizes(ds: af.Dataset) -> list[int]:
    """Returns the rows of each piece that a function at the end of a plan sees."""
    return seen_by(lambda note: ds.map(note))


def seen_by(plan: Callable[[Callable[[Any], Any]], af.Dataset]) -> list[int]:
    """Returns the rows of each call of the function that a plan is made with, in the order of the rows."""
    found: list[tuple[int, int]] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        found.append((batch["id"][0].as_py(), batch.num_rows))
        return batch

    exhaust(plan(note))
    return [rows for _, rows in sorted(found)]


def exhaust(ds: af.Dataset) -> None:
    for _ in ds:
        pass


def images(rows: int, num_bytes: int = 20 * KILOBYTE) -> pa.Table:
    return pa.table({"id": range(rows), "image": pa.array([b"x" * num_bytes] * rows, pa.binary())})


# ------------------------------------------------------------------------------------ bytes of values

TYPES = [
    pa.string(),
    pa.large_binary(),
    pa.list_(pa.int16()),
    pa.list_(pa.string()),
    pa.large_list(pa.list_(pa.bool_(), 3)),
    pa.list_(pa.list_(pa.string()), 2),
    pa.list_(pa.binary(), 0),
    pa.struct({"a": pa.int64(), "b": pa.string()}),
    pa.map_(pa.string(), pa.float32()),
    pa.list_(pa.struct({"a": pa.list_(pa.int8()), "b": pa.int32()})),
]


def drawn(type: pa.DataType, rng: random.Random) -> Any:
    if rng.random() < 0.2:
        return None
    if pa.types.is_struct(type):
        return {field.name: drawn(field.type, rng) for field in type}
    if pa.types.is_map(type):
        return [(f"k{key}", drawn(type.item_type, rng)) for key in range(rng.randrange(4))]
    if pa.types.is_fixed_size_list(type):
        return [drawn(type.value_type, rng) for _ in range(type.list_size)]
    if pa.types.is_nested(type):
        return [drawn(type.value_type, rng) for _ in range(rng.randrange(4))]
    if pa.types.is_boolean(type):
        return True
    if pa.types.is_integer(type) or pa.types.is_floating(type):
        return 1
    text = "x" * rng.randrange(6)
    return text if pa.types.is_string(type) else text.encode()


def counted(value: Any, type: pa.DataType) -> float:
    """Returns the bytes of a value, one after the other in plain Python."""
    try:
        return type.bit_width / 8
    except ValueError:
        pass
    if pa.types.is_fixed_size_list(type) and pa.types.is_boolean(type.value_type):
        return type.list_size / 8
    if value is None:
        return 0
    if pa.types.is_struct(type):
        return sum(counted(value[field.name], field.type) for field in type)
    if pa.types.is_map(type):
        return sum(len(key) + counted(item, type.item_type) for key, item in value)
    if pa.types.is_nested(type):
        return sum(counted(item, type.value_type) for item in value)
    return len(value)


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_bytes_are_those_of_the_values(type: pa.DataType) -> None:
    for seed in range(5):
        rng = random.Random(seed)
        values = [drawn(type, rng) for _ in range(rng.randrange(30))]
        array = pa.array(values, type)
        for start, stop in [(0, len(values)), (3, 20), (9, 9)]:
            part = array.slice(start, max(0, stop - start))
            found = np.diff(value_ends(part))
            assert len(found) == len(part)
            if "bool" not in str(type):  # bits are rounded down in sums
                assert found.tolist() == [counted(value, type) for value in values[start:stop]]


def test_memory_under_nulls_counts_nothing() -> None:
    hidden = pa.StringArray.from_buffers(
        3,
        pa.py_buffer(np.array([0, 1, 9, 11], np.int32)),
        pa.py_buffer(b"abbbbbbbbcc"),
        pa.py_buffer(b"\x05"),
    )
    assert hidden.to_pylist() == ["a", None, "cc"]
    assert np.diff(value_ends(hidden)).tolist() == [1, 0, 2]


# ------------------------------------------------------------------------------------------ the limits


def large(rows: int, **options: Any) -> af.Dataset:
    return af.from_arrow(images(rows)).with_options(af.Options(**options))


SMALL_BYTES = af.from_arrow(images(1000, 8))
FEW = [32, 32, 64, *[128] * 6, 104]
FIT = MAX_CHUNK_BYTES // (20 * KILOBYTE)
SEEN: dict[str, tuple[Callable[[Any], af.Dataset], list[int]]] = {
    "large values": (lambda note: large(700).map(note), [32, 32, 64, 128, FIT, FIT, 700 - 256 - 2 * FIT]),
    "all columns": (lambda note: large(500, max_chunk_rows=400).map(note), [204, 204, 92]),
    "columns that are not read": (
        lambda note: large(500, max_chunk_rows=400).map(note, columns=["id"]),
        [400, 100],
    ),
    "small batches": (lambda note: SMALL_BYTES.map(note).batch(32), FEW),
    "small batches, later": (
        lambda note: SMALL_BYTES.map(note).filter(pl.col("id") >= 0).take(999).batch(32),
        FEW,
    ),
    "small batches of two functions": (
        lambda note: SMALL_BYTES.map(note).map(lambda batch: batch).prefetch(2).batch(32),
        FEW,
    ),
    "batches": (lambda note: SMALL_BYTES.map(note).batch(300), [32, 32, 64, 128, 256, 300, 188]),
    "windows": (
        lambda note: SMALL_BYTES.map(note).shuffle(200, seed=1).batch(8),
        [32, 32, 64, 128, 200, 200, 200, 144],
    ),
    "no batches": (lambda note: SMALL_BYTES.map(note), [32, 32, 64, 128, 256, 488]),
    "behind a cache": (lambda note: SMALL_BYTES.map(note).cache().batch(32), [32, 32, 64, 128, 256, 488]),
    "given rows": (
        lambda note: SMALL_BYTES.with_options(af.Options(max_chunk_rows=600)).map(note).batch(32),
        [600, 400],
    ),
    "behind a batch": (lambda note: large(500).batch(300).map(note), [300, 200]),
}


@pytest.mark.parametrize("name", SEEN)
def test_rows_of_each_piece(name: str) -> None:
    plan, expected = SEEN[name]
    assert seen_by(plan) == expected


def test_images_after_a_shuffle_come_in_as_many_as_a_batch_has() -> None:
    rows: list[int] = []

    def decode(columns: dict[str, Any]) -> dict[str, Any]:
        rows.append(len(columns["image"]))
        return {"image": np.zeros((len(columns["image"]), 2, 2, 3), np.uint8)}

    exhaust(af.from_arrow(images(1000, 100)).shuffle(500, seed=1).map(decode, format="numpy").batch(128))
    assert sorted(rows) == sorted([32, 32, 64, 128, 128, 116, 128, 128, 128, 116])


def test_a_value_larger_than_a_piece_comes_alone() -> None:
    table = pa.table({"id": range(4), "text": ["", "x" * 100, "y", "z"]})
    assert sizes(af.from_arrow(table).with_options(af.Options(max_chunk_bytes=10))) == [1, 1, 1, 1]
    tensors = pa.table({"id": range(3), "t": pa.FixedSizeListArray.from_arrays(np.zeros(30, np.int8), 10)})
    assert sizes(af.from_arrow(tensors).with_options(af.Options(max_chunk_bytes=9))) == [1, 1, 1]


def test_each_column_counts_by_itself() -> None:
    numbers = {f"x{number}": np.arange(40_000) for number in range(20)}
    plain = pa.table({"id": range(40_000), **numbers})
    assert sizes(af.from_arrow(plain).with_options(af.Options(max_chunk_rows=65_536))) == [40_000]
    narrow = af.Options(max_chunk_bytes=80)
    assert sizes(af.from_arrow(plain.slice(0, 25)).with_options(narrow)) == [10, 10, 5]


@pytest.mark.parametrize(
    "values", [pa.array(["a.jpg"] * 5000), pa.array([[1]] * 5000), pa.array([{"a": "x"}] * 5000)], ids=str
)
def test_texts_and_lists_come_in_more(values: pa.Array) -> None:
    ds = af.from_arrow(pa.table({"id": range(5000), "value": values}))
    start = [128, 128, 256, 512]
    assert seen_by(lambda note: ds.map(note).batch(32)) == [*start, 1024, 1024, 1024, 904]
    assert seen_by(lambda note: ds.map(note).batch(3000)) == [*start, 1024, 2048, 904]
    assert seen_by(lambda note: ds.map(note, columns=["id"]).batch(32)) == [*start, 1024, 2048, 904]


def test_a_function_of_rows_gets_as_many() -> None:
    def rows(ds: af.Dataset) -> list[int]:
        return [batch.num_rows for batch in ds.map_rows(lambda row: row)]

    assert max(rows(af.range(20_000))) > 4000
    lines = af.range(9).map_rows(lambda row: row).batch(8).explain().split("\n")
    (fact,) = (line for line in lines if "cut" in line)
    assert "cut splits every 1,024 rows" in fact


def test_paths_of_files_come_in_few(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}.txt").touch()
    found: list[int] = []

    def load(columns: dict[str, Any]) -> dict[str, Any]:
        found.append(len(columns["path"]))
        return {"size": np.zeros(len(columns["path"]))}

    files = af.list_files(tmp_path / "*.txt")
    for ds in (files, files.shuffle(200, seed=1), files.enumerate().select("path")):
        found.clear()
        exhaust(ds.map(load, format="numpy"))
        assert max(found) <= 128
    found.clear()
    exhaust(files.map(load, format="numpy").map(lambda columns: columns, format="numpy"))
    assert sorted(found) == [32, 32, 44, 64, 128]


def test_numbers_do_not() -> None:
    numbers = af.range(70_000)
    assert seen_by(lambda note: numbers.map(note).batch(32))[:3] == [128, 128, 256]
    assert sum(seen_by(lambda note: numbers.map(note).batch(32))[:10]) == 65_536, "nine pieces more"
    assert seen_by(lambda note: numbers.map(note).batch(32))[10:] == [70_000 - 65_536]


def test_a_cache_does_not_depend_on_what_follows(tmp_path: Path) -> None:
    texts = af.from_arrow(images(1000, 8))
    calls: list[int] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return batch

    for size in (32, 300):
        exhaust(texts.map(note).cache(tmp_path, key="same").batch(size))
    assert sum(calls) == 1000, "the second run finds the entry"


def test_turns_of_an_interleave_are_cut_by_bytes_alone() -> None:
    def element(row: dict[str, Any]) -> af.Dataset:
        return af.from_arrow(images(300))

    turns = af.range(2).interleave(element, cycle_length=2)
    assert [batch.num_rows for batch in turns] == [204, 204, 96, 96]


# ------------------------------------------------------------------------------- nothing else matters


def greedy(
    rows: Sequence[tuple[int, str | None, list[str] | None]], max_bytes: int, max_rows: int
) -> list[int]:
    """Returns the rows of each piece of a split, in plain Python."""
    pieces: list[int] = []
    held: list[int] = [0, 0]
    count = 0
    for _, text, texts in rows:
        row = [len(text or ""), sum(map(len, texts or []))]
        after = [one + other for one, other in zip(held, row, strict=True)]
        if count and (count == max_rows or max(after) > max_bytes):
            pieces.append(count)
            count, after = 0, row
        held, count = after, count + 1
    return [*pieces, count] if count else pieces


ROWS = st.lists(
    st.tuples(
        st.none() | st.text("ab", max_size=5), st.none() | st.lists(st.text("c", max_size=3), max_size=3)
    ),
    max_size=25,
)


@settings(max_examples=scaled(60), database=None)
@given(
    splits=st.lists(ROWS, min_size=1, max_size=3),
    max_bytes=st.sampled_from([8, 9, 13, 40]),
    max_rows=st.sampled_from([3, 100]),
    chunks=st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any),
)
@example(splits=[[("a" * 20, None)] * 6], max_bytes=40, max_rows=100, chunks=[1])
def test_chunks_move_no_border(
    splits: list[list[Any]], max_bytes: int, max_rows: int, chunks: list[int]
) -> None:
    schema = pa.schema({"id": pa.int64(), "s": pa.string(), "l": pa.list_(pa.string())})
    numbers = itertools.count()
    numbered = [[(next(numbers), *row) for row in split] for split in splits]
    parts, expected = [], []
    for split in numbered:
        columns = list(zip(*split, strict=True)) if split else [(), (), ()]
        batch = pa.record_batch(
            [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)], schema=schema
        )
        parts.append(cut(batch, chunks) or [batch])
        expected += greedy(split, max_bytes, min(max_rows, max_bytes // 8))
    options = af.Options(max_chunk_bytes=max_bytes, max_chunk_rows=max_rows)
    ds = chunked(parts, schema).with_options(options)
    assert sizes(ds) == expected
    plan = ds.map(lambda batch: batch)
    for at in {0, len(expected) // 2, len(expected) - 1} & {*range(len(expected))}:
        state, _ = stopped(plan, at + 1)
        assert [len(batch) for batch in rest(plan, state)] == expected[at + 1 :]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    rows = 2000
    table = pa.table(
        {
            "id": np.arange(rows),
            "text": ["x" * int(n) for n in rng.integers(0, 900, rows)],
            "unread": ["y" * int(n) for n in rng.integers(0, 2000, rows)],
            "price": pa.array(rng.integers(0, 99, rows), pa.int32()).cast(pa.decimal128(12, 2)),
        }
    )
    path = tmp_path_factory.mktemp("pieces") / "a.parquet"
    pq.write_table(table, path, row_group_size=700)
    return path


def noisy(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    return pa.record_batch(
        {"id": batch["id"], "first": rng.random(batch.num_rows), "rows": [batch.num_rows] * batch.num_rows}
    )


SMALL = af.Options(max_chunk_bytes="64KiB", max_chunk_rows=500)


def noise(file: Path, options: af.Options = SMALL) -> af.Dataset:
    ds = af.read_parquet(file).filter(pl.col("price") > 3).with_options(options)
    return ds.map(noisy, seed=4, columns=["id", "text"])


def test_rules_tuning_and_resumes_move_no_border(file: Path) -> None:
    plain = noise(file).batch(100)
    expected = [batch.to_pydict() for batch in plain]
    assert len({rows for batch in expected for rows in batch["rows"]}) > 5, "pieces of many sizes"
    for options in (
        af.Options(disabled_rules=tuple(rule.name for rule in RULES)),
        af.Options(cpu_budget=4),
        af.Options(cpu_budget=1, ram_budget="2MiB"),
        af.Options(autotune=False),
    ):
        assert [batch.to_pydict() for batch in noise(file).batch(100).with_options(options)] == expected
    with iter(plain) as run:
        run.set_epoch(0)
        for taken in range(len(expected)):
            if taken % 4 == 0:
                with iter(noise(file).batch(100)) as other:
                    other.load_state_dict(json.loads(json.dumps(run.state_dict())))
                    assert [batch.to_pydict() for batch in other] == expected[taken:]
            next(run)


def test_without_an_order_pieces_are_the_same(file: Path) -> None:
    def key(row: dict[str, Any]) -> Any:
        return row["id"]

    expected = sorted(noise(file).to_table().to_pylist(), key=key)
    free = noise(file).with_options(af.Options(deterministic=False, cpu_budget=4))
    assert sorted(free.to_table().to_pylist(), key=key) == expected


def test_ranks_move_no_border(file: Path) -> None:
    ds = af.read_parquet(file).with_options(SMALL)
    ds = ds.map(noisy, seed=4, columns=["id", "text"], keeps_rows=True).batch(64)

    def steps(size: int) -> list[list[Any]]:
        ranks = [ds.split_by_rank(rank, size, lanes=4) for rank in range(size)]
        return [[row for batch in step for row in batch.to_pylist()] for step in zip(*ranks, strict=True)]

    assert steps(2) == steps(4) == steps(1)


def test_a_cache_keeps_the_borders(file: Path, tmp_path: Path) -> None:
    expected = noise(file).to_table().to_pylist()
    for cached in (noise(file).cache(), noise(file).cache(tmp_path / "cache")):
        assert [cached.to_table().to_pylist() for _ in range(2)] == [expected] * 2


def test_locate_sees_the_same_pieces(file: Path) -> None:
    def halves(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(batch.num_rows // 2)

    narrow = af.read_parquet(file).select("id", "price").with_options(af.Options(max_chunk_bytes=1600))
    ds = narrow.map(halves).batch(50)
    batch = list(ds)[9]
    assert af.locate(ds, 0, 9)["row"].to_pylist() == [row % 700 for row in batch["id"].to_pylist()]


# ----------------------------------------------------------------------------------------------- states


def sorts(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array(np.argsort(-batch["id"].to_numpy())))


def numbers(*rows: int) -> af.Dataset:
    ends = list(itertools.accumulate(rows, initial=0))
    return af.from_arrow([pa.record_batch({"id": np.arange(a, b)}) for a, b in itertools.pairwise(ends)])


SEEING: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "map": lambda ds: ds.map(sorts),
    "map with a seed": lambda ds: ds.map(noisy, seed=1),
    "map_rows": lambda ds: ds.map_rows(lambda row: row),
    "filter": lambda ds: ds.filter(lambda batch: pa.array([True] * batch.num_rows)),
    "scan": lambda ds: ds.scan(0, lambda state, batch: (state + 1, batch)),
    "take_while": lambda ds: ds.take_while(lambda batch: pa.array([True] * batch.num_rows)),
    "interleave": lambda ds: ds.interleave(lambda row: numbers(7, 5), cycle_length=3),
    "interleave of functions": lambda ds: ds.interleave(
        lambda row: numbers(9).map(sorts), cycle_length=3, block_length=2
    ),
    "flat_map": lambda ds: ds.flat_map(lambda row: numbers(9).map(sorts)),
}
BLIND: dict[str, Callable[[af.Dataset], af.Dataset]] = {
    "columns": lambda ds: ds.filter(pl.col("id") > 3).with_columns(x=pl.col("id") * 2),
    "shuffle": lambda ds: ds.shuffle(20, seed=1),
    "map of batches": lambda ds: ds.batch(7).map(sorts),
    "explode": lambda ds: ds.with_columns(l=pl.concat_list("id", "id")).explode("l"),
}


def stopped(ds: af.Dataset, batches: int = 1) -> tuple[dict[str, Any], list[Any]]:
    """Returns the state after some batches, and the rows of those that follow."""
    with iter(ds) as run:
        for _ in range(batches):
            next(run)
        return run.state_dict(), [batch.to_pylist() for batch in run]


def rest(ds: af.Dataset, state: dict[str, Any]) -> list[Any]:
    with iter(ds) as run:
        run.load_state_dict(json.loads(json.dumps(state)))
        return [batch.to_pylist() for batch in run]


@pytest.mark.parametrize("name", SEEING)
def test_a_state_knows_the_pieces(name: str) -> None:
    plan = SEEING[name](numbers(12, 7)).batch(3)
    state, expected = stopped(plan.with_options(af.Options(max_chunk_rows=5)))
    assert rest(plan.with_options(af.Options(max_chunk_rows=5, cpu_budget=1)), state) == expected
    for options in (af.Options(max_chunk_rows=4), af.Options(max_chunk_rows=5, max_chunk_bytes=24)):
        with pytest.raises(af.StateError, match="max_chunk_rows=, max_chunk_bytes="):
            rest(plan.with_options(options), state)


@pytest.mark.parametrize("name", BLIND)
def test_a_state_of_a_plan_without_pieces_goes_on(name: str) -> None:
    plan = BLIND[name](numbers(40, 20)).batch(3)
    state, expected = stopped(plan.with_options(af.Options(max_chunk_rows=5)))
    assert rest(plan.with_options(af.Options(max_chunk_rows=4, max_chunk_bytes=24)), state) == expected


def test_a_state_of_an_earlier_release_is_refused_where_pieces_matter() -> None:
    plan = numbers(40, 20).map(sorts).batch(3)
    kept, _ = stopped(plan)
    del kept["borders"]
    moving = {key: kept[key] for key in ("epoch", "position", "batches")}
    kept["plan"] = states.digest({key: kept[key] for key in ("operators", "functions", "shape")})
    kept["digest"] = states.digest([kept["plan"], moving])
    with pytest.raises(af.StateError, match="earlier release"):
        rest(plan, kept)


OTHER_BATCHES: list[tuple[list[int], list[int], str]] = [
    ([100] * 3, [30] * 10, r"record batches of \[30, 30.*, and came in .*100, 100"),
    ([100] * 3, [1] * 300, r"record batches whose rows have the digest .*, and came in .*100, 100"),
    ([100] * 3, [300], r"from_arrow: its rows come in one record batch, and came in .*100, 100"),
    ([300], [150] * 2, r"come in record batches of \[150, 150\] rows, and came in one record"),
]


@pytest.mark.parametrize("then", [lambda ds: ds.map(sorts), lambda ds: ds, lambda ds: ds.skip(1)])
def test_a_state_knows_the_record_batches_of_from_arrow(then: Callable[[af.Dataset], af.Dataset]) -> None:
    for before, after, told in OTHER_BATCHES:
        state, expected = stopped(then(numbers(*before)).batch(7), 20)
        assert rest(then(numbers(*before)).batch(7), state) == expected
        with pytest.raises(af.StateError, match=told):
            rest(then(numbers(*after)).batch(7), state)


@pytest.mark.parametrize("then", [lambda ds: ds.shuffle(50, seed=1), lambda ds: ds.shuffle(seed=1)])
def test_record_batches_do_not_matter_to_a_shuffle(then: Callable[[af.Dataset], af.Dataset]) -> None:
    state, expected = stopped(then(numbers(*[100] * 3)).batch(7), 20)
    assert rest(then(numbers(*[30] * 10)).batch(7), state) == expected


def test_limits_that_no_column_can_reach_are_no_part_of_a_state() -> None:
    """Else states of `max_chunk_rows=`, and of paths, would be refused by a release that has other limits of texts."""

    def told(rows: int | None, *, names_files: bool = False, **options: Any) -> dict[str, int]:
        resolved = af.Options(**options).resolved()
        return Pieces.of(resolved, rows, names_files=names_files).told()

    size = {"max_chunk_bytes": MAX_CHUNK_BYTES}
    assert told(None) == {"max_chunk_rows": 65_536, **size, "first_rows": 128}
    assert told(32) == {
        "max_chunk_rows": 65_536,
        **size,
        "text_rows": 1024,
        "byte_rows": 128,
        "first_rows": 128,
    }
    assert told(32, names_files=True) == {"max_chunk_rows": 128, **size, "first_rows": 32}
    assert told(32, max_chunk_rows=7) == {"max_chunk_rows": 7, **size}


def test_explain_tells_the_limits() -> None:
    texts = af.from_arrow(pa.table({"id": [1], "path": ["a.jpg"]}))
    assert (
        "cut splits every 65,536 rows or 4 MiB of a column; texts and lists every 1,024 rows; bytes every 128 rows; the first "
        f"ones after {FEW_ROWS}"
    ) in texts.map(sorts).batch(32).explain()

"""Random plans, and a naive reference for them: one thread, plain Python, rows as dicts.

The reference shares nothing with the library but `arrowflow.random` and `stratified`, which have tests of their own.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.ops.combine.mix_operator import BLOCK_ROWS
from arrowflow.ops.combine.sample_from_datasets import stratified
from arrowflow.random import PART_DRAWS, bits, exponentials, generator, permutation, uniforms
from arrowflow.testing import chunked, cut
from tests.ops.batches import test_bucket_by_sequence_length as bucketing
from tests.ops.batches import test_group_by_window as grouping
from tests.ops.batches import test_pack_sequences as packing
from tests.ops.batches import test_series as series
from tests.ops.batches import test_window as windows
from tests.ops.tables import PNG

Row = dict[str, Any]
Segment = tuple[int, list[Row]]
"""The number of a split and its rows, or of a batch and its rows."""
Order = tuple[int, bool] | None
"""Seed of the shuffle that orders the source, and whether epochs differ."""

SCHEMA = pa.schema([("row", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
FILES: tuple[list[int], ...] = ([5, 3], [4], [], [2, 2, 2, 1], [0], [6, 1], [3])
MAX_CHUNK_ROWS = 3


def rows_from(start: int, count: int) -> list[Row]:
    return [
        {"row": i, "x": None if i % 5 == 3 else i / 4, "s": None if i % 7 == 2 else f"t{i % 4}"}
        for i in range(start, start + count)
    ]


def as_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


# ------------------------------------------------------------------------------------------- sources


@dataclass(frozen=True)
class Source:
    """Rows in splits, in files where there are files, and the dataset that reads them."""

    what: str
    make: Callable[[], af.Dataset] = field(repr=False)
    files: tuple[tuple[tuple[int, ...], ...], ...]
    chunk_sizes: tuple[int, ...] = ()

    def segments(self, epoch: int, order: Order) -> Iterator[Segment]:
        """Yields the splits in the order of the files, or in the one that a shuffle above gives them."""
        in_files = self.what == "files"
        for number, split in self._splits(epoch, order if in_files else None):
            yield (number << 24 | split) if in_files else split, rows_from(*self.files[number][split])

    def _splits(self, epoch: int, order: Order) -> Iterator[tuple[int, int]]:
        if order is None:
            yield from (
                (number, split) for number, file in enumerate(self.files) for split in range(len(file))
            )
            return
        seed, reshuffle = order
        epoch = epoch if reshuffle else 0
        numbers = [int(number) for number in permutation(len(self.files), (seed, 1, epoch))]
        for block in range(0, len(numbers), 4):
            queues = [
                [
                    (number, int(split))
                    for split in permutation(len(self.files[number]), (seed, 2, epoch, number))
                ]
                for number in numbers[block : block + 4]
            ]
            for turn in itertools.zip_longest(*queues):
                yield from (entry for entry in turn if entry is not None)


def placed(sizes: Sequence[Sequence[int]]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Gives each split its first row."""
    starts = itertools.accumulate(itertools.chain([0], *sizes))
    return tuple(tuple((next(starts), size) for size in file) for file in sizes)


@cache
def folder() -> Path:
    """The files, written once a session: every example reads the same."""
    path = FOLDERS[0] / "plans"
    path.mkdir()
    for number, file in enumerate(placed(FILES)):
        with pq.ParquetWriter(path / f"{number}.parquet", SCHEMA) as writer:
            for start, count in file:
                writer.write_batch(as_batch(rows_from(start, count)))
    return path


FOLDERS: list[Path] = []
"""Where files and caches lie; set it with `use_folder`."""


def use_folder(path: Path) -> None:
    """Lets files and caches lie in `path` from now on."""
    FOLDERS[:] = [path]
    folder.cache_clear()


def file_source() -> Source:
    return Source("files", lambda: af.read_parquet(folder()), placed(FILES))


def chunk_source(sizes: list[int], chunk_sizes: list[int]) -> Source:
    (split_rows,) = placed([sizes])
    chunks = [cut(as_batch(rows_from(*split)), [*chunk_sizes, 1]) for split in split_rows]
    return Source("chunks", lambda: chunked(chunks, SCHEMA), (split_rows,), tuple(chunk_sizes))


def memory_source(sizes: list[int]) -> Source:
    sizes = [size for size in sizes if size] or [1]
    (split_rows,) = placed([sizes])
    batches = [as_batch(rows_from(*split)) for split in split_rows]
    return Source("memory", lambda: af.from_arrow(batches), (split_rows,))


def generator_source(sizes: list[int], *, declared: bool) -> Source:
    (split_rows,) = placed([sizes])
    batches = [as_batch(rows_from(*split)) for split in split_rows]
    schema = SCHEMA if declared else None
    return Source("generator", lambda: af.from_generator(lambda: iter(batches), schema=schema), (split_rows,))


SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=5)
SOURCES = st.one_of(
    st.just(file_source()),
    st.builds(chunk_source, SIZES, st.lists(st.integers(0, 4), min_size=1, max_size=3)),
    st.builds(memory_source, SIZES),
    st.builds(generator_source, SIZES, declared=st.booleans()),
)


# ----------------------------------------------------------------------------------------- operators


@dataclass(frozen=True)
class Op:
    """One operator: how the library is asked for it, and what it does to rows."""

    name: str
    arguments: tuple[Any, ...] = ()

    @property
    def orders_through(self) -> bool:
        """Whether a shuffle above orders the source below."""
        return self.name in COLUMN_OPS or self.name in {
            "filter",
            "inner_join",
            "repeat",
            "prefetch",
            "with_options",
            *CACHES,
        }


def noise(batch: pa.RecordBatch, rng: Any) -> pa.RecordBatch:
    names = [name for name in batch.schema.names if name != "noise"]
    return batch.select(names).append_column("noise", pa.array(rng.random(batch.num_rows)))


def first_two(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 2)


def drop_piece(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch if batch.column("row")[0].as_py() % 4 else batch.slice(0, 0)


ELEMENTS: tuple[list[int], ...] = ([2], [], [4, 1], [0, 3], [1])
"""Rows of the splits of what `interleave` opens, by the number of the row."""


def elements(row: Row) -> af.Dataset:
    (split_rows,) = placed([ELEMENTS[row["row"] % len(ELEMENTS)]])
    first = row["row"] % 20
    return chunked(
        [cut(as_batch(rows_from(first + start, count)), [2, 0, 1]) for start, count in split_rows], SCHEMA
    )


def noisy_elements(row: Row) -> af.Dataset:
    return elements(row).map(noise, seed=1)


def plain_row(row: Row) -> Row:
    return {"row": row["row"] + 1, "x": row["x"], "s": row["s"]}


def row_or_error(row: Row) -> Row:
    if row["row"] % 4 == 1:
        raise ValueError(f"row {row['row']} is bad")
    return plain_row(row)


def piece_or_error(batch: pa.RecordBatch) -> pa.RecordBatch:
    if not drop_piece(batch).num_rows:
        raise ValueError("a bad piece")
    return batch


def not_third(batch: pa.RecordBatch) -> pa.Array:
    return pa.array([value % 3 != 2 for value in batch.column("row").to_pylist()])


def add_calls(calls: int, batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    """Adds the number of calls before this one, so that each call sees what the ones before it did."""
    at = batch.schema.names.index("row")
    values = [value + calls for value in batch.column("row").to_pylist()]
    return calls + 1, batch.set_column(at, "row", pa.array(values, pa.int64()))


def with_tokens(batch: pa.RecordBatch) -> pa.RecordBatch:
    tokens = [[value] * (value % 4) for value in batch.column("row").to_pylist()]
    return pa.record_batch({"tokens": pa.array(tokens, pa.list_(pa.int64()))})


def with_labels(batch: pa.RecordBatch) -> pa.RecordBatch:
    tokens = with_tokens(batch).column("tokens")
    labels = pa.array([[value + 1 for value in one] for one in tokens.to_pylist()], tokens.type)
    return pa.record_batch({"row": batch.column("row"), "tokens": tokens, "labels": labels})


OTHERS: tuple[tuple[int, int], ...] = ((100, 2), (102, 1))
"""First row and rows of the splits that `concatenate` adds."""
ZIPPED = 17


CHOICES = (1, 0, 0, 2, 0, 1, 0, 0, 0, 2, 0, 1) * 3
"""Of the rows so far and of those that `others` adds; the last of three inputs soon has no more."""
PARTS = (0.6, 0.4)
CLASSES, TARGET, INITIAL = 3, (0.2, 0.5, 0.3), (0.5, 0.3, 0.2)


def others() -> af.Dataset:
    return chunked([[as_batch(rows_from(*split))] for split in OTHERS], SCHEMA)


def same_chunk(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def mixed(ds: af.Dataset) -> list[af.Dataset]:
    return [ds.select("row", "x", "s"), others(), others().take(1)]


LOOKED_UP = pl.DataFrame({"row": [*range(24, -1, -3), None], "y": [-1.0 * row for row in range(10)]})
MATCHES = dict(LOOKED_UP.iter_rows())
SEVERAL = pl.DataFrame({"row": [*range(20), *range(0, 20, 4)], "y": [row / 8 for row in range(25)]})

Build = Callable[..., af.Dataset]
LIBRARY: dict[str, Build] = {
    "select": lambda ds: ds.select("s", "row", x=pl.col("x") + 1.0),
    "with_columns": lambda ds: ds.with_columns(row2=pl.col("row") * 3 - 1, x=pc.field("x") * pc.scalar(2.0)),
    "drop": lambda ds: ds.with_columns(gone=pl.col("row")).drop("gone"),
    "rename": lambda ds: ds.rename({"x": "s", "s": "x"}).rename({"s": "x", "x": "s"}),
    "cast": lambda ds: ds.cast({"row": pa.float64()}).cast({"row": pa.int64()}),
    "fill_null": lambda ds: ds.fill_null({"x": -0.5, "s": "?"}),
    "decode_image": lambda ds: ds.with_columns(gone=pl.lit(PNG)).decode_image("gone", 1).drop("gone"),
    "stack": lambda ds: (
        ds.fill_null({"x": 0.25})
        .with_columns(y=pl.col("x"))
        .stack(v=["x", "y"])
        .with_columns(x=pl.col("v").arr.get(0))
        .drop("v")
    ),
    "join": lambda ds: ds.join(LOOKED_UP, "row").with_columns(x=pl.coalesce("y", "x")).drop("y"),
    "inner_join": lambda ds: ds.join(LOOKED_UP.select("row"), "row", how="inner"),
    "all_matches": lambda ds: (
        ds.join(SEVERAL, "row", how="inner", unique=False).with_columns(x=pl.col("y")).drop("y")
    ),
    "filter": lambda ds, kind: ds.filter(FILTERS[kind][0]),
    "take": lambda ds, count: ds.take(count),
    "take_while": lambda ds, limit: ds.take_while(pl.col("row") != limit),
    "take_while_fn": lambda ds, limit: ds.take_while(
        lambda arrays: arrays["row"] != limit, format="numpy", columns=["row"]
    ),
    "explode": lambda ds: ds.with_columns(l=pl.concat_list("row", "row")).explode("l").drop("l"),
    "skip": lambda ds, count: ds.skip(count),
    "shard": lambda ds, shards, index: ds.shard(shards, index),
    "split": lambda ds, seed, part: ds.split(PARTS, seed=seed)[part],
    "shuffle": lambda ds, size, seed, reshuffle: ds.shuffle(
        size, seed=seed, reshuffle_each_iteration=reshuffle
    ),
    "repeat": lambda ds, count: ds.repeat(count),
    "batch": lambda ds, size, drop: ds.batch(size, drop_remainder=drop),
    "masked": lambda ds, size, calls: ds.batch(size, pad_remainder=True, num_parallel_calls=calls),
    "prefetch": lambda ds, count: ds.prefetch(count),
    "with_options": lambda ds: ds.with_options(af.Options(cpu_budget=3)),
    "noise": lambda ds, seed, calls, executor: ds.map(
        noise, seed=seed, num_parallel_calls=calls, executor=executor
    ),
    "first_two": lambda ds: ds.map(first_two),
    "drop_piece": lambda ds: ds.map(drop_piece, num_parallel_calls=1),
    "cache": lambda ds: ds.cache(),
    "spilling_cache": lambda ds: ds.cache(spill=FOLDERS[0]),
    # What an earlier example left there may be complete, or begin so, or be of another plan.
    "disk_cache": lambda ds, compression: ds.cache(FOLDERS[0] / "cache", compression=compression),
    "interleave": lambda ds, cycle, block, calls, noisy: ds.interleave(
        noisy_elements if noisy else elements,
        cycle_length=cycle,
        block_length=block,
        num_parallel_calls=calls,
    ),
    "flat_map": lambda ds, calls: ds.flat_map(elements, num_parallel_calls=calls),
    "enumerate": lambda ds, start: ds.enumerate(start),
    "map_rows": lambda ds: ds.map_rows(plain_row, schema=SCHEMA),
    "skip_bad_rows": lambda ds, calls, executor: ds.map_rows(
        row_or_error, schema=SCHEMA, num_parallel_calls=calls, executor=executor, on_error="skip"
    ),
    "skip_bad_pieces": lambda ds, calls: ds.map(piece_or_error, num_parallel_calls=calls, on_error="skip"),
    "filter_fn": lambda ds: ds.filter(not_third),
    "scan": lambda ds: ds.scan(0, add_calls),
    "unique": lambda ds: ds.unique(["row"], max_rows=1_000),
    "concatenate": lambda ds: ds.select("row", "x", "s").concatenate(others()),
    "sample": lambda ds, weights, seed, stop: af.sample_from_datasets(
        mixed(ds), weights, seed=seed, stop="first_exhausted" if stop else "all_exhausted_without_replacement"
    ),
    "choose": lambda ds, stop: af.choose_from_datasets(
        mixed(ds), af.from_numpy({"choice": CHOICES}), stop_on_empty_dataset=stop
    ),
    "resample": lambda ds, estimated, seed: ds.rejection_resample(
        pl.col("row") % CLASSES, TARGET, None if estimated else INITIAL, seed=seed
    ),
    "global": lambda ds, seed, reshuffle: ds.cache().shuffle(seed=seed, reshuffle_each_iteration=reshuffle),
    "draw": lambda ds, count, replacement, seed: (
        ds.select("row", "x", "s")
        .map(same_chunk, schema=SCHEMA)
        .concatenate(others())
        .cache()
        .sample(count, weights=pl.col("row") % 3 + 1, replacement=replacement, seed=seed)
    ),
    "zip": lambda ds: af.zip(ds.select("row", "x", "s"), af.range(ZIPPED).select(z=pl.col("id") * 2)),
    "bucket": lambda ds, sizes, lag: ds.bucket_by_sequence_length("s", [1, 2], sizes, max_lag_rows=lag),
    "group": lambda ds, size, groups, lag: ds.group_by_window(
        pl.col("row") % 3, size, max_groups=groups, max_lag_rows=lag
    ),
    "padded_batch": lambda ds, size: ds.map(with_tokens).padded_batch(size),
    "pack": lambda ds, length, window, strategy, more: ds.map(
        with_labels if more else with_tokens
    ).pack_sequences(
        ["labels", "tokens"] if more else "tokens", length, window_rows=window, strategy=strategy
    ),
    "rebatch": lambda ds, size: ds.batch(size).unbatch(),
    "window": lambda ds, size, shift, stride, drop: ds.window(
        size, shift=shift, stride=stride, drop_remainder=drop
    ),
    "series": lambda ds, size, shift, stride, drop: ds.window(
        size, shift=shift, stride=stride, drop_remainder=drop, by=pl.col("row") % 3
    ),
}
LAST = ("padded_batch", "pack", "window", "series")
"""Operators that make lists of all columns, which the others here know nothing of."""
ONCE = ({"interleave", "flat_map", "explode", "all_matches"}, {"enumerate"}, {"zip"}, {"masked"})
"""Two of a group would make too many rows, or a column twice."""
REFUSED_BEFORE_SPLIT = {
    *("shuffle", "global", "repeat", "noise", "interleave", "flat_map", "all_matches", "sample", "resample"),
    "draw",
}
"""Operators that give rows other numbers in another epoch, or make copies of rows."""
CACHES = ("cache", "spilling_cache", "disk_cache")
CACHING = (*CACHES, "global", "draw")
CUTS = ("batch", "masked", "bucket", "group", "padded_batch")
NUM_NODES = {
    **dict.fromkeys(("rebatch", "bucket", "drop", "rename", "cast", "global"), 2),
    **dict.fromkeys(("explode", "join", "all_matches", "decode_image", "concatenate"), 3),
    "zip": 4,
    **dict.fromkeys(("stack", "sample"), 5),
    **dict.fromkeys(("choose", "draw"), 6),
}
"""Operators of the library that one here stands for; places in the plan count them."""
COLUMN_OPS: dict[str, Callable[[Row], Row]] = {
    "select": lambda r: {"s": r["s"], "row": r["row"], "x": None if r["x"] is None else r["x"] + 1.0},
    "with_columns": lambda r: r | {"x": None if r["x"] is None else r["x"] * 2.0, "row2": r["row"] * 3 - 1},
    "drop": lambda r: r,
    "rename": lambda r: r,
    "decode_image": lambda r: r,
    "cast": lambda r: r,
    "join": lambda r: r | {"x": MATCHES.get(r["row"], r["x"])},
    "fill_null": lambda r: (
        r | {"x": -0.5 if r["x"] is None else r["x"], "s": "?" if r["s"] is None else r["s"]}
    ),
    "stack": lambda r: {k: r[k] for k in r if k != "x"} | {"x": 0.25 if r["x"] is None else r["x"]},
}
FILTERS: dict[str, tuple[Any, Callable[[Row], bool]]] = {
    "polars": (pl.col("row") % 3 != 1, lambda r: r["row"] % 3 != 1),
    "range": ((pl.col("row") > 7) & (pl.col("row") <= 21), lambda r: 7 < r["row"] <= 21),
    "pyarrow": (pc.field("x") < 4.0, lambda r: r["x"] is not None and r["x"] < 4.0),
    "null": (pl.col("s").is_not_null(), lambda r: r["s"] is not None),
    "nothing": (pc.field("row") < 0, lambda r: False),
}
NEEDS_ROWS = (
    *("filter", "inner_join", "all_matches", "take", "take_while", "explode", "take_while_fn", "skip"),
    *("shard", "split", "shuffle", "interleave", "flat_map", "enumerate", "filter_fn", "unique"),
    *("concatenate", "zip", "bucket", "group", "sample", "choose", "resample", "global", "draw"),
)
SMALL = st.integers(0, 12)
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "filter": st.tuples(st.sampled_from(sorted(FILTERS))),
    "take": st.tuples(st.integers(0, 30)),
    "take_while": st.tuples(st.integers(0, 40)),
    "take_while_fn": st.tuples(st.integers(0, 40)),
    "skip": st.tuples(SMALL),
    "shard": st.sampled_from([(1, 0), (2, 0), (2, 1), (5, 3)]),
    "split": st.tuples(st.integers(0, 3), st.integers(0, 1)),
    "shuffle": st.tuples(st.integers(1, 14), st.integers(0, 3), st.booleans()),
    "repeat": st.tuples(st.sampled_from([0, 1, 2, 3])),
    "batch": st.tuples(st.integers(1, 9), st.booleans()),
    "masked": st.tuples(st.integers(1, 9), st.sampled_from([None, 2])),
    "prefetch": st.tuples(st.integers(0, 3)),
    "noise": st.tuples(
        st.integers(0, 2), st.sampled_from([af.AUTOTUNE, 1, 2]), st.sampled_from(["thread", "process"])
    ),
    "skip_bad_rows": st.tuples(st.sampled_from([af.AUTOTUNE, 1, 2]), st.sampled_from(["thread", "process"])),
    "skip_bad_pieces": st.tuples(st.sampled_from([af.AUTOTUNE, 1])),
    "interleave": st.tuples(
        st.integers(1, 5),
        st.one_of(st.none(), st.integers(1, 4)),
        st.sampled_from([af.AUTOTUNE, 1, 2]),
        st.booleans(),
    ),
    "flat_map": st.tuples(st.sampled_from([af.AUTOTUNE, 1])),
    "enumerate": st.tuples(st.sampled_from([0, 5])),
    "rebatch": st.tuples(st.integers(1, 9)),
    "sample": st.tuples(
        st.sampled_from([(1, 1, 1), (5, 2, 0), (0, 0, 3), (1, 7, 2)]), st.integers(0, 3), st.booleans()
    ),
    "choose": st.tuples(st.booleans()),
    "resample": st.tuples(st.booleans(), st.integers(0, 3)),
    "global": st.tuples(st.integers(0, 3), st.booleans()),
    "draw": st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 3)),
    "disk_cache": st.tuples(st.sampled_from([None, "zstd"])),
    "bucket": st.tuples(st.lists(st.integers(1, 4), min_size=3, max_size=3), st.integers(1, 12)),
    "group": st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 12)),
    "padded_batch": st.tuples(st.integers(1, 5)),
    "pack": st.tuples(
        st.integers(1, 6), st.integers(1, 8), st.sampled_from(packing.STRATEGIES), st.booleans()
    ),
    **dict.fromkeys(
        ("window", "series"),
        st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 2), st.booleans()),
    ),
}


@st.composite
def operators(draw: st.DrawFn) -> tuple[Op, ...]:
    """Draws a chain in which nothing that needs rows stands above `batch`."""
    chosen: list[Op] = []
    batched = False
    for _ in range(draw(st.integers(1, 6))):
        before = {op.name for op in chosen}
        refused = {
            *(NEEDS_ROWS if batched else ()),
            *LAST,
            *({"split"} if REFUSED_BEFORE_SPLIT & before else ()),
            *(one for few in ONCE if few & before for one in few),
        }
        names = [name for name in LIBRARY if name not in refused]
        name = draw(st.sampled_from(names))
        chosen.append(Op(name, draw(ARGUMENTS.get(name, st.just(())))))
        batched = in_batches(chosen)
    if draw(st.integers(0, 5)) == 0 and not batched:
        chosen += [Op("repeat", (None,)), Op("take", (draw(st.integers(0, 40)),))]
    if draw(st.integers(0, 4)) == 0 and not batched:
        name = draw(st.sampled_from(LAST))
        chosen.append(Op(name, draw(ARGUMENTS[name])))
    return tuple(chosen)


def in_batches(ops: Iterable[Op]) -> bool:
    """Returns whether the rows come in batches after these operators."""
    batched = False
    for op in ops:
        batched = op.name != "rebatch" and (batched or op.name in CUTS)
    return batched


@dataclass(frozen=True)
class Plan:
    """A source with operators, as the library and as the reference see it."""

    source: Source
    ops: tuple[Op, ...]
    max_chunk_bytes: int = 1 << 20

    @property
    def piece_rows(self) -> int:
        """Rows of a piece: numbers take 8 bytes, and texts fewer."""
        return max(1, min(MAX_CHUNK_ROWS, self.max_chunk_bytes // 8))

    @property
    def batched(self) -> bool:
        return in_batches(self.ops)

    def dataset(self, options: af.Options) -> af.Dataset:
        pieces = af.Options(max_chunk_rows=MAX_CHUNK_ROWS, max_chunk_bytes=self.max_chunk_bytes)
        ds = self.source.make().with_options(pieces)
        for op in self.ops:
            ds = LIBRARY[op.name](ds, *op.arguments)
        return ds.with_options(options)

    def segments(self, depth: int, epoch: int, order: Order) -> Iterator[Segment]:
        """Yields what the first `depth` operators make."""
        if depth == 0:
            yield from self.source.segments(epoch, order)
            return
        op = self.ops[depth - 1]
        if op.name == "repeat":
            yield from self._repeated(depth, epoch, order, *op.arguments)
            return
        if op.name == "shuffle":
            order = (op.arguments[1], op.arguments[2])
        elif not op.orders_through:
            order = None
        below = self.segments(depth - 1, 0 if op.name in CACHING else epoch, order)
        place = 1 + sum(NUM_NODES.get(before.name, 1) for before in self.ops[:depth])
        if op.name == "interleave":
            yield from interleaved(below, epoch, place, *op.arguments, piece_rows=self.piece_rows)
        elif op.name == "flat_map":
            calls = op.arguments[0]
            yield from interleaved(
                below, epoch, place, 1, None, calls, noisy=False, piece_rows=self.piece_rows
            )
        elif op.name == "scan":
            yield from self._scanned(below, depth)
        elif op.name == "noise":
            yield from self._noisy(below, depth, (op.arguments[0], 7, place, epoch))
        elif op.name == "resample":
            yield from resampled(below, (op.arguments[1], 6, place, epoch), *op.arguments)
        elif op.name in {"first_two", "drop_piece", "skip_bad_pieces"}:
            yield from self._pieces_mapped(below, depth, op.name)
        else:
            yield from TRANSFORMED[op.name](below, epoch, *op.arguments)

    def _repeated(self, depth: int, epoch: int, order: Order, count: int | None) -> Iterator[Segment]:
        first = epoch * (count or 1 << 32)
        for index in itertools.count() if count is None else range(count):
            had_rows = False
            for split, rows in self.segments(depth - 1, first + index, order):
                had_rows = had_rows or bool(rows)
                yield split if count == 1 else split << 32 | index, rows
            if not had_rows:
                return

    def _pieces(self, below: Iterable[Segment], depth: int) -> Iterator[tuple[int, list[list[Row]]]]:
        """Cuts each split anew, but a batch not at all."""
        batched = in_batches(self.ops[:depth])
        for split, rows in below:
            size = max(1, len(rows)) if batched else self.piece_rows
            yield split, [rows[start : start + size] for start in range(0, len(rows), size)]

    def _pieces_mapped(self, below: Iterable[Segment], depth: int, name: str) -> Iterator[Segment]:
        for split, pieces in self._pieces(below, depth):
            kept = [
                piece[:2] if name == "first_two" else piece if piece[0]["row"] % 4 else [] for piece in pieces
            ]
            yield split, [row for piece in kept for row in piece]

    def _scanned(self, below: Iterable[Segment], depth: int) -> Iterator[Segment]:
        calls = 0
        for split, pieces in self._pieces(below, depth):
            rows = []
            for piece in pieces:
                rows += [row | {"row": row["row"] + calls} for row in piece]
                calls += 1
            yield split, rows

    def _noisy(self, below: Iterable[Segment], depth: int, key: tuple[int, ...]) -> Iterator[Segment]:
        for split, pieces in self._pieces(below, depth):
            rows = []
            for piece, old in enumerate(pieces):
                values = generator((*key, split, piece)).random(len(old))
                rows += [
                    {name: row[name] for name in row if name != "noise"} | {"noise": float(value)}
                    for row, value in zip(old, values, strict=True)
                ]
            yield split, rows


def taken(below: Iterable[Segment], epoch: int, count: int) -> Iterator[Segment]:
    for split, rows in below if count else ():
        yield split, rows[:count]
        count -= len(rows)
        if count <= 0:
            return


def taken_while(below: Iterable[Segment], epoch: int, limit: int) -> Iterator[Segment]:
    for split, rows in below:
        first = list(itertools.takewhile(lambda row: row["row"] != limit, rows))
        yield split, first
        if len(first) < len(rows):
            return


def twice(below: Iterable[Segment], epoch: int) -> Iterator[Segment]:
    return ((split, [row for row in rows for _ in range(2)]) for split, rows in below)


def matched(below: Iterable[Segment], epoch: int) -> Iterator[Segment]:
    for split, rows in below:
        pairs = ((row, y) for row in rows for key, y in SEVERAL.iter_rows() if key == row["row"])
        yield split, [row | {"x": y} for row, y in pairs]


def skipped(below: Iterable[Segment], epoch: int, count: int) -> Iterator[Segment]:
    for split, rows in below:
        yield split, rows[count:]
        count = max(0, count - len(rows))


def sharded(below: Iterable[Segment], epoch: int, shards: int, index: int) -> Iterator[Segment]:
    number = itertools.count()
    for split, rows in below:
        yield split, [row for row in rows if next(number) % shards == index]


def parted(below: Iterable[Segment], epoch: int, seed: int, part: int) -> Iterator[Segment]:
    number = itertools.count()
    for split, rows in below:
        drawn = [
            (row, uniforms((seed, PART_DRAWS), at, at + 1)[0]) for row, at in zip(rows, number, strict=False)
        ]
        yield split, [row for row, share in drawn if (share >= PARTS[0]) == (part == 1)]


def in_groups(below: Iterable[Segment], size: int) -> Iterator[list[Row]]:
    rows = (row for _, rows in below for row in rows)
    while group := list(itertools.islice(rows, size)):
        yield group


def shuffled(
    below: Iterable[Segment], epoch: int, size: int, seed: int, reshuffle: bool
) -> Iterator[Segment]:
    for number, window in enumerate(in_groups(below, size)):
        order = permutation(len(window), (seed, 3, epoch if reshuffle else 0, number))
        yield number, [window[place] for place in order]


def batched_up(below: Iterable[Segment], epoch: int, size: int, drop: bool) -> Iterator[Segment]:
    for number, group in enumerate(in_groups(below, size)):
        if len(group) == size or not drop:
            yield number, group


def filled_up(below: Iterable[Segment], epoch: int, size: int, calls: int | None) -> Iterator[Segment]:
    for number, group in enumerate(in_groups(below, size)):
        real = [row | {"mask": True} for row in group]
        yield number, real + [group[-1] | {"mask": False}] * (size - len(group))


def filtered(below: Iterable[Segment], epoch: int, kind: str) -> Iterator[Segment]:
    return ((split, list(filter(FILTERS[kind][1], rows))) for split, rows in below)


def interleaved(
    below: Iterable[Segment],
    epoch: int,
    place: int,
    cycle: int,
    block: int | None,
    calls: int,
    noisy: bool,
    *,
    piece_rows: int,
) -> Iterator[Segment]:
    """As tf.data goes round; each turn is a split."""
    coming = enumerate(row for _, rows in below for row in rows)
    places: list[list[list[Row]] | None] = [None] * cycle
    ended = False
    for turn in itertools.count():
        at = turn % cycle
        if places[at] is None and not ended:
            following = next(coming, None)
            ended = following is None
            if following is not None:
                number, row = following
                key = (((place + 1) << 40 | number) << 16) + 1
                places[at] = blocks_of(row, block, (1, 7, key, epoch) if noisy else None, piece_rows)
        blocks = places[at]
        if blocks:
            rows = blocks.pop(0)
            yield turn, rows
            if not blocks and block is not None and len(rows) < block:
                places[at] = None  # its end is noticed in the same turn
        elif blocks is not None:
            places[at] = None
        elif ended and places == [None] * cycle:
            return


def blocks_of(row: Row, block: int | None, key: tuple[int, ...] | None, piece_rows: int) -> list[list[Row]]:
    """Returns what one element gives in each turn."""
    first = row["row"] % 20
    (split_rows,) = placed([ELEMENTS[row["row"] % len(ELEMENTS)]])
    pieces = []
    for split, (start, count) in enumerate(split_rows):
        rows = rows_from(first + start, count)
        for piece, at in enumerate(range(0, count, piece_rows)):
            pieces.append(rows[at : at + piece_rows])
            if key is not None:
                values = generator((*key, split, piece)).random(len(pieces[-1]))
                pieces[-1] = [
                    old | {"noise": float(value)} for old, value in zip(pieces[-1], values, strict=True)
                ]
    if block is None:
        return pieces
    whole = list(itertools.chain(*pieces))
    return [whole[at : at + block] for at in range(0, len(whole), block)]


def numbered(below: Iterable[Segment], epoch: int, start: int) -> Iterator[Segment]:
    numbers = itertools.count(start)
    return ((split, [{"index": next(numbers)} | row for row in rows]) for split, rows in below)


def kept(below: Iterable[Segment], epoch: int) -> Iterator[Segment]:
    return ((split, [row for row in rows if row["row"] % 3 != 2]) for split, rows in below)


def good_rows(below: Iterable[Segment], epoch: int, *how: Any) -> Iterator[Segment]:
    return ((split, [plain_row(row) for row in rows if row["row"] % 4 != 1]) for split, rows in below)


def first_of_each(below: Iterable[Segment], epoch: int) -> Iterator[Segment]:
    seen: set[int] = set()
    for split, rows in below:
        yield split, [row for row in rows if row["row"] not in seen and not seen.add(row["row"])]  # type: ignore[func-returns-value]


def only(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


def concatenated(below: Iterable[Segment], epoch: int) -> Iterator[Segment]:
    for split, rows in below:
        yield split * 2, [only(row, "row", "x", "s") for row in rows]
    for split, other in enumerate(OTHERS):
        yield split * 2 + 1, rows_from(*other)


def mixed_rows(
    below: Iterable[Segment], draws: Iterable[Callable[[set[int]], int | None]], stop: bool, names: set[int]
) -> Iterator[Segment]:
    """Takes the next row of the input that each draw names, given those that are left."""
    left = set(names)
    first = (only(row, "row", "x", "s") for _, rows in below for row in rows)
    second = [row for split in OTHERS for row in rows_from(*split)]
    inputs = [first, iter(second), iter(second[:1])]
    found: list[Row] = []
    splits: list[list[Row]] = []
    for choose in draws:
        while left and (number := choose(left)) is not None:
            row = next(inputs[number], None)
            if row is not None:
                found.append(row)
                break
            left.discard(number)
            if stop:
                left.clear()
        if not left:
            break
    splits.append(found)
    yield from enumerate(splits)


def sampled(
    below: Iterable[Segment], epoch: int, weights: tuple[int, ...], seed: int, stop: bool
) -> Iterator[Segment]:
    def drawn(value: int) -> Callable[[set[int]], int]:
        def choose(left: set[int]) -> int:
            shares = list(itertools.accumulate(weights[n] if n in left else 0 for n in range(len(weights))))
            return next(n for n, share in enumerate(shares) if value * shares[-1] < share << 32)

        return choose

    numbers = stratified(BLOCK_ROWS, (seed, 5, epoch, 0)).tolist()
    wanted = {number for number, weight in enumerate(weights) if weight}
    return mixed_rows(below, map(drawn, numbers), stop, wanted)


def chosen(below: Iterable[Segment], epoch: int, stop: bool) -> Iterator[Segment]:
    def named(number: int) -> Callable[[set[int]], int | None]:
        return lambda left: number if number in left else None

    return mixed_rows(below, map(named, CHOICES), stop, {0, 1, 2})


def resampled(
    below: Iterable[Segment], key: tuple[int, ...], estimated: bool, seed: int
) -> Iterator[Segment]:
    """So few rows that all are in the first blocks, which are counted before they are decided."""
    words = bits((*key, 0), 4096)
    below = list(below)
    counts = Counter(row["row"] % CLASSES for row in everything(below))
    initial = [max(1, counts[number]) for number in range(CLASSES)] if estimated else INITIAL
    ratios = [wanted / share for wanted, share in zip(TARGET, initial, strict=True)]
    number = itertools.count()
    for split, rows in below:
        draws = [int(words[next(number)] >> 11) * 2.0**-53 for _ in rows]
        chances = [ratios[row["row"] % CLASSES] / max(ratios) for row in rows]
        yield split, [row for row, draw, chance in zip(rows, draws, chances, strict=True) if draw < chance]


def permuted(below: Iterable[Segment], epoch: int, seed: int, reshuffle: bool) -> Iterator[Segment]:
    rows = everything(below)
    yield 0, [rows[place] for place in permutation(len(rows), (seed, 4, epoch if reshuffle else 0))]


def drawn(
    below: Iterable[Segment], epoch: int, count: int, replacement: bool, seed: int
) -> Iterator[Segment]:
    rows = everything(concatenated(below, epoch))
    weights = [row["row"] % 3 + 1 for row in rows]
    key = (seed, 9, epoch)
    if replacement:
        ends = list(itertools.accumulate(weights))
        draws = [float(number) * ends[-1] for number in uniforms(key, 0, count)]
        yield 0, [rows[bisect.bisect_right(ends, draw)] for draw in draws]
    else:
        keys = [
            float(one) / weight for one, weight in zip(exponentials(key, 0, len(rows)), weights, strict=True)
        ]
        yield 0, [rows[place] for place in sorted(range(len(rows)), key=keys.__getitem__)[:count]]


def zipped(below: Iterable[Segment], epoch: int) -> Iterator[Segment]:
    numbers = iter(range(ZIPPED))
    for split, rows in below:
        pairs = list(zip(rows, itertools.islice(numbers, len(rows)), strict=False))
        yield split, [only(row, "row", "x", "s") | {"z": 2 * number} for row, number in pairs]
        if len(pairs) < len(rows):
            return


def everything(below: Iterable[Segment]) -> list[Row]:
    return [row for _, rows in below for row in rows]


def bucketed(below: Iterable[Segment], epoch: int, sizes: list[int], lag: int) -> Iterator[Segment]:
    rows = everything(below)
    lengths = [len(row["s"] or "") for row in rows]
    for number, batch in enumerate(bucketing.reference(lengths, [1, 2], sizes, lag)):
        yield number, [rows[at] for at in batch]


def grouped(below: Iterable[Segment], epoch: int, size: int, groups: int, lag: int) -> Iterator[Segment]:
    rows = everything(below)
    for number, batch in enumerate(grouping.naive([row["row"] % 3 for row in rows], size, groups, lag)):
        yield number, [rows[at] for at in batch]


def tokens_of(below: Iterable[Segment]) -> list[list[int]]:
    return [[row["row"]] * (row["row"] % 4) for row in everything(below)]


def padded(below: Iterable[Segment], epoch: int, size: int) -> Iterator[Segment]:
    tokens = tokens_of(below)
    for number, start in enumerate(range(0, len(tokens), size)):
        batch = tokens[start : start + size]
        length = max(map(len, batch))
        yield number, [{"tokens": one + [0] * (length - len(one))} for one in batch]


def packed(
    below: Iterable[Segment], epoch: int, length: int, window: int, strategy: str, more: bool
) -> Iterator[Segment]:
    rows = packing.naive(tokens_of(below), length, window, strategy)
    columns = packing.padded(rows, length, 0)
    if more:
        labels = [[[token + 1 for token in piece] for piece in row] for row in rows]
        columns = {
            "row": [[piece[0] for piece in row] for row in rows],
            "tokens": columns.pop("tokens"),
            "labels": packing.padded(labels, length, 0)["tokens"],
            **columns,
        }
    yield 0, [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def windowed(
    below: Iterable[Segment], epoch: int, size: int, shift: int, stride: int, drop: bool
) -> Iterator[Segment]:
    rows = everything(below)
    yield 0, as_lists(rows, windows.naive(list(range(len(rows))), size, shift, stride, drop))


def windowed_by_series(
    below: Iterable[Segment], epoch: int, size: int, shift: int, stride: int, drop: bool
) -> Iterator[Segment]:
    rows = everything(below)
    yield 0, as_lists(rows, series.naive([row["row"] % 3 for row in rows], size, shift, stride, drop))


def as_lists(rows: list[Row], chosen: list[list[Any]]) -> list[Row]:
    return [
        {name: [None if row is None else rows[row][name] for row in window] for name in rows[0]}
        for window in chosen
    ]


def unchanged(below: Iterable[Segment], epoch: int, *arguments: Any) -> Iterator[Segment]:
    return iter(below)


def each_row(change: Callable[[Row], Row]) -> Callable[..., Iterator[Segment]]:
    return lambda below, epoch: ((split, list(map(change, rows))) for split, rows in below)


TRANSFORMED: dict[str, Callable[..., Iterator[Segment]]] = {
    "take": taken,
    "take_while": taken_while,
    "take_while_fn": taken_while,
    "explode": twice,
    "inner_join": lambda below, epoch: (
        (split, [r for r in rows if r["row"] in MATCHES]) for split, rows in below
    ),
    "all_matches": matched,
    "skip": skipped,
    "shard": sharded,
    "split": parted,
    "shuffle": shuffled,
    "batch": batched_up,
    "masked": filled_up,
    "filter": filtered,
    "prefetch": unchanged,
    "with_options": unchanged,
    **dict.fromkeys(CACHES, unchanged),
    "enumerate": numbered,
    "rebatch": lambda below, epoch, size: batched_up(below, epoch, size, False),
    "map_rows": each_row(plain_row),
    "skip_bad_rows": good_rows,
    "filter_fn": kept,
    "unique": first_of_each,
    "concatenate": concatenated,
    "zip": zipped,
    "sample": sampled,
    "choose": chosen,
    "global": permuted,
    "draw": drawn,
    "bucket": bucketed,
    "group": grouped,
    "padded_batch": padded,
    "pack": packed,
    "window": windowed,
    "series": windowed_by_series,
    **{name: each_row(change) for name, change in COLUMN_OPS.items()},
}


PLANS: st.SearchStrategy[Plan] = st.builds(Plan, SOURCES, operators(), st.sampled_from([1 << 20, 16, 1]))

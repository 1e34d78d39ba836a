"""Operators, sources, writers, loaders and looks on as many columns, files or row groups as are asked for."""

from __future__ import annotations

import functools
import json
import operator
import tempfile
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

import arrowflow as af
from tests.ops.tables import PNG

ROWS: Final = 6
KINDS: Final[tuple[Callable[[int], pa.Array], ...]] = (
    lambda at: pa.array(np.arange(ROWS) + at),
    lambda at: pa.array([str(row) for row in range(ROWS)]),
    lambda at: pa.array([None, *range(ROWS - 1)], pa.float32()),
    lambda at: pa.array([[row] * 2 for row in range(ROWS)], pa.list_(pa.int32())),
    lambda at: pa.array([[1.0] * 16] * ROWS, pa.list_(pa.float32(), 16)),
    lambda at: pa.array(list(range(ROWS)), pa.decimal128(12, 2)),
    lambda at: pa.array(np.arange(ROWS), pa.timestamp("us")),
    lambda at: pa.array(np.arange(ROWS) % 2 == 0),
    lambda at: pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode(),
)


def of_kinds(*kinds: Callable[[int], pa.Array]) -> Any:
    """Returns the table of a `Wide` whose columns are of these kinds, in turn."""

    def table(wide: Wide) -> pa.Table:
        return pa.table({name: kinds[at % len(kinds)](at) for at, name in enumerate(wide.names)})

    return cached_property(table)


class Wide:
    """Tables of `size` columns in a folder: all types, nullable floats, whole numbers, texts, lists, tensors."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size = size
        self.folder = folder
        self.names = [f"c{size}_{at}" for at in range(size)]
        self.first = self.names[0]

    mixed: pa.Table = of_kinds(*KINDS)
    whole: pa.Table = of_kinds(KINDS[0])
    texts: pa.Table = of_kinds(KINDS[1])
    floats: pa.Table = of_kinds(KINDS[2])
    lists: pa.Table = of_kinds(KINDS[3])
    tensors: pa.Table = of_kinds(KINDS[4])

    @cached_property
    def keyed(self) -> pa.Table:
        key = pa.table({"key": [0, 1] * (ROWS // 2), "tokens": [[1, 2]] * ROWS})
        return pa.table(key.columns + self.mixed.columns, names=[*key.column_names, *self.names])

    @cached_property
    def path(self) -> str:
        """A file of two row groups."""
        path = self.new() / "mixed.parquet"
        pq.write_table(self.mixed, path, row_group_size=ROWS // 2)
        return str(path)

    def new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))


Pipeline = Callable[[Wide], object]


def drained(values: Iterable[object]) -> None:
    for _ in values:
        pass


def of(table: str, step: Callable[[af.Dataset, Wide], af.Dataset]) -> Pipeline:
    return lambda wide: drained(step(af.from_arrow(getattr(wide, table)), wide))


def each(wide: Wide, make: Callable[[str], Any]) -> dict[str, Any]:
    return {name: make(name) for name in wide.names}


COLUMNS: Final[dict[str, Pipeline]] = {
    "from_arrow": of("mixed", lambda rows, wide: rows),
    "select": of("mixed", lambda rows, wide: rows.select(wide.names[::-1])),
    "select all": of("floats", lambda rows, wide: rows.select(pl.all() * 2)),
    "drop": of("mixed", lambda rows, wide: rows.drop(wide.names[1::2])),
    "rename": of("mixed", lambda rows, wide: rows.rename(each(wide, str.upper))),
    "cast": of("whole", lambda rows, wide: rows.cast(each(wide, lambda name: pa.float64()))),
    "cast by arrow": of("whole", lambda rows, wide: rows.cast(each(wide, lambda name: pa.string()))),
    "fill_null": of("floats", lambda rows, wide: rows.fill_null(0.5)),
    "fill_null by column": of("floats", lambda rows, wide: rows.fill_null(each(wide, lambda name: 0.5))),
    "fill_null by arrow": of("texts", lambda rows, wide: rows.fill_null("")),
    "decode_image": of("whole", lambda rows, wide: rows.with_columns(image=pl.lit(PNG)).decode_image("image", 1)),
    "join": of("keyed", lambda rows, wide: rows.select("key").join(wide.mixed.slice(0, 2).append_column("key", pa.array([0, 1])), "key")),
    "stack": of("whole", lambda rows, wide: rows.stack(a=wide.names[::2], b=wide.names[1::2])),
    "stack and cast": of("whole", lambda rows, wide: rows.stack(dtype="float64", a=wide.names)),
    "filter": of("mixed", lambda rows, wide: rows.filter(pl.col(wide.first) != 1)),
    "filter by arrow": of("mixed", lambda rows, wide: rows.filter(pc.field(wide.first) != 1)),
    "filter of all": of("whole", lambda rows, wide: rows.filter(pl.all_horizontal(pl.all() >= 0))),
    "filter by a function": of("mixed", lambda rows, wide: rows.filter(lambda chunk: np.ones(len(chunk), bool))),
    "with_columns": of("floats", lambda rows, wide: rows.with_columns(**each(wide, lambda name: pl.col(name).log1p()))),
    "with_columns by polars": of("texts", lambda rows, wide: rows.with_columns(**each(wide, lambda name: pl.col(name).str.to_uppercase()))),
    "with_columns by arrow": of("texts", lambda rows, wide: rows.with_columns(**each(wide, lambda name: pc.utf8_upper(pc.field(name))))),
    "shuffle": of("mixed", lambda rows, wide: rows.shuffle(4, seed=1).batch(4)),
    "shuffle of tensors": of("tensors", lambda rows, wide: rows.shuffle(4, seed=1)),
    "global shuffle": of("mixed", lambda rows, wide: rows.shuffle(seed=1).batch(4)),
    "sample": of("keyed", lambda rows, wide: rows.sample(4, weights=pl.col("key") + 1, seed=1)),
    "padded_batch": of("lists", lambda rows, wide: rows.padded_batch(4)),
    "bucket_by_sequence_length": of("lists", lambda rows, wide: rows.bucket_by_sequence_length(wide.first, [2], [2, 2])),
    "pack_sequences": of("keyed", lambda rows, wide: rows.pack_sequences("tokens", 4)),
    "unbatch": of("whole", lambda rows, wide: rows.batch(4).unbatch()),
    "window": of("whole", lambda rows, wide: rows.window(2)),
    "window of series": of("keyed", lambda rows, wide: rows.drop("tokens").window(2, shift=1, by="key")),
    "group_by_window": of("keyed", lambda rows, wide: rows.group_by_window("key", 2)),
    "rejection_resample": of("keyed", lambda rows, wide: rows.rejection_resample("key", [0.5, 0.5], seed=1)),
    "rows": of("mixed", lambda rows, wide: rows.repeat(2).skip(1).take(9).assert_cardinality(9).shard(2, 0).enumerate().prefetch()),
    "split_by_rank": of("mixed", lambda rows, wide: rows.batch(4).split_by_rank(0, 1, lanes=2)),
    "take_while": of("mixed", lambda rows, wide: rows.take_while(pl.col(wide.first) < 5)),
    "explode": of("lists", lambda rows, wide: rows.explode(wide.first)),
    "unique": of("texts", lambda rows, wide: rows.unique()),
    "map": of("mixed", lambda rows, wide: rows.map(lambda chunk: chunk)),
    "map of arrays": of("whole", lambda rows, wide: rows.map(lambda arrays: arrays, format="numpy", columns=wide.names)),
    "map of frames": of("whole", lambda rows, wide: rows.map(lambda frame: frame, format="polars")),
    "map_rows": of("whole", lambda rows, wide: rows.map_rows(lambda row: row)),
    "scan": of("whole", lambda rows, wide: rows.scan(0, lambda state, chunk: (state, chunk))),
    "zip": of("mixed", lambda rows, wide: af.zip(rows, rows.rename(each(wide, str.upper)))),
    "concatenate": of("mixed", lambda rows, wide: rows.concatenate(rows)),
    "sample_from_datasets": of("mixed", lambda rows, wide: af.sample_from_datasets([rows, rows], seed=1)),
    "choose_from_datasets": of("mixed", lambda rows, wide: af.choose_from_datasets([rows, rows], af.from_numpy({"at": np.array([0, 1])}))),
    "flat_map": of("mixed", lambda rows, wide: af.range(2).flat_map(lambda row: rows)),
    "interleave": of("mixed", lambda rows, wide: af.range(2).interleave(lambda row: rows, cycle_length=2)),
}  # fmt: skip


def looks(wide: Wide) -> None:
    rows = (
        af.read_parquet(wide.path)
        .filter(pl.col(wide.first) > -1)
        .drop(wide.names[3])
        .shuffle(4, seed=1)
        .batch(2)
    )
    assert rows.schema and rows.num_rows is None and repr(rows) and rows.explain()
    with iter(rows) as iterator:
        next(iterator)
        state = iterator.state_dict()
        assert iterator.stats().stages and iterator.explain()
    with iter(rows) as iterator:
        iterator.load_state_dict(state)
        drained(iterator)
    loader = rows.select(wide.names[::9]).to_numpy()
    assert loader.explain(copies=True)
    drained(loader)
    assert loader.stats().stages


def rewritten(wide: Wide) -> None:
    rows = af.from_arrow(wide.mixed).batch(2)
    paths = [wide.new() / "rows" for _ in range(2)]
    rows.write_parquet(paths[0])
    rows.write_ipc(paths[1])
    drained(af.read_ipc(paths[1]).shuffle(seed=1).batch(4).select(wide.names[1:]))


def text(wide: Wide) -> None:
    folder = wide.new()
    pyarrow.csv.write_csv(wide.whole, folder / "x.csv")
    (folder / "x.jsonl").write_text("\n".join(map(json.dumps, wide.whole.to_pylist())))
    drained(af.read_csv(folder / "x.csv"))
    drained(af.read_csv(folder / "x.csv", schema=pa.schema(each(wide, lambda name: pa.int64()))))
    drained(af.read_json(folder / "x.jsonl"))


def caches(wide: Wide) -> None:
    rows = af.read_parquet(wide.path)
    folder = wide.new()
    for cached in (rows.cache(), rows.cache(folder), rows.cache(folder)):
        drained(cached)
        drained(cached.shuffle(seed=1).batch(2))


def generated(wide: Wide) -> None:
    rows = wide.whole.to_pylist()
    drained(af.from_generator(lambda: iter(rows), pa.schema(each(wide, lambda name: pa.int64()))))
    drained(af.from_generator(lambda: [pl.DataFrame(rows)]))
    drained(af.from_numpy(each(wide, lambda name: np.arange(3))))
    drained(af.from_arrow(wide.mixed.to_reader()))


def several(wide: Wide) -> None:
    rows = (
        af.from_arrow(wide.floats)
        .fill_null(0.0)
        .with_columns(**each(wide, lambda name: pl.col(name).log1p()))
    )
    rows = rows.filter(pl.col(wide.first) >= 0).stack(a=wide.names).shuffle(4, seed=1).batch(2)
    drained(rows.to_numpy())


def loaders(wide: Wide) -> None:
    whole, floats = (af.from_arrow(table).batch(3) for table in (wide.whole, wide.floats))
    drained(whole.to_numpy(dtypes=each(wide, lambda name: "float32"), columns=wide.names[::-1]))
    drained(floats.to_numpy(null=each(wide, lambda name: 0.0)))
    drained(floats.to_numpy(null="mask"))
    drained(whole.to_dlpack())
    drained(whole.to_polars(columns=wide.names[1:]))


COLUMNS.update(
    looks=looks,
    rewritten=rewritten,
    text=text,
    caches=caches,
    generated=generated,
    several=several,
    loaders=loaders,
)


# ---------------------------------------------------------------- many of other things


def row_groups(wide: Wide) -> None:
    path = wide.new() / "x.parquet"
    pq.write_table(pa.table({"x": np.arange(2 * wide.size)}), path, row_group_size=2)
    rows = af.read_parquet(path).filter(pl.col("x") >= 3)
    drained(rows.shuffle(8, seed=1).batch(3))
    with iter(rows) as iterator:
        states = [iterator.state_dict() for _ in iterator]
        iterator.load_state_dict(states[-1])
    drained(rows.cache().shuffle(seed=1).batch(3))


def files(wide: Wide) -> None:
    folder = wide.new()
    for at in range(wide.size):
        (folder / f"day={at}").mkdir()
        pq.write_table(pa.table({"x": [1, 2]}), folder / f"day={at}" / "x.parquet")
    drained(af.read_parquet(folder).filter(pl.col("day") >= 1).shuffle(8, seed=1).batch(3))
    drained(af.list_files(str(folder / "*" / "*.parquet")))


def chunks(wide: Wide) -> None:
    batches = [pa.record_batch({"x": [at, at]}) for at in range(wide.size)]
    drained(af.from_arrow(batches).shuffle(8, seed=1).batch(3))
    drained(af.from_arrow(batches).shuffle(seed=1).batch(3).to_numpy())
    drained(af.from_arrow(batches).batch(2 * wide.size))


def conditions(wide: Wide) -> None:
    tests = [pl.col(name) >= 0 for name in wide.names]
    path = wide.new() / "x.parquet"
    pq.write_table(wide.whole, path)
    drained(af.read_parquet(path).filter(functools.reduce(operator.and_, tests)))
    drained(af.read_parquet(path).filter(pl.col(wide.first).is_in(list(range(wide.size)))))


OTHERS: Final[dict[str, Pipeline]] = {
    "row groups": row_groups,
    "files": files,
    "chunks": chunks,
    "conditions": conditions,
}
PIPELINES: Final = COLUMNS | OTHERS

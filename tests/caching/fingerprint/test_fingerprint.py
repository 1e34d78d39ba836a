"""Fingerprints of plans: equal for equal plans in every process; different as soon as anything says other rows."""

from __future__ import annotations

import functools
import io
import os
import subprocess
import sys
import tarfile
import textwrap
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.caching.fingerprint.fingerprint import fingerprint
from arrowflow.ops.cache.cache import Cache
from arrowflow.ops.sources.files.file_identity import files_identity, system_identity
from arrowflow.plan.bind import bind, options_of
from arrowflow.plan.node import Node
from arrowflow.plan.walk import repeatable
from tests.ops.tables import ALL_TYPES, NUMBERS, OPERATORS, Apply, refused, write_shards

pytestmark = pytest.mark.any_version

ROOT = Path(__file__).resolve().parent.parent.parent


def bound(dataset: af.Dataset) -> Node:
    return bind(dataset._plan, options_of(dataset._plan))


def of(dataset: af.Dataset, key: str | None = None) -> str:
    options = options_of(dataset._plan)
    plan = bound(dataset)
    return fingerprint(plan, options, key)


def all_differ(*datasets: af.Dataset) -> None:
    assert len({of(dataset) for dataset in datasets}) == len(datasets)


def shift(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(1)


LOCK = threading.Lock()


def locked(batch: pa.RecordBatch) -> pa.RecordBatch:
    with LOCK:
        return batch


def locked_too(batch: pa.RecordBatch) -> pa.RecordBatch:
    with LOCK:
        return batch.slice(1)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    return write_shards(folder, [[3, 4], [2]])


# ---------------------------------------------------------------- operators


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_one(name: str) -> None:
    source = af.from_arrow(ALL_TYPES)
    one, other = of(OPERATORS[name](source)), of(OPERATORS[name](af.from_arrow(ALL_TYPES)))
    assert one == other
    assert len(one) == 32 and int(one, 16)
    assert (one == of(source)) == (name in ("prefetch", "with_options"))
    assert of(OPERATORS[name](source), "a key") == of(OPERATORS[name](source), "a key") != one


SOURCES: dict[str, Callable[[Path], af.Dataset]] = {
    "range": lambda folder: af.range(9),
    "from_arrow": lambda folder: af.from_arrow(NUMBERS),
    "from_numpy": lambda folder: af.from_numpy({"row": np.arange(9)}),
    "from_generator": lambda folder: af.from_generator(lambda: iter([{"row": 1}])),
    "read_parquet": lambda folder: af.read_parquet(folder),
    "list_files": lambda folder: af.list_files(folder),
    "dataset": lambda folder: af.from_arrow(ds.dataset(folder)),
    "union": lambda folder: af.from_arrow(ds.dataset([ds.dataset(folder), ds.dataset(folder)])),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_has_one(name: str, shards: Path) -> None:
    assert of(SOURCES[name](shards)) == of(SOURCES[name](shards))
    assert of(SOURCES[name](shards).take(5)) != of(SOURCES[name](shards))
    same = name != "from_generator"
    assert repeatable(bound(SOURCES[name](shards).take(5))) is same
    assert (
        repeatable(bound(af.range(9).concatenate(SOURCES[name](shards)))) is same if name == "range" else True
    )


def test_arguments_and_their_order_count() -> None:
    numbers = af.range(100)
    all_differ(
        numbers,
        af.range(101),
        numbers.take(5),
        numbers.take(6),
        numbers.skip(5),
        numbers.take(50).skip(5),
        numbers.skip(5).take(50),
        numbers.filter(pl.col("id") > 1),
        numbers.filter(pl.col("id") > 2),
        numbers.batch(5),
        numbers.batch(5, drop_remainder=True),
        numbers.with_columns(a=pl.col("id") + 1),
        numbers.with_columns(b=pl.col("id") + 1),
        numbers.map(shift),
        numbers.map(shift, schema=numbers.schema),
        numbers.map(shift, columns=["id"]),
        numbers.map(shift).map(shift),
        numbers.filter(pl.col("id").is_in(pl.Series(range(10_000)))),
        numbers.filter(pl.col("id").is_in(pl.Series(range(10_001)))),
        af.zip(numbers, numbers.rename({"id": "b"})),
        numbers.concatenate(numbers),
        numbers.concatenate(numbers).concatenate(numbers),
        numbers.concatenate(numbers.concatenate(numbers)),
    )


def test_data_in_memory_count() -> None:
    values = np.arange(6)
    all_differ(
        af.from_numpy({"a": values}),
        af.from_numpy({"a": values[::-1]}),
        af.from_numpy({"b": values}),
        af.from_numpy({"a": values.astype(np.int32)}),
        af.from_arrow([pa.record_batch({"a": [0, 1, 2]}), pa.record_batch({"a": [3, 4, 5]})]),
        af.from_arrow(NUMBERS),
        af.from_arrow(NUMBERS.slice(1)),
    )
    assert of(af.from_arrow(NUMBERS)) == of(af.from_arrow(pa.Table.from_batches(NUMBERS.to_batches())))


def test_seeds_and_places_count() -> None:
    numbers = af.range(100)
    seeded = numbers.with_options(af.Options(seed=1))
    all_differ(
        numbers,
        seeded,
        numbers.shuffle(10),
        seeded.shuffle(10),
        numbers.shuffle(10, seed=1),
        numbers.shuffle(10, seed=2),
        numbers.skip(0).shuffle(10),
        numbers.map(with_random, seed=1),
        numbers.skip(0).map(with_random, seed=1),
        numbers.skip(0).map(with_random, seed=2),
        numbers.with_options(af.Options(max_chunk_rows=10)),
        numbers.with_options(af.Options(disabled_rules=["limit_reads"])),
    )


def with_random(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    return batch


def test_what_is_tuned_does_not_count() -> None:
    numbers = af.range(100)
    expected = of(numbers.map(shift).batch(3))
    tuned = af.Options(cpu_budget=3, ram_budget="64MiB", autotune=False, progress=True, close_timeout=1)
    assert of(numbers.map(shift, num_parallel_calls=2).batch(3)) == expected
    assert of(numbers.prefetch(2).map(shift).prefetch(1).batch(3)) == expected
    assert of(numbers.with_options(tuned).map(shift).batch(3)) == expected


def test_how_often_it_was_iterated_does_not_count() -> None:
    dataset = af.range(10).shuffle(4)
    before = of(dataset)
    for _ in range(2):
        list(dataset)
    assert of(dataset) == before


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["read_parquet", "list_files", "dataset", "union"])
def test_files_count_by_path_size_and_time(name: str, shards: Path) -> None:
    def found() -> str:
        return of(SOURCES[name](shards))

    seen = [found()]
    file = shards / "01.parquet"
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000))
    seen.append(found())
    with file.open("ab") as more:
        more.write(b"1")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    if name != "union":  # looks at the files first
        seen.append(found())
    file.rename(shards / "02.parquet")
    seen.append(found() if name != "union" else "")
    pq.write_table(pa.table({"row": [1], "file": pa.array([1], pa.int32())}), shards / "01.parquet")
    assert len({*seen}) == len(seen)
    assert found() not in seen


def test_how_files_were_named_does_not_count(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = of(af.read_parquet(shards))
    monkeypatch.chdir(shards)
    assert of(af.read_parquet(str(shards / "*.parquet"))) == expected
    assert of(af.read_parquet(["00.parquet", "01.parquet"])) == expected
    assert of(af.read_parquet(["01.parquet", "00.parquet"])) != expected  # their order counts
    assert of(af.read_parquet(shards.as_uri())) == expected
    assert of(af.read_parquet(["00.parquet"])) != expected


def test_how_files_are_read_counts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n")
    all_differ(
        af.read_csv(tmp_path),
        af.read_csv(tmp_path, schema=pa.schema([("a", pa.int8())])),
        af.read_csv(tmp_path, delimiter=";"),
        af.read_csv(tmp_path).select("a"),
    )


def test_folders_count(tmp_path: Path) -> None:
    for year in (2023, 2024):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        pq.write_table(pa.table({"a": [year]}), folder / "a.parquet")
    all_differ(
        af.read_parquet(tmp_path),
        af.read_parquet(tmp_path, partitioning=None),
        af.read_parquet(tmp_path, schema=pa.schema([("year", pa.int16()), ("a", pa.int64())])),
    )


def test_a_dataset_counts_by_what_it_scans(shards: Path) -> None:
    dataset = ds.dataset(shards)
    (fragment, _) = dataset.get_fragments()
    parts = [fragment.subset(row_group_ids=[number]) for number in (0, 1)]
    made = [
        ds.FileSystemDataset([part], dataset.schema, dataset.format, filesystem=dataset.filesystem)
        for part in parts
    ]
    all_differ(
        af.from_arrow(dataset),
        af.from_arrow(dataset.filter(ds.field("row") > 1)),
        af.from_arrow(dataset.filter(ds.field("row") > 2)),
        *map(af.from_arrow, made),
    )
    memory = ds.dataset(pa.table({"a": [1]}))
    refused(
        af.FingerprintError,
        lambda: of(af.from_arrow(memory)),
        "from_arrow: a dataset of type InMem",
        "a table, or give",
    )


def test_remote_files_count_by_what_their_file_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/fingerprint/a.csv", b"a\n1\n")
    dataset = af.read_csv("/fingerprint", filesystem=memory)
    first = of(dataset)
    assert of(dataset) == first
    memory.pipe("/fingerprint/a.csv", b"a\n2\n")
    assert of(dataset) != first
    info = type(memory).info

    def told(**more: Any) -> None:
        monkeypatch.setattr(
            type(memory), "info", lambda self, path, **_: {**info(self, path), "created": None, **more}
        )

    seen = set()
    for more in ({"ETag": '"a"'}, {"ETag": '"b"'}, {"LastModified": 1}, {"LastModified": 2}):
        told(**more)
        seen.add(of(dataset))
    assert len(seen) == 4
    read: Any = bound(dataset)

    def silent(self: Any, path: str, **_: Any) -> Any:
        raise OSError("no answer")

    monkeypatch.setattr(type(memory), "info", silent)
    refused(
        af.SourceError, lambda: files_identity(read.store, read.files), "cannot ask", "no answer", "a.csv"
    )
    told()
    refused(af.FingerprintError, lambda: of(dataset), "a.csv", "neither a time nor an etag", "key=")
    with_key = of(dataset, "key")
    memory.pipe("/fingerprint/a.csv", b"a\n2\n3\n")
    assert of(dataset, "key") != with_key


def test_archives_and_folders_of_other_file_systems_count(tmp_path: Path) -> None:
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.tar import TarFileSystem

    def archive(name: str, text: bytes) -> af.Dataset:
        with tarfile.open(tmp_path / name, "w") as tar:
            info = tarfile.TarInfo("a.csv")
            info.size, info.mtime = len(text), 1
            tar.addfile(info, io.BytesIO(text))
        system = TarFileSystem(str(tmp_path / name), skip_instance_cache=True)
        return af.read_csv("a.csv", filesystem=system)

    def folder(name: str, **options: Any) -> Any:
        made = DirFileSystem(str(tmp_path / name), LocalFileSystem(), **options)
        return system_identity(pafs.PyFileSystem(pafs.FSSpecHandler(made)))

    found = []
    for number, name in enumerate(("100.tar", "200.tar", "100.tar")):
        dataset = archive(name, b"x\n%d\n" % number)
        os.utime(tmp_path / name, (number, number + 1))
        found.append(of(dataset))
        assert of(dataset) == found[-1]
    assert len(set(found)) == 3
    assert folder("v100") != folder("v200")
    assert folder("v100", token="a") == folder("v100", token="b")
    with (tmp_path / "100.tar").open("rb") as opened:
        unnamed = af.read_csv("a.csv", filesystem=TarFileSystem(opened))
        refused(af.FingerprintError, lambda: of(unnamed), "the archive is an open file", "pass its path")
        assert of(unnamed, "key")


def test_credentials_do_not_count() -> None:
    from pyarrow.fs import S3FileSystem, SubTreeFileSystem

    def made(**settings: Any) -> Any:
        return system_identity(S3FileSystem(region="eu-north-1", **settings))

    assert made(access_key="a", secret_key="b") == made(access_key="c", secret_key="d")
    assert made() != made(endpoint_override="example.org")
    inner = S3FileSystem(region="eu-north-1")
    assert system_identity(SubTreeFileSystem("a", inner)) != system_identity(SubTreeFileSystem("b", inner))


# ---------------------------------------------------------------- processes

SCRIPT = """
    import enum, sys
    import numpy as np, polars as pl, pyarrow as pa
    import arrowflow as af
    from arrowflow.caching.fingerprint.fingerprint import fingerprint
    from arrowflow.ops.functions.function import code_digest
    from arrowflow.plan.bind import bind, options_of

    WORDS = {"one", "two", "three", "four", ("five", 6), None}

    class Kind(enum.Enum):
        GOOD = {"x", "y", "z"}
        BAD = 2

    class Model:
        known = frozenset(["a", "b", "c"])
        def __init__(self):
            self.table = {"k": {"p", "q", "r"}, "m": np.arange(5), "s": pl.Series(["a", None])}
            self.frame, self.batch = pl.DataFrame({"a": [1]}), next(iter(af.range(3)))
        def __call__(self, batch):
            return helper(batch) if "id" in self.known | self.table["k"] else batch

    def helper(batch):
        return batch if Kind.GOOD and "z" in {"x", "y", "w", ("z", 1)} else batch.slice(1)

    def main(batch):
        return batch if batch.num_rows in WORDS else helper(batch)

    plan = (
        af.read_parquet(sys.argv[1]).filter(pl.col("row").is_in([1, 2, 3])).map(main).map(Model()).map(Model)
        .shuffle(3, seed=1).batch(2)
    )._plan
    options = options_of(plan)
    print(fingerprint(bind(plan, options), options), code_digest(helper))
    assert not {"pandas", "torch"} & sys.modules.keys()
"""


@pytest.mark.slow
@pytest.mark.versions
def test_the_same_in_every_process(shards: Path) -> None:
    def run(seed: int) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(shards)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    assert run(1) == run(2) != ""


# ---------------------------------------------------------------- errors and keys


@pytest.mark.parametrize(
    ("operator", "apply"),
    [
        ("map", lambda dataset: dataset.map(locked)),
        ("map_rows", lambda dataset: dataset.map_rows(locked)),
        ("filter", lambda dataset: dataset.filter(locked)),
        ("scan", lambda dataset: dataset.scan(0, locked)),
        ("interleave", lambda dataset: dataset.interleave(locked)),
        ("flat_map", lambda dataset: dataset.flat_map(locked)),
        ("from_generator", lambda dataset: af.from_generator(locked)),  # type: ignore[arg-type]
    ],
)
def test_errors_name_the_operator_and_a_key_helps(operator: str, apply: Apply) -> None:
    dataset = apply(af.range(3))
    refused(af.FingerprintError, lambda: of(dataset), f"{operator}: global 'LOCK' of `locked` is", 'key="…"')
    assert of(dataset, "a") == of(apply(af.range(3)), "a") != of(dataset, "b")
    assert of(dataset, "a") != of(apply(af.range(4)), "a") or operator == "from_generator"


def test_a_key_stands_for_code_and_not_for_arguments() -> None:
    numbers = af.range(9)
    assert of(numbers.map(locked), "key") == of(numbers.map(locked_too), "key")
    assert of(numbers.map(locked), "key") != of(numbers.map(locked, columns=["id"]), "key")
    assert of(numbers.map(locked), "key") != of(numbers.map_rows(locked), "key")
    assert of(numbers.map(locked).take(1), "key") != of(numbers.map(locked).take(2), "key")
    assert (
        of(numbers, "key") != of(af.from_arrow(NUMBERS), "key") != of(af.from_arrow(NUMBERS.slice(1)), "key")
    )


def test_one_shot_streams() -> None:
    def stream() -> af.Dataset:
        return af.from_arrow(pa.RecordBatchReader.from_batches(NUMBERS.schema, NUMBERS.to_batches()))

    refused(
        af.FingerprintError, lambda: of(stream()), "from_arrow: a one-shot stream is gone once", 'key="…"'
    )
    assert of(stream(), "key") == of(stream(), "key")
    assert not repeatable(bound(stream().take(3)))


class Streams:
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __arrow_c_stream__(self, requested: object = None) -> object:
        return NUMBERS.slice(0, self.rows).__arrow_c_stream__(requested)


def test_objects_that_stream_are_code() -> None:
    assert of(af.from_arrow(Streams(3))) == of(af.from_arrow(Streams(3)))
    all_differ(af.from_arrow(Streams(3)), af.from_arrow(Streams(4)))
    assert of(af.from_arrow(Streams(3)), "key") == of(af.from_arrow(Streams(4)), "key")
    assert not repeatable(bound(af.from_arrow(Streams(3))))


@pytest.mark.parametrize("name", ["interleave", "flat_map"])
def test_what_functions_open_is_not_in_the_plan(name: str) -> None:
    dataset = getattr(af.range(3), name)(lambda row: af.range(row["id"]))
    assert of(dataset) == of(dataset)
    assert not repeatable(bound(dataset.take(3)))
    assert repeatable(bound(af.range(3).map(shift)))


def test_what_is_below_an_operator_that_is_known_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "traits", replace(Cache.traits, known_by="key"))
    monkeypatch.setattr(Cache, "key", "a name", raising=False)
    assert of(af.range(3).map(locked).cache().take(2)) == of(af.range(4).map(locked_too).cache().take(2))
    first = of(af.range(3).cache())
    monkeypatch.setattr(Cache, "key", "another name")
    assert of(af.range(3).cache()) != first


def test_a_set_that_refers_to_itself_is_refused() -> None:
    class Held:
        def __init__(self) -> None:
            self.inside = {self}

    held = Held()

    def refers(batch: pa.RecordBatch) -> Any:
        return held, batch

    refused(af.FingerprintError, lambda: of(af.range(3).map(refers)), "map: ", "refers to itself", "key=")


def test_datasets_may_be_referred_to() -> None:
    def opened(stop: int) -> af.Dataset:
        inner = af.range(stop)
        return af.range(3).interleave(lambda row: inner)

    assert of(opened(3)) == of(opened(3)) != of(opened(4))


def test_files_of_datasets_that_are_referred_to_count(shards: Path) -> None:
    inner = af.read_parquet(shards).map(shift).shuffle(3)
    outer = af.range(3).map(lambda batch: next(iter(inner)))
    first = of(outer)
    assert of(outer) == first
    file = shards / "01.parquet"
    os.utime(file, ns=(1, file.stat().st_mtime_ns + 1_000))
    assert of(outer) != first
    inner = af.read_parquet(shards).map(locked)
    refused(af.FingerprintError, lambda: of(outer), "map: global 'LOCK' of `locked`")
    inner = af.read_parquet(shards).select("nothing_like_it")
    refused(af.FingerprintError, lambda: of(outer), "variable 'inner'", "cannot be bound", "nothing_like_it")


def test_datasets_may_refer_to_themselves() -> None:
    def made(stop: int) -> af.Dataset:
        held: list[af.Dataset] = []
        held.append(af.range(stop).map(lambda batch: batch.slice(len(held))))
        return held[0]

    assert of(made(3)) == of(made(3)) != of(made(4))


def test_batches_that_functions_hold_are_read_each_time() -> None:
    values = np.arange(3)
    held = pa.record_batch([pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(values)])], names=["a"])
    by_closure = af.range(3).map(lambda batch: held)
    by_partial = af.range(3).map(functools.partial(max, held))
    before = of(by_closure), of(by_partial)
    values[0] = 9
    assert not {*before} & {of(by_closure), of(by_partial)}

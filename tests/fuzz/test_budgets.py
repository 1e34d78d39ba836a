"""Random pipelines over skewed and inflating data stay within random budgets, by the ledger's own count.

The engine is stepped by hand: which calls are in flight together, and which of them ends first, follows from a seed.
"""

from __future__ import annotations

import atexit
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import arrowflow as af
from arrowflow.executor.limits import NEGLIGIBLE_BYTES
from arrowflow.executor.stages.parallel import ParallelQueue
from arrowflow.kernels.items import Slices
from arrowflow.run import check_budget
from tests.effort import scaled
from tests.executor.fakes import Running, Stepper, stepper_of

pytestmark = pytest.mark.any_version

MIB = 1 << 20
ROWS = 4_000
CHUNK_ROWS = 500
MAX_REFUSALS = 6
"""A run that is refused names a budget. One that then fails at later, larger rows names a larger one."""

TEXT_BYTES = {"even": [200] * 8, "skewed": [2, 3_000, 2, 2, 6_000, 1, 1, 900], "late": [1] * 6 + [6_000] * 2}
"""Bytes of the texts of each row group."""


# --- pipelines -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """A source with a column `id`, and functions over it, each with a number."""

    source: str
    steps: tuple[tuple[str, int], ...]

    def dataset(self) -> af.Dataset:
        dataset = source_of(self.source)
        for name, size in self.steps:
            dataset = FUNCTIONS[name](dataset, size)
        return dataset


@dataclass(frozen=True)
class Case:
    """One input, or several and how they are combined; what follows; budgets; and the seed of what runs when."""

    inputs: tuple[Input, ...]
    combine: str
    then: tuple[tuple[str, int], ...]
    ram_budget: int
    cpu_budget: int
    seed: int
    deterministic: bool = True
    chunk_rows: int | None = CHUNK_ROWS

    def dataset(self) -> af.Dataset:
        dataset = COMBINED[self.combine]([each.dataset() for each in self.inputs])
        for name, size in self.then:
            dataset = FOLLOWING[name](dataset, size)
        options = af.Options(
            ram_budget=self.ram_budget,
            cpu_budget=self.cpu_budget,
            max_chunk_rows=self.chunk_rows,
            seed=1,
            deterministic=self.deterministic,
        )
        return dataset.prefetch(1).with_options(options)  # so that no stage runs on the consumer's thread


@cache
def folder() -> Path:
    made = TemporaryDirectory(prefix="budgets-")
    atexit.register(made.cleanup)
    return Path(made.name)


@cache
def file_of(name: str) -> str:
    """Writes a file: the texts of a row group come from a dictionary, or are compressed."""
    path = folder() / name.replace(" ", "-")
    kind, *options = name.split(" ")
    rows = ROWS // len(TEXT_BYTES[kind])
    parts = [
        pa.table({"id": np.arange(group * rows, (group + 1) * rows), "text": [chr(97 + group) * size] * rows})
        for group, size in enumerate(TEXT_BYTES[kind])
    ]
    table = pa.concat_tables(parts)
    if "ipc" in options:
        settings = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(path, table.schema, options=settings) as writer:
            writer.write_table(table, max_chunksize=rows)
    else:
        silent = "silent" in options
        pq.write_table(
            table,
            path,
            row_group_size=rows,
            write_statistics=not silent,
            use_dictionary="plain" not in options,
        )
    return str(path)


SOURCES = [
    "range",
    "generator",
    *(f"{kind}{how}" for kind in TEXT_BYTES for how in ("", " silent", " plain", " ipc")),
]


def source_of(name: str) -> af.Dataset:
    if name == "range":
        return af.range(ROWS)
    if name == "generator":
        return af.from_generator(
            generated, schema=pa.schema([("id", pa.int64()), ("wide", pa.list_(pa.int64(), 200))])
        )
    read = af.read_ipc if name.endswith("ipc") else af.read_parquet
    return read(file_of(name))


def generated() -> Iterator[pa.RecordBatch]:
    for start in range(0, ROWS, 800):
        ids = np.arange(start, start + 800)
        yield pa.record_batch({"id": ids, "wide": lists(np.zeros((800, 200), np.int64))})


def lists(values: np.ndarray) -> pa.Array:
    """Returns the rows of a matrix as lists of a fixed size."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


class Inflate:
    """Makes rows so many numbers wide."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column("id")
        return pa.record_batch({"id": ids, "wide": lists(np.zeros((batch.num_rows, self.width), np.int64))})


class Repeated:
    """Makes several rows of each, so many of those of every fourth chunk."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column("id").to_numpy()
        ids = ids.repeat(self.times if ids[0] // CHUNK_ROWS % 4 == 3 else 1)
        return pa.record_batch({"id": ids, "wide": lists(np.zeros((len(ids), 20), np.int64))})


class Skewed:
    """Makes any number of rows of each: of most a few, of some hundreds."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column("id").to_numpy()
        rng = np.random.default_rng(int(ids[0]))
        times = np.minimum(self.times * rng.pareto(1.2, len(ids)) / 4, 400).astype(np.int64)
        return pa.record_batch(
            {"id": ids.repeat(times), "wide": lists(np.zeros((times.sum(), 20), np.int64))}
        )


class Burst:
    """Makes so many rows of each of the first ten."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column("id").to_numpy()
        ids = ids.repeat(np.where(ids < 10, 20 * self.times, 1))
        return pa.record_batch({"id": ids, "wide": lists(np.zeros((len(ids), 20), np.int64))})


def only_ids(dataset: af.Dataset) -> af.Dataset:
    """Brings inputs to the same columns, of which one is wide."""
    return dataset.map(Inflate(250))


FUNCTIONS: dict[str, Callable[[af.Dataset, int], af.Dataset]] = {
    "inflate": lambda dataset, size: dataset.map(Inflate(10 * size)),
    "repeat rows": lambda dataset, size: dataset.map(Repeated(size)),
    "skew rows": lambda dataset, size: dataset.map(Skewed(size)),
    "burst": lambda dataset, size: dataset.map(Burst(size)),
    "filter": lambda dataset, size: dataset.filter(pl.col("id") % (size + 1) != 0),
    "one by one": lambda dataset, size: dataset.map(Inflate(10 * size), num_parallel_calls=1),
}

COMBINED: dict[str, Callable[[list[af.Dataset]], af.Dataset]] = {
    "first": lambda inputs: inputs[0],
    "zip": lambda inputs: af.zip(
        *(
            each.map(Inflate(100)).rename({"id": f"id {number}", "wide": f"wide {number}"})
            if number
            else each
            for number, each in enumerate(inputs)
        )
    ),
    "sample": lambda inputs: af.sample_from_datasets(list(map(only_ids, inputs)), seed=3),
    "choose": lambda inputs: af.choose_from_datasets(
        list(map(only_ids, inputs)),
        af.range(3 * ROWS).map(lambda batch: pa.record_batch({"c": batch["id"].to_numpy() % len(inputs)})),
    ),
    "concatenate": lambda inputs: only_ids(inputs[0]).concatenate(*map(only_ids, inputs)),
    "interleave": lambda inputs: af.range(2 * len(inputs)).interleave(
        lambda row: only_ids(inputs[row["id"] % len(inputs)]), cycle_length=len(inputs), block_length=90
    ),
}

FOLLOWING: dict[str, Callable[[af.Dataset, int], af.Dataset]] = {
    "shuffle": lambda dataset, size: dataset.shuffle(40 * size, seed=2),
    "cache": lambda dataset, size: dataset.cache(spill=folder()),
    "batch": lambda dataset, size: dataset.batch(17 * size),
    "map": lambda dataset, size: dataset.map(Inflate(5 * size)),
    "prefetch": lambda dataset, size: dataset.prefetch(size),
    "repeat": lambda dataset, size: dataset.repeat(2),
}


def steps(names: list[str], most: int) -> st.SearchStrategy[tuple[tuple[str, int], ...]]:
    return st.lists(st.tuples(st.sampled_from(names), st.integers(1, 40)), max_size=most).map(tuple)


# Two bursts make four million rows, which a run whose calls the test makes one by one takes ten minutes for.
INPUTS = st.builds(
    Input,
    source=st.sampled_from(SOURCES),
    steps=steps(list(FUNCTIONS), 2).filter(lambda made: [name for name, _ in made].count("burst") < 2),
)
ORDER = {name: place for place, name in enumerate(["shuffle", "cache", "repeat", "batch", "map", "prefetch"])}


def in_turn(then: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Puts steps in an order that there is, each of them once.

    How wide the rows of these functions are, nobody knows at the start. So the windows of several shuffles over them are
    no reason to refuse the budget: each is filled because the others wait for it, and together they may exceed it.
    """
    return tuple(sorted(dict(then).items(), key=lambda step: ORDER[step[0]]))


CASES = st.builds(
    Case,
    inputs=st.lists(INPUTS, min_size=1, max_size=8).map(tuple),
    combine=st.sampled_from(list(COMBINED)),
    then=steps(list(FOLLOWING), 3).map(in_turn),
    ram_budget=st.sampled_from([2, 4, 8, 16, 48]).map(lambda size: size * MIB),
    cpu_budget=st.sampled_from([1, 2, 8]),
    seed=st.integers(0, 1 << 16),
    deterministic=st.booleans(),
    chunk_rows=st.sampled_from([CHUNK_ROWS, None]),
)


# --- runs ------------------------------------------------------------------------------------------------


def run(case: Case) -> tuple[list[int], Stepper]:
    """Runs a case to its end, and returns the ids and the engine.

    Raises:
        BudgetError: At the start, or later.
    """
    dataset = case.dataset()
    prepared = dataset._ready()
    check_budget(prepared.chain, prepared.options.ram_budget)
    engine = stepper_of(dataset)
    try:
        return list(ids_of(engine, random.Random(case.seed))), engine
    finally:
        engine.close()


def ids_of(engine: Stepper, rng: random.Random) -> Iterator[int]:
    """Begins and finishes calls, and takes chunks, in a random order that workers could have too."""
    flying: list[Running] = []
    try:
        while True:
            choice = rng.random()
            call = engine.begin() if choice < 0.6 else None
            if call is not None:
                flying.append(call)
            elif flying and choice < 0.9:
                engine.finish(flying.pop(rng.randrange(len(flying))))
            elif _has_rows(engine) or (engine.root_out.out and not flying):
                # An item without rows is passed over, and the next one may need a call that is in flight here.
                item = engine.next_item()
                if item is None:
                    return
                yield from ids_in(item.chunk)
                del item  # as the iterator does: the consumer's batch is not the pipeline's
            elif not flying:
                assert not engine.idle(flying), "a deadlock"
    finally:
        for left in flying:
            engine.finish(left)


def _has_rows(engine: Stepper) -> bool:
    return engine.root_out.ended or any(item.chunk.num_rows for item in engine.root_out.out)


def ids_in(chunk: pa.RecordBatch | Slices) -> list[int]:
    if isinstance(chunk, Slices):
        chunk = chunk.chunk.slice(chunk.start, chunk.size * chunk.batches)
    ids: list[int] = chunk.column("id").to_pylist()
    return ids


def expected(case: Case) -> list[int]:
    roomy = replace(case, ram_budget=1 << 32, cpu_budget=1, seed=0)
    return in_order(run(roomy)[0], case)


def in_order(ids: list[int], case: Case) -> list[int]:
    """Returns ids in the order that they have to come in; sorted, where they may come in any."""
    return ids if case.deterministic else sorted(ids)


def raised_budget(case: Case, error: af.BudgetError) -> int:
    """Returns the budget that an error asks for, which is more than there was."""
    found = re.search(r"(?:needs,|raise the budget to) ([\d,]+)(?: bytes|,)", str(error))
    assert found is not None, f"no number: {error}"
    budget = int(found[1].replace(",", ""))
    assert budget > case.ram_budget, str(error)
    return budget


def most_bytes(case: Case, engine: Stepper) -> int:
    """Returns the bytes that a run may have held at most.

    Beyond the budget goes one call at a time, with its scratch and the chunks that its input stands on. That of a gather is
    a window, whose first and last rows keep whole chunks. Of operators whose chunks exceed the budget each, one of each may
    be there. Each open element of `interleave` has operators of its own. Results beyond what any earlier one foretold come
    on top.
    """
    too_large = sorted(size for size in engine.largest_made_bytes.values() if size > case.ram_budget)
    beside = max(sum(too_large[:-1]), engine.largest_beside_bytes)
    beyond = engine.largest_call_bytes + beside + engine.unforeseen_bytes
    return case.ram_budget + beyond + NEGLIGIBLE_BYTES


@pytest.mark.slow
@settings(
    max_examples=scaled(20),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
@given(case=CASES)
def test_a_pipeline_stays_within_its_budget_or_names_one_that_suffices(case: Case) -> None:
    for _ in range(MAX_REFUSALS):
        try:
            found, engine = run(case)
        except af.BudgetError as error:
            case = replace(case, ram_budget=raised_budget(case, error))
            continue
        assert engine.ledger.peak <= most_bytes(case, engine)
        assert engine.statistics().ledger_bytes == 0
        assert in_order(found, case) == expected(case)
        return
    pytest.fail(f"{MAX_REFUSALS} budgets that were named did not suffice; the last one: {case.ram_budget:,}")


@pytest.mark.slow
def test_a_call_in_flight_for_what_is_wanted_is_no_reason_to_refuse_a_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = (Input("even", (("repeat rows", 27),)), Input("skewed silent", (("one by one", 31),)))

    def suffices(seed: int) -> bool:
        case = Case(inputs, "interleave", (("batch", 10),), ram_budget=8 * MIB, cpu_budget=8, seed=seed)
        try:
            found, engine = run(case)
        except af.BudgetError:
            return False
        assert found == expected(case)
        assert engine.ledger.peak <= most_bytes(case, engine)
        return True

    sufficed = sum(map(suffices, range(16)))
    monkeypatch.setattr(ParallelQueue, "reserved_bytes", 0)
    assert sum(map(suffices, range(16))) < sufficed

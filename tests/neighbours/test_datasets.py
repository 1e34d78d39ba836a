"""Hugging Face's `datasets`: their tables with indices, without a copy, and their streams."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.testing import check_dataset, check_epochs, check_resume
from tests.neighbours.snippets import run_snippet
from tests.ops.tables import refused

pytestmark = [pytest.mark.slow, pytest.mark.any_version]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings(action="ignore"):
    datasets: Any = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")

ROWS = [{"x": number, "text": str(number)} for number in range(10)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture
def numbers() -> Any:
    return datasets.Dataset.from_list(ROWS)


def test_the_snippet_does_what_it_says(numbers: Any, tmp_path: Path) -> None:
    numbers.save_to_disk(tmp_path / "corpus")
    found = run_snippet("datasets", af=af, datasets=datasets, folder=tmp_path / "corpus")
    assert sorted(row for batch in found["batches"] for row in batch["x"].tolist()) == list(range(10))
    assert found["back"][3] == ROWS[3]


def test_a_dataset_is_its_table_without_a_copy(numbers: Any, tmp_path: Path) -> None:
    numbers.save_to_disk(tmp_path)
    mapped = datasets.load_from_disk(tmp_path)
    ds = af.from_arrow(mapped)
    assert (ds.num_rows, ds.schema.metadata) == (10, None)
    assert ds.to_table().to_pylist() == ROWS
    mine, theirs = next(iter(ds)).column("x"), mapped.data.column("x").chunk(0)
    assert mine.buffers()[1].address == theirs.buffers()[1].address
    assert ds.shuffle().num_rows == 10
    pickled = pickle.dumps(af.from_arrow(mapped.shuffle(seed=1)))
    assert str(tmp_path).encode() in pickled, "it names its file"
    assert pickle.loads(pickled).to_table() == af.from_arrow(mapped.shuffle(seed=1)).to_table()


@pytest.mark.parametrize(
    "made",
    [
        lambda ds: ds.shuffle(seed=3),
        lambda ds: ds.filter(lambda row: row["x"] % 2),
        lambda ds: ds.select([3, 1, 1, 9]),
        lambda ds: ds.select(range(2, 5)),
        lambda ds: ds.train_test_split(0.3, seed=1)["test"],
        lambda ds: datasets.concatenate_datasets([ds.shuffle(seed=1), ds.select([4, 0])]),
        lambda ds: ds.select([]),
    ],
    ids=["shuffle", "filter", "select", "range", "split", "concatenate", "empty"],
)
def test_the_indices_mapping_decides_the_rows(numbers: Any, made: Any) -> None:
    theirs = made(numbers)
    ds = af.from_arrow(theirs)
    assert ds.num_rows == len(theirs)
    assert ds.to_table().to_pylist() == theirs.to_list()
    assert ds.select("text").to_table()["text"].to_pylist() == list(theirs["text"])
    assert sorted(ds.shuffle().to_table()["x"].to_pylist()) == sorted(theirs["x"])
    check_dataset(lambda: af.from_arrow(theirs).batch(3))


def test_an_indices_mapping_over_many_parts_seeks(tmp_path: Path) -> None:
    rows = 70_000
    table = pa.table({"x": np.arange(rows), "text": [str(row) for row in range(rows)]})
    parts = pa.Table.from_batches(table.to_batches(max_chunksize=1000))
    shuffled = datasets.Dataset(parts).shuffle(seed=1)
    check_resume(lambda: af.from_arrow(shuffled).batch(30_000))
    found = af.from_arrow(shuffled).to_table()
    assert found["x"].to_pylist() == list(shuffled["x"])
    assert found["text"].to_pylist() == [str(x) for x in found["x"].to_pylist()]
    state = iter(af.from_arrow(shuffled)).state_dict()
    other = datasets.Dataset(parts).shuffle(seed=2)
    refused(af.StateError, lambda: iter(af.from_arrow(other)).load_state_dict(state), "places")


def test_another_order_is_another_entry_of_a_cache(numbers: Any, tmp_path: Path) -> None:
    for seed in (1, 2, 1):
        theirs = numbers.shuffle(seed=seed)
        assert af.from_arrow(theirs).cache(tmp_path).to_table()["x"].to_pylist() == list(theirs["x"])


def test_arrays_become_tensors() -> None:
    features = datasets.Features(
        {"m": datasets.Array2D((2, 3), "float32"), "c": datasets.ClassLabel(names=["a", "b"])}
    )
    matrices = [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [0, 0, 0]]]
    theirs = datasets.Dataset.from_dict({"m": matrices, "c": [0, 1]}, features=features)
    for source in (theirs, theirs.select([0, 1]), theirs.to_iterable_dataset()):
        (batch,) = af.from_arrow(source).batch(2).to_numpy()
        assert batch["m"].dtype == np.float32 and batch["m"].tolist() == matrices
        assert batch["c"].tolist() == [0, 1]
    holes = datasets.Dataset.from_dict({"m": [None, matrices[0]], "c": [0, 1]}, features=features)
    refused(af.DataError, lambda: af.from_arrow(holes).schema, "'m'", "nulls")


def test_a_stream_is_asked_anew(numbers: Any) -> None:
    def made() -> af.Dataset:
        return af.from_arrow(numbers.to_iterable_dataset(num_shards=3).filter(lambda row: row["x"] != 4))

    assert made().schema == pa.schema({"x": pa.int64(), "text": pa.string()})
    assert made().to_table().to_pylist() == ROWS[:4] + ROWS[5:]
    check_epochs(lambda: made().batch(2), differ=False)
    check_resume(lambda: made().batch(2))


def test_a_stream_of_unknown_features_tells_its_schema_as_it_runs() -> None:
    streamed = datasets.IterableDataset.from_generator(lambda: iter(ROWS))
    assert streamed.features is None
    ds = af.from_arrow(streamed)
    refused(af.PlanError, lambda: ds.schema, "only known once")
    assert ds.to_table().to_pylist() == ROWS


def test_datasets_reads_a_dataset(tmp_path: Path) -> None:
    ds = af.range(10).with_columns(half=pl.col("id") / 2).batch(3)
    assert datasets.Dataset(ds.to_table())[4] == {"id": 4, "half": 2.0}
    ds.write_parquet(tmp_path / "out")
    read = datasets.Dataset.from_parquet(str(tmp_path / "out/*.parquet"), cache_dir=str(tmp_path / "cache"))
    assert read[9] == {"id": 9, "half": 4.5}


def test_a_dict_of_datasets_is_refused(numbers: Any) -> None:
    refused(af.PlanError, lambda: af.from_arrow(datasets.DatasetDict({"train": numbers})), "DatasetDict")

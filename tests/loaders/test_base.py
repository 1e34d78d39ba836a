"""What loaders of all frameworks share: epochs, states, errors in order, `columns`, `collate`."""

from __future__ import annotations

import gc
import inspect
import itertools
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.loaders.base import Loader
from tests.loaders.frameworks import ARRAYS, LOADERS, installed, load, plain

all_loaders = pytest.mark.parametrize("name", installed(LOADERS))
array_loaders = pytest.mark.parametrize("name", installed(ARRAYS))


def test_these_are_all_loaders() -> None:
    found = {
        name
        for name, method in inspect.getmembers(af.Dataset, inspect.isfunction)
        if str(inspect.signature(method).return_annotation).startswith("Loader")
    }
    assert {name for name in found if not name.startswith("_")} == set(LOADERS)


@all_loaders
def test_what_users_hold_has_a_public_name(name: str) -> None:
    def rows_of(loader: af.Loader[Any]) -> int:
        batches: af.Iterator[Any] = iter(loader)
        list(batches)
        measured: af.Statistics = loader.stats()
        found: list[Any] = [loader, batches, measured]
        assert [type(each) for each in found] == [af.Loader, af.Iterator, af.Statistics]
        return measured.rows

    assert rows_of(load(af.range(3), name)) == 3


# ---------------------------------------------------------------- states


def rows() -> af.Dataset:
    return af.range(23).shuffle(8, seed=3)


def delivered(batch: Any) -> list[int]:
    found: list[int] = plain(batch)["id"]
    return found


@pytest.mark.parametrize("way", ["chunks", "batches", "collated chunks", "collated batches"])
@all_loaders
def test_a_state_after_any_batch_goes_on_with_the_next(name: str, way: str) -> None:
    """Whatever was made ahead of it. The last two ways also leave out a column."""
    kind, is_collated = way.rpartition(" ")[2], "collated" in way

    def make() -> Loader[Any]:
        data = rows().with_columns(y=pl.lit(1)) if is_collated else rows()
        data = data.prefetch(2) if kind == "chunks" else data.batch(4)
        return load(data, name, columns=["id"], collate=delivered) if is_collated else load(data, name)

    def values(batch: Any) -> list[int]:
        found: list[int] = batch if is_collated else delivered(batch)
        return found

    loader = make()
    whole, states = [], [loader.state_dict()]
    for batch in loader:
        whole.append(values(batch))
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert sorted(itertools.chain(*whole)) == list(range(23))
    for step, state in enumerate(states):
        resumed = make()
        resumed.load_state_dict(state)
        assert [values(batch) for batch in resumed] == whole[step:]
    after = make()
    after.load_state_dict(loader.state_dict())
    second = [values(batch) for batch in loader]
    assert second != whole
    assert [values(batch) for batch in after] == second


@all_loaders
def test_an_iterator_is_moved_by_states_and_epochs(name: str) -> None:
    loader = load(rows().batch(4), name)
    with iter(loader) as batches:
        first = [delivered(next(batches)) for _ in range(3)]
        state = batches.state_dict()
        rest = [delivered(batch) for batch in batches]
        batches.load_state_dict(state)
        assert [delivered(batch) for batch in batches] == rest
        batches.set_epoch(0)
        assert [delivered(batch) for batch in batches] == first + rest
    loader.set_epoch(0)
    assert [delivered(batch) for batch in loader] == first + rest
    assert len(loader) == 6


@all_loaders
def test_a_broken_loop_goes_on_where_it_was_and_an_end_stays_the_end(name: str) -> None:
    loader = load(af.range(10).batch(3), name)
    for batch in loader:
        assert delivered(batch) == [0, 1, 2]
        break
    loader.load_state_dict(loader.state_dict())
    batches = iter(loader)
    assert [delivered(batch) for batch in batches] == [[3, 4, 5], [6, 7, 8], [9]]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)
    closed = iter(loader)
    assert delivered(next(closed)) == [0, 1, 2]
    closed.close()
    with pytest.raises(af.ClosedError):
        next(closed)


@all_loaders
def test_an_error_comes_behind_all_batches_before_it(name: str) -> None:
    def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["id"][0].as_py() >= 6:
            raise KeyError("seven")
        return batch

    loader = load(af.range(9).batch(2).map(refuse), name)
    batches = iter(loader)
    assert [delivered(next(batches)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    state = loader.state_dict()
    with pytest.raises(af.FunctionError, match="seven"):
        next(batches)
    assert loader.state_dict() == state
    for _ in range(2):
        with pytest.raises(af.ClosedError, match="has raised FunctionError and ended with it"):
            next(batches)


@pytest.mark.parametrize(("rows", "before"), [(None, []), (2, [[0, 1], [2, 3]])], ids=["chunks", "batches"])
@array_loaders
def test_nulls_are_an_error_of_their_batch(name: str, rows: int | None, before: list[list[int]]) -> None:
    dataset = af.from_arrow(pa.table({"x": pa.array([0, 1, 2, 3, None, 5])}))
    batches = iter(load(dataset if rows is None else dataset.batch(rows), name))
    assert [plain(next(batches))["x"] for _ in before] == before
    with pytest.raises(af.DataError, match=rf"{name}: .*'x' has 1 null among . values.*fill_null") as caught:
        next(batches)
    assert caught.value.operator == name


@all_loaders
def test_without_rows_there_are_no_batches(name: str) -> None:
    table = pa.table({"x": pa.array([], pa.int32())})
    assert list(load(af.from_arrow(table).batch(2), name)) == []


# ---------------------------------------------------------------- columns


@all_loaders
def test_columns_come_in_the_order_asked_for_and_others_are_not_read(name: str, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({key: np.arange(10) * place for place, key in enumerate("abcd")}), tmp_path / "t.parquet"
    )
    dataset = af.read_parquet(tmp_path).batch(4)
    loader = load(dataset, name, columns=["d", "b"])
    batches = [plain(batch) for batch in loader]
    assert list(batches[0]) == ["d", "b"]
    assert batches[0] == {"d": [0, 3, 6, 9], "b": [0, 1, 2, 3]}
    assert len(loader) == 3
    prepared = loader._prepared()
    assert prepared.optimised.name == "batch", "converted chunk by chunk, as without columns"
    (read,) = prepared.optimised.inputs
    assert read.schema is not None
    assert read.schema.names == ["b", "d"]
    assert dataset.schema.names == ["a", "b", "c", "d"]


@all_loaders
def test_columns_are_names_that_there_are(name: str) -> None:
    made = af.range(4).map(lambda batch: {"x": batch["id"] * 2, "y": batch["id"]}, format="numpy").batch(2)
    for columns in (["y"], "y"):
        assert plain(next(iter(load(made, name, columns=columns)))) == {"y": [0, 1]}
    with pytest.raises(af.PlanError, match=r"'z'"):
        next(iter(load(made, name, columns=["z"])))
    with pytest.raises(af.PlanError, match=r"'di'.*'id'"):
        list(load(af.range(2), name, columns=["di"]))
    for wrong in ([], [1], [["id"], 2]):
        with pytest.raises(af.PlanError, match=name):
            load(af.range(2), name, columns=wrong)
    with pytest.raises(af.PlanError, match=rf"{name}: collate is a function"):
        load(af.range(2), name, collate="stack")


# ---------------------------------------------------------------- collate


@all_loaders
def test_collate_makes_what_is_delivered(name: str) -> None:
    table = pa.table({"x": [1, 2, 3], "y": [0, 1, 0]})
    loader = load(af.from_arrow(table).batch(2), name, collate=lambda batch: (batch["x"], batch["y"]))
    assert [plain(x) + plain(y) for x, y in loader] == [[1, 2, 0, 1], [3, 0]] or name == "to_polars"
    assert len(loader) == 2


@all_loaders
def test_an_error_of_collate_is_one_of_a_function_in_order(name: str) -> None:
    def collate(batch: Any) -> Any:
        if delivered(batch) == [4, 5]:
            raise error
        return delivered(batch)

    for error in (ValueError("odd"), StopIteration("odd"), SystemExit("odd")):
        batches = iter(load(af.range(8).batch(2), name, collate=collate))
        assert [next(batches), next(batches)] == [[0, 1], [2, 3]]
        with pytest.raises(af.FunctionError, match=rf"{name}: collate: .*odd") as caught:
            next(batches)
        assert caught.value.__cause__ is error


@all_loaders
def test_an_interrupt_leaves_a_state_from_which_nothing_is_lost(name: str) -> None:
    """It ends the loop at once, also in front of a batch that was made already."""
    interrupts = [KeyboardInterrupt()]

    def collate(batch: Any) -> list[int]:
        if delivered(batch) == [2, 3] and interrupts:
            raise interrupts.pop()
        return delivered(batch)

    loader = load(af.range(6).batch(2), name, collate=collate)
    found: list[list[int]] = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(loader)
    loader.load_state_dict(loader.state_dict())
    assert found + list(loader) == [[0, 1], [2, 3], [4, 5]]


# ---------------------------------------------------------------- what is asked for


BAD: list[tuple[dict[str, Any], str]] = [
    ({"dtypes": "float33"}, "dtypes: .*'float33', or a mapping"),
    ({"dtypes": ["float32"]}, "dtypes: .*, or a mapping from names of columns"),
    ({"dtypes": {1: "float32"}}, "dtypes is a mapping"),
    ({"dtypes": {"id": "float33"}}, r"dtypes: column 'id': .*'float33'"),
    ({"dtypes": {"id": None}}, "got None"),
    ({"dtypes": {"id": [1]}}, r"dtypes: column 'id': .*got \[1\]"),
    ({"null": None}, "null is 'error'"),
    ({"null": {"id": [1]}}, "null is 'error'"),
    ({"null": {1: 0}}, "null maps names"),
    ({"lists": "jagged"}, "lists is 'dense'"),
    ({"strict_zero_copy": 1}, "strict_zero_copy is True or False"),
]


@array_loaders
def test_bad_arguments_are_refused_at_once(name: str) -> None:
    for asked, text in BAD:
        with pytest.raises(af.PlanError, match=rf"{name}: .*{text}"):
            load(af.range(2), name, **asked)
    for asked in ({"dtypes": {"x": "int8"}}, {"null": {"x": 0}}):  # when the columns are known
        with pytest.raises(af.PlanError, match=rf"{name}: .*unknown column 'x'") as caught:
            iter(load(af.range(2), name, **asked))
        assert caught.value.operator == name


@array_loaders
def test_one_dtype_for_all_columns_that_can_have_it(name: str) -> None:
    table = pa.table(
        {
            "i": pa.array([1, None], pa.int16()),
            "d": pa.array([0.5, 1.5]),
            "l": pa.array([[1], [2]], pa.list_(pa.int64(), 1)),
            "raw": pa.array([b"abcd", b"efgh"], pa.binary(4)),
        }
    )
    ds = af.from_arrow(table).batch(2)
    batch = next(iter(load(ds, name, dtypes="float32", null={"i": "nan"})))
    found = {key: str(np.asarray(value).dtype) for key, value in batch.items()}
    assert found == {"i": "float32", "d": "float32", "l": "float32", "raw": "uint8"}
    assert np.isnan(np.asarray(batch["i"])).tolist() == [False, True]
    picked = next(iter(load(ds, name, dtypes="float32", columns=["d"])))
    assert {key: str(np.asarray(value).dtype) for key, value in picked.items()} == {"d": "float32"}
    raw = load(ds.select("raw"), name, dtypes="float32")
    with pytest.raises(af.PlanError, match=r"no column can be float32; columns are raw: fixed_size_binary"):
        iter(raw)


def test_texts_and_dates_keep_their_type_where_all_numbers_get_one() -> None:
    table = pa.table({"n": [1], "s": ["a"], "t": pa.array([3], pa.date32())})
    found = next(iter(af.from_arrow(table).to_numpy(dtypes=np.float16)))
    assert {key: str(value.dtype) for key, value in found.items()} == {
        "n": "float16",
        "s": "object",
        "t": "datetime64[D]",
    }


def test_a_transfer_begins_before_the_batch_in_front_of_it_is_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the user makes of a batch is made when it is delivered."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    put = jax.device_put
    begun: list[Any] = []
    made: list[Any] = []

    def device_put(arrays: Any) -> Any:
        begun.append(arrays)
        return put(arrays)

    monkeypatch.setattr(jax, "device_put", device_put)
    with iter(af.range(8).batch(2).to_jax(collate=made.append)) as batches:
        for step in range(1, 5):
            next(batches)
            assert len(begun) == min(step + 1, 4)
            assert len(made) == step


def test_an_error_that_waits_for_its_batch_does_not_keep_the_iterator() -> None:
    """Its traceback would hold the iterator that holds it, and a loop left by `break` would end with the next `gc`."""
    pytest.importorskip("jax", reason="JAX is not installed")
    batches = iter(af.from_arrow(pa.table({"x": [1, 2, None, 4]})).batch(2).to_jax())
    next(batches)
    kept = weakref.ref(batches)
    gc.disable()
    try:
        del batches
        assert kept() is None
    finally:
        gc.enable()


@all_loaders
def test_an_iterator_does_not_start_over_in_the_middle_of_a_batch(name: str) -> None:
    """What it delivers afterwards would count as the first batch of the other epoch."""

    def collate(batch: Any) -> list[int]:
        with pytest.raises(af.ArrowflowError, match=r"next\(\) is still running"):
            batches.set_epoch(5)
        return delivered(batch)

    batches = iter(load(af.range(4).batch(2), name, collate=collate))
    assert list(batches) == [[0, 1], [2, 3]]


def test_copies_are_told_once_a_batch_has_told_the_columns() -> None:
    loader = af.range(4).map(lambda batch: batch).batch(2).to_numpy()
    with pytest.raises(af.PlanError, match="take one first"):
        loader.explain(copies=True)
    next(iter(loader))
    assert loader.explain(copies=True).startswith("id: int64 -> int64")

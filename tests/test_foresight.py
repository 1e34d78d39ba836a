"""Unknown columns are noticed where a plan is written, if the names of columns are known there; nothing is read."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.plan import foresight
from tests import warm
from tests.ops.tables import ALL_TYPES, OPERATORS, refused

pytestmark = pytest.mark.any_version

Write = Callable[[af.Dataset], Any]
TABLE = pa.table({"price": [1, 2], "tax": [0.5, 0.5]})

WRONG: dict[str, Write] = {
    "select": lambda ds: ds.select("tax", "prise"),
    "with_columns": lambda ds: ds.with_columns(x=pl.col("prise") + 1),
    "filter": lambda ds: ds.filter(pc.field("prise") > 1),
    "drop": lambda ds: ds.drop("prise"),
    "rename": lambda ds: ds.rename({"prise": "x"}),
    "cast": lambda ds: ds.cast({"prise": pa.int8()}),
    "fill_null": lambda ds: ds.fill_null({"prise": 1}),
    "stack": lambda ds: ds.stack(x=["tax", "prise"]),
    "map": lambda ds: ds.map(lambda batch: batch, columns=["prise"]),
    "map_rows": lambda ds: ds.map_rows(lambda row: row, columns=["prise"]),
    "unique": lambda ds: ds.unique("prise"),
    "join": lambda ds: ds.join(pl.DataFrame({"prise": [1]}), "prise"),
    "explode": lambda ds: ds.explode("prise"),
    "take_while": lambda ds: ds.take_while(pl.col("prise") > 1),
    "rejection_resample": lambda ds: ds.rejection_resample("prise", {1: 0.5, 2: 0.5}),
    "group_by_window": lambda ds: ds.group_by_window("prise", 2),
    "bucket_by_sequence_length": lambda ds: ds.bucket_by_sequence_length("prise", [2], [2, 2]),
    "pack_sequences": lambda ds: ds.pack_sequences("prise", 8),
    "padded_batch": lambda ds: ds.padded_batch(2, padding_values={"prise": 0}),
    "to_numpy": lambda ds: ds.to_numpy(dtypes={"prise": "float32"}),
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    return tmp_path


def bound(folder: Path) -> af.Dataset:
    ds = af.read_parquet(folder)
    assert ds.schema.names == ["price", "tax"]
    return ds


@pytest.mark.parametrize("name", WRONG)
def test_each_operator_notices(name: str, files: Path) -> None:
    known = [af.from_arrow(TABLE), bound(files), af.read_parquet(files, schema=TABLE.schema)]
    for ds in known:
        text = f"{name}: unknown column 'prise'; did you mean 'price'?"
        refused(af.PlanError, partial(WRONG[name], ds), text)
    wrong = WRONG[name](af.read_parquet(files))  # nothing is known
    refused(af.PlanError, lambda: next(iter(wrong)), "unknown column 'prise'")


def test_a_function_of_take_while_notices() -> None:
    wrong = partial(af.from_arrow(TABLE).take_while, lambda batch: [True], columns=["prise"])
    refused(af.PlanError, wrong, "take_while: unknown column 'prise'; did you mean 'price'?")


TAKEN: dict[str, Write] = {
    "enumerate": lambda ds: ds.enumerate(name="tax"),
    "batch": lambda ds: ds.batch(2, pad_remainder=True, mask="tax"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_each_operator_notices_a_name_that_is_taken(name: str, files: Path) -> None:
    for ds in (af.from_arrow(TABLE), bound(files)):
        refused(af.PlanError, partial(TAKEN[name], ds), f"{name}: there is a column 'tax' already")


def test_names_go_on_through_operators(files: Path) -> None:
    for ds in (af.from_arrow(TABLE), bound(files)):
        after = (
            ds.filter(pl.col("price") > 0)
            .filter(lambda batch: [True] * batch.num_rows)
            .with_columns(cost=pl.col("price") * 2)
            .rename({"tax": "duty"})
            .enumerate(name="row")
            .stack(both=["price", "cost"])
            .map_rows(lambda row: row, schema=pa.schema({"row": pa.int64(), "duty": pa.float64()}))
            .shuffle(9)
            .repeat(2)
            .batch(2)
        )
        assert after.select("row", "duty").schema.names == ["row", "duty"]
        refused(af.PlanError, partial(after.drop, "tax"), "drop: unknown column 'tax'")
        loader = partial(after.to_numpy, columns=["tax"])
        refused(af.PlanError, loader, "to_numpy: unknown column 'tax'")


def test_what_is_not_known_waits_for_binding() -> None:
    ds = af.from_arrow(TABLE)
    for after in (ds.select(cs.numeric()), ds.map(lambda batch: batch), ds.select(pl.all())):
        wrong = after.filter(pl.col("prise") > 1)
        refused(af.PlanError, partial(list, wrong), "filter: unknown column 'prise'")


def test_files_that_changed_since_are_no_error(files: Path) -> None:
    ds = bound(files)
    pq.write_table(TABLE.append_column("prise", [[3, 4]]), files / "a.parquet")
    assert ds.select("prise").to_table()["prise"].to_pylist() == [3, 4]
    (files / "a.parquet").unlink()
    refused(af.SourceError, lambda: bound_again(ds).to_table(), "read_parquet")


def bound_again(ds: af.Dataset) -> af.Dataset:
    return ds.select("prise2")  # the files are gone, which is told when the plan runs


def test_to_write_a_plan_reads_nothing(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = bound(files)

    def reads(*arguments: object) -> None:
        raise AssertionError("something was bound")

    monkeypatch.setattr(foresight, "bind", reads)
    monkeypatch.setattr("arrowflow.run.bind", reads)
    after = ds.filter(pl.col("price") > 0).with_columns(x=pl.col("tax") * 2).drop("price").batch(2)
    again = pickle.loads(pickle.dumps(after))
    with pytest.raises(AssertionError, match="something was bound"):
        again.select("price")


@pytest.mark.parametrize("name", OPERATORS)
def test_types_that_are_not_known_are_no_fault(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of types waits for binding: it would find a fault in columns without types, and read files to make sure."""
    pq.write_table(ALL_TYPES.select(["row", "text", "list"]), tmp_path / "a.parquet")
    ds = af.read_parquet(tmp_path)
    assert ds.schema.names == ["row", "text", "list"]

    def reads(*arguments: object) -> None:
        raise AssertionError("something was bound")

    monkeypatch.setattr(foresight, "bind", reads)
    OPERATORS[name](ds)


def test_to_write_a_plan_starts_no_threads_of_polars() -> None:
    code = """
        from pathlib import Path
        import arrowflow as af, polars as pl, polars.selectors as cs
        ds = af.range(9).with_columns(x=pl.col("id") * 2).filter(pl.col("x") > 2).stack(y=["id", "x"])
        ds.select(cs.all()).select("y")
        names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
        assert not [name for name in names if name.startswith("polars-") and name[7:].isdigit()], names
    """
    if not Path("/proc/self/task").exists():
        pytest.skip("needs /proc")
    status, _, errors = warm.plain().run(code)
    assert status == 0, errors


def frames_of(error: BaseException) -> Iterator[str]:
    for frame in traceback.extract_tb(error.__traceback__):
        yield frame.name


def test_a_traceback_ends_in_the_call_of_the_user(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="arrowflow"), pytest.raises(af.PlanError) as caught:
        af.from_arrow(TABLE).select("prise")
    assert list(frames_of(caught.value))[1:] == ["select", "__init__"]
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert "check_columns" in caplog.text  # the rest, for those who ask for it
    ds = af.read_parquet(files).select("prise")
    with pytest.raises(af.PlanError) as caught:
        ds.schema  # noqa: B018
    assert list(frames_of(caught.value))[1:] == ["schema", "_ready"]
    (files / "a.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(af.SourceError) as broken:
        af.read_parquet(files).schema  # noqa: B018
    assert list(frames_of(broken.value))[1:] == ["schema", "_ready"]
    assert isinstance(broken.value.__cause__, OSError | pa.ArrowInvalid)  # the cause is kept

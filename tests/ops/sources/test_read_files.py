"""`read_files` and `read_images`: whole files as rows, in any order, beside Python's own reads."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.ops.sources import read_files
from arrowflow.ops.sources.read_files import ReadFiles
from arrowflow.plan.walk import post_order
from arrowflow.storage import File
from arrowflow.testing import check_dataset
from tests.ops.tables import refused

SIZES = [0, 1, 3, 50, 700, 9_000]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of three classes, some of them deeper, in splits of a few files."""
    monkeypatch.setattr(read_files, "SPLIT_FILES", 4)
    monkeypatch.setattr(read_files, "SPLIT_BYTES", 10_000)
    draw = random.Random(0)
    for number in range(40):
        place = tmp_path / "data" / ["dog", "cat", "emu"][number % 3] / ("deep" if number % 5 == 0 else ".")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:02}.jpg").write_bytes(draw.randbytes(draw.choice(SIZES)))
    return tmp_path / "data"


def expected(folder: Path, column: str = "bytes") -> list[dict[str, Any]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        {"path": str(path), column: path.read_bytes(), "label": path.relative_to(folder).parts[0]}
        for path in paths
    ]


def test_rows_are_the_files(folder: Path) -> None:
    found = af.read_images(folder, labels="folder")
    assert found.to_table().to_pylist() == expected(folder, "image")
    assert found.num_rows == 40
    assert found.to_table()["label"].combine_chunks().dictionary.to_pylist() == ["cat", "dog", "emu"]
    plain = af.read_files(folder)
    assert plain.schema == pa.schema({"path": pa.string(), "bytes": pa.binary()})
    assert plain.skip(17).take(9).to_table()["bytes"].to_pylist() == [
        row["bytes"] for row in expected(folder)[17:26]
    ]


def test_a_list_of_labels_sets_their_numbers(folder: Path) -> None:
    names = ["emu", "fox", "dog", "cat"]
    whole = af.read_files(folder, labels=names).select("label")
    part = af.read_files(folder / "*" / "*1*", labels=tuple(names))
    plain = af.read_files(folder, labels="folder").select("label").to_table()["label"].to_pylist()
    assert whole.to_table()["label"].to_pylist() == plain
    assert whole.schema == part.select("label").schema
    batch = next(iter(whole.batch(40).to_numpy()))
    assert batch["label"].tolist() == [names.index(name) for name in plain]
    with iter(whole.batch(8)) as batches:
        next(batches)
        state = batches.state_dict()
    with iter(af.read_files(folder, labels="folder").select("label").batch(8)) as other:
        refused(af.StateError, lambda: other.load_state_dict(state), "labels")


def test_a_cache_keeps_the_numbers_of_its_labels(folder: Path, tmp_path: Path) -> None:
    for names in ("folder", ["dog", "cat", "emu"], ["fox", "emu", "dog", "cat"]):
        ds = af.read_files(folder, labels=names).select("label")
        batch = next(iter(ds.cache(tmp_path / "cache").batch(40).to_numpy()))
        assert batch["label"].tolist() == next(iter(ds.batch(40).to_numpy()))["label"].tolist()
    some = af.read_files(folder, labels={"emu", "dog", "cat"})  # type: ignore[arg-type]
    assert some == af.read_files(folder, labels=["cat", "dog", "emu"]), "a set has no order of its own"


def test_paths_of_an_iterator_are_read_again(folder: Path) -> None:
    for read in (af.read_files, af.list_files):
        ds = read(str(folder / name) for name in ("cat", "dog"))  # type: ignore[arg-type]
        assert repr(ds)
        assert ds.num_rows == ds.select("path").to_table().num_rows > 20


@pytest.mark.parametrize("size", [None, 7, 1_000])
def test_a_shuffle_permutes_single_files(folder: Path, size: int | None) -> None:
    rows = {row["path"]: row for row in expected(folder)}
    shuffled = af.read_files(folder, labels="folder").shuffle(size, seed=1).batch(6)
    orders = []
    for _ in range(2):
        epoch = [row for batch in shuffled for row in batch.to_pylist()]
        assert sorted(row["path"] for row in epoch) == sorted(rows)
        assert all(row == rows[row["path"]] for row in epoch)
        orders.append([row["path"] for row in epoch])
    assert orders[0] != orders[1] != sorted(rows)
    labels = [rows[path]["label"] for path in orders[0][:14]]
    assert len(set(labels)) == 3, "a window of neighbours would have one class"


def test_contracts(folder: Path) -> None:
    for size in (None, 7):
        check_dataset(
            lambda size=size: af.read_files(folder, labels="folder").shuffle(size, seed=1).batch(9),  # type: ignore[misc]
            epochs_differ=True,
        )
    check_dataset(lambda: af.read_images(folder).batch(9))


def test_a_run_can_begin_at_a_row_of_any_epoch(folder: Path) -> None:
    plan = af.read_files(folder).shuffle(4, seed=1)
    source = next(node for node in post_order(plan._ready().optimised) if isinstance(node, ReadFiles))
    assert source.order is not None
    for epoch in range(3):
        own = source.of_epoch(epoch)
        starts = read_files.split_starts(own.files)
        assert [source.position_behind(row, epoch) for row in starts] == [((row,), row) for row in starts]
    assert source.position_behind(9) is None, "each epoch has an order of its own"


def test_ranks_share_the_files(folder: Path) -> None:
    for plan in (
        af.read_files(folder).batch(8),
        af.read_files(folder).shuffle(seed=1).batch(8),
        af.read_files(folder).shuffle(64, seed=1).batch(8),
    ):
        whole = sorted(path for batch in plan for path in batch["path"].to_pylist())
        parts = [batch for rank in range(2) for batch in plan.split_by_rank(rank, 2)]
        assert sorted(path for batch in parts for path in batch["path"].to_pylist()) == whole


def test_columns_that_nobody_reads_open_no_file(folder: Path) -> None:
    for path in folder.rglob("*.jpg"):
        path.chmod(0)
    found = af.read_files(folder, labels="folder").select("path", "label")
    assert found.to_table().to_pylist() == [
        {"path": row, "label": label}
        for row, label in sorted(
            (str(path), path.relative_to(folder).parts[0]) for path in folder.rglob("*.jpg")
        )
    ]
    if os.geteuid():
        refused(af.SourceError, lambda: af.read_files(folder).to_table(), "Permission denied")


def test_files_of_another_store() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe(
        {f"/read_files/{name}/x.jpg": name.encode() * 9 for name in ("a", "b")} | {"/read_files/b/y": b""}
    )
    found = af.read_files("memory://read_files", labels="folder")
    assert found.to_table().to_pylist() == [
        {"path": "memory://read_files/a/x.jpg", "bytes": b"a" * 9, "label": "a"},
        {"path": "memory://read_files/b/x.jpg", "bytes": b"b" * 9, "label": "b"},
        {"path": "memory://read_files/b/y", "bytes": b"", "label": "b"},
    ]
    assert af.read_images("memory://read_files").num_rows == 2
    assert found.shuffle(2, seed=1).to_table().num_rows == 3
    refused(
        af.PlanError, lambda: found.shuffle(seed=1).to_table(), "have to be local; use shuffle", "buffer_size"
    )


def test_files_that_change_are_an_error(folder: Path) -> None:
    changes: list[Callable[[Path], object]] = [Path.unlink, lambda path: path.write_bytes(b"longer" * 9_999)]
    for change in changes:
        found = af.read_files(folder).with_options(af.Options(cpu_budget=1))
        bound = found.num_rows
        assert bound is not None
        with iter(found.batch(1)) as batches:
            last = sorted(folder.rglob("*.jpg"))[-1]
            kept = last.read_bytes()
            change(last)
            refused(af.SourceError, lambda: list(batches), "it was listed", str(last))
        last.write_bytes(kept)


def test_bad_input(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.jpg").write_bytes(b"x")
    cases: list[tuple[Any, type[Exception], str]] = [
        (
            lambda: af.read_files(folder, max_bytes=5_000).schema,
            af.SourceError,
            "9,000 bytes, and max_bytes is 5,000",
        ),
        (lambda: af.read_files(folder, max_bytes="3GiB"), af.PlanError, "max_bytes is at most"),
        *(
            (lambda bad=bad: af.read_files(folder, labels=bad), af.PlanError, "labels is 'folder', a list")
            for bad in ("name", [], ["cat", "cat"], [1], 3, True, ["cat", None])
        ),
        (
            lambda: af.read_images(tmp_path / "flat", labels="folder").schema,
            af.SourceError,
            "lies in no folder below",
        ),
        (lambda: af.read_images(folder / "none").schema, af.SourceError, "none"),
    ]
    refused(
        af.SourceError,
        lambda: af.read_files(folder, labels=["cat", "dogs", "emu"]).schema,
        "the folder 'dog', which labels= does not name; did you mean 'dogs'?",
    )
    (folder / "notes.txt").write_text("no image")
    cases.append((lambda: af.read_files(folder, labels="folder").schema, af.SourceError, "notes.txt"))
    for fails, kind, text in cases:
        refused(kind, fails, text)
    assert af.read_images(folder, labels="folder").num_rows == 40


def test_splits_end_by_files_and_bytes() -> None:
    files = [File(str(n), str(n), size) for n, size in enumerate([5 << 20, 1, 1, 4 << 20, *[0] * 130])]
    starts = read_files.split_starts(files)
    assert starts == [0, 1, 3, 67, 131]
    assert np.diff([*starts, len(files)]).max() <= read_files.SPLIT_FILES

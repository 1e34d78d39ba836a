"""Files that change between two runs, or two questions: a dataset is bound anew, and no healthy file is blamed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.formats.parquet.parquet import ParquetFormat
from arrowflow.storage import File
from tests.ops.sources.files.test_read import DATA, as_bytes


def put(path: Path, rows: int, *, start: int = 0) -> None:
    pq.write_table(pa.table({"x": range(start, start + rows)}), path, row_group_size=7)


CHANGES: dict[str, tuple[Callable[[Path], object], list[int]]] = {
    "replaced": (lambda folder: put(folder / "b.parquet", 5, start=50), [*range(20), *range(50, 55)]),
    "of the same size": (
        lambda folder: put(folder / "b.parquet", 20, start=40),
        [*range(20), *range(40, 60)],
    ),
    "more": (lambda folder: put(folder / "c.parquet", 3), [*range(20), *range(20, 40), *range(3)]),
    "fewer": (lambda folder: (folder / "a.parquet").unlink(), [*range(20, 40)]),
}


@pytest.mark.parametrize(
    ("change", "expected", "named"),
    [(*CHANGES[name], named) for name, named in zip(CHANGES, ["folder", "glob"] * 2, strict=True)],
    ids=CHANGES,
)
def test_a_new_question_is_about_the_files_of_now(
    tmp_path: Path, change: Callable[[Path], object], expected: list[int], named: str
) -> None:
    put(tmp_path / "a.parquet", 20)
    put(tmp_path / "b.parquet", 20, start=20)
    os.utime(tmp_path / "b.parquet", ns=(1, 1))
    ds = af.read_parquet(tmp_path if named == "folder" else tmp_path / "*.parquet")
    above = {"plain": ds, "cached": ds.cache(), "stored": ds.cache(tmp_path / "cache")}
    loader = ds.batch(4).to_numpy()
    for made in above.values():
        assert made.num_rows == 40 and made.to_table()["x"].to_pylist() == list(range(40))
    assert len(loader) == 10 and sum(len(batch["x"]) for batch in loader) == 40
    state = loader.state_dict()
    change(tmp_path)
    assert loader.state_dict() == state  # of the run that there was
    assert len(loader) == -(-len(expected) // 4)
    assert [value for batch in loader for value in batch["x"].tolist()] == expected
    for made in above.values():
        assert made.num_rows == len(expected) and made.to_table()["x"].to_pylist() == expected
        assert [value for batch in made for value in batch["x"].to_pylist()] == expected
    assert af.list_files(tmp_path / "*.parquet").num_rows == len(list(tmp_path.glob("*.parquet")))


def test_other_columns_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    put(path, 3)
    ds = af.read_parquet(path)
    assert ds.schema.names == ["x"]
    pq.write_table(pa.table({"y": ["a"]}), path)
    assert ds.schema.names == ["y"] and ds.num_rows == 1
    path.unlink()
    for asks in (lambda: ds.num_rows, lambda: ds.schema, ds.to_table, lambda: iter(ds)):
        with pytest.raises(af.SourceError, match=r"no such file or directory.*a\.parquet"):
            asks()


def test_what_is_listed_is_listed_anew(tmp_path: Path) -> None:
    ds = af.list_files(tmp_path / "*.txt")
    for count in (1, 2):
        (tmp_path / f"{count}.txt").write_text("")
        assert ds.num_rows == count and ds.to_table().num_rows == count


def test_nothing_is_bound_anew_without_a_change(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", 3)
    ds = af.read_parquet(tmp_path)
    first = ds._ready()
    assert ds.num_rows == 3 and list(ds) and ds._ready() is first


def test_the_footer_that_a_plan_was_bound_by_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = ParquetFormat.footer

    def footer(self: ParquetFormat, store: Any, file: File) -> Any:
        read.append(file.relative)
        return original(self, store, file)

    monkeypatch.setattr(ParquetFormat, "footer", footer)
    for name in "ab":
        put(tmp_path / f"{name}.parquet", 3)
    ds = af.read_parquet(tmp_path)
    for _ in range(2):
        assert sum(batch.num_rows for batch in ds) == 6
    assert read == ["a.parquet", "b.parquet", "b.parquet"]


TEXTS = {"csv": ("x\n" + "1\n" * 9, "x\n1,2\n3"), "json": ('{"x": 1}\n' * 9, '{"x": "a"}\n{')}


@pytest.mark.parametrize("format", ["parquet", "ipc", *TEXTS])
def test_a_file_that_changes_behind_a_run_is_not_called_corrupt(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"a.{format}"
    before, after = (
        (text.encode() for text in TEXTS[format])
        if format in TEXTS
        else (as_bytes(format), as_bytes(format, DATA.slice(0, 2)))
    )
    path.write_bytes(before)
    with iter(getattr(af, f"read_{format}")(path)) as running:
        path.write_bytes(after)
        with pytest.raises(af.SourceError, match=r"has changed since it was listed.*iterate anew"):
            list(running)

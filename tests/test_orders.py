"""The pictures of windows and parts: what is drawn is what comes, and what the docs show is what is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

import arrowflow as af
from examples import orders

pytestmark = pytest.mark.any_version

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"


def test_the_docs_have_the_pictures_as_they_are_drawn() -> None:
    for name, text in orders.pictures():
        assert (IMAGES / name).read_text(encoding="utf-8") == text, "python examples/orders.py docs/images"


def test_what_a_shuffle_reads_is_whole_row_groups_in_the_windows_that_it_delivers(tmp_path: Path) -> None:
    file, read, delivered = orders.windows(orders.file_of(tmp_path))
    groups = [list(range(start, start + 6)) for start in (0, 6, 12, 18)]
    assert sorted(read.rows[start : start + 6] for start in range(0, 24, 6)) == groups
    for start in range(0, 24, 8):
        assert sorted(read.rows[start : start + 8]) == sorted(delivered.rows[start : start + 8])
    assert file.rows != read.rows != delivered.rows


def test_parts_are_rows_of_each_lane_and_whole_is_the_plan(tmp_path: Path) -> None:
    _, in_parts, whole = orders.parts(orders.file_of(tmp_path))
    assert in_parts.rows[:8] == [0, 1, 6, 7, 12, 13, 18, 19]
    assert sorted(in_parts.rows) == whole.rows == af.range(24).to_table()["id"].to_pylist()

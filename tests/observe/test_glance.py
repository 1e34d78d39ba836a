"""A dataset in a notebook, and its plan as a picture: what is shown, and what is not done for it."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.errors import printable

pytestmark = pytest.mark.any_version

SVG = "{http://www.w3.org/2000/svg}"


def boxes(dataset: af.Dataset) -> list[tuple[str, float, float, float]]:
    """Returns the text of each box, its left and right border, and its top."""
    found = []
    for group in ET.fromstring(dataset.diagram()).iter(f"{SVG}g"):
        box, text = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        assert box is not None and text is not None and text.text is not None
        left, width = float(box.attrib["x"]), float(box.attrib["width"])
        found.append((text.text, left, left + width, float(box.attrib["y"])))
    return found


def test_the_boxes_of_a_plan_do_not_overlap_and_lie_in_the_picture() -> None:
    inputs = [af.range(3).rename({"id": "a" * width}).filter(pl.col("a" * width) > 0) for width in (1, 40, 3)]
    dataset = af.zip(*inputs).shuffle(10, seed=1).batch(2)
    drawn = boxes(dataset)
    assert [text.partition("(")[0] for text, *_ in drawn] == [
        *["range", "rename", "filter"] * 3,
        *["zip", "shuffle", "batch"],
    ]
    for top in {box[3] for box in drawn}:
        beside = sorted(box[1:3] for box in drawn if box[3] == top)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(beside))
    width, height = map(float, ET.fromstring(dataset.diagram()).attrib["viewBox"].split()[2:])
    assert all(left >= 0 and right <= width and top + 26 <= height for _, left, right, top in drawn)
    lines = [path.attrib["d"] for path in ET.fromstring(dataset.diagram()).iter(f"{SVG}path")]
    assert len(lines) == len(drawn) - 1, "a tree"


def test_texts_of_a_plan_cannot_become_markup() -> None:
    dataset = af.range(2).rename({"id": "<b>&\x1b"})
    assert "<b>" not in dataset.diagram() and len(boxes(dataset)) == 2
    shown = dataset._repr_html_()
    assert "&lt;b&gt;&amp;" in shown and "\x1b" not in shown and shown.count("<b>") == 1
    assert "&lt;i&gt;" in af.from_arrow(pa.table({"x": ["<i>"]}))._repr_html_()


def test_only_the_first_row_group_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(
        pa.table({"x": range(100, 200)}), path, row_group_size=50, compression="none", use_dictionary=False
    )
    place = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    damaged = bytearray(path.read_bytes())
    damaged[place : place + 100] = b"\xff" * 100
    path.write_bytes(damaged)
    dataset = af.read_parquet(path).with_columns(y=pl.col("x") * 2).batch(80)
    with pytest.raises(af.ArrowflowError):
        dataset.to_table()
    shown = dataset._repr_html_()
    assert [f"<td>{value}</td>" in shown for value in (100, 104, 208, 105, 210)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert "int64" in shown and "<td>" not in af.read_parquet(path).shuffle(10)._repr_html_()


def cells(dataset: af.Dataset) -> list[str]:
    return re.findall("<td>([^<]*)</td>", dataset._repr_html_())


def test_rows_behind_a_filter_are_shown_where_one_row_group_tells_them(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": range(100), "y": [1, 2] * 50}), path, row_group_size=20)
    dataset = af.read_parquet(path)
    numbered = dataset.filter(pl.col("x") >= 45).enumerate().batch(2)
    assert cells(numbered)[:6] == ["0", "45", "2", "1", "46", "1"], "the first two row groups hold no match"
    counted = dataset.enumerate(name="n").filter(pl.col("y") == 2)
    assert cells(counted.select("n")) == ["1", "3", "5", "7", "9"]
    assert cells(dataset.take(30).filter(pl.col("x") >= 15).select("x")) == ["15", "16", "17", "18", "19"]
    assert cells(dataset.filter(pl.col("x") >= 98).select("x")) == ["98", "99"], "all there are"
    assert not cells(dataset.filter(pl.col("x") % 19 == 0)), "other row groups hold more"
    assert not cells(dataset.filter(pl.col("x") > 1_000))
    pq.write_table(pa.table({"x": range(3), "y": [1, 2, 3]}), tmp_path / "z.parquet")
    assert not cells(af.read_parquet(tmp_path).filter(pl.col("x") >= 98)), "the other file may hold more"


def test_no_row_is_shown_where_a_look_would_leave_bad_ones_out(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": range(100)}), path, row_group_size=20)
    assert cells(af.read_parquet(path).filter(pl.col("x") >= 35)) == ["35", "36", "37", "38", "39"]
    for dataset in (
        af.read_parquet(path, on_error="skip"),
        af.read_parquet(path).with_options(af.Options(on_error="skip")),
    ):
        assert not cells(dataset) and not cells(dataset.filter(pl.col("x") >= 35))


def test_a_file_that_is_gone_or_another_since_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": range(10)}), path)
    dataset = af.read_parquet(path).filter(pl.col("x") >= 8)
    assert cells(dataset) == ["8", "9"]
    pq.write_table(pa.table({"y": range(10)}), path)
    assert not cells(dataset)
    path.unlink()
    assert not cells(dataset)


def test_row_groups_without_rows_are_passed_over(tmp_path: Path) -> None:
    table = pa.table({"x": range(20)})
    with pq.ParquetWriter(tmp_path / "x.parquet", table.schema) as writer:
        for rows in (0, 20, 20):
            writer.write_table(table.slice(0, rows))
    shown = cells(af.read_parquet(tmp_path / "x.parquet").filter(pl.col("x") > 2))
    assert shown == ["3", "4", "5", "6", "7"]


def test_of_rows_in_memory_the_first_ones_are_filtered_for_a_look() -> None:
    assert cells(af.range(10**12).filter(pl.col("id") % 7 == 6)) == ["6", "13", "20", "27", "34"]
    assert not cells(af.range(10**12).filter(pl.col("id") < 0))
    assert cells(af.range(50).filter(pl.col("id") > 47)) == ["48", "49"]


def test_no_function_is_called_and_no_other_machine_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("called")

    assert "<td>" not in af.range(10).map(never)._repr_html_()
    monkeypatch.setattr("arrowflow.ops.sources.files.read.resolve", never)
    assert "s3://bucket/x" in af.read_parquet("s3://bucket/x").batch(2)._repr_html_()


def test_a_look_counts_no_epoch_and_wide_tables_are_cut() -> None:
    dataset = af.from_arrow(pa.table({f"c{number}": [number] for number in range(30)})).batch(1)
    assert "and 10 more columns" in dataset._repr_html_()
    assert "rows 1 in 1 batch" in dataset._repr_html_()
    loader = dataset.to_numpy()
    assert loader.state_dict()["epoch"] == 0


def test_a_column_has_its_whole_name_and_type() -> None:
    type = pa.list_(pa.field("element", pa.float32()), 2)
    shown = af.from_arrow(pa.table({"a: b": pa.array([[1.0, 2.0]], type)}))._repr_html_()
    assert f'<th scope="col">a: b<br><small>{escape(str(type))}</small></th>' in shown


def test_a_loader_shows_the_first_lines_of_its_report() -> None:
    def evil(batch: Any) -> Any:
        return batch

    evil.__qualname__ = "<b>\x1b"
    loader = af.range(1_000).map(evil).batch(10).to_numpy()
    for _ in loader:
        pass
    statistics, shown = loader.stats(), loader._repr_html_()
    texts = list(ET.fromstring(shown).itertext())
    assert (
        f"{statistics.rows_per_second:,.0f}" in texts and f"{100 * statistics.waiting_share:.1f} %" in texts
    )
    assert printable(statistics.bottleneck) in texts and "1,000" in texts
    assert [text for text in texts if "rows/s" in text] == [loader.explain()], "the whole report, once"
    assert "<b>\\x1b" in loader.explain() and "&lt;b&gt;\\x1b" in shown

"""The report as a page: its numbers are those of `stats()`, its texts are escaped, and a browser shows it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import arrowflow as af
from arrowflow.autotune.limit import forecast
from arrowflow.delivery import MAX_MOMENTS, Progress
from arrowflow.observe.charts import over_time
from arrowflow.physical.tuning import Moment

pytestmark = pytest.mark.any_version


class Page(HTMLParser):
    """What a page holds.

    Attributes:
        figures: The values of `data` elements, by class.
        cells: The texts of cells, by line.
        links: All that a browser would fetch.
        open: The elements that are open.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.figures: dict[str, set[float]] = {}
        self.cells: list[list[str]] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.add(tag)
        self.links += [value for key, value in known.items() if key in {"href", "src"} and value]
        if tag == "data":
            self.figures.setdefault(str(known["class"]), set()).add(float(str(known["value"])))
        if tag == "tr":
            self.cells.append([])
        if tag in {"td", "th"}:
            self.cells[-1].append("")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.cells[-1][-1] += data


def loader_of(rows: int) -> Any:
    def half(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["id"] / 2}

    return af.range(rows).filter(pl.col("id") >= 0).map(half, format="numpy").batch(100).to_numpy()


def test_its_numbers_are_those_of_the_statistics(tmp_path: Path) -> None:
    loader = loader_of(2_000)
    with loader.trace(tmp_path / "trace.json"):
        for _ in loader:
            pass
    loader.report(tmp_path / "run.html", trace=tmp_path / "trace.json")
    statistics, page = loader.stats(), Page(tmp_path / "run.html")
    assert page.figures == {name: {value} for name, value in statistics.metrics().items()}
    assert page.figures["rows"] == {2_000.0}
    rows = {line[0]: line[1] for line in page.cells if line}
    rate = f"{2_000 / statistics.seconds:,.0f}"
    assert rows["batch(100)"] == rate
    assert rows["map(loader_of.half)"].startswith("at most "), "the reason"
    assert rows["pyarrow"] and rows["Python"]
    assert (
        rows[f"{2 * statistics.cpu_budget}"]
        == f"{forecast(statistics, 2 * statistics.cpu_budget).rows_per_second:,.0f}"
    )
    assert page.links == [] and "script" not in page.tags
    assert (tmp_path / "run.html").stat().st_size < 2 << 20


def test_an_iterator_has_one_too_also_before_its_first_batch(tmp_path: Path) -> None:
    with iter(af.range(10).batch(4)) as batches:
        batches.report(tmp_path / "run.html")
        assert Page(tmp_path / "run.html").figures["rows"] == {0.0}
        next(batches)
        batches.report(tmp_path / "run.html")
    assert Page(tmp_path / "run.html").figures["rows"] == {4.0}


def test_texts_cannot_become_markup(tmp_path: Path) -> None:
    def evil(batch: Any) -> Any:
        return batch

    evil.__qualname__ = "<script>alert(1)</script>\x1b[31m"
    loader = af.range(1_000).map(evil).batch(10).to_numpy()
    trace = {"traceEvents": [{"ph": "X", "name": '"><script src="x">', "ts": 0, "dur": 9}]}
    assert sum(1 for _ in loader) == 100
    loader.report(tmp_path / "run.html", trace=trace)
    page = Page(tmp_path / "run.html")
    assert "script" not in page.tags and page.links == []
    assert any("alert(1)" in cell for line in page.cells for cell in line)
    assert "\x1b" not in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    loader = loader_of(100)
    assert sum(1 for _ in loader) == 1
    path = tmp_path / "run.html"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(af.SourceError, match=r"report.*expected a trace"):
        loader.report(path, trace={})
    assert path.read_text(encoding="utf-8") == "old"
    with pytest.raises(af.SourceError, match=r"report: there is no folder .* for the report; make it first"):
        loader.report(tmp_path / "none" / "run.html")
    with pytest.raises(af.SourceError, match="it is a folder; name a file in it"):
        loader.report(tmp_path)
    with pytest.raises(af.PlanError, match="report: the path of the report is a text or a Path, got 5"):
        loader.report(5)
    assert [each.name for each in tmp_path.iterdir()] == ["run.html"]


def test_the_history_is_bounded_and_loses_no_row() -> None:
    progress = Progress(0)
    for step in range(100_000):
        now = 7.0 + step / 100
        if now >= progress.due:
            progress.note(now, step)
        progress.measure(now, now + 0.004)
        progress.rows += 3
    history = progress.history(5)
    assert MAX_MOMENTS / 2 < len(history) <= MAX_MOMENTS + 1
    assert history[0] == Moment(0.0, 0, 0.0, 0)
    assert history[-1].rows == 300_000 and history[-1].ledger_bytes == 5
    assert history[-1].waited_seconds == pytest.approx(400.0)
    gaps = [after.seconds - before.seconds for before, after in itertools.pairwise(history[:-1])]
    assert max(gaps) < 2.1 * min(gaps)
    throughput, waiting, _ = over_time(history)
    assert throughput.values == pytest.approx([300.0] * len(throughput.values), rel=0.01)
    assert waiting.values == pytest.approx([40.0] * len(waiting.values), rel=0.01)


@pytest.fixture
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="a browser needs playwright")
    path = os.environ.get("ARROWFLOW_CHROMIUM")
    if path is None:
        pytest.skip("ARROWFLOW_CHROMIUM names no browser")
    arguments = ["--no-sandbox", "--headless=new", "--disable-gpu", "--single-process", "--no-zygote"]
    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.mark.slow
def test_a_browser_shows_it(tmp_path: Path, chromium: Any) -> None:
    loader = loader_of(100_000)
    with loader.trace(tmp_path / "trace.json"):
        for _ in loader:
            pass
    loader.report(tmp_path / "run.html", trace=tmp_path / "trace.json")
    said: list[str] = []
    page = chromium.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto((tmp_path / "run.html").as_uri())
    assert said == [(tmp_path / "run.html").as_uri()], "nothing else is fetched, and nothing goes wrong"
    assert page.inner_text("dd data.rows") == "100,000"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "a phone need not scroll sideways"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 25)"
    assert page.locator("svg").count() >= 5
    assert page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") < 1_000

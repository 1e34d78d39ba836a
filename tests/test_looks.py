"""What a user looks at while a pipeline runs: `stats`, `explain`, `trace` and the progress bar."""

from __future__ import annotations

import gc
import html
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.autotune import Policy

pytestmark = pytest.mark.any_version


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def spans(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the spans of a trace by name."""
    found = defaultdict(list)
    for event in events(path):
        if event["ph"] == "X":
            found[event["name"]].append(event)
    return found


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(3):
        table = pa.table({"x": range(number * 1000, (number + 1) * 1000)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=250)
    return folder


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def pipeline(files: Path) -> af.Dataset:
    return af.read_parquet(files).with_columns(y=pl.col("x") * 2).map(same).shuffle(500, seed=1).batch(100)


def test_a_trace_has_every_step_of_every_epoch(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    loader = pipeline(files).to_numpy()
    with loader.trace(path) as recording:
        for _ in range(2):
            assert sum(len(batch["x"]) for batch in loader) == 3000
        assert not path.exists(), "written as a whole, when the block is left"
    assert recording.path == path
    found = spans(path)
    assert {"open", "decode", "with_columns", "map(same)", "shuffle(500)", "wait", "export", "step"} <= set(
        found
    )
    assert len(found["open"]) >= 2 * 3
    assert len(found["decode"]) >= 2 * 12
    assert len(found["export"]) == 2 * 30
    assert len(found["step"]) == 2 * 30, "one after each batch"
    assert len(found["wait"]) == 2 * 31, "one before each batch, and one for the end"
    assert [event["args"]["epoch"] for event in events(path) if event["ph"] == "i"] == [0, 1]
    tracks = {event["args"]["name"] for event in events(path) if event["name"] == "thread_name"}
    assert "consumer" in tracks and len(tracks) > 1


def test_a_trace_without_a_block_is_written_when_the_epoch_ends(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    batches = iter(af.range(10).batch(4))
    batches.trace(path)
    assert len(list(batches)) == 3
    assert len(spans(path)["step"]) == 3


def test_a_trace_may_begin_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with iter(af.range(100).map(same).batch(4)) as batches:
        for _ in range(3):
            next(batches)
        with batches.trace(path):
            for _ in range(5):
                next(batches)
    found = spans(path)
    assert len(found["wait"]) == len(found["export"]) == 5


def test_a_generator_is_opened_and_then_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    loader = af.from_generator(lambda: iter([{"x": [1]}, {"x": [2]}]), elements="batches").to_numpy()
    with loader.trace(path):
        assert len(list(loader)) == 2
    found = spans(path)
    assert len(found["open"]) == 1
    assert len(found["read"]) == 3, "two elements and the end"


def test_a_trace_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    loader = af.range(3).to_numpy()
    with pytest.raises(af.SourceError, match="make it first"), loader.trace(tmp_path / "none" / "trace.json"):
        list(loader)


def test_without_a_trace_nothing_is_recorded() -> None:
    batches = iter(af.range(10))
    next(batches)
    assert batches._engine is not None and batches._engine.timeline is None
    batches.close()


def test_a_trace_is_drawn(files: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs the extra `plot`")
    path = tmp_path / "trace.json"
    loader = pipeline(files).to_numpy()
    with loader.trace(path):
        list(loader)
    figure = af.plot_timeline(path)
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert {"Open", "Decode"} <= set(rows)


# ---------------------------------------------------------------- explain and stats


def test_explain_of_a_run_names_stages_values_and_the_bottleneck(files: Path) -> None:
    loader = pipeline(files).with_options(af.Options(cpu_budget=2)).to_numpy()
    assert loader.explain().splitlines()[0] == "nothing was measured yet"
    list(loader)
    verdict, figures, *lines = loader.explain(verbose=True).splitlines()
    assert "limits you" in verdict
    assert figures.startswith("3,000 rows · ") and " of 2 cores · " in figures
    first = next(line for line in lines if line[:1].isdigit())
    assert first.startswith("1. opening files for read_parquet: ")
    assert any(
        line.split(". ", 1)[-1].startswith("decoding Parquet with with_columns: 3,000 rows") for line in lines
    )
    assert any("it computes, so the CPU budget is the limit" in line for line in lines)
    table = loader.explain()
    assert table.splitlines()[:2] == [verdict, figures]
    assert "\nread_parquet + with_columns " in table and table.count("read_parquet") == 1
    assert str(loader.stats()) == repr(loader.stats()) == table
    assert loader.stats()._repr_html_() == f"<pre>{html.escape(table)}</pre>"


def test_explain_of_an_iterator(files: Path) -> None:
    with iter(pipeline(files)) as batches:
        next(batches)
        assert "decoding Parquet" in batches.explain(verbose=True)
        assert batches.stats().bottleneck == batches.explain().splitlines()[0]


def test_given_numbers_are_shown_as_given(files: Path) -> None:
    loader = af.read_parquet(files, num_parallel_calls=1).map(same, num_parallel_calls=3).to_numpy()
    list(loader)
    text = loader.explain(verbose=True)
    assert "at most 1 call, as asked" in text
    assert "at most 3 calls, as asked" in text


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([batch, batch])


def odd(batch: pa.RecordBatch) -> Any:
    return batch["id"].to_numpy() % 2 == 1


def test_functions_tell_operators_of_one_name_apart(tmp_path: Path) -> None:
    ds = af.range(8).map(same).map(twice).filter(odd).map(same)
    expected = ["map(same)", "map(twice)", "filter(odd)", "map(same) #2"]
    assert [title for title in expected if f" {title} [" not in ds.explain()] == []
    loader = ds.batch(4).to_numpy()
    with loader.trace(tmp_path / "trace.json"):
        list(loader)
    assert set(expected) <= set(spans(tmp_path / "trace.json"))
    shown = [name for stage in reversed(loader.stats().stages) for name in stage.operators]
    assert [name for name in dict.fromkeys(shown) if "(" in name] == [*expected, "batch(4)"]
    assert [name for name in expected if f". {name}: " not in loader.explain(verbose=True)] == []


def test_errors_name_the_operator_alone() -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("gone")

    with pytest.raises(af.FunctionError) as caught:
        list(af.range(3).map(same).map(broken))
    assert caught.value.operator == "map"


def test_explain_of_copies_is_one_line_a_column(files: Path) -> None:
    loader = af.read_parquet(files).with_options(af.Options(keep=False)).to_numpy()
    assert (
        loader.explain(copies=True)
        == "x: int64 -> int64: zero-copy, writable unless a second column has the buffer"
    )


def test_what_a_run_found_is_there_for_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Policy, "period_seconds", math.inf
    )  # however long it takes, no step changes the reason

    def rows() -> Any:
        for number in range(5):
            yield {"x": number}

    dataset = af.from_generator(rows).map(same)
    list(dataset.to_numpy())
    loader = dataset.to_numpy()
    list(loader)
    source = loader.stats().stages[-1]
    assert source.operators == ("from_generator(test_what_a_run_found_is_there_for_the_next_epoch.rows)",)
    reasons = [stage.limits.reason for stage in loader.stats().stages if stage.operators == source.operators]
    assert "of a call is CPU time" in reasons[-1]


# ---------------------------------------------------------------- the progress bar


class Bar:
    """Takes the place of a progress bar."""

    made: list[Bar]

    def __init__(self, total_rows: int | None, epoch: int) -> None:
        self.total, self.epoch = total_rows, epoch
        self.updates: list[tuple[Any, ...]] = []
        self.closed = 0
        self.made.append(self)

    def update(self, *figures: Any) -> None:
        self.updates.append(figures)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Bar]:
    Bar.made = []
    monkeypatch.setattr("arrowflow.iterator.ProgressBar", Bar)
    return Bar.made


def test_a_progress_bar_is_told_of_every_batch(bars: list[Bar]) -> None:
    loader = af.range(10).batch(4).with_options(af.Options(progress=True)).to_numpy()
    for _ in range(2):
        list(loader)
    assert [(bar.total, bar.epoch, bar.closed) for bar in bars] == [(10, 0, 1), (10, 1, 1)]
    for bar in bars:
        assert [update[0] for update in bar.updates] == [4, 8, 10]


def test_a_progress_bar_is_closed_with_the_run(bars: list[Bar]) -> None:
    batches = iter(af.range(10).map(same).batch(2).with_options(af.Options(progress=True)))
    next(batches)
    batches.close()
    assert [bar.closed for bar in bars] == [1]


def test_a_progress_bar_is_closed_when_the_loop_is_left(bars: list[Bar]) -> None:
    for _ in af.range(10).map(same).batch(2).with_options(af.Options(progress=True)).to_numpy():
        break
    gc.collect()
    assert [bar.closed for bar in bars] == [1]


def test_no_progress_bar_unless_asked_for(bars: list[Bar]) -> None:
    list(af.range(10))
    assert bars == []


# ---------------------------------------------------------------- in a shell and in a notebook


def test_datasets_loaders_and_iterators_say_what_they_are() -> None:
    dataset = af.range(40).batch(10)
    loader = dataset.to_numpy()
    assert repr(loader) == "<Loader of to_numpy: epoch 0 comes next>"
    assert loader._repr_html_() == "<div><code>&lt;Loader of to_numpy: epoch 0 comes next&gt;</code></div>"
    batches = iter(loader)
    next(batches)
    assert repr(batches) == "<Iterator of epoch 0: 1 delivered, goes on>"
    assert repr(loader) == f"<Loader of to_numpy: epoch 0 comes next, latest: {batches!r}>"
    assert html.escape(loader.explain()) in loader._repr_html_()
    list(batches)
    assert repr(batches) == "<Iterator of epoch 0, which has ended>"
    assert repr(loader) == f"<Loader of to_numpy: epoch 1 comes next, latest: {batches!r}>"
    with iter(loader) as closed:
        pass
    assert repr(closed) == "<Iterator of epoch 1: 0 delivered, closed>"
    failing = iter(dataset.map(lambda batch: 1 / 0))
    with pytest.raises(af.FunctionError):
        next(failing)
    assert repr(failing) == "<Iterator of epoch 0: 0 delivered, ended by FunctionError>"


def test_a_rule_that_leaves_nothing_out_is_not_told() -> None:
    for rows in (af.from_arrow(pa.table({"x": [1, 2, 3]})), af.range(3)):
        assert "rules: none applied" in rows.shuffle(seed=1).explain()

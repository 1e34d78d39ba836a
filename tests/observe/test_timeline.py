"""What is recorded and what the file holds; then the picture: rows, lanes, epochs, and what is no trace."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrowflow.errors import ArrowflowError, MissingPackageError, SourceError
from arrowflow.observe.plot import plot_timeline
from arrowflow.observe.timeline import Timeline

pytestmark = pytest.mark.any_version

START = 1_000.0


def written(timeline: Timeline, folder: Path) -> dict[str, Any]:
    path = folder / "trace.json"
    timeline.write(path)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    return loaded


def events(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def tracks(trace: dict[str, Any]) -> list[str]:
    named = [event for event in events(trace, "M") if event["name"] == "thread_name"]
    return [event["args"]["name"] for event in sorted(named, key=lambda event: event["tid"])]


# ---------------------------------------------------------------- recording


def test_times_are_microseconds_from_the_earliest_event(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.span("w-1", "map", START + 0.5, START + 0.75, "map", rows=7)
    timeline.span("w-0", "read", START + 0.25, START + 0.5, "read_parquet")
    timeline.counter("ledger_bytes", START + 0.6, 12)
    timeline.epoch(3, START)
    trace = written(timeline, tmp_path)
    assert trace["displayTimeUnit"] == "ms"
    assert trace["otherData"] == {"max_events": 1_000_000, "dropped_events": 0}
    assert events(trace, "X") == [
        {"ph": "X", "name": "read", "pid": 1, "ts": 250_000.0, "tid": 1, "cat": "read_parquet", "dur": 250_000.0, "args": {}},
        {"ph": "X", "name": "map", "pid": 1, "ts": 500_000.0, "tid": 2, "cat": "map", "dur": 250_000.0, "args": {"rows": 7}},
    ]  # fmt: skip
    assert events(trace, "C") == [
        {"ph": "C", "name": "ledger_bytes", "pid": 1, "ts": 600_000.0, "args": {"value": 12}}
    ]
    assert events(trace, "i") == [
        {"ph": "i", "name": "epoch 3", "pid": 1, "ts": 0.0, "s": "g", "args": {"epoch": 3}}
    ]


def test_the_consumer_comes_first_and_workers_in_order_of_their_numbers(tmp_path: Path) -> None:
    timeline = Timeline()
    names = ["arrowflow-10", "arrowflow-9", "arrowflow-1-io", "consumer", "arrowflow-1", "7"]
    for place, name in enumerate(names):
        timeline.span(name, "read", START + place, START + place + 1)
    trace = written(timeline, tmp_path)
    assert tracks(trace) == ["consumer", "7", "arrowflow-1", "arrowflow-1-io", "arrowflow-9", "arrowflow-10"]
    sort_indexes = [event for event in events(trace, "M") if event["name"] == "thread_sort_index"]
    assert [event["args"]["sort_index"] for event in sort_indexes] == [1, 2, 3, 4, 5, 6]


def test_a_span_comes_before_what_it_encloses_and_ends_no_earlier(tmp_path: Path) -> None:
    timeline = Timeline()
    ended = START + 0.1 + 1e-7 / 3
    timeline.span("consumer", "export", START + 1e-7 / 7, ended)
    timeline.span("consumer", "export", START, START + 1e-9)
    timeline.span("consumer", "wait", START, ended)
    outer, *inner = events(written(timeline, tmp_path), "X")
    assert outer["name"] == "wait"
    assert all(one["ts"] + one["dur"] <= outer["ts"] + outer["dur"] for one in inner)


def test_a_clock_that_goes_back_makes_no_negative_duration(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.span("w", "read", START, START - 1)
    assert [event["dur"] for event in events(written(timeline, tmp_path), "X")] == [0.0]


def test_counters_leave_out_what_does_not_change_and_what_is_no_number(tmp_path: Path) -> None:
    timeline = Timeline()
    for place, value in enumerate([1, 1.0, 2, float("nan"), float("inf"), 2, 1]):
        timeline.counter("queue", START + place, value)
    timeline.counter("other", START, 1)
    counters = events(written(timeline, tmp_path), "C")
    assert [(one["ts"], one["args"]["value"]) for one in counters if one["name"] == "queue"] == [
        (0.0, 1),
        (2e6, 2),
        (6e6, 1),
    ]
    assert len([one for one in counters if one["name"] == "other"]) == 1


def test_arguments_that_json_does_not_know_become_text(tmp_path: Path) -> None:
    timeline = Timeline()
    arguments: dict[str, Any] = {"nan": float("nan"), "split": (1, 2), "path": Path("a"), "rows": np.int64(3)}
    timeline.span("w", "read", START, START, **arguments, text='"\n\udcff', share=0.5, none=None, hit=True)
    (event,) = events(written(timeline, tmp_path), "X")
    assert event["args"] == {
        "nan": "nan",
        "split": "(1, 2)",
        "path": "a",
        "rows": "3",
        "text": '"\n\udcff',
        "share": 0.5,
        "none": None,
        "hit": True,
    }


def test_events_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    timeline = Timeline(max_events=3)
    timeline.epoch(0, START)
    for place in range(10):
        timeline.span("w", "read", START + place, START + place + 1)
        timeline.counter("queue", START, place)
    for _ in range(2):  # looking does not count
        trace = written(timeline, tmp_path)
        assert [len(events(trace, phase)) for phase in "XCi"] == [1, 1, 1]
        assert trace["otherData"] == {"max_events": 3, "dropped_events": 18}


def test_threads_record_at_once_and_lose_nothing(tmp_path: Path) -> None:
    timeline = Timeline(max_events=300)
    together = threading.Barrier(4)

    def record(track: str) -> None:
        together.wait()
        for place in range(100):
            timeline.span(track, "read", START + place, START + place + 1)

    threads = [threading.Thread(target=record, args=[f"w-{number}"]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = written(timeline, tmp_path)
    kept = len(events(trace, "X"))
    assert 300 <= kept <= 303
    assert kept + trace["otherData"]["dropped_events"] == 400


def test_nothing_recorded_is_a_file_without_events(tmp_path: Path) -> None:
    assert [event["ph"] for event in written(Timeline(), tmp_path)["traceEvents"]] == ["M"]


def test_a_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.span("w", "read", START, START + 1)
    written(timeline, tmp_path)
    timeline.span("w", "read", START + 1, START + 2)
    timeline.write(os.fspath(tmp_path / "trace.json"))
    assert len(events(json.loads((tmp_path / "trace.json").read_bytes()), "X")) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_a_write_that_fails_leaves_the_file_of_before(tmp_path: Path) -> None:
    class Unshowable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    path = tmp_path / "trace.json"
    path.write_text("before")
    timeline = Timeline()
    timeline.span("w", "read", START, START + 1, broken=Unshowable())
    with pytest.raises(RuntimeError, match="no text"):
        timeline.write(path)
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/trace.json", r"no folder '.*missing' for the trace; make it first"),
        (".", "cannot be written to '.*': "),
        ("x" * 300, "cannot be written to '.*': .*too long"),
    ],
)
def test_places_that_cannot_be_written_to(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        Timeline().write(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- the picture

Span = tuple[str, str, float, float]


drawn = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="Matplotlib is not installed"
)


def trace_of(spans: Iterable[Span], epochs: Iterable[float] = (), dropped: int = 0) -> dict[str, Any]:
    made: list[dict[str, Any]] = [
        {"ph": "X", "name": name, "pid": 1, "tid": track, "ts": began * 1e6, "dur": (ended - began) * 1e6}
        for track, name, began, ended in spans
    ]
    made += [{"ph": "i", "ts": at * 1e6, "args": {"epoch": number}} for number, at in enumerate(epochs)]
    return {"traceEvents": made, "otherData": {"dropped_events": dropped}}


def titles(figure: Any) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def bars(figure: Any, title: str) -> list[tuple[float, float, float, float]]:
    """Returns (top, bottom, began, ended) of each bar of a row."""
    drawn = [one for one in figure.axes[0].collections if one.get_gid() == title]
    boxes = [path.get_extents() for collection in drawn for path in collection.get_paths()]
    return [(round(box.y0, 6), round(box.y1, 6), round(box.x0, 6), round(box.x1, 6)) for box in boxes]


def guide() -> Timeline:
    """Returns what the guide to the performance of tf.data draws: nothing overlaps."""
    timeline, now = Timeline(), START
    for epoch in range(2):
        timeline.epoch(epoch, now)
        asked = now
        timeline.span("w-0", "open", now, now := now + 0.03, "read_parquet")
        for _ in range(3):
            timeline.span("w-0", "read", now, now := now + 0.015, "read_parquet")
            timeline.span("w-0", "map", now, now := now + 0.03, "map")
            timeline.span("w-0", "batch", now, now := now + 0.00001, "batch")
            timeline.span("consumer", "wait", asked, now)
            timeline.span("consumer", "step", now, asked := now + 0.01)
            now = asked
    return timeline


@drawn
def test_the_picture_of_the_guide(tmp_path: Path) -> None:
    figure = plot_timeline(written(guide(), tmp_path))
    (ax,) = figure.axes
    assert titles(figure) == ["Open", "Read", "map", "Train"]
    assert [len(bars(figure, title)) for title in [*titles(figure), "Wait"]] == [2, 6, 6, 6, 6]
    assert bars(figure, "Open")[0][2:] == (0.0, 30.0)
    assert bars(figure, "Read")[1][2:] == (85.01, 100.01)
    # 6 calls of `map` with 30 ms each in 390 ms; reading takes half of that.
    limit = "map limits, with 0.5 calls at a time"
    assert ax.get_title(loc="left") == f"390.1 ms in total, 85 % of it in next(): {limit}"
    assert ax.get_xlabel() == "time in ms\nunder 2 % of the time each: batch"
    assert [text.get_text() for text in ax.texts] == ["epoch 0", "epoch 1"]
    bands = {patch.get_gid(): patch.get_extents() for patch in ax.patches}
    data = ax.transData.inverted()
    edges = {name: data.transform(box)[:, 0].round(6).tolist() for name, box in bands.items()}
    assert edges == {"epoch 0": [0.0, 195.03], "epoch 1": [195.03, 390.06]}
    assert len({patch.get_facecolor() for patch in ax.patches}) == 2
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["in next()"]


@drawn
def test_a_file_is_drawn_like_what_it_holds(tmp_path: Path) -> None:
    guide().write(tmp_path / "trace.json")
    for path, image in ((str(tmp_path / "trace.json"), "trace.png"), (tmp_path / "trace.json", "trace.svg")):
        figure = plot_timeline(path)
        figure.savefig(tmp_path / image)
        assert titles(figure) == ["Open", "Read", "map", "Train"]


@drawn
def test_parallel_calls_lie_in_lanes(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.span("w-0", "map", START + 0.0, START + 2.0)
    timeline.span("w-1", "map", START + 1.0, START + 3.0)
    timeline.span("w-2", "map", START + 1.5, START + 1.75)
    timeline.span("w-0", "map", START + 2.0, START + 4.0)
    figure = plot_timeline(written(timeline, tmp_path))
    lanes: dict[tuple[float, float], list[tuple[float, float]]] = {}
    for top, bottom, began, ended in bars(figure, "map"):
        lanes.setdefault((top, bottom), []).append((began, ended))
    assert list(lanes.values()) == [[(0.0, 2.0), (2.0, 4.0)], [(1.0, 3.0)], [(1.5, 1.75)]]
    (first, second, third) = lanes
    assert (first[1], second[1]) == (second[0], third[0])
    assert figure.axes[0].get_xlabel() == "time in s"


@drawn
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 99)), min_size=1, max_size=40))
def test_lanes_hold_every_call_once_and_are_no_more_than_needed(times: list[tuple[int, int]]) -> None:
    # Two pixels at least, so that none are merged.
    spans = [(2.0 * began, 2.0 * (began + took)) for began, took in times]
    calls = [("w", "step", began, ended) for began, ended in spans]
    drawn = bars(plot_timeline(trace_of([*calls, ("w", "read", 0.0, 1_000.0)])), "Train")
    assert sorted((began, ended) for *_, began, ended in drawn) == sorted(spans)
    for place, (top, _, began, ended) in enumerate(drawn):
        others = [(left, right) for lane, _, left, right in drawn[:place] if lane == top]
        assert all(ended <= left or right <= began for left, right in others)
    most = max(sum(began <= moment < ended for began, ended in spans) for moment, _ in spans)
    assert len({top for top, *_ in drawn}) == most


@drawn
def test_rows_are_in_the_order_of_the_pipeline_however_they_started() -> None:
    names = ["wait", "step", "export", "shuffle", "filter+with_columns", "decode", "read", "open"]
    spans = [("w", name, float(place), place + 1.0) for place, name in enumerate(names)]
    figure = plot_timeline(trace_of(spans))
    assert titles(figure) == ["Open", "Read", "Decode", "shuffle", "filter+with_columns", "Export", "Train"]
    tops = [bars(figure, title)[0][0] for title in titles(figure)]
    assert tops == sorted(tops)
    bottom, top = figure.axes[0].get_ylim()
    assert bottom > top, "the first row is on top"


@drawn
def test_short_steps_are_left_out_but_never_the_training() -> None:
    short = ["open", "read", "decode", "map", "export", "step"]
    figure = plot_timeline(trace_of([*[("w", name, 0.0, 0.004) for name in short], ("w", "batch", 0.0, 1.0)]))
    assert titles(figure) == ["batch", "Train"]
    assert "under 2 % of the time each: Open, Read, Decode, map, Export" in figure.axes[0].get_xlabel()


@drawn
def test_a_consumer_that_only_waited_has_its_row() -> None:
    figure = plot_timeline(trace_of([("consumer", "wait", 0.0, 0.5)]))
    assert titles(figure) == ["Train"]
    assert figure.axes[0].get_title(loc="left") == "500.0 ms in total, 100 % of it in next()"


@drawn
def test_a_loop_that_waits_for_its_first_batch_alone_limits_itself() -> None:
    spans = [("w", "read", 0.0, 0.5), ("consumer", "wait", 0.0, 0.5), ("consumer", "step", 0.5, 0.7)]
    figure = plot_timeline(
        trace_of([*spans, ("consumer", "wait", 0.7, 0.71), ("consumer", "step", 0.71, 1.0)])
    )
    title = "1.0 s in total, 51 % of it in next(): your own step limits"
    assert figure.axes[0].get_title(loc="left") == title


@drawn
def test_no_training_loop_no_row() -> None:
    figure = plot_timeline(trace_of([("w", "read", 0.0, 1.0)], dropped=1_234))
    assert titles(figure) == ["Read"]
    assert figure.axes[0].get_title(loc="left") == "1.0 s in total"
    assert figure.axes[0].get_xlabel() == "time in s\n1,234 later events were not kept"


@drawn
def test_many_calls_become_as_many_bars_as_there_are_pixels() -> None:
    spans = [("w", "map", place * 1e-3, place * 1e-3 + 5e-4) for place in range(10_000)]
    figure = plot_timeline(trace_of(spans))
    width = figure.axes[0].bbox.width
    drawn = bars(figure, "map")
    assert width / 2 < len(drawn) < 2 * width
    assert all(ended <= following for (*_, ended), (_, _, following, _) in itertools.pairwise(drawn))
    (collection,) = figure.axes[0].collections
    opacities = np.asarray(collection.get_facecolor())[:, 3]
    assert 0.6 < opacities.min() <= opacities.max() < 0.7, "half of the time is idle"


@drawn
def test_a_call_under_a_pixel_is_seen() -> None:
    figure = plot_timeline(trace_of([("w", "step", 1.0, 1.0), ("w", "read", 0.0, 1_000.0)]))
    ((_, _, began, ended),) = bars(figure, "Train")
    assert ended - began == pytest.approx(1_000.0 / figure.axes[0].bbox.width, abs=1e-5)


@drawn
def test_many_epochs_keep_labels_that_have_room() -> None:
    epochs = [0.0, 10.0, 14.0, 14.5, 15.0]
    figure = plot_timeline(trace_of([("w", "read", 0.0, 100.0)], epochs))
    assert [text.get_text() for text in figure.axes[0].texts] == ["epoch 0", "1", "", "", "epoch 4"]


@drawn
def test_axes_of_the_callers_are_drawn_into_and_pyplot_is_never_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matplotlib = pytest.importorskip("matplotlib.figure", reason="Matplotlib is not installed")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    own = matplotlib.Figure()
    upper, lower = own.subplots(2)
    assert plot_timeline(trace_of([("w", "read", 0.0, 1.0)]), ax=lower) is own
    assert (len(upper.collections), len(lower.collections)) == (0, 1)
    assert plot_timeline(trace_of([("w", "read", 0.0, 1.0)])) is not own


@drawn
def test_traces_of_other_programs_are_drawn_as_far_as_they_are_understood() -> None:
    events = [
        *["no event", {"ph": "X", "name": "no time"}, {"ph": "X", "ts": 0, "dur": 1}, {"ph": "i", "ts": 5}],
        *[{"ph": "i", "ts": 5, "args": {"epoch": "one"}}, {"ph": "B", "name": "read", "ts": 0}],
        {"ph": "X", "name": "read", "ts": 10, "dur": 20, "args": None},
    ]
    figure = plot_timeline({"traceEvents": events, "otherData": None})
    assert titles(figure) == ["Read"]
    assert [text.get_text() for text in figure.axes[0].texts] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected a trace as Timeline.write makes it: JSON, found something else"),
        ("{'a': 1}", "JSON, found something else"),
        ("\udcff", "JSON, found something else"),
        ("[]", "a JSON object with a list 'traceEvents', found none"),
        ('{"events": []}', "a JSON object with a list 'traceEvents', found none"),
        ('{"traceEvents": 3}', "a JSON object with a list 'traceEvents', found none"),
        ('{"traceEvents": [{"ph": "M"}]}', "spans .*, found none among 1 events"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(SourceError, match=rf"^plot_timeline: .*{message}.*in file '.*trace.json'"):
        plot_timeline(path)


def test_a_dict_without_spans_is_no_trace() -> None:
    with pytest.raises(SourceError, match=r"^plot_timeline: expected a trace .*found none among 0 events$"):
        plot_timeline({"traceEvents": []})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"plot_timeline: the trace cannot be read: .*nothing\.json"):
        plot_timeline(tmp_path / "nothing.json")


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'arrowflow\[plot\]'") as raised:
        plot_timeline(trace_of([("w", "read", 0.0, 1.0)]))
    assert isinstance(raised.value, ArrowflowError)
    assert isinstance(raised.value, ImportError)


@drawn
def test_one_kind_of_work_has_one_colour_in_all_pictures() -> None:
    def colour(name: str, *others: str) -> Any:
        figure = plot_timeline(trace_of([("w", each, 0.0, 1.0) for each in (*others, name)]))
        (found,) = {
            str(each.get_facecolor()) for each in figure.axes[0].collections if each.get_gid() == name
        }
        return found

    assert colour("map(f)") == colour("map(g)", "shuffle(3)", "batch(2)") == colour("filter(f)")
    assert colour("shuffle(3)") == colour("batch(2)", "map(f)") == colour("filter") != colour("map(f)")

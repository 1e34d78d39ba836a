"""`ProgressBar`: what is drawn when, and that no screen can stop a run. No clock, and no terminal."""

from __future__ import annotations

import gc
import io
import logging
import sys
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import arrowflow as af
from arrowflow import dataset, iterator
from arrowflow.observe.progress import BYTES, COUNTS, ProgressBar, _bar_type, scaled
from tests import warm

pytestmark = pytest.mark.any_version

MIB = 1 << 20


def frames(screen: io.StringIO) -> list[str]:
    """Returns what was drawn, one after the other."""
    return [text.strip() for text in screen.getvalue().split("\r")[1:]]


def nobody_draws() -> bool:
    """Returns whether the lock of all bars is free."""
    return repr(_bar_type().get_lock()).startswith("<unlocked")


@pytest.fixture
def screen() -> io.StringIO:
    """A bar of another test that is not collected yet would keep its line."""
    gc.collect()
    return io.StringIO()


# --------------------------------------------------------------------------------------------- drawing


def test_a_known_total(screen: io.StringIO) -> None:
    bar = ProgressBar(12_000_000, 3, file=screen)
    assert frames(screen) == ["epoch 3:   0%|          | 0/12M [00:00<?, ? rows/s, waiting ?, memory 0 B]"]
    bar.update(1_200_000, 100.0, 0.12, 1.0, 48 * MIB)
    bar.update(6_000_000, 101.0, 0.62, 6.0, 1_600 * MIB)
    assert frames(screen)[1:] == [
        "epoch 3:  10%|#         | 1.2M/12M [00:01<00:09, 1.2M rows/s, waiting 12 %, memory 48 MiB]",
        "epoch 3:  50%|#####     | 6.0M/12M [00:06<00:06, 1.0M rows/s, waiting 10 %, memory 1.6 GiB]",
    ]


def test_an_unknown_total(screen: io.StringIO) -> None:
    bar = ProgressBar(None, 0, file=screen)
    bar.update(1_500, 0.0, 1.0, 2.0, 100)
    bar.close()
    assert frames(screen) == [
        "epoch 0: 0 rows [00:00, ? rows/s, waiting ?, memory 0 B]",
        "epoch 0: 1.5k rows [00:02, 750 rows/s, waiting 50 %, memory 100 B]",
        "epoch 0: 1,500 rows [00:02, 750 rows/s, waiting 50 %, memory 100 B]",
    ]


def test_what_is_no_epoch_of_a_loop_has_rows_and_time_alone(screen: io.StringIO) -> None:
    bar = ProgressBar(3_000, "fit", file=screen)
    bar.update(1_500, 0.0, 0.0, 2.0, 0)
    bar.close()
    assert frames(screen) == [
        "fit:   0%|          | 0/3.0k [00:00<?, ? rows/s]",
        "fit:  50%|#####     | 1.5k/3.0k [00:02<00:02, 750 rows/s]",
        "fit:  50%|#####     | 1,500 rows [00:02, 750 rows/s]",
    ]


@pytest.mark.parametrize("known", [True, False])
def test_statistics_count_the_rows_that_they_have_seen(
    known: bool, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "ProgressBar", partial(ProgressBar, file=screen))
    ds = af.range(200_000).with_options(af.Options(progress=True))
    (ds if known else ds.filter(pl.col("id") >= 0)).describe()
    assert frames(screen)[-1].startswith(
        "describe: 100%|##########| 200,000 rows" if known else "describe: 200,000 rows"
    )


def test_writers_are_named(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(iterator, "ProgressBar", partial(ProgressBar, file=screen))
    af.range(2000).with_options(af.Options(progress=True)).write_ipc(tmp_path / "o")
    assert frames(screen)[-1].startswith("write_ipc: 100%|##########| 2,000 rows")


@pytest.mark.parametrize(
    ("columns", "known"), [(60, True), (60, False), (80, True), (80, False), (120, True)]
)
def test_lines_fit_the_terminal(screen: io.StringIO, columns: int, known: bool) -> None:
    bar = ProgressBar(120_000_000 if known else None, 3, file=screen)
    bar._bar.dynamic_ncols = lambda file: (columns, 24)
    for rows in (1_200_000, 6_000_000):
        bar.update(rows, float(rows), 1.0, 1.0, 512 * MIB)
    bar.close()
    *running, ended = frames(screen)[1:]
    assert all(len(line) <= columns for line in [*running, ended])
    for line in running:
        assert "waiting 100 %, " in line and line.endswith("memory 512 MiB]" if columns > 60 else "512 MiB]")
    assert " 6,000,000 " in ended and ended.endswith("512 MiB]")


def test_no_rows(screen: io.StringIO) -> None:
    ProgressBar(0, 0, file=screen).close()
    assert frames(screen)[-1] == "epoch 0: 0 rows [00:00, ? rows/s, waiting ?, memory 0 B]"


def test_more_rows_than_the_total(screen: io.StringIO) -> None:
    bar = ProgressBar(10, 0, file=screen)
    bar.update(15, 0.0, 0.0, 1.0, 0)
    bar.close()
    assert "15 rows" in frames(screen)[-1]


def test_it_draws_ten_times_a_second(screen: io.StringIO) -> None:
    bar = ProgressBar(1_000, 0, file=screen)
    for step in range(1_000):
        bar.update(step + 1, 7 + step / 1_000, 0.0, step / 1_000, 0)
    assert len(frames(screen)) == 11
    assert " 901/1.0k " in frames(screen)[-1]
    bar.close()
    assert " 1,000 rows " in frames(screen)[-1]


def test_it_shows_the_last_seconds_and_in_the_end_the_whole(screen: io.StringIO) -> None:
    bar = ProgressBar(None, 0, file=screen)
    for second in range(100):
        # After a while it waits half of the time, and is half as fast.
        slow = max(0, second - 39)
        bar.update(100 * (second + 1) - 50 * slow, second, slow / 2, second + 1, 0)
    assert "50 rows/s, waiting 50 %" in frames(screen)[-1]
    bar.close()
    assert "70 rows/s, waiting 30 %" in frames(screen)[-1]


@pytest.mark.parametrize(
    ("step", "units", "texts"),
    [
        (1000, COUNTS, {0: "0", 9.6: "10", 999: "999", 999.6: "1.0k", 1_049: "1.0k", 9_960: "10k"}),
        (1000, COUNTS, {999_400: "999k", 999_600: "1.0M", 12e12: "12T", 5e15: "5000T"}),
        (1024, BYTES, {1023: "1023 B", 1024: "1.0 KiB", 48 * MIB: "48 MiB", 1023 * MIB: "1023 MiB"}),
    ],
    ids=["small counts", "large counts", "bytes"],
)
def test_numbers_are_short(step: int, units: tuple[str, ...], texts: dict[float, str]) -> None:
    assert {value: scaled(value, step, units) for value in texts} == texts


# ---------------------------------------------------------------------------------------------- ending


def test_it_ends_once_and_stays(screen: io.StringIO) -> None:
    bar = ProgressBar(100, 0, file=screen)
    bar.update(10, 0.0, 0.0, 1.0, 0)
    bar.update(45, 0.01, 0.0, 1.0, 0)
    bar.close()
    assert frames(screen)[-1].startswith("epoch 0:  45%|####5     | 45 rows [00:01, 45 rows/s, ")
    shown = screen.getvalue()
    assert shown.endswith("\n")
    bar.close()
    bar.update(50, 99.0, 0.0, 2.0, 0)
    bar.close()
    del bar
    assert screen.getvalue() == shown


def test_it_ends_from_a_finalizer_and_from_another_thread() -> None:
    class Run:
        pass

    for collect in (gc.collect, lambda: threading.Thread(target=gc.collect, name="other")):
        screen, run = io.StringIO(), Run()
        bar = ProgressBar(None, 0, file=screen)
        bar.update(7, 0.0, 0.0, 1.0, 0)
        weakref.finalize(run, bar.close)
        run.self = run  # type: ignore[attr-defined]  # only the collector frees it
        del run
        found: Any = collect()
        if isinstance(found, threading.Thread):
            found.start()
            found.join()
        assert frames(screen)[-1] == "epoch 0: 7 rows [00:01, 7 rows/s, waiting 0 %, memory 0 B]"


def test_what_nobody_closes_draws_nothing_more(screen: io.StringIO) -> None:
    bar = ProgressBar(None, 0, file=screen)
    shown = screen.getvalue()
    del bar
    gc.collect()
    assert screen.getvalue() == shown


def test_bars_of_several_runs(screen: io.StringIO) -> None:
    """The second one lies below the first one while both run."""
    first, second = ProgressBar(None, 0, file=screen), ProgressBar(None, 1, file=screen)
    second.close()
    first.close()
    assert nobody_draws()
    assert ProgressBar(None, 2, file=screen)._bar.pos == 0


# --------------------------------------------------------------------------------------- broken screens


class Broken(io.StringIO):
    """A screen that fails from some write on."""

    def __init__(self, error: BaseException, writes: int) -> None:
        super().__init__()
        self.error = error
        self.writes = writes

    def write(self, text: str) -> int:
        self.writes -= 1
        if self.writes < 0:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("writes", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("error", [OSError(28, "no space left"), RuntimeError("gone"), AttributeError()])
def test_a_broken_screen_is_not_drawn_on_any_more(
    error: Exception, writes: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="arrowflow"):
        screen = Broken(error, writes)
        bar = ProgressBar(100, 0, file=screen)
        for step in range(3):
            bar.update(step, float(step), 0.0, step, 0)
        bar.close()
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert record.exc_info is not None and record.exc_info[1] is error
    # The failed write, and one more at most: that which would end the line.
    assert screen.writes >= -2
    assert nobody_draws()


def test_a_closed_screen(screen: io.StringIO) -> None:
    bar = ProgressBar(100, 0, file=screen)
    screen.close()
    bar.update(1, 0.0, 0.0, 1.0, 0)
    bar.close()
    ProgressBar(100, 0, file=screen).close()
    assert nobody_draws()


@pytest.mark.parametrize("screen", [None, io.StringIO()])
def test_no_screen(screen: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen)
    if screen is not None:
        screen.close()
    bar = ProgressBar(100, 0)
    bar.update(1, 0.0, 0.0, 1.0, 0)
    bar.close()


def test_an_interrupt_is_not_the_screens(screen: io.StringIO) -> None:
    broken = Broken(KeyboardInterrupt(), 100)
    bar = ProgressBar(100, 0, file=broken)
    broken.writes = 0
    with pytest.raises(KeyboardInterrupt):
        bar.update(1, 0.0, 0.0, 1.0, 0)
    assert nobody_draws()
    broken.writes = 100
    bar.close()
    assert frames(broken)[-1].startswith("epoch 0:   1%|")


# ------------------------------------------------------------------------------------------ the process

CODE = """
import sys
import arrowflow.observe.progress

assert "tqdm" not in sys.modules
sys.stderr.isatty = lambda: True
bar = arrowflow.observe.progress.ProgressBar(100, 0)
bar.update(50, 0.0, 0.0, 1.0, 0)
import multiprocessing, threading
assert threading.active_count() == 1
multiprocessing.set_start_method("spawn")
"""


@pytest.mark.parametrize(("code", "ended"), [(CODE + "bar.close()", True), (CODE, False)])
def test_it_leaves_the_process_alone(code: str, ended: bool) -> None:
    """No import before it is needed, no thread, no lock of multiprocessing, and nothing at exit."""
    last = run(code).split("\r")[-1]
    assert last.startswith("epoch 0:  50%|")
    assert last.endswith("\n") == ended


@pytest.mark.parametrize(
    ("before", "seen"),
    [("", False), ("sys.modules['ipykernel.zmqshell'] = None", True)],
    ids=["a pipe", "a notebook"],
)
def test_it_draws_where_somebody_looks(before: str, seen: bool) -> None:
    code = f"""
import sys
import arrowflow as af
{before}
for batch in af.range(10).batch(4).with_options(af.Options(progress=True)):
    pass
assert ("tqdm" in sys.modules) == {seen}
"""
    drawn = run(code)
    assert drawn.split("\r")[-1].startswith("epoch 0: 100%|") if seen else drawn == ""


def test_tqdms_own_settings_hold() -> None:
    assert run(CODE + "bar.close()", TQDM_DISABLE="1") == ""
    code = CODE + "bar.update(51, 0.9, 0.0, 1.0, 0); bar.update(52, 1.1, 0.0, 1.0, 0)"
    drawn = run(code, TQDM_MININTERVAL="1", TQDM_DELAY="60").split("\r")[-3:]
    assert [text.partition("%")[0].split()[-1] for text in drawn] == ["0", "50", "52"]


def run(code: str, **environment: str) -> str:
    """Returns what a process draws that runs this code."""
    status, out, drawn = warm.plain().run(f"os.environ |= {environment}\n{code}")
    assert (status, out) == (0, ""), drawn
    return drawn

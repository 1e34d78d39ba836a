"""Each planted fault is found, and its cure is a command that runs. Times are given: how long reads take is a benchmark."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from arrowflow.cli import doctor, samples
from arrowflow.cli.samples import Sample
from tests.cli.conftest import Run

pytestmark = pytest.mark.any_version

ROWS = 5_000
RNG = np.random.default_rng(0)
TABLE = pa.table({"x": RNG.normal(size=ROWS), "n": RNG.integers(0, 1 << 60, ROWS)})
LISTS = TABLE.append_column("v", pa.array([[1.0, 2.0, 3.0]] * ROWS, pa.list_(pa.float32())))


def whole(folder: Path, table: pa.Table = TABLE, **options: Any) -> None:
    pq.write_table(table, folder / "a.parquet", **{"compression": "snappy", **options})


def many(folder: Path) -> None:
    for number in range(20):
        pq.write_table(TABLE.slice(number * 250, 250), folder / f"{number:02}.parquet")


def skewed(folder: Path) -> None:
    whole(folder, TABLE.slice(0, 100))
    pq.write_table(TABLE, folder / "b.parquet")
    pq.write_table(TABLE.slice(0, 100), folder / "c.parquet")


FAULTS: dict[str, Callable[[Path], None]] = {
    "tiny-files": many,
    "tiny-row-groups": lambda folder: whole(folder, row_group_size=100),
    "huge-row-groups": whole,
    "skew": skewed,
    "no-bounds": lambda folder: whole(folder, write_statistics=False),
    "compression": lambda folder: whole(folder, compression="gzip"),
    "encodings": lambda folder: whole(folder, use_dictionary=False, column_encoding="BYTE_STREAM_SPLIT"),
    "fixed-size-lists": lambda folder: whole(folder, LISTS),
    "text": lambda folder: pyarrow.csv.write_csv(TABLE, folder / "a.csv"),
}


def cure(report: dict[str, Any], target: Path, run: Run) -> None:
    """Runs the command of a report."""
    run(*shlex.split(report["cure"].replace("DST", str(target)))[1:])


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how many times as fast a sample is after its cure."""

    def set(gain: float) -> None:
        monkeypatch.setattr(Sample, "compared", lambda self, after, above=None: (gain, 1.0))

    monkeypatch.setattr(doctor, "HUGE_GROUP_BYTES", 1 << 60)
    monkeypatch.setattr(doctor, "TINY_GROUP_BYTES", 8 << 10)
    return set


def test_files_with_other_columns_are_a_finding(tmp_path: Path, answer: Run) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.table({name: [1, 2]}), tmp_path / f"{name}.parquet")
    ((finding,),) = [report["findings"] for report in answer("doctor", tmp_path, code=1)]
    assert finding["name"] == "other-columns"
    assert finding["text"] == "1 file with other columns or types than the first"


def test_other_columns_that_the_reader_takes_are_no_finding(
    tmp_path: Path, answer: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("told")
    monkeypatch.setitem(sys.modules, "told", module)

    def texts(name: str, dataset: af.Dataset, *, found: int = 0) -> list[str]:
        vars(module)[name] = dataset
        findings = answer("doctor", f"told:{name}", code=found)[0]["findings"]
        return [f"{each['text']}; {each['cost']}" for each in findings]

    for name, values in {"a": [1, 2], "b": [1.5]}.items():
        pq.write_table(pa.table({name: values}), tmp_path / f"{name}.parquet")
    assert not texts("nulls", af.read_parquet(tmp_path, missing_columns="null"))
    assert not texts("types", af.read_parquet(tmp_path, schema=pa.schema({"a": pa.int64()})))
    (strict,) = texts("strict", af.read_parquet(tmp_path), found=1)
    assert strict.startswith("1 file with other columns or types than the first; a run that needs them ends")
    pq.write_table(pa.table({"a": pa.array([1], pa.int32())}), tmp_path / "c.parquet")
    assert not texts("wider", af.read_parquet(tmp_path, schema=pa.schema({"a": pa.int64()})))
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "c.parquet")
    (nulls,) = texts("nulls", af.read_parquet(tmp_path, missing_columns="null"), found=1)
    assert nulls == (
        "1 file with other types than those to read; a run that needs them ends there, unless the reader is given schema="
    )
    (types,) = texts("types", af.read_parquet(tmp_path, schema=pa.schema({"a": pa.int64()})), found=1)
    assert types == "1 file with other types than those to read; a run ends where a value cannot be cast"
    narrow = af.read_parquet(tmp_path / "a.parquet", schema=pa.schema({"a": pa.int32()}))
    assert not texts("narrow", narrow), "all files are as the first one"


def test_a_difference_of_milliseconds_is_no_gain(
    tmp_path: Path, answer: Run, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow.csv.write_csv(pa.table({"x": [1, 2]}), tmp_path / "a.csv")
    for before, gain in ((0.005, 1.0), (0.0065, 6.5 / 3)):
        monkeypatch.setattr(
            Sample, "compared", lambda self, after, above=None, before=before: (before, 0.003)
        )
        (report,) = answer("doctor", tmp_path, code=1)
        assert report["gain"] == report["findings"][0]["gain"] == pytest.approx(gain)


def test_a_cure_that_alone_reads_slower_says_so(
    tmp_path: Path, run: Run, times: Callable[[float], None]
) -> None:
    times(0.5)
    pq.write_table(pa.table({"l": [[1.0, 2.0]] * 10}), tmp_path / "a.parquet")
    shown = run("doctor", tmp_path, code=1).stdout
    assert "fixed-size-lists: all lists of 'l'" in shown
    assert "the cure alone takes 2.00 times as long to read" in " ".join(shown.split())


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_cured(
    name: str,
    tmp_path: Path,
    answer: Run,
    run: Run,
    times: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times(2.0)
    (tmp_path / "in").mkdir()
    FAULTS[name](tmp_path / "in")
    if name == "huge-row-groups":
        monkeypatch.setattr(doctor, "HUGE_GROUP_BYTES", 20 << 10)
    (report,) = answer("doctor", tmp_path / "in", code=1)
    assert [finding["name"] for finding in report["findings"]] == [name]
    assert report["gain"] == 2.0
    cure(report, tmp_path / "out", run)
    monkeypatch.setattr(doctor, "HUGE_GROUP_BYTES", 1 << 60)
    if name != "text":  # zstd, the default of the writer, is slow by these times
        assert answer("doctor", tmp_path / "out")[0]["findings"] == []
    before = pds.dataset(tmp_path / "in", format="csv" if name == "text" else "parquet").to_table()
    after = pds.dataset(tmp_path / "out").to_table()
    assert after.to_pylist() == before.to_pylist()


@pytest.mark.parametrize("sizes", [[100] * 40, [ROWS, 3, 3]], ids=["small", "skewed"])
def test_the_cure_of_small_text_files_makes_no_small_row_groups(
    sizes: list[int], tmp_path: Path, answer: Run, run: Run, times: Callable[[float], None]
) -> None:
    times(2.0)
    (tmp_path / "in").mkdir()
    for number, rows in enumerate(sizes):
        pyarrow.csv.write_csv(TABLE.slice(0, rows), tmp_path / f"in/{number:03}.csv")
    (report,) = answer("doctor", tmp_path / "in", code=1)
    cure(report, tmp_path / "out", run)
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_metadata(file).num_row_groups <= 2


def test_a_sound_layout_has_no_findings(tmp_path: Path, run: Run, times: Callable[[float], None]) -> None:
    times(2.0)
    whole(tmp_path)
    assert "nothing found" in run("doctor", tmp_path).stdout


@pytest.mark.parametrize("name", ["tiny-files", "tiny-row-groups", "compression", "encodings"])
def test_what_gains_nothing_is_no_finding(
    name: str, tmp_path: Path, answer: Run, times: Callable[[float], None]
) -> None:
    times(1.0)
    FAULTS[name](tmp_path)
    assert answer("doctor", tmp_path)[0]["findings"] == []


def test_the_columns_of_a_plan_count(
    tmp_path: Path, answer: Run, times: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    times(2.0)
    (tmp_path / "in").mkdir()
    whole(tmp_path / "in", LISTS, write_statistics=["x", "v.list.element"])
    (tmp_path / "job_of_doctor.py").write_text(
        "import arrowflow as af\nrows = af.read_parquet('in').select('x').batch(32)\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "job_of_doctor", raising=False)
    assert answer("doctor", "job_of_doctor:rows")[0]["findings"] == []
    assert {each["name"] for each in answer("doctor", "in", code=1)[0]["findings"]} == {
        "no-bounds",
        "fixed-size-lists",
    }


def test_nobody_asks_for_the_ends_of_long_values(
    tmp_path: Path, answer: Run, times: Callable[[float], None]
) -> None:
    times(1.0)
    table = pa.table({"b": [bytes([number]) * 5000 for number in range(200)]})
    whole(tmp_path, table, use_dictionary=False)
    assert answer("doctor", tmp_path)[0]["findings"] == []


def test_the_cure_of_several_files_of_another_ending_runs(
    tmp_path: Path, answer: Run, run: Run, times: Callable[[float], None]
) -> None:
    times(2.0)
    paths = [tmp_path / "a file.dat", tmp_path / "b.dat"]
    for path in paths:
        pyarrow.csv.write_csv(TABLE, path)
    (report,) = answer("doctor", *paths, "--format", "csv", code=1)
    cure(report, tmp_path / "out", run)
    assert pq.read_table(tmp_path / "out").equals(pa.concat_tables([TABLE, TABLE]).combine_chunks())


def test_a_cure_that_is_slower_says_so(tmp_path: Path, run: Run, times: Callable[[float], None]) -> None:
    times(0.25)
    FAULTS["no-bounds"](tmp_path)
    assert "4.00 times as slow to read" in run("doctor", tmp_path, code=1).stdout


def test_a_codec_that_makes_files_larger_says_so(
    tmp_path: Path, run: Run, answer: Run, times: Callable[[float], None]
) -> None:
    times(2.0)
    table = pa.table({"x": [f"{number:09}" for number in RNG.permutation(ROWS)]})
    whole(tmp_path, table, compression="brotli", use_dictionary=False)
    (finding,) = answer("doctor", tmp_path, code=1)[0]["findings"]
    shown = run("doctor", tmp_path, code=1).stdout
    assert finding["growth"] > 1.1
    assert f"2.00 times as fast without it, in files {finding['growth']:.2f} times as large" in shown


def test_what_bounds_gain_is_measured_with_a_filter(
    tmp_path: Path, run: Run, answer: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def compared(self: Sample, after: af.Dataset, *, above: Any = None) -> tuple[float, float]:
        asked.append(above)
        rows = after if above is None else after.filter(pl.col(above[0]) >= above[1])
        assert rows.to_table().num_rows == (
            ROWS if above is None else {"x": ROWS // 10 + 1, "n": 1}[above[0]]
        )
        return (1.0, 1.0) if above is None else (3.0, 1.0 if above[0] == "n" else 2.0)

    monkeypatch.setattr(Sample, "compared", compared)
    table = TABLE.set_column(1, "n", pa.array([None] * (ROWS - 1) + [7], pa.int64()))
    whole(tmp_path, table.append_column("none", pa.nulls(ROWS, pa.int64())), write_statistics=False)
    (finding,) = answer("doctor", tmp_path, code=1)[0]["findings"]
    assert (finding["name"], finding["gain"], finding["filtered_gain"]) == ("no-bounds", 1.0, 3.0)
    assert [above and above[0] for above in asked] == [None, "x", "n", None]
    assert (
        "a filter for a tenth of the rows runs 3.00 times as fast" in run("doctor", tmp_path, code=1).stdout
    )


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("c", pa.array(range(ROWS), pa.timestamp("ns"))),
        ("*", pa.array([10**18] * ROWS, pa.timestamp("us"))),
        ("*", pa.array(range(ROWS), pa.timestamp("us", "+02:00"))),
        ("c", pa.array([number % 2 == 0 for number in range(ROWS)])),
        ("^.*$", pa.array([Decimal(number) for number in range(ROWS)], pa.decimal128(9, 2))),
        ("^.*$", pa.nulls(ROWS, pa.int64())),
    ],
    ids=lambda given: given if isinstance(given, str) else str(given.type),
)
def test_a_filter_is_tried_for_columns_of_any_type(
    tmp_path: Path, name: str, column: pa.Array, answer: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "LEAST_TURNS", 1)
    monkeypatch.setattr(samples, "SECONDS", 0.0)
    whole(tmp_path, pa.table({"x": TABLE["x"], name: column}), write_statistics=["x"])
    findings = answer("doctor", tmp_path, code=1)[0]["findings"]
    (found,) = [finding for finding in findings if finding["name"] == "no-bounds"]
    assert (found["filtered_gain"] is not None) == (len(column.unique()) > 2)


@pytest.mark.slow
def test_a_real_gain_is_measured(tmp_path: Path, run: Run) -> None:
    for number in range(100):
        pq.write_table(TABLE.slice(number * 10, 10), tmp_path / f"{number:03}.parquet")
    lines = run("doctor", tmp_path, code=1).stdout.splitlines()
    assert lines[1].startswith("- tiny-files: 100 files of ") and "times as fast" in lines[1]
    assert lines[-1].startswith("tried on 1,000 rows: ")

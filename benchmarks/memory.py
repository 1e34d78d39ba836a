"""The memory bars: the stream under `ram_budget="512MiB"`, over 1, 4 and 16 times the data.

The ledger, Arrow's pool and the resident set are three different figures. A thread samples the last one; the
first two know their own peaks.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import data, harness, stream

BUDGET: Final = 512 << 20
TIMES: Final = (1, 4, 16)
SCRATCH: Final = 4  # decoding needs up to four times the bytes of its output (measured)
FLATNESS: Final = 1.10
SAMPLE_SECONDS: Final = 0.002
MIB: Final = 1 << 20


class Sampler:
    """Samples this process' resident set in a thread."""

    def __init__(self) -> None:
        self.peak_bytes = resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self.peak_bytes = max(self.peak_bytes, resident_bytes())

    def stop(self) -> int:
        """Returns the largest sample."""
        self._stop.set()
        self._thread.join()
        return self.peak_bytes


def resident_bytes() -> int:
    """Returns the resident set of this process now; where the system does not say, its peak."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096
    except OSError:
        return harness.peak_rss_bytes()


def largest_chunk_bytes(paths: list[str]) -> int:
    """Returns the bytes of the largest row group's columns that the stream reads, with decoding's scratch."""
    schema = pq.read_schema(paths[0])
    width = sum(schema.field(name).type.bit_width // 8 for name in stream.COLUMNS)
    metadata = (pq.read_metadata(path) for path in paths)
    return (
        SCRATCH
        * width
        * max(one.row_group(i).num_rows for one in metadata for i in range(one.num_row_groups))
    )


def _measure(times: int, *, shuffle: bool) -> harness.Contender:
    def measure() -> harness.Measurement:
        import arrowflow as af

        paths = data.lineitem()
        data.read_through(paths)
        dataset = stream.pipeline(paths * times, shuffle=shuffle).with_options(af.Options(ram_budget=BUDGET))
        baseline = resident_bytes()
        sampler = Sampler()
        watch = harness.Stopwatch()
        rows, ledger_peak = _drain(dataset)
        return watch.measurement(
            rows,
            ledger_peak_bytes=ledger_peak,
            pool_peak_bytes=pa.default_memory_pool().max_memory(),
            baseline_bytes=baseline,
            rss_peak_bytes=sampler.stop(),
            largest_chunk_bytes=largest_chunk_bytes(paths),
        )

    return measure


def _drain(dataset: Any) -> tuple[int, int]:
    rows = 0
    with iter(dataset.to_numpy()) as iterator:
        for batch in iterator:
            rows += len(batch["l_orderkey"])
        return rows, iterator.stats().ledger_peak_bytes


def _name(times: int, *, shuffle: bool) -> str:
    return f"{'shuffled' if shuffle else 'stream'}-{times}x"


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars of the stream and of the shuffled stream."""
    return [bar for shuffle in (False, True) for bar in _judge(rounds, shuffle=shuffle)]


def _judge(rounds: harness.Rounds, *, shuffle: bool) -> list[harness.Bar]:
    ones = [rounds[name] for times in TIMES if (name := _name(times, shuffle=shuffle)) in rounds]
    if len(ones) != len(TIMES):
        return []
    title = "memory, shuffled" if shuffle else "memory"
    ledger, pool, rss = (_worst(ones, f"{what}_peak_bytes") for what in ("ledger", "pool", "rss"))
    chunk, baseline = _worst(ones, "largest_chunk_bytes"), _worst(ones, "baseline_bytes")
    peaks = [harness.median_extra(one, "rss_peak_bytes") for one in ones]
    growth = max(peaks) / peaks[0]
    flat = " ".join(f"{peak / MIB:.0f}" for peak in peaks) + " MiB"
    return [
        _bar(f"{title}: ledger", BUDGET, ledger),
        _bar(f"{title}: Arrow pool", BUDGET + chunk, pool),
        _bar(f"{title}: RSS", baseline + 1.25 * BUDGET, rss),
        harness.Bar(
            f"{title}: RSS at 1x 4x 16x", f"<= {FLATNESS} x the first", flat, growth <= FLATNESS, growth
        ),
    ]


def _worst(ones: list[Any], name: str) -> float:
    return max(one.extra[name] for measurements in ones for one in measurements)


def _bar(title: str, needed: float, got: float) -> harness.Bar:
    return harness.Bar(
        title, f"<= {needed / MIB:.0f} MiB", f"{got / MIB:.0f} MiB", got <= needed, got / needed
    )


CONTENDERS: Final = {
    _name(times, shuffle=shuffle): _measure(times, shuffle=shuffle)
    for shuffle in (False, True)
    for times in TIMES
}

if __name__ == "__main__":
    harness.main("memory", CONTENDERS, judge, rounds=3)

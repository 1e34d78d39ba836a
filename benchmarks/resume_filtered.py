"""A run that was stopped at 90 % of an epoch: how soon its first batch comes, with a filter and without.

    python -m benchmarks.resume_filtered
    python -m benchmarks.resume_filtered --only resume --rounds 3

The epoch is 12 M rows of TPC-H `lineitem` in 16 Parquet files, in windows of 64 Ki rows. Footers tell the place of a row
only without a filter; a state tells it always. A rank that loads the state of another rank has to find its lanes.
"""

from __future__ import annotations

from typing import Any, Final

from benchmarks import data, harness

BATCH_ROWS: Final = 8_192
WINDOW_ROWS: Final = 65_536
KEY: Final = "l_orderkey"
NUMBERS: Final = ("l_quantity", "l_extendedprice", "l_discount", "l_tax")
STOPPED_AT: Final = 0.9
NEEDED_SHARE: Final = 0.1
NEEDED_SECONDS: Final = 1.0


def _batches(*, filtered: bool) -> Any:
    import polars as pl

    import arrowflow as af

    rows = af.read_parquet(data.lineitem()).select(KEY, *NUMBERS).cast(dict.fromkeys(NUMBERS, pl.Float32))
    if filtered:
        rows = rows.filter(pl.col("l_quantity") < 30)
    return rows.shuffle(WINDOW_ROWS, seed=7).batch(BATCH_ROWS, drop_remainder=True)


def epoch() -> harness.Measurement:
    """Measures a whole epoch with the filter."""
    data.read_through(data.lineitem())
    loader = _batches(filtered=True).to_numpy()
    watch = harness.Stopwatch()
    return watch.measurement(sum(len(batch[KEY]) for batch in loader))


def resume(donor: Any, heir: Any) -> harness.Measurement:
    """Measures the first batch of a dataset that loads the state of another one at 90 % of its epoch."""
    data.read_through(data.lineitem())
    loader, batches = donor.to_numpy(), 0
    for _ in loader:
        batches += 1
    loader.set_epoch(0)
    with iter(loader) as run:
        for _ in range(int(STOPPED_AT * batches)):
            next(run)
        state = run.state_dict()
    other = heir.to_numpy()
    watch = harness.Stopwatch()
    other.load_state_dict(state)
    with iter(other) as run:
        return watch.measurement(len(next(run)[KEY]))


def _resume(*, filtered: bool) -> harness.Measurement:
    return resume(_batches(filtered=filtered), _batches(filtered=filtered))


def _resume_rank() -> harness.Measurement:
    return resume(*(_batches(filtered=False).split_by_rank(rank, 2) for rank in range(2)))


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    seconds = {name: sorted(one.seconds for one in found)[len(found) // 2] for name, found in rounds.items()}
    bars = []
    if {"epoch", "resume-filtered"} <= seconds.keys():
        share = seconds["resume-filtered"] / seconds["epoch"]
        needed, got = f"<= {NEEDED_SHARE:.0%} of the epoch", f"{share:.1%} of {seconds['epoch']:.2f} s"
        bars.append(harness.Bar("resume at 90 %, filtered", needed, got, share <= NEEDED_SHARE, share))
    for name, title in {
        "resume": "resume at 90 %",
        "resume-rank": "resume at 90 %, state of another rank",
    }.items():
        if name in seconds:
            needed, got = f"<= {NEEDED_SECONDS:g} s", f"{seconds[name]:.3f} s"
            bars.append(harness.Bar(title, needed, got, seconds[name] <= NEEDED_SECONDS))
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    "epoch": epoch,
    "resume-filtered": lambda: _resume(filtered=True),
    "resume": lambda: _resume(filtered=False),
    "resume-rank": _resume_rank,
}

if __name__ == "__main__":
    harness.main("resume_filtered", CONTENDERS, judge, rounds=3)

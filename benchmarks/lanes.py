"""Lanes: what 16 of them in one process cost against the plan that is not split, and four, as one rank of four has.

Each contender runs four epochs in a process. The last three count: an epoch takes half a second, and in the second one
memory still grows. The ledger's peak is the highest of theirs. Each epoch decodes anew, `keep=False`; what lanes keep by
themselves is measured beside it.

A row group in which a lane begins is decoded by two lanes: with 16 lanes 15 of the 112 of stream, and 15 of the 32 of wide.
So each table is also measured as a large one, under several names, where that is little.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from benchmarks import data, harness, stream, wide

LANES: Final = 16
EPOCHS: Final = 3
"""Epochs that count, after one that does not."""
NEEDED_PEAK: Final = 2.0
WORKLOADS: Final = {"stream": 0.9, "stream, shuffled": 0.85, "wide": 0.95, "wide, shuffled": 0.95}
"""The speed that each needs."""
TIMES: Final = {"stream": 5, "wide": 3}
"""How many names each file of a large table has."""
LARGE: Final = tuple(f"large {workload}" for workload in WORKLOADS)
SPLITS: Final = {"in lanes": LANES, "in four lanes": 4}


def pipeline(workload: str, *, keep: Literal["auto", False] = False) -> Any:
    """Returns the arrowflow Dataset of a workload, in batches."""
    import arrowflow as af

    name, _, order = workload.removeprefix("large ").partition(", ")
    module = stream if name == "stream" else wide
    paths = data.lineitem() if name == "stream" else data.wide()
    data.read_through(paths)
    if workload in LARGE:
        paths = data.often(paths, TIMES[name])
    rows = module.rows(paths).with_options(af.Options(keep=keep))
    if order:
        rows = rows.shuffle(module.WINDOW_ROWS, seed=7)
    return rows.batch(module.BATCH_ROWS, drop_remainder=True)


def _contender(workload: str, *, lanes: int = 0, keep: Literal["auto", False] = False) -> harness.Contender:
    def measure() -> harness.Measurement:
        plan = pipeline(workload, keep=keep)
        if lanes:
            plan = plan.split_by_rank(0, 1, lanes=lanes, equal_steps="drop")
        loader = plan.to_numpy()
        for _ in loader:
            pass
        watch = harness.Stopwatch()
        rows, peak = 0, 0
        for _ in range(EPOCHS):
            rows += sum(len(next(iter(batch.values()))) for batch in loader)
            peak = max(peak, loader.stats().ledger_peak_bytes)
        return watch.measurement(rows, ledger=float(peak))

    return measure


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns the bars."""
    bars = []
    for workload, plain, split in (
        (name, *pair)
        for name in (*WORKLOADS, *LARGE)
        for pair in ((name, f"{name}, {how}") for how in SPLITS)
        if {*pair} <= rounds.keys()
    ):
        needed = WORKLOADS[workload.removeprefix("large ")]
        speed = harness.ratio(rounds, split, plain)
        peaks = [harness.median_extra(rounds[name], "ledger") / 2**20 for name in (split, plain)]
        cpu = [harness.median_cpu(rounds[name]) for name in (split, plain)]
        told = f"{harness.millions(rounds, split)} against {harness.millions(rounds, plain)} M rows/s"
        told += f"; CPU {cpu[0]:.2f} against {cpu[1]:.2f} s"
        bars.append(harness.Bar(f"{split}: speed", f">= {needed} x", told, speed >= needed, speed))
        peak = peaks[0] / peaks[1]
        told = f"{peaks[0]:.0f} against {peaks[1]:.0f} MiB"
        bars.append(harness.Bar(f"{split}: ledger", f"<= {NEEDED_PEAK} x", told, peak <= NEEDED_PEAK, peak))
        if (kept := f"{split}, kept") in rounds:
            speed = harness.ratio(rounds, kept, split)
            told = f"{harness.millions(rounds, kept)} against {harness.millions(rounds, split)} M rows/s"
            bars.append(
                harness.Bar(f"({workload}: lanes that keep chunks)", ">= 1 x", told, speed >= 1, speed)
            )
    return bars


CONTENDERS: Final[dict[str, harness.Contender]] = {
    name: contender
    for workload in (*WORKLOADS, *LARGE)
    for name, contender in {
        workload: _contender(workload),
        **{f"{workload}, {how}": _contender(workload, lanes=lanes) for how, lanes in SPLITS.items()},
        **(
            {f"{workload}, in lanes, kept": _contender(workload, lanes=LANES, keep="auto")}
            if workload in WORKLOADS
            else {}
        ),
    }.items()
}

if __name__ == "__main__":
    harness.main("lanes", CONTENDERS, judge)

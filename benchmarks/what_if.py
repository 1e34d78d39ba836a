"""The forecast of `explain(what_if=…)` against the truth: four workloads on one core and on two.

Each contender runs some epochs, which all decode, under one CPU budget, and forecasts the rows a second of the other
budget from the figures of the median one. The bar compares each forecast with what the other contender measured in the
same round.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any, Final

from benchmarks import data, harness, images, packing, stream, wide

CORES: Final = (1, 2)
EPOCHS: Final = 5
NEEDED: Final = 0.15
WORKLOADS: Final = ("stream", "wide", "tokens", "images")


def workload(name: str) -> tuple[Any, list[str]]:
    """Returns a dataset in batches, and the files that it reads."""
    import arrowflow as af

    if name == "stream":
        paths = data.lineitem()
        return stream.pipeline(paths, shuffle=True), paths
    if name == "wide":
        paths = data.wide()
        return wide.pipeline(paths), paths
    if name == "tokens":
        paths = data.documents()
        tokens = af.read_parquet(paths).select("tokens").pack_sequences("tokens", packing.LENGTH)
        return tokens.batch(packing.BATCH_ROWS), paths
    images.one_thread_a_call()
    paths = data.images()
    return af.read_parquet(paths).decode_image("jpeg", images.SIZE).batch(images.BATCH_ROWS), paths


def measured(name: str, cores: int) -> harness.Measurement:
    """Measures the median epoch on so many cores, and forecasts that of the other number."""
    import arrowflow as af
    from arrowflow.autotune.limit import forecast

    dataset, paths = workload(name)
    data.read_through(paths)
    loader = dataset.with_options(af.Options(cpu_budget=cores, keep=False)).to_numpy()
    found = []
    for _ in range(EPOCHS):
        watch = harness.Stopwatch()
        for _ in loader:
            pass
        figures = loader.stats()
        other = forecast(figures, sum(CORES) - cores).rows_per_second
        found.append(watch.measurement(figures.rows, forecast=other))
    return sorted(found, key=lambda one: one.seconds)[EPOCHS // 2]


def judge(rounds: harness.Rounds) -> list[harness.Bar]:
    """Returns a bar for each workload and direction."""
    return [
        _bar(rounds, name, now, then)
        for name in WORKLOADS
        for now, then in (CORES, CORES[::-1])
        if {f"{name}, {now}", f"{name}, {then}"} <= rounds.keys()
    ]


def _bar(rounds: harness.Rounds, name: str, now: int, then: int) -> harness.Bar:
    pairs = list(zip(rounds[f"{name}, {now}"], rounds[f"{name}, {then}"], strict=True))
    got = statistics.median(one.extra["forecast"] / truth.rows_per_second for one, truth in pairs)
    told = statistics.median(one.extra["forecast"] for one, _ in pairs)
    truth = harness.median_speed(rounds[f"{name}, {then}"])
    return harness.Bar(
        f"what_if, {name}, {now} to {then} cores",
        f"within {NEEDED:.0%}",
        f"{told:,.0f} foretold, {truth:,.0f} rows/s measured",
        abs(got - 1) <= NEEDED,
        got,
    )


CONTENDERS: Final[dict[str, harness.Contender]] = {
    f"{name}, {cores}": partial(measured, name, cores) for name in WORKLOADS for cores in CORES
}

if __name__ == "__main__":
    harness.main("what_if", CONTENDERS, judge, rounds=3)

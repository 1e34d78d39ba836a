"""Counts the work of pipelines, for `test_linear`: in a process of its own, whose library is the copy that counts."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.linear import counting

WARM, SMALL, LARGE = 10, 16, 64
REPEATS = 5
LEAST = LARGE**2 // 4
MOST_GROWTH = 8
"""Work by the column grows by four, its square by sixteen, and a line that does both by something in between."""

BY_THE_CLOCK = "arrowflow/autotune/"
"""The tuner works twenty times a second."""

Grown = dict[str, tuple[int, int]]


def measured(names: Sequence[str]) -> Iterator[tuple[str, Grown]]:
    """Yields, for each pipeline, the lines that do more than they should with many columns."""
    if hasattr(os, "sched_setaffinity"):  # one worker: no line runs twice because two came at the same time
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    counting.install()
    from tests.linear.pipelines import PIPELINES, Wide

    with tempfile.TemporaryDirectory() as folder:
        warm, small, large = (Wide(size, Path(tempfile.mkdtemp(dir=folder))) for size in (WARM, SMALL, LARGE))
        for name in names or PIPELINES:
            run = PIPELINES[name]
            run(warm)  # imports, and whatever else is done once
            runs = [functools.partial(run, wide) for wide in (small, large)]
            found = grown(*map(counting.counted, runs))
            # Two threads that take turns may have cost each other what a cache of one entry held, but not each time.
            for _ in range(REPEATS):
                again = grown(*map(counting.counted, runs)) if found else {}
                found = {line: counts for line, counts in again.items() if line in found}
            yield name, found


def grown(small: Counter[str], large: Counter[str]) -> Grown:
    """Returns the lines whose work grew faster than the data, with their counts."""
    return {
        line: (small[line], count)
        for line, count in large.items()
        if count >= LEAST and count > MOST_GROWTH * small[line] and not line.startswith(BY_THE_CLOCK)
    }


if __name__ == "__main__":
    for result in measured(sys.argv[1:]):
        sys.stdout.write(f"{json.dumps(result)}\n")

"""Later epochs of arrowflow as they are by default, where rows that were decoded come from memory.

The first two epochs are not measured: the second one copies what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from benchmarks import data, stream, wide
from benchmarks.peers import arrowflow, epochs


def _of(paths: Callable[[], list[str]], make: Callable[[list[str]], Any]) -> epochs.Epoch:
    found = paths()
    data.read_through(found)
    loader = make(found).to_numpy()
    for _ in range(2):
        for _ in loader:
            pass
    return lambda: loader


WORKLOADS: Final[epochs.Workloads] = {
    "stream": partial(_of, data.lineitem, partial(stream.pipeline, shuffle=False)),
    "stream-shuffled": partial(_of, data.lineitem, partial(stream.pipeline, shuffle=True)),
    "wide": partial(_of, data.wide, arrowflow.wide_plain),
    "wide-shuffled": partial(_of, data.wide, wide.pipeline),
    "tokens": partial(_of, data.documents, arrowflow.tokens),
}

if __name__ == "__main__":
    epochs.main("arrowflow", WORKLOADS)

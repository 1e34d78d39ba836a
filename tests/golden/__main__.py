"""Keeps states of today's format: `python -m tests.golden`, for each `VERSION` in `arrowflow/state.py` and each new pipeline.

A kept state is never written again: it stands for the checkpoints that people have.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from arrowflow import state
from tests.golden.pipelines import PIPELINES, taken, write_files

PATH = Path(__file__).parent / f"version_{state.VERSION}.json"


def main() -> None:
    kept = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    if PIPELINES.keys() <= kept.keys():
        sys.exit(
            f"{PATH.name} has the states of all pipelines: they have to stay readable, and are not written again; where "
            "the format changes, raise VERSION in arrowflow/state.py first"
        )
    with tempfile.TemporaryDirectory() as name:
        folder = write_files(Path(name))
        kept |= {kind: taken(make(folder)) for kind, make in PIPELINES.items() if kind not in kept}
    lines = ",\n".join(f"{json.dumps(kind)}: {json.dumps(entry)}" for kind, entry in kept.items())
    PATH.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

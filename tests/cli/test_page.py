"""`docs/command-line.md` shows what commands print, but for sizes and hashes, which depend on versions of packages."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowflow as af
from tests.cli.conftest import Run

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "command-line.md"
COMMANDS = ("inspect train", "head train", "state show", "rewrite train")
VARIES = re.compile(r"[\d.]+ (KiB|MiB)|\d+\.\d$|polars:\w+", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes the folder `train` of the page, and `state.json`."""
    folder = tmp_path_factory.mktemp("page")
    random = np.random.default_rng(0)
    (folder / "train").mkdir()
    for number in range(4):
        columns = {
            "price": random.random(50_000),
            "qty": random.integers(1, 8, 50_000),
            "name": [f"n{each}" for each in random.integers(0, 100, 50_000)],
            "emb": pa.FixedSizeListArray.from_arrays(random.random(800_000, np.float32), 16),
        }
        pq.write_table(
            pa.table(columns), folder / f"train/{number}.parquet", row_group_size=10_000, compression="zstd"
        )
    rows = af.read_parquet(folder / "train").filter(pl.col("qty") > 3).shuffle(1000, seed=7).batch(64)
    batches = iter(rows)
    for _ in range(5):
        next(batches)
    (folder / "state.json").write_text(json.dumps(batches.state_dict()))
    return folder


def lines(text: str) -> list[str]:
    return [" ".join(VARIES.sub("…", line.rstrip()).split()) for line in text.strip().splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_shows_what_a_command_prints(
    command: str, folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    pattern = rf"```console\n\$ arrowflow ({re.escape(command)}.*)\n([\s\S]*?)```"
    found = re.search(pattern, PAGE.read_text(encoding="utf-8"))
    assert found is not None
    assert lines(run(*shlex.split(found[1])).stdout) == lines(found[2])

"""Planning, kernels, sources, writers, loaders and looks take work by the columns there are, not by their square."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.linear import counting
from tests.linear.pipelines import PIPELINES
from tests.linear.run import LARGE, SMALL, grown

pytestmark = pytest.mark.any_version

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 250


@pytest.mark.slow
def test_no_line_does_the_square_of_its_work() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.linear.run"],
        cwd=ROOT,
        # Depending on the seed, a dict compares a key more or less often.
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert list(found) == list(PIPELINES)
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "[schema.types[index] for index in range(len(schema))]",
        "[schema.names.index(name) for name in schema.names]",
        "[name for name in schema.names if name in schema.names]",
        "[name for name in names if name in names]",
        "{name for name in names if names.count(name) > 1}",
        "[a for a in names for b in names if a is b]",
        "[batch.slice(0, 1) for name in names]",
        "[pa.schema(schema) for name in names]",
        "[{**columns} for name in names]",
        "[[*names] for name in names]",
        "[names[1:] for name in names]",
        "[list(names) for name in names]",
        "[tuple(names) == names for name in names]",
        "[batch.nbytes for name in names]",
        "sums(names)",
    ],
)
def test_the_count_sees_a_square(line: str) -> None:
    assert grown(*(work(line, size) for size in (SMALL, LARGE)))


@pytest.mark.parametrize(
    "line",
    [
        "[field.type for field in schema]",
        "[schema.field(name) for name in names]",
        "[schema.get_field_index(name) for name in schema.names]",
        "[batch.column(name) for name in names]",
        "[columns[name] for name in names if name in columns]",
        "sorted({name for name in names})",
        "[batch.select(names), batch.slice(1), {**columns}, *names]",
    ],
)
def test_the_count_takes_what_is_linear_for_linear(line: str) -> None:
    small, large = (work(line, size) for size in (SMALL, LARGE))
    assert not grown(small, large)
    assert sum(large.values()) >= LARGE


def work(line: str, size: int) -> Any:
    names = [f"c{at}" for at in range(size)]
    batch = pa.record_batch({name: [1] for name in names})
    columns = dict(zip(names, batch.columns, strict=True))
    source = f"""
def sums(names):
    found = ()
    for name in names:
        found += (name,)
    return found

def run(batch, schema, names, columns):
    return {line}
"""
    module: dict[str, Any] = {"pa": pa, "__name__": "arrowflow.made"}
    exec(counting.copied(source, "a"), module)
    run: Callable[..., object] = module["run"]
    return counting.counted(lambda: run(batch, batch.schema, names, columns))

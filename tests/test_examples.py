"""The examples that train a model, each on a little data and in a process of its own, as who tries them runs them."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm import Server, close_cached

pytestmark = [pytest.mark.slow, pytest.mark.any_version]

ROOT = Path(__file__).resolve().parent.parent
MAX_SECONDS = 250

NEEDS = {
    "tabular": {"torch": "PyTorch"},
    "tokens": {"torch": "PyTorch"},
    "embeddings": {"torch": "PyTorch"},
    "ddp": {"torch": "PyTorch"},
    "hf_trainer": {"torch": "PyTorch", "accelerate": "accelerate", "transformers": "transformers"},
    "jax_processes": {"jax": "JAX"},
    "cluster": {"torch": "PyTorch", "ray": "Ray"},
    "images": {"jax": "JAX", "PIL": "Pillow"},
}
SMALL = {
    "tabular": ["--rows=60000", "--epochs=1"],
    "tokens": ["--documents=400", "--epochs=1"],
    "embeddings": ["--batches=2", "--epochs=2"],
    "images": ["--images=1500", "--epochs=3"],
}


@functools.cache
def server() -> Server:
    """Returns what has imported PyTorch once for the examples that train by it, each in a fork: most of their time."""
    return Server(
        "import gc, os, runpy, sys\nimport numpy, polars, pyarrow, torch\nimport arrowflow\ngc.freeze()\n"
    )


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_cached(server)


def trained(name: str, data: Path, *arguments: str) -> tuple[int, str, str]:
    """Runs an example that trains in one process; returns its status, output and errors."""
    if "torch" not in NEEDS[name]:
        ran = run(name, data, *arguments)
        return ran.returncode, ran.stdout, ran.stderr
    skip_without(name)
    script = f"runpy.run_path({str(ROOT / 'examples' / f'{name}.py')!r}, run_name='__main__')"
    return server().run(script, f"--data={data}", *arguments)


def skip_without(name: str) -> None:
    """Skips the test of an example whose packages are not here."""
    for module, package in NEEDS[name].items():
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{package} is not installed")


def run(name: str, data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    skip_without(name)
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), f"--data={data}", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=MAX_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("name", SMALL)
def test_an_example_learns_and_says_what_limits_it(name: str, tmp_path: Path) -> None:
    status, shown, errors = trained(name, tmp_path, *SMALL[name])
    assert status == 0, shown + errors
    assert "limits you" in shown
    (data,) = tmp_path.iterdir()
    assert [path.suffix for path in data.iterdir() if path.suffix not in {".arrow", ".parquet"}] == []


@pytest.mark.parametrize("name", ["ddp", "jax_processes"])
def test_processes_that_are_killed_end_with_the_weights_of_others(name: str, tmp_path: Path) -> None:
    ran = run(name, tmp_path, "--rows=10000", "--epochs=1", "--kills=1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "by 2, 1 processes; not killed: 39 steps" in ran.stdout


def test_a_trainer_of_transformers_goes_on_with_the_rows_of_one_that_nobody_killed(tmp_path: Path) -> None:
    ran = run("hf_trainer", tmp_path, "--rows=10000", "--epochs=1", "--kills=1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "39 steps by 2, 1 processes, on the rows of" in ran.stdout


def test_a_cluster_of_which_a_worker_is_killed_ends_with_the_weights_of_one_machine(tmp_path: Path) -> None:
    ran = run("cluster", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "rows came from 3 processes in 2 places, of which one was killed" in ran.stdout
    assert "the weights are those of one machine, bit for bit" in ran.stdout


def test_an_example_that_learns_nothing_fails(tmp_path: Path) -> None:
    status, _, errors = trained("embeddings", tmp_path, "--batches=1", "--epochs=0")
    assert status == 1
    assert "learnt nothing" in errors

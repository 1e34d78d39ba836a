"""Checkpoints that frameworks take of two processes, loaded by one and by four: the next global batches are the same."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.neighbours.ranks import rows
from tests.warm import Server, close_cached

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.any_version]

PACKAGES: Final = {
    "dcp": "torch",
    "lightning": "lightning",
    "accelerate": "accelerate",
    "transformers": "transformers",
}
"""What takes checkpoints, and the package that it is in."""

RUN: Final = """
    from pathlib import Path
    from tests.neighbours.ranks.of_{framework} import TRAININGS
    from tests.neighbours.ranks.processes import run
    run(TRAININGS, {size}, Path(sys.argv[1]), resumes={resumes})
    os._exit(0)  # without the clearing of all that was imported
"""


@functools.cache
def server() -> Server:
    """Returns what has imported all that is installed, once for all tests: most of their time."""
    imports = (
        f"import tests.neighbours.ranks.of_{framework}\n"
        for framework, package in PACKAGES.items()
        if importlib.util.find_spec(package)
    )
    # What is frozen stays shared with the forks: a collection would write to all of it.
    return Server("import gc, os, sys\n" + "".join(imports) + "gc.freeze()\n")


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_cached(server)


def trained(framework: str, size: int, folder: Path, *, resumes: bool) -> dict[str, list[dict[str, Any]]]:
    """Returns what each rank found, by the way in which the checkpoint is taken."""
    script = RUN.format(framework=framework, size=size, resumes=resumes)
    status, _, errors = server().run(script, str(folder))
    assert status == 0, errors
    ranks = [json.loads((folder / f"{rank} of {size}").read_text(encoding="utf-8")) for rank in range(size)]
    return {way: [rank[way] for rank in ranks] for way in ranks[0]}


def global_batches(ranks: list[dict[str, Any]]) -> rows.Rows:
    return [
        list(itertools.chain.from_iterable(step))
        for step in zip(*(rank["rows"] for rank in ranks), strict=True)
    ]


@pytest.mark.parametrize("framework", PACKAGES)
def test_other_numbers_of_processes_go_on_with_the_next_batch(framework: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(PACKAGES[framework]) is None:
        pytest.skip(f"{PACKAGES[framework]} is not installed")
    expected = rows.expected()
    for ranks in trained(framework, 2, tmp_path, resumes=False).values():
        assert global_batches(ranks) == expected
    for size in (1, 4):
        for way, ranks in trained(framework, size, tmp_path, resumes=True).items():
            assert global_batches(ranks) == expected[rows.SAVED :], (way, size)
            # Also lanes that the state of rank 0 lacks begin near their step.
            assert not [
                text for rank in ranks for text in rank["warnings"] if "no places for the lanes" in text
            ]


def test_an_epoch_has_the_rows_of_the_plan_without_a_split() -> None:
    plain = rows.plan().to_numpy()
    steps = rows.expected()
    for epoch in (steps[:10], steps[10:20]):
        assert sorted(itertools.chain(*epoch)) == sorted(row for batch in plain for row in batch["row"])

"""What every test gets: hypothesis profiles, the corpus, and a guard against threads that outlive a test."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import warm

pytest_plugins = ("tests.servers.fixtures",)

THREAD_NAME_PREFIX = "arrowflow"
JOIN_SECONDS = 60.0
CORPUS = os.environ.get("ARROWFLOW_CORPUS")
OUTCOME = pytest.StashKey[bool]()
FROZEN_FOR = pytest.StashKey[Path]()

for name, examples in {"quick": 5, "usual": 10, "thorough": 2_000}.items():
    settings.register_profile(
        name,
        max_examples=examples,
        derandomize=name != "thorough",  # a failure is of the change at hand, and new cases are the soak's
        deadline=None,  # machines differ
        suppress_health_check=[HealthCheck.too_slow],
    )
# Where this is set, each process that a test starts compiles the library anew: 0.35 s of 0.9; pytest compiles the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# TensorFlow imports Keras, which looks for its backend once, and would take TensorFlow. Tests of Keras take another one.
for backend in ("torch", "jax"):
    if importlib.util.find_spec(backend) is not None:
        os.environ.setdefault("KERAS_BACKEND", backend)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the corpus tests without a corpus, and skips those of PyTorch where it is missing."""
    if not CORPUS:
        corpus = [item for item in items if item.get_closest_marker("corpus")]
        items[:] = [item for item in items if item not in corpus]
        config.hook.pytest_deselected(items=corpus)
    if importlib.util.find_spec("torch") is None:
        for item in items:
            if item.get_closest_marker("torch"):
                item.add_marker(pytest.mark.skip(reason="PyTorch is not installed"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage while tests are collected: what they are stays, and looking takes a seventh of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lets the collector of garbage pass over what was there before the tests of a module: else each pass takes 0.4 s."""
    if item.config.stash.get(FROZEN_FOR, None) != item.path:
        item.config.stash[FROZEN_FOR] = item.path
        gc.collect()
        gc.freeze()


def pytest_sessionfinish() -> None:
    """Lets Python clear at its exit what it clears in any program."""
    gc.unfreeze()
    warm.close_cached(warm.plain)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remembers whether the test itself passed, for `no_thread_survives`."""
    report = yield
    if report.when == "call":
        item.stash[OUTCOME] = report.passed
    return report


@pytest.fixture(autouse=True)
def no_thread_survives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a thread of a pipeline behind; a failed test keeps its iterators alive."""
    before = set(threading.enumerate())
    yield
    if request.node.stash.get(OUTCOME, False) and _survivors(before):
        gc.collect()
        for thread in _survivors(before):
            thread.join(JOIN_SECONDS)
        left = [thread.name for thread in _survivors(before)]
        assert not left, f"threads outlived the test: {left}"


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of files that other projects publish; mark its tests with `corpus`."""
    assert CORPUS, "mark tests that use the corpus with @pytest.mark.corpus"
    return Path(CORPUS)


def _survivors(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(THREAD_NAME_PREFIX)
        and thread not in before
        and thread.ident
        is not None  # Python lists a thread for good whose start was interrupted before it ran
    ]

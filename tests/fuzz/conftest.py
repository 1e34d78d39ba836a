"""What every fuzzer gets: a seed that it names when it fails, a count of its cases, and a watch over each one."""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, settings

from tests.fuzz.watch import Watch, kinds

# Polars prints the stack of each panic, of which there are many here.
os.environ["RUST_BACKTRACE"] = "0"
LOG = "ARROWFLOW_FUZZ_LOG"
"""Environment variable: the file to which each fuzzer that has ended appends a line of JSON."""
SEED = pytest.StashKey[int | None]()
WATCH = pytest.StashKey[Watch]()

settings.register_profile(
    "soak", max_examples=100, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Draws one seed for all fuzzers of a run, unless their profile is for the same cases each time."""
    given: int | None = config.getoption("--hypothesis-seed", None)
    fixed = settings.default is not None and settings.default.derandomize
    seed = given if given is not None or fixed else random.SystemRandom().getrandbits(32)
    config.stash[SEED] = None if seed is None else int(seed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Says how to run a failure again, and tells the soak of the test."""
    report = yield
    if report.when == "call" and _test_of(item) is not None:
        seed = item.config.stash[SEED]
        again = f"python -m pytest {item.nodeid!r}" + ("" if seed is None else f" --hypothesis-seed={seed}")
        if report.failed:
            report.sections.append(("Run it again", again))
        _log(
            test=item.nodeid, cases=item.stash[WATCH].cases, kinds=kinds, again=again, failure=_shown(report)
        )
    return report


def _shown(report: pytest.TestReport) -> str | None:
    if not report.failed:
        return None
    lines = [
        line.removeprefix("E").strip(" ") for line in report.longreprtext.splitlines() if line.startswith("E")
    ]
    return "\n".join(lines[-40:])


def _log(**values: Any) -> None:
    path = os.environ.get(LOG)
    if path is not None:
        with Path(path).open("a", encoding="utf-8") as log:
            log.write(json.dumps(values) + "\n")


@pytest.fixture(scope="session")
def stderr(request: pytest.FixtureRequest) -> Iterator[int]:
    """The terminal's own standard error, which no test captures."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        yield 2
        return
    with capture.global_and_fixture_disabled():
        number = os.dup(2)
    yield number
    os.close(number)


@pytest.fixture(autouse=True)
def watched(request: pytest.FixtureRequest, stderr: int) -> Iterator[None]:
    """Puts a watch over each case, instead of one over the whole test."""
    test = _test_of(request.node)
    if test is None:
        yield
        return
    seed = request.config.stash[SEED]
    if seed is not None:
        # Of one seed, tests that draw alike would all draw the same.
        hypothesis.seed(zlib.crc32(request.node.nodeid.encode(), seed & 0xFFFF_FFFF))(
            _function_of(request.node)
        )
    watch, body = Watch(stderr), test.inner_test
    test.inner_test = watch.over(body)
    request.node.stash[WATCH] = watch
    kinds.clear()
    yield
    test.inner_test = body


def _function_of(item: Any) -> Any:
    return getattr(item, "obj", None)


def _test_of(item: pytest.Item) -> Any:
    """What Hypothesis knows of a test, None if it is not one of its own."""
    return getattr(_function_of(item), "hypothesis", None)

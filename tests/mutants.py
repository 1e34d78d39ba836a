"""Puts one small fault after the other into a copy of the library, and tells which of them the quick tests notice.

First record which tests execute which line; that takes three times as long as the tests alone:

    HYPOTHESIS_PROFILE=quick ARROWFLOW_CONTRACTS=brief python -m pytest -m "not slow" -n auto \\
        --cov=arrowflow --cov-context=test --cov-report=
    python -m tests.mutants --count 100

Of the tests that execute the line with the fault up to 200 run, those that lie nearest to it first. A fault counts as noticed if
a test fails, or if the tests take longer than a time limit. It takes some 15 seconds.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from coverage import CoverageData

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = ("executor", "ops", "kernels", "formats", "expr")
QUICK: Final = {"HYPOTHESIS_PROFILE": "quick", "ARROWFLOW_CONTRACTS": "brief"}
"""What `make test` has in its environment."""

PAIRS: Final[list[tuple[type[ast.AST], type[ast.AST]]]] = [
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
    (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.Mod, ast.FloorDiv), (ast.And, ast.Or),
]  # fmt: skip
FIRST_TESTS: Final = 25
MOST_TESTS: Final = 200
"""Tests that run for a fault at first, and in all."""
OTHER: Final[dict[Any, Any]] = dict(PAIRS) | {b: a for a, b in PAIRS}
Change = tuple[ast.expr, str]
"""An expression, and the source of another one for its place."""


def changes(tree: ast.AST) -> Iterator[Change]:
    """Yields the faults that a module may get: another operator or constant, or a condition that is turned round."""
    if isinstance(tree, ast.JoinedStr):  # Python 3.11 does not know where the parts of a text lie
        return
    match tree:
        case ast.Compare(left, [op], [right]):
            yield tree, ast.unparse(ast.Compare(left, [OTHER[type(op)]()], [right]))
        case ast.BinOp(left, op, right) if type(op) in OTHER:
            yield tree, ast.unparse(ast.BinOp(left, OTHER[type(op)](), right))
        case ast.BoolOp(op, values):
            yield tree, ast.unparse(ast.BoolOp(OTHER[type(op)](), values))
        case ast.Constant(bool() as value):
            yield tree, str(not value)
        case ast.Constant(int() as value):
            yield tree, str(value + 1)
        case ast.If(test) | ast.IfExp(test) | ast.While(test):
            yield test, f"not ({ast.unparse(test)})"
    for child in ast.iter_child_nodes(tree):
        yield from changes(child)


def changed(source: str, change: Change) -> str:
    """Returns the module with the fault; the rest of it stays as it is written."""
    node, other = change
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno and node.end_col_offset
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    whole = source.encode()
    return (whole[:start] + f"({other})".encode() + whole[end:]).decode()


def covering(data: CoverageData, module: Path, line: int) -> list[str]:
    """Returns tests that execute a line, the nearest to the module first.

    No test executes a line that runs on import, such as a default: then these are the tests that execute any line of the module.
    """
    by_line = data.contexts_by_lineno(str(ROOT / module))
    names = by_line.get(line, ())
    tests = {name.partition("|")[0] for name in names} - {""}
    tests = tests or {name.partition("|")[0] for names in by_line.values() for name in names} - {""}
    shuffled = random.Random(line).sample(sorted(tests), len(tests))

    def nearness(test: str) -> int:
        pairs = zip(Path(test.partition("::")[0]).parts[1:], module.parts[1:], strict=False)
        return sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0].removeprefix("test_") == pair[1], pairs)
        )

    return sorted(shuffled, key=nearness, reverse=True)[:MOST_TESTS]


def noticed(copy: Path, tests: list[str], *, seconds: float) -> str:
    """Runs the tests, some few at first; returns which of them failed, or nothing."""
    environment = os.environ | {"PYTHONPATH": str(copy), "CI": "true", **QUICK}
    for some in filter(None, (tests[:FIRST_TESTS], tests[FIRST_TESTS:])):
        (copy / "chosen").write_text("\n".join(some), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-xqp",
            "no:cacheprovider",
            "-o",
            "faulthandler_timeout=0",
            "@chosen",
        ]
        with subprocess.Popen(
            command,
            cwd=copy,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as running:
            try:
                shown, _ = running.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return "a time limit"
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGKILL)
        if running.returncode:
            failed = (line for line in shown.splitlines() if line.startswith(("FAILED", "ERROR")))
            return next(failed, "FAILED before any test").partition(" ")[2].partition(" - ")[0]
    return ""


def main() -> None:
    """Tries as many faults as are asked for; the same seed gives the same ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=300, help="the time limit of one run of tests")
    parser.add_argument("--coverage", default=str(ROOT / ".coverage"), help="what was recorded")
    arguments = parser.parse_args()
    data = CoverageData(arguments.coverage)
    data.read()
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    places: dict[tuple[Path, int], list[Change]] = {}
    for module in (Path(name) for name in files if name.endswith(".py")):
        if module.parts[:2] in {("arrowflow", folder) for folder in FOLDERS}:
            for change in changes(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
                places.setdefault((module, change[0].lineno), []).append(change)
    rng = random.Random(arguments.seed)
    for module, line in rng.sample(list(places), arguments.count):
        change = rng.choice(places[module, line])
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder)
            for name in files:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy / name)
            (copy / module).write_text(
                changed((ROOT / module).read_text(encoding="utf-8"), change), encoding="utf-8"
            )
            where = noticed(copy, covering(data, module, line), seconds=arguments.seconds)
        told = f"killed by {where}" if where else "SURVIVED"
        print(f"{module}:{line}: {ast.unparse(change[0])} -> {change[1]}: {told}", flush=True)


if __name__ == "__main__":
    main()

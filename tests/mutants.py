"""Puts one small fault after the other into a copy of the library, and tells which of them the quick tests notice.

The tests that lie nearest to the fault run first: the module's own, those of its folder, and so on up to all.
A fault counts as noticed if a test fails, or if the tests take longer than a time limit.
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

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = ("executor", "ops", "kernels", "formats", "expr")
QUICK: Final = {"HYPOTHESIS_PROFILE": "quick", "ARROWFLOW_CONTRACTS": "brief"}
"""What `make test` has in its environment."""

PAIRS: Final[list[tuple[type[ast.AST], type[ast.AST]]]] = [
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
    (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.Mod, ast.FloorDiv), (ast.And, ast.Or),
]  # fmt: skip
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


def nearest(module: Path, copy: Path) -> Iterator[Path]:
    """Yields where the tests of a module lie, from the nearest to all of them."""
    place = Path("tests", *module.parts[1:])
    for path in (place.with_name(f"test_{place.name}"), *place.parents[:-1]):
        if (copy / path).exists():
            yield path


def noticed(copy: Path, module: Path, *, seconds: float, steps: int) -> str:
    """Runs the tests; returns where one of them failed, or nothing."""
    done: list[str] = []
    for path in itertools.islice(nearest(module, copy), steps):
        command = [
            "-m",
            "pytest",
            "-xqm",
            "not slow",
            "-p",
            "no:cacheprovider",
            "-o",
            "faulthandler_timeout=0",
            *done,
        ]
        environment = os.environ | {"PYTHONPATH": str(copy), "CI": "true", **QUICK}
        with subprocess.Popen(
            [sys.executable, *command, str(path)],
            cwd=copy,
            env=environment,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        ) as tests:
            try:
                if tests.wait(seconds) not in {0, 5}:  # 5: there are none
                    return str(path)
            except subprocess.TimeoutExpired:
                return f"{path}, too slow"
            finally:
                if tests.poll() is None:
                    os.killpg(tests.pid, signal.SIGKILL)
        done.append(f"--ignore={path}")
    return ""


def main() -> None:
    """Tries as many faults as are asked for; the same seed gives the same ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=600, help="the time limit of one run of tests")
    parser.add_argument(
        "--steps", type=int, default=9, help="how far from the module tests may lie: 2 is its folder"
    )
    arguments = parser.parse_args()
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
            where = noticed(copy, module, seconds=arguments.seconds, steps=arguments.steps)
        told = f"killed by {where}" if where else "SURVIVED"
        print(f"{module}:{line}: {ast.unparse(change[0])} -> {change[1]}: {told}", flush=True)


if __name__ == "__main__":
    main()

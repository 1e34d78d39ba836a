"""The examples of README and of every public docstring run, and print what they say.

Collected here by name: `--doctest-modules` would look through every test module as well, which takes most of the time
that collecting takes.
"""

from __future__ import annotations

import doctest
import importlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_version

ROOT = Path(__file__).resolve().parent.parent
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def _with_examples(paths: Iterable[Path]) -> list[Path]:
    return [path for path in sorted(paths) if ">>> " in path.read_text(encoding="utf-8")]


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in _with_examples(ROOT.glob("arrowflow/**/*.py"))
]
PAGES = _with_examples([ROOT / "README.md", *ROOT.glob("docs/*.md")])


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts folders that examples make and leave where pytest removes them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _test(name: str, examples: doctest.DocTest, capsys: pytest.CaptureFixture[str]) -> None:
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(examples)
    assert not runner.failures, f"{name}:\n{capsys.readouterr().out}"


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for examples in doctest.DocTestFinder().find(importlib.import_module(name)):
        _test(examples.name, examples, capsys)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_pages(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _test(
        page.name,
        doctest.DocTestParser().get_doctest(page.read_text(), {}, page.name, str(page), 0),
        capsys,
    )

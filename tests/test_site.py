"""The site: each public name has a place in the reference, each page one in the menu, and no link is broken."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import arrowflow as af
import arrowflow.testing

pytestmark = pytest.mark.any_version

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
WITH_MEMBERS = {"Loader", "Iterator", "image"}
"""Their page shows everything in them."""


def test_each_public_name_is_in_the_reference_once() -> None:
    shown = [
        name
        for page in sorted(REFERENCE.glob("*.md"))
        for name in re.findall(r"^::: arrowflow\.(\S+)$", page.read_text(encoding="utf-8"), re.M)
    ]
    methods = [f"Dataset.{name}" for name in vars(af.Dataset) if not name.startswith("_")]
    wanted = {*af.__all__, *methods, "testing", "formats"}
    lacking, unknown = wanted.difference(shown), set(shown) - wanted
    assert not lacking and not unknown, (
        f"docs/reference: no line `::: arrowflow.…` of {lacking}; no {unknown}"
    )
    assert len(shown) == len(wanted), f"twice: {[name for name in shown if shown.count(name) > 1]}"


def test_links_that_lead_to_the_repository_lead_to_files_of_it() -> None:
    on_page_markdown = runpy.run_path(str(ROOT / "docs/hooks.py"))["on_page_markdown"]
    config = SimpleNamespace(docs_dir=str(ROOT / "docs"), extra={"source": "repository"})
    found = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=str(path.relative_to(ROOT / "docs"))))
        shown = on_page_markdown(path.read_text(encoding="utf-8"), page=page, config=config)
        found += re.findall(r"\]\(repository/blob/main/([^)#]+)", shown)
        out = re.findall(r"\]\((\.\./[^)#]+)", shown)
        assert all((path.parent / link).resolve().is_relative_to(ROOT / "docs") for link in out), path
    assert "examples/ddp.py" in found
    assert [link for link in found if not (ROOT / link).exists()] == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: str(page.relative_to(ROOT / "docs"))
)
def test_each_page_says_first_whom_it_is_for(page: Path) -> None:
    _, _, text = page.read_text(encoding="utf-8").partition("\n\n")
    assert re.match(r"(For (people|everybody|authors) |This page is for )", text)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the group `docs`")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    # `--strict` fails for a page that the menu lacks, a broken link or anchor, and a name that cannot be found.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site/reference/dataset-batches/index.html").read_text(encoding="utf-8")
    assert "arrowflow.Dataset.shuffle" in page

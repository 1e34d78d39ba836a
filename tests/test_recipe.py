"""The recipe for conda-forge asks for what pyproject.toml asks for."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import arrowflow as af

pytestmark = pytest.mark.any_version

ROOT = Path(__file__).resolve().parent.parent
NAMES = {"xxhash": "python-xxhash"}
"""Packages that conda-forge has under another name."""


@pytest.fixture(scope="module")
def recipe() -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load((ROOT / "docs/conda-forge/recipe.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def named(requirements: list[str]) -> set[str]:
    """Returns requirements of pip as conda spells them."""
    parted = (text.partition(">=") for text in requirements)
    return {f"{NAMES.get(name, name)} >={bound}" for name, _, bound in parted}


def test_it_needs_what_the_package_and_its_command_need(recipe: Any, project: Any) -> None:
    about = project["project"]
    needed = named(about["dependencies"] + about["optional-dependencies"]["cli"])
    assert set(recipe["requirements"]["run"]) == needed | {"__unix", "python >=${{ python_min }}"}
    tools = named(project["build-system"]["requires"])
    assert set(recipe["requirements"]["host"]) == tools | {"pip", "python ${{ python_min }}.*"}


def test_it_is_about_this_version_for_these_pythons(recipe: Any, project: Any) -> None:
    about = project["project"]
    assert recipe["context"]["version"] == af.__version__
    assert f">={recipe['context']['python_min']}" == about["requires-python"]
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {place}" for name, place in about["scripts"].items()
    ]
    told = recipe["about"]
    assert (told["summary"], told["license"]) == (about["description"], about["license"])
    assert (told["repository"], told["documentation"]) == (
        about["urls"]["Source"],
        about["urls"]["Documentation"],
    )

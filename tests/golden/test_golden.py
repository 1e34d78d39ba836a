"""States that earlier versions of the format left behind still go on as they did then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arrowflow import state
from tests.golden import __main__ as writer
from tests.golden.pipelines import PIPELINES, rest_of, write_files

pytestmark = pytest.mark.any_version

FILES = sorted(Path(__file__).parent.glob("version_*.json"))
KEPT = {
    f"{path.stem} {kind}": (kind, kept)
    for path in FILES
    for kind, kept in json.loads(path.read_text(encoding="utf-8")).items()
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


# A digest of a function is one of its bytecode, which differs between versions of Python.
@pytest.mark.filterwarnings("ignore:the code of a user function has changed")
@pytest.mark.parametrize("name", KEPT)
def test_a_kept_state_goes_on(folder: Path, name: str) -> None:
    kind, kept = KEPT[name]
    found: dict[str, Any] = {"state": kept["state"], **rest_of(PIPELINES[kind](folder), kept["state"])}
    assert found == kept


def test_todays_version_is_kept() -> None:
    assert writer.PATH in FILES
    assert PIPELINES.keys() == json.loads(writer.PATH.read_text(encoding="utf-8")).keys()


def test_a_kept_version_is_not_written_again() -> None:
    with pytest.raises(SystemExit, match=f"version_{state.VERSION}.json has .* raise VERSION"):
        writer.main()

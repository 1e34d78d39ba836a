"""Damaged files: the rows of pyarrow, or one typed error that names the file; never a crash, a hang or a leak.

A process of its own reads them. Where it crashes, the test fails with the file's damage, and another process goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import scaled
from tests.fuzz.damage import DAMAGES, Damage, damaged
from tests.fuzz.damaged_reader import BUDGET, good_beside
from tests.fuzz.good_files import good_files

ROOT: Final = Path(__file__).parents[2]
FORMATS: Final = sorted(good_files())
KINDS: Final = ("mapped", "read", "remote", "among", "filter")
PATIENCE_SECONDS: Final = 60.0
ROOM: Final = 32 << 20
"""Bytes that a read may take besides its budget: a chunk is charged once it is there."""

LENIENT: Final = ("metadata too long", "Dictionary with id", "Empty CSV file", "Empty JSON file")
"""What the reference says of files whose rows arrowflow reads. It also reads, as nulls, all lines of a CSV file that has
none of the columns, whatever they hold."""


class Reader:
    """The process that reads, started anew after it crashed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._errors = folder / "errors"
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        with self._errors.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.damaged_reader"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns how arrowflow and the reference read a file; a crash of the reference tells nothing."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        lines = []
        for _ in range(2):
            watch = threading.Timer(PATIENCE_SECONDS, process.kill)
            watch.start()
            lines.append(process.stdout.readline())
            watch.cancel()
        if not all(lines):
            status, self._process = process.wait(), self._started()
            assert lines[0], f"the process ended with {status}:\n{self._errors.read_text()[-3000:]}"
        return json.loads(lines[0]), json.loads(lines[1] or '{"crashed": true}')

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("damaged")
    for files in good_files().values():
        for name, data in files.items():
            for beside in good_beside(folder / name):
                beside.write_bytes(data)
    reader = Reader(folder)
    yield reader
    reader.close()


def check(ours: dict[str, Any], theirs: dict[str, Any], path: Path) -> None:
    """Asserts that a file was read as it should be."""
    error, refused = ours.get("error"), theirs.get("error")
    assert ours["most"] <= BUDGET + ROOM, f"{ours['most']:,} bytes were allocated"
    assert not theirs.get("left"), theirs["left"]
    assert not theirs.get("bytes"), f"{theirs['bytes']:,} bytes were left"
    if error is not None:
        assert ours["typed"], error
        assert ours["file"] is not None or error.startswith(("BudgetError", "PlanError: filter")), error
        assert ours["file"] is None or ours["file"].endswith(path.name)
    elif refused is not None and not theirs["is_null"]:
        assert any(text in refused for text in LENIENT), f"the reference refuses the file: {refused}"
    else:
        assert theirs.get("differs") is None, theirs["differs"]


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=scaled(200), database=None)
@given(data=st.data())
def test_rows_or_one_typed_error(reader: Reader, format: str, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(good_files()[format])))
    damages: list[Damage] = data.draw(DAMAGES)
    path = reader.folder / name
    path.write_bytes(damaged(good_files()[format][name], damages))
    request = {
        "path": str(path),
        "format": format,
        "kind": data.draw(st.sampled_from(KINDS)),
        "given": data.draw(st.booleans()),
    }
    check(*reader.ask(request), path)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_good_files_are_read(reader: Reader, format: str) -> None:
    for name, content in good_files()[format].items():
        path = reader.folder / name
        path.write_bytes(content)
        for kind in KINDS:
            ours, theirs = reader.ask({"path": str(path), "format": format, "kind": kind, "given": True})
            assert "error" not in ours, ours
            check(ours, theirs, path)

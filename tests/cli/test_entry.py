"""The entry of the command line: what it imports, and what it says without its packages."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import arrowflow as af

pytestmark = [pytest.mark.slow, pytest.mark.any_version]

ROOT = Path(__file__).resolve().parent.parent.parent


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def test_help_imports_no_part_of_the_library() -> None:
    code = """
import sys
from arrowflow_cli import main
sys.argv = ["arrowflow", "inspect", "--help"]
try:
    main()
finally:
    heavy = {"arrowflow", "polars", "pyarrow", "numpy"} & sys.modules.keys()
    assert not heavy, heavy
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "--json" in done.stdout


def test_the_module_is_the_command() -> None:
    assert python("-m", "arrowflow", "--version").stdout == f"{af.__version__}\n"


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_package_is_one_line(package: str) -> None:
    code = f"""
import sys
sys.modules["{package}"] = None
from arrowflow_cli import main
sys.argv = ["arrowflow", "inspect", "README.md", "--format", "text"]
main()
"""
    done = python("-c", code)
    assert done.returncode == 1
    assert "pip install 'arrowflow[cli]'" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", ["closed", "full", "ascii"])
def test_any_output_is_a_result_or_one_line(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("é\n")
    command = {"closed": [">&-"], "full": [">/dev/full"], "ascii": []}[kind]
    if kind == "full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    words = [shlex.quote(sys.executable), "-m", "arrowflow", "head", shlex.quote(str(tmp_path)), *command]
    done = subprocess.run(
        " ".join(words),
        shell=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == (kind == "full"), done.stderr
    assert done.stderr.count("\n") == (kind == "full"), done.stderr
    assert ("\\xe9" in done.stdout) == (kind == "ascii")

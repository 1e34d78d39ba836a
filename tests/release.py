"""Builds a release into `dist/`, and tries it as somebody would who installs it: `make release`.

1. Wheel and sdist are built, and `twine check --strict` reads their metadata.
2. The wheel holds the package alone, with `py.typed`; README has no relative link. The sdist holds what its tests need.
3. Each Python of this machine gets the wheel into a clean environment, once with the oldest pyarrow and Polars that are
   supported, once with the newest and the command line. There, outside of the checkout, a pipeline runs, stops and goes on.
4. The sdist is unpacked, and its tests of files of the project run there.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
OLDEST = ("pyarrow==22.0.*", "polars==1.35.*", "numpy")
"""As `dependencies` of pyproject.toml."""
NEEDED_BY_TESTS = {
    "Makefile",
    "mkdocs.yml",
    "pyproject.toml",
    "README.md",
    "docs/start.md",
    "benchmarks/__init__.py",
    "tests/conftest.py",
}

SMOKE = """
import pathlib, sys
import polars as pl
import arrowflow as af
assert "site-packages" in af.__file__, af.__file__
af.range(10_000).with_columns(half=pl.col("id") / 2).write_parquet("data", shard_rows=1_000)
train = af.read_parquet("data/*.parquet").filter(pl.col("id") % 3 == 0).shuffle(500, seed=1).batch(128)
loader = train.to_numpy()
batches = iter(loader)
next(batches)
state = loader.state_dict()
expected = [batch["half"].tolist() for batch in batches]
resumed = train.to_numpy()
resumed.load_state_dict(state)
assert [batch["half"].tolist() for batch in resumed] == expected
assert sum(map(len, expected)) == 3_334 - 128
print("arrowflow", af.__version__, "Python", sys.version.split()[0], "runs, stops and goes on")
"""


COMMANDS = (("inspect", "data", "--json"), ("head", "data", "-n", "2"), ("state", "--help"))
"""Of the command line, over what the pipeline has written."""
TESTS_OF_FILES = "tests/test_architecture.py tests/test_pages.py tests/test_site.py tests/test_docstrings.py"


def main() -> None:
    """Builds and tries; the first failure ends it."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        tools = environment(Path(sys.executable), Path(folder) / "tools", "build", "twine")
        run(tools, "-m", "build", "--outdir", str(DIST), str(ROOT))
        (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
        run(tools, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
        check_wheel(wheel)
        check_sdist(sdist)
        for number, python in enumerate(pythons()):
            try_wheel(python, Path(folder) / f"{number}-oldest", str(wheel), *OLDEST)
            try_wheel(python, Path(folder) / f"{number}-newest", f"{wheel}[cli]", commands=COMMANDS)
        try_sdist(sdist, Path(folder) / "sdist")
    print(f"{wheel.name} and {sdist.name} are ready")


def check_wheel(wheel: Path) -> None:
    """Checks what people get by `pip install`."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = email.message_from_bytes(archive.read(metadata)).get_payload()
    assert "arrowflow/py.typed" in names
    assert not [name for name in names if name.endswith("README.md")]
    assert all(name.startswith(("arrowflow/", "arrowflow_cli/", "arrowflow-")) for name in names)
    relative = re.findall(r"\]\((?!https?:|#)[^)]*\)", str(text))
    assert not relative, f"links that lead nowhere outside of the repository: {relative}"


def check_sdist(sdist: Path) -> None:
    """Checks that whoever packages arrowflow anew can test it."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= NEEDED_BY_TESTS, NEEDED_BY_TESTS - names


def try_wheel(python: Path, folder: Path, *packages: str, commands: Sequence[Sequence[str]] = ()) -> None:
    """Installs a wheel into an environment of its own, and runs a pipeline and commands there."""
    installed = environment(python, folder, *packages)
    (folder / "elsewhere").mkdir()
    run(installed, "-c", SMOKE, cwd=folder / "elsewhere")
    for command in commands:
        run(installed, "-m", "arrowflow", *command, cwd=folder / "elsewhere")


def try_sdist(sdist: Path, folder: Path) -> None:
    """Runs tests as whoever packages arrowflow anew does."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    arguments = f"--numprocesses=auto {TESTS_OF_FILES}"
    subprocess.run(["make", "FRAMEWORKS=", f"PYTEST_ARGS={arguments}", "test"], cwd=unpacked, check=True)


def environment(python: Path, folder: Path, *packages: str) -> Path:
    """Makes a virtual environment with packages, and returns its Python."""
    run(python, "-m", "venv", str(folder))
    made = folder / "bin" / "python"
    run(made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return made


def pythons() -> Iterator[Path]:
    """Yields the Pythons of this machine that arrowflow supports: those of PATH, or of pyenv."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(11, 15):
        on_path = shutil.which(f"python3.{minor}")
        for place in [*([Path(on_path)] if on_path else []), *versions.glob(f"3.{minor}.*/bin/python3")]:
            if not subprocess.run([place, "-c", ""], capture_output=True, check=False).returncode:
                yield place
                break


def run(python: Path, *arguments: str, cwd: Path | None = None) -> None:
    """Runs Python, and ends everything where it fails."""
    away = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, *arguments], cwd=cwd, env=away, check=True)


if __name__ == "__main__":
    main()

"""The versions of all peers. Those without requirements run in the environment of the benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / ".venv-peers"

_ARROW: Final = ("numpy==2.4.6", "pyarrow==26.0.1", "pandas==3.1.1")
_IMAGES: Final = ("simplejpeg==1.9.0", "opencv-python-headless==5.0.0.93")
REQUIREMENTS: Final[dict[str, tuple[str, ...]]] = {
    "arrowflow": (),
    "arrowflow_kept": (),
    "pyarrow": (),
    "polars": (),
    "duckdb": ("duckdb==2.0.0", *_ARROW),
    "daft": ("daft==0.7.26", "numpy==2.4.6", "pandas==3.1.1"),
    "ray": ("ray[data]==2.60.0", "aiohttp==3.13.2", *_ARROW),
    "datasets": ("datasets==5.2.0", *_ARROW),
    "torch": ("torch==2.13.0", "pillow==12.0.0", *_ARROW),
    "tensorflow": ("tensorflow-cpu==2.21.0", *_ARROW),
    "grain": ("grain==0.2.18", *_ARROW),
    "spdl": ("spdl==0.8.0", *_IMAGES, *_ARROW),
}


def python_of(peer: str) -> Path | None:
    """Returns the interpreter with a peer's packages, which are installed once; None where they cannot be had."""
    requirements = REQUIREMENTS[peer]
    if not requirements:
        return Path(sys.executable)
    folder = FOLDER / peer
    python = folder / "bin" / "python"
    wanted = "\n".join(requirements)
    installed = folder / "installed.txt"
    if installed.is_file() and installed.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {', '.join(requirements)} ...", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, *requirements], check=False).returncode:
        return None
    installed.write_text(wanted, encoding="utf-8")
    return python

"""Claims that nobody released when the interpreter ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FAILS = """
import builtins, os, sys
from arrowflow.caching.store.claim import Claim

def fails():
    claim = Claim(os.open(sys.argv[1], os.O_CREAT | os.O_RDWR), "x")
    cycle = [claim]
    cycle.append(cycle)
    builtins.kept = cycle  # goes after the modules do
    raise MemoryError("full")

fails()
"""


def test_an_error_that_nobody_catches_is_followed_by_no_other(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILS, str(tmp_path / "lock")], capture_output=True, text=True, check=False
    )
    assert done.stderr.endswith("MemoryError: full\n")
    assert "Claim" not in done.stderr.replace("claim = Claim", "")

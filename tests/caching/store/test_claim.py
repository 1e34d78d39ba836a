"""Claims that nobody released when the interpreter ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import warm

pytestmark = pytest.mark.any_version

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
    _, _, errors = warm.plain().run(FAILS, str(tmp_path / "lock"))
    assert errors.endswith("MemoryError: full\n")
    assert "Claim" not in errors.replace("claim = Claim", "")

"""The snippets of `docs/neighbours.md`, by the name in their first line; a test runs each of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "neighbours.md"


def run_snippet(name: str, **names: Any) -> dict[str, Any]:
    """Runs the block of Python that begins with `# name`; returns its variables."""
    found = re.search(rf"```python\n(# {name}\b.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{PAGE.name} has no snippet called {name}"
    exec(compile(found[1], f"{PAGE.name}, {name}", "exec"), names)
    return names

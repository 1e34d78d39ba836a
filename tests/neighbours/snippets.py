"""The snippets of README's section on neighbours, by the name in their first line, to be run by a test each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parents[2] / "README.md"


def run_snippet(name: str, **names: Any) -> dict[str, Any]:
    """Runs the block of Python that begins with `# name`; returns its variables."""
    found = re.search(rf"```python\n(# {name}\b.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"README has no snippet called {name}"
    exec(compile(found[1], f"README.md, {name}", "exec"), names)
    return names

"""`pyarrow.orc`."""

from __future__ import annotations

from typing import Any

from arrowflow.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute("pyarrow.orc", name, globals())

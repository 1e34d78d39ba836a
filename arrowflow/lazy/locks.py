"""`filelock`: most programs lock no file, and its import takes 6 ms."""

from __future__ import annotations

from typing import Any

from arrowflow.lazy import attribute


def __getattr__(name: str) -> Any:
    return attribute("filelock", name, globals())

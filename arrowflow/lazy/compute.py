"""`pyarrow.compute`, and `acero` without the imports of its public module."""

from __future__ import annotations

import importlib
from typing import Any

from arrowflow.lazy import attribute


def __getattr__(name: str) -> Any:
    if name == "acero":
        # `pyarrow.acero` is `_acero` plus an import of `pyarrow.dataset`, which imports pandas: 600 ms.
        return importlib.import_module("pyarrow._acero")
    return attribute("pyarrow.compute", name, globals())

"""`pyarrow.compute`, imported when something of it is first used.

Its import builds 280 wrappers, which takes 20 ms: a third of what `import arrowflow` may take. So modules of this
library write `from arrowflow import compute as pc`.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # `pyarrow.acero` is `_acero` plus an import of `pyarrow.dataset`, which imports pandas: 600 ms.
    acero = name == "acero"
    value = importlib.import_module("pyarrow._acero" if acero else "pyarrow.compute")
    if not acero:
        value = getattr(value, name)
    globals()[name] = value
    return value

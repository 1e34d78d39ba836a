"""Parts of pyarrow, and a dependency, that are imported at their first use.

At its import `pyarrow.compute` builds 280 wrappers, and `pyarrow.fs` and `pyarrow.parquet` load four shared libraries.
That takes 30 ms together, half of the time that `import arrowflow` may take. So modules of this library write `from
arrowflow.lazy import compute as pc`, `fs as pafs`, `parquet as pq`.
"""

from __future__ import annotations

import importlib
from typing import Any


def attribute(module: str, name: str, known: dict[str, Any]) -> Any:
    """Returns an attribute of a module of pyarrow, and stores it in `known`."""
    value = getattr(importlib.import_module(module), name)
    known[name] = value
    return value

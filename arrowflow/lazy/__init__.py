"""Parts of pyarrow that are imported when something of them is first used.

`pyarrow.compute` builds 280 wrappers when it is imported, `pyarrow.fs` and `pyarrow.parquet` load four shared
libraries: 30 ms together, half of what `import arrowflow` may take. So modules of this library write
`from arrowflow.lazy import compute as pc`, `fs as pafs`, `parquet as pq`.
"""

from __future__ import annotations

import importlib
from typing import Any


def attribute(module: str, name: str, known: dict[str, Any]) -> Any:
    """Returns an attribute of a module of pyarrow, and remembers it among the `known` ones."""
    value = getattr(importlib.import_module(module), name)
    known[name] = value
    return value

"""Where code comes from: a release of a package, which its version tells from others, or the user's own files."""

from __future__ import annotations

import hashlib
import importlib
import sys
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

_FOLDERS = frozenset(("site-packages", "dist-packages"))


@lru_cache(maxsize=4096)
def is_installed(module: str) -> bool:
    """Returns whether a module belongs to Python or to an installed package, so that its version says what it does.

    Example:
        >>> is_installed("json.decoder"), is_installed("numpy"), is_installed("__main__")
        (True, True, False)
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or top == "arrowflow":
        return True
    if top == "__main__":  # also that of an installed command: its name says nothing
        return False
    return any(not _FOLDERS.isdisjoint(Path(place).parts) for place in _places(top))


def _places(top: str) -> list[str]:
    """Returns the files or folders of a top-level module, which is not imported for that."""
    module = sys.modules.get(top)
    spec = getattr(module, "__spec__", None)
    if spec is None and module is None:
        try:
            spec = importlib.import_module("importlib.util").find_spec(top)
        except (ImportError, ValueError):
            return []
    places = [getattr(module, "__file__", None), getattr(spec, "origin", None)]
    places += list(getattr(spec, "submodule_search_locations", None) or ())
    return [place for place in places if place]


@lru_cache(maxsize=1024)
def version_of(module: str) -> str:
    """Returns the version of the package that an installed module belongs to; of Python's own, nothing.

    The same whether or not the module has been imported.

    Example:
        >>> import numpy
        >>> version_of("numpy.linalg") == numpy.__version__
        True
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return ""
    if top == "arrowflow":
        return str(importlib.import_module(top).__version__)
    metadata = importlib.import_module("importlib.metadata")  # 20 ms, for few
    try:
        return str(metadata.version(top))
    except metadata.PackageNotFoundError:
        names = sorted(set(_distributions(metadata).get(top, ())))
    if names:
        return ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return str(getattr(sys.modules.get(top), "__version__", ""))


@lru_cache(maxsize=1)
def _distributions(metadata: Any) -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


def compiled_file(module: str) -> bytes | None:
    """Returns the digest of the file of a compiled module that is imported; None if it is none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or not file.endswith(tuple(EXTENSION_SUFFIXES)):
        return None
    return hashlib.blake2b(Path(file).read_bytes()).digest()


def resolved(module: str, qualname: str) -> Any:
    """Returns what a module that is imported has under a name; None if it has nothing there."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found

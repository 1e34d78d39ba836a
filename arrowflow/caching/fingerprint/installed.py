"""The origin of code: a release of a package, which has a version, or the user's own files."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import sysconfig
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

_FOLDERS = frozenset(("site-packages", "dist-packages"))
_WITHOUT_FILES = ("built-in", "frozen")


@lru_cache(maxsize=4096)
def is_installed(module: str) -> bool:
    """Returns whether a module belongs to Python or to an installed package, so that its version tells its behaviour.

    Examples:
        >>> is_installed("json.decoder"), is_installed("numpy"), is_installed("__main__")
        (True, True, False)
    """
    top = module.partition(".")[0]
    if top == "arrowflow" or _is_of_python(top):
        return True
    if top == "__main__":  # an installed command is `__main__`, too: the name says nothing
        return False
    return any(map(_is_in_packages, _places(top)))


def _is_of_python(top: str) -> bool:
    """Returns whether a module is one of Python's own. A user's module may have the same name and hide Python's."""
    if top not in sys.stdlib_module_names and top not in sys.builtin_module_names:
        return False
    places = _places(top)
    if not places:
        return top not in sys.modules
    return all(place in _WITHOUT_FILES or _is_in_library(place) for place in places)


def _is_in_packages(place: str) -> bool:
    return not _FOLDERS.isdisjoint(Path(place).parts)


def _is_in_library(place: str) -> bool:
    path = Path(os.path.realpath(place))
    return not _is_in_packages(place) and any(path.is_relative_to(folder) for folder in _library())


@lru_cache(maxsize=1)
def _library() -> tuple[str, ...]:
    """Returns the folders of Python's own modules."""
    places = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(os.__file__).parent)
    return tuple(os.path.realpath(place) for place in places)


def _places(top: str) -> list[str]:
    """Returns the files or folders of a top-level module, without an import of the module."""
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
    """Returns the version of the package to which an installed module belongs; for Python's own modules, "".

    The result does not depend on whether the module has been imported. A module in the folder of packages that belongs
    to no package has the digest of its files as its version.

    Examples:
        >>> import numpy
        >>> version_of("numpy.linalg") == numpy.__version__
        True
    """
    top = module.partition(".")[0]
    if _is_of_python(top):
        return ""
    if top == "arrowflow":
        return str(importlib.import_module(top).__version__)
    metadata = importlib.import_module("importlib.metadata")  # takes 20 ms, and few need it
    try:
        return str(metadata.version(top))
    except metadata.PackageNotFoundError:
        names = sorted(set(_distributions(metadata).get(top, ())))
    if names:
        return ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return _files_digest(_places(top))


def _files_digest(places: list[str]) -> str:
    """Returns a text that distinguishes the files and folders of a module from others."""
    paths = {Path(place) for place in places}
    paths |= {inner for folder in paths if folder.is_dir() for inner in folder.rglob("*")}
    suffixes = (".py", *EXTENSION_SUFFIXES)
    hasher = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in paths if path.name.endswith(suffixes) and path.is_file()):
        hasher.update(hashlib.blake2b(path.read_bytes()).digest())
    return hasher.hexdigest()


@lru_cache(maxsize=1)
def _distributions(metadata: Any) -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


def compiled_file(module: str) -> bytes | None:
    """Returns the digest of the file of an imported compiled module; None for any other module."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or not file.endswith(tuple(EXTENSION_SUFFIXES)):
        return None
    return hashlib.blake2b(Path(file).read_bytes()).digest()


def resolved(module: str, qualname: str) -> Any:
    """Returns the object that an imported module has under a name; None if it has none."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found

"""The user's own modules whose used parts are unknown: they count by their files, and by the modules that they use."""

from __future__ import annotations

import hashlib
import sys
import types
from pathlib import Path

from arrowflow.caching.fingerprint.encoder import Encoder
from arrowflow.caching.fingerprint.installed import is_installed


def write_whole_module(encoder: Encoder, module: types.ModuleType) -> None:
    """Writes the files of a module and its package, and of all own modules that its values are or come from.

    A module without a file, made while the program runs, counts by its values.
    """
    if encoder.is_known(module):
        return
    files = _files(module)
    encoder.put("whole module", str(len(files)))
    for file in files:
        encoder.put("file", file.name, hashlib.blake2b(file.read_bytes()).digest())
    if not files:
        _write_values(encoder, module)
    for other in _reached(module):
        write_whole_module(encoder, other)


def _files(module: types.ModuleType) -> list[Path]:
    file = vars(module).get("__file__")
    found = {Path(file)} if file else set()
    for folder in vars(module).get("__path__", ()):
        found.update(Path(folder).rglob("*.py"))
    return sorted(each for each in found if each.is_file())


def _write_values(encoder: Encoder, module: types.ModuleType) -> None:
    held = vars(module)
    for name in sorted(name for name in held if not name.startswith("__")):
        if not isinstance(held[name], types.ModuleType):
            encoder.put("attribute", name)
            encoder.write(held[name], f"attribute {name!r}")


def _reached(module: types.ModuleType) -> list[types.ModuleType]:
    """Returns the own modules among a module's values, and those own modules that made its values, ordered by name."""
    found: dict[str, types.ModuleType] = {}
    inside = [each for name, each in sys.modules.copy().items() if name.startswith(f"{module.__name__}.")]
    for value in (*vars(module).values(), *inside):
        made = isinstance(value, type | types.FunctionType)
        source = getattr(value if made else type(value), "__module__", None)
        other = value if isinstance(value, types.ModuleType) else sys.modules.get(str(source))
        if isinstance(other, types.ModuleType):
            found.setdefault(other.__name__, other)
    return [found[name] for name in sorted(found) if name != module.__name__ and not is_installed(name)]

"""Writers for functions, classes and modules.

Installed code is known by its name and its package's version. The user's own code is known by the code itself and by
all that it refers to: defaults, closure, globals, and so on from there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arrowflow.caching.fingerprint.code import Import, Names, code_text, names_in
from arrowflow.caching.fingerprint.encoder import Encoder
from arrowflow.caching.fingerprint.installed import compiled_file, is_installed, resolved, version_of

_MADE_BY_PYTHON = {
    *("__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__"),
    *("__annotations_cache__", "__classcell__", "__dataclass_fields__", "__dataclass_params__"),
    *("__dataclass_transform__", "__dict__", "__doc__", "__firstlineno__", "__module__"),
    *("__orig_bases__", "__parameters__", "__qualname__", "__static_attributes__"),
    *("__type_params__", "__weakref__", "_abc_impl", "_hashable_values_", "_member_names_"),
    *("_unhashable_values_", "_unhashable_values_map_", "_value2member_map_"),
}
"""Attributes of classes that say nothing, or nothing that other attributes do not say."""

_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)

_MADE_AT_RUN_TIME = 1 << 9
"""The flag of all classes that Python code made, and of some classes that are part of a compiled module."""


def write_code(encoder: Encoder, value: Any) -> bool:
    """Writes functions, methods, classes, modules, `partial`, descriptors and code."""
    if _write_named(encoder, value):
        return True
    writer = next((write for kind, write in _WRITERS if isinstance(value, kind)), None)
    if writer is None:
        return False
    writer(encoder, value)
    return True


def _write_named(encoder: Encoder, value: Any) -> bool:
    """Writes a value that an installed module has under a name."""
    if not isinstance(value, type) and not callable(value):
        return False
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType):
        module = value.__self__.__name__
    if type(module) is not str or type(name) is not str or resolved(module, name) is not value:
        return False
    if is_installed(module):
        encoder.put("named", module, name, version_of(module))
        return True
    compiled = compiled_file(module)
    if compiled is not None:
        encoder.put("compiled", name, compiled)
    return compiled is not None


def _write_function(encoder: Encoder, function: types.FunctionType) -> None:
    if not encoder.is_known(function):
        encoder.put("function")
        encoder.later(lambda: _write_body(encoder, function))


def _write_body(encoder: Encoder, function: types.FunctionType) -> None:
    with encoder.at(f"`{function.__qualname__.replace('<locals>.', '')}`"):
        code = function.__code__
        encoder.put("code", code_text(code))
        names = names_in(code)
        _write_defaults(encoder, function)
        encoder.put("closure", str(len(code.co_freevars)))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with encoder.at(f"closure variable {name!r}"):
                try:
                    value = cell.cell_contents
                except ValueError:
                    encoder.put("empty cell")
                else:
                    _write_used(encoder, value, name, names)
        module = str(function.__globals__.get("__name__", ""))  # `wraps` changes `__module__`
        if is_installed(module):
            encoder.put("installed", module, version_of(module))
        else:
            _write_globals(encoder, function)
            for imported in names.imports:
                _write_import(encoder, function, imported, names)
        attributes = vars(function)
        for name in sorted(attributes):
            encoder.put("attribute", name)
            encoder.write(attributes[name], f"attribute {name!r}")


def _write_defaults(encoder: Encoder, function: types.FunctionType) -> None:
    code, given = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(given) :]
    named = sorted((function.__kwdefaults__ or {}).items())
    for name, value in (*zip(names, given, strict=True), *named):
        encoder.put("default", name)
        encoder.write(value, f"default of {name!r}")


def _write_globals(encoder: Encoder, function: types.FunctionType) -> None:
    names, held = names_in(function.__code__), function.__globals__
    for name in names.globals:
        if name in held:
            encoder.put("global", name)
            with encoder.at(f"global {name!r}"):
                _write_used(encoder, held[name], name, names)
        else:
            encoder.put("builtin", name)


def _write_used(encoder: Encoder, value: Any, name: str, names: Names) -> None:
    """Writes the value of a variable. For a module, `names` says which of its attributes the code may use."""
    if isinstance(value, types.ModuleType):
        _write_attributes(encoder, value, names, name in names.bare)
    else:
        encoder.write(value)


def _write_import(encoder: Encoder, function: types.FunctionType, imported: Import, names: Names) -> None:
    """Writes the modules that a function imports when it is called. The user's own modules are imported for that."""
    package = function.__globals__.get("__package__") or ""
    parents = package.split(".")[: len(package.split(".")) - imported.level + 1] if imported.level else []
    name = ".".join([*filter(None, parents), *filter(None, [imported.module])])
    if is_installed(name):
        encoder.put("module", name, version_of(name))
        return
    try:
        module = importlib.import_module(name)
    except ImportError:
        encoder.put("missing", name)
        return
    except Exception as error:
        raise encoder.refusal(function, f"the module {name!r} cannot be imported ({error})") from error
    for each in imported.names:
        if not hasattr(module, each):
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{name}.{each}")
    top, _, _ = name.partition(".")
    with encoder.at(f"import of {name!r}"):
        if not imported.names and top != name:  # such an import binds the outer package
            _write_attributes(encoder, sys.modules[top], names, top in names.bare)
        _write_attributes(
            encoder, module, names, not imported.names and name.rpartition(".")[2] in names.bare
        )


def _write_attributes(
    encoder: Encoder, module: types.ModuleType, names: Names, whole: bool, outer: tuple[Any, ...] = ()
) -> None:
    """Writes a module. Of the user's own modules, only used attributes count, or all if nothing says which are used."""
    if is_installed(module.__name__):
        encoder.put("module", module.__name__, version_of(module.__name__))
        return
    held = vars(module)
    used = [name for name in names.attributes if name in held and not name.startswith("__")]
    if whole or not used or "__getattr__" in held:
        _write_whole_module(encoder, module)
    encoder.put("own module", str(len(used)))
    for name in used:
        value = held[name]
        encoder.put("attribute", name)
        if not isinstance(value, types.ModuleType):
            encoder.write(value, f"attribute {name!r}")
        elif value not in outer:
            _write_attributes(encoder, value, names, name in names.bare, (*outer, module))


def _write_whole_module(encoder: Encoder, module: types.ModuleType) -> None:
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
        _write_module_values(encoder, module)
    for other in _reached(module):
        _write_whole_module(encoder, other)


def _files(module: types.ModuleType) -> list[Path]:
    file = vars(module).get("__file__")
    found = {Path(file)} if file else set()
    for folder in vars(module).get("__path__", ()):
        found.update(Path(folder).rglob("*.py"))
    return sorted(each for each in found if each.is_file())


def _write_module_values(encoder: Encoder, module: types.ModuleType) -> None:
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


def _write_class(encoder: Encoder, cls: type) -> None:
    if encoder.is_known(cls):
        return
    encoder.put("class", cls.__qualname__ if is_installed(cls.__module__) else cls.__name__)
    if is_installed(cls.__module__) and "<" not in cls.__qualname__:
        # The class may be hidden by its module, or be a user's class that `make_dataclass` or `new_class` made in its
        # name.
        encoder.put("installed", cls.__module__, version_of(cls.__module__))
        if not _is_compiled(cls):
            encoder.later(lambda: _write_members(encoder, cls))
    elif (compiled := compiled_file(cls.__module__)) is not None:
        encoder.put("compiled", compiled)
    else:
        encoder.later(lambda: _write_members(encoder, cls))


def _is_compiled(cls: type) -> bool:
    """Returns whether a class is part of a compiled module: it has methods that are not Python's."""
    methods = (each for each in vars(cls).values() if not isinstance(each, _SLOTS))
    return not cls.__flags__ & _MADE_AT_RUN_TIME or any(
        getattr(each, "__objclass__", None) is cls for each in methods
    )


def _write_members(encoder: Encoder, cls: type) -> None:
    with encoder.at(f"`{cls.__qualname__.replace('<locals>.', '')}`"):
        encoder.write(type(cls))
        for base in cls.__bases__:
            encoder.write(base)
        held = vars(cls)
        _write_annotations(encoder, cls)
        for name in sorted(held.keys() - _MADE_BY_PYTHON):
            member = held[name]
            encoder.put("member", name)
            if not isinstance(member, _SLOTS):
                encoder.write(member, f"attribute {name!r}")


def _write_annotations(encoder: Encoder, cls: type) -> None:
    """Writes a class's annotations, for code that reads them. Classes in the annotations count by their names."""
    for name, value in sorted(vars(cls).get("__annotations__", {}).items()):
        encoder.put("annotation", name)
        encoder.write(f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else value)
    for name, field in sorted(vars(cls).get("__dataclass_fields__", {}).items()):
        encoder.put("field", name)
        encoder.write(dict(field.metadata), f"metadata of {name!r}")


def _write_method(encoder: Encoder, method: types.MethodType) -> None:
    encoder.put("method")
    encoder.write(method.__func__)
    encoder.write(method.__self__, f"the object of `{method.__func__.__qualname__.replace('<locals>.', '')}`")


def _write_wrapper(encoder: Encoder, wrapper: Any) -> None:
    encoder.put(type(wrapper).__name__)
    encoder.write(wrapper.__wrapped__ if hasattr(wrapper, "__wrapped__") else wrapper.__func__)


def _write_property(encoder: Encoder, value: property) -> None:
    encoder.put("property")
    for part in (value.fget, value.fset, value.fdel):
        encoder.write(part)


def _write_partial(encoder: Encoder, value: functools.partial[Any]) -> None:
    if encoder.is_known(value):
        return
    encoder.put("partial", str(len(value.args)))
    encoder.write(value.func)
    for index, argument in enumerate(value.args):
        encoder.write(argument, f"argument {index} of partial")
    for name in sorted(value.keywords):
        encoder.put("keyword", name)
        encoder.write(value.keywords[name], f"argument {name!r} of partial")


_WRITERS: tuple[tuple[Any, Callable[[Encoder, Any], None]], ...] = (
    (types.FunctionType, _write_function),
    (type, _write_class),
    (types.MethodType, _write_method),
    (types.ModuleType, lambda encoder, module: _write_attributes(encoder, module, Names((), (), ()), True)),
    (functools.partial, _write_partial),
    ((staticmethod, classmethod, type(functools.cache(len))), _write_wrapper),
    (property, _write_property),
    (functools.cached_property, lambda encoder, value: encoder.write(value.func)),
    (types.CodeType, lambda encoder, code: encoder.put("code", code_text(code))),
)
"""The writers by kind."""

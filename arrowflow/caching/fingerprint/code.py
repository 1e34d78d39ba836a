"""Code objects: their behaviour as a text that is the same in every process, and the names that they use."""

from __future__ import annotations

import dis
import itertools
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"))

_NAMELESS = frozenset(("LOAD_CONST", "LOAD_CLOSURE"))

_LONG_BITS = 10_000
"""Python refuses to write some longer integers as decimals."""


class Import(NamedTuple):
    """An `import` within a function.

    Attributes:
        module: The imported module, as written.
        level: The number of dots before it.
        names: The names imported from the module; empty if the module itself is imported.
    """

    module: str
    level: int
    names: tuple[str, ...] = ()


class Names(NamedTuple):
    """The names that a function's code, and the code of functions inside it, refers to. Each tuple is sorted.

    Attributes:
        globals: Names that are no variables of its own.
        attributes: Names of attributes, of whatever object.
        imports: The imports.
        bare: Names that code uses for more than to take an attribute; such code may do anything to a module.
    """

    globals: tuple[str, ...]
    attributes: tuple[str, ...]
    imports: tuple[Import, ...]
    bare: frozenset[str] = frozenset()


def code_parts(code: types.CodeType) -> tuple[Any, ...]:
    """Returns instructions, constants and names of code: neither comments nor line numbers."""
    constants = [
        code_parts(constant) if isinstance(constant, types.CodeType) else constant_text(constant)
        for constant in code.co_consts
    ]
    return (code.co_code, constants, code.co_names, code.co_varnames)


def code_text(code: types.CodeType) -> str:
    """Returns all that decides the behaviour of code: `code_parts`, its signature, and its exception handlers."""
    return repr([_called(each) for each in nested(code)]) + repr(code_parts(code))


def _called(code: types.CodeType) -> tuple[Any, ...]:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return (*counts, code.co_freevars, code.co_cellvars, code.co_exceptiontable)


def constant_text(value: object) -> str:
    """Returns a constant as `repr` does, with the values of sets sorted: their own order changes by process.

    Examples:
        >>> constant_text((1, frozenset(("b", "a"))))
        "(1, frozenset({'a', 'b'}))"
    """
    if isinstance(value, tuple):
        inner = ", ".join(map(constant_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, frozenset) and value:
        return f"frozenset({{{', '.join(sorted(map(constant_text, value)))}}})"
    if isinstance(value, int) and value.bit_length() > _LONG_BITS:
        return hex(value)
    return repr(value)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields code and all code inside it: of functions, lambdas, classes and comprehensions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


@lru_cache(maxsize=1024)
def names_in(code: types.CodeType) -> Names:
    """Returns the names that code refers to.

    Examples:
        >>> names_in((lambda x: [abs(y.real) for y in x]).__code__)[:2]
        (('abs',), ('real',))
    """
    found: dict[str, set[str]] = {"globals": set(), "attributes": set(), "bare": set()}
    imports: set[Import] = set()
    for each in nested(code):
        instructions = [found for found in dis.get_instructions(each) if found.opname != "EXTENDED_ARG"]
        for index, instruction in enumerate(instructions):
            if instruction.opname in _GLOBALS:
                found["globals"].add(instruction.argval)
            elif instruction.opname in _ATTRIBUTES:
                found["attributes"].add(instruction.argval)
            elif instruction.opname == "IMPORT_NAME":
                # The level and the imported names are put on the stack right before.
                level, names = (before.argval for before in instructions[index - 2 : index])
                imports.add(Import(instruction.argval, int(level or 0), tuple(names or ())))
        found["bare"] |= _bare(instructions)
    known = tuple(sorted(found["globals"])), tuple(sorted(found["attributes"])), tuple(sorted(imports))
    return Names(*known, frozenset(found["bare"]))


def _bare(instructions: list[dis.Instruction]) -> set[str]:
    """Returns the names that code uses for more than to take an attribute; an import counts by its local name."""
    bare: set[str] = set()
    called: dict[str, set[str]] = {}
    for one, following in itertools.pairwise(instructions):
        # Two variables may share an instruction.
        names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        if one.opname.startswith("IMPORT_") and following.opname.startswith("STORE_"):
            alias = following.argval[0] if isinstance(following.argval, tuple) else following.argval
            name = str(one.argval)
            called.setdefault(alias, set()).add(
                name.partition(".")[0] if one.opname == "IMPORT_NAME" else name
            )
        elif one.opname in _ATTRIBUTES or ("LOAD_" in one.opname and one.opname not in _NAMELESS):
            bare.update(name for name in names[:-1] if isinstance(name, str))
            if following.opname not in _ATTRIBUTES and isinstance(names[-1], str):
                bare.add(names[-1])
    return bare.union(*(names for alias, names in called.items() if alias in bare))

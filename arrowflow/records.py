"""`dataclass`, as in the standard library, but 0.1 ms instead of 0.7 ms a class when it is imported.

The standard one compiles up to six functions for each class, which for the 90 classes of this library is more than
all else that its import does. This one compiles `__init__` and shares the others. Type checkers see the standard one,
and so find every assignment to a field of a frozen class; at run time it is not checked. What users make themselves
(`Options`) is a standard dataclass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414  (re-exported)
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        kw_only: bool = False,
        eq: bool = True,
        repr: bool = True,
    ) -> Any:
        """Returns the class as a dataclass; arguments as in the standard library."""

        def made(cls: type) -> type:
            own = set(vars(cls))
            new = dataclasses.dataclass(cls, slots=slots, kw_only=kw_only, eq=False, repr=False)
            methods: dict[str, Any] = {"__repr__": _repr} if repr else {}
            if eq:
                methods |= {"__eq__": _equality(new), "__hash__": _hashing(new) if frozen else None}
            for name, method in methods.items():
                if name not in own or (
                    name == "__hash__" and vars(cls)[name] is None and "__eq__" not in own
                ):
                    setattr(new, name, method)
            return new

        return made if cls is None else made(cls)


def _repr(self: Any) -> str:
    shown = (
        f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr
    )
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equality(cls: Any) -> Callable[[Any, object], Any]:
    values = _values([field.name for field in dataclasses.fields(cls) if field.compare])

    def __eq__(self: Any, other: object) -> Any:  # noqa: N807
        if type(other) is not type(self):
            return NotImplemented
        # As tuples, in which the same object counts as equal: NaN, arrays.
        return values(self) == values(other)

    return __eq__


def _hashing(cls: Any) -> Callable[[Any], int]:
    values = _values([f.name for f in dataclasses.fields(cls) if (f.compare if f.hash is None else f.hash)])

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    return __hash__


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns what takes these attributes; looked up once a class: steps of ten thousand columns are compared."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple([getattr(self, name) for name in names])

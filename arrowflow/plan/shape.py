"""`Shape`: what the position of a kernel consists of, so that a state which somebody changed is refused where it is loaded.

A kernel names the parts of its position in a `NamedTuple`. The annotations of this class are the shape. An `int` is a whole
number from 0 to `MAX_NUMBER`, unless `Annotated[int, least, most]` names other limits. A part of the type `Position` belongs
to an input. A function beside the type tells limits that only the operator knows, such as the number of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin, get_type_hints

from arrowflow.errors import StateError
from arrowflow.plan.position import Arrived, LaneMark, LanesPosition, Position

MAX_NUMBER: Final = 1 << 62
"""No row, batch or split has a larger number. Sums of two still fit into the numbers of NumPy."""

MAX_SPLIT: Final = 1 << 1000
"""Numbers of splits grow by a factor at each operator that joins inputs or repeats one."""

_ROWS: Final = tuple[tuple[Annotated[int, 0, MAX_SPLIT], Annotated[int, 1]], ...]
_OBJECTS: Final[dict[Any, tuple[str, dict[str, Any]]]] = {
    LanesPosition: ("the places of lanes", {"step": int, "lanes": tuple[LaneMark, ...]}),
    Arrived: ("the place of a stage", {"came": _ROWS, "again": _ROWS, "below": Arrived | None}),
}

Inputs = Iterable[tuple[int, Position]]
"""Positions of inputs, each with the number of the input."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a kernel's position.

    Attributes:
        kind: Its type: a `NamedTuple`, or a tuple with types.
        wrong: Returns what is wrong with a position of this type; None for nothing. It names a part and the limit.
        inputs: Returns the positions of the inputs, where these are not the parts of the type `Position` in the order of
            the inputs.
        passes: Whether a position is the input's, as it is; the kernel has then nothing to say.
    """

    kind: Any
    wrong: Callable[[Any], str | None] = lambda at: None
    inputs: Callable[[Any], Inputs] | None = None
    passes: Callable[[Position], bool] | None = None

    def inputs_of(self, position: Position, operator: str) -> list[tuple[int, Position]]:
        """Returns the positions of the inputs that a position holds; none where the inputs begin anew.

        Raises:
            StateError: It has another shape.
        """
        if self.passes is not None and self.passes(position):
            return [(0, position)]
        found: list[Position] = []
        try:
            at = fitting(position, self.kind, "", found)
            if (problem := self.wrong(at)) is not None:
                raise _UnfitError(problem)
        except _UnfitError as error:
            raise altered(f"its position is not one of this operator: {error}").locate(
                operator=operator
            ) from None
        return list(enumerate(found) if self.inputs is None else self.inputs(at))


class _UnfitError(Exception):
    """A value has another shape; the text says which."""


def altered(what: str) -> StateError:
    """Returns the error of a state with parts that `state_dict` never makes."""
    return StateError(
        f"{what}; the state was altered after state_dict() returned it, or is of another release: take it from the original"
    )


def checked(value: Any, kind: Any, path: str) -> Any:
    """Returns a part of a state, with `NamedTuple`s in place of plain tuples and lists.

    Raises:
        StateError: It has another shape.

    Examples:
        >>> checked([1, True], tuple[int, bool], "pair")
        (1, True)
    """
    try:
        return fitting(value, kind, path, [])
    except _UnfitError as error:
        raise altered(str(error)) from None


def fitting(value: Any, kind: Any, path: str, inputs: list[Position]) -> Any:
    """Returns a value of a type, and adds the positions of inputs in it to `inputs`, in order."""
    if kind is Any:
        return value
    if kind == Position:
        if value is not None and not isinstance(value, tuple | LanesPosition | Arrived):
            raise _unfit(path, "the position of an input", value)
        inputs.append(cast(Position, value))
        return value
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        (kind,) = set(get_args(kind)) - {type(None)}
        return fitting(value, kind, path, inputs)
    if origin is dict:
        return _names(value, kind, path, inputs)
    if kind in _OBJECTS:
        return _object(value, kind, path)
    if origin in (tuple, Sequence) or hasattr(kind, "_fields"):
        return _parts(value, kind, path, inputs)
    return _value(value, kind, path)


def _value(value: Any, kind: Any, path: str) -> Any:
    if kind is int or get_origin(kind) is Annotated:
        least, most = (*get_args(kind)[1:], MAX_NUMBER)[:2] if kind is not int else (0, MAX_NUMBER)
        if type(value) is not int or not least <= value <= most:
            limit = "on" if most >= MAX_NUMBER else f"to {most:,}"
            raise _unfit(path, f"a whole number from {least} {limit}", value)
    elif kind is float:
        is_number = type(value) is float or (type(value) is int and abs(value) <= MAX_NUMBER)
        if not is_number or not math.isfinite(value):
            raise _unfit(path, "a finite number", value)
    elif type(value) is not kind:
        raise _unfit(path, "a text" if kind is str else "true or false", value)
    return value


def _names(value: Any, kind: Any, path: str, inputs: list[Position]) -> dict[str, Any]:
    if type(value) is not dict or not all(type(key) is str for key in value):
        raise _unfit(path, "names with values", value)
    (_, inner) = get_args(kind)
    return {key: fitting(each, inner, f"{path}[{key!r}]", inputs) for key, each in value.items()}


def _parts(value: Any, kind: Any, path: str, inputs: list[Position]) -> Any:
    """Returns a value that consists of parts: named ones, a number of them, or any number of one type."""
    if not isinstance(value, tuple | list):
        raise _unfit(path, "a list", value)
    named = _hints(kind) if hasattr(kind, "_fields") else {}
    kinds = list(named.values()) or list(get_args(kind))
    if not named and (kinds[1:] == [Ellipsis] or get_origin(kind) is not tuple):
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        raise _unfit(
            path, f"{len(kinds)} parts ({', '.join(named)})" if named else f"{len(kinds)} parts", value
        )
    names = [f".{name}" for name in named] or [f"[{number}]" for number in range(len(value))]
    found = [
        fitting(each, inner, f"{path}{name}", inputs)
        for each, inner, name in zip(value, kinds, names, strict=True)
    ]
    return kind(*found) if named else tuple(found)


@lru_cache(maxsize=128)
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _object(value: Any, kind: Any, path: str) -> Any:
    """Returns one of the two positions that are objects, with parts that fit."""
    what, parts = _OBJECTS[kind]
    if not isinstance(value, kind):
        raise _unfit(path, what, value)
    for name, part in parts.items():
        fitting(getattr(value, name), part, f"{path}.{name}", [])
    return value


def _unfit(path: str, expected: str, value: Any) -> _UnfitError:
    text = "null" if value is None else f"{value!r}"
    return _UnfitError(
        f"{path.lstrip('.') or 'it'} is {text[:80]}{'…' if len(text) > 80 else ''}, expected {expected}"
    )


def below(name: str, number: int, limit: int) -> str | None:
    """Returns what is wrong with a number that is not below a limit; None for nothing."""
    return None if number < limit else f"{name} is {number}, expected less than {limit}"


def at_most(name: str, number: int, limit: int) -> str | None:
    """Returns what is wrong with a number that is above a limit; None for nothing."""
    return None if number <= limit else f"{name} is {number}, expected at most {limit}"


def parts(name: str, values: Sequence[Any], count: int) -> str | None:
    """Returns what is wrong with values that are not so many; None for nothing."""
    return None if len(values) == count else f"{name} has {len(values)} parts, expected {count}"

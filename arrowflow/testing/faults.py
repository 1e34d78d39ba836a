"""Faults to inject: user functions and sources that raise, wait or return the wrong thing at a chosen call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from arrowflow.testing.clocks import Gate

Action = Callable[[Any], Any]
"""The effect of a fault: a function of the argument of the call that the fault hits."""


def raising(error: BaseException) -> Action:
    """Returns the action that raises `error`."""

    def action(value: Any) -> Any:
        raise error

    return action


def returning(result: Any) -> Action:
    """Returns the action that returns `result`, whatever its argument."""
    return lambda value: result


def waiting(gate: Gate) -> Action:
    """Returns the action that waits at `gate` and then returns its argument."""

    def action(value: Any) -> Any:
        gate.pass_through()
        return value

    return action


class Fault:
    """A user function that behaves, except for the calls that the fault hits.

    Calls of several workers at once have no order. If there may be such calls, choose by the argument (`when`).

    Args:
        action: The action for the calls that are hit.
        at: Number of the call that is hit, from 0 on.
        when: Tells by the argument of a call whether the call is hit.
        fn: The function for all other calls.

    Examples:
        >>> fault = Fault(returning("wrong"), at=1)
        >>> fault("a"), fault("b"), fault("c"), fault.calls
        ('a', 'wrong', 'c', 3)
    """

    def __init__(
        self,
        action: Action,
        *,
        at: int | None = None,
        when: Callable[[Any], bool] | None = None,
        fn: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._action = action
        self._at = at
        self._when = when
        self._fn = fn
        # `next` and `append` are single steps, so that workers need no lock.
        self._numbers = itertools.count()
        self._begun: list[int] = []

    @property
    def calls(self) -> int:
        """The number of calls that have begun."""
        return len(self._begun)

    def __call__(self, value: Any, *more: Any) -> Any:
        number = next(self._numbers)
        self._begun.append(number)
        hit = number == self._at if self._when is None else self._when(value)
        return self._action(value) if hit else self._fn(value)


def failing(elements: Iterable[Any], error: BaseException) -> Callable[[], Iterator[Any]]:
    """Returns a generator function that yields `elements` and then raises `error`.

    Examples:
        >>> list(failing([1, 2], ValueError("gone"))())
        Traceback (most recent call last):
        ValueError: gone
    """

    def generate() -> Iterator[Any]:
        yield from elements
        raise error

    return generate

"""User functions, and classes as functions.

A class is instantiated once per worker: a call takes an idle instance, or makes a new one if no instance is idle. So
two calls never use one instance at once, and there are never more instances than calls at the same time. With
`num_parallel_calls=1` there is one instance. Instances belong to an operator in one run and not to a kernel, since
`repeat` makes new kernels in each repetition. A run is one iteration over the dataset; the next makes new instances.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from arrowflow.errors import FunctionError, said
from arrowflow.ops.combine.elements import operator_key
from arrowflow.ops.functions.function import function_name, makes_functions


class UserFunction:
    """A user function, or the instances of a class that are lent to one call at a time.

    Args:
        fn: The function or class.
        storage: The place of the instances: `Context.run_storage`, so that they live until the run ends.
        place: The operator's, so that no other operator gets its instances.
    """

    def __init__(self, fn: Callable[..., Any], storage: dict[Any, Any], place: int) -> None:
        self.name = function_name(fn)
        self._fn = fn
        # Both `setdefault` and the ends of a deque are one step each, so that workers need no lock.
        self._idle: deque[Any] | None = (
            storage.setdefault((UserFunction, fn, operator_key(place)), deque())
            if makes_functions(fn)
            else None
        )

    def __call__(
        self, *arguments: Any, hint: str = "", then: Callable[[list[Any]], Any] | None = None
    ) -> Any:
        """Returns the function's result; with `then`, the value that `then` makes of a list with the result.

        Until then no other call gets the instance: an instance may keep its result to write into it again.

        Raises:
            FunctionError: The function raised; with `hint` if it seems to have expected another kind of argument.
        """
        with self.lent() as call:
            try:
                returned = [call(*arguments)]  # no variable holds the result, so that `unshared` counts
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also `sys.exit()`, which ends this call and not the program
                raise call_failed(self.name, error, hint) from error
            return returned.pop() if then is None else then(returned)

    @contextmanager
    def lent(self) -> Iterator[Callable[..., Any]]:
        """Lends the function, or an instance that no other call gets meanwhile. An exception does not end the instance."""
        if self._idle is None:
            yield self._fn
            return
        call = self._instance(self._idle)
        try:
            yield call
        finally:
            self._idle.append(call)

    def _instance(self, idle: deque[Any]) -> Any:
        try:
            return idle.pop()
        except IndexError:
            pass  # all instances are lent
        try:
            return self._fn()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failed = FunctionError(
                f"{self.name}() raised {said(error)} (a class is instantiated without arguments; "
                "functools.partial gives it some)"
            )
            failed.of_data = False  # it would be so for each row
            raise failed from error


def call_failed(name: str, error: BaseException, hint: str = "") -> FunctionError:
    """Returns the error of a function that raised; with `hint` if it seems to have expected another argument."""
    text = f"{name} raised {said(error)}"
    if isinstance(error, ValueError) and "read-only" in text:
        return FunctionError(text + " (arrays share memory with what others read: write into a copy)")
    confused = isinstance(error, TypeError | AttributeError | ValueError)
    return FunctionError(text + (hint if confused else ""))

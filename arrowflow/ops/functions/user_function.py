"""User functions, and classes as functions.

A call takes an idle instance of a class, or makes a new one if no instance is idle. So two calls never use one instance at
once, and there are never more instances than calls at the same time. With `num_parallel_calls=1` there is one instance. An
instance stays with one thread for its life (`kernels.instances`), so that it may hold what belongs to a thread, such as a
connection of `sqlite3`. Instances belong to an operator in one run and not to a kernel, since `repeat` makes new kernels
in each repetition. A run is one iteration over the dataset; the next makes new instances.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arrowflow.errors import FunctionError, said
from arrowflow.kernels.instances import Lender
from arrowflow.ops.combine.elements import operator_key
from arrowflow.ops.functions.function import function_name, makes_functions


class UserFunction:
    """A user function, or the instances of a class that are lent to one call at a time.

    Args:
        fn: The function or class.
        lender: Keeps the instances until the run ends.
        place: The operator's, so that no other operator gets its instances.
    """

    def __init__(self, fn: Callable[..., Any], lender: Lender, place: int) -> None:
        self.name = function_name(fn)
        self._fn = fn
        self._instances = (
            lender.instances((UserFunction, fn, operator_key(place)), self._made, self.name)
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

        def work(call: Callable[..., Any]) -> Any:
            try:
                returned = [call(*arguments)]  # no variable holds the result, so that `unshared` counts
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also `sys.exit()`, which ends this call and not the program
                raise call_failed(self.name, error, hint) from error
            return returned.pop() if then is None else then(returned)

        return self.lend(work)

    def lend(self, work: Callable[[Callable[..., Any]], Any]) -> Any:
        """Returns the value of `work` for the function, or for an instance that no other call gets meanwhile.

        An exception does not end the instance.
        """
        return work(self._fn) if self._instances is None else self._instances.call(work)

    def _made(self) -> Any:
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

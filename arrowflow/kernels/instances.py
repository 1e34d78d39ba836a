"""Instances of classes that are called as functions: who lends them, and how they are closed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from arrowflow.errors import said


class Instances(Protocol):
    """The instances of one class."""

    def call(self, work: Callable[[Any], Any]) -> Any:
        """Returns the value of `work` for an instance that no other call has meanwhile; made now if none is idle.

        An instance is made, used and closed on one thread, its own. Any worker, several calls at once.

        Raises:
            Exception: The exception of `work`, or of making the instance.
        """


class Lender(Protocol):
    """Keeps instances until its end, and then calls the method `close` of each that has one."""

    def instances(self, owner: Hashable, make: Callable[[], Any], name: str) -> Instances:
        """Returns the instances that belong to an owner. Any thread.

        Args:
            owner: An operator, say.
            make: Makes an instance; called on the instance's thread.
            name: The name of the class, for warnings.
        """


class _One:
    """One instance, on the only thread."""

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self.name = name
        self.instance: Any = None
        self._make = make

    def call(self, work: Callable[[Any], Any]) -> Any:
        """Returns the value of `work` for the instance."""
        if self.instance is None:
            self.instance = self._make()
        return work(self.instance)


class OneEach:
    """A lender of one instance each, where one thread makes all calls."""

    def __init__(self) -> None:
        self._of: dict[Hashable, _One] = {}

    def instances(self, owner: Hashable, make: Callable[[], Any], name: str) -> Instances:
        """Returns the owner's instance."""
        return self._of.setdefault(owner, _One(make, name))

    def close(self) -> list[str]:
        """Closes all instances; returns what is wrong with those that could not be closed."""
        return [
            text for one in self._of.values() if (text := close_instance(one.instance, one.name)) is not None
        ]


def close_instance(instance: Any, name: str) -> str | None:
    """Calls an instance's `close`, if it has one; returns what is wrong if it raised.

    Examples:
        >>> close_instance(None, "Model")
    """
    close = getattr(instance, "close", None)
    if not callable(close):
        return None
    try:
        close()
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever a user's code raises)
        return f"{name}.close() raised {said(error)}"
    return None

"""Values of any kind as a digest that is the same in every process, or an error that names the part without a digest.

A value with parts is written part by part. Each part says its kind and its length, so that two values with the same
digest are the same. Functions, classes, objects, lists and dicts can refer to themselves. So each is written once, and
then named by the number of its first appearance: thus cycles end and shared parts stay shared. The bodies of functions
and classes come after all else, one after the other. So recursion is as deep as the data, and not as the calls.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from arrowflow.errors import ArrowflowError, FingerprintError, said

Writer = Callable[["Encoder", Any], bool]
"""Writes a value if it knows the value's kind; says whether it does."""

HINT = 'give cache(path, key="…"), and another key whenever something changes that the key stands for'


class Encoder:
    """Writes values, one after the other.

    Args:
        writers: The writers of the kinds of values; the first writer that knows the value writes it.
        steps: The path to the value, for errors: from the outside in.

    Attributes:
        is_data: Whether the values come from a source, whose values nobody changes while a plan with the source is
            in use.
    """

    def __init__(self, writers: Sequence[Writer], steps: Sequence[str] = ()) -> None:
        self.is_data = False
        self._writers = writers
        self._steps = list(steps)
        self._hasher = hashlib.blake2b(digest_size=16)
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # while these objects live, no other object has their `id`
        self._later: deque[tuple[list[str], Callable[[], None]]] = deque()

    def put(self, kind: str, *parts: Any) -> None:
        """Writes a kind and its parts, each a text or something with a buffer."""
        for part in (kind, *parts):
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            view = memoryview(data)
            self._hasher.update(view.nbytes.to_bytes(8, "little"))
            self._hasher.update(view)

    def write(self, value: Any, step: str | None = None) -> None:
        """Writes a value; `step` says its place in the value around it.

        Raises:
            FingerprintError: Nothing distinguishes the value, or a part of it, from others of its kind.
        """
        with self.at(step):
            try:
                is_written = any(writer(self, value) for writer in self._writers)
            except (ArrowflowError, RecursionError, MemoryError):
                raise
            except Exception as error:
                raise self.refusal(value, f"it cannot be read ({said(error)})") from error
            if not is_written:
                raise self.refusal(value, "nothing is known of such objects")

    def is_known(self, value: Any) -> bool:
        """Writes the number of an object that was written before; returns whether it was."""
        number = self._numbers.setdefault(id(value), len(self._numbers))
        if number == len(self._kept):
            self._kept.append(value)
            return False
        self.put("again", str(number))
        return True

    def digest_of(self, value: Any, step: str) -> bytes:
        """Returns the digest of a value alone, as if nothing had been written before."""
        alone = Encoder(self._writers, self._steps)
        alone.write(value, step)
        return alone.digest()

    def later(self, write: Callable[[], None]) -> None:
        """Calls `write` after all that is now being written."""
        self._later.append((list(self._steps), write))

    def digest(self) -> bytes:
        """Returns 16 bytes that identify all written values."""
        while self._later:
            self._steps, write = self._later.popleft()
            write()
        return self._hasher.digest()

    @contextmanager
    def at(self, step: str | None) -> Iterator[None]:
        """Notes, for errors, the place of the values that are written in the meantime."""
        if step is None:
            yield
            return
        self._steps.append(step)
        try:
            yield
        finally:
            self._steps.pop()

    def refusal(self, value: Any, why: str) -> FingerprintError:
        """Returns the error for a value that has no fingerprint.

        Args:
            value: The value.
            why: The reason, as a sentence.
        """
        kind = type(value)
        name = (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
        return FingerprintError(
            f"{self._place()} is of type {name}, and nothing tells whether it is the same in another run: {why}. "
            f"Leave it out of what the operator refers to, or {HINT}"
        )

    def _place(self) -> str:
        """Returns the place of the current value, as in "attribute 'lock' of global 'model' of `decode`"."""
        functions = [index for index, step in enumerate(self._steps) if step.startswith("`")]
        last = functions[-1] if functions else 0
        place = " of ".join(reversed(self._steps[last:])) or "the value"
        users = [self._steps[index] for index in reversed(functions[:-1])]
        return place + "".join(f", which {user} uses" for user in users) + "," * bool(users)

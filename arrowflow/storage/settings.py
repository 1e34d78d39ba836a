"""`Settings`: the arguments of a client that a user gives with an address, and texts without the secrets in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from arrowflow.errors import ArrowflowError, PlanError, shown, without_credentials
from arrowflow.storage.clients import unknown_names

_SECRET: Final = re.compile(
    r"key|secret|token|pass|credential|sig|auth|connection_string|header|cookie", re.IGNORECASE
)

LEAST_LETTERS: Final = 8
"""Shorter values are words such as `test`, which stand in paths and messages, too; no service gives out such keys."""


@dataclass(slots=True, repr=False)
class Settings:
    """The values of `storage_options=`. Its `repr` has names alone; pickles keep the values.

    Examples:
        >>> Settings({"key": "AKIA", "secret": "s3cr3t"})
        Settings(key=…, secret=…)
    """

    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}=…' for name in self.options)})"


def place_of(operator: str, filesystem: Any, storage_options: Any) -> Any:
    """Returns the one of both arguments that a user gave, `storage_options` as `Settings`; None where there is none.

    Raises:
        PlanError: Both are given, or `storage_options` is no mapping from names to values.

    Examples:
        >>> place_of("read_csv", None, {"anon": True})
        Settings(anon=…)
    """
    if storage_options is None:
        return filesystem
    if not isinstance(storage_options, Mapping) or not all(isinstance(name, str) for name in storage_options):
        raise PlanError(
            f"{operator}: storage_options is a mapping from names to values, got {type(storage_options).__name__}"
        )
    if filesystem is not None:
        raise PlanError(
            f"{operator}: storage_options are for the client that an address needs, and filesystem= is a client: give "
            "one of both"
        )
    return Settings(dict(storage_options))


def wrong_settings(address: str, place: Any, error: BaseException) -> PlanError | None:
    """Returns the error of an option that the client of an address does not know; None if an error comes from none.

    Readers, writers and caches ask it of each error of a client, before they take it for one of the storage.
    """
    options = place.options if isinstance(place, Settings) else {}
    problem = unknown_names(address, options, error) if options else None
    return None if problem is None else PlanError(problem)


def failed(
    kind: type[ArrowflowError], text: str, address: str, place: Any, error: BaseException
) -> ArrowflowError:
    """Returns the error to raise for one of a client: that of a wrong option, or one of this kind without secrets."""
    return wrong_settings(address, place, error) or kind(without_secrets(text, place))


def without_secrets(text: str, place: Any = None) -> str:
    """Returns a text without the passwords and keys in its URLs, and without those of `Settings` that stand in it as words.

    Examples:
        >>> without_secrets("no s3://AKIA:s3cr3t@bucket/a and https://host/a?sig=Zm9v&v=1")
        'no s3://…@bucket/a and https://host/a?sig=…&v=1'
    """
    if isinstance(place, Settings):
        for secret in sorted(_secrets(place.options, is_secret=False), key=len, reverse=True):
            text = re.sub(rf"(?<![^\W_]){re.escape(secret)}(?![^\W_])", "…", text)
    return without_credentials(text)


def shown_paths(paths: object) -> str:
    """Returns paths as a user named them, without secrets."""
    return without_secrets(shown(paths))


def _secrets(value: Any, *, is_secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _secrets(each, is_secret=is_secret or bool(_SECRET.search(str(name))))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _secrets(each, is_secret=is_secret)
    elif isinstance(value, bytes):
        yield from _secrets(value.decode(errors="replace"), is_secret=is_secret)
    elif isinstance(value, str) and is_secret and len(value) >= LEAST_LETTERS:
        yield value

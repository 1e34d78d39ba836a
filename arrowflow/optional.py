"""Packages that are extras: imported when what needs them is first used."""

from __future__ import annotations

import importlib
from typing import Any

from arrowflow.errors import MissingPackageError


def optional(module: str, *, user: str, extra: str) -> Any:
    """Imports a module of a package that may be missing.

    Args:
        module: Its name.
        user: What needs it, for the message.
        extra: The extra that installs it.

    Raises:
        MissingPackageError: It cannot be imported; the message says how to install it.

    Example:
        >>> optional("json", user="to_json", extra="json").dumps([1])
        '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{user} needs the module {module}, which cannot be imported ({error}): pip install 'arrowflow[{extra}]'"
        ) from error

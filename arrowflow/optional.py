"""Packages that are extras: they are imported at the first use of a feature that needs them."""

from __future__ import annotations

import importlib
from typing import Any

from arrowflow.errors import MissingPackageError


def optional(module: str, *, user: str, extra: str) -> Any:
    """Imports a module of a package that may be missing.

    Args:
        module: Name of the module.
        user: The function that needs the module, for the message.
        extra: The extra that installs it.

    Raises:
        MissingPackageError: The module cannot be imported; the message says how to install it.

    Examples:
        >>> optional("json", user="to_json", extra="json").dumps([1])
        '[1]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{user} needs the module {module}, which cannot be imported ({error}): pip install 'arrowflow[{extra}]'"
        ) from error

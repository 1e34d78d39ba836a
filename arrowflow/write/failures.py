"""Errors of file systems that writers meet, as errors of this library."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from arrowflow.errors import ArrowflowError, WriteError
from arrowflow.storage import about_credentials, is_of_client, without_secrets, wrong_settings


def local_failure(error: Exception, path: str) -> ArrowflowError | None:
    """Returns the error to tell in place of one of this machine's file system, or of an encoder; None for other errors."""
    return _not_written(_said(error), path) if isinstance(error, OSError | pa.ArrowException) else None


def remote_failure(
    error: Exception, path: str, *, address: str, settings: Any, is_reached: bool
) -> ArrowflowError | None:
    """Returns the error to tell in place of one of a client, or of an encoder; None for other errors.

    Args:
        error: The error.
        path: The folder to write, in its file system.
        address: The address that the user gave.
        settings: The `Settings` of the client, or None.
        is_reached: Whether a shard is open. Before that, any error is one of the client.
    """
    if (wrong := wrong_settings(address, settings, error)) is not None:
        return wrong
    if is_reached and not (isinstance(error, OSError | pa.ArrowException) or is_of_client(error)):
        return None
    text = about_credentials(_said(error))
    if not is_reached:
        text = f"{text}; check the address, the credentials, storage_options= and the network"
    return _not_written(without_secrets(text, settings), path)


def _not_written(text: str, path: str) -> ArrowflowError:
    return WriteError(f"cannot write: {text}; nothing of it is visible").locate(file=path)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:500]}"

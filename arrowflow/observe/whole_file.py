"""`write_whole`: a text file that appears when it is complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from arrowflow.errors import PlanError, SourceError, shown


def write_whole(path: str | os.PathLike[str], texts: Iterable[str], *, operator: str, name: str) -> None:
    """Writes texts to a file, one after the other. A file of the same name is replaced once the new one is complete.

    Errors tell the operator, which is the method that a user called, and the name, which is the kind of file.

    Raises:
        SourceError: The folder does not exist, or cannot be written to; or the path is a folder.
        PlanError: The path is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise PlanError(f"{operator}: the path of the {name} is a text or a Path, got {shown(path)}")
    target = Path(path)
    check_folder(target, operator=operator, name=name)
    part = target.parent / f".{target.name}.{os.urandom(4).hex()}"
    try:
        with part.open("x", encoding="utf-8") as file:
            file.writelines(texts)
        part.replace(target)
    except OSError as error:
        is_folder = os.path.isdir(target)  # noqa: PTH112  (`Path.is_dir` raises for names that are too long)
        why = "it is a folder; name a file in it" if is_folder else error
        raise SourceError(f"{operator}: the {name} cannot be written to {str(target)!r}: {why}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def check_folder(path: Path, *, operator: str, name: str) -> None:
    """Raises `SourceError` if the folder of a file that is to be written does not exist."""
    if not path.parent.is_dir():
        raise SourceError(
            f"{operator}: there is no folder {str(path.parent)!r} for the {name}; make it first"
        )

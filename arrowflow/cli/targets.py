"""Datasets and loaders that a command line names as `module:name`."""

from __future__ import annotations

import importlib
import os
import sys

from arrowflow.dataset import Dataset
from arrowflow.errors import PlanError, closest, said, shown
from arrowflow.loaders.base import Loader

Target = Dataset | Loader[object]


def is_target(text: str) -> bool:
    """Returns whether a text names an object of a module, and no path or URL.

    Examples:
        >>> is_target("train:dataset"), is_target("s3://bucket/train"), is_target("data/a.parquet")
        (True, False, False)
    """
    module, mark, name = text.partition(":")
    dotted = [*module.split("."), *name.split(".")]
    return bool(mark) and all(part.isidentifier() for part in dotted)


def loaded(operator: str, text: str) -> Target:
    """Imports a module, with modules of the current folder, and returns its dataset or loader.

    A function is called without arguments, and returns it.

    Raises:
        PlanError: There is no such module or name, or it is something else.
    """
    if not is_target(text):
        raise PlanError(
            f"{operator}: expected module:name, such as train:dataset, got {shown(text)}; write `a.b` for `a/b.py`"
        )
    module, _, path = text.partition(":")
    folder = os.getcwd()  # noqa: PTH109  (an entry of `sys.path` is a text)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: object = importlib.import_module(module)
    except Exception as error:
        raise PlanError(f"{operator}: the module {module!r} cannot be imported ({said(error)})") from error
    for name in path.split("."):
        if not hasattr(found, name):
            known = [each for each in vars(found) if not each.startswith("_")] if path else []
            raise PlanError(f"{operator}: {module!r} has no {path!r}; {closest(name, known, kind='names')}")
        found = getattr(found, name)
    if callable(found) and not isinstance(found, Dataset | Loader):
        try:
            found = found()
        except Exception as error:
            raise PlanError(
                f"{operator}: {text}(), called without arguments, raised {said(error)}"
            ) from error
    if not isinstance(found, Dataset | Loader):
        raise PlanError(
            f"{operator}: {text} is no Dataset and no loader, and returns none, but {type(found).__name__}"
        )
    return found

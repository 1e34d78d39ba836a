"""The inputs that a command line names: files, with their format, or a dataset or loader as `module:name`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from arrowflow.dataset import Dataset
from arrowflow.errors import PlanError, closest, said, shown
from arrowflow.formats import FORMATS, known_names
from arrowflow.loaders.base import Loader
from arrowflow.ops.sources.files.read import Read
from arrowflow.ops.sources.list_files import ANY_SUFFIX
from arrowflow.ops.sources.read_files import IMAGE_SUFFIXES
from arrowflow.plan.file_source import FileSource
from arrowflow.plan.walk import post_order
from arrowflow.sources import read, read_delta, read_iceberg, read_images, read_lance
from arrowflow.storage import lake_of, resolve

Target = Dataset | Loader[object]

TABLES: Final[dict[str, tuple[str, Callable[[str], Dataset]]]] = {
    "delta": ("Delta Lake", read_delta),
    "iceberg": ("Apache Iceberg", read_iceberg),
    "lance": ("Lance", read_lance),
}
"""The tables of lakes that `--format` names, and that a local folder tells."""
IMAGES: Final = "images"
"""The name by which `--format` asks for files of images."""


def dataset_of(operator: str, paths: Sequence[str], format: str | None) -> Dataset:
    """Returns the dataset of some paths. By default their endings, or those of the files in a folder, tell the format.

    Raises:
        PlanError: The format is not known, or the files have several formats.
    """
    one = paths[0] if len(paths) == 1 else list(paths)
    if format is not None and format not in (known := _known()):
        raise PlanError(f"{operator}: --format: no format {shown(format)}; known formats: {', '.join(known)}")
    format = format or _format_of(operator, paths)
    if format in TABLES:
        if not isinstance(one, str):
            raise PlanError(
                f"{operator}: a table of {TABLES[format][0]} is one folder, got {len(paths)} paths"
            )
        return TABLES[format][1](one)
    return read_images(one) if format == IMAGES else read(one, format=format)


def source_of(dataset: Dataset) -> FileSource:
    """Returns the source of a dataset that reads files; lists them, and reads the first footer.

    Raises:
        PlanError: It is an empty table.
    """
    bound = dataset._ready().bound
    found = next((node for node in post_order(bound) if isinstance(node, FileSource)), None)
    if found is None:
        raise PlanError("the table has no files")
    return found


def columns_of(operator: str, dataset: Dataset) -> Read:
    """Returns the source of a dataset that reads files of columns.

    Raises:
        PlanError: It reads other files, or is an empty table.
    """
    found = source_of(dataset)
    if not isinstance(found, Read):
        raise PlanError(
            f"{operator}: {found.name} reads no files of Parquet, IPC, ORC, Avro or text, whose layout could be another one"
        )
    return found


def _format_of(operator: str, paths: Sequence[str]) -> str:
    lakes = {name: format for format, (name, _) in TABLES.items()}
    found = {lakes.get((lake_of(path) or ("",))[0]) or _told(path) for path in paths}
    if None in found:
        # All files, since a list of all endings would hide the others.
        files = resolve(list(paths), suffixes=ANY_SUFFIX, operator=operator)[1]
        found = {_told(file.path) for file in files}
        for beside in (None, IMAGES):  # such as a README or a plot beside the data
            if len(found) > 1:
                found.discard(beside)
    names = sorted(name or "?" for name in found)
    if names == ["?"] or len(names) > 1:
        problem = "no ending tells it" if names == ["?"] else f"the files end like those of {names}"
        known = ", ".join(_known())
        raise PlanError(f"{operator}: --format names the format of the files, one of {known}; {problem}")
    return names[0]


def _known() -> tuple[str, ...]:
    """Returns what `--format` takes."""
    return (*known_names(), IMAGES, *TABLES)


def _told(path: str) -> str | None:
    """Returns the name of the format that the ending of a path tells."""
    name = path.lower()
    if name.endswith(".metadata.json"):
        return "iceberg"
    for format, known in FORMATS.items():
        if name.endswith((f".{format}", *filter(None, known.suffixes))):
            return format
    return IMAGES if name.endswith(IMAGE_SUFFIXES) else None


# ---------------------------------------------------------------- objects of modules


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

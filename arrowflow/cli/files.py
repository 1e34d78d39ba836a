"""The files that the paths of a command line mean, and their format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from arrowflow.dataset import Dataset
from arrowflow.errors import PlanError, shown
from arrowflow.formats import FORMATS, known_names
from arrowflow.ops.sources.files.read import Read
from arrowflow.ops.sources.list_files import ANY_SUFFIX
from arrowflow.ops.sources.read_files import IMAGE_SUFFIXES
from arrowflow.plan.file_source import FileSource
from arrowflow.plan.walk import post_order
from arrowflow.sources import read, read_delta, read_iceberg, read_images, read_lance
from arrowflow.storage import lake_of, resolve

TABLES: Final[dict[str, tuple[str, Callable[[str], Dataset]]]] = {
    "delta": ("Delta Lake", read_delta),
    "iceberg": ("Apache Iceberg", read_iceberg),
    "lance": ("Lance", read_lance),
}
"""The tables of lakes that `--format` names, and that a local folder tells."""
IMAGES: Final = "images"
"""The name by which `--format` asks for files of images."""


def dataset_of(operator: str, paths: Sequence[str], format: str | None) -> Dataset:
    """Returns the dataset of some paths.

    Args:
        operator: The command, for messages.
        paths: The paths.
        format: Name of the format; by default the endings of the paths, or of the files in a folder, tell it.

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

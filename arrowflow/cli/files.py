"""The files that the paths of a command line mean, and their format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from arrowflow.dataset import Dataset
from arrowflow.errors import PlanError
from arrowflow.formats import FORMATS, known_names
from arrowflow.ops.sources.files.read import Read
from arrowflow.plan.walk import post_order
from arrowflow.sources import read, read_delta
from arrowflow.storage import resolve

DELTA: Final = "delta"
"""The name by which `--format` asks for a table of Delta Lake."""


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
    if format == DELTA or (format is None and isinstance(one, str) and Path(one, "_delta_log").is_dir()):
        if not isinstance(one, str):
            raise PlanError(f"{operator}: a Delta table is one folder, got {len(paths)} paths")
        return read_delta(one)
    return read(one, format=format or _format_of(operator, paths))


def source_of(dataset: Dataset) -> Read:
    """Returns the source of a dataset that reads files; lists them, and reads the first footer.

    Raises:
        PlanError: It is an empty table.
    """
    bound = dataset._ready().bound
    found = next((node for node in post_order(bound) if isinstance(node, Read)), None)
    if found is None:
        raise PlanError("the table has no files")
    return found


def _format_of(operator: str, paths: Sequence[str]) -> str:
    found = {_told(path) for path in paths}
    if None in found:
        endings = tuple(ending for format in FORMATS.values() for ending in format.suffixes if ending)
        files = resolve(list(paths), suffixes=endings, operator=operator)[1]
        found = {_told(file.path) for file in files}
    names = sorted(name or "?" for name in found)
    if names == ["?"] or len(names) > 1:
        problem = "no ending tells it" if names == ["?"] else f"the files end like those of {names}"
        raise PlanError(
            f"{operator}: --format names the format of the files, one of {', '.join(known_names())}, delta; {problem}"
        )
    return names[0]


def _told(path: str) -> str | None:
    """Returns the name of the format that the ending of a path tells."""
    name = path.lower()
    for format, known in FORMATS.items():
        if name.endswith((f".{format}", *filter(None, known.suffixes))):
            return format
    return None

"""`arrowflow inspect`: what files hold, and how they hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from arrowflow.cli.files import dataset_of, source_of
from arrowflow.cli.output import size, write_json, write_table, write_text
from arrowflow.errors import counted
from arrowflow.formats import Footer
from arrowflow.formats.casting import has_same_values
from arrowflow.formats.protocol import footer_of
from arrowflow.formats.types import widens
from arrowflow.ops.sources.files.read import Read
from arrowflow.ops.sources.list_files import ListFiles
from arrowflow.ops.sources.read_lance import ReadLance
from arrowflow.plan.file_source import FileSource
from arrowflow.storage import File

TITLES: Final = ("column", "type", "tensor", "codec", "encodings", "bounds", "page index", "stored", "ratio")
"""The columns of the table; the first two are always there, the others where there is something to show."""
_LEVELS: Final = frozenset(("RLE", "BIT_PACKED"))
"""Encodings of levels, which nearly every column has beside that of its values. That of booleans may be one of them."""

MAX_LAYOUTS: Final = 64
"""The most files whose column chunks are looked at, each of which takes 5 µs. Sizes and rows are those of all files."""


Layout = Counter[tuple[str, str]]
"""How one column is stored in some row groups: how many chunks, of all leaves, have each codec, each encoding, bounds and a page
index; and their bytes in the file, and before compression."""


class FileFacts(NamedTuple):
    """The facts of one file's footer: rows and decoded bytes of each split, as the footer announces them, and more.

    Attributes:
        has_columns: Whether it has the columns of the first file, with the same types.
        has_types: Whether it has_columns, or those of them that are read have types that the reader takes, whatever the values.
        compressed: The record batches that are compressed, if it is an IPC file.
        layout: How the columns are stored, if it is a Parquet file and one of those to look at.
    """

    rows: tuple[int, ...]
    bytes: tuple[int, ...]
    has_columns: bool
    has_types: bool
    compressed: int
    layout: dict[str, Layout]


def run(paths: Sequence[str], *, format: str | None, as_json: bool) -> bool:
    """Shows what files hold; finds nothing to stop at."""
    source = source_of(dataset_of("inspect", paths, format))
    found = facts(source) if isinstance(source, Read) else _whole(source)
    write_json(found) if as_json else _show(found)
    return False


def _whole(source: FileSource) -> dict[str, Any]:
    """Returns what is known of whole files, and of a table that another library reads."""
    assert isinstance(source, ListFiles | ReadLance) and source.schema is not None
    sizes = [file.size for file in source.files] if isinstance(source, ListFiles) else None
    return {
        "format": source.name.removeprefix("read_"),
        "files": None if sizes is None else len(sizes),
        "rows": source.count_rows(()),
        "bytes": None if sizes is None else sum(sizes),
        "file_bytes": None if sizes is None else _spread(sizes),
        "columns": [_column(each, None) for each in source.schema],
    }


def facts(source: Read) -> dict[str, Any]:
    """Returns all that the command tells, as JSON values."""
    assert source.store is not None and source.first is not None and source.schema is not None
    every = max(1, -(-len(source.files) // MAX_LAYOUTS)) if source.format.name == "parquet" else 0
    calls = [
        partial(_facts, source, file, bool(every) and number % every == 0)
        for number, file in enumerate(source.files)
    ]
    files = source.store.together(calls)
    layouts: dict[str, Layout] = {}
    for file in files:
        for name, layout in file.layout.items():
            layouts.setdefault(name, Counter()).update(layout)
    rows = [count for file in files for count in file.rows]
    return {
        "format": source.format.name,
        "files": len(files),
        "rows": sum(rows),
        "bytes": sum(file.size for file in source.files),
        "file_bytes": _spread([file.size for file in source.files]),
        "split": source.format.part,
        "splits": len(rows),
        "split_rows": _spread(rows),
        "split_bytes": _spread([count for file in files for count in file.bytes]),
        "compressed_splits": sum(file.compressed for file in files),
        "files_with_other_columns": sum(not file.has_columns for file in files),
        "files_with_other_types": sum(not file.has_types for file in files),
        "files_looked_into": sum(bool(file.layout) for file in files),
        "columns": [_column(each, layouts.get(each.name)) for each in source.schema],
    }


def _facts(source: Read, file: File, with_layout: bool) -> FileFacts:
    assert source.store is not None and source.first is not None
    footer = footer_of(source.operator, source.format, source.store, file)
    has_columns = footer.schema.equals(source.first.schema)
    return FileFacts(
        tuple(split.num_rows for split in footer.splits),
        tuple(split.num_bytes for split in footer.splits),
        has_columns,
        has_columns or _has_types(source, footer.schema),
        sum(footer.details.compressed) if source.format.name == "ipc" else 0,
        _layout_of(footer) if with_layout else {},
    )


def _layout_of(footer: Footer) -> dict[str, Layout]:
    """Returns how a Parquet file stores each column.

    Raises:
        SourceError: The footer is corrupt.
    """
    details = footer.details
    found: dict[str, Layout] = {}
    for split in footer.splits:
        group = details.row_group(split.index)
        for name, (first, end) in details.columns.leaves.items():
            for leaf in range(first, end):
                chunk = group.column(leaf)
                layout = found.setdefault(name, Counter())
                layout["chunks", ""] += 1
                layout["codecs", chunk.compression] += 1
                layout.update(("encodings", each) for each in chunk.encodings)
                layout["bounds", ""] += bool(chunk.is_stats_set and chunk.statistics.has_min_max)
                layout["page_index", ""] += bool(chunk.has_offset_index)
                layout["stored_bytes", ""] += chunk.total_compressed_size
                layout["values_bytes", ""] += chunk.total_uncompressed_size
    return found


def _has_types(source: Read, found: pa.Schema) -> bool:
    assert source.schema is not None
    wanted = {each.name: each.type for each in source.schema}
    takes = widens if source.leniency["widen"] else has_same_values
    return all(takes(each.type, wanted[each.name]) for each in found if each.name in wanted)


def _spread(values: Sequence[int]) -> dict[str, int]:
    if not values:
        return {"least": 0, "median": 0, "most": 0}
    return {"least": min(values), "median": int(np.median(values)), "most": max(values)}


def _column(column: pa.Field, layout: Layout | None) -> dict[str, Any]:
    shape = tensor_shape(column.type)
    found: dict[str, Any] = {"name": column.name, "type": str(column.type)}
    if shape:
        found["tensor_shape"] = list(shape)
    if layout is not None:
        encodings = {value for kind, value in layout if kind == "encodings"}
        found |= {
            "codecs": sorted(value for kind, value in layout if kind == "codecs"),
            "encodings": sorted(encodings - _LEVELS) or sorted(encodings),
            **{name: layout[name, ""] / layout["chunks", ""] for name in ("bounds", "page_index")},
            **{name: layout[name, ""] for name in ("stored_bytes", "values_bytes")},
        }
    return found


def tensor_shape(type: pa.DataType) -> tuple[int, ...]:
    """Returns the shape of the tensor that each row of a type holds; empty if it is no tensor.

    Examples:
        >>> tensor_shape(pa.list_(pa.list_(pa.uint8(), 3), 224))
        (224, 3)
    """
    if isinstance(type, pa.FixedShapeTensorType):
        return tuple(type.shape)
    if pa.types.is_fixed_size_list(type):
        return (type.list_size, *tensor_shape(type.value_type))
    return ()


# ---------------------------------------------------------------- on a terminal


def _show(found: dict[str, Any]) -> None:
    count = counted(found["rows"], "row")
    if found["files"] is None:
        write_text(f"a table of {found['format'].capitalize()}, {count}")
    else:
        files = counted(found["files"], f"{found['format'].removesuffix('s')} file")
        write_text(f"{files}, {size(found['bytes'])}, {count}")
        if found["files"] > 1:
            write_text(f"a file: {_between(found['file_bytes'], size)}")
    if found.get("splits"):
        write_text(
            f"{counted(found['splits'], str(found['split']))}: {_between(found['split_rows'], '{:,}'.format)} "
            f"row{'s' * (found['split_rows']['most'] != 1)}, "
            f"{_between(found['split_bytes'], size)} decoded"
        )
    if found.get("compressed_splits"):
        write_text(
            f"compressed: {found['compressed_splits']:,} of them, which readers cannot map into memory"
        )
    if found.get("files_with_other_columns"):
        write_text(
            f"{counted(found['files_with_other_columns'], 'file')} with other columns or types than the first"
        )
    with_layout = found.get("files_looked_into", 0)
    if with_layout and with_layout < found["files"]:
        write_text(f"the table is about {counted(found['files_looked_into'], 'file')}, evenly spread")
    rows = list(map(_cells, found["columns"]))
    header = [title for title in TITLES if title in TITLES[:2] or any(title in row for row in rows)]
    cells = [[row.get(title, "") for title in header] for row in rows]
    write_table(header, cells, numbers=("stored", "ratio"))


def _between(spread: dict[str, int], shown: Any) -> str:
    least, median, most = (shown(spread[name]) for name in ("least", "median", "most"))
    return least if least == most else f"{least} to {most}, median {median}"


def _cells(column: dict[str, Any]) -> dict[str, str]:
    """Returns the cells that a column has, by their titles."""
    found = {"column": column["name"], "type": column["type"]}
    if "tensor_shape" in column:
        found["tensor"] = ", ".join(map(str, column["tensor_shape"]))
    if "codecs" in column:
        stored = column["stored_bytes"]
        found |= {
            "codec": ", ".join(column["codecs"]).lower(),
            "encodings": ", ".join(column["encodings"]).lower(),
            "bounds": _part(column["bounds"]),
            "page index": _part(column["page_index"]),
            "stored": size(stored),
            "ratio": f"{column['values_bytes'] / stored:.1f}" if stored else "",
        }
    return found


def _part(share: float) -> str:
    return "yes" if share == 1 else "no" if share == 0 else f"{share:.0%} of chunks"

"""The contracts of every file format, as one check that raises `AssertionError`."""

from __future__ import annotations

import pickle
import random
import tempfile
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Final

import pyarrow as pa

from arrowflow.errors import DataError, PlanError, SchemaError, SourceError
from arrowflow.formats import (
    Footer,
    Format,
    InPlaceFormat,
    PiecesFormat,
    PooledFormat,
    RunFormat,
    Split,
    Unsure,
    Untyped,
    decoded_schema,
)
from arrowflow.lazy import fs as pafs
from arrowflow.sources import read
from arrowflow.storage import File, Mapped, Store, resolve
from arrowflow.testing.contracts import check_dataset, check_resume
from arrowflow.testing.equality import assert_same_rows

Write = Callable[[pa.Table, Path], object]
"""Writes a table to a file of the format, in several splits."""

TABLE: Final = pa.table(
    {
        "id": pa.array(range(60), pa.int64()),
        "value": pa.array([None if row % 7 == 3 else row / 4 for row in range(60)], pa.float64()),
        "text": pa.array([None if row % 5 == 2 else f"row {row}" for row in range(60)], pa.string()),
    }
)
ABSENT: Final = "no such column"


def check_format(
    format: Format,
    files: Write | str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    table: pa.Table | None = None,
    has_end: bool = True,
    has_splits: bool = True,
) -> None:
    """Checks all contracts of a format, on local files and on files whose bytes are fetched.

    Footers and splits add up to the rows. Any split alone, from any row on, gives the rows of the whole, and columns
    can be picked. Datasets resume from every batch, and survive a pickle unchanged. Announced sizes hold. A file that
    is empty, cut off or garbage ends in a typed error that names the file.

    Args:
        format: The format with its options, such that a file has several splits.
        files: Local files of some hundred rows at most; or a function that writes a table to a path.
        table: The rows of the files in order, or the rows to write. The default is 60 rows of an int64 `id`, a
            float64 `value` and a string `text`, the latter two with nulls.
        has_end: Whether a file tells that it is cut off. Texts do not, nor do records without a count or an end mark:
            they have to give the rows before the cut.
        has_splits: Whether files of the format can have several splits. One of the files then needs at least two.
            Compressed CSV, JSON and TFRecord files always have one.

    Raises:
        AssertionError: The format breaks a contract, or no file has several splits.

    Examples:
        >>> import pyarrow.parquet as pq
        >>> from arrowflow.formats import find
        >>> check_format(find("parquet"), lambda table, path: pq.write_table(table, path, row_group_size=25))
    """
    _check_pickled_format(format)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        if callable(files):
            table = TABLE if table is None else table
            paths = [folder / f"whole{format.suffixes[0]}"]
            files(table, paths[0])
        else:
            named = [files] if isinstance(files, str | PathLike) else files
            paths = [Path(path).resolve() for path in named]
        whole = read(paths, format=format).to_table() if table is None else table
        _check_files(format, paths, whole, has_splits=has_splits)
        _check_pipelines(format, paths, whole)
        _check_damaged(format, paths[0], whole, folder, has_end=has_end)


def _check_pickled_format(format: Format) -> None:
    """Checks that copies of a format are equal, and that it has the words by which it is found."""
    assert isinstance(format, Format), f"{format!r} lacks methods: derive from arrowflow.formats.Format"
    copy = pickle.loads(pickle.dumps(format))
    assert copy == format, f"a copy of {format!r} is not equal to it: make it a frozen dataclass"
    assert format.name.isidentifier(), f"the name {format.name!r} is no word"
    assert all(suffix == suffix.lower() for suffix in format.suffixes), f"{format.suffixes} are lower case"


# ---------------------------------------------------------------------------------------------- files


def _check_files(format: Format, paths: Sequence[Path], whole: pa.Table, *, has_splits: bool) -> None:
    """Checks the methods of the protocol, on files that are mapped, opened and fetched."""
    if isinstance(format, Untyped):
        format = format.typed(whole.schema, is_inferred=True)
    start = most_splits = 0
    for path in paths:
        rows = 0
        for store, file in _stores(path):
            footer = pickle.loads(pickle.dumps(format.footer(store, file)))
            rows, most_splits = footer.num_rows, max(most_splits, len(footer.splits))
            _check_footer(format, store, footer)
            first = start
            for split in footer.splits:
                _check_split(format, store, footer, split, whole.slice(first, split.num_rows))
                first += split.num_rows
            if isinstance(format, RunFormat) and store.is_local:
                _check_run(format, store, footer, whole.slice(start, rows))
        start += rows
    assert start == whole.num_rows, f"footers tell {start} rows, the files have {whole.num_rows}"
    assert most_splits > 1 or not has_splits, (
        "each file has one split, so resume and picked splits are not tested: pass a format whose options make "
        "smaller splits, or files with more rows; has_splits=False says that files never have several splits"
    )


def _check_pieces(
    format: PiecesFormat, store: Store, footer: Footer, split: Split, expected: pa.Table
) -> None:
    """Checks that rows in the middle of a split are those of the whole."""
    cuts = format.cuts(store, footer, split, footer.schema.names, 1)
    if cuts is None:
        return
    assert list(cuts) == sorted({*cuts} - {0, split.num_rows}), "cuts are rows within the split, in order"
    for start, stop in {(0, split.num_rows), (split.num_rows // 2, split.num_rows)}:
        batches = format.read_rows(store, footer, split, expected.schema, start, stop)
        found = pa.Table.from_batches(batches, expected.schema)
        _assert_same_table(found, expected.slice(start, stop - start), "read_rows")


def _check_run(format: RunFormat, store: Store, footer: Footer, rows: pa.Table) -> None:
    """Checks that splits decoded together are the same as splits decoded one by one."""
    run = format.read_run(store, [(footer, split) for split in footer.splits], rows.schema)
    if run is not None:
        expected = [split.num_rows for split in footer.splits]
        assert [batch.num_rows for batch in run] == expected, "read_run returns a batch for each split"
        _assert_same_table(pa.Table.from_batches(run, rows.schema), rows, "read_run")


def _assert_same_table(found: pa.Table, expected: pa.Table, what: str) -> None:
    """Raises `AssertionError` unless two tables have the same rows."""
    assert_same_rows(found.combine_chunks().to_batches(), expected.combine_chunks().to_batches(), what)


def _stores(path: Path) -> list[tuple[Store, File]]:
    """Returns the ways to one file: mapped, opened, and on a file system from which all bytes are fetched."""
    local, (file,) = resolve(path, suffixes=(), operator="read")
    remote = pafs.SubTreeFileSystem(str(path.parent), pafs.LocalFileSystem())
    fetched, (other,) = resolve(path.name, filesystem=remote, suffixes=(), operator="read")
    return [(local, file), (Store(local.filesystem, memory_map=False), file), (fetched, other)]


def _check_footer(format: Format, store: Store, footer: Footer) -> None:
    schema, splits = footer.schema, footer.splits
    assert schema.equals(decoded_schema(schema), check_metadata=True), (
        f"the footer's schema is {schema}, expected arrowflow.formats.decoded_schema of it"
    )
    indices = [split.index for split in splits]
    assert indices == list(range(len(splits))), f"splits have the numbers {indices}"
    rows = [split.num_rows for split in splits]
    assert sum(rows) == footer.num_rows, f"splits have {rows} rows, the footer tells {footer.num_rows}"
    if isinstance(format, Untyped):
        glanced = format.footer(store, footer.file, is_sample=True)
        assert glanced.schema.equals(schema), f"glance gives {glanced.schema}, footer gives {schema}"
        first = [split.num_rows for split in glanced.splits]
        assert len(first) <= len(rows) and sum(first) <= sum(rows), (
            f"glance gives splits of {first} rows, footer of {rows}"
        )
        held = format.holds(store, footer, [*schema.names, ABSENT])
        assert held == schema.names, f"the file holds {held} of its columns {schema.names} and {ABSENT!r}"


def _check_split(format: Format, store: Store, footer: Footer, split: Split, expected: pa.Table) -> None:
    names, rows = footer.schema.names, split.num_rows
    for offset in sorted({0, min(1, rows // 2), rows // 2, max(0, rows - 1)}):
        _check_rows(format, store, footer, split, expected, offset)
    for picked in ([], *([name] for name in names), names[::-1], [ABSENT, *names]):
        columns = [expected[name] if name in names else pa.nulls(rows, pa.int64()) for name in picked]
        wanted = pa.table(columns, picked) if picked else expected.select([])
        _check_rows(format, store, footer, split, wanted)
    if isinstance(format, PooledFormat):
        assert isinstance(format.engine(store), str)
        _check_rows(format.with_threads(2), store, footer, split, expected)
    if isinstance(format, InPlaceFormat):
        _check_in_place(format, store, footer, split, expected)
    if isinstance(format, PiecesFormat) and store.is_local and format.is_cut(footer, split, names):
        _check_pieces(format, store, footer, split, expected)


def _check_rows(
    format: Format, store: Store, footer: Footer, split: Split, expected: pa.Table, offset_rows: int = 0
) -> None:
    names = expected.column_names
    what = f"columns {names} of split {split.index} from row {offset_rows} on"
    ranges = [] if store.is_local else format.ranges(footer, split, names)
    source = store if store.is_local else store.fetch_ahead(footer.file, ranges)
    batches = list(format.read(source, footer, split, expected.schema, offset_rows))
    assert batches, f"{what}: no batch, expected at least one, of no rows if need be"
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(expected.schema, check_metadata=True), f"{what}: found {batch.schema}"
    found = sum(batch.num_rows for batch in batches)
    assert found == split.num_rows - offset_rows, f"{what}: found {found} of {split.num_rows} rows"
    if names:
        _assert_same_table(pa.Table.from_batches(batches), expected.slice(offset_rows), what)
    _check_sizes(format, footer, split, names, max(batch.nbytes for batch in batches))


def _check_sizes(format: Format, footer: Footer, split: Split, names: list[str], num_bytes: int) -> None:
    known = [name for name in names if name != ABSENT]
    sizes = (format.column_bytes(footer, split, known), format.scratch_bytes(footer, split, known))
    assert all(type(size) is int and size >= 0 for size in sizes), f"sizes are {sizes}"
    least = format.column_bytes(footer, split, known[:1])
    assert least <= sizes[0], f"column_bytes: {known[:1]} take {least}, {known} take {sizes[0]}"
    is_unsure = isinstance(format, Unsure) and format.unsure(footer, split, known)
    if len(known) == len(footer.schema) == len(names) and not is_unsure:
        assert num_bytes <= sum(sizes), f"a batch takes {num_bytes} bytes, the format announced {sum(sizes)}"


def _check_in_place(
    format: InPlaceFormat, store: Store, footer: Footer, split: Split, expected: pa.Table
) -> None:
    try:
        format.check_in_place(store, footer)
    except PlanError:
        return
    batches = format.read(Mapped(store, footer.file), footer, split, expected.schema)
    _assert_same_table(pa.Table.from_batches(batches), expected, f"split {split.index} in place")


# ------------------------------------------------------------------------------------------ pipelines


def _check_pipelines(format: Format, paths: Sequence[Path], whole: pa.Table) -> None:
    """Checks that datasets of the files keep the contracts of all datasets, and that filters find all of their rows."""
    _assert_same_table(read(paths, format=format).to_table(), whole, "all files")
    check_resume(lambda: read(paths, format=format))
    size = max(1, whole.num_rows // 20)
    check_dataset(lambda: read(paths, format=format).batch(size))
    for name in whole.column_names:
        picked = read(paths, format=format, columns=[name]).skip(size).take(2 * size).to_table()
        expected = whole.select([name]).slice(size, 2 * size)
        _assert_same_table(picked, expected, f"some rows of column {name!r}")


# -------------------------------------------------------------------------------------------- damage


def _check_damaged(
    format: Format, path: Path, whole: pa.Table, folder: Path, *, has_end: bool = True
) -> None:
    """Checks that a damaged copy of a file ends in a typed error that names it, or yields its undamaged rows."""
    content = path.read_bytes()
    size = len(content)
    ends = sorted({0, 1, size // 3, size // 2, size - 1})
    copies = {f"cut to {end} of {size} bytes": content[:end] for end in ends}
    copies["of zeros"] = bytes(size)
    copies["of garbage"] = random.Random(0).randbytes(size)
    copy = folder / f"damaged {path.name}"
    for what, damaged in copies.items():
        copy.write_bytes(damaged)
        found = _read_damaged(format, copy, whole.schema)
        if isinstance(found, Exception):
            assert isinstance(found, SourceError | SchemaError | DataError), (
                f"a file {what}: expected a SourceError, got {found!r}"
            )
            assert found.file == str(copy), f"a file {what}: the error names {found.file!r}: {found}"
            continue
        assert not has_end, f"a file {what} gave {found.num_rows} rows; expected an error"
        if what.startswith("cut"):
            sure = max(0, found.num_rows - 1)  # the last row may be cut, too
            _assert_same_table(found.slice(0, sure), whole.slice(0, sure), f"a file {what}")


def _read_damaged(format: Format, path: Path, schema: pa.Schema) -> pa.Table | Exception:
    try:
        return read(path, format=format, schema=schema if isinstance(format, Untyped) else None).to_table()
    except Exception as error:  # noqa: BLE001  # the caller checks it
        return error

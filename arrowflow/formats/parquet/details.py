"""The details of a footer: what `ParquetFormat` knows of a file."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import pyarrow as pa

from arrowflow.errors import SourceError, repeated
from arrowflow.formats.parquet.arrow_decoder import ParquetFile
from arrowflow.formats.parquet.column_chunks import ColumnChunks
from arrowflow.formats.parquet.integers import as_integers
from arrowflow.formats.parquet.pages import Pages
from arrowflow.formats.parquet.thrift import elements, fields, list_header
from arrowflow.formats.protocol import Split, without_columns
from arrowflow.formats.types import decoded_schema, leaf_types, width_bits
from arrowflow.formats.varints import signed
from arrowflow.lazy import parquet as pq
from arrowflow.storage import File

MAGIC_BYTES: Final = 8
"""The bytes after the footer: its length, and `PAR1`."""

_CORRUPT: Final = "its footer is corrupt: write it anew, or leave it out"

_GOES_DOWN: Final = int(pa.__version__.split(".")[0]) < 26
_MAX_LEVELS: Final = 500
_SCHEMA, _CHILDREN = 2, 5
"""Numbers of fields: see parquet.thrift."""

SIGNATURE_BYTES: Final = 28
"""The bytes after a footer that is not encrypted although columns are: a nonce and a tag."""


@dataclass(slots=True, eq=False)
class Details:
    """The details that `ParquetFormat` keeps of a footer.

    Attributes:
        metadata: The parsed footer, handed to every reader so that it is parsed once. Of columns it may be asked by
            `row_group` alone.
        stored: The footer as it is stored, without its signature. pyarrow cannot write every footer that it can read:
            the process ends where one tells of encryption that the file does not have.
        file: The file.
        chunks: Facts of the column chunks that pyarrow does not offer.
        columns: The columns of the file.
        is_signed: Whether some columns are encrypted and the footer is not.
        first_page: The first bytes of a page, where the read of the footer brought them along; else empty.
        pages: The pages of column chunks that were cut, by row group and leaf.
        integers: The footer with decimals as integers, by the leaves that are decimals (see `integers`).
        is_checked: Whether the metadata of all column chunks are sound.
    """

    metadata: pq.FileMetaData
    stored: bytes
    file: File
    chunks: ColumnChunks
    columns: Columns
    is_signed: bool
    first_page: bytes
    pages: dict[tuple[int, int], Pages] = field(default_factory=dict)
    integers: dict[frozenset[int], pq.FileMetaData] = field(default_factory=dict)
    is_checked: bool = False

    def row_group(self, index: int) -> Any:
        """Returns pyarrow's metadata of a row group; raises `SourceError` if those of any column chunk are corrupt."""
        if not self.is_checked:
            _check_chunks(self.metadata, self.file)
            self.is_checked = True
        return self.metadata.row_group(index)

    def with_integers(self, leaves: frozenset[int]) -> pq.FileMetaData:
        """Returns the footer with these leaves as plain integers, made once: each call that decodes asks for it."""
        found = self.integers.get(leaves)
        if found is None:
            found = self.integers[leaves] = as_integers(self.stored, leaves)
        return found

    def leaves_of(self, column: str, fields: Mapping[str, frozenset[str]]) -> list[int]:
        """Returns the leaves of a column; of a struct in `fields` those of these fields alone."""
        leaves, wanted = range(*self.columns.leaves[column]), fields.get(column)
        if wanted is None:
            return list(leaves)
        paths = ((leaf, self.metadata.schema.column(leaf).path.split(".")) for leaf in leaves)
        return [leaf for leaf, (_, name, *_) in paths if name in wanted]


def _check_chunks(metadata: pq.FileMetaData, file: File) -> None:
    """Raises `SourceError` if the metadata of a column chunk are corrupt.

    pyarrow lets C++ check the metadata of a column chunk when it is asked for the chunk. Where these are corrupt, or
    encrypted, that ends the process. A reader of rows goes through the same checks, and its errors are exceptions. So one
    reader is opened on zeros that are as long as the file. It checks all chunks, and fails at the first page at the latest.
    Measured: 100 µs a footer, and 0.5 µs a chunk.
    """
    # Memory that cannot be written counts for no limit of the system, and none of it is made before it is read.
    zeros = mmap.mmap(-1, file.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    source = pa.BufferReader(pa.py_buffer(zeros))
    groups, leaves = list(range(metadata.num_row_groups)), list(range(metadata.num_columns))
    try:
        opened = ParquetFile(source, metadata=metadata, pre_buffer=True)
        # A batch of one row: for all rows the reader would first make room.
        next(opened.reader.iter_batches(1, row_groups=groups, column_indices=leaves, use_threads=False), None)
    except (OSError, pa.ArrowException) as error:
        if "page header" not in str(error):  # which is about the zeros: the metadata are fine
            text = f"its footer is corrupt: {str(error).strip()[:300]}; write it anew, or leave it out"
            raise SourceError(text).locate(file=file.path) from None


class Columns:
    """The columns of a file, as its schema tells. The files of a dataset share them.

    Attributes:
        stored: The schema as the file has it.
        repeated: Names that several columns have.
        schema: The schema as it is read.
        leaves: For each column the number of its first leaf, and the number after its last leaf.
        leaf_bits: For each leaf the bits of one value, or None if that depends on the value.
        nested_leaves: Numbers of the leaves of nested columns.
        column_bits: The same for each column.
        fixed_bits: The bits of a row, without the columns whose values have no fixed size.
    """

    _latest: ClassVar[Columns | None] = None  # the next file has the same: 30 of 90 µs a footer

    def __init__(self, stored: pa.Schema) -> None:
        self.stored = stored
        self.repeated = tuple(repeated(stored.names))
        decoded = decoded_schema(stored)
        self.schema = without_columns(decoded, self.repeated)
        self.leaves: dict[str, tuple[int, int]] = {}
        types: list[pa.DataType] = []
        for name, type in zip(decoded.names, decoded.types, strict=True):
            first = len(types)
            types += leaf_types(type)
            if name not in self.repeated:
                self.leaves[name] = (first, len(types))
        self.leaf_bits = tuple(width_bits(type) for type in types)
        nested = (range(*self.leaves[field.name]) for field in self.schema if pa.types.is_nested(field.type))
        self.nested_leaves = frozenset(leaf for each in nested for leaf in each)
        self.column_bits = {field.name: width_bits(field.type) for field in self.schema}
        self.fixed_bits = sum(bits or 0 for bits in self.column_bits.values())

    @classmethod
    def of(cls, stored: pa.Schema, num_leaves: int) -> Columns:
        """Returns the columns of a file.

        Raises:
            SourceError: The file has another number of leaf columns than its schema.
        """
        found = cls._latest
        if found is None or not stored.equals(found.stored, check_metadata=True):
            found = cls._latest = cls(stored)
        if len(found.leaf_bits) != num_leaves:
            raise SourceError(
                f"expected {len(found.leaf_bits)} leaf columns for its schema, found {num_leaves}"
            )
        return found


def footer_length(tail: pa.Buffer, file: File) -> int:
    """Returns the bytes of the footer, its signature included, from the last bytes of the file."""
    last = tail.slice(max(0, tail.size - MAGIC_BYTES)).to_pybytes()
    magic = last[-4:] if file.size > MAGIC_BYTES else b""
    if magic == b"PARE":
        raise SourceError("the file is encrypted, which read_parquet does not support; decrypt it first")
    if magic != b"PAR1":
        raise SourceError(
            f"expected a Parquet file, which ends with b'PAR1', found {file.size} bytes that end with {magic!r}; "
            "the file is truncated or no Parquet file"
        )
    return int.from_bytes(last[:4], "little")


def check_nesting(footer: pa.Buffer) -> None:
    """Raises `SourceError` for a schema of so many levels that pyarrow before 26 ends the process on its way down."""
    if not _GOES_DOWN:
        return
    try:
        levels = _levels(footer.to_pybytes())
    except (IndexError, ValueError, StopIteration):
        return  # pyarrow will say so
    if levels > _MAX_LEVELS:
        raise SourceError(f"its schema is nested deeper than {_MAX_LEVELS} levels; {_CORRUPT}")


def _levels(footer: bytes) -> int:
    """Returns the levels of a schema; 0 if it has too few elements for too many levels."""
    schema = next(field for field in fields(footer, 0) if field.number == _SCHEMA)
    if list_header(footer, schema.start)[0] <= _MAX_LEVELS:
        return 0
    most = 0
    open_levels: list[int] = []  # the children that are still to come, of each level
    for at, _ in elements(footer, schema.start):
        children = next(
            (signed(footer, each.start)[0] for each in fields(footer, at) if each.number == _CHILDREN), 0
        )
        while open_levels and not open_levels[-1]:
            open_levels.pop()
        if open_levels:
            open_levels[-1] -= 1
        if children:
            open_levels.append(children)
        most = max(most, len(open_levels))
    return most


def splits_of(metadata: pq.FileMetaData, fixed_bits: int) -> Iterator[Split]:
    """Yields the row groups as splits.

    Raises:
        SourceError: The numbers of rows make no sense.
    """
    found = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.num_rows < 0:
            raise SourceError(f"row group {index} has {group.num_rows} rows; {_CORRUPT}")
        found += group.num_rows
        yield Split(index, group.num_rows, max(group.total_byte_size, group.num_rows * fixed_bits // 8))
    if metadata.num_rows not in (found, 0):  # some writers leave 0 there
        raise SourceError(
            f"its row groups have {found} rows, and the file has {metadata.num_rows}; {_CORRUPT}"
        )

"""The details of a footer: what `ParquetFormat` knows of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from arrowflow.errors import SourceError
from arrowflow.formats.parquet.pages import Pages
from arrowflow.formats.parquet.sizes import TextSizes
from arrowflow.formats.protocol import Split
from arrowflow.formats.types import leaf_types, width_bits
from arrowflow.lazy import parquet as pq
from arrowflow.storage import File

_TAIL_BYTES: Final = 8
SIGNATURE_BYTES: Final = 28
"""The bytes after a footer that is not encrypted although columns are: a nonce and a tag."""


@dataclass(frozen=True, slots=True, eq=False)
class Details:
    """The details that `ParquetFormat` keeps of a footer.

    Attributes:
        metadata: The parsed footer, handed to every reader so that it is parsed once.
        leaves: For each column the number of its first leaf, and the number after its last leaf.
        leaf_bits: For each leaf the bits of one value, or None if that depends on the value.
        column_bits: The same for each column.
        is_signed: Whether some columns are encrypted and the footer is not. The process ends if pyarrow is asked
            for the metadata of an encrypted column.
        text_sizes: The sizes of the texts of each column chunk, as the footer says.
        pages: The pages of column chunks that were cut, by row group and leaf.
    """

    metadata: pq.FileMetaData
    leaves: dict[str, tuple[int, int]]
    leaf_bits: tuple[int | None, ...]
    column_bits: dict[str, int | None]
    is_signed: bool
    text_sizes: TextSizes
    pages: dict[tuple[int, int], Pages] = field(default_factory=dict)

    def leaves_of(self, column: str, fields: Mapping[str, frozenset[str]]) -> list[int]:
        """Returns the leaves of a column; of a struct in `fields` those of these fields alone."""
        leaves, wanted = range(*self.leaves[column]), fields.get(column)
        if wanted is None:
            return list(leaves)
        paths = ((leaf, self.metadata.schema.column(leaf).path.split(".")) for leaf in leaves)
        return [leaf for leaf, (_, name, *_) in paths if name in wanted]


def check_magic(source: Any, file: File) -> int:
    """Returns the bytes of the footer, its signature included."""
    last = tail = b""
    if file.size > _TAIL_BYTES:
        source.seek(file.size - _TAIL_BYTES)
        last = source.read(_TAIL_BYTES)
        tail = last[-4:]
        source.seek(0)
    if tail == b"PARE":
        raise SourceError("the file is encrypted, which read_parquet does not support; decrypt it first")
    if tail != b"PAR1":
        raise SourceError(
            f"expected a Parquet file, which ends with b'PAR1', found {file.size} bytes that end with {tail!r}; "
            "the file is truncated or no Parquet file"
        )
    return int.from_bytes(last[:4], "little")


def details_of(metadata: pq.FileMetaData, schema: pa.Schema, *, is_signed: bool) -> Details:
    """Returns the details of a footer.

    Raises:
        SourceError: Its columns are not those of its schema.
    """
    leaves: dict[str, tuple[int, int]] = {}
    types: list[pa.DataType] = []
    for name, type in zip(schema.names, schema.types, strict=True):
        first = len(types)
        types += leaf_types(type)
        leaves[name] = (first, len(types))
    if len(types) != metadata.num_columns:
        raise SourceError(f"expected {len(types)} leaf columns for its schema, found {metadata.num_columns}")
    column_bits = {name: width_bits(type) for name, type in zip(schema.names, schema.types, strict=True)}
    leaf_bits = tuple(width_bits(type) for type in types)
    return Details(metadata, leaves, leaf_bits, column_bits, is_signed, TextSizes(metadata))


def splits_of(metadata: pq.FileMetaData, fixed_bits: int) -> Iterator[Split]:
    """Yields the row groups as splits."""
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        yield Split(index, group.num_rows, max(group.total_byte_size, group.num_rows * fixed_bits // 8))

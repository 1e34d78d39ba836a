"""`RowCounts`: which rows of each split of some files reach a place in a pipeline that drops rows.

Lanes are dealt equally many of the rows that are left, so that all ranks know how many steps they make. The epoch's order
of splits is another one in each epoch, so counts alone would not do: where a lane begins in the middle of a split, a bit
for each of its rows tells where. A file of counts takes an eighth of a byte a row, before compression.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowflow.errors import PlanError
from arrowflow.plan.node import Node
from arrowflow.plan.walk import post_order

_SCHEMA = pa.schema({"file": pa.int32(), "split": pa.int32(), "kept": pa.int64(), "bits": pa.binary()})
_OF, _VERSION = b"arrowflow.counts_of", b"arrowflow.counts_version"


@dataclass(frozen=True, eq=False)
class RowCounts:
    """The rows that are left of each split. Picklable; made by `af.count_rows`.

    Attributes:
        of: Identifies the pipeline, with the relative paths and sizes of its files.
        table: A row a split that has rows left: number of the file, of the split, rows that are left, a bit a row.
    """

    of: str
    table: pa.Table

    @property
    def num_rows(self) -> int:
        """Rows that are left in all."""
        return int(self._kept.sum())

    @cached_property
    def _kept(self) -> npt.NDArray[np.int64]:
        return self.table["kept"].to_numpy()

    @cached_property
    def _places(self) -> dict[tuple[int, int], int]:
        keys = zip(self.table["file"].to_pylist(), self.table["split"].to_pylist(), strict=True)
        return {key: place for place, key in enumerate(keys)}

    def kept(self, file: int, split: int) -> int:
        """Returns how many rows of a split are left."""
        place = self._places.get((file, split))
        return 0 if place is None else int(self._kept[place])

    def row(self, file: int, split: int, number: int) -> int:
        """Returns the number in its split of a row that is left, given its number among these."""
        bits = np.frombuffer(self.table["bits"][self._places[file, split]].as_py(), np.uint8)
        return int(np.flatnonzero(np.unpackbits(bits, bitorder="little"))[number])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes them to a local file, which is there as a whole or not at all."""
        part = Path(f"{os.fspath(path)}.{os.getpid()}.part")
        table = self.table.replace_schema_metadata({_OF: self.of, _VERSION: "1"})
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        try:
            with pa.ipc.new_file(str(part), table.schema, options=options) as writer:
                writer.write_table(table)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RowCounts:
        """Reads what `save` wrote.

        Raises:
            PlanError: There is no such file, or it was not written by `af.count_rows`.
        """
        try:
            with pa.memory_map(os.fspath(path)) as source:
                table = pa.ipc.open_file(source).read_all()
        except (OSError, pa.ArrowInvalid) as error:
            raise PlanError(
                f"assert_cardinality: count is a number or a file of counts; cannot read the counts in {os.fspath(path)!r} ({error}); "
                f"write them with {_CALL}"
            ) from None
        metadata = table.schema.metadata or {}
        if metadata.get(_VERSION) != b"1" or not table.schema.equals(_SCHEMA):
            raise PlanError(
                f"assert_cardinality: {os.fspath(path)!r} holds no counts of this release; write them with {_CALL}"
            )
        return cls(metadata[_OF].decode(), table.replace_schema_metadata(None))


_CALL = "af.count_rows(dataset, save=path)"


class Counting:
    """Collects the rows that are left, split by split, in any order.

    Args:
        of: Identifies the pipeline.
    """

    def __init__(self, of: str) -> None:
        self._of = of
        self._rows: dict[tuple[int, int], list[npt.NDArray[np.int64]]] = {}

    def add(self, file: int, split: int, rows: npt.NDArray[np.int64]) -> None:
        """Adds rows of a split, by their numbers in it."""
        self._rows.setdefault((file, split), []).append(rows)

    def counts(self) -> RowCounts:
        """Returns all that was added."""
        made: list[tuple[int, int, int, bytes]] = []
        for (file, split), parts in sorted(self._rows.items()):
            rows = np.concatenate(parts)
            bits = np.zeros(int(rows.max()) + 1, np.uint8)
            bits[rows] = 1
            if int(bits.sum()) < len(rows):
                raise PlanError(
                    "count_rows: rows are repeated; count them before the operator that repeats them"
                )
            made.append((file, split, len(rows), np.packbits(bits, bitorder="little").tobytes()))
        splits = [dict(zip(_SCHEMA.names, split, strict=True)) for split in made]
        return RowCounts(self._of, pa.Table.from_pylist(splits, schema=_SCHEMA))


def known_as(plan: Node) -> str:
    """Returns a text that identifies a bound plan by its operators, their arguments, and its files."""
    told = [[node.name, node.arguments()] for node in post_order(plan)]
    return hashlib.blake2b(json.dumps(told, default=str).encode(), digest_size=16).hexdigest()

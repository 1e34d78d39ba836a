"""Some row groups of a source, read as they are, and written anew in another layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from arrowflow.cli.rewrite import with_lists, writer_options
from arrowflow.clock import WallClock
from arrowflow.dataset import Dataset
from arrowflow.formats.protocol import footer_of
from arrowflow.ops.sources.files.read import Read
from arrowflow.options import available_cpus
from arrowflow.sources import read
from arrowflow.write.encoders import PARQUET_CODECS

MIB: Final = 1 << 20
WANTED_GROUP_BYTES: Final = 32 * MIB
SAMPLE_BYTES: Final = 64 * MIB
"""The decoded bytes of a sample: some 50 ms, in which a difference of a fifth is seen."""
MAX_SAMPLE_BYTES: Final = 512 * MIB
MAX_FILES: Final = 512
LEAST_TURNS, MOST_TURNS, SECONDS = 5, 20, 1.0

_CLOCK: Final = WallClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The first rows of a source.

    Attributes:
        files: How many files hold them.
        group_rows: The rows of a row group to write.
        to: The format to write.
        compression: The codec to write, which is that of the files, as far as there is one.
    """

    dataset: Dataset
    rows: int
    files: int
    group_rows: int
    to: str
    compression: str

    def compared(self, after: Dataset, *, above: tuple[str, Any] | None = None) -> tuple[float, float]:
        """Returns the shortest times of an epoch before and after, planning included.

        Both are read in turns, so that other work on the machine meets both.

        Args:
            after: The rows in another layout.
            above: A column and its least value in the rows to read; None for all rows.
        """
        before = self.dataset
        if above is not None:
            wanted = pc.field(above[0]) >= above[1]
            before, after = before.filter(wanted), after.filter(wanted)
        times: list[tuple[float, float]] = []
        began = _CLOCK.now()
        while len(times) < LEAST_TURNS or (len(times) < MOST_TURNS and _CLOCK.now() - began < SECONDS):
            times.append((self._epoch(before), self._epoch(after)))
        least_before, least_after = (min(each) for each in zip(*times, strict=True))
        return least_before, least_after

    def greatest_tenth(self, name: str) -> pa.Scalar | None:
        """Returns the least value of the tenth of rows with the greatest values of a column.

        None where no value parts a tenth from the others: where all are null, or many are the same.
        """
        values = self.dataset.select(pc.field(name)).to_table()[name].drop_null()
        if not len(values):
            return None
        last = pc.select_k_unstable(values, len(values) // 10 + 1, [("", "descending")])[-1]
        least = values[last.as_py()]
        rows = pc.sum(pc.greater_equal(values, least)).as_py()
        return least if rows <= 0.2 * self.rows else None  # so many rows pass for a tenth

    def _epoch(self, dataset: Dataset) -> float:
        began = _CLOCK.now()
        for _ in Dataset(dataset._plan):  # a new one plans anew
            pass
        return _CLOCK.now() - began

    def written(self, folder: Path, cure: Mapping[str, Any]) -> Dataset:
        """Returns the same rows in files with other options of `rewrite`; all else stays about as it is."""
        rows = with_lists(self.dataset, cure.get("fixed", ()))
        each = -(-self.rows // (1 if cure.get("merge") else self.files))
        options = writer_options(
            self.to, cure.get("group_rows", self.group_rows), cure.get("compression") or self.compression
        )
        getattr(rows, f"write_{self.to}")(folder, shard_rows=each, **options)
        return read(folder, format=self.to)


def sample_of(source: Read, found: Mapping[str, Any]) -> Sample | None:
    """Returns the first row groups of some files; None where a local copy would compare a network with a disk."""
    assert source.store is not None and source.schema is not None and source.first is not None
    if not source.store.is_local or not found["rows"]:
        return None
    paths: list[str] = []
    rows = num_bytes = 0
    for file in source.files[:MAX_FILES]:
        paths.append(file.path)
        for split in footer_of(source.operator, source.format, source.store, file).splits:
            if num_bytes >= SAMPLE_BYTES:
                break
            rows, num_bytes = rows + split.num_rows, num_bytes + split.num_bytes
        if num_bytes >= SAMPLE_BYTES:
            break
    if num_bytes > MAX_SAMPLE_BYTES or not rows:
        return None
    to, codec = target_of(found)
    # As fields: a name such as `^x` would be a pattern.
    names = [pc.field(name) for name in source.schema.names if name in source.first.schema.names]
    return Sample(
        dataset=read(paths, format=source.format, partitioning=None).select(names).take(rows),
        rows=rows,
        files=len(paths),
        group_rows=sound_group_rows(found),
        to=to,
        compression=codec,
    )


def group_rows(found: Mapping[str, Any]) -> int:
    """Returns how many rows take some 32 MiB, but few enough for four row groups a core."""
    decoded = max(1, found["splits"] * found["split_bytes"]["median"])
    each = max(1, decoded // max(1, found["rows"]))
    most = min(262_144, WANTED_GROUP_BYTES // each, max(found["rows"] // (4 * available_cpus()), MIB // each))
    return max(1, 1 << max(0, most.bit_length() - 1))


def sound_group_rows(found: Mapping[str, Any]) -> int:
    """Returns the rows of row groups that are no fault: as many as they have, but no fewer than a new layout would get.

    Splits of texts, and those of one small file each, say nothing of the row groups of one large file.
    """
    return max(int(found["split_rows"]["median"]), group_rows(found))


def target_of(found: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the format and the codec of a rewrite that changes no more than needed.

    Examples:
        >>> target_of({"format": "csv", "columns": [], "compressed_splits": 0})
        ('parquet', 'zstd')
    """
    if found["format"] == "ipc":
        return "ipc", "lz4" if found["compressed_splits"] else "none"
    codecs = {codec.lower() for column in found["columns"] for codec in column.get("codecs", ())}
    written = sorted(codecs & set(PARQUET_CODECS))
    return "parquet", written[0] if written else "none" if codecs == {"uncompressed"} else "zstd"

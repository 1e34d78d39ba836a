"""Grain: rows of Parquet files, packed first-fit into eight bins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import grain
import numpy as np

from benchmarks import data
from benchmarks.peers import epochs, packing


def _tokens() -> epochs.Epoch:
    paths = data.documents()
    data.read_through(paths)
    files = grain.MapDataset.source(paths).map(grain.experimental.ParquetIterDataset)
    rows = grain.experimental.InterleaveIterDataset(files, cycle_length=1)
    documents = rows.map(lambda row: {"tokens": np.asarray(row["tokens"], np.int32)})
    packed = grain.experimental.FirstFitPackIterDataset(
        documents, length_struct={"tokens": packing.LENGTH}, num_packing_bins=packing.ROWS
    )
    batches = packed.batch(packing.ROWS, drop_remainder=True)

    def epoch() -> Iterator[dict[str, Any]]:
        for batch in batches:
            yield {
                "tokens": batch["tokens"],
                "segment_ids": batch["tokens_segment_ids"],
                "positions": batch["tokens_positions"],
            }

    return epoch


WORKLOADS: Final[epochs.Workloads] = {"tokens": _tokens}

if __name__ == "__main__":
    epochs.main("grain", WORKLOADS)

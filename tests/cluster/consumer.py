"""A training loop as a process of its own: `python -m tests.cluster.consumer FOLDER NAME [ADDRESS]`.

It writes down each batch that it takes, and keeps its state now and then. Where it is killed and started again, it takes its
last state, and what it wrote down after that does not count: as a loop that keeps a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

import arrowflow as af

LANES: Final = 8
BATCH_ROWS: Final = 512
SHARDS: Final = 8
TEXT_BYTES: Final = 400
STEPS_OF_STATE: Final = 3
WORKERS: Final = 2

Make = Callable[[Path], af.Dataset]


def write_shards(folder: Path, rows: int) -> None:
    """Writes rows so wide that each lane has them in several pieces, if there are some 10,000 of them."""
    data = np.random.default_rng(1).bytes(rows * TEXT_BYTES)
    wide = [data[at : at + TEXT_BYTES] for at in range(0, len(data), TEXT_BYTES)]
    lengths = np.random.default_rng(2).integers(1, 9, rows)
    lists = pa.ListArray.from_arrays([0, *np.cumsum(lengths)], np.arange(lengths.sum()))
    table = pa.table({"id": np.arange(rows), "wide": pa.array(wide, pa.binary()), "l": lists})
    af.from_arrow(table).write_parquet(folder, shard_rows=rows // SHARDS, row_group_rows=rows // SHARDS // 8)


def noisy(batch: pa.RecordBatch, rng: np.random.Generator) -> pa.RecordBatch:
    """A function with random numbers."""
    return batch.append_column("noise", pa.array(rng.random(batch.num_rows)))


def _uncounted(rows: af.Dataset) -> af.Dataset:
    return rows.split_by_rank(0, 1, lanes=LANES, equal_steps="drop")


def _counted(rows: af.Dataset) -> af.Dataset:
    return rows.split_by_rank(0, 1, lanes=LANES)


def _of(folder: Path) -> af.Dataset:
    return af.read_parquet(folder)


PIPELINES: Final[dict[str, Make]] = {
    "filter": lambda path: _uncounted(_of(path).filter(pl.col("id") % 7 != 3).batch(BATCH_ROWS)),
    "map": lambda path: _counted(_of(path).map(noisy, seed=5, keeps_rows=True).batch(BATCH_ROWS)),
    "shuffle": lambda path: _counted(_of(path).shuffle(2_000, seed=3).batch(BATCH_ROWS)),
    "mix": lambda path: _uncounted(
        af.sample_from_datasets([_of(path), _of(path).skip(100)], seed=4).batch(BATCH_ROWS)
    ),
    "bucket": lambda path: _uncounted(
        _of(path).bucket_by_sequence_length("l", [3, 6], [BATCH_ROWS, BATCH_ROWS, BATCH_ROWS // 2])
    ),
    "repeat": lambda path: _counted(_of(path).shuffle(500, seed=1).batch(BATCH_ROWS).repeat(2)),
}


def engine(address: str | None) -> af.RayEngine:
    """Returns the engine of all runs here."""
    return af.RayEngine(workers=WORKERS, cpus_per_worker=1, memory_per_worker="128MiB", address=address)


def digest(batch: pa.RecordBatch) -> str:
    """Returns a name for the columns and rows of a batch."""
    shown = repr((str(batch.schema), batch.to_pylist()))
    return hashlib.blake2b(shown.encode(), digest_size=8).hexdigest()


class Log:
    """The batches that a loop took, and its last state.

    Args:
        folder: Where both files are.
    """

    def __init__(self, folder: Path) -> None:
        self._batches = folder / "batches"
        self._state = folder / "state"

    def forget(self) -> None:
        """Begins anew."""
        self._batches.parent.mkdir(exist_ok=True)
        for path in (self._batches, self._state):
            path.unlink(missing_ok=True)

    def batches(self) -> list[str]:
        """Returns the digest of each batch that was written down as a whole."""
        if not self._batches.exists():
            return []
        return self._batches.read_text("ascii").split("\n")[:-1]

    def restored(self) -> Any:
        """Forgets the batches after the last state; returns that state, None if there is none."""
        count, state = json.loads(self._state.read_text("utf-8")) if self._state.exists() else (0, None)
        self._batches.write_text("".join(f"{each}\n" for each in self.batches()[:count]), "ascii")
        return state

    def take(self, run: Any) -> None:
        """Writes down the batches of a run, up to its end."""
        count = len(self.batches())
        with self._batches.open("a", encoding="ascii") as batches:
            for batch in run:
                batches.write(f"{digest(batch)}\n")
                batches.flush()
                count += 1
                if count % STEPS_OF_STATE == 0:
                    part = self._state.with_suffix(".part")
                    part.write_text(json.dumps([count, run.state_dict()]), "utf-8")
                    part.replace(self._state)


def main() -> None:
    """Takes the rest of an epoch."""
    folder, name, *address = sys.argv[1:]
    rows = PIPELINES[name](Path(folder) / "shards")
    if address:
        rows = rows.with_engine(engine(address[0]))
    log = Log(Path(folder) / "log")
    state = log.restored()
    with iter(rows) as run:
        if state is not None:
            run.load_state_dict(state)
        log.take(run)


if __name__ == "__main__":
    main()

"""Files that tests of sources write, in splits of so many rows."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq


def write_file(path: Path, table: pa.Table, rows: int = 3) -> None:
    """Writes a table in the format of the path's suffix; numbers of as many digits make files of one size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows, use_dictionary=False, compression="none")
    elif path.suffix in (".arrow", ".ipc"):
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    elif path.suffix == ".csv":
        pl.DataFrame(table).write_csv(path)
    else:
        pl.DataFrame(table).write_ndjson(path)

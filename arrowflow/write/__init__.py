"""Datasets written to files: shards of a wanted size, visible only once all of them are complete."""

from __future__ import annotations

from arrowflow.write.shards import Written
from arrowflow.write.writer import Writer, ipc_writer, parquet_writer

__all__ = ["Writer", "Written", "ipc_writer", "parquet_writer"]

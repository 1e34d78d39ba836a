"""Datasets written to files: shards of a wanted size, visible only once all of them are complete."""

from __future__ import annotations

from arrowflow.write.metadata import with_metadata
from arrowflow.write.shards import Written
from arrowflow.write.writer import CSV, IPC, JSON, PARQUET, TFRECORD, WEBDATASET, Writer, writer_of

__all__ = [
    "CSV",
    "IPC",
    "JSON",
    "PARQUET",
    "TFRECORD",
    "WEBDATASET",
    "Writer",
    "Written",
    "with_metadata",
    "writer_of",
]

"""Sources, where datasets start: files, Arrow data, arrays, generators, numbers."""

from arrowflow.sources.in_memory import from_arrow, from_generator, from_numpy, range
from arrowflow.sources.lakes import read_delta, read_iceberg, read_lance
from arrowflow.sources.readers import read, read_csv, read_ipc, read_json, read_orc, read_parquet, read_text
from arrowflow.sources.record_files import read_avro, read_tfrecord, read_webdataset
from arrowflow.sources.whole_files import list_files, read_files, read_images

__all__ = [
    "from_arrow",
    "from_generator",
    "from_numpy",
    "list_files",
    "range",
    "read",
    "read_avro",
    "read_csv",
    "read_delta",
    "read_files",
    "read_iceberg",
    "read_images",
    "read_ipc",
    "read_json",
    "read_lance",
    "read_orc",
    "read_parquet",
    "read_text",
    "read_tfrecord",
    "read_webdataset",
]

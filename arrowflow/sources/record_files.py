"""Readers of files of records: Avro, WebDataset, TFRecord."""

from __future__ import annotations

from typing import Unpack

from arrowflow.dataset import Dataset
from arrowflow.errors import PlanError
from arrowflow.formats.tfrecord.tfrecord import RAW_HAS_NO_SCHEMA
from arrowflow.options import with_arguments
from arrowflow.sources.readers import MappedArguments, Paths, ReadArguments, read, usual


class TfrecordArguments(MappedArguments, total=False):
    """The arguments of `read_tfrecord`."""

    raw: bool
    compression: str | None


@with_arguments(ReadArguments, usual(ReadArguments, "avro"))
def read_avro(paths: Paths, **arguments: Unpack[ReadArguments]) -> Dataset:
    """Reads Avro files of records, run of blocks by run of blocks, in the order of `paths`.

    A field is a column. It may be null where its type is a union of null and one other type; other unions are refused, and so
    are records that hold themselves. Enums are strings, maps are maps, records are structs. Times, dates and decimals
    come as such. A UUID stays as it is stored. Codecs are null, deflate, snappy, zstandard, bzip2 and xz.

    Each file is walked once before its first row, from block to block, in 7 µs a block. So `skip`, `take`, `num_rows` and
    resume seek. For the walk, files that are not local are fetched once more than for the rows. Polars decodes only the
    columns that are needed, at 70 MB/s a core. No filter rules a run out. Arguments and errors are those of `read_parquet`. A
    file that is cut short is an error, unless it ends right behind a block.

    Memory: a call takes a MiB of the file, or one larger block, with what it decompresses and decodes to.

    Examples:
        >>> import arrowflow as af, pathlib, polars as pl, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> pl.DataFrame({"x": [1, 2, 3], "y": ["a", None, "c"]}).write_avro(folder / "a.avro", compression="snappy")
        >>> af.read_avro(folder, filter=pl.col("x") > 1).to_table().to_pydict()
        {'x': [2, 3], 'y': [None, 'c']}
    """
    return read(paths, format="avro", **arguments)


@with_arguments(ReadArguments, usual(ReadArguments, "webdataset"))
def read_webdataset(paths: Paths, **arguments: Unpack[ReadArguments]) -> Dataset:
    """Reads WebDataset shards: tar archives in which members that share a key are one row, in the order of `paths`.

    A member is called `key.column`: the key is all up to the first dot of the file's name, with its folders. `__key__` is a
    column of texts. Columns are those of all rows of the first shard, in the order in which they occur. `cls`,
    `cls2`, `class`, `count`, `index`, `inx` and `id` are int64; `txt`, `text`, `transcript` and `json` are string; all
    others are binary: `decode_image` makes pixels, and `map` decodes the rest. A member that a row lacks is null. `schema=`
    gives other columns and types: binary, string, numbers, booleans.

    Each shard is walked once before its first row, in 20 µs a member. So `skip`, `take`, `num_rows` and resume are exact. For
    the walk, shards that are not local are fetched once more than for the rows. The first shard is walked and fetched once
    more for the columns, with `missing_columns="null"` each shard; `schema=` spares this. Resume seeks; in a compressed shard
    (`.tar.gz`, `.tgz`, `.tar.zst`, …) it reads from the start again. An archive without an end mark is cut short: the rows in
    front come before the error, less the last one, which may lack members. A hard link and a sparse file are not read:
    each is an error in the same way. Symbolic links, folders, devices, and members whose names are no `key.column` are passed over.

    Memory: a call takes 4 MiB of the archive, or one larger row.

    Args:
        paths: A path, a glob, a directory (of which the files that end in `.tar` are read, compressed ones too), a URL that
            `pyarrow.fs` or fsspec knows, or a list of them.
        columns: Names of the columns to keep, or selectors of Polars; the same as `.select(columns)`.
        filter: The rows to keep; the same as `.filter(filter)`, before `columns` are selected.
        filesystem: A file system of `pyarrow.fs` or fsspec. By default the paths tell it.
        storage_options: Arguments of the client that the paths need; `docs/storage.md` has examples.
        schema: Columns and types of all shards; null where a row lacks a column.
        partitioning: Whether folders called `key=value` give columns, as in `read_parquet`.
        missing_columns: Whether shards may lack columns of others, as in `read_parquet`.
        num_parallel_calls: Runs of rows that are read at the same time.
        on_error: The treatment of runs of rows that cannot be read, as in `read_parquet`: with `"skip"` the rest of a shard
            that is cut short, or has such a member, is left out.
        quarantine: The folder for their places, as in `read_parquet`.

    Raises:
        SourceError: A path is missing, a glob is empty, or a shard is no archive, is cut short, or has a hard link, a
            sparse file, two members for one value, or a member `key.__key__`.
        SchemaError: A member is none of its column's type; names the member.
        PlanError: An option makes no sense.

    Examples:
        >>> import arrowflow as af, io, pathlib, tarfile, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.tar"
        >>> with tarfile.open(path, "w") as archive:
        ...     for name, data in {"one.txt": b"a cat", "one.cls": b"1", "two.txt": b"a dog"}.items():
        ...         member = tarfile.TarInfo(name)
        ...         member.size = len(data)
        ...         archive.addfile(member, io.BytesIO(data))
        >>> af.read_webdataset(path).to_table().to_pylist()
        [{'__key__': 'one', 'txt': 'a cat', 'cls': 1}, {'__key__': 'two', 'txt': 'a dog', 'cls': None}]
    """
    return read(paths, format="webdataset", **arguments)


@with_arguments(TfrecordArguments, usual(TfrecordArguments, "tfrecord"))
def read_tfrecord(paths: Paths, **arguments: Unpack[TfrecordArguments]) -> Dataset:
    """Reads TFRecord files of `tf.train.Example`, block by block, in the order of `paths`.

    Each feature becomes a column: `int64_list` gives int64, `float_list` float32, `bytes_list` binary. The first
    records of the first file (1 MiB or 1,000 of them) decide the shape. If any of them has other than one value of
    the feature, the column is one of lists. A feature that a record lacks is null. A feature that is no column is
    ignored. A feature that does not fit its column is an error that says where.

    `schema=` gives the columns instead: whole numbers of any width, bool, float64, string. `pa.list_(…)` takes any
    number of values, `pa.list_(…, n)` exactly *n*. CRCs are checked. The package `protobuf` (extra `tfrecord`)
    decides what a record means; TensorFlow is not needed. A `tf.train.SequenceExample` is refused, but comes whole
    with `raw=True`.

    Each file is walked once before its first row, from header to header, in 0.25 µs per record. So `skip`, `take`,
    `num_rows` and resume are exact. For the walk, files that are not local are fetched, and compressed files are
    inflated, once more than for the rows. Resume seeks to the block. In a compressed file, resume inflates the
    delivered rows again.

    Memory: a call takes a MiB of records, or up to 4 MiB where records are large. Decoding takes nine times as much,
    and nine bytes for each cell; where there are many columns a block has fewer rows. Of compressed files that are
    not local it also takes the stored bytes.

    Args:
        paths: A path, a glob, a directory (of which all files are read), a URL that `pyarrow.fs` or fsspec knows, or
            a list of them.
        columns: Names of the columns to keep, or selectors of Polars; the same as `.select(columns)`. Others are not decoded.
        filter: The rows to keep; the same as `.filter(filter)`, before `columns` are selected.
        filesystem: A file system of `pyarrow.fs` or fsspec. By default the paths tell it.
        storage_options: Arguments of the client that the paths need; `docs/storage.md` has examples.
        schema: Columns and types of all files.
        partitioning: Whether folders called `key=value` give columns, as in `read_parquet`.
        missing_columns: Whether files may lack columns of others, as in `read_parquet`.
        raw: Whether records come as they are, in one binary column `record`, which a `map` can decode. Default: False.
        compression: `"none"`, `"gzip"` or `"zlib"`; None tells by the first bytes of each file.
        num_parallel_calls: Blocks decoded at the same time. Default: `af.AUTOTUNE`.
        memory_map: Whether local files are mapped into memory, as in `read_parquet`.
        on_error: The treatment of records that do not fit, as in `read_csv`; behind a damaged length the rest of the file.
        quarantine: The folder for them.

    Raises:
        SourceError: A path is missing, or a glob is empty. Or a file is truncated or corrupt, or a record is no
            `tf.train.Example`. The error names the record, and comes after the rows before it. The records that tell
            the schema are read earlier, when the dataset is bound.
        SchemaError: A feature has another kind or another number of values than its column; names record and feature.
        DataError: A value does not fit its column's type.
        PlanError: An option makes no sense, or a package is missing.

    Examples:
        >>> import arrowflow as af, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.tfrecord"
        >>> stored = "0e00000000000000c5e5693f0a0c0a0a0a017812051a030a010798993925"  # by tf.io.TFRecordWriter
        >>> _ = path.write_bytes(bytes.fromhex(stored))
        >>> af.read_tfrecord(path).to_table().to_pydict()
        {'x': [7]}
    """
    if arguments.get("raw", False) is not False and arguments.get("schema") is not None:
        raise PlanError(RAW_HAS_NO_SCHEMA)
    return read(paths, format="tfrecord", **arguments)

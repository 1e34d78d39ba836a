"""A process that reads damaged files: `python -m tests.fuzz.damaged_reader`. A crash ends it, and not the fuzzer.

It takes a request a line, in JSON, and answers each with two lines: how arrowflow read the file, and how the reference
did. So a crash of one is told from a crash of the other.
"""

from __future__ import annotations

import datetime
import gc
import json
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

import arrowflow as af
from arrowflow.formats import decoded_schema
from arrowflow.formats.tfrecord.framing import FRAME_BYTES, HEADER_BYTES, masked_crc
from arrowflow.testing import assert_same_rows

BUDGET: Final = 64 << 20
GOOD_FILES: Final = 4
"""Good files beside a damaged one: so many small files are read by one call."""

MAPPED: Final = ("parquet", "ipc", "tfrecord")
FILTERS: Final = {
    "row": pl.col("row") > 3,
    "x": pl.col("x") >= 0,
    "n": pl.col("n") < 100,
    "b": pl.col("b") == pl.lit(True),
    "s": pl.col("s") >= "",
    "decimal": pl.col("decimal") > -100,
    "date": pl.col("date") > datetime.date(1990, 1, 1),
    "time": pl.col("time") > datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC),
}
"""What decides by the statistics of each type."""

TYPES: Final[dict[str, dict[str, Any]]] = {
    "csv": {"row": pa.int64(), "x": pa.float64(), "s": pa.string()},
    "json": {"row": pa.int64(), "x": pa.float64(), "s": pa.string(), "l": pa.list_(pa.int64())},
    "tfrecord": {"row": pa.int64(), "x": pa.float32(), "t": pa.binary(), "l": pa.list_(pa.int64())},
}


def good_beside(path: Path) -> list[Path]:
    """Returns the paths of the good files that are read together with a damaged one."""
    return [path.with_name(f"good-{number}-{path.name}") for number in range(GOOD_FILES)]


def read(request: dict[str, Any]) -> pa.Table:
    """Reads a damaged file through the public API."""
    path, kind = Path(request["path"]), request["kind"]
    where: Any = str(path)
    options: dict[str, Any] = {}
    if request["format"] in MAPPED:
        options["memory_map"] = kind != "read"
    if kind == "remote":
        fsspec.filesystem("memory").pipe(f"/damaged/{path.name}", path.read_bytes())
        where = f"memory://damaged/{path.name}"
    elif kind == "among":
        first, second, *others = map(str, good_beside(path))
        where = [first, second, where, *others]
    if request["format"] in TYPES and request["given"]:
        options["schema"] = TYPES[request["format"]]
    ds: af.Dataset = getattr(af, f"read_{request['format']}")(where, **options)
    if kind == "filter" and (tests := [FILTERS[name] for name in ds.schema.names if name in FILTERS]):
        ds = ds.filter(pl.all_horizontal(tests))
    return ds.with_options(af.Options(cpu_budget=2, ram_budget=BUDGET)).to_table()


def parquet(path: Path) -> pa.Table:
    """Reads row group after row group, as a dataset does: the counts of a footer may contradict each other."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        groups = range(file.metadata.num_row_groups)
        parts = [file.read_row_group(number, use_threads=False) for number in groups]
        return pa.concat_tables([file.schema_arrow.empty_table(), *parts])


def ipc(path: Path) -> pa.Table:
    """Reads a file as it lies in memory."""
    with pa.ipc.open_file(path, options=pa.ipc.IpcReadOptions(use_threads=False)) as opened:
        return opened.read_all()


def csv(path: Path) -> pa.Table:
    """Reads the columns by the types that are given, and the others not at all."""
    convert = pyarrow.csv.ConvertOptions(
        column_types=TYPES["csv"],
        include_columns=list(TYPES["csv"]),
        include_missing_columns=True,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)


def json_lines(path: Path) -> pa.Table:
    parse = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema(TYPES["json"]), unexpected_field_behavior="ignore"
    )
    return pyarrow.json.read_json(path, parse_options=parse)


def tfrecord(path: Path) -> None:
    """Checks frames and checksums; what decodes the records is the same as in the library."""
    data = path.read_bytes()
    while data:
        size = int.from_bytes(data[:8], "little")
        record, end = data[HEADER_BYTES : HEADER_BYTES + size], FRAME_BYTES + size
        stored = data[8:HEADER_BYTES], data[end - 4 : end]
        if len(data) < end or stored != tuple(
            masked_crc(each).to_bytes(4, "little") for each in (data[:8], record)
        ):
            raise ValueError("no record")
        data = data[end:]


REFERENCES: Final[dict[str, Callable[[Path], Any]]] = {
    "parquet": parquet,
    "ipc": ipc,
    "csv": csv,
    "json": json_lines,
    "tfrecord": tfrecord,
}


def expected(request: dict[str, Any]) -> Any:
    """Returns the rows of the reference; None if there is none for such a request. Raises if it refuses the file."""
    format, path = request["format"], Path(request["path"])
    typed = format not in TYPES or (request["given"] and path.suffix not in (".gz", ".zlib"))
    if request["kind"] in ("among", "filter") or not typed or path.name == "array.json":
        return None
    return REFERENCES[format](path)


def outcome(call: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Returns what a call returns, and how it ended."""
    try:
        return call(), {}
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is told
        is_typed = isinstance(error, af.ArrowflowError)
        told = {"error": f"{type(error).__name__}: {error}"[:2000], "typed": is_typed}
        return None, {**told, "file": getattr(error, "file", None)}


def held() -> list[str]:
    """Returns the threads and files of this process."""
    found = [thread.name for thread in threading.enumerate() if thread.name.startswith("arrowflow")]
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except OSError:  # the descriptor of the listing itself
            continue
    return sorted(found)


def answer(request: dict[str, Any], pools: list[pa.MemoryPool]) -> None:
    """Reads a file in both ways, and prints two lines."""
    before, pool = held(), pa.proxy_memory_pool(pa.system_memory_pool())
    pools.append(pool)  # memory that outlives it would end the process
    pa.set_memory_pool(pool)
    found, told = outcome(lambda: read(request))
    pa.set_memory_pool(pa.system_memory_pool())
    told["most"] = pool.max_memory()
    print(json.dumps(told), flush=True)
    reference, told = outcome(lambda: expected(request))
    if reference is not None and found is not None:
        _, compared = outcome(partial(compare, found, reference))
        told["differs"] = compared.get("error")
    is_null = found is not None and all(column.null_count == len(column) for column in found.columns)
    del found, reference
    if held() != before or pool.bytes_allocated():
        gc.collect()
    told["left"] = [each for each in held() if each not in before]
    told["bytes"] = pool.bytes_allocated()
    told["is_null"] = is_null
    print(json.dumps(told), flush=True)


def compare(found: pa.Table, reference: pa.Table) -> None:
    """Raises `AssertionError` if the rows differ. Without a full check pyarrow ends the process at bad offsets."""
    try:
        reference.validate(full=True)
    except pa.ArrowInvalid:
        return
    wanted = decoded_schema(reference.schema)
    assert_same_rows(found.to_batches(), reference.cast(wanted).to_batches())


def main() -> None:
    # What is loaded at the first use, and files that stay open, are there before the first request.
    af.range(3).filter(pl.col("id") > 1).to_table()
    pyarrow.csv.read_csv(pa.BufferReader(b"x\n1\n"))
    pools: list[pa.MemoryPool] = []
    print("ready", flush=True)
    for line in sys.stdin:
        answer(json.loads(line), pools)


if __name__ == "__main__":
    main()

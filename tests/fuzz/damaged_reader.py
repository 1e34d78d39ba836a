"""A process that reads damaged files: `python -m tests.fuzz.damaged_reader`. A crash ends it, and not the fuzzer.

It takes a request a line, in JSON, and answers each with two lines: how arrowflow read the file, and how the reference
did. So a crash of one is told from a crash of the other.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

import arrowflow as af
from arrowflow.formats import decoded_schema
from arrowflow.formats.tfrecord.framing import FRAME_BYTES, HEADER_BYTES, masked_crc
from arrowflow.testing import assert_same_rows
from tests.fuzz.good_files import good_files

BUDGET: Final = 64 << 20
ROOM: Final = 32 << 20
"""Bytes that a read may take besides its budget: chunks are charged once they are there."""

GOOD_FILES: Final = 4
"""Good files beside a damaged one: so many small files are read by one call."""

MAPPED: Final = ("parquet", "ipc", "tfrecord")

TYPES: Final[dict[str, dict[str, Any]]] = {
    "csv": {"row": pa.int64(), "x": pa.float64(), "s": pa.string()},
    "json": {"row": pa.int64(), "x": pa.float64(), "s": pa.string(), "l": pa.list_(pa.int64())},
    "tfrecord": {"row": pa.int64(), "x": pa.float32(), "t": pa.binary(), "l": pa.list_(pa.int64())},
}


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
        where = [str(path), *(str(path.with_name(f"good-{number}-{path.name}")) for number in range(GOOD_FILES))]
        where.insert(2, where.pop(0))
    if request["format"] in TYPES and request["given"]:
        options["schema"] = TYPES[request["format"]]
    ds: af.Dataset = getattr(af, f"read_{request['format']}")(where, **options)
    return ds.with_options(af.Options(cpu_budget=2, ram_budget=BUDGET)).to_table()


def parquet(path: Path) -> pa.Table:
    return pq.ParquetFile(path, page_checksum_verification=True).read(use_threads=False)


def ipc(path: Path) -> pa.Table:
    with pa.ipc.open_file(path, options=pa.ipc.IpcReadOptions(use_threads=False)) as opened:
        return opened.read_all()


def csv(path: Path) -> pa.Table:
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


def tfrecord(path: Path) -> pa.Table:
    """Checks frames and checksums; what decodes the records is the same as in the library."""
    data = path.read_bytes()
    while data:
        if len(data) < FRAME_BYTES:
            raise ValueError("cut off")
        size = int.from_bytes(data[:8], "little")
        record, rest = data[HEADER_BYTES : HEADER_BYTES + size], data[FRAME_BYTES + size :]
        stored = data[8:HEADER_BYTES], data[HEADER_BYTES + size :][:4]
        if len(data) < FRAME_BYTES + size or stored != tuple(
            masked_crc(part).to_bytes(4, "little") for part in (data[:8], record)
        ):
            raise ValueError("no record")
        data = rest
    return None


REFERENCES: Final[dict[str, Callable[[Path], pa.Table]]] = {
    "parquet": parquet,
    "ipc": ipc,
    "csv": csv,
    "json": json_lines,
    "tfrecord": tfrecord,
}


def expected(request: dict[str, Any]) -> pa.Table | None:
    """Returns the rows of the reference; None if there is none for such a request. Raises if it refuses the file."""
    format, path = request["format"], Path(request["path"])
    has_reference = format in ("parquet", "ipc") or (
        format == "csv" and request["given"]) or (
        format == "json" and "lines" in path.name and request["given"]) or (
        format == "tfrecord" and path.suffix == ".tfrecord"
    )
    if request["kind"] == "among" or not has_reference:
        return None
    found = REFERENCES[format](path)
    if found is not None:
        found.validate(full=True)
    return found


def outcome(call: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Returns what a call returns, and how it ended."""
    try:
        found = call()
        if found is not None:
            found.validate(full=True)
        return found, {"rows": found.num_rows if found is not None else None}
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is looked at
        ends = [base.__name__ for base in type(error).__mro__]
        return None, {"error": ends, "text": str(error)[:2000], "file": getattr(error, "file", None)}


def held() -> dict[str, Any]:
    """Returns the threads and files of this process."""
    folder = Path("/proc/self/fd")
    files = []
    for link in folder.iterdir():
        try:
            files.append(str(link.readlink()))
        except OSError:  # the descriptor of the listing itself
            continue
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("arrowflow")]
    return {"files": sorted(files), "threads": threads}


def resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def answer(request: dict[str, Any], pools: list[pa.MemoryPool]) -> None:
    """Reads a file in both ways, and prints two lines."""
    before, pool = held(), pa.proxy_memory_pool(pa.system_memory_pool())
    pools.append(pool)  # memory that outlives it would end the process
    pa.set_memory_pool(pool)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    resident_before = resident("VmRSS")
    found, ended = outcome(lambda: read(request))
    ended["allocated"] = max(pool.max_memory(), resident("VmHWM") - resident_before)
    table, found = found, None
    after = held()
    if before != after or pool.bytes_allocated() > (0 if table is None else table.nbytes * 2 + ROOM):
        gc.collect()
        after = held()
        ended["left"] = None if before == after else {"before": before, "after": after}
    print(json.dumps(ended), flush=True)
    pa.set_memory_pool(pa.system_memory_pool())
    reference, ended = outcome(lambda: expected(request))
    if reference is not None and table is not None:
        try:
            reference = reference.cast(decoded_schema(reference.schema)).select(table.schema.names)
            assert_same_rows(table.to_batches(), reference.to_batches())
        except Exception as error:  # noqa: BLE001
            ended["differs"] = f"{type(error).__name__}: {error}"[:2000]
    del table
    if pool.bytes_allocated():
        gc.collect()
        ended["leaked"] = pool.bytes_allocated()
    print(json.dumps(ended), flush=True)


def main() -> None:
    """Warms up by good files, then serves requests."""
    pools: list[pa.MemoryPool] = []
    for line in sys.stdin:
        answer(json.loads(line), pools)


if __name__ == "__main__":
    gc.freeze()
    main()

"""`SpillFile`: what comes back is what was given, mapped; nothing has a name; a full disk is an error."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import arrowflow as af
from arrowflow.caching.store import spill
from arrowflow.caching.store.spill import FIRST_SEGMENT_BYTES, SpillFile, SpillFiles
from arrowflow.errors import CacheFullError
from tests.ops.tables import ALL_TYPES_INSIDE, refused

pytestmark = pytest.mark.any_version

WHOLE = ALL_TYPES_INSIDE.combine_chunks().to_batches()[0]
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def maps_of(folder: Path) -> int:
    """Returns how many files without a name this process has mapped from a folder's file system."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum(str(folder) in line and line.endswith("(deleted)") for line in lines)


@pytest.mark.parametrize("name", ALL_TYPES_INSIDE.schema.names)
def test_slices_of_every_type_come_back(name: str, tmp_path: Path) -> None:
    column = WHOLE.select([name])
    file = SpillFile(str(tmp_path))
    for start in range(WHOLE.num_rows + 1):
        for rows in (0, 1, 3, WHOLE.num_rows):
            chunk = column.slice(start, rows)
            found = file.move(chunk).chunk
            found.validate(full=True)
            assert found.schema.equals(chunk.schema)
            assert str(found.column(0).to_pylist()) == str(chunk.column(0).to_pylist()), "NaN is not NaN"


def test_nested_lists_of_fixed_size_come_back(tmp_path: Path) -> None:
    inner = pa.array([[0, 1], None, [4, 5], [6, 7], [8, 9], None], pa.list_(pa.int8(), 2))
    column = pa.FixedSizeListArray.from_arrays(inner, 2)
    chunk = pa.record_batch({"x": column}).slice(1)
    assert SpillFile(str(tmp_path)).move(chunk).chunk.to_pylist() == chunk.to_pylist()


def test_types_of_extensions_come_back(tmp_path: Path) -> None:
    type = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    storage = pa.array([[1.0, 2, 3, 4], [5, 6, 7, 8]], type.storage_type)
    chunk = pa.record_batch({"x": pa.ExtensionArray.from_storage(type, storage)})
    assert SpillFile(str(tmp_path)).move(chunk).chunk.equals(chunk)


def test_a_type_that_nobody_registered_is_an_error(tmp_path: Path) -> None:
    class Unknown(pa.ExtensionType):
        def __init__(self) -> None:
            super().__init__(pa.int8(), "arrowflow.tests.unknown")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Any:
            return cls()

    chunk = pa.record_batch({"x": pa.ExtensionArray.from_storage(Unknown(), pa.array([1], pa.int8()))})
    refused(af.WriteError, lambda: SpillFile(str(tmp_path)).move(chunk), "register")


def test_dictionaries_may_change(tmp_path: Path) -> None:
    file = SpillFile(str(tmp_path))
    chunks = [pa.record_batch({"x": pa.array(values).dictionary_encode()}) for values in (["a"], ["b", "c"])]
    found = [file.move(chunk).chunk for chunk in chunks]
    assert [chunk.to_pylist() for chunk in found] == [chunk.to_pylist() for chunk in chunks]


def test_what_comes_back_is_aligned_and_read_only(tmp_path: Path) -> None:
    file = SpillFile(str(tmp_path))
    for rows in (1, 3, 1000):
        (values,) = [each for each in file.move(doubles(rows)).chunk.column(0).buffers() if each is not None]
        assert values.address % 8 == 0
        assert not values.is_mutable


def doubles(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(np.arange(rows, dtype=np.float64))})


def test_many_chunks_share_a_segment(tmp_path: Path) -> None:
    file = SpillFile(str(tmp_path))
    chunks = [file.move(doubles(100)).chunk for _ in range(200)]
    assert [chunk.equals(doubles(100)) for chunk in chunks] == [True] * 200
    if sys.platform.startswith("linux"):
        assert maps_of(tmp_path) == 1


def test_a_chunk_larger_than_a_segment_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "FIRST_SEGMENT_BYTES", 4096)
    file = SpillFile(str(tmp_path))
    chunks = [doubles(rows) for rows in (1, 300, 5_000, 2, 400, 400)]
    found = [file.move(chunk) for chunk in chunks]
    assert [each.chunk.equals(chunk) for each, chunk in zip(found, chunks, strict=True)] == [True] * 6
    assert found[2].num_bytes > 40_000


@LINUX
def test_its_space_is_freed_with_the_last_chunk(tmp_path: Path) -> None:
    gc.collect()
    file = SpillFile(str(tmp_path))
    one, two = (file.move(doubles(10)).chunk for _ in range(2))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    del file, one
    gc.collect()
    assert maps_of(tmp_path) == 1
    assert two.equals(doubles(10))
    del two
    gc.collect()
    assert maps_of(tmp_path) == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors - 2, "the file's, and the map's"


@pytest.mark.parametrize("unnamed", [True, False], ids=["made without a name", "name removed"])
def test_no_name_is_ever_seen_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    if not unnamed:
        monkeypatch.setattr(tempfile, "_O_TMPFILE_WORKS", False, raising=False)
    file = SpillFile(str(tmp_path))
    for _ in range(3):
        assert file.move(doubles(9)).chunk.equals(doubles(9))
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("full_after", [0, 1, 100, 5_000])
def test_a_full_disk_is_an_error_and_no_part_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_after: int
) -> None:
    written = os.pwrite
    room = [full_after]

    def pwrite(descriptor: int, data: memoryview, place: int) -> int:
        """Writes what fits, as a disk does that becomes full."""
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = written(descriptor, data[: room[0]], place)
        room[0] -= count
        return count

    file = SpillFile(str(tmp_path))
    before = file.move(doubles(3)).chunk
    monkeypatch.setattr(os, "pwrite", pwrite)
    refused(CacheFullError, lambda: file.move(doubles(1_000)), "bytes", str(tmp_path), "room", "ram_budget")
    room[0] = 1 << 30
    assert file.move(doubles(1_000)).chunk.equals(doubles(1_000))
    assert before.equals(doubles(3))


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    refused(af.WriteError, lambda: SpillFile(str(tmp_path / "gone")).move(doubles(1)), "gone", "spill=")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(**_: Any) -> IO[bytes]:
        raise OSError(number, os.strerror(number))

    file = SpillFile(str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    refused(af.WriteError, lambda: file.move(doubles(1)), "too many are open", "ulimit -n", str(tmp_path))
    monkeypatch.undo()
    assert file.move(doubles(1)).chunk.equals(doubles(1))


def test_a_forked_process_writes_to_a_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SpillFile(str(tmp_path))
    before = file.move(doubles(3)).chunk
    segment = file._segment
    monkeypatch.setattr(os, "getpid", lambda: -1)
    found = [file.move(doubles(4)).chunk for _ in range(2)]
    assert file._segment is not segment
    assert segment is not None
    assert segment.end < 1_000
    assert before.equals(doubles(3))
    assert [chunk.equals(doubles(4)) for chunk in found] == [True] * 2


def test_a_file_is_used_again_unless_somebody_is_using_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SpillFiles()
    found = [files.move(doubles(rows), str(tmp_path)).chunk for rows in (1, 2)]
    assert len(files._free) == 1
    written = os.pwrite

    def meanwhile(descriptor: int, data: Any, place: int) -> int:
        monkeypatch.setattr(os, "pwrite", written)
        found.append(files.move(doubles(3), str(tmp_path)).chunk)
        return written(descriptor, data, place)

    monkeypatch.setattr(os, "pwrite", meanwhile)
    found.append(files.move(doubles(4), str(tmp_path)).chunk)
    assert len(files._free) == 2
    assert [chunk.equals(doubles(rows)) for chunk, rows in zip(found, (1, 2, 3, 4), strict=True)] == [
        True
    ] * 4


def test_a_file_is_given_back_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = SpillFiles()
    monkeypatch.setattr(os, "pwrite", refuse)
    refused(CacheFullError, lambda: files.move(doubles(1), str(tmp_path)), "no room")
    (file,) = files._free
    monkeypatch.undo()
    assert files.move(doubles(1), str(tmp_path)).chunk.equals(doubles(1))
    assert files._free == [file]


@LINUX
def test_holes_take_no_space(tmp_path: Path) -> None:
    file = SpillFile(str(tmp_path))
    chunk = file.move(doubles(10)).chunk
    assert file._segment is not None
    found = os.fstat(file._segment.descriptor)
    assert found.st_size == FIRST_SEGMENT_BYTES
    assert found.st_blocks * 512 < FIRST_SEGMENT_BYTES // 100
    assert chunk.num_rows == 10


@pytest.mark.slow
def test_kill_leaves_nothing(tmp_path: Path) -> None:
    code = """
import sys
import numpy as np, pyarrow as pa
from arrowflow.caching.store.spill import SpillFile
file = SpillFile(sys.argv[1])
kept = [file.move(pa.record_batch({"x": pa.array(np.zeros(1000))})).chunk for _ in range(50)]
print("spilled", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"spilled\n"
        process.kill()
    assert list(tmp_path.iterdir()) == []


def test_polars_reads_what_comes_back(tmp_path: Path) -> None:
    chunk = pa.record_batch({"x": pa.array([1, None, 3]), "s": pa.array(["a", None, "ccc"])})
    found = SpillFile(str(tmp_path)).move(chunk.slice(1)).chunk
    assert pl.DataFrame(found).rows() == [(None, None), (3, "ccc")]

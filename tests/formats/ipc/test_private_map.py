"""Private maps: written to without the file, or another map, seeing it; gone with their last buffer."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from arrowflow.formats.ipc.private_map import map_private


def test_what_is_written_stays_in_the_map(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef" * 4096)
    one, other = map_private(str(path)), map_private(str(path), 5000, 9000)
    assert one.is_mutable
    np.frombuffer(one, np.uint8)[:] = ord("x")
    assert one.to_pybytes() == b"x" * one.size
    assert other.to_pybytes() == path.read_bytes() == b"abcdef" * 4096


@pytest.mark.parametrize("missing", ["posix_fadvise", "RWF_NOWAIT", NotImplementedError, OSError])
def test_a_file_is_mapped_where_the_system_lacks_a_function(
    missing: str | type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Python was built for an older system, and where nothing tells what is in memory."""

    def refuse(*args: object) -> None:
        assert not isinstance(missing, str)
        raise missing

    path = tmp_path / "file"
    path.write_bytes(b"abcdef" * 4096)
    if isinstance(missing, str):
        monkeypatch.delattr(os, missing, raising=False)
    else:
        monkeypatch.setattr(os, "preadv", refuse, raising=False)
    assert map_private(str(path), 5000, 9000).to_pybytes() == path.read_bytes()


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no such advice")
@pytest.mark.parametrize(("in_memory", "asks"), [(range(4096, 8193), False), (range(4096, 8192), True)])
def test_a_range_is_asked_for_if_its_last_byte_is_not_in_memory(
    in_memory: range, asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(descriptor: int, buffers: object, place: int, flags: int) -> None:
        if place not in in_memory:
            raise BlockingIOError

    asked: list[tuple[int, int]] = []
    path = tmp_path / "file"
    path.write_bytes(bytes(9000))
    monkeypatch.setattr(os, "preadv", read, raising=False)
    monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, size, advice: asked.append((start, size)))
    map_private(str(path), 4096, 8193)
    assert asked == [(4096, 4097)] * asks


def test_a_slice_keeps_the_map(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 10_000)
    part = map_private(str(path)).slice(3, 3)
    gc.collect()
    assert part.to_pybytes() == b"abc"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc here")
def test_the_last_buffer_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    mapped = map_private(str(path))
    assert str(path) in Path("/proc/self/maps").read_text(encoding="utf-8")
    del mapped
    assert str(path) not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_what_cannot_be_mapped_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        map_private(str(tmp_path / "none"))
    (tmp_path / "empty").touch()
    with pytest.raises(OSError, match="cannot map it"):
        map_private(str(tmp_path / "empty"))

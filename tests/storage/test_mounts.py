"""Which mounted file systems lie on other machines, and digests of contents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from arrowflow.storage import Contents, File, Store, local
from arrowflow.storage.addresses import resolve
from arrowflow.storage.local import network_devices, on_network

pytestmark = pytest.mark.any_version

TABLE = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
36 35 0:42 / /data\040sets rw,relatime shared:1 - nfs4 server:/export rw,vers=4.2
37 35 0:43 / /home rw shared:2 master:3 - cifs //server/home rw
38 35 0:44 / /scratch rw - lustre mds:/scratch rw
39 35 0:45 / /mnt/bucket rw - fuse.gcsfuse bucket rw
40 35 0:46 / /ntfs rw - fuseblk /dev/sdb1 rw
41 35 0:47 / / rw - fuse.fuse-overlayfs overlay rw
42 35 0:48 / /union rw - overlay overlay rw
"""


def test_network_file_systems_are_told_by_their_types(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE.lstrip())
    assert network_devices(table) == {os.makedev(0, minor) for minor in range(42, 46)}
    assert network_devices(tmp_path / "none") == frozenset()


def test_files_are_told_by_their_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n")
    assert not on_network([str(path)])
    device = path.stat().st_dev
    monkeypatch.setattr(local, "network_devices", lambda: frozenset([device]))
    assert on_network([str(tmp_path / "gone"), str(path)])
    store, (file,) = resolve(path, suffixes=(), operator="read")
    assert (store.is_network, store.memory_map, file.inode) == (True, False, None)


def files_in(folder: Path, count: int, text: str = "text") -> list[File]:
    made = []
    for number in range(count):
        path = folder / str(number)
        path.write_text(f"{text}{number:06}")
        made.append(File(str(path), path.name, path.stat().st_size, is_local=True))
    return made


def test_contents_do_not_depend_on_time_or_place(tmp_path: Path) -> None:
    store, _ = resolve(__file__, suffixes=(), operator="read")
    for name in "abc":
        (tmp_path / name).mkdir()
    one, same, other = (
        Contents.of(store, files_in(tmp_path / name, 3, text))
        for name, text in zip("abc", ("x", "x", "y"), strict=True)
    )
    assert one is not None and one == same and one != other


def test_contents_are_looked_at_in_the_middle_and_at_both_ends(tmp_path: Path) -> None:
    store, _ = resolve(__file__, suffixes=(), operator="read")
    path = tmp_path / "a"
    data = bytearray(1 << 20)
    found = set()
    for place in (0, 4095, 1 << 19, (1 << 20) - 4096, (1 << 20) - 1):
        data[place] += 1
        path.write_bytes(data)
        found.add(Contents.of(store, [File(str(path), "a", len(data), is_local=True)]))
    assert len(found) == 5 and None not in found


def test_contents_of_many_files_on_another_machine_are_not_looked_at(tmp_path: Path) -> None:
    local, _ = resolve(__file__, suffixes=(), operator="read")
    files = files_in(tmp_path, 257)
    assert Contents.of(local, files) is not None
    network = Store(local.filesystem, is_network=True)
    assert Contents.of(network, files) is None
    assert Contents.of(network, files[:256]) is not None


def test_contents_of_a_file_that_is_gone_are_not_known(tmp_path: Path) -> None:
    store, _ = resolve(__file__, suffixes=(), operator="read")
    files = files_in(tmp_path, 2)
    (tmp_path / "1").unlink()
    assert Contents.of(store, files) is None

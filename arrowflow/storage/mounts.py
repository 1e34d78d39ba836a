"""Mounted file systems that lie on other machines: a path of this machine leads to them, but each access is a request."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_NETWORK: Final = re.compile(
    r"9p|afs|beegfs|ceph|cifs|davfs|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|panfs|smb3|smbfs|virtiofs|wekafs"
    r"|fuse(?!\.(?:fuse-overlayfs|mergerfs|ntfs-3g)$)(?:\..*)?"
)
"""Types of file systems that other machines change, or that a server behind a network holds. File systems in user space
count, but for those whose files lie on this machine's disks."""

_MOUNTS: Final = Path("/proc/self/mountinfo")


def network_devices(mounts: Path = _MOUNTS) -> frozenset[int]:
    r"""Returns the numbers (`st_dev`) of the mounted file systems that lie on other machines; none where Linux is not.

    Args:
        mounts: The table of mounts, as proc(5) describes it.

    Examples:
        >>> import tempfile
        >>> table = Path(tempfile.mkdtemp()) / "mountinfo"
        >>> _ = table.write_text("36 35 0:42 / /data rw,relatime shared:1 - nfs4 server:/export rw\n")
        >>> network_devices(table) == {os.makedev(0, 42)}
        True
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    found = set()
    for line in lines:
        mount, _, kind = line.partition(" - ")
        if _NETWORK.fullmatch(kind.partition(" ")[0]):
            major, _, minor = mount.split(" ")[2].partition(":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)


def on_network(paths: Iterable[str]) -> bool:
    """Returns whether some paths of this machine lead to files on other machines; missing files do not count."""
    devices = network_devices()
    return bool(devices) and any(_device(path) in devices for path in paths)


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev  # noqa: PTH116  (`Path.stat` takes twice as long)
    except OSError:
        return None

"""Files on this machine: their paths, the rules that all local writers share, and mounted file systems.

A path of this machine may lead to a file system that lies on another machine: then each access is a request.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from arrowflow.errors import PlanError

UNFINISHED: Final = "_UNFINISHED"
"""Name of the file that a writer keeps in a folder as long as the folder is not a whole dataset."""

NO_ROOM: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full to this user",
    errno.EFBIG: "a file may not be that large (see `ulimit -f`, and what the file system takes)",
}
"""Errors of the operating system for a file that cannot grow, with the meaning of each."""

_NETWORK: Final = re.compile(
    r"9p|afs|beegfs|ceph|cifs|davfs|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|panfs|smb3|smbfs|virtiofs|wekafs"
    r"|fuse(?!\.(?:fuse-overlayfs|mergerfs|ntfs-3g)$)(?:\..*)?"
)
"""Types of file systems that other machines change, or that a server behind a network holds. File systems in user space
count, but for those whose files lie on this machine's disks."""


def local_path(text: str, operator: str) -> str:
    """Returns the absolute path of a local file or folder; `~` is the home of the user, as in a shell.

    Raises:
        PlanError: No file can have such a name; or the working directory, or the home, is not known.
    """
    try:
        if b"\0" in text.encode():
            raise ValueError("names of files have no null bytes")
        return os.path.abspath(Path(text).expanduser() if text == "~" or text.startswith("~/") else text)
    except (OSError, ValueError, RuntimeError) as error:
        raise PlanError(f"{operator}: {text!r} is no path of a file ({error}); name another one") from error


def flush(path: str | os.PathLike[str]) -> None:
    """Waits until a local file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def network_devices(mounts: Path = Path("/proc/self/mountinfo")) -> frozenset[int]:
    r"""Returns the numbers (`st_dev`) of the mounted file systems that lie on other machines; none where Linux is not.

    proc(5) describes the table of mounts.

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
    for path in paths if devices else ():
        with suppress(OSError):
            if os.stat(path).st_dev in devices:  # noqa: PTH116  (`Path.stat` takes twice as long)
                return True
    return False

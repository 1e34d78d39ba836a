"""Processes that run a script and end as any other, started in milliseconds: `import arrowflow` alone takes 0.7 s.

A server imports the library, and no more: no pipeline runs in it, and it has one thread. Each script runs in a fork of
it, in `__main__`; where the script ends, the interpreter ends, with status and output of its own.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS: Final = 100

SERVE: Final = """
import json as _json, os as _os, signal as _signal, sys as _sys
# Where the tests run in the background of a shell, Ctrl-C is ignored, and stays so in all that is started.
_signal.signal(_signal.SIGINT, _signal.default_int_handler)
for _line in _sys.stdin:
    _script, _arguments, _files = _json.loads(_line)
    _child = _os.fork()
    if _child == 0:
        break
    print(_os.waitstatus_to_exitcode(_os.waitpid(_child, 0)[1]), flush=True)
else:
    _sys.exit()
for _descriptor, _file in enumerate(_files):
    _os.dup2(_os.open(_file, _os.O_RDWR), _descriptor)
_sys.argv[1:] = _arguments
exec(_script)
"""


class Server:
    """Runs scripts in forks of a process that has run a prelude."""

    def __init__(self, prelude: str) -> None:
        self._prelude = prelude
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", self._prelude + SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"},
            start_new_session=True,  # a script that hangs ends with it
        )

    def run(self, script: str, *arguments: str) -> tuple[int, str, str]:
        """Returns exit status, output and errors; a process that hangs is killed and fails the test."""
        with tempfile.TemporaryDirectory() as folder:
            out, errors = (Path(folder) / name for name in ("out", "errors"))
            out.touch()
            errors.touch()
            status = self._status([textwrap.dedent(script), arguments, [os.devnull, str(out), str(errors)]])
            written = out.read_bytes().decode(), errors.read_bytes().decode()  # carriage returns stay
        if status is None:
            self.close()
            self._process = self._started()
            pytest.fail(f"the process hung; it wrote {written[0]!r} and {written[1]!r}")
        return status, *written

    def _status(self, request: object) -> int | None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        ended, _, _ = select.select([self._process.stdout], [], [], DEADLINE_SECONDS)
        return int(self._process.stdout.readline()) if ended else None

    def close(self) -> None:
        """Ends the server, and a script that hangs."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@functools.cache
def plain() -> Server:
    """Returns the server of scripts that need the library alone; the end of the session closes it."""
    return Server("import arrowflow as af, json, os, sys\n")


def close_cached(server: functools._lru_cache_wrapper[Server]) -> None:
    """Ends the server that a cached function has started, if it was called."""
    if server.cache_info().currsize:
        server().close()
        server.cache_clear()

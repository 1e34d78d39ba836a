"""The entry of the command line: `arrowflow` and `python -m arrowflow`.

The commands themselves are in `arrowflow.cli`. Their arguments are here, outside of the library: any module of `arrowflow`
imports all of it first, with Polars and pyarrow, and `--help` would take four times as long.
"""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Runs the command that `sys.argv` names, and ends the process with its exit code."""
    try:
        app = importlib.import_module("arrowflow_cli.app").app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("rich", "typer"):
            raise
        sys.stderr.write(
            f"arrowflow: the command line needs the package {error.name}: pip install 'arrowflow[cli]'\n"
        )
        raise SystemExit(1) from None
    app(prog_name="arrowflow")


__all__ = ["main"]

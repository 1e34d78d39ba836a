"""The commands, their arguments and their exit codes. A command imports the library when it runs."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any, Final, NoReturn

import typer

FAILED: Final = 1
"""The exit code of a command that failed, or that has found something."""
USAGE: Final = 2
"""The exit code where the arguments make no sense."""

app = typer.Typer(
    name="arrowflow",
    help="Looks at data and pipelines, and lays data out for fast reading.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Files, folders, globs or URLs, as the readers take them."),
]
Format = Annotated[
    str | None, typer.Option(help="The format of the files, such as parquet. Default: by their endings.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Writes JSON, for scripts.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(importlib.import_module("arrowflow").__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Shows the version.")
    ] = False,
) -> None:
    """Takes the options that stand before a command."""


@app.command()
def inspect(paths: Paths, format: Format = None, as_json: AsJson = False) -> None:
    """Shows schema, rows, files, row groups, and how columns are stored.

    It reads footers alone. Only text formats are read through, to count their rows.
    """
    _run("inspect", paths=paths, format=format, as_json=as_json)


@app.command()
def head(
    paths: Paths,
    rows: Annotated[int, typer.Option("-n", "--rows", min=1, help="The number of rows.")] = 10,
    columns: Annotated[
        str, typer.Option(help="Names of the columns to show, with commas between them.")
    ] = "",
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="The rows to show, such as \"price > 3 AND name LIKE 'a%'\"."),
    ] = None,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Shows rows as a table; with --json one row a line."""
    names = [name.strip() for name in columns.split(",") if name.strip()]
    _run("head", paths=paths, rows=rows, columns=names, where=where, format=format, as_json=as_json)


def _run(command: str, **arguments: Any) -> None:
    """Runs a command; its errors become one line, and an exit code."""
    errors = importlib.import_module("arrowflow.errors")
    try:
        found = importlib.import_module(f"arrowflow.cli.{command}").run(**arguments)
        sys.stdout.flush()
    except errors.PlanError as error:
        _fail(error, USAGE)
    except errors.ArrowflowError as error:
        _fail(error, FAILED)
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    if found:
        raise typer.Exit(FAILED)


def _fail(error: Exception, code: int) -> NoReturn:
    typer.echo(f"arrowflow: {error}", err=True)
    raise typer.Exit(code) from None
